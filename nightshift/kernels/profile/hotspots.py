"""Ranks where a faster kernel would help most: by what the whole step gains, not by how busy a kernel looks.

For each operation and shape: its share of the step (Amdahl), how far it is from the roofline (head-room), and how
much of that operation's time this shape is. The step's wall time is the denominator, with idle time and exposed
communication in it: a faster kernel does not win those back.

Before any kernel comes what a step waits for. A GPU that idles between two kernels is short of launches where the
CPU began the next launch only after the kernel before had ended. What of such a gap lies in the data loader's
`__next__` is a wait for data. If the kernel after a gap was launched in time, or its launch is not in the trace,
the trace does not show the cause, and none is stated.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nightshift.collectors.frame import Ints
from nightshift.collectors.training.kineto_reader import read_trace
from nightshift.collectors.training.kineto_steps import COMMUNICATION, Activities, activities_of
from nightshift.collectors.training.kineto_trace import Trace, TraceError
from nightshift.kernels.profile.cost import cost
from nightshift.kernels.profile.match import segments
from nightshift.kernels.profile.operators import OperatorCall, Operators, operators_of
from nightshift.kernels.profile.pattern import BIASED, ProblemMatch, dims
from nightshift.kernels.profile.roofline import Peaks, peaks_of

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


LARGEST_PARAMETER = 1 << 24
"""Elements that an optimiser kernel is timed on: far beyond the caches, and in reach of a judge's many copies."""
REACHABLE = 0.9
"""The share of the roofline that a good kernel reaches: what an expected gain is reckoned with."""


@dataclass(frozen=True)
class Hotspot:
    """One operation on one shape, over the whole trace. Times are seconds per step, the mean of its GPUs.

    problem: "" where no family matches, and `why` says so. share: of the step's wall time. floor_s: at the roofline
    (NaN: unknown). utilisation: floor over time. gain: the step's expected speed-up less one, at 90 % of it.
    frequency: this shape's share of its operation's time. score: gain × head-room × frequency.
    """

    operators: str
    problem: str
    sizes: dict[str, int]
    dtype: str
    layout: str
    calls_per_step: float
    forward_s: float
    backward_s: float
    share: float
    floor_s: float
    utilisation: float
    gain: float
    frequency: float
    score: float
    why: str

    @property
    def total_s(self) -> float:
        return self.forward_s + self.backward_s

    @property
    def name(self) -> str:
        shape = " ".join(f"{k}={v}" for k, v in self.sizes.items())
        return f"{self.problem or self.operators} {shape} {self.dtype}".strip()

    def to_json(self) -> dict[str, Any]:
        from dataclasses import asdict

        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(self).items()}


def timed_sizes(hotspot: Hotspot) -> dict[str, int]:
    """An optimiser's step is seen as one over all parameters; a kernel meets them one by one."""
    if hotspot.problem != "adamw":
        return dict(hotspot.sizes)
    return {"n": min(hotspot.sizes["n"], LARGEST_PARAMETER)}


@dataclass(frozen=True)
class Profile:
    """Where a step's time goes. Seconds per step; `hotspots` by score, then by time.

    unmapped_s: of no operator. on_gpu: no, where the trace has no GPU: times are the operators' own on the CPU,
    and say nothing of a GPU. rejected: events that are none, such as those of negative duration: left out."""

    source: str
    steps: int
    step_s: float
    compute_s: float
    communication_s: float
    copy_s: float
    idle_s: float
    unmapped_s: float
    peaks: Peaks
    hotspots: tuple[Hotspot, ...]
    has_shapes: bool
    on_gpu: bool = True
    rejected: int = 0
    waits: StepWaits = StepWaits()


def profile(path: Path, peaks: Peaks | None = None) -> Profile:
    """The profile of a trace file. Raises TraceError. Without `peaks`, those that the trace itself proves are used.

    Example::

        for hotspot in profile(Path("train_trace.json.gz")).hotspots[:5]:
            print(hotspot.name, f"{hotspot.share:.1%} of the step, {hotspot.utilisation:.0%} of the roofline")
    """
    return profile_of(read_trace(path), peaks)


