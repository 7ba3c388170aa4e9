"""How long a job will run, learned from what has ended so far: never from the trace's future.

A job's history is what is most like it, as far as there is enough of it: the jobs submitted around the same time
with the same width (a sweep is a burst of like jobs), those of the same user and width, the user's, those of the
width, all. Levels are blended by how much each has seen; each keeps its newest `KEEP` durations. Durations in
clusters are heavy-tailed, so what has run long will run longer: a running job is predicted from those that lasted
at least as long, and beyond all of them by Lindy's rule (it will last as long again).
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import deque
from dataclasses import dataclass, field

KEEP = 300
ENOUGH = 6.0
"""Ended jobs at which a level counts as much as everything above it."""
AT_FIRST_S = 3600.0
"""Before anything has ended."""
NEAR_S = 1800.0
"""Submitted this close, jobs of one width count as a burst."""


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


Lesson = tuple[tuple[_Level, float | None], ...]
"""What one ended job changed, to take it back."""


@dataclass
class Durations:
    """`learn` what ended, `quantile` what will; keys are made of what is known at submission."""

    levels: dict[tuple[object, ...], _Level] = field(default_factory=dict)
    ended: int = 0

    @staticmethod
    def keys(user: str, gpus: int, submit_s: float, name: str = "") -> list[tuple[object, ...]]:
        """From everything to what is most like it."""
        # bins rather than a window: keys have to be the same when the job ends
        near = int(submit_s // NEAR_S)
        found: list[tuple[object, ...]] = [("all",), ("gpus", gpus)]
        if user:
            found += [("user", user), ("user", user, gpus)]
        if name:
            found += [("name", user, name), ("name", user, name, gpus)]
        return [*found, ("near", user, gpus, name, near)]

    def learn(self, user: str, gpus: int, submit_s: float, duration_s: float, name: str = "") -> Lesson:
        self.ended += 1
        levels = [self.levels.setdefault(key, _Level()) for key in self.keys(user, gpus, submit_s, name)]
        return tuple((level, level.add(max(duration_s, 1.0))) for level in levels)

    def take_back(self, lesson: Lesson) -> None:
        """As if the newest lesson had not been."""
        self.ended -= 1
        for level, forgotten in lesson:
            level.take_back(forgotten)

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
