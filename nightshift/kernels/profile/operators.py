"""Operators of a trace with the GPU time that each of them, and its backward pass, put on the critical path.

A GPU activity belongs to the operator whose external id it carries, else to the innermost one that was open on the
launching thread (correlation id). A backward operator belongs to the forward one that libkineto's forward-backward
arrow names, else to the last forward operator with its sequence number. What remains are *units*: operators as the
model called them (`aten::linear`, not the `aten::mm` beneath), in the order of the calls.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nightshift.collectors.frame import Floats, Ints
from nightshift.collectors.training.kineto_steps import COMMUNICATION, Activities, activities_of
from nightshift.collectors.training.kineto_trace import Signature, Trace

_OPERATOR = re.compile(r"(?!autograd::|torch::autograd)\w+::\w+")
_BACKWARD = "autograd::engine::evaluate_function: "
_ACCUMULATE = "torch::autograd::AccumulateGrad"
EMPTY = Signature((), (), (), ())


@dataclass(frozen=True)
class OperatorCall:
    """One call of an operator. Times: seconds of the critical path in this call, copies that it made included."""

    name: str
    signature: Signature
    forward_s: float
    backward_s: float
    step: int
    track: int
    begin_ns: int
    computed: str = ""
    """First dtype of the operator beneath that took most of the time: what autocast made of the inputs."""
    kernel: str = ""
    """The GPU kernel that took most of the forward time; empty where none is known."""

    @property
    def base(self) -> str:
        """The operator's name without namespace and in-place mark: `aten::add_` is add."""
        return self.name.rpartition("::")[2].rstrip("_") or self.name


@dataclass(frozen=True, eq=False)
class Operators:
    """units: those that cost GPU time, by step, thread and time. Seconds are over all steps together; those of
    units and of what no operator owns are of all GPUs, the others their mean. wall_s: of the steps' windows; where
    the GPU is behind its launches and works for longer, as long as that. devices: GPUs; 0: none, and seconds are
    the operators' own on the CPU."""

    units: tuple[OperatorCall, ...]
    steps: int
    wall_s: float
    compute_s: float
    communication_s: float
    copy_s: float
    unmapped_s: float
    parameters: int
    """Elements of all gradients accumulated in one step: what an optimiser step works on."""
    devices: int = 1

    @property
    def idle_s(self) -> float:
        """Time of the steps in which the GPU did nothing: no kernel can win it back."""
        return max(0.0, self.wall_s - self.compute_s - self.communication_s - self.copy_s)


def operators_of(trace: Trace, activities: Activities | None = None) -> Operators:
    """The units of a trace's steps, each with its GPU time."""
    found = activities if activities is not None else activities_of(trace)
    forest = _Forest.of(trace)
    inside = found.step >= 0
    devices = len(np.unique(trace.events.device[found.row]))
    kind, share = found.kind, found.exclusive_ns * 1e-9
    working = inside & (kind != COMMUNICATION)
    owner = _owners(trace, found, forest)
    own = np.zeros(len(trace.events))
    mapped = working & (owner >= 0)
    np.add.at(own, owner[mapped], share[mapped])
    # a trace of the CPU alone ranks as well, and says so
    if not devices:
        own = _own_cpu_s(trace, found, forest)
    longest: dict[int, tuple[float, str]] = {}  # operator's row → its longest GPU activity
    for at in np.flatnonzero(mapped).tolist():
        name = trace.names[trace.events.name[found.row[at]]]
        longest[int(owner[at])] = max(longest.get(int(owner[at]), (0.0, "")), (float(share[at]), name))
    units, parameters = _units(trace, found, forest, own, longest)
    # GPUs work at the same time: their sum would exceed the step
    mean = share[inside] / max(1, devices)
    compute_s, communication_s, copy_s = (float(mean[kind[inside] == k].sum()) for k in range(3))
    compute_s = compute_s if devices else float(own.sum())
    windows_s = sum(step.end_ns - step.begin_ns for step in found.steps) * 1e-9
    return Operators(
        tuple(units),
        len(found.steps),
        # a GPU that is behind its launches works on after the step's window
        max(windows_s, compute_s + communication_s + copy_s),
        compute_s,
        communication_s,
        copy_s,
        float(share[working & (owner < 0)].sum()),
        parameters,
        devices,
    )


