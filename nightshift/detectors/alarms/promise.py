"""What a statistical detector promises, and on which populations that was measured.

It promises the rate of its calibrated tail where it alarms, or else a claim. Its `strength` setting is the score
from which it alarms, in units of what the method asks for by itself (1). Run at `LOOSE` strength it alarms on
healthy telemetry too, and what it says there gives the tail (`detectors.alarms.calibration`): how much rarer
stronger alarms are. Then the threshold is a function of the rate that the operator grants (`Tail.score`), instead
of a number that someone chose.

A rate says nothing of other populations: leaks that hold on serving pods alarm three times as often on hosts with
a steep daily tide. So a promise counts where it was measured and holds (`unmeasured`). Elsewhere an alarm is a
ticket. `populations.json` has one row per detector, population and telemetry. `python -m benchmarks.populations`
makes it from committed results.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Protocol, runtime_checkable

from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.detectors.alarms.tail import Tail, calibrated
from nightshift.detectors.base import Detector, RateBasis, StatedRate

TOLERATED = 2.0
"""Pages by itself: a measured rate of at most so many times the stated one."""
LEAST_EXPECTED = 3.0
"""Measured: twice the stated rate would have brought so many alarms, so that none at all has a chance of 5 %."""
LEAST_COMPARED = 5.0
"""Where fewer alarms were expected, no factor between stated and realised rate is claimed."""
MOST_RUNS = 0.1
"""Where whole runs are counted: at most this share of healthy runs alarms, at the interval's upper end."""


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


# Where a promise was measured -------------------------------------------------------------------------------------


class Population(StrEnum):
    """What a series belongs to."""

    TRAINING = "training"
    SERVING = "serving pods"
    HOSTS = "co-located hosts"
    HPC = "HPC nodes"


class Unit(StrEnum):
    """What healthy telemetry is counted in."""

    DAYS = "series-days"
    RUNS = "runs"


@dataclass(frozen=True, slots=True)
class PopulationRate:
    """False alarms of one detector, with default settings, on healthy telemetry of one population.

    exposure: in `unit`. stated: alarms per 1,000 series-days. low, high: 90 % interval of alarms per unit.
    files: the committed results, in benchmarks/results.

    >>> row = PopulationRate("stall", Population.TRAINING, "a day", Unit.DAYS, 1.0, 0, 0.0, 3.0, 5.0, ())
    >>> row.measured, row.holds  # a day is too short to tell 5 alarms in 1,000 days from 10
    (False, False)
    """

    detector: str
    population: Population
    telemetry: str
    unit: Unit
    exposure: float
    alarms: int
    low: float
    high: float
    stated: float
    files: tuple[str, ...]

    @property
    def expected(self) -> float:
        """Alarms that the stated rate would bring in this exposure; 0 where whole runs are counted."""
        return 0.0 if self.unit is Unit.RUNS else self.exposure * self.stated / 1000.0

    @property
    def measured(self) -> bool:
        """Whether the exposure can tell the stated rate from one that is too high."""
        if self.unit is Unit.RUNS:
            return self.alarms > 0 or self.high <= MOST_RUNS
        return TOLERATED * self.expected >= LEAST_EXPECTED

    @property
    def holds(self) -> bool:
        """Whether an alarm here may page by the shipped rate."""
        if self.unit is Unit.RUNS:
            return self.high <= MOST_RUNS
        return self.measured and 1000.0 * self.alarms <= TOLERATED * self.stated * self.exposure


@cache
def rates() -> tuple[PopulationRate, ...]:
    """All rows of `populations.json`. Raises ValueError where a population or unit in it is unknown."""
    rows = json.loads(Path(__file__).with_name("populations.json").read_text(encoding="utf-8"))
    kinds = {"population": Population, "unit": Unit, "files": tuple}
    return tuple(PopulationRate(**row | {name: kind(row[name]) for name, kind in kinds.items()}) for row in rows)


@cache
def upper_ends(detector: str) -> Mapping[Unit, float]:
    """False alarms per unit at the upper end of the interval, by unit, of what was measured and holds."""
    found: dict[Unit, float] = {}
    for rate in rates():
        if rate.detector == detector and rate.holds:
            found[rate.unit] = max(rate.high, found.get(rate.unit, 0.0))
    return found


def population_of(subject: Subject, above: Iterable[Subject], training: Collection[str]) -> Population:
    """What a series belongs to by the subjects `above` it; `training`: names of jobs that took steps lately.

    >>> gpu, pod = Subject(SubjectKind.GPU, "GPU-1"), Subject(SubjectKind.POD, "ml/chat-0")
    >>> population_of(gpu, [pod], []).value, population_of(gpu, [], []).value
    ('serving pods', 'HPC nodes')
    """
    chain = (subject, *above)
    kinds = {one.kind for one in chain}
    if SubjectKind.RANK in kinds or any(s.kind is SubjectKind.JOB and s.name in training for s in chain):
        return Population.TRAINING
    if kinds & {SubjectKind.POD, SubjectKind.SERVER, SubjectKind.JOB}:
        return Population.SERVING
    # an exporter of containers runs where many share a host; where none is, one batch job holds the node
    return Population.HOSTS if SubjectKind.CONTAINER in kinds else Population.HPC


def unmeasured(detector: str, population: Population) -> str:
    """Why an alarm of this detector is a ticket on this population; empty where its measured rate lets it page.

    Every telemetry that was measured has to hold: one that does not may be the one at hand.

    >>> unmeasured("memory_leak", Population.HPC)
    'its false-alarm rate was not measured on HPC nodes'
    """
    measured = [
        rate for rate in rates() if rate.detector == detector and rate.population is population and rate.measured
    ]
    if not measured:
        return f"its false-alarm rate was not measured on {population}"
    for rate in measured:
        if not rate.holds:
            seen = f"{rate.alarms} false alarms in {rate.exposure:.0f} {rate.unit}"
            return f"its false-alarm rate is too high on {population} ({seen}: {rate.telemetry})"
    return ""
