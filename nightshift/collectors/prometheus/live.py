"""GPUs, containers and nodes from a Prometheus that scrapes their exporters: one small query per metric.

Each metric is asked for `by (UUID)` alone, so an answer is short and its rows are known at once; who holds a GPU
and where it sits changes seldom and is asked for apart, every `refresh_s`. One further query says when the samples
were scraped, so that a look-back of five minutes does not pass for now.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic.json_schema import SkipJsonSchema

from nightshift.collectors.frame import Floats, Frame, Reason, SourceStatus
from nightshift.collectors.http import (
    CONNECTION,
    Address,
    Connection,
    Fetcher,
    HttpResponse,
    HttpSettings,
    SourceError,
)
from nightshift.collectors.kernel_log.event import KernelEvent
from nightshift.collectors.prometheus.api import Vector, VectorReader, instant
from nightshift.collectors.prometheus.queries import (
    KEYS,
    contradiction_query,
    doubled_query,
    exported_query,
    exported_sample,
    metrics_of,
    query_for,
    scrape_time_query,
    subject_of,
)
from nightshift.collectors.shared_settings import stated_once
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.telemetry.gauge_events import ExportedEvents
from nightshift.collectors.telemetry.gpu_labels import IDENTITY, GpuLabels
from nightshift.collectors.telemetry.metrics import Metric
from nightshift.collectors.telemetry.pages import source_subject
from nightshift.collectors.telemetry.rows import Cells, Rows
from nightshift.collectors.telemetry.standstill import FROZEN, Standstill
from nightshift.collectors.tick import Batch
from nightshift.collectors.training.workload import WorkloadRule

_GPU, _MIG = SubjectKind.GPU, SubjectKind.MIG
_NODE, _NIC, _DISK = SubjectKind.NODE, SubjectKind.NIC, SubjectKind.DISK
# Most time that one tick spends on whose GPUs are whose: a fleet of 100,000 is told over its first ticks.
TELL_S = 1.0
_LABELS, _DOUBTS, _EXPORTED = "labels", ("doubled", "contradicted"), "exported"
# Queries under way at once: Prometheus itself runs 20 of all its users.
_PARALLEL = 4


class _Known:
    """The rows of one kind by their key labels, shared by all its queries."""

    def __init__(self, kind: SubjectKind, rows: Rows) -> None:
        self.kind = kind
        self.rows = rows
        self.keys = KEYS[kind]
        self._row: dict[object, int] = {}
        self._subjects: list[Subject] = []
        self._frozen: tuple[Subject, ...] = ()
        self._placed: dict[int, tuple[Sequence[Mapping[str, str]], Cells, int]] = {}
        self._told: tuple[Inventory | None, tuple[Subject, ...]] = (None, ())

    def tell(self, inventory: Inventory, at_s: float) -> None:
        """That ports and disks are of the node that their key names first."""
        known_to, told = self._told
        if self.kind not in (_NIC, _DISK) or (known_to is inventory and told is self._frozen):
            return
        for key, row in self._row.items():
            if isinstance(key, tuple):
                inventory.observe(self._subjects[row], Subject(_NODE, key[0]), at_s)
        self._told = (inventory, self._frozen)

    def place(self, labels: Sequence[Mapping[str, str]], column: int, scale: float) -> tuple[Cells, int]:
        """Where a vector's values belong, and how many series have no usable identity."""
        placed = self._placed.get(column)
        if placed is None or placed[0] is not labels or placed[1].subjects is not self._frozen:
            where, refused = self._place(labels, column, scale)
            placed = self._placed[column] = (labels, where, refused)
        return placed[1], placed[2]

    def _place(self, labels: Sequence[Mapping[str, str]], column: int, scale: float) -> tuple[Cells, int]:
        try:
            # all keys known is the case of nearly every look: lists and one numpy pass, 60 queries × 10,000 GPUs
            keys: list[object] = (
                [label[self.keys[0]] for label in labels]
                if len(self.keys) == 1
                else [tuple([label[key] for key in self.keys]) for label in labels]
            )
            row = np.fromiter(map(self._row.__getitem__, keys), np.int64, len(keys))
            position, refused = np.arange(len(keys)), 0
        except KeyError:
            position, row, refused = self._learn(labels)
        if len(self._frozen) != len(self._subjects):
            self._frozen = tuple(self._subjects)
        twice: tuple[tuple[int, int], ...] = ()
        if len(np.unique(row)) != len(row):
            first: dict[int, int] = {}
            twice = tuple((n, seen) for n, r in enumerate(row.tolist()) if (seen := first.setdefault(r, n)) != n)
        columns = np.full(len(row), column, dtype=np.int64)
        return Cells(self.kind, self._frozen, position, row, columns, np.full(len(row), scale), twice), refused

    def _learn(
        self, labels: Sequence[Mapping[str, str]]
    ) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], np.ndarray[tuple[int], np.dtype[np.int64]], int]:
        position, rows = [], []
        for number, label in enumerate(labels):
            parts = tuple(label.get(key) or "" for key in self.keys)
            key: object = parts[0] if len(parts) == 1 else parts
            row = self._row.get(key)
            if row is None:
                try:
                    subject = subject_of(self.kind, parts)
                except (ValueError, TypeError, AttributeError):
                    continue
                row = self._row[key] = len(self._subjects)
                self._subjects.append(subject)
            position.append(number)
            rows.append(row)
        return np.array(position, dtype=np.int64), np.array(rows, dtype=np.int64), len(labels) - len(rows)

    def forget_gone(self) -> None:
        """Learns the keys anew where many are gone, so that they leave."""
        live = max((len(labels) for labels, _, _ in self._placed.values()), default=0)
        # a few keys of GPUs that are gone cost less than placing all columns again
        if len(self._subjects) > 1.1 * live + 16:
            self._forget()

    def _forget(self) -> None:
        self._row, self._subjects, self._frozen, self._placed = {}, [], (), {}


