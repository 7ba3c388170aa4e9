"""The fleet at a glance: one cell per GPU, grouped by node, coloured by the worst open incident that touches it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from nightshift.agent.store.incident import IncidentSummary
from nightshift.agent.units import quantity
from nightshift.collectors.frame import Frame
from nightshift.collectors.history import History
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.detectors.base import Severity, State

# A frame older than this says nothing about now.
STALE_S = 60.0
_WORST = (*Severity,)
_DIRECT = frozenset({SubjectKind.GPU, SubjectKind.RANK, SubjectKind.CONTAINER, SubjectKind.POD, SubjectKind.MIG})


@dataclass(frozen=True, slots=True)
class GpuCell:
    """One GPU. `state` is ok, no_data, info, warning, critical or touched (its job has an incident elsewhere)."""

    gpu: Subject
    label: str
    state: str
    mark: str
    title: str
    load: int
    """Memory in use, in tenths (0 to 10)."""
    incident_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    cells: tuple[GpuCell, ...]
    worst: str


@dataclass(frozen=True)
class Fleet:
    nodes: tuple[Node, ...]
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def gpus(self) -> int:
        return sum(len(node.cells) for node in self.nodes)


_MARKS = {"ok": "", "no_data": "?", "info": "i", "touched": "·", "warning": "!", "critical": "✕"}
RANK = {"ok": 0, "touched": 1, "info": 2, "no_data": 3, "warning": 4, "critical": 5}


def fleet(
    history: History,
    inventory: Inventory,
    open_incidents: Iterable[IncidentSummary],
    now_s: float,
    only: frozenset[Subject] | None = None,
) -> Fleet:
    """Every GPU that the inventory places on a node now or that the newest frame has; of these, `only` some."""
    frame = history.latest(SubjectKind.GPU)
    known = set(frame.index.subjects) if frame is not None else set()
    if only is None or not only <= known:
        known.update(inventory.subjects(SubjectKind.GPU, now_s))
    known = known if only is None else known & only
    told = trouble(open_incidents, inventory, now_s)
    by_node: dict[str, list[GpuCell]] = {}
    for gpu in known:
        node = inventory.above(gpu, SubjectKind.NODE, now_s)
        by_node.setdefault(node.name if node else "node not known", []).append(
            _cell(gpu, frame, inventory, told.get(gpu, []), now_s)
        )
    nodes = []
    counts: dict[str, int] = {}
    for name in sorted(by_node, key=natural):
        cells = sorted(by_node[name], key=lambda cell: (natural(cell.label), cell.gpu.name))
        for cell in cells:
            counts[cell.state] = counts.get(cell.state, 0) + 1
        nodes.append(Node(name, tuple(cells), max((c.state for c in cells), key=RANK.__getitem__)))
    return Fleet(tuple(nodes), counts)


def trouble(
    incidents: Iterable[IncidentSummary], inventory: Inventory, now_s: float
) -> dict[Subject, list[tuple[str, IncidentSummary]]]:
    """The states that open incidents give to each GPU, by GPU."""
    found: dict[Subject, list[tuple[str, IncidentSummary]]] = {}
    for incident in incidents:
        for finding in incident.findings:
            state = str(incident.severity) if finding.subject.kind in _DIRECT else "touched"
            if finding.subject.kind is SubjectKind.NODE:
                state = str(incident.severity)
            if finding.state is State.CLEAR:
                state = "info"
            # A pod that is gone holds nothing now; where it ran when the fault began is what is meant.
            gpus = _gpus(finding.subject, inventory, now_s) or _gpus(finding.subject, inventory, finding.since_s)
            for gpu in gpus:
                found.setdefault(gpu, []).append((state, incident))
    return found


def _gpus(subject: Subject, inventory: Inventory, at_s: float) -> list[Subject]:
    """The GPUs of a subject; of a container or rank, those of its pod."""
    gpus = inventory.gpus(subject, at_s)
    pod = None if gpus else inventory.above(subject, SubjectKind.POD, at_s)
    return inventory.gpus(pod, at_s) if pod is not None else gpus


def _cell(
    gpu: Subject,
    frame: Frame | None,
    inventory: Inventory,
    trouble: list[tuple[str, IncidentSummary]],
    now_s: float,
) -> GpuCell:
    used = _value(frame, gpu, "gpu_memory_used_bytes", now_s)
    total = used + _value(frame, gpu, "gpu_memory_free_bytes", now_s)
    power_w = _value(frame, gpu, "gpu_power_w", now_s)
    state = "no_data" if math.isnan(used) and math.isnan(power_w) else "ok"
    state = max([state, *(candidate for candidate, _ in trouble)], key=RANK.__getitem__)
    index = inventory.fact(gpu, "index") or inventory.fact(gpu, "gpu")
    return GpuCell(
        gpu,
        index if index is not None else gpu.name[4:10],
        state,
        _MARKS[state],
        _title(gpu, index, used, power_w, inventory, trouble, now_s),
        round(10 * used / total) if math.isfinite(total) and total > 0 else 0,
        tuple(dict.fromkeys(incident.id for _, incident in trouble)),
    )


def _title(
    gpu: Subject,
    index: str | None,
    used_bytes: float,
    power_w: float,
    inventory: Inventory,
    trouble: list[tuple[str, IncidentSummary]],
    now_s: float,
) -> str:
    """What the cell says to a pointer or a screen reader; a colour alone says nothing to either."""
    parts = [
        f"GPU {index}" if index is not None else gpu.name,
        gpu.name,
        inventory.fact(gpu, "model") or "",
        f"{quantity(used_bytes, 'bytes')} in use" if math.isfinite(used_bytes) else "no data",
        quantity(power_w, "W") if math.isfinite(power_w) else "",
        ", ".join(pod.name for pod in inventory.parents(gpu, now_s, SubjectKind.POD)),
        *(f"{incident.id}: {incident.title}" for _, incident in trouble),
    ]
    return " · ".join(part for part in dict.fromkeys(parts) if part)


def _value(frame: Frame | None, gpu: Subject, metric: str, now_s: float) -> float:
    # Drawn as no data: the last value of a source that has gone is no state of now.
    if frame is None or now_s - frame.at_s > STALE_S:
        return math.nan
    return frame.value(gpu, metric)


@lru_cache(maxsize=100_000)
def natural(text: str) -> tuple[tuple[int, int | str], ...]:
    """Sorts n2 before n10."""
    parts: list[tuple[int, int | str]] = []
    digits = ""
    # One character beyond, so that digits at the end are written down as those inside are.
    for character in text + "\0":
        if character.isdigit():
            digits += character
            continue
        if digits:
            parts.append((0, int(digits)))
            digits = ""
        parts.append((1, character))
    return tuple(parts)
