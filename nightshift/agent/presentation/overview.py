"""A large fleet at a glance: one cell per GPU, drawn by rack or by job; each leads to its nodes, a cell to its GPU.

Ten thousand links would be a page of megabytes, so a group is one picture: for each state one SVG path of all its
cells. What a reader of the screen needs stands beside it as words.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from nightshift.agent.presentation.fleet import RANK, STALE_S, natural, trouble
from nightshift.agent.store.incident import IncidentState, IncidentSummary
from nightshift.collectors.frame import Frame
from nightshift.collectors.history import History
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.detectors.base import Severity

# Up to so many GPUs every node is drawn at once; more are drawn by rack.
AT_ONCE = 512
LISTED = 12
_NO_RACK = "no rack known"
_NO_JOB = "no job"
_PER_GROUP = 16
"""Nodes without a rack are drawn so many to a picture."""
_SEVERITIES = {severity: place for place, severity in enumerate(Severity)}
_WORDS = {
    "critical": "critical",
    "warning": "warning",
    "no_data": "without data",
    "info": "noted",
    "touched": "job affected",
    "ok": "healthy",
}
_T = TypeVar("_T")
Groups = Mapping[str, Sequence[tuple[str, Sequence[Subject]]]]
Told = Mapping[Subject, Sequence[tuple[str, IncidentSummary]]]


@dataclass(frozen=True, slots=True)
class GroupPicture:
    """A rack or a job: `paths` is one SVG path per state, in cells of one unit; `rows` nodes of `columns` cells."""

    name: str
    link: str
    worst: str
    said: str
    columns: int
    rows: int
    paths: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Overview:
    """The front page. `groups`: racks or jobs. `urgent`: the open incidents that a person should look at first,
    `LISTED` at most."""

    groups: tuple[GroupPicture, ...]
    nodes: int
    gpus: int
    counts: Mapping[str, int]
    opened: int
    waiting: int
    urgent: tuple[IncidentSummary, ...]


@dataclass(frozen=True)
class FleetPicture:
    """What the pages of the fleet are made of. `groups`: by name of a rack or job, nodes and GPUs; `told`: by GPU,
    what open incidents make of it."""

    front: Overview
    opened: Sequence[IncidentSummary]
    groups: Groups
    told: Told

    def of_group(self, name: str) -> list[IncidentSummary]:
        """The open incidents that touch a group's GPUs, newest first."""
        gpus = (gpu for _, members in self.groups[name] for gpu in members)
        found = {row.id: row for gpu in gpus for _, row in self.told.get(gpu, ())}
        return sorted(found.values(), key=lambda row: -row.opened_s)


def overview(
    history: History,
    inventory: Inventory,
    opened: Sequence[IncidentSummary],
    now_s: float,
    only: frozenset[Subject] | None = None,
    by: SubjectKind = SubjectKind.RACK,
) -> FleetPicture:
    """Every GPU by rack (or job) and node; of these, `only` some."""
    frame = history.latest(SubjectKind.GPU)
    told = trouble(opened, inventory, now_s)
    states = _states(frame, known(frame, inventory, now_s, only), told, now_s)
    groups = (by_job if by is SubjectKind.JOB else by_rack)(states, inventory, now_s)
    pictures = [_picture(name, nodes, states) for name, nodes in groups.items()]
    # Only trouble moves a group to the front: else healthy ones would change places with every gap in the data.
    pictures.sort(key=lambda item: -RANK[item.worst] if item.worst in ("warning", "critical") else 0)
    front = Overview(
        tuple(pictures),
        len({name for nodes in groups.values() for name, _ in nodes}),
        len(states),
        Counter(states.values()),
        len(opened),
        sum(row.state is IncidentState.AWAITING_APPROVAL for row in opened),
        tuple(sorted(opened, key=_urgency)[:LISTED]),
    )
    return FleetPicture(front, opened, groups, told)


def known(
    frame: Frame | None, inventory: Inventory, now_s: float, only: frozenset[Subject] | None
) -> Iterable[Subject]:
    """Every GPU that the newest frame has or that the inventory places now."""
    found = set(frame.index.subjects) if frame is not None else set()
    found.update(inventory.subjects(SubjectKind.GPU, now_s))
    return found if only is None else found & only


def by_rack(
    gpus: Iterable[Subject], inventory: Inventory, now_s: float
) -> dict[str, list[tuple[str, list[Subject]]]]:
    """GPUs by rack and node, in the order in which people count; where no rack is known, by stretches of nodes."""
    nodes: dict[Subject | None, list[Subject]] = {}
    for gpu in gpus:
        above = inventory.parents(gpu, now_s, SubjectKind.NODE)
        nodes.setdefault(above[0] if above else None, []).append(gpu)
    racks: dict[str, list[tuple[str, list[Subject]]]] = {}
    for node, members in nodes.items():
        rack = None if node is None else inventory.above(node, SubjectKind.RACK, now_s)
        name = "node not known" if node is None else node.name
        racks.setdefault(_NO_RACK if rack is None else rack.name, []).append((name, members))
    # A cluster without topology labels would be one picture of all its nodes.
    loose = sorted(racks.pop(_NO_RACK, []), key=lambda item: natural(item[0]))
    found = {name: sorted(racks[name], key=lambda item: natural(item[0])) for name in sorted(racks, key=natural)}
    for start in range(0, len(loose), _PER_GROUP):
        group = loose[start : start + _PER_GROUP]
        name = group[0][0] if len(group) == 1 else f"{group[0][0]} to {group[-1][0]}"
        found[name] = group
    return found


