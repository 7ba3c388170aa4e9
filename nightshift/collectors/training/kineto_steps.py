"""Steps of a profiled job, and how their time was spent on the GPU: unions of intervals, never sums of durations.

A step is what the job itself marked (`ProfilerStep#7`, which torch.profiler's schedule writes), else what lies
between the ends of two optimiser steps, else the whole trace. A GPU activity belongs to the step in which it was
launched. Work that runs beside other work is not on the critical path: computation counts first, a collective only
where nothing computes, a copy only where neither runs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nightshift.collectors.frame import Floats, Ints
from nightshift.collectors.training.kineto_trace import Trace

COMPUTE, COMMUNICATION, COPY = 0, 1, 2
_MARK = re.compile(r"ProfilerStep\s*#(\d+)")
_COLLECTIVE = re.compile(r"nccl|rccl|^(?:oneShot|twoShot)AllReduce|nvshmem|c10d::symmetric", re.IGNORECASE)


@dataclass(frozen=True)
class TraceStep:
    """One step's window on the launching threads' clock (ns of the trace)."""

    number: int
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, eq=False)
class Activities:
    """GPU activities in order of their row. exclusive_ns: the activity's own share of the critical path, so that
    the shares of one device add up to the union of its intervals; step: position in `steps`, −1 outside all."""

    steps: tuple[TraceStep, ...]
    row: Ints
    kind: NDArray[np.uint8]
    launch: Ints
    """Row of the event that launched it, −1 where the trace has none."""
    step: Ints
    exclusive_ns: Floats


def steps_of(trace: Trace) -> tuple[TraceStep, ...]:
    """The trace's steps, in time order; at least one."""
    events = trace.events
    rows = events.rows("user_annotation")
    marks = [(int(m[1]), row) for row in rows if (m := _MARK.fullmatch(trace.names[events.name[row]]))]
    if marks:
        return _marked([(n, int(events.begin_ns[r]), int(events.begin_ns[r] + events.dur_ns[r])) for n, r in marks])
    ends: dict[int, list[int]] = {}
    for row in rows:
        if trace.names[events.name[row]].startswith("Optimizer.step"):
            ends.setdefault(int(events.name[row]), []).append(int(events.begin_ns[row] + events.dur_ns[row]))
    begin = int(events.begin_ns.min())
    last = int((events.begin_ns + events.dur_ns).max())
    if not ends:
        return (TraceStep(0, begin, last),)
    bounds = sorted(set(max(ends.values(), key=max)))  # what is written twice ended once
    return tuple(
        TraceStep(n, start, end) for n, (start, end) in enumerate(zip([begin, *bounds], bounds, strict=False))
    )


def _marked(marks: Sequence[tuple[int, int, int]]) -> tuple[TraceStep, ...]:
    """Steps of (number, begin, end). One that is marked twice, on two threads or by two profilers, is one; where a
    mark reaches into the next step, that one begins."""
    windows: dict[int, tuple[int, int]] = {}
    for number, begin, end in marks:
        first, last = windows.get(number, (begin, end))
        windows[number] = (min(first, begin), max(last, end))
    ordered = sorted(windows.items(), key=lambda window: window[1])
    nexts = [begin for _, (begin, _) in ordered[1:]]
    return tuple(
        TraceStep(number, begin, min(end, following))
        for (number, (begin, end)), following in zip(ordered, [*nexts, ordered[-1][1][1]], strict=True)
    )


