"""A GPU that is gone: it vanishes from its node's telemetry while the node's other telemetry goes on.

A silent page says nothing about a GPU, so a node that is silent as a whole is no loss (`detectors.source_lost` says
that). A page that goes on with one device fewer does: the driver no longer enumerates it, it fell off the bus, or
someone took it away. Nothing is lost where the page shows only GPUs that a pod holds. Not lost, or no longer, is a
GPU whose place another took (a swapped board has a new UUID: the node counts as many as before), one that was cut
into MIG instances, and one that is away for shorter than a reset takes. Of a page that was cut short nothing
follows. On a node that a person took out of service the loss is only a warning: a person works there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from nightshift.collectors.frame import Frame, Reason, SourceStatus
from nightshift.collectors.kernel_log.event import KernelEvent, KernelEventKind
from nightshift.collectors.kernel_log.messages import BY_NAME
from nightshift.collectors.subject import SHOWS_HELD_ONLY, Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Fault, Finding, RateBasis, SeriesExhibit, Severity, SnapshotError, StatedRate
from nightshift.detectors.episodes import Alarm, Episodes
from nightshift.detectors.series_table import Column, SeriesTable
from nightshift.detectors.snapshot import pack, unpack

VERSION = 1
OFF_BUS = 79
"""The Xid of a GPU that has fallen off the bus."""


# ... and missing from this many looks in a row: with rare looks the time alone would be one missed page.
LOST_LOOKS = 3
# Seen for at least this long before: a GPU that comes and goes at a node's start is not lost.
SETTLED_S = 60.0
# A GPU away for this long without an alarm was taken away on purpose.
FORGET_S = 6 * 3600.0


class GpuLostSettings(BaseModel):
    """When a GPU that is not seen is lost."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    lost_s: float = Field(
        default=120.0, gt=0, description="No data of a GPU for this long, while its node has some (s)"
    )


