"""What every author of kernels is to a search: asked for proposals, told what the judge said, never trusted.

A parametric template, a language model and a CUDA C++ writer are interchangeable behind `Generator`. An author is
asked with the whole history each time and keeps nothing that cannot be rebuilt from it, so a search that was killed
goes on from its ledger.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from nightshift.kernels.candidate import Candidate
from nightshift.kernels.judge.verdict import Status, Verdict
from nightshift.kernels.problem import Case, Problem

Value = int | str
Config = Mapping[str, Value]
"""A point of a structured space: a value for each dimension. Of an author without a space what it keeps of its own,
such as a language model's island; else empty."""

TIMED = frozenset({Status.faster, Status.slower, Status.inconclusive})
"""Verdicts that carry a time."""


class GeneratorError(ValueError):
    """An author cannot work on this problem or case. The message says why."""


@dataclass(frozen=True)
class Task:
    """What a search works on: one case of one problem. floor_s: its time at the roofline; NaN where unknown.

    facts: what a language model is told beside (`kernels.generate.request`), such as the source of a suite's
    task."""

    problem: Problem
    case: Case
    floor_s: float = math.nan
    facts: Mapping[str, str] = field(default_factory=dict, hash=False, compare=False)

    @property
    def name(self) -> str:
        return f"{self.problem.name} {self.case}"


@dataclass(frozen=True)
class Proposal:
    """A candidate, where it comes from and what its author expects. `hypothesis` comes before the experiment.

    tokens: what a language model used to write it.
    """

    candidate: Candidate
    generator: str
    config: Config = field(default_factory=dict)
    hypothesis: str = ""
    tokens: int = 0


@dataclass(frozen=True)
class Outcome:
    """What became of a proposal. seconds: the candidate's median time; NaN where it was refused or not timed.

    rung: how precisely it was timed (0 is the quickest race). kept: it was the best so far when it was judged.
    baselines: what each took in the same race. work: what the judge knows of its kernels (`JudgeTrial.work`).
    """

    proposal: Proposal
    status: Status
    reason: str
    detail: str
    seconds: float = math.nan
    rung: int = 0
    kept: bool = False
    trial: int = 0
    baselines: Mapping[str, float] = field(default_factory=dict)
    work: Mapping[str, int] = field(default_factory=dict)

    @property
    def timed(self) -> bool:
        return self.status in TIMED and math.isfinite(self.seconds)


def fastest(history: Sequence[Outcome]) -> Outcome | None:
    """Of those that were timed; None where none was."""
    return min((o for o in history if o.timed), key=lambda o: o.seconds, default=None)


@dataclass(frozen=True)
class Spent:
    """What an author has used of its own means; GPU and wall time are the search's to count."""

    tokens: int = 0
    calls: int = 0
    usd: float = 0.0


class Generator(Protocol):
    """An author of kernels."""

    @property
    def name(self) -> str:
        """One word that the ledger carries."""
        ...

    def propose(self, task: Task, history: Sequence[Outcome], count: int) -> Sequence[Proposal]:
        """At most `count` new proposals; none when nothing is left to try. `history` is oldest first.

        Raises nightshift.collectors.base.Temporary where a later try may succeed, GeneratorError where none can.
        """
        ...

    def spent(self) -> Spent: ...


def seconds_of(verdict: Verdict, case: Case) -> float:
    """The candidate's median time on one case of a verdict; NaN where the case was not raced."""
    found = [c.candidate_s for c in verdict.comparisons if c.case == str(case)]
    return found[0] if found else math.nan
