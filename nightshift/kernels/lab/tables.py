"""Measured tables as a place to learn in: what the judge's clock said of each configuration, answered offline.

A table is every configuration of one family that was timed on one case (`benchmarks.kernels_tables`). A shape is
one case of one problem with the tables of all its families: an author chooses the variant too. Configurations that
were never timed have no answer: they are drawn again and count for no one.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from nightshift.kernels.generate.base import Config, GeneratorError
from nightshift.kernels.generate.policy import Context, Grammar, SentenceError, encode, features, vocabulary
from nightshift.kernels.ops.families import family_named
from nightshift.kernels.ops.problems import named
from nightshift.kernels.problem import Case

Sentence = tuple[int, ...]


@dataclass(frozen=True)
class Table:
    """One measured table. times: (configuration, seconds), infinite where it failed."""

    name: str
    family: str
    problem: str
    case: Case
    gpu: str
    times: tuple[tuple[Config, float], ...]

    @property
    def shape(self) -> str:
        """Its name without the family's."""
        return self.name.split("-", 1)[1]

    @property
    def held_out(self) -> bool:
        """For the score only: the md5 of its name is odd."""
        return hashlib.md5(self.name.encode(), usedforsecurity=False).digest()[-1] % 2 == 1


def table_of(name: str, raw: Mapping[str, Any]) -> Table | None:
    """None where the family has no such space today. Raises KeyError where the file is no table."""
    case = Case.of(raw["case"]["dtype"], raw["case"]["layout"], **raw["case"]["params"])
    try:
        space = family_named(raw["family"]).space(raw["problem"], case)
    except GeneratorError:
        return None
    dimensions = raw["dimensions"]
    times = []
    for row, micro in zip(raw["configs"], raw["microseconds"], strict=True):
        config = {n: dimensions[n][i] for n, i in zip(dimensions, row, strict=True)}
        if space.holds(config):
            times.append((config, math.inf if micro is None else micro * 1e-6))
    return Table(name, raw["family"], raw["problem"], case, raw["environment"]["gpu"], tuple(times))


def read_tables(folder: Path) -> list[Table]:
    """All tables of a folder, by name."""
    found = (table_of(path.stem, json.loads(path.read_text())) for path in sorted(folder.glob("*.json")))
    return [table for table in found if table is not None and table.times]


@dataclass(frozen=True)
class Shape:
    """One case of one problem and the tables that answer for it."""

    name: str
    tables: tuple[Table, ...]

    @property
    def problem(self) -> str:
        return self.tables[0].problem

    @cached_property
    def grammar(self) -> Grammar:
        return Grammar.of(self.problem, self.tables[0].case, [family_named(t.family) for t in self.tables])

    @cached_property
    def seconds(self) -> dict[Sentence, float]:
        """Seconds of each measured sentence; infinite where the sweep refused it."""
        return {
            tuple(encode(self.grammar.words(table.family, config))): seconds
            for table in self.tables
            for config, seconds in table.times
        }

    @cached_property
    def sentences(self) -> list[Sentence]:
        return list(self.seconds)

    @cached_property
    def best_s(self) -> float:
        return min(self.seconds.values())

    @cached_property
    def baseline_s(self) -> float:
        """The median of what ran: what a speed-up is over, since a table holds no baseline."""
        return statistics.median(s for s in self.seconds.values() if math.isfinite(s))

    @cached_property
    def context(self) -> Context:
        """What the network sees of it, without a history."""
        operation, *variants = encode([f"operation {self.problem}", *(f"variant {v}" for v in self.grammar.spaces)])
        seen = features(named(self.problem), self.tables[0].case, self.tables[0].gpu)
        return Context(tuple(seen), operation, tuple(variants))

    def answer(self, sentence: Sentence) -> float | None:
        """Seconds; infinite where the grammar admits it and the sweep refused it; None where it was never timed.

        Raises SentenceError where it is no sentence of the grammar, or its family refuses the combination."""
        if sentence in self.seconds:
            return self.seconds[sentence]
        variant, config = self.grammar.read([vocabulary()[w] for w in sentence])
        if not self.grammar.spaces[variant].admits(config):
            raise SentenceError(f"policy: {variant} does not admit {config}")
        return None


def shapes_of(tables: Iterable[Table]) -> list[Shape]:
    """The tables by shape. A table with a word that the vocabulary lacks keeps its other rows."""
    groups: dict[str, list[Table]] = {}
    for table in tables:
        groups.setdefault(table.shape, []).append(_speakable(table))
    return [Shape(name, tuple(t for t in group if t.times)) for name, group in groups.items()]


def _speakable(table: Table) -> Table:
    words = set(vocabulary())
    times = tuple((c, s) for c, s in table.times if all(f"{k}={v}" in words for k, v in c.items()))
    return Table(table.name, table.family, table.problem, table.case, table.gpu, times)


def split(tables: Sequence[Table]) -> tuple[list[Shape], list[Shape]]:
    """(to learn from, for the score only), by the md5 of each table's name."""
    return shapes_of(t for t in tables if not t.held_out), shapes_of(t for t in tables if t.held_out)
