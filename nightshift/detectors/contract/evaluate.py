"""Scores alarms against labelled events: delay, recall and false alarms per series-day, with exact intervals.

No point-adjusted F1: it rewards a detector that fires at random (Kim et al., AAAI 2022). A figure without a base
(no event, no healthy day) is NaN, never 0 or 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nightshift.detectors.tails import beta_quantile, gamma_quantile

SECONDS_PER_DAY = 86400.0


@dataclass(frozen=True, slots=True)
class Event:
    """A labelled fault of one series: it can be found from `start_s` on and is of use until `end_s` (Unix s)."""

    series: str
    start_s: float
    end_s: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.start_s) and self.start_s <= self.end_s < math.inf):
            raise ValueError(f"event of {self.series}: from {self.start_s} to {self.end_s} is no stretch of time")


@dataclass(frozen=True, slots=True)
class AlarmAt:
    """The beginning of one alarm episode."""

    series: str
    at_s: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.at_s):
            raise ValueError(f"alarm of {self.series}: {self.at_s} is no time")


@dataclass(frozen=True, slots=True)
class Evaluation:
    """`false_rate` and its interval are per 1,000 series-days; delays in seconds, of the found events."""

    events: int
    found: int
    recall: float
    recall_interval: tuple[float, float]
    false_alarms: int
    healthy_days: float
    false_rate: float
    false_interval: tuple[float, float]
    delay_median_s: float
    delay_p90_s: float

    def held(self, stated_per_1000: float, factor: float = 2.0) -> str:
        """Whether the stated rate was kept: "held", "broken", or why these days cannot say.

        16 expected alarms are needed to tell a rate from its double; fewer days than 16 / rate only extrapolate.
        """
        if not stated_per_1000 > 0 or not self.healthy_days > 0:
            return "not measurable"
        if self.false_interval[0] > factor * stated_per_1000:
            return "broken"
        if self.healthy_days < 16.0 * 1000.0 / stated_per_1000:
            return "extrapolated"
        return "held" if self.false_rate <= factor * stated_per_1000 else "broken"


def exact_interval(found: int, of: int, level: float = 0.95) -> tuple[float, float]:
    """Clopper–Pearson interval of a proportion (Biometrika 26, 1934); NaN of none.

    >>> [round(bound, 2) for bound in exact_interval(9, 10)]
    [0.55, 1.0]
    """
    if not 0 <= found <= of:
        raise ValueError(f"{found} of {of} is no proportion")
    if of == 0:
        return (math.nan, math.nan)
    tail = (1.0 - level) / 2.0
    low = 0.0 if found == 0 else beta_quantile(found, of - found + 1, tail)
    high = 1.0 if found == of else beta_quantile(found + 1, of - found, 1.0 - tail)
    return (low, high)


def garwood(count: int, exposure: float, level: float = 0.95) -> tuple[float, float]:
    """Garwood's exact interval of a Poisson rate (Biometrika 28, 1936) over an exposure; NaN without exposure.

    >>> [round(bound, 2) for bound in garwood(0, 10.0)]  # none in ten days is not a rate of zero
    [0.0, 0.37]
    """
    if count < 0:
        raise ValueError(f"{count} is no count")
    if not exposure > 0:
        return (math.nan, math.nan)
    tail = (1.0 - level) / 2.0
    low = 0.0 if count == 0 else gamma_quantile(count, tail)
    return (low / exposure, gamma_quantile(count + 1, 1.0 - tail) / exposure)


def score(events: Sequence[Event], alarms: Sequence[AlarmAt], watched_s: Mapping[str, float]) -> Evaluation:
    """Matches every event with the first alarm of its series within it; all other alarms are false.

    watched_s: series → seconds observed. Time inside events, however many overlap, is not healthy time. An alarm
    that falls into an event that was already found is neither found again nor false; one within several events
    finds each. An event of a series that was not watched is missed. Raises ValueError on an alarm of such a series:
    it would have no days to be rare in.

    >>> day = SECONDS_PER_DAY
    >>> found = score([Event("a", 0.0, 600.0), Event("b", 0.0, 600.0)], [AlarmAt("a", 90.0)], {"a": day, "b": day})
    >>> found.recall, found.delay_median_s, found.false_alarms
    (0.5, 90.0, 0)
    >>> score([], [], {}).recall  # no event, no recall
    nan
    """
    unwatched = {alarm.series for alarm in alarms} - set(watched_s)
    if unwatched:
        raise ValueError(f"not watched: {', '.join(sorted(unwatched)[:5])}")
    by_series: dict[str, list[int]] = {}
    for number, event in enumerate(events):
        by_series.setdefault(event.series, []).append(number)
    first: dict[int, float] = {}
    false = 0
    for alarm in sorted(alarms, key=lambda a: a.at_s):
        own = by_series.get(alarm.series, ())
        hit = [n for n in own if events[n].start_s <= alarm.at_s <= events[n].end_s]
        false += not hit
        for number in hit:
            first.setdefault(number, alarm.at_s)
    healthy_s = sum(
        max(seconds - _covered_s([events[n] for n in by_series.get(series, ())]), 0.0)
        for series, seconds in watched_s.items()
    )
    days = healthy_s / SECONDS_PER_DAY
    delays = sorted(at_s - events[number].start_s for number, at_s in first.items())
    low, high = garwood(false, days)
    return Evaluation(
        events=len(events),
        found=len(first),
        recall=len(first) / len(events) if events else math.nan,
        recall_interval=exact_interval(len(first), len(events)),
        false_alarms=false,
        healthy_days=days,
        false_rate=1000.0 * false / days if days > 0 else math.nan,
        false_interval=(1000.0 * low, 1000.0 * high),
        delay_median_s=_quantile(delays, 0.5),
        delay_p90_s=_quantile(delays, 0.9),
    )


def _covered_s(events: Sequence[Event]) -> float:
    """Seconds within at least one of these events."""
    covered, until_s = 0.0, -math.inf
    for event in sorted(events, key=lambda e: e.start_s):
        covered += max(event.end_s - max(event.start_s, until_s), 0.0)
        until_s = max(until_s, event.end_s)
    return covered


def _quantile(ordered: Sequence[float], share: float) -> float:
    if not ordered:
        return math.nan
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
