"""What a statistical detector promises: the rate of its calibrated tail where it alarms, or else a claim.

A statistical detector has a `strength` setting: an alarm is a score at least that high, in units of what the
method asks for by itself (1). Run at `LOOSE` strength it alarms on healthy telemetry too, and what it says there
gives the tail (`detectors.alarms.calibration`): how much rarer stronger alarms are. Then the threshold is a
function of the rate that the operator grants (`Tail.score`), instead of a number that someone chose.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol, runtime_checkable

from nightshift.collectors.subject import SubjectKind
from nightshift.detectors.alarms.tail import Tail, calibrated
from nightshift.detectors.base import Detector, RateBasis, StatedRate


@runtime_checkable
class Graded(Protocol):
    """A statistical detector whose alarms are graded: `strength` is the score from which it alarms."""

    @property
    def strength(self) -> float: ...


def stated(
    detector: str,
    claim: float,
    source: str,
    strength: float,
    series: SubjectKind = SubjectKind.GPU,
    also: tuple[SubjectKind, ...] = (),
) -> StatedRate:
    """The rate of the shipped tail at this strength; `claim` per 1,000 series-days where none is shipped."""
    return told(StatedRate(claim, RateBasis.STATISTICAL, source, series, also=also), calibrated(detector), strength)


def told(rate: StatedRate, tail: Tail | None, strength: float) -> StatedRate:
    """The same promise with a tail, if there is one."""
    if tail is None:
        return rate
    return replace(rate, per_1000_series_days=tail.rate(strength), source=tail.source, tail=tail)


def promises(detectors: Iterable[Detector], own: Mapping[str, Tail]) -> dict[str, StatedRate]:
    """What each of these detectors states, by name; `own` are tails of the operator's telemetry, which win."""
    found = {}
    for detector in detectors:
        graded = isinstance(detector, Graded) and detector.stated.basis is RateBasis.STATISTICAL
        tail = own.get(detector.name) if graded else None
        rate = told(detector.stated, tail, detector.strength if isinstance(detector, Graded) else 1.0)
        found[detector.name] = replace(rate, own=tail is not None)
    return found
