"""What has to be known of a kernel before jobs may use it, and where the jobs' machines stand against it.

A *record* is what a certificate says of its evidence: where it ran (GPU, driver, torch, Triton, judge), which
baselines it met and in what times, and what was not checked. A *view* is what telemetry and the jobs' own lines say
of the machines now. What is not said is unknown, and never taken for unchanged.
`kernels.certification.registry.promotable` decides on the two.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from nightshift.kernels.certification.envelope import JUDGE

# Of a certificate's environment what jobs are held against. Container and CUDA come with torch and driver.
FIELDS = ("gpu", "driver", "torch", "triton")
_ABSENT = ("", "none", "unknown")


class EvidenceReason(StrEnum):
    """Why a kernel is not promotable."""

    no_record = "no_record"
    not_fit = "not_fit"
    no_gpu = "no_gpu"
    no_driver = "no_driver"
    no_torch = "no_torch"
    no_triton = "no_triton"
    no_race = "no_race"
    no_interval = "no_interval"
    race_lost = "race_lost"
    race_undecided = "race_undecided"
    gaps_unstated = "gaps_unstated"
    other_judge = "other_judge"
    gpu_changed = "gpu_changed"
    driver_changed = "driver_changed"
    torch_changed = "torch_changed"
    triton_changed = "triton_changed"
    environment_unknown = "environment_unknown"


SENTENCES: Mapping[EvidenceReason, str] = {
    EvidenceReason.no_record: "the plan carries no evidence: propose the certificate again",
    EvidenceReason.not_fit: "the judge did not find it fit",
    EvidenceReason.no_gpu: "no GPU ran it: certify it on the jobs' GPU",
    EvidenceReason.no_driver: "the certificate names no driver: certify it again",
    EvidenceReason.no_torch: "the certificate names no torch version: certify it again",
    EvidenceReason.no_triton: "the certificate names no Triton version: certify it again",
    EvidenceReason.no_race: "it met no baseline: certify it with timing",
    EvidenceReason.no_interval: "a baseline has no times or no interval: certify it again",
    EvidenceReason.race_lost: "it is slower than a baseline",
    EvidenceReason.race_undecided: "its race is undecided: the interval does not clear every baseline",
    EvidenceReason.gaps_unstated: "the certificate does not say what was not checked: certify it again",
    EvidenceReason.other_judge: "another version of the judge certified it: certify it again",
    EvidenceReason.gpu_changed: "jobs run on another GPU than the certified one: certify it there",
    EvidenceReason.driver_changed: "jobs run with another driver than the certified one: certify it again",
    EvidenceReason.torch_changed: "jobs run with another torch than the certified one: certify it again",
    EvidenceReason.triton_changed: "jobs run with another Triton than the certified one: certify it again",
    EvidenceReason.environment_unknown: "the environment of the jobs that use it is unknown: collect their logs",
}
"""What happened, and what to do next."""
NO = {"gpu": EvidenceReason.no_gpu, "driver": EvidenceReason.no_driver, "torch": EvidenceReason.no_torch,
      "triton": EvidenceReason.no_triton}  # fmt: skip
CHANGED = {"gpu": EvidenceReason.gpu_changed, "driver": EvidenceReason.driver_changed,
           "torch": EvidenceReason.torch_changed, "triton": EvidenceReason.triton_changed}  # fmt: skip


@dataclass(frozen=True)
class Objection:
    """One reason against a promotion, with its figures."""

    reason: EvidenceReason
    detail: str = ""

    def __str__(self) -> str:
        return SENTENCES[self.reason] + (f" ({self.detail})" if self.detail else "")


@dataclass(frozen=True)
class JobEnvironment:
    """The values in which a kernel's jobs run, by field; none: unknown. judge: the version that certifies now.

    jobs: those that use the kernel by their own word.
    """

    gpu: tuple[str, ...] = ()
    driver: tuple[str, ...] = ()
    torch: tuple[str, ...] = ()
    triton: tuple[str, ...] = ()
    judge: int = JUDGE
    jobs: tuple[str, ...] = ()

    def of(self, name: str) -> tuple[str, ...]:
        values: tuple[str, ...] = getattr(self, name)
        return values

    @property
    def unknown(self) -> tuple[str, ...]:
        return tuple(name for name in FIELDS if not self.of(name))


UNKNOWN = JobEnvironment()


@dataclass(frozen=True)
class JobReport:
    """What the ranks of one job last said. named: whether its file says which kernels it holds; older files do not.
    used, unused: the first 16 digits of their certificates."""

    named: bool = False
    used: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    gpu: tuple[str, ...] = ()
    driver: tuple[str, ...] = ()
    torch: tuple[str, ...] = ()
    triton: tuple[str, ...] = ()
    at_s: float = 0.0


@dataclass(frozen=True)
class FleetView:
    """The machines and jobs at one time. gpus: GPU model → drivers, by telemetry."""

    at_s: float
    gpus: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    jobs: Mapping[str, JobReport] = field(default_factory=dict)


def environment_of(view: FleetView | None, certificate: str, record: Mapping[str, Any]) -> JobEnvironment:
    """Where a kernel runs, or would run.

    Where jobs use it, all of them count: one on another driver is a change. Where none does, the machines that have
    the certified GPU count, and what one of them has is there: a fleet half of which was updated still has both.
    """
    if view is None:
        return UNKNOWN
    gpu, short = str(record.get("gpu", "")), certificate[:16]
    there = [job for job in view.jobs.values() if gpu in job.gpu]
    users = _users(view.jobs, short, gpu)
    found = {name: _union(getattr(job, name) for job in users.values() or there) for name in FIELDS}
    # a job's lines may lack the driver, which telemetry knows of every GPU model
    found["driver"] = found["driver"] or _union([view.gpus.get(gpu, ())])
    if not users:
        found["gpu"] = found["gpu"] or tuple(sorted(view.gpus))
        found = {name: _present(values, record.get(name)) for name, values in found.items()}
    by_name = tuple(sorted(name for name, job in users.items() if short in job.used))
    return JobEnvironment(found["gpu"], found["driver"], found["torch"], found["triton"], jobs=by_name)


def _users(jobs: Mapping[str, JobReport], short: str, gpu: str) -> dict[str, JobReport]:
    # a job of an older file does not say which kernels it holds: on that GPU it may hold this one
    return {name: job for name, job in jobs.items() if short in job.used or (not job.named and gpu in job.gpu)}


def _union(parts: Iterable[Sequence[str]]) -> tuple[str, ...]:
    return tuple(sorted({value for part in parts for value in part if value}))


def _present(values: tuple[str, ...], certified: Any) -> tuple[str, ...]:
    return (certified,) if certified in values else values


def record_of(predicate: Mapping[str, Any]) -> dict[str, Any]:
    """The evidence in a certificate, of any version; what it lacks is missing in the record too."""
    verdict, candidate = _mapping(predicate.get("verdict")), _mapping(predicate.get("candidate"))
    environment = _mapping(verdict.get("environment"))
    raced = verdict.get("comparisons")
    gaps = verdict.get("not_checked")
    return {
        **{name: environment.get(name) for name in FIELDS},
        "judge": predicate.get("judge", 1),
        "language": candidate.get("language"),
        "status": verdict.get("status"),
        "raced": [_raced(_mapping(one)) for one in raced] if isinstance(raced, Sequence) else [],
        "not_checked": list(gaps) if isinstance(gaps, list | tuple) else [],
    }


def _raced(comparison: Mapping[str, Any]) -> dict[str, Any]:
    speedup = _mapping(comparison.get("speedup"))
    found = {name: comparison.get(name) for name in ("case", "baseline", "candidate_s", "baseline_s")}
    return found | {name: speedup.get(name) for name in ("low", "point", "high")}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def has(record: Mapping[str, Any], name: str) -> bool:
    """Whether a record names one of `FIELDS`. A kernel that Triton does not compile needs no Triton."""
    value = record.get(name)
    if name == "triton" and value == "none" and record.get("language") in ("cuda", "cute", "python"):
        return True
    return isinstance(value, str) and value.strip() not in _ABSENT


def measured(race: Mapping[str, Any]) -> bool:
    """Whether one race names its baseline, both times and an interval."""
    figures: list[Any] = [race.get(name) for name in ("candidate_s", "baseline_s", "low", "point", "high")]
    if not all(type(x) in (int, float) and math.isfinite(x) and x > 0 for x in figures):
        return False
    low, point, high = figures[2:]
    named = all(isinstance(race.get(name), str) and race[name].strip() for name in ("case", "baseline"))
    return named and bool(low <= point <= high)


def slowest(record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The race with the least speed-up; None where there is none that was measured."""
    races = [race for race in record.get("raced", ()) if measured(race)]
    return min(races, key=lambda race: race["point"], default=None)


def certified_when(issued_at: Any, now_s: float) -> str:
    """A certificate's time in words; one of the future is said to be: a clock was set wrong."""
    try:
        at_s = datetime.fromisoformat(str(issued_at)).timestamp()
    except (ValueError, OverflowError, OSError):
        return f"{str(issued_at)[:40]!r}: not a time"
    return f"{issued_at}, in the future: a clock was set wrong" if at_s - now_s > 60.0 else str(issued_at)
