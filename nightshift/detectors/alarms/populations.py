"""Where the false-alarm rate of each detector was measured. Elsewhere the alarms of statistical ones are tickets.

`populations.json` holds one row per detector, population and telemetry. `python -m benchmarks.populations` makes it
from committed results. A rate says nothing of other populations: leaks that hold on serving pods alarm three times
as often on hosts with a steep daily tide.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.detectors.base import Fault, Finding

TOLERATED = 2.0
"""Pages by itself: a measured rate of at most so many times the stated one."""
LEAST_EXPECTED = 3.0
"""Measured: twice the stated rate would have brought so many alarms, so that none at all has a chance of 5 %."""
LEAST_COMPARED = 5.0
"""Where fewer alarms were expected, no factor between stated and realised rate is claimed."""
MOST_RUNS = 0.1
"""Where whole runs are counted: at most this share of healthy runs alarms, at the interval's upper end."""

NEAR_FACTS = frozenset({Fault.HANG, Fault.LOSS_NONFINITE, Fault.LOSS_DIVERGED})
"""What is seen rather than inferred: no step for much longer than this run's longest while its GPUs hold memory, a
loss that is no number or has left its band for good. Where its detector was measured, it pages whatever the budget
holds."""


def is_near_fact(finding: Finding) -> bool:
    """Whether an alarm is one of NEAR_FACTS, or a memory that is about to be full (`memory.leak`)."""
    return finding.fault in NEAR_FACTS or "pages_because" in finding.facts


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
