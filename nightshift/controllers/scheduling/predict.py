"""How long a job will run, learned from what has ended so far: never from the trace's future.

A job's history is what is most like it, as far as there is enough of it: the jobs submitted around the same time
with the same width (a sweep is a burst of like jobs), those of the same user and width, the user's, those of the
width, all. Levels are blended by how much each has seen; each keeps its newest `KEEP` durations. Durations in
clusters are heavy-tailed, so what has run long will run longer: a running job is predicted from those that lasted
at least as long, and beyond all of them by Lindy's rule (it will last as long again).

`alike` predicts who waits from those of one kind that were submitted just before and after, those that still run
included. A sweep is a burst of like jobs: the first to end say what the others will take, and while they run, that
they are not short. In Philly's trace the jobs beside each other last alike, and those of one user or width hardly.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

KEEP = 300
ENOUGH = 6.0
"""Ended jobs at which a level counts as much as everything above it."""
AT_FIRST_S = 3600.0
"""Before anything has ended."""
NEAR_S = 1800.0
"""Submitted this close, jobs of one width count as a burst."""
REACH, FADES = 10, 3.0
"""Of a kind's jobs, in order of submission, so many on either side count, each e^(-1/FADES) of the one before."""
Kind = tuple[str, str, int]
"""Owner, name and width: what is known of a job at its submission."""


@dataclass
class _Level:
    """Newest durations, in order of time and in order of length."""

    newest: deque[float] = field(default_factory=deque)
    ordered: list[float] = field(default_factory=list)

    def add(self, duration_s: float) -> float | None:
        """Returns what it forgot for it."""
        insort(self.ordered, duration_s)
        self.newest.append(duration_s)
        if len(self.newest) <= KEEP:
            return None
        oldest = self.newest.popleft()
        del self.ordered[bisect_right(self.ordered, oldest) - 1]
        return oldest

    def take_back(self, forgotten: float | None) -> None:
        """The newest was never there."""
        del self.ordered[bisect_right(self.ordered, self.newest.pop()) - 1]
        if forgotten is not None:
            self.newest.appendleft(forgotten)
            insort(self.ordered, forgotten)


Ended = deque[tuple[float, float]]
"""Newest last: (submitted, duration)."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """What one ended job changed, to take it back."""

    levels: tuple[tuple[_Level, float | None], ...]
    beside: Ended
    forgotten: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Present:
    """A job that waits (`age_s` NaN) or runs."""

    submit_s: float
    age_s: float = math.nan


@dataclass
class Durations:
    """`learn` what ended, `quantile` what will; keys are made of what is known at submission."""

    levels: dict[tuple[object, ...], _Level] = field(default_factory=dict)
    ended: int = 0
    beside: dict[Kind, Ended] = field(default_factory=dict)
    """By kind, those that ended."""

    @staticmethod
    def keys(user: str, gpus: int, submit_s: float, name: str = "") -> list[tuple[object, ...]]:
        """From everything to what is most like it."""
        # bins rather than a window: keys have to be the same when the job ends
        near = int(submit_s // NEAR_S) if math.isfinite(submit_s) else None
        found: list[tuple[object, ...]] = [("all",), ("gpus", gpus)]
        if user:
            found += [("user", user), ("user", user, gpus)]
        if name:
            found += [("name", user, name), ("name", user, name, gpus)]
        return [*found, ("near", user, gpus, name, near)]

    def learn(self, user: str, gpus: int, submit_s: float, duration_s: float, name: str = "") -> Lesson:
        self.ended += 1
        beside = self.beside.setdefault((user, name, gpus), deque())
        beside.append((submit_s, max(duration_s, 1.0)))
        forgotten = beside.popleft() if len(beside) > KEEP else None
        levels = [self.levels.setdefault(key, _Level()) for key in self.keys(user, gpus, submit_s, name)]
        return Lesson(tuple((level, level.add(max(duration_s, 1.0))) for level in levels), beside, forgotten)

    def take_back(self, lesson: Lesson) -> None:
        """As if the newest lesson had not been."""
        self.ended -= 1
        for level, forgotten in lesson.levels:
            level.take_back(forgotten)
        lesson.beside.pop()
        if lesson.forgotten is not None:
            lesson.beside.appendleft(lesson.forgotten)

    def quantile(
        self, user: str, gpus: int, submit_s: float, q: float, age_s: float = 0.0, name: str = ""
    ) -> float:
        """The whole duration (s) of a job that has run for `age_s`, at this quantile."""
        # Lindy's rule, for what has outlasted all that is known
        found = math.log(max(AT_FIRST_S, 2.0 * age_s))
        for key in self.keys(user, gpus, submit_s, name):
            level = self.levels.get(key)
            if level is None:
                continue
            ordered = level.ordered
            first = bisect_right(ordered, age_s)
            longer = len(ordered) - first
            if longer:
                # blended in the logarithm: durations span five orders of magnitude, and one long job would outweigh
                # all else
                own = math.log(ordered[first + min(int(q * longer), longer - 1)])
                weight = longer / (longer + ENOUGH)
                found = weight * own + (1.0 - weight) * found
        return math.exp(found)

    def alike(self, kind: Kind, present: Sequence[Present]) -> list[float]:
        """The whole durations (s) to expect of jobs of one kind that wait or run, before they have run."""
        user, name, gpus = kind
        rows = [(job.submit_s, job.age_s, number) for number, job in enumerate(present)]
        rows += [(submit_s, duration_s, -1) for submit_s, duration_s in self.beside.get(kind, ())]
        rows.sort(key=lambda row: row[0])
        # what is not of the burst says the same of all of them
        base_s = self.quantile(user, gpus, -math.inf, 0.5, name=name)
        logs, weights = np.zeros(len(rows)), np.zeros(len(rows))
        for place, (_, lasts_s, number) in enumerate(rows):
            if number < 0:
                logs[place], weights[place] = math.log(lasts_s), 1.0
            elif lasts_s > 0:
                # a run that has only begun says nothing yet; one beyond what is usual says almost all
                whole_s = self.quantile(user, gpus, -math.inf, 0.5, lasts_s, name)
                logs[place], weights[place] = math.log(whole_s), lasts_s / (lasts_s + base_s)
        fading = np.exp(-np.abs(np.arange(-REACH, REACH + 1)) / FADES)
        fading[REACH] = 0.0  # not by its own age: who waits and who runs are told alike
        # "full" and cut, for "same" is as long as the longer of the two
        total = np.convolve(weights, fading)[REACH : REACH + len(rows)]
        found = np.exp(
            (np.convolve(weights * logs, fading)[REACH : REACH + len(rows)] + math.log(base_s)) / (total + 1.0)
        )
        expected = [0.0] * len(present)
        for place, (_, _, number) in enumerate(rows):
            if number >= 0:
                expected[number] = float(found[place])
        return expected
