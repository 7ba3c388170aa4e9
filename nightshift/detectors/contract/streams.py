"""What telemetry does to detectors: the streams of the contract, healthy ones, hostile ones and faults.

Every stream is a fleet's telemetry as it leaves the collectors (`played`), with the rates that follow from
its counters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import numpy as np

from nightshift.collectors.frame import (
    Floats,
    Frame,
    Instant,
    LogRecord,
    Reason,
    SeriesIndex,
    SourceStatus,
    StepSeries,
)
from nightshift.collectors.kernel_log.event import KernelEvent, KernelEventKind
from nightshift.collectors.kubernetes.states import Trouble, written
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.telemetry.derived_metrics import Deriver
from nightshift.collectors.telemetry.metrics import METRICS, MetricType
from nightshift.collectors.tick import Tick
from nightshift.detectors.contract.world import START_S, TICK_S, HealthyFleet


def _changed(tick: Tick, change: Callable[[Frame], Frame]) -> Tick:
    return replace(tick, frames={kind: change(frame) for kind, frame in tick.frames.items()})


def _values(frame: Frame, values: Floats) -> Frame:
    return replace(frame, values=values)


def missing(world: HealthyFleet) -> Iterator[Tick]:
    """A third of all values, then whole columns, then whole frames and the steps are not there."""
    for number, tick in enumerate(world.ticks(120)):
        if number % 40 > 30:
            yield Tick(tick.at_s, {}, (), sources=(replace(tick.sources[0], ok=False, reason=Reason.TIMEOUT),))
        else:
            yield _changed(
                tick, lambda f: _values(f, np.where(world.rng.random(f.values.shape) < 0.3, np.nan, f.values))
            )


def late(world: HealthyFleet) -> Iterator[Tick]:
    """Samples and steps that were observed up to two minutes ago."""
    for tick in world.ticks(120):
        steps = tuple(replace(s, t_s=s.t_s - 120.0) for s in tick.steps)
        yield replace(_changed(tick, lambda f: replace(f, observed_at_s=f.observed_at_s - 120.0)), steps=steps)


def duplicated(world: HealthyFleet) -> Iterator[Tick]:
    """Every tick comes twice, with the same steps and the same time."""
    for tick in world.ticks(120):
        yield tick
        yield tick


def reordered(world: HealthyFleet) -> Iterator[Tick]:
    """Neighbouring ticks swapped in time, and steps in reverse order."""
    ticks = world.ticks(120)
    for first, second in zip(ticks[::2], ticks[1::2], strict=True):
        yield second
        yield replace(first, steps=tuple(_reversed(s) for s in first.steps))


def _reversed(series: StepSeries) -> StepSeries:
    columns = {name: values[::-1] for name, values in series.columns.items()}
    return replace(series, step=series.step[::-1], t_s=series.t_s[::-1], columns=columns)


def counter_reset(world: HealthyFleet) -> Iterator[Tick]:
    """All counters start at zero again half way, in a new epoch."""
    counters = {m.name for m in METRICS if m.type is MetricType.COUNTER}
    for number, tick in enumerate(world.ticks(120)):
        if number < 60:
            yield tick
            continue
        yield _changed(tick, lambda f: _reset(f, counters))


def _reset(frame: Frame, counters: set[str]) -> Frame:
    values = frame.values.copy()
    for column, name in enumerate(frame.metrics):
        if name in counters:
            values[:, column] = 0.0
    return replace(frame, values=values, epoch=frame.epoch + 1)


def swapped(world: HealthyFleet) -> Iterator[Tick]:
    """Half way every GPU's row carries another UUID, and rows change their order."""
    for number, tick in enumerate(world.ticks(120)):
        if number >= 60:
            world.gpus = [Subject(SubjectKind.GPU, f"GPU-new-{g}") for g in reversed(range(len(world.gpus)))]
        yield replace(tick, frames={kind: world.frame(kind, number, tick.at_s) for kind in world.kinds})


def membership(world: HealthyFleet) -> Iterator[Tick]:
    """Devices join and leave in every tick, down to none."""
    everyone, boxes = list(world.gpus), list(world.boxes)
    for number, tick in enumerate(world.ticks(120)):
        size = [8, 3, 0, 5, 8, 1][number % 6]
        world.gpus, world.boxes = everyone[:size], boxes[:size]
        yield replace(tick, frames={kind: world.frame(kind, number, tick.at_s) for kind in world.kinds})
    world.gpus, world.boxes = everyone, boxes


