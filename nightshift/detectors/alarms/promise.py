"""What a statistical detector promises: the rate of its calibrated tail where it alarms, or else a claim.

A statistical detector has a `strength` setting: an alarm is a score at least that high, in units of what the
method asks for by itself (1). Run at `LOOSE` strength it alarms on healthy telemetry too, and what it says there
gives the tail (`detectors.alarms.calibration`): how much rarer stronger alarms are. Then the threshold is a
function of the rate that the operator grants (`Tail.score`), instead of a number that someone chose.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol, runtime_checkable

from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.detectors.alarms.tail import Tail, calibrated
from nightshift.detectors.base import Detector, Fault, RateBasis, StatedRate


class Population(StrEnum):
    """What a series belongs to: a rate that was measured on one says nothing of the others."""

    TRAINING = "training"
    SERVING = "serving pods"
    HOSTS = "co-located hosts"
    HPC = "HPC nodes"


@dataclass(frozen=True, slots=True)
class PopulationRate:
    """False alarms of one detector on one population. holds: at most twice what is stated, so that it may page."""

    figure: str
    holds: bool


POPULATIONS: Mapping[str, Mapping[Population, PopulationRate]] = {
    "divergence": {
        Population.TRAINING: PopulationRate(
            "alarms on 0 of 42 benign labelled runs and on 0 of 33 public runs of 8 GPUs", True
        )
    },
    "ecc": {},
    "hang": {},
    "local_gradients": {},
    "memory_leak": {
        Population.SERVING: PopulationRate(
            "37 stated, 8 (0 to 43) realised per 1,000 series-days, on 129 days of pods that were not fitted", True
        ),
        Population.HOSTS: PopulationRate("more than twice what is stated, on machines with a daily tide", False),
    },
    "serving": {},
    "stall": {},
    "straggler": {},
    "throttle": {},
}
"""Every statistical detector, and where its rate was measured. What is not in it was not: no page by it there."""

NEAR_FACTS = frozenset({Fault.HANG, Fault.LOSS_NONFINITE})
"""What is seen rather than inferred: no step for much longer than this run's longest while its GPUs hold memory, a
loss that is no number. A false one needs a healthy run to do just that, so no population makes a ticket of it."""


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
    """Why an alarm of this detector is a ticket on this population; empty where its measured rate lets it page."""
    rate = POPULATIONS.get(detector, {}).get(population)
    if rate is not None and rate.holds:
        return ""
    known = "was not measured" if rate is None else f"does not hold ({rate.figure})"
    return f"its false-alarm rate {known} on {population}"


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