def profile_of(trace: Trace, peaks: Peaks | None = None) -> Profile:
    activities = activities_of(trace)
    _check(trace, bool(len(activities.row)))
    if len(activities.row) and not (activities.step >= 0).any():
        marked = ", ".join(f"{step.number}" for step in activities.steps[:4])
        count = f"none of its {len(activities.row)} GPU activities"
        raise TraceError(f"{trace.path}: {count} was launched within a step (marked: {marked})")
    found = operators_of(trace, activities)
    # lower bounds that the trace proves: too low a roof makes gains too small, not too large
    known = peaks if peaks is not None else peaks_of(found, _copies(trace))
    steps = max(1, found.steps)
    return Profile(
        trace.path,
        found.steps,
        found.wall_s / steps,
        found.compute_s / steps,
        found.communication_s / steps,
        found.copy_s / steps,
        found.idle_s / steps,
        found.unmapped_s / steps / max(1, found.devices),
        known,
        tuple(rank(found, known)),
        trace.has_shapes,
        found.devices > 0,
        sum(trace.rejected.values()),
        waits_of(trace, activities),
    )


def _check(trace: Trace, on_gpu: bool) -> None:
    """Raises TraceError for what would be added up wrongly."""
    events = trace.events
    processes = sorted({trace.tracks[number][0] for number in set(events.track[events.rows("cpu_op")].tolist())})
    # each process has its own GPU's time and its own steps: added up they are no step's
    if len(processes) > 1:
        raise TraceError(
            f"{trace.path}: holds operators of {len(processes)} processes ({', '.join(processes[:4])}): "
            "profile each one's trace by itself"
        )
    launches = sum("Launch" in trace.names[number] for number in events.name[events.rows("cuda_runtime")].tolist())
    # ranked by the CPU's times, a job on GPUs would be searched for what its GPUs do not wait for
    if launches and not on_gpu:
        raise TraceError(
            f"{trace.path}: launches {launches} kernels and holds none: record ProfilerActivity.CUDA as well"
        )


def rank(operators: Operators, peaks: Peaks) -> list[Hotspot]:
    """All operations of a trace by what a better kernel of theirs would gain."""
    groups: dict[tuple[Any, ...], list[tuple[tuple[OperatorCall, ...], ProblemMatch | None]]] = defaultdict(list)
    for units, match in segments(operators.units, operators.parameters):
        if match is not None:
            key: tuple[Any, ...] = (
                match.problem, tuple(match.sizes.items()), match.dtype, match.layout, BIASED in match.note,
            )  # fmt: skip
        else:
            key = (units[0].name, dims(units[0], 0), *units[0].signature.dtypes[:1])
        groups[key].append((units, match))
    of_operation: dict[str, float] = defaultdict(float)
    for key, calls in groups.items():
        of_operation[key[0]] += sum(u.forward_s + u.backward_s for units, _ in calls for u in units)
    steps = max(1, operators.steps)
    wall_s, devices = operators.wall_s / steps, max(1, operators.devices)
    made = [
        _hotspot(key, calls, of_operation[key[0]], steps, devices, wall_s, peaks) for key, calls in groups.items()
    ]
    return sorted(made, key=lambda h: (-h.score if math.isfinite(h.score) else 0.0, -h.total_s))


def _hotspot(
    key: tuple[Any, ...],
    calls: Sequence[tuple[tuple[OperatorCall, ...], ProblemMatch | None]],
    operation_s: float,
    steps: int,
    devices: int,
    wall_s: float,
    peaks: Peaks,
) -> Hotspot:
    units, match = calls[0]
    times = steps * devices
    forward_s = sum(u.forward_s for group, _ in calls for u in group) / times
    backward_s = sum(u.backward_s for group, _ in calls for u in group) / times
    total_s = forward_s + backward_s
    if match is not None:
        floor_s = _floor_s(match, backward_s > 0, peaks) * len(calls) / times
    else:
        missing = not units[0].signature.dims
        note = "its shapes were not recorded (record_shapes=True)" if missing else "no family of ours computes this"
        match, floor_s = ProblemMatch("", {}, "", "", note), math.nan
    known = math.isfinite(floor_s) and total_s > 0
    # above 1 where caches served what the roofline counts as read from memory
    utilisation = min(1.0, floor_s / total_s) if known else math.nan
    saved_s = max(0.0, total_s - floor_s / REACHABLE) if math.isfinite(floor_s) else 0.0
    # more than the whole step is no saving: kernels on several streams, whose times overlap
    gain = wall_s / (wall_s - saved_s) - 1.0 if 0 < saved_s < wall_s else 0.0
    frequency = total_s * times / operation_s if operation_s > 0 else math.nan
    headroom = 1.0 - utilisation if math.isfinite(utilisation) else 0.0
    return Hotspot(
        " + ".join(unit.name for unit in units),
        match.problem,
        dict(match.sizes),
        match.dtype,
        match.layout,
        len(calls) / steps,
        forward_s,
        backward_s,
        total_s / wall_s if wall_s > 0 else math.nan,
        floor_s,
        utilisation,
        gain,
        frequency,
        gain * headroom * frequency,
        match.note,
    )


