"""Joins all collectors' answers of one moment into the Tick that detectors are given.

Two sources may know the same GPU (its exporter page and a Prometheus that scrapes it): cell by cell the newer
observation wins, a missing value never hides a known one. Row order is kept from tick to tick while membership is
unchanged, so that `frame.index is previous.index` holds above.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from nightshift.collectors.clocks import ClockOffsets
from nightshift.collectors.frame import Frame, LogRecord, SeriesIndex, SourceStatus
from nightshift.collectors.kernel_log.event import KernelEvent
from nightshift.collectors.kernel_log.pci import gpu_at
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.telemetry.derived_metrics import Deriver
from nightshift.collectors.telemetry.gauge_events import GaugeEvents
from nightshift.collectors.tick import Batch, Tick


class Merger:
    """Keeps the joined indices between ticks, and the counters' last values, of which rates are worked out."""

    def __init__(self) -> None:
        self._deriver = Deriver()
        self._gauges = GaugeEvents()
        self._clocks = ClockOffsets()
        self._joined: dict[tuple[int, ...], tuple[tuple[SeriesIndex, ...], SeriesIndex]] = {}

    def merge(self, batches: Sequence[Batch], at_s: float, inventory: Inventory | None = None) -> Tick:
        """One Tick of all batches at `at_s` (Unix s). With an inventory, kernel events that name only a PCI
        address are given the GPU that sat there."""
        clocks = tuple(chain.from_iterable(batch.clocks for batch in batches))
        self._clocks.add(clocks)
        logs = [self._on_our_clock(record, inventory) for batch in batches for record in batch.logs]
        frames, events = self._frames(batches, at_s), self._events(batches, inventory)
        if inventory is not None and (gpus := frames.get(SubjectKind.GPU)) is not None:
            gauged = self._gauges.take(gpus, inventory, events)
            logs += [event.record for event in gauged]
            events += gauged
        # sources answer in any order; detectors take the first error of a burst for its cause
        events.sort(key=lambda event: event.record.at.t_s)
        return Tick(
            at_s,
            frames,
            tuple(chain.from_iterable(batch.steps for batch in batches)),
            tuple(logs),
            tuple(events),
            _one_status_each(chain.from_iterable(batch.sources for batch in batches)),
            clocks,
            tuple(chain.from_iterable(batch.alerts for batch in batches)),
            tuple(chain.from_iterable(batch.silences for batch in batches)),
            tuple(self._on_our_clock(record, inventory) for batch in batches for record in batch.raw),
        )

    def _frames(self, batches: Sequence[Batch], at_s: float) -> dict[SubjectKind, Frame]:
        by_kind: dict[SubjectKind, list[Frame]] = defaultdict(list)
        for frame in chain.from_iterable(batch.frames for batch in batches):
            # a frame without rows would make its kind look observed, and found empty
            if len(frame.index):
                by_kind[frame.kind].append(frame)
        live, frames = set(), {}
        for kind, parts in by_kind.items():
            joined, key = self._join(parts, at_s)
            frames[kind] = self._deriver.extend(joined)
            live.add(key)
        # an index object that is gone may give its id to a new one, so what no frame used is dropped at once
        self._joined = {key: joined for key, joined in self._joined.items() if key in live}
        return frames

    def _events(self, batches: Sequence[Batch], inventory: Inventory | None) -> list[KernelEvent]:
        events: list[KernelEvent] = list(chain.from_iterable(batch.events for batch in batches))
        # where no clock is known finely there is nothing to correct: no event is copied then
        if self._clocks.is_fine:
            events = [replace(event, record=self._on_our_clock(event.record, inventory)) for event in events]
        if inventory is not None:
            events = [_with_gpu(event, inventory) for event in events]
        return events

    def _on_our_clock(self, record: LogRecord, inventory: Inventory | None) -> LogRecord:
        """Two nodes' lines can be compared only by one clock."""
        if not self._clocks.is_fine:
            return record
        at = self._clocks.corrected(record.at, inventory)
        return record if at is record.at else replace(record, at=at)

    def _join(self, parts: Sequence[Frame], at_s: float) -> tuple[Frame, tuple[int, ...]]:
        key = tuple(id(part.index) for part in parts)
        if len(parts) == 1:
            return parts[0], key
        index = self._joined_index(parts, key)
        names = list(dict.fromkeys(name for part in parts for name in part.metrics))
        at_column = {name: column for column, name in enumerate(names)}
        values = np.full((len(index), len(names)), np.nan)
        observed = np.full(values.shape, np.nan)
        epoch = np.zeros(len(index), dtype=np.int64)
        for part in parts:
            rows = np.fromiter((index.rows[s] for s in part.index.subjects), np.int64, len(part.index))
            cells = np.ix_(rows, np.array([at_column[name] for name in part.metrics], dtype=np.int64))
            when = np.broadcast_to(part.observed_at_s, part.values.shape)
            known, known_at = values[cells], observed[cells]
            # NaN compares false both ways: where one of two values has no time, the later source's is taken
            newer = ~np.isnan(part.values) & (np.isnan(known) | ~(known_at >= when))
            values[cells] = np.where(newer, part.values, known)
            observed[cells] = np.where(newer | np.isnan(known_at), when, known_at)
            epoch[rows] += part.epoch
        return Frame(at_s, index, tuple(names), values, observed, epoch), key

    def _joined_index(self, parts: Sequence[Frame], key: tuple[int, ...]) -> SeriesIndex:
        """The union of the parts' rows. The parts' indices are kept beside it, so that their ids stay theirs."""
        if key not in self._joined:
            union: dict[Subject, None] = {}
            for part in parts:
                union.update(dict.fromkeys(part.index.subjects))
            self._joined[key] = (tuple(p.index for p in parts), SeriesIndex(parts[0].kind, tuple(union)))
        return self._joined[key][1]


def merge(batches: Sequence[Batch], at_s: float, inventory: Inventory | None = None) -> Tick:
    """`Merger.merge` for one moment alone; a loop keeps one `Merger`, so that joined rows stay in place."""
    return Merger().merge(batches, at_s, inventory)


def _with_gpu(event: KernelEvent, inventory: Inventory) -> KernelEvent:
    if event.gpu is not None:
        return event
    at_s, index = event.record.at.t_s, event.attributes.get("gpu_index", "")
    if event.pci_address is not None:
        return replace(event, gpu=gpu_at(inventory, event.node, event.pci_address, at_s))
    if index:
        found = [
            g for g in inventory.children(event.node, at_s, SubjectKind.GPU) if inventory.fact(g, "index") == index
        ]
        return replace(event, gpu=found[0]) if len(found) == 1 else event
    return event


def _one_status_each(statuses: Iterable[SourceStatus]) -> tuple[SourceStatus, ...]:
    """One status per source: where two entries read the same place, a failure is not hidden by a success."""
    found: dict[Subject, SourceStatus] = {}
    for status in statuses:
        known = found.get(status.source)
        if known is None or (known.ok and not status.ok):
            found[status.source] = status
    return tuple(found.values())
