"""Parametric kernels: a family writes one program for every point of its space; a surrogate chooses the points.

The first proposals are a spread over the space (or, with a warm start, what was best on neighbouring shapes and its
surroundings); after that a Gaussian process over log time proposes what promises most, in batches that are kept
apart by believing the model's own expectation (constant liar: Ginsbourger, Le Riche and Carraro 2010).
"""

from __future__ import annotations

import math
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from nightshift.kernels.candidate import Candidate
from nightshift.kernels.candidate_file import parse_candidate
from nightshift.kernels.draw import mix
from nightshift.kernels.generate.base import Config, GeneratorError, Outcome, Proposal, Spent, Task, Value, fastest
from nightshift.kernels.generate.space import Space, differences
from nightshift.kernels.generate.surrogate import Array, Prior, Surrogate
from nightshift.kernels.problem import Case


class Family(Protocol):
    """A way to write kernels for one or more problems: the space for a case, and the source of a point."""

    @property
    def name(self) -> str: ...

    @property
    def problems(self) -> tuple[str, ...]: ...

    def space(self, problem: str, case: Case) -> Space:
        """Configurations worth measuring on this case. Raises GeneratorError where the family has none."""
        ...

    def source(self, problem: str, case: Case, config: Config) -> str:
        """A candidate file (`kernels.candidate_file`) for one point."""
        ...


@dataclass(frozen=True)
class Apart:
    """A family without the configurations that write into their inputs ("in_place")."""

    family: Family

    @property
    def name(self) -> str:
        return self.family.name

    @property
    def problems(self) -> tuple[str, ...]:
        return self.family.problems

    def space(self, problem: str, case: Case) -> Space:
        whole = self.family.space(problem, case)
        return Space(whole.dimensions, lambda config: config.get("place") != "in_place" and whole.admits(config))

    def source(self, problem: str, case: Case, config: Config) -> str:
        return self.family.source(problem, case, config)


HINTS = {
    "": "",
    "evict_first": ', eviction_policy="evict_first"',
    "streaming": ', cache_modifier=".cs"',
}
"""What a configuration's `load` and `store` add to a Triton access. evict_first is a hint to L2 as well as to L1
(createpolicy), streaming one of PTX's cache operators: likely to be accessed once. Results that ask to stay in L2
(evict_last) were slower in every table that tried, by 1 to 4 %: they are no longer in the spaces."""


def render(
    problem: str,
    body: str,
    values: Mapping[str, Value],
    *,
    language: str = "triton",
    kind: str = "own_kernel",
    layouts: str = "contiguous padded offset",
    like: Case | None = None,
    keys: Mapping[str, str] | None = None,
) -> str:
    """A candidate file: the declaration as a header, then `body` with every ``$name`` replaced."""
    mark = "//" if language == "cuda" else "#"
    head = {"problem": problem, "language": language, "kind": kind, "determinism": "bitwise", "layouts": layouts}
    if like is not None:  # what was tuned for 16 bits is not offered for 32
        head["dtypes"] = "float16 bfloat16" if like.element_bytes == 2 else like.dtype
    declared = {**head, **(keys or {})}
    lines = [f"{mark} nightshift candidate", *(f"{mark} {k}: {v}" for k, v in declared.items() if v)]
    values = {k: HINTS.get(str(v), v) if k in ("load", "store") else v for k, v in values.items()}
    return "\n".join(lines) + "\n\n" + string.Template(body).substitute(values).strip() + "\n"


def rewritten(body: str, changes: str) -> str:
    """A kernel that differs from another in these lines alone, so that the text which was measured stays as it is.

    changes: hunks, apart by empty lines, of old lines ("- …") and what stands in their place ("+ …"). Raises
    ValueError where old lines do not stand in the body exactly once.
    """
    for hunk in changes.strip("\n").split("\n\n"):
        lines = hunk.split("\n")
        old, new = ("".join(f"{line[2:]}\n" for line in lines if line[0] == sign) for sign in "-+")
        if f"\n{body}".count(f"\n{old}") != 1:
            raise ValueError(f"does not stand in the kernel once:\n{old}")
        body = f"\n{body}".replace(f"\n{old}", f"\n{new}")[1:]
    return body


def candidate(family: Family, problem: str, case: Case, config: Config) -> Candidate:
    """The candidate of one point of a family's space."""
    return parse_candidate(family.source(problem, case, config), f"{family.name} {dict(config)}").candidate


def _hypothesis(config: Config, best: Outcome | None, expected_s: float) -> str:
    """Why a configuration is tried: what is unlike the best so far, and the time that this should take (s)."""
    if best is None:
        return "first look at the space"
    text = differences(best.proposal.config, config)
    if math.isfinite(expected_s):
        return f"expect {expected_s * 1e6:.1f} µs (best {best.seconds * 1e6:.1f}) from {text}"
    return text


@dataclass(frozen=True)
class Warm:
    """What is known of other shapes: best configurations first, and (config key → log seconds) tables."""

    configs: tuple[Config, ...] = ()
    tables: tuple[Mapping[tuple[Value, ...], float], ...] = ()


