"""What a budget of false pages rests on: a detector's own false alarms on this fleet, and pages left to spend.

A shipped tail is another fleet's, and a claim is nobody's. What holds on this fleet is learnt from it, and what has
not been learnt yet is bounded by counting. Two parts, neither of which assumes a law of the noise:

- `AlarmHistory`: alarms that were found false, by strength, and the series-days in which they came. An alarm of
  strength s costs (1 + false ones at least as strong) / (prior + days): the mean of a Poisson rate after one
  pseudo-alarm in the prior's days (Gelman et al., Bayesian Data Analysis, 2.6). Where alarms are exchangeable this
  is a rule of ranks (conformal: Vovk, Gammerman and Shafer, Algorithmic Learning in a Random World, 2005), so it
  holds for any tail.
- `Balance`: pages of a detector that may still be found false. It fills at its share's pace, and each page that is
  found false takes one. A page that nobody has judged takes none.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from dataclasses import dataclass, field
from itertools import accumulate

DAY_S = 86400.0
WEEK_S = 7 * DAY_S
OPEN_S = 30 * DAY_S
"""An alarm that nothing has judged within this time is forgotten: it was neither true nor false."""
MEMORY_S = 26 * WEEK_S
"""What was seen this long ago counts for 1/e: fleets and workloads change."""
KEPT = 512


@dataclass(slots=True)
class AlarmHistory:
    """Alarms of one detector that were found false, and the series-days in which they came; old ones fade.

    >>> history = AlarmHistory()
    >>> history.alarm("episode 1", score=2.0, at_s=0.0)
    >>> history.watch(series=100.0, elapsed_s=DAY_S, at_s=DAY_S)
    >>> history.rate(1.5, prior_days=0.0, at_s=DAY_S)  # not judged, so it does not count
    0.01
    >>> history.found_false("episode 1")
    >>> round(history.rate(1.5, prior_days=0.0, at_s=DAY_S), 3), round(history.rate(3.0, 0.0, DAY_S), 3)
    (0.02, 0.01)
    """

    days: float = 0.0
    weight: float = 0.0
    """False alarms, faded; also those that are no longer kept one by one."""
    ripe: list[tuple[float, float]] = field(default_factory=list)
    """(score, when it came, Unix s) of false alarms, by score: the KEPT strongest."""
    young: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Episode → (score, when it came), until it is judged."""
    _from: list[float] = field(default_factory=list)
    """Weight of `ripe` from each place on, as of `_newest_s`; empty: to be summed."""
    _newest_s: float = 0.0

    def watch(self, series: float, elapsed_s: float, at_s: float) -> None:
        """Counts the days of so many series, lets the past fade, and forgets what nothing has judged."""
        fade = math.exp(-elapsed_s / MEMORY_S)
        self.days = self.days * fade + series * elapsed_s / DAY_S
        self.weight *= fade
        for episode in [e for e, (_, since_s) in self.young.items() if at_s - since_s >= OPEN_S]:
            del self.young[episode]

    def alarm(self, episode: str, score: float, at_s: float) -> None:
        """The strongest moment of an episode counts."""
        before = self.young.get(episode)
        self.young[episode] = (score, at_s) if before is None else (max(before[0], score), before[1])

    def found_true(self, episode: str) -> None:
        """No false alarm. An earlier verdict stays."""
        self.young.pop(episode, None)

    def found_false(self, episode: str) -> None:
        """A false alarm. An earlier verdict stays."""
        if episode not in self.young:
            return
        insort(self.ripe, self.young.pop(episode))
        self.weight += 1.0
        self._from = []
        if len(self.ripe) > 2 * KEPT:
            del self.ripe[: len(self.ripe) - KEPT]

    def stronger(self, score: float, at_s: float) -> float:
        """False alarms at least this strong, faded. One weaker than all kept counts as the weakest."""
        place = bisect_left(self.ripe, (score, -math.inf))
        if place == 0:
            return self.weight
        if place == len(self.ripe):
            return 0.0
        if not self._from:
            self._newest_s = max(since_s for _, since_s in self.ripe)
            faded = [math.exp((since_s - self._newest_s) / MEMORY_S) for _, since_s in self.ripe]
            self._from = list(accumulate(reversed(faded)))[::-1]
        return self._from[place] * math.exp(-max(at_s - self._newest_s, 0.0) / MEMORY_S)

    def rate(self, score: float, prior_days: float, at_s: float) -> float:
        """False alarms at least this strong, per series-day, that are to be expected."""
        return (1.0 + self.stronger(score, at_s)) / max(prior_days + self.days, 1e-12)

    def saved(self) -> list[object]:
        return [self.days, self.weight, self.ripe, self.young]

    @staticmethod
    def load(saved: object) -> AlarmHistory:
        """Takes back `saved`. Raises ValueError and TypeError where it is none."""
        if not isinstance(saved, list):
            raise TypeError("a history is a list")
        days, weight, ripe, young = saved
        pairs = sorted((_number(score), _number(since_s)) for score, since_s in ripe)
        known = {str(e): (_number(score), _number(since_s)) for e, (score, since_s) in young.items()}
        return AlarmHistory(_number(days), _number(weight), pairs, known)


@dataclass(slots=True)
class Balance:
    """Pages of a detector that may still be found false."""

    left: float

    def fill(self, weekly: float, limit: float, elapsed_s: float) -> None:
        self.left = min(self.left + weekly * elapsed_s / WEEK_S, limit)

    def take(self) -> None:
        """A page was found false. Never below nothing: many at once mute no longer than one."""
        self.left = max(self.left - 1.0, 0.0)


def _number(value: object) -> float:
    number = float(value)  # type: ignore[arg-type]
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is not finite")
    return number