def by_job(
    gpus: Iterable[Subject], inventory: Inventory, now_s: float
) -> dict[str, list[tuple[str, list[Subject]]]]:
    """GPUs by the job that holds them and node; those that no job holds come last."""
    jobs: dict[str, dict[str, list[Subject]]] = {}
    every = list(gpus)
    above = inventory.nearest_each(every, (SubjectKind.JOB, SubjectKind.NODE), now_s)
    for gpu, (job, node) in zip(every, above, strict=True):
        nodes = jobs.setdefault(_NO_JOB if job is None else job.name, {})
        nodes.setdefault("node not known" if node is None else node.name, []).append(gpu)
    ordered = sorted(jobs, key=lambda name: (name == _NO_JOB, natural(name)))
    return {name: sorted(jobs[name].items(), key=lambda item: natural(item[0])) for name in ordered}


def _states(
    frame: Frame | None,
    gpus: Iterable[Subject],
    told: Told,
    now_s: float,
) -> dict[Subject, str]:
    """How each GPU stands: without data, or the worst that an open incident makes of it."""
    states = dict.fromkeys(gpus, "no_data")
    if frame is not None and now_s - frame.at_s <= STALE_S:
        there = np.isfinite(frame.column("gpu_memory_used_bytes")) | np.isfinite(frame.column("gpu_power_w"))
        for gpu, has_data in zip(frame.index.subjects, there.tolist(), strict=True):
            if has_data and gpu in states:
                states[gpu] = "ok"
    for gpu, items in told.items():
        if gpu in states:
            states[gpu] = max((states[gpu], *(state for state, _ in items)), key=RANK.__getitem__)
    return states


def _picture(
    name: str, nodes: Sequence[tuple[str, Sequence[Subject]]], states: Mapping[Subject, str]
) -> GroupPicture:
    cells: dict[str, list[str]] = {}
    for row, (_, gpus) in enumerate(nodes):
        for column, gpu in enumerate(sorted(gpus, key=lambda gpu: gpu.name)):
            # Relative commands: half the bytes of four corners, times ten thousand cells.
            cells.setdefault(states[gpu], []).append(f"M{column} {row}h1v1h-1z")
    counts = {state: len(drawn) for state, drawn in cells.items()}
    total = sum(counts.values())
    parts = [f"{counts[state]} {word}" for state, word in _WORDS.items() if state in counts]
    said = "all healthy" if counts.get("ok") == total else ", ".join(parts)
    return GroupPicture(
        name,
        name,
        max(counts, key=RANK.__getitem__),
        f"{total} GPUs on {len(nodes)} nodes: {said}",
        max((len(gpus) for _, gpus in nodes), default=1),
        len(nodes),
        tuple((state, "".join(drawn)) for state, drawn in sorted(cells.items())),
    )


def _urgency(row: IncidentSummary) -> tuple[int, int, float]:
    asks = row.state in (IncidentState.AWAITING_APPROVAL, IncidentState.ESCALATED)
    # What waits for a person comes before what takes care of itself, within one severity.
    return -_SEVERITIES[row.severity], 0 if asks else 1, -row.opened_s


class Fresh(Generic[_T]):
    """Keeps what is dear to compute. Younger than `good_s` it is used as it is; up to `bearable_s` it is used once
    more while one thread makes it anew; older, its reader waits. What takes long stays good for longer, so that no
    more than `share` of the time goes into making it: readers and detectors run in the same interpreter. Wall
    times, by `clock`."""

    def __init__(
        self,
        good_s: float = 2.5,
        bearable_s: float = 15.0,
        share: float = 0.05,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._good_s, self._bearable_s, self._share, self._clock = good_s, bearable_s, share, clock
        self._kept: dict[Hashable, tuple[float, float, _T]] = {}  # made when, good for so long, what
        self._making: set[Hashable] = set()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """What `make` gives, or gave a moment ago. Its errors reach the reader who waits, and nobody else."""
        with self._lock:
            at_s, good_s, value = self._kept.get(key, (0.0, 0.0, None))
            age_s = self._clock() - at_s if value is not None else float("inf")
            # One thread at a time per key: ten open browsers would else start ten of the same work.
            renew = good_s <= age_s < self._bearable_s and key not in self._making
            if renew:
                self._making.add(key)
        if renew:
            threading.Thread(target=self._renew, args=(key, make), name="console-fleet", daemon=True).start()
        if value is not None and age_s < self._bearable_s:
            return value
        return self.anew(key, make)

    def anew(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """What `make` gives now; `get` finds it afterwards."""
        began_s = self._clock()
        value = make()
        now_s = self._clock()
        # Never longer than half of what is bearable, or a slow fleet's readers would all wait for one that is too
        # old.
        good_s = min(max(self._good_s, (now_s - began_s) / self._share), 0.5 * self._bearable_s)
        with self._lock:
            self._kept[key] = (now_s, good_s, value)
        return value

    def _renew(self, key: Hashable, make: Callable[[], _T]) -> None:
        try:
            self.anew(key, make)
        except Exception:  # noqa: BLE001  the next reader meets the error itself, and is told
            with self._lock:
                self._kept.pop(key, None)
        finally:
            with self._lock:
                self._making.discard(key)