class GpuLost:
    """GPU_LOST on the GPU that its node's telemetry no longer shows.

    >>> from nightshift.detectors.contract.testing import START_S, show, tick
    >>> seen = [[0, 1] if n < 20 else [0] for n in range(50)]
    >>> rows = [{gpu: {"gpu_power_w": 600.0} for gpu in gpus} for gpus in seen]
    >>> show(GpuLost(), [tick(START_S + 5 * n, row) for n, row in enumerate(rows)])
    215 s: firing gpu_lost gpu:GPU-1
        No data for 120 s, while 1 other GPUs of n1 report
    """

    plugin: ClassVar[str] = "gpu_lost"
    Settings = GpuLostSettings

    def __init__(self, settings: GpuLostSettings | None = None) -> None:
        self.settings = settings or GpuLostSettings()
        self._table = self._fresh()
        self._episodes = Episodes(self.name)
        self._logged_s: dict[Subject, float] = {}
        """When the kernel log last told of each GPU's loss."""

    def _fresh(self) -> SeriesTable:
        columns = {
            "first_s": Column(np.float64, np.nan),
            "last_s": Column(np.float64, np.nan),
            "looks": Column(np.int32, 0),  # since it was last seen
        }
        return SeriesTable(columns, FORGET_S)

    @property
    def name(self) -> str:
        return self.plugin

    @property
    def faults(self) -> tuple[Fault, ...]:
        return (Fault.GPU_LOST,)

    @property
    def stated(self) -> StatedRate:
        # Llama 3 405B: 148 interruptions by a faulty GPU (NVLink included) in 54 days on 16,384 GPUs
        return StatedRate(
            1000.0 * 148 / (54 * 16384), RateBasis.EVENT, "arXiv 2407.21783, table 5: faulty GPUs per GPU-day"
        )

    def update(self, tick: Tick, inventory: Inventory) -> list[Finding]:
        frame = tick.frames.get(SubjectKind.GPU)
        self._read_log(tick)
        missing: list[int] = []
        seen = np.zeros(0, dtype=np.bool_)
        if frame is not None and len(frame.index):
            missing, seen = self._take(frame, tick.at_s)
        mig = tick.frames.get(SubjectKind.MIG)
        cut = {s.name.partition("/")[0] for s in mig.index.subjects} if mig is not None and missing else set()
        nodes: dict[Subject, tuple[int, int]] = {}
        cut_short = _cut_short(tick.sources)
        for slot in missing:
            self._missing(slot, nodes, cut, cut_short, tick.at_s, inventory)
        return self._episodes.report(lambda fault, gpu: self._word(fault, gpu, seen, tick.at_s, inventory))

    def _read_log(self, tick: Tick) -> None:
        told = {event.gpu: tick.at_s for event in tick.events if event.gpu is not None and _tells_loss(event)}
        if told:
            live = {gpu: at_s for gpu, at_s in self._logged_s.items() if tick.at_s - at_s <= FORGET_S}
            self._logged_s = live | told

    def _take(self, frame: Frame, at_s: float) -> tuple[list[int], NDArray[np.bool_]]:
        """Takes a look: the slots of GPUs that were seen before and are not in it, and [slot] whether it is."""
        table = self._table
        rows = table.rows(frame.index, at_s)
        seen = _observed(frame)
        first = table["first_s"][rows]
        table["first_s"][rows] = np.where(seen & np.isnan(first), at_s, first)
        table["last_s"][rows] = np.where(seen, np.fmax(table["last_s"][rows], at_s), table["last_s"][rows])
        table["looks"][rows] = np.where(seen, 0, table["looks"][rows])
        away = table["last_s"] < at_s
        table["looks"][away] += 1
        late = away & (at_s - table["last_s"] >= self.settings.lost_s) & (table["looks"] >= LOST_LOOKS)
        here = np.zeros(len(away), dtype=np.bool_)
        here[rows] = seen
        return np.flatnonzero(late).tolist(), here

    def _missing(
        self,
        slot: int,
        nodes: dict[Subject, tuple[int, int]],
        cut: set[str],
        cut_short: set[Subject],
        at_s: float,
        inventory: Inventory,
    ) -> None:
        table = self._table
        gpu, last_s = table.subjects[slot], float(table["last_s"][slot])
        if (Fault.GPU_LOST, gpu) in self._episodes or gpu.name in cut:
            return
        node = inventory.above(gpu, SubjectKind.NODE, at_s) or inventory.above(gpu, SubjectKind.NODE, last_s)
        if node is None or node in cut_short:  # the rest of its page may have told of it
            return
        if node not in nodes:
            nodes[node] = self._seen_on(node, last_s, at_s, inventory)
        before, now = nodes[node]
        # of all checks this is the cheapest for a node that is silent as a whole, as thousands are in an outage
        if now == 0 or now >= before or last_s - float(table["first_s"][slot]) < SETTLED_S:
            return
        if inventory.children(gpu, at_s, SubjectKind.MIG) or self._is_hidden(gpu, last_s, at_s, inventory):
            return
        self._episodes.fire(self._alarm(gpu, node, last_s, before, now, at_s, inventory), at_s)

    def _is_hidden(self, gpu: Subject, last_s: float, at_s: float, inventory: Inventory) -> bool:
        """Whether its exporter rather shows no idle GPUs any longer: it says so, or several GPUs that no pod held
        vanished at one scrape and every one that is left is held. What the kernel log calls lost is not hidden."""
        if at_s - self._logged_s.get(gpu, -np.inf) <= FORGET_S:
            return False
        node = inventory.above(gpu, SubjectKind.NODE, at_s) or inventory.above(gpu, SubjectKind.NODE, last_s)
        if node is None:
            return False
        return inventory.fact(node, SHOWS_HELD_ONLY) == "yes" or self._idle_vanished(node, last_s, at_s, inventory)

    def _idle_vanished(self, node: Subject, last_s: float, at_s: float, inventory: Inventory) -> bool:
        on = inventory.children(node, at_s, SubjectKind.GPU)
        seen_s = {g: float(self._table["last_s"][k]) for g in on if (k := self._table.slot(g)) is not None}
        gone = [g for g, when_s in seen_s.items() if when_s == last_s]
        here = [g for g, when_s in seen_s.items() if when_s >= at_s]
        idle = not any(inventory.parents(g, last_s, SubjectKind.POD) for g in gone)
        held = all(inventory.parents(g, at_s, SubjectKind.POD) for g in here)
        return len(gone) > 1 and bool(here) and idle and held

    def _seen_on(self, node: Subject, then_s: float, at_s: float, inventory: Inventory) -> tuple[int, int]:
        """How many of a node's GPUs were seen when this one was last, and how many are now."""
        on = {*inventory.children(node, then_s, SubjectKind.GPU), *inventory.children(node, at_s, SubjectKind.GPU)}
        slots = [k for k in (self._table.slot(g) for g in on) if k is not None]
        last, first = self._table["last_s"][slots], self._table["first_s"][slots]
        return int(((first <= then_s) & (last >= then_s)).sum()), int((last >= at_s).sum())

    def _alarm(
        self, gpu: Subject, node: Subject, last_s: float, before: int, now: int, at_s: float, inventory: Inventory
    ) -> Alarm:
        away = inventory.fact(node, "unschedulable") == "true"
        exhibit = SeriesExhibit(
            node,
            "gpus_seen",
            "GPUs",
            (last_s, at_s),
            (float(before), float(now)),
            float(before),
            "",
            "GPUs that the node's telemetry shows: when this one was last seen, and now",
        )
        words = f"No data for {at_s - last_s:.0f} s, while {now} other GPUs of {node.name} report"
        return Alarm(
            Fault.GPU_LOST,
            gpu,
            last_s,
            Severity.WARNING if away else Severity.CRITICAL,
            f"{words}; the node is out of service" if away else words,
            score=at_s - last_s,
            threshold=self.settings.lost_s,
            evidence=(exhibit,),
            facts={"gpus_before": float(before), "gpus_now": float(now), "out_of_service": "yes" if away else "no"},
        )

    def _word(
        self, fault: Fault, gpu: Subject, seen: NDArray[np.bool_], at_s: float, inventory: Inventory
    ) -> Finding | None:
        slot = self._table.slot(gpu)
        if slot is not None and slot < len(seen) and seen[slot]:
            return self._episodes.clear(fault, gpu, at_s, "The GPU is seen again")
        lost = self._episodes.get(fault, gpu)
        since_s = at_s if lost is None else lost.since.t_s
        node = inventory.above(gpu, SubjectKind.NODE, at_s) or inventory.above(gpu, SubjectKind.NODE, since_s)
        others = inventory.children(node, at_s, SubjectKind.GPU) if node is not None else []
        slots = [k for k in (self._table.slot(g) for g in others) if k is not None]
        here = self._table["last_s"][slots] >= at_s
        if node is not None and not here.any():
            return self._episodes.no_data(fault, gpu, at_s, f"No data of {node.name} any longer")
        if self._is_replaced(fault, gpu, here, self._table["first_s"][slots]):
            return self._episodes.clear(fault, gpu, at_s, "Another GPU has taken its place")
        return self._episodes.again(fault, gpu, at_s)

    def _is_replaced(
        self, fault: Fault, gpu: Subject, here: NDArray[np.bool_], first_s: NDArray[np.float64]
    ) -> bool:
        """Whether its node shows as many GPUs as before the loss, one of them new since: a swapped board never
        shows the lost UUID again. `here`, `first_s` [n] of the node's GPUs: seen now, first seen (Unix s)."""
        lost = self._episodes.get(fault, gpu)
        before = float(lost.facts.get("gpus_before", np.inf)) if lost is not None else np.inf
        return lost is not None and here.sum() >= before and bool((here & (first_s > lost.since.t_s)).any())

    def snapshot(self) -> bytes:
        subjects, arrays = self._table.saved()
        logged_s = {str(gpu): at_s for gpu, at_s in self._logged_s.items()}
        meta = {"subjects": subjects, "episodes": self._episodes.saved(), "logged_s": logged_s}
        return pack(self.name, VERSION, meta, arrays)

    def restore(self, state: bytes) -> None:
        _, meta, arrays = unpack(state, self.name, (VERSION,))
        table, episodes = self._fresh(), Episodes(self.name)
        try:
            table.load(meta["subjects"], arrays)
            episodes.load(meta["episodes"])
            logged_s = {Subject.parse(gpu): float(at_s) for gpu, at_s in meta.get("logged_s", {}).items()}
        except (KeyError, TypeError, ValueError) as error:
            raise SnapshotError(f"{self.name}: {error!r}") from error
        self._table, self._episodes, self._logged_s = table, episodes, logged_s


def _cut_short(sources: Sequence[SourceStatus]) -> set[Subject]:
    """What sources cover of which a page was cut off."""
    cut = (s for s in sources if s.reason is Reason.TRUNCATED or Reason.TRUNCATED in s.rejected)
    return {subject for s in cut for subject in s.covers}


def _tells_loss(event: KernelEvent) -> bool:
    if event.kind is KernelEventKind.MESSAGE:
        return BY_NAME[event.attributes["message"]].fault == Fault.GPU_LOST
    return event.kind is KernelEventKind.FELL_OFF_BUS or (
        event.kind is KernelEventKind.XID and event.code == OFF_BUS
    )


def _observed(frame: Frame) -> Any:
    """[n] whether any metric of the row was read: a row may outlive its device as NaN."""
    return np.isfinite(frame.values).any(axis=1)