_VIEWS = frozenset(
    (
        "alias", "as_strided", "chunk", "contiguous", "detach", "expand", "expand_as", "flatten", "narrow",
        "permute", "reshape", "select", "slice", "split", "squeeze", "t", "transpose", "unbind", "unflatten",
        "unsqueeze", "view", "_unsafe_view",
    )
)  # fmt: skip
"""They only say how memory is read. Where one has to copy, an operator beneath it does, and takes the time."""


def _own_cpu_s(trace: Trace, found: Activities, forest: _Forest) -> Floats:
    """A trace without a GPU: each operator's own time on its thread, within the steps. Views take none."""
    events = trace.events
    own = np.zeros(len(events))
    rows = forest.order
    own[rows] = events.dur_ns[rows] * 1e-9
    under = rows[forest.parent[rows] >= 0]
    np.subtract.at(own, forest.parent[under], events.dur_ns[under] * 1e-9)
    views = [number for number, name in enumerate(trace.names) if name.rpartition("::")[2].rstrip("_") in _VIEWS]
    own[np.isin(events.name, views)] = 0.0
    begins = np.array([step.begin_ns for step in found.steps])
    ends = np.array([step.end_ns for step in found.steps])
    step = np.searchsorted(begins, events.begin_ns, side="right") - 1
    outside = (step < 0) | (events.begin_ns > ends[np.maximum(step, 0)])
    return np.where(outside, 0.0, np.maximum(own, 0.0))


@dataclass(frozen=True, eq=False)
class _Forest:
    """Nesting of the operators by thread. parent: [n_events] row or −1; order: rows, parents before children."""

    parent: Ints
    order: Ints
    by_start: Mapping[tuple[int, int], int]
    """(track, begin) → the outermost operator that begins there."""

    @classmethod
    def of(cls, trace: Trace) -> _Forest:
        events = trace.events
        rows = events.rows("cpu_op")
        begin, end = events.begin_ns, events.begin_ns + events.dur_ns
        order = rows[np.lexsort((-events.dur_ns[rows], begin[rows], events.track[rows]))]
        parent = np.full(len(events), -1, dtype=np.int64)
        by_start: dict[tuple[int, int], int] = {}
        open_rows: list[int] = []
        track = -1
        for row in order.tolist():
            if events.track[row] != track:
                track, open_rows = int(events.track[row]), []
            # timestamps are rounded: events that followed each other may overlap a little
            while open_rows and end[open_rows[-1]] < end[row]:
                open_rows.pop()
            while open_rows and end[open_rows[-1]] <= begin[row]:
                open_rows.pop()
            parent[row] = open_rows[-1] if open_rows else -1
            open_rows.append(row)
            by_start.setdefault((track, int(begin[row])), row)
        return cls(parent, order, by_start)


def _owners(trace: Trace, found: Activities, forest: _Forest) -> Ints:
    """The operator of each activity, −1 where none is known."""
    events = trace.events
    rows = forest.order
    known = rows[events.external_id[rows] >= 0]
    known = known[np.argsort(events.external_id[known], kind="stable")]
    keys = events.external_id[known]
    owner = np.full(len(found.row), -1, dtype=np.int64)
    if len(keys):
        wanted = events.external_id[found.row]
        at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        owner = np.where((keys[at] == wanted) & (wanted >= 0), known[at], -1)
    missing = np.flatnonzero((owner < 0) & (found.launch >= 0))
    if len(missing):
        by_track: dict[int, Ints] = {}
        for track in np.unique(events.track[rows]):
            by_track[int(track)] = rows[events.track[rows] == track]
        for number in missing.tolist():
            owner[number] = _innermost(trace, forest, by_track, int(found.launch[number]))
    return owner