def activities_of(trace: Trace) -> Activities:
    """Every GPU activity with its launch, its step and its share of the critical path."""
    events = trace.events
    rows = events.rows("kernel", "gpu_memcpy", "gpu_memset")
    collective = np.array([bool(_COLLECTIVE.search(name)) for name in trace.names] or [False])
    kind = np.where(collective[events.name[rows]], COMMUNICATION, COMPUTE)
    kind = np.where(np.isin(rows, events.rows("gpu_memcpy", "gpu_memset")), COPY, kind).astype(np.uint8)
    launch = _launches(trace, rows)
    steps = steps_of(trace)
    launched_ns = np.where(launch >= 0, events.begin_ns[launch], events.begin_ns[rows])
    begins = np.array([step.begin_ns for step in steps])
    step = np.searchsorted(begins, launched_ns, side="right") - 1
    outside = (step < 0) | (launched_ns > np.array([s.end_ns for s in steps])[np.maximum(step, 0)])
    step = np.where(outside, -1, step).astype(np.int64)
    exclusive = np.zeros(len(rows))
    for device in np.unique(events.device[rows]):
        here = np.flatnonzero(events.device[rows] == device)
        begin, length = events.begin_ns[rows[here]], events.dur_ns[rows[here]]
        exclusive[here] = exclusive_ns(begin, begin + length, kind[here])
    return Activities(steps, rows, kind, launch, step, exclusive)


def _launches(trace: Trace, rows: Ints) -> Ints:
    """Row of the runtime or driver call of each activity, by correlation id."""
    events = trace.events
    calls = events.rows("cuda_runtime", "cuda_driver")
    calls = calls[events.correlation[calls] >= 0]
    order = np.argsort(events.correlation[calls], kind="stable")
    keys = events.correlation[calls][order]
    if not len(keys):
        return np.full(len(rows), -1, dtype=np.int64)
    wanted = events.correlation[rows]
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where((keys[at] == wanted) & (wanted >= 0), calls[order][at], -1)


def exclusive_ns(begin_ns: Ints, end_ns: Ints, kind: NDArray[np.uint8]) -> Floats:
    """[n] each interval's share of their union: an instant belongs to the running intervals of the first kind that
    runs (compute, then communication, then copies), in equal parts.

    >>> import numpy as np
    >>> exclusive_ns(np.array([0, 5]), np.array([10, 15]), np.array([0, 0], np.uint8)).tolist()
    [7.5, 7.5]
    """
    edges = np.unique(np.concatenate([begin_ns, end_ns]))
    share = np.zeros(len(begin_ns))
    if len(edges) < 2:
        return share
    free = np.ones(len(edges) - 1, dtype=bool)
    width = np.diff(edges).astype(np.float64)
    for what in (COMPUTE, COMMUNICATION, COPY):
        mine = np.flatnonzero(kind == what)
        first, last = np.searchsorted(edges, begin_ns[mine]), np.searchsorted(edges, end_ns[mine])
        change = np.zeros(len(edges), dtype=np.int64)
        np.add.at(change, first, 1)
        np.add.at(change, last, -1)
        running = np.cumsum(change)[:-1]
        part = np.where(free & (running > 0), width / np.maximum(running, 1), 0.0)
        upto = np.concatenate([[0.0], np.cumsum(part)])
        share[mine] = upto[last] - upto[first]
        free &= running == 0
    return share


@dataclass(frozen=True, eq=False)
class StepTimes:
    """[n_steps], seconds: the step's length, and its exposed computation, communication and copies on the busiest
    device; what is missing to the length is time in which the GPU waited."""

    number: Ints
    begin_ns: Ints
    length_s: Floats
    compute_s: Floats
    communication_s: Floats
    copy_s: Floats


def step_times(trace: Trace, activities: Activities) -> StepTimes:
    """How each step's time was spent."""
    count = len(activities.steps)
    devices = trace.events.device[activities.row]
    spent = np.zeros((3, count))
    busiest = -1.0
    for device in np.unique(devices):
        found = np.zeros((3, count))
        here = (activities.step >= 0) & (devices == device)
        np.add.at(found, (activities.kind[here], activities.step[here]), activities.exclusive_ns[here] * 1e-9)
        if found.sum() > busiest:
            busiest, spent = float(found.sum()), found
    begin = np.array([step.begin_ns for step in activities.steps])
    length = np.array([(step.end_ns - step.begin_ns) * 1e-9 for step in activities.steps])
    number = np.array([step.number for step in activities.steps])
    return StepTimes(number, begin, length, spent[COMPUTE], spent[COMMUNICATION], spent[COPY])
