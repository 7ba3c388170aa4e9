"""Traces of jobs for the simulator: read, scaled to a load, cut into parts, or drawn.

Two layouts are read. *Muri's* (Rivendile/Muri, SIGCOMM'22, derived from Microsoft's Philly trace): `num_gpu`,
`submit_time` and `duration` in ms, `model_name`, and the time an iteration spends on host, GPU and network
(`resource_time_0..2`, ms). *Plain*: `submit_s`, `gpus`, `duration_s`, and where known `user`, `queue`, `name`,
`kind`.

`iterations` of Muri's layout times `iteration_time` is the duration itself: an oracle, and never read.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from nightshift.collectors.base import Permanent
from nightshift.controllers.scheduling.interference import KINDS, Load, load_of

_LIKE = {
    "bert": "language",
    "gpt2": "language",
    "vgg16": "vision",
    "vgg19": "vision",
    "resnet18": "input_bound",
    "shufflenet_v2_x1_0": "input_bound",
    "a2c": "simulation",
    "dqn": "simulation",
}
"""Which of our kinds a model of the published trace is."""


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One gang. `duration_s`: its run alone on its GPUs, which no policy sees before it ends."""

    id: str
    submit_s: float
    gpus: int
    duration_s: float
    load: Load
    user: str = ""
    queue: str = ""
    name: str = ""
    """What its owner calls it, alike for repeated ones; empty where not known."""


def read(path: Path, *, seed: int = 0) -> list[TraceJob]:
    """The jobs of a file, by time of submission; what a row does not say of its load is drawn from the seed.

    Raises Permanent naming file, line and field where a row cannot be read.
    """
    random = np.random.default_rng((seed, 0x10AD))
    jobs: list[TraceJob] = []
    try:
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            fields = set(reader.fieldnames or ())
            is_muri = {"num_gpu", "submit_time", "duration"} <= fields
            if not is_muri and not {"gpus", "submit_s", "duration_s"} <= fields:
                raise Permanent(
                    f"{path}: line 1: neither num_gpu, submit_time, duration nor gpus, submit_s, duration_s"
                )
            for row in reader:
                place = f"{path}: line {reader.line_num}"
                jobs.append(_muri(row, place, random) if is_muri else _plain(row, place, random))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise Permanent(f"{path}: {error}") from error
    if not jobs:
        raise Permanent(f"{path}: no jobs")
    return sorted(jobs, key=lambda job: job.submit_s)


def _muri(row: dict[str, str], place: str, random: np.random.Generator) -> TraceJob:
    kind = _LIKE.get(row.get("model_name") or "", "")
    # drawn also where the row says the rest: activity and memory are in neither layout
    load = load_of(kind or str(random.choice(KINDS)), random)
    parts = [row.get(f"resource_time_{index}") for index in range(3)]
    if all(parts) and row.get("iteration_time"):
        whole = _number(row, "iteration_time", place, above=0.0)
        host, gpu, network = (min(_number(row, f"resource_time_{i}", place) / whole, 1.0) for i in range(3))
        load = replace(load, gpu_duty=gpu, host=host, network=network)
    return TraceJob(
        row.get("job_id") or place,
        _number(row, "submit_time", place) / 1e3,
        int(_number(row, "num_gpu", place, above=0.0)),
        _number(row, "duration", place, above=0.0) / 1e3,
        load,
        row.get("user") or "",
        row.get("vc") or "",
    )


def _plain(row: dict[str, str], place: str, random: np.random.Generator) -> TraceJob:
    kind = row.get("kind") or str(random.choice(KINDS))
    if kind not in KINDS:
        raise Permanent(f"{place}: kind {kind!r} is none of {', '.join(KINDS)}")
    return TraceJob(
        row.get("job_id") or place,
        _number(row, "submit_s", place),
        int(_number(row, "gpus", place, above=0.0)),
        _number(row, "duration_s", place, above=0.0),
        load_of(kind, random),
        row.get("user") or "",
        row.get("queue") or row.get("vc") or "",
        row.get("name") or "",
    )


def _number(row: dict[str, str], field: str, place: str, *, above: float = -1e-9) -> float:
    try:
        value = float(row[field])
    except (KeyError, TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value) or value <= above:
        raise Permanent(f"{place}: {field} is {row.get(field)!r}")
    return value


def offered_load(jobs: list[TraceJob], gpus: int) -> float:
    """GPU-seconds asked for over GPU-seconds there are between the first and the last submission."""
    span_s = jobs[-1].submit_s - jobs[0].submit_s
    return math.fsum(job.gpus * job.duration_s for job in jobs) / (gpus * span_s) if span_s > 0 else math.inf


def at_load(jobs: list[TraceJob], gpus: int, load: float) -> list[TraceJob]:
    """The same jobs with their submissions stretched in time so that they offer this load, from time 0; where all
    came at once, they still do."""
    offered = offered_load(jobs, gpus)
    stretch = offered / load if math.isfinite(offered) else 1.0
    first_s = jobs[0].submit_s
    return [replace(job, submit_s=(job.submit_s - first_s) * stretch) for job in jobs]


def without_part(jobs: list[TraceJob], number: int, count: int) -> list[TraceJob]:
    """The trace with one of its parts (by order of submission) left out and the gap closed."""
    edges = [round(len(jobs) * k / count) for k in range(count + 1)]
    low, high = edges[number % count], edges[number % count + 1]
    # closed, or the cluster would empty there, and the parts would not be alike
    gap_s = jobs[min(high, len(jobs) - 1)].submit_s - jobs[low].submit_s
    return jobs[:low] + [replace(job, submit_s=job.submit_s - gap_s) for job in jobs[high:]]


def draw(count: int, seed: int, *, users: int = 40, widest: int = 32) -> list[TraceJob]:
    """A drawn trace: bursts of like jobs by users, durations lognormal per user with a heavy tail, diurnal-free.

    Shapes follow what is published of such clusters (Jeon et al., ATC'19; Hu et al., SC'21): most jobs small and
    short, most GPU-time in few long ones, repeated submissions alike. No value is fitted to a trace.
    """
    random = np.random.default_rng((seed, 0xD2A3))
    typical_s = np.exp(random.normal(7.5, 1.6, users))
    kinds = random.choice(KINDS, users)
    widths = np.asarray([w for w in (1, 2, 4, 8, 16, 32) if w <= widest])
    chance = np.asarray([0.45, 0.15, 0.15, 0.15, 0.06, 0.04])[: len(widths)]
    jobs: list[TraceJob] = []
    now_s = 0.0
    while len(jobs) < count:
        user = int(random.zipf(1.6)) % users
        gpus = int(random.choice(widths, p=chance / chance.sum()))
        now_s += float(random.exponential(600.0))
        for _ in range(min(int(random.geometric(0.4)), count - len(jobs))):
            now_s += float(random.exponential(20.0))
            duration_s = float(np.clip(typical_s[user] * np.exp(random.normal(0.0, 1.0)), 5.0, 1e6))
            load = load_of(str(kinds[user]), random)
            jobs.append(TraceJob(f"drawn-{len(jobs)}", now_s, gpus, duration_s, load, f"user-{user}"))
    return jobs