def _innermost(trace: Trace, forest: _Forest, by_track: Mapping[int, Ints], launch: int) -> int:
    events = trace.events
    rows = by_track.get(int(events.track[launch]))
    if rows is None:
        return -1
    at_ns = int(events.begin_ns[launch])
    place = int(np.searchsorted(events.begin_ns[rows], at_ns, side="right")) - 1
    row = int(rows[place]) if place >= 0 else -1
    while row >= 0 and int(events.begin_ns[row] + events.dur_ns[row]) < at_ns:
        row = int(forest.parent[row])
    return row


def _units(
    trace: Trace, found: Activities, forest: _Forest, own: Floats, longest: Mapping[int, tuple[float, str]]
) -> tuple[list[OperatorCall], int]:
    """(units, elements of all gradients accumulated in one step)."""
    events, names = trace.events, trace.names
    total = own.copy()
    for row in forest.order[::-1].tolist():
        if forest.parent[row] >= 0:
            total[forest.parent[row]] += total[row]
    emitted = _emitted(trace, forest, own)
    computed = _computed(trace, own, emitted)
    kernels: dict[int, tuple[float, str]] = {}
    for row, one in longest.items():
        kernels[int(emitted[row])] = max(kernels.get(int(emitted[row]), (0.0, "")), one)
    forward_of = _forward_of(trace, forest, emitted)
    backward = np.zeros(len(events))
    loose: list[int] = []
    for row in forest.order[emitted[forest.order] == forest.order].tolist():
        if row in forward_of:
            backward[forward_of[row]] += total[row]
        else:
            loose.append(row)
    begins = np.array([step.begin_ns for step in found.steps])
    ends = np.array([step.end_ns for step in found.steps])
    units: list[OperatorCall] = []
    for row in sorted(loose, key=lambda r: (int(events.track[r]), int(events.begin_ns[r]))):
        at_ns, track = int(events.begin_ns[row]), int(events.track[row])
        step = int(np.searchsorted(begins, at_ns, side="right")) - 1
        if step < 0 or at_ns > ends[step] or total[row] + backward[row] <= 0:
            continue
        signature = trace.signatures[events.signature[row]] if events.signature[row] >= 0 else EMPTY
        name = names[events.name[row]].removeprefix(_BACKWARD)
        kind, kernel = (told.get(row, (0.0, ""))[1] for told in (computed, kernels))
        units.append(
            OperatorCall(name, signature, float(total[row]), float(backward[row]), step, track, at_ns, kind, kernel)
        )
    units = _merged(units, _optimiser_windows(trace))
    units.sort(key=lambda unit: (unit.step, unit.track, unit.begin_ns))
    return units, _accumulated(trace, forest) // max(1, len(found.steps))


def _emitted(trace: Trace, forest: _Forest, own: Floats) -> Ints:
    """Operator's row → the row of the unit that it stands beneath, its own where it is one; −1 of no unit."""
    events, names = trace.events, trace.names
    emitted = np.full(len(events), -1, dtype=np.int64)
    for row in forest.order.tolist():
        above, name = forest.parent[row], names[events.name[row]]
        if above >= 0 and emitted[above] >= 0:
            emitted[row] = emitted[above]
        # own time without being an operator: a compiled region, an extension
        elif name.startswith(_BACKWARD) or _OPERATOR.match(name) or own[row] > 0:
            emitted[row] = row
    return emitted


def _computed(trace: Trace, own: Floats, emitted: Ints) -> dict[int, tuple[float, str]]:
    """Unit's row → (time, first dtype) of the operator in it that took most: what autocast made of the inputs."""
    events = trace.events
    found: dict[int, tuple[float, str]] = {}
    for row in np.flatnonzero(own > 0).tolist():
        head = int(emitted[row])
        if events.signature[row] >= 0 and own[row] > found.get(head, (0.0, ""))[0]:
            found[head] = (float(own[row]), next(iter(trace.signatures[events.signature[row]].dtypes), ""))
    return found


