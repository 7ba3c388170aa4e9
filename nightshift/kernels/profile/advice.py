"""What a step waits for before any kernel is too slow, and what a colleague would say about it first.

A GPU that idles between two kernels is short of launches where the CPU began the next launch only after the kernel
before had ended. What of such a gap lies in the data loader's `__next__` is a wait for data. A gap whose next
kernel was launched in time, or has no launch in the trace, has a cause that the trace does not show, and none is
asserted.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

import numpy as np

from nightshift.collectors.frame import Ints
from nightshift.collectors.training.kineto_steps import COMMUNICATION, Activities
from nightshift.collectors.training.kineto_trace import Trace

SHARE = 0.05
"""Of a step: less than this is not worth a first line; a kernel's gain is as large."""
LAUNCH_BOUND = 0.15
"""Of a step that the GPU waits for launches: below it a graph wins back less than its trouble."""
_GRAPH = "GraphLaunch"
_COMPILED = re.compile(r"triton_|Torch-Compiled Region|CompiledFunction")
_LOADER = "enumerate(DataLoader)"


@dataclass(frozen=True)
class StepWaits:
    """Seconds a step, the mean of its GPUs, in which a GPU did nothing because…

    launch_s: the next kernel had not been launched. data_s: the data loader had no batch. launches: of the CPU a
    step; graphs: of them CUDA graphs. compiled: torch.compile made some of the kernels. collective: the kernel with
    most exposed communication; empty where none is exposed.
    """

    launch_s: float = 0.0
    data_s: float = 0.0
    launches: float = 0.0
    graphs: float = 0.0
    compiled: bool = False
    collective: str = ""


def waits_of(trace: Trace, activities: Activities) -> StepWaits:
    """What the GPUs of a trace wait for within its steps."""
    events, names = trace.events, trace.names
    steps = max(1, len(activities.steps))
    calls = events.rows("cuda_runtime", "cuda_driver")
    inside = calls[_within(activities, events.begin_ns[calls])]
    launches = [names[number] for number in events.name[inside].tolist() if "Launch" in names[number]]
    loader = [number for number, name in enumerate(names) if name.startswith(_LOADER)]
    rows = np.flatnonzero(np.isin(events.name, loader))
    data = _union(events.begin_ns[rows], events.begin_ns[rows] + events.dur_ns[rows])
    devices = np.unique(events.device[activities.row[activities.step >= 0]])
    late_ns = data_ns = 0.0
    for device in devices:
        for begin, end in _late_gaps(trace, activities, int(device)):
            part = sum(max(0, min(end, b) - max(begin, a)) for a, b in data)
            data_ns += part
            late_ns += end - begin - part
    each = 1e-9 / steps / max(1, len(devices))
    exposed: Counter[str] = Counter()
    for place in np.flatnonzero((activities.kind == COMMUNICATION) & (activities.step >= 0)).tolist():
        exposed[names[events.name[activities.row[place]]]] += int(activities.exclusive_ns[place])
    worst = exposed.most_common(1)
    return StepWaits(
        late_ns * each,
        data_ns * each,
        len(launches) / steps,
        sum(_GRAPH in name for name in launches) / steps,
        any(_COMPILED.match(names[number]) for number in np.unique(events.name).tolist()),
        worst[0][0] if worst and worst[0][1] > 0 else "",
    )


def _within(found: Activities, at_ns: Ints) -> Ints:
    begins, ends = (np.array([getattr(step, name) for step in found.steps]) for name in ("begin_ns", "end_ns"))
    step = np.searchsorted(begins, at_ns, side="right") - 1
    inside: Ints = np.flatnonzero((step >= 0) & (at_ns <= ends[np.maximum(step, 0)]))
    return inside


def _union(begin_ns: Ints, end_ns: Ints) -> list[tuple[int, int]]:
    made: list[tuple[int, int]] = []
    for begin, end in sorted(zip(begin_ns.tolist(), end_ns.tolist(), strict=True)):
        if made and begin <= made[-1][1]:
            made[-1] = (made[-1][0], max(made[-1][1], end))
        else:
            made.append((begin, end))
    return made


def _late_gaps(trace: Trace, found: Activities, device: int) -> list[tuple[int, int]]:
    """(begin, end) of a device's idle time between two activities of one step, where the later one's launch began
    after the earlier had ended."""
    events = trace.events
    here = np.flatnonzero((events.device[found.row] == device) & (found.step >= 0))
    here = here[np.argsort(events.begin_ns[found.row[here]], kind="stable")]
    gaps = []
    end, step = -1, -1
    for place in here.tolist():
        row, launch = int(found.row[place]), int(found.launch[place])
        begin = int(events.begin_ns[row])
        same = step == int(found.step[place])
        if same and end < begin and launch >= 0 and int(events.begin_ns[launch]) >= end:
            gaps.append((end, begin))
        end, step = max(end, begin + int(events.dur_ns[row])), int(found.step[place])
    return gaps


def advice(step_s: float, communication_s: float, copy_s: float, waits: StepWaits) -> tuple[str, ...]:
    """What to do before any kernel is written, what would bring most first; a line each. Seconds of one step.

    The share is what the step would lose at most; what it brings has to be measured: a profiler makes launches
    slower than they are without it."""
    if not step_s > 0:
        return ()
    collective = f", mostly in {waits.collective[:60]}" if waits.collective else ""
    said = [
        (waits.launch_s, LAUNCH_BOUND, "launch-bound: the GPU waits for launches", _launch_text(waits)),
        (
            waits.data_s, SHARE, "the GPU waits for data",
            "Give the DataLoader more workers, pin its memory, and prefetch.",
        ),
        (
            communication_s, SHARE, f"exposed communication{collective}",
            "Overlap it with the backward pass: bucket sizes, prefetching, more work per rank.",
        ),
        (copy_s, SHARE, "exposed copies", "Copy from pinned memory, without blocking, ahead of use."),
    ]  # fmt: skip
    large = sorted((one for one in said if one[0] >= one[1] * step_s), key=lambda one: -one[0])
    return tuple(
        f"{what}, {seconds * 1e3:.2f} of {step_s * 1e3:.2f} ms a step ({seconds / step_s:.0%}; "
        f"{_most(seconds, step_s)}). {do}"
        for seconds, _, what, do in large
    )


def _most(seconds: float, step_s: float) -> str:
    return f"at most {step_s / (step_s - seconds):.2f}× faster without" if seconds < step_s else "all of it"


def _launch_text(waits: StepWaits) -> str:
    count = f"{waits.launches:.0f} launches a step"
    if waits.graphs:
        return (
            f"{count}, {waits.graphs:.0f} of them CUDA graphs: find what breaks the graphs (TORCH_LOGS=cudagraphs)."
        )
    if waits.compiled:
        return f"{count}, compiled without CUDA graphs. Measure torch.compile(mode='reduce-overhead') first."
    return f"{count}. Measure torch.compile first, and its mode 'reduce-overhead' (CUDA graphs)."