@dataclass(frozen=True, slots=True)
class _Ask:
    kind: SubjectKind
    metric: Metric
    query: str


# How often labels (host, pod) are asked for: that query is the dearest, and a pod lives for longer.
REFRESH_S = 300.0
# Largest answer to one query: a metric of ten thousand GPUs fits several times.
MAX_BYTES = 64 * 2**20
# How long a vanished subject keeps its row: an exporter that restarts is back sooner, and a row costs memory.
FORGET_AFTER_S = 3600.0


# On a cluster's own network gzip costs both sides more time than it saves.
COMPRESS = False


class PrometheusCollector:
    """Frames of GPUs, MIG instances, containers and nodes from instant queries."""

    plugin: ClassVar[str] = "prometheus"

    class Settings(BaseModel):
        """A Prometheus-compatible API."""

        model_config = ConfigDict(extra="forbid")

        url: Address = Field(description="Base address, e.g. http://prometheus:9090")
        kinds: list[SubjectKind] = Field(
            [_GPU, SubjectKind.CONTAINER, _NODE],
            min_length=1,
            description="What to query: gpu, mig, container, node, nic, disk",
        )
        matchers: str = Field(
            "", description='Label matchers for every query, e.g. cluster="prod-1",job="dcgm-exporter"'
        )
        metrics: list[str] | None = Field(None, description="Only these of our metrics; none: all of the kinds")
        at_clock: bool = Field(
            False, description="Query at the daemon's time instead of the server's: to replay a time range"
        )
        workload: SkipJsonSchema[WorkloadRule] = stated_once("workload", WorkloadRule)
        connection: Connection = Field(default_factory=HttpSettings, description=CONNECTION)

        @field_validator("kinds")
        @classmethod
        def _can_be_asked(cls, kinds: list[SubjectKind]) -> list[SubjectKind]:
            if unknown := set(kinds) - set(KEYS):
                raise ValueError(f"kinds: {sorted(unknown)} cannot be queried; known: {sorted(KEYS)}")
            return kinds

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._timer = clock
        self._source = source_subject(self.plugin, settings.url)
        self._fetcher = Fetcher(
            settings.connection,
            max_bytes=MAX_BYTES,
            accept="application/json",
            compress=COMPRESS,
            parallel=_PARALLEL,
            timer=clock,
        )
        self._known = {kind: _Known(kind, Rows(kind, metrics_of(kind), FORGET_AFTER_S)) for kind in settings.kinds}
        self._asks = [
            _Ask(kind, metric, query_for(kind, metric, settings.matchers))
            for kind in settings.kinds
            for metric in metrics_of(kind)
            if settings.metrics is None or metric.name in settings.metrics
        ]
        self._labels = GpuLabels(settings.workload, clock)
        self._labelled_s, self._labelled_boards = -np.inf, 0
        self._readers: dict[str, VectorReader] = {}
        self._suspects: frozenset[str] = frozenset()
        self._exported, self._standstill = ExportedEvents(), Standstill()
        self._missing: list[str] = []
        """Why answers of this look are partial."""

    @property
    def name(self) -> str:
        return self.plugin

    def collect(self, now_s: float, inventory: Inventory, timeout_s: float) -> Batch:
        started = self._timer()
        queries = self._queries(now_s)
        at_s = now_s if self._settings.at_clock else None
        asked = [instant(self._settings.url, query, at_s, timeout_s) for query in queries.values()]
        answers = dict(zip(queries, self._fetcher.fetch(asked, timeout_s), strict=True))
        failed: list[SourceError] = []
        rejected: dict[Reason, int] = {}
        self._missing = []
        if _LABELS in answers:
            self._take_labels(answers[_LABELS], now_s, failed)
        self._labels.tell(inventory, now_s, min(timeout_s / 4, TELL_S))
        times = {kind: self._scraped_s(kind, answers[kind], failed) for kind in self._known}
        used = 0
        for ask in self._asks:
            used += self._take(ask, answers[ask], times[ask.kind], now_s, failed, rejected)
        for known in self._known.values():
            known.tell(inventory, now_s)
        made = (known.rows.frame(now_s) for known in self._known.values())
        frames = [frame for frame in made if isinstance(frame, Frame)]
        events = self._events(answers.get(_EXPORTED), frames, now_s, inventory, failed)
        frozen = self._without_frozen(frames)
        told = self._doubt(frames, [answers[key] for key in _DOUBTS if key in answers], failed, rejected)
        status = self._status(now_s, used, failed, len(queries), rejected, self._timer() - started)
        if status.ok and frozen and frozen[0] == len(self._labels.gpus_by_node()):
            status = replace(status, ok=False, reason=Reason.STALE, detail=FROZEN.format(frozen[1]))
        partly = self._partly(frozen)
        detail = "; ".join(text for text in (told, partly) if text)[:300]
        status = replace(status, detail=detail, partly=partly) if status.ok else status
        return Batch([status], frames, logs=[event.record for event in events], events=events)

    def close(self) -> None:
        self._fetcher.close()

    def _queries(self, now_s: float) -> dict[object, str]:
        """What to ask now, by what the answer is for: values of an ask, scrape times of a kind, or a name."""
        matchers = self._settings.matchers
        queries: dict[object, str] = {ask: ask.query for ask in self._asks}
        queries |= {kind: scrape_time_query(kind, matchers) for kind in self._known}
        if _GPU in self._known:
            queries |= zip(_DOUBTS, (doubled_query(matchers), contradiction_query(matchers)), strict=True)
            queries[_EXPORTED] = exported_query(matchers)
        if self._wants_labels(now_s):
            queries[_LABELS] = f"{IDENTITY}{{{matchers}}}"
        return queries

    def _status(
        self,
        now_s: float,
        used: int,
        failed: Sequence[SourceError],
        asked: int,
        rejected: Mapping[Reason, int],
        took_s: float,
    ) -> SourceStatus:
        reason = failed[0].reason if failed else None
        detail = f"{len(failed)} of {asked} queries failed; {failed[0].detail}" if failed else ""
        if not failed and not used:
            reason, detail = Reason.NOT_FOUND, "no query found a series"
        nodes = self._labels.nodes()
        return SourceStatus(
            self._source, now_s, reason is None, reason, detail, used, dict(rejected), took_s, covers=nodes
        )

    def _take(
        self,
        ask: _Ask,
        answer: HttpResponse | SourceError,
        scraped_s: Floats,
        now_s: float,
        failed: list[SourceError],
        rejected: dict[Reason, int],
    ) -> int:
        vector = self._vector(ask.kind, answer, failed)
        if vector is None or not len(vector.values):
            return 0
        if vector.warnings:  # Thanos: a store did not answer
            _count(rejected, Reason.TRUNCATED, 1)
            self._missing += vector.warnings[:1]
        known = self._known[ask.kind]
        where, refused = known.place(vector.labels, known.rows.column[ask.metric.exported_as], ask.metric.scale)
        _count(rejected, Reason.MALFORMED, refused)
        times = np.full(len(vector.values), np.nan)
        timed = where.row < len(scraped_s)
        times[where.position[timed]] = scraped_s[where.row[timed]]
        for reason, count in known.rows.put(where, vector.values, times, now_s, ask.kind in (_GPU, _MIG)).items():
            _count(rejected, reason, count)
        return len(where.row)

    def _events(
        self,
        answer: HttpResponse | SourceError | None,
        frames: Sequence[Frame],
        now_s: float,
        inventory: Inventory,
        failed: list[SourceError],
    ) -> list[KernelEvent]:
        """The errors that exporters count themselves. An answer that failed says nothing, not even that a GPU had
        no error."""
        vector = self._vector(_EXPORTED, answer, failed) if answer is not None else None
        if vector is None:
            return []
        samples = [s for pair in zip(vector.labels, vector.values, strict=True) if (s := exported_sample(*pair))]
        shown = [gpu for frame in frames if frame.kind is _GPU for gpu in frame.observed()]
        return self._exported.take(samples, inventory, now_s, shown, partial=bool(vector.warnings))

    def _without_frozen(self, frames: Sequence[Frame]) -> tuple[int, float, str] | None:
        """Takes the values of nodes that measure no more out of the frames: how many, least time (s), a name."""
        gpus = next((frame for frame in frames if frame.kind is _GPU), None)
        if gpus is None:
            return None
        groups = self._labels.gpus_by_node()
        found = self._standstill.frozen_s(gpus, groups)
        for node in found:
            gpus.values[[gpus.index.rows[gpu] for gpu in groups[node] if gpu in gpus.index.rows]] = np.nan
        return (len(found), min(found.values()), next(iter(found)).name) if found else None

    def _partly(self, frozen: tuple[int, float, str] | None) -> str:
        """What this look did not tell, in words."""
        parts = [self._labels.notes()]
        if self._missing:
            parts.append(f"{len(self._missing)} answers are partial: {self._missing[0]}"[:200])
        if frozen:
            parts.append(f"{frozen[0]} nodes' exporters answer, but their values do not change, as {frozen[2]}'s")
        return "; ".join(part for part in parts if part)

    def _doubt(
        self,
        frames: Sequence[Frame],
        answers: Sequence[HttpResponse | SourceError],
        failed: list[SourceError],
        rejected: dict[Reason, int],
    ) -> str:
        """Says which GPUs two exporters tell of. Where they contradict each other over two looks, nobody knows
        which is right, so the GPU has no value."""
        if not answers:
            return ""
        doubled, apart = (
            [] if vector is None else [one.get("UUID", "") for one in vector.labels]
            for vector in (self._vector(f"doubt {n}", answer, failed) for n, answer in enumerate(answers))
        )
        # two exporters are scraped at two moments, so one look at a GPU whose power moves proves nothing
        contradicted = self._suspects & set(apart)
        self._suspects = frozenset(apart)
        if not doubled:
            return ""
        for frame in frames:
            rows = [n for n, s in enumerate(frame.index.subjects) if s.name in contradicted] if contradicted else []
            if frame.kind is _GPU and rows:
                frame.values[rows] = np.nan
                _count(rejected, Reason.DUPLICATE, len(rows))
        if contradicted:
            names = ", ".join(sorted(contradicted)[:3])
            return f"exporters contradict each other about {len(contradicted)} GPUs, which have no value: {names}"[
                :300
            ]
        return f"{len(doubled)} GPUs are reported by more than one exporter: {', '.join(sorted(doubled)[:3])}"[:300]

    def _scraped_s(
        self, kind: SubjectKind, answer: HttpResponse | SourceError, failed: list[SourceError]
    ) -> Floats:
        """[n_rows] when each row's samples were scraped (Unix s), NaN where that is not known."""
        vector = self._vector(kind, answer, failed)
        if vector is None:
            return np.empty(0)
        where, _ = self._known[kind].place(vector.labels, -1, 1.0)
        scraped = np.full(len(where.subjects), np.nan)
        scraped[where.row] = vector.values[where.position]
        return scraped

    def _vector(self, query: str, answer: HttpResponse | SourceError, failed: list[SourceError]) -> Vector | None:
        try:
            if isinstance(answer, SourceError):
                raise answer
            return self._readers.setdefault(query, VectorReader()).read(answer)
        except SourceError as error:
            failed.append(error)
            return None

    def _n_boards(self) -> int:
        return sum(len(self._known[kind].rows) for kind in (_GPU, _MIG) if kind in self._known)

    def _wants_labels(self, now_s: float) -> bool:
        """At the first time, after `refresh_s`, and as soon as there are new boards."""
        if not {_GPU, _MIG} & set(self._known):
            return False
        is_old = not 0 <= now_s - self._labelled_s < REFRESH_S
        return is_old or self._n_boards() > self._labelled_boards

    def _take_labels(self, answer: HttpResponse | SourceError, now_s: float, failed: list[SourceError]) -> None:
        """The last labels stand where this answer failed."""
        vector = self._vector("labels", answer, failed)
        if vector is None:
            return
        self._labels.take(vector.labels)
        self._labelled_s, self._labelled_boards = now_s, self._n_boards()
        for known in self._known.values():
            known.forget_gone()


def _count(rejected: dict[Reason, int], reason: Reason, count: int) -> None:
    if count:
        rejected[reason] = rejected.get(reason, 0) + count