def constant(world: HealthyFleet) -> Iterator[Tick]:
    """Everything constant, the loss and all counters too."""
    for tick in world.ticks(240):
        steps = tuple(replace(s, columns={**s.columns, "loss": np.full(len(s.step), 2.0)}) for s in tick.steps)
        yield replace(_changed(tick, lambda f: world.frame(f.kind, 0, f.at_s)), steps=steps)


EXTREMES = (np.inf, -np.inf, np.nan, 1e308, -1e308, 5e-324, 0.0, 2.0**63, float(2**31 - 16))


def extremes(world: HealthyFleet) -> Iterator[Tick]:
    """Any float in any place, times and losses too: no exception, and only finite times and finite onsets."""
    for tick in world.ticks(120):
        steps = tuple(
            replace(s, columns={name: world.rng.choice(EXTREMES, len(s.step)) for name in s.columns})
            for s in tick.steps
        )
        yield replace(_changed(tick, lambda f: _values(f, world.rng.choice(EXTREMES, f.values.shape))), steps=steps)


def slow_scrapes(world: HealthyFleet) -> Iterator[Tick]:
    """A healthy fleet that is scraped once a minute."""
    for number, tick in enumerate(world.ticks(120)):
        at_s = START_S + number * 60.0
        steps = tuple(replace(s, t_s=at_s + np.arange(-4.0, 1.0, dtype=np.float64) * 12.0) for s in tick.steps)
        frames = {kind: world.frame(kind, 12 * number, at_s) for kind in world.kinds}
        yield Tick(at_s, frames, steps, sources=(replace(tick.sources[0], at_s=at_s),))


SILENT: tuple[Callable[[HealthyFleet], Iterator[Tick]], ...] = (
    late,
    duplicated,
    reordered,
    counter_reset,
    swapped,
    membership,
    constant,
    slow_scrapes,
)
"""Streams in which nothing is wrong: no finding may come."""

HOSTILE: tuple[Callable[[HealthyFleet], Iterator[Tick]], ...] = (missing, extremes)
"""Streams that may be called faulty, but must be survived."""


def faults(world: HealthyFleet) -> Iterator[Tick]:
    """A burst of everything: rank 0 leaks and is slow, all diverge, stall and stop; errors, Xids, a lost source.

    After sample 200 nothing is observed any more: whatever fires must become no_data, never clear.
    """
    for number, tick in enumerate(world.ticks(200)):
        yield replace(
            _changed(tick, lambda f, n=number: _faulty(f, n)),  # type: ignore[misc]
            steps=tuple(_diverged(s, number) for s in tick.steps if not _stopped(number)),
            events=_events(world, tick.at_s) if number % 20 == 0 else (),
            logs=(*_logs(world, tick.at_s), *_states(world, tick.at_s)) if number % 20 == 0 else (),
            sources=(*tick.sources, SourceStatus(Subject(SubjectKind.SOURCE, "gone"), tick.at_s, ok=False)),
        )


def _faulty(frame: Frame, number: int) -> Frame:
    values = frame.values.copy()
    for name, row, slope, first in _RISES:
        if name in frame.columns and len(values) > row and number >= first:
            values[row, frame.columns[name]] += slope * number
    for name, row, level in _LEVELS:
        if name in frame.columns and len(values) > row and number >= 20:
            values[row, frame.columns[name]] = level
    if _stopped(number):
        _stop(frame, values, number)
    frame = replace(frame, values=values)
    return frame if frame.kind is not SubjectKind.GPU or number < 40 else _without_last(frame)


def _stop(frame: Frame, values: Floats, number: int) -> None:
    """GPUs idle, and servers' counters stay as they were at the last tick before."""
    for name, level in (("gpu_utilization_percent", 0.0), ("gpu_power_w", 100.0)):
        if name in frame.columns:
            values[:, frame.columns[name]] = level
    if frame.kind is SubjectKind.SERVER:
        stood = min(number - number % 10 + 4, 149)
        for name in ("server_generated_tokens_total", "server_requests_done_total"):
            values[:, frame.columns[name]] = 1000.0 + 500.0 * stood