@dataclass
class Template:
    """A family as a generator. seed decides the first spread and ties."""

    family: Family
    seed: int = 0
    warm: Warm = field(default_factory=Warm)
    spread: int = 16

    @property
    def name(self) -> str:
        return self.family.name

    def spent(self) -> Spent:
        return Spent()

    def propose(self, task: Task, history: Sequence[Outcome], count: int) -> Sequence[Proposal]:
        if task.problem.name not in self.family.problems:
            raise GeneratorError(f"{self.name}: does not write {task.problem.name}")
        space = self.family.space(task.problem.name, task.case)
        mine = [o for o in history if o.proposal.generator == self.name and space.holds(o.proposal.config)]
        tried = [(o.proposal.config, o.seconds if o.timed else math.inf) for o in mine]
        best = fastest(mine)
        made: list[Proposal] = []
        why = ""
        while len(made) < count and (chosen := self.choose(space, tried, count - len(made))):
            for config, expected_s in chosen:
                written = candidate(self.family, task.problem.name, task.case, config)
                tried.append((config, math.inf))  # of this round: the next look is at others
                # known before the first trial, so it costs none: a judge would say `empty_domain`
                if outside := written.domain.outside(task.case.sizes, task.case.dtype, task.case.layout):
                    why = outside
                    continue
                made.append(Proposal(written, self.name, dict(config), _hypothesis(config, best, expected_s)))
        if why and not made and not mine:
            raise GeneratorError(f"{self.name}: none of its {len(space)} kernels is for this case: {why}")
        return made

    def choose(self, space: Space, tried: Sequence[tuple[Config, float]], count: int) -> list[tuple[Config, float]]:
        """Untried configurations and the seconds expected of each (NaN before anything ran)."""
        where = {space.key(config): number for number, config in enumerate(space.configs)}
        seen = {where[space.key(config)]: seconds for config, seconds in tried if space.key(config) in where}
        left = len(space) - len(seen)
        count = min(count, left)
        ran = [s for s in seen.values() if math.isfinite(s)]
        warm = [c for c in self.warm.configs if space.holds(c) and where[space.key(c)] not in seen]
        first = self.spread if not self.warm.configs else min(self.spread, 4)
        if len(seen) < first or not ran:
            numbers = [where[space.key(c)] for c in warm][:count]
            numbers += self._spread(space, set(seen) | set(numbers), count - len(numbers))
            return [(space.configs[n], math.nan) for n in numbers]
        return self._improve(space, seen, count)

    def _spread(self, space: Space, taken: set[int], count: int) -> list[int]:
        """Each next point is the farthest of a few dozen draws from everything taken (maximin)."""
        rng = np.random.default_rng(mix(self.seed, len(taken)))
        chosen: list[int] = []
        free = np.array([n for n in range(len(space)) if n not in taken], dtype=np.int64)
        for _ in range(min(count, len(free))):
            draws = rng.choice(free, size=min(64, len(free)), replace=False)
            known = [*taken, *chosen]
            pick = int(draws[0])
            if known:
                gaps = np.abs(space.points[draws][:, None, :] - space.points[known][None, :, :]).sum(axis=2)
                pick = int(draws[int(gaps.min(axis=1).argmax())])
            chosen.append(pick)
            free = free[free != pick]
        return chosen

    def _improve(self, space: Space, seen: Mapping[int, float], count: int) -> list[tuple[Config, float]]:
        tried = list(seen)
        logs = [math.log(seen[n]) if math.isfinite(seen[n]) else math.inf for n in tried]
        best = min(logs)
        prior = self._prior(space)
        model = Surrogate(space.points, space.groups, mix(self.seed, len(tried)) % (1 << 32), prior)
        made: list[tuple[Config, float]] = []
        for number in range(count):
            # within a batch only the model's own beliefs are added: of its scales they say nothing new
            model.fit(np.array(tried, dtype=np.int64), np.array(logs, dtype=np.float64), tune=number == 0)
            gain = model.improvement(best)
            # noise leaves some hope in points that were measured; a second measurement is the judge's to take
            gain[tried] = -math.inf
            pick = int(gain.argmax())
            expected = float(model.predict()[0][pick])
            made.append((space.configs[pick], math.exp(expected)))
            tried.append(pick)
            logs.append(expected)
        return made

    def _prior(self, space: Space) -> Prior | None:
        """The mean of the other shapes' tables, each about its own median; points they lack count as average."""
        if not self.warm.tables:
            return None
        columns = []
        for table in self.warm.tables:
            found = [table.get(space.key(c), math.nan) for c in space.configs]
            column: Array = np.array(found, dtype=np.float64)
            usable = np.isfinite(column)
            # about its own median one point says nothing
            if usable.sum() < 2:
                continue
            middle = float(np.median(column[usable]))
            columns.append(np.where(usable, column - middle, 0.0))
        return Prior(np.mean(columns, axis=0)) if columns else None