def _accumulated(trace: Trace, forest: _Forest) -> int:
    """Elements of all gradients that the trace accumulates: an optimiser says nowhere how much it works on."""
    events = trace.events
    count = 0
    for row in forest.order.tolist():
        if trace.names[events.name[row]] == _ACCUMULATE and events.signature[row] >= 0:
            dims = trace.signatures[events.signature[row]].dims
            count += _numel(dims[0]) if dims else 0
    return count


def _merged(units: Sequence[OperatorCall], optimiser: Sequence[tuple[str, int, int, int]]) -> list[OperatorCall]:
    """The units, those within an optimiser's step as one: which of its operators a kernel replaces depends on the
    optimiser's implementation, and ours replaces the whole step."""
    found: list[OperatorCall] = []
    merged: dict[tuple[str, int, int], OperatorCall] = {}
    for unit in units:
        label = next((w[0] for w in optimiser if w[1] == unit.track and w[2] <= unit.begin_ns < w[3]), "")
        if not label:
            found.append(unit)
            continue
        key = (label, unit.step, unit.track)
        before = merged.get(key, OperatorCall(label, EMPTY, 0.0, 0.0, unit.step, unit.track, unit.begin_ns))
        merged[key] = replace(before, forward_s=before.forward_s + unit.forward_s)
    return [*found, *merged.values()]


def _forward_of(trace: Trace, forest: _Forest, emitted: Ints) -> dict[int, int]:
    """Backward unit's row → forward unit's row: by arrows, else by sequence numbers."""
    events, names = trace.events, trace.names
    linked = _arrows(trace, forest, emitted)
    by_sequence: dict[int, int] = {}
    for row in forest.order.tolist():
        head = int(emitted[row])  # also of an operator beneath: autograd numbers the nodes, not the calls
        if events.sequence[row] >= 0 and head >= 0 and not names[events.name[head]].startswith(_BACKWARD):
            by_sequence[int(events.sequence[row])] = head
    found: dict[int, int] = {}
    for row in forest.order.tolist():
        if emitted[row] == row and names[events.name[row]].startswith(_BACKWARD):
            forward = linked.get(row, by_sequence.get(int(events.sequence[row]), -1))
            if forward >= 0:
                found[row] = forward
    return found


def _arrows(trace: Trace, forest: _Forest, emitted: Ints) -> dict[int, int]:
    """Unit's row at the end of an arrow → the one at its start."""
    flows = trace.flows
    ends: dict[int, dict[bool, int]] = defaultdict(dict)
    for number in np.flatnonzero(flows.kind == 1).tolist():
        row = forest.by_start.get((int(flows.track[number]), int(flows.at_ns[number])), -1)
        ends[int(flows.id[number])][bool(flows.starts[number])] = int(emitted[row]) if row >= 0 else -1
    linked: dict[int, int] = {}
    for pair in ends.values():
        if min(pair.get(True, -1), pair.get(False, -1)) >= 0:
            linked.setdefault(pair[False], pair[True])
    return linked


def _optimiser_windows(trace: Trace) -> list[tuple[str, int, int, int]]:
    """(name, track, begin, end) of the optimiser's steps; the name as torch marks it: `Optimizer.step#AdamW`."""
    events = trace.events
    windows = []
    for row in events.rows("user_annotation").tolist():
        name = trace.names[events.name[row]]
        if name.startswith("Optimizer.step"):
            begin = int(events.begin_ns[row])
            windows.append((name.split(".step")[0] + ".step#" + name.partition("#")[2].partition(".")[0],
                            int(events.track[row]), begin, begin + int(events.dur_ns[row])))  # fmt: skip
    return windows


def _numel(dims: object) -> int:
    if not isinstance(dims, Sequence) or not all(isinstance(size, int) for size in dims):
        return 0
    count = 1
    for size in dims:
        count *= size
    return count
