"""Scores alarms against labelled events: delay, recall and false alarms per series-day, with exact intervals.

No point-adjusted F1: it rewards a detector that fires at random (Kim et al., AAAI 2022). A figure without a base
(no event, no healthy day) is NaN, never 0 or 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SECONDS_PER_DAY = 86400.0


@dataclass(frozen=True, slots=True)
class Event:
    """A labelled fault of one series: it can be found from `start_s` on and is of use until `end_s` (Unix s)."""

    series: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class AlarmAt:
    """The beginning of one alarm episode."""

    series: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Score:
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
    """Clopper–Pearson interval of a proportion (Biometrika 26, 1934); NaN of none."""
    from scipy.special import betaincinv  # slow to load, and every command loads this module

    if of == 0:
        return (math.nan, math.nan)
    tail = (1.0 - level) / 2.0
    low = 0.0 if found == 0 else float(betaincinv(found, of - found + 1, tail))
    high = 1.0 if found == of else float(betaincinv(found + 1, of - found, 1.0 - tail))
    return (low, high)


def garwood(count: int, exposure: float, level: float = 0.95) -> tuple[float, float]:
    """Garwood's exact interval of a Poisson rate (Biometrika 28, 1936) over an exposure; NaN without exposure."""
    from scipy.special import gammaincinv  # as above

    if not exposure > 0:
        return (math.nan, math.nan)
    tail = (1.0 - level) / 2.0
    low = 0.0 if count == 0 else float(gammaincinv(count, tail))
    return (low / exposure, float(gammaincinv(count + 1, 1.0 - tail)) / exposure)


def score(events: Sequence[Event], alarms: Sequence[AlarmAt], watched_s: Mapping[str, float]) -> Score:
    """Matches every event with the first alarm of its series within it; all other alarms are false.

    watched_s: series → seconds observed. Time inside events is not healthy time. An alarm that falls into an event
    that was already found is neither found again nor false.
    """
    by_series: dict[str, list[Event]] = {}
    for event in events:
        by_series.setdefault(event.series, []).append(event)
    first: dict[Event, float] = {}
    false = 0
    for alarm in sorted(alarms, key=lambda a: a.at_s):
        hit = [e for e in by_series.get(alarm.series, ()) if e.start_s <= alarm.at_s <= e.end_s]
        if not hit:
            false += 1
        for event in hit:
            first.setdefault(event, alarm.at_s)
    ill_s = sum(e.end_s - e.start_s for e in events if e.series in watched_s)
    days = max(sum(watched_s.values()) - ill_s, 0.0) / SECONDS_PER_DAY
    delays = sorted(at_s - event.start_s for event, at_s in first.items())
    low, high = garwood(false, days)
    return Score(
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


def _quantile(ordered: Sequence[float], share: float) -> float:
    if not ordered:
        return math.nan
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