def _floor_s(match: ProblemMatch, trained: bool, peaks: Peaks) -> float:
    """The least time of one call, with its backward pass where there is one."""
    need = cost(match)
    ahead = peaks.floor_s(need.forward_bytes, need.forward_flops, match.dtype)
    return ahead + (peaks.floor_s(need.backward_bytes, need.backward_flops, match.dtype) if trained else 0.0)


def _copies(trace: Trace) -> list[tuple[float, float]]:
    events = trace.events
    rows = [r for r in events.rows("gpu_memcpy").tolist() if "DtoD" in trace.names[events.name[r]]]
    return [(float(events.moved_bytes[r]), float(events.dur_ns[r]) * 1e-9) for r in rows]


def peaks_text(peaks: Peaks) -> str:
    """What is known of a GPU's peaks, in a line."""
    known = [f"{peaks.bytes_per_s / 1e12:.2f} TB/s"] if math.isfinite(peaks.bytes_per_s) else []
    known += [f"{name} {rate / 1e12:.0f} TFLOP/s" for name, rate in peaks.flops_per_s.items()]
    return f"peaks ({peaks.source}): {'; '.join(known) or 'none are known'}"


def first(profile: Profile) -> tuple[str, ...]:
    """What to do before any kernel, numbered, what would bring most first; of a trace without a GPU nothing."""
    if not profile.on_gpu:
        return ()
    said = advice(profile.step_s, profile.communication_s, profile.copy_s, profile.waits)
    return tuple(f"{number}. {text}" for number, text in enumerate(said, 1))


def left_out(profile: Profile) -> tuple[str, ...]:
    """What a profile cannot say, in a line each."""
    unmapped = f"{profile.unmapped_s * 1e3:.3f} ms a step belong to no operator"
    unmapped += ": a CUDA graph's kernels have none" if profile.waits.graphs else ""
    return (
        *(() if profile.on_gpu else ("no GPU in this trace: times are the operators' own on the CPU",)),
        *((unmapped,) if profile.unmapped_s > 0 else ()),
        *((f"{profile.rejected} malformed events of the trace were left out",) if profile.rejected else ()),
    )


def as_text(profile: Profile, count: int = 12) -> str:
    """The profile as a table for a terminal or a report."""
    ms = 1e3
    waits = f"exposed communication {profile.communication_s * ms:.2f}, exposed copies {profile.copy_s * ms:.2f}"
    steps = f"{profile.steps} steps of {profile.step_s * ms:.2f} ms: computes {profile.compute_s * ms:.2f}, {waits}"
    lines = [
        f"{steps}, idle {profile.idle_s * ms:.2f} ms",
        *first(profile),
        *left_out(profile),
        peaks_text(profile.peaks),
        "",
        f"{'ms/step':>8} {'share':>6} {'roof':>5} {'gain':>6}  operation",
    ]
    for h in profile.hotspots[:count]:
        roof = f"{h.utilisation:.0%}" if math.isfinite(h.utilisation) else "–"
        note = f"   ({h.why})" if h.why else ""
        lines.append(f"{h.total_s * ms:8.3f} {h.share:6.1%} {roof:>5} {h.gain:6.1%}  {h.name}{note}")
    return "\n".join(lines)