_RISES = (
    ("gpu_memory_used_bytes", 0, 1e8, 0),
    ("container_memory_anonymous_bytes", 0, 1e7, 0),
    ("container_memory_working_set_bytes", 0, 1e7, 0),
    ("gpu_ecc_dbe_total", 0, 0.1, 0),
    ("gpu_pcie_replay_total", 2, 100.0, 20),
    ("gpu_nvlink_crc_errors_total", 3, 1e5, 20),
)
"""(metric, row, rise per tick, first tick): memory leaks, errors of memory, bad links on two other GPUs."""
_LEVELS = (
    ("gpu_throttle_reasons", 1, 64.0),
    ("gpu_sm_clock_mhz", 1, 30.0),
    ("part_health", 0, 2.0),
)
"""(metric, row, level) from tick 20 on: heat on one GPU, a bad fan."""


def _without_last(frame: Frame) -> Frame:
    """The page goes on with one device fewer."""
    index = SeriesIndex(frame.kind, frame.index.subjects[:-1])
    return replace(frame, index=index, values=frame.values[:-1], epoch=frame.epoch[:-1])


def _stopped(number: int) -> bool:
    """Stalls of 25 s from sample 60 on, and no step at all after sample 150."""
    return number >= 150 or (number >= 60 and number % 10 >= 5)


def _diverged(series: StepSeries, number: int) -> StepSeries:
    if number < 60:
        return series
    slow = 1.5 if series.subject.name.endswith("#0") else 1.0
    changed = {"loss": series.column("loss") + 20.0, "compute_s": series.column("compute_s") * slow}
    changed["local_grad_norm"] = series.column("local_grad_norm") * (50.0 if slow > 1.0 else 1.0)
    return replace(series, columns={**series.columns, **changed})


def _logs(world: HealthyFleet, at_s: float) -> tuple[LogRecord, ...]:
    """A collective that did not end, in the watchdog's words; and another job's end, in its launcher's."""
    text = (
        "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=15, OpType=ALLREDUCE, NumelIn=1, "
        "NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds before timing out."
    )
    ended = "api.py:869] failed (exitcode: -9) local_rank: 0 (pid: 77) of binary: /usr/bin/python"
    other = Subject(SubjectKind.JOB, "ml/other")
    return tuple(
        LogRecord(Instant(at_s), "log", job, line, int(at_s)) for job, line in ((world.job, text), (other, ended))
    )


def _states(world: HealthyFleet, at_s: float) -> Iterator[LogRecord]:
    """A node that is not ready, and another job's pod without its image, in Kubernetes' words."""
    wrong = Trouble("not_ready", "Unknown", "Ready is Unknown: Kubelet stopped posting node status.", START_S)
    yield from written("Node", world.node.name, {}, (wrong,), world.node, at_s)
    pod, image = Subject(SubjectKind.POD, "ml/other-0"), Trouble("image_pull", "reg/t:1", "ErrImagePull", START_S)
    yield from written("Pod", pod.name, {"job": "ml/other"}, (image,), pod, at_s)


def _events(world: HealthyFleet, at_s: float) -> tuple[KernelEvent, ...]:
    found = []
    for kind, code in ((KernelEventKind.XID, 48), (KernelEventKind.XID, 79), (KernelEventKind.OOM_KILL, None)):
        record = LogRecord(Instant(at_s), "kernel", world.node, f"{kind} {code}", int(at_s))
        gpu = world.gpus[0] if code is not None else None
        found.append(KernelEvent(kind, record, world.node, code=code, gpu=gpu))
    return tuple(found)


def silence(world: HealthyFleet, from_number: int, count: int) -> Iterator[Tick]:
    """Ticks in which no source answers and nothing is observed."""
    for number in range(from_number, from_number + count):
        at_s = START_S + number * TICK_S
        status = SourceStatus(world.source, at_s, ok=False, reason=Reason.UNREACHABLE, covers=(world.node,))
        gone = SourceStatus(Subject(SubjectKind.SOURCE, "gone"), at_s, ok=False, reason=Reason.UNREACHABLE)
        yield Tick(at_s, {}, (), sources=(status, gone))


def silence_after_faults(world: HealthyFleet) -> Iterator[Tick]:
    return silence(world, 200, 240)


@cache
def played(stream: Callable[[HealthyFleet], Iterator[Tick]]) -> tuple[list[Tick], Inventory]:
    """A stream's ticks with derived columns, and its inventory: made once, since detectors change neither."""
    world, deriver = HealthyFleet(), Deriver()
    return [_changed(tick, deriver.extend) for tick in stream(world)], world.inventory()
