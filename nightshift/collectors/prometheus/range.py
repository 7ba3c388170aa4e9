"""The past of a Prometheus as ticks: range queries, one at a time, resting as long as the server worked.

A look-back must not disturb the server that a rota depends on: one query is under way at any time, each answer is
bounded in samples, and after each the reader waits at least as long as the answer took. A metric that nobody
exports is asked for once. A server that refuses an answer as too large, or does not end it in time, is asked for
shorter stretches. What could not be read is a gap: its ticks say that the source was lost.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from nightshift.collectors.base import Permanent
from nightshift.collectors.frame import Floats, Frame, Reason, SeriesIndex, SourceStatus
from nightshift.collectors.http import Fetcher, HttpRequest, HttpResponse, SourceError
from nightshift.collectors.kernel_log.event import KernelEvent
from nightshift.collectors.prometheus.api import Matrix, instant, over_range, read_matrix, read_vector
from nightshift.collectors.prometheus.live import PrometheusCollector
from nightshift.collectors.prometheus.queries import KEYS, exported_query, exported_sample, query_for, subject_of
from nightshift.collectors.subject import Inventory, SubjectKind
from nightshift.collectors.telemetry.gauge_events import ExportedEvents, GaugeEvents
from nightshift.collectors.telemetry.gpu_labels import IDENTITY, GpuLabels
from nightshift.collectors.telemetry.metrics import Metric, of_kind
from nightshift.collectors.telemetry.pages import source_subject
from nightshift.collectors.tick import Tick

KINDS = (SubjectKind.GPU, SubjectKind.CONTAINER, SubjectKind.NODE)
# Values held at once: a chunk of the past is as long as that allows.
MOST_VALUES = 8_000_000
# Points per series and answer: Prometheus refuses more than 11,000.
MOST_POINTS = 10_000
# How often who holds what is asked for; sooner where more GPUs are seen than when it was last asked.
LABELS_EVERY_S, SOONER_S = 3600.0, 600.0
TRIES = 3
# An answer is asked for in parts down to this share of its length (or this many points).
SMALLEST = 16
# Stretches in a row that cannot be read: the server is gone, and the rest is one gap.
GIVE_UP = 6
UNKNOWN_SERIES = 4096
"""How many series a metric is taken to have whose count could not be read."""


@dataclass
class RangeCost:
    """What reading the past cost and did not get. series: most series at once per metric; 0 = nobody exports it; a
    metric of which that could not be read is not in it."""

    queries: int = 0
    samples: int = 0
    busy_s: float = 0.0
    rested_s: float = 0.0
    series: dict[str, int] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A part of the range: of each kind its metrics and values [n_times, n_subjects, n_metrics], why something is
    missing, and the errors that exporters counted themselves."""

    first_s: float
    last_s: float
    blocks: dict[SubjectKind, tuple[tuple[str, ...], Floats]]
    problem: str
    exported: Matrix | None = None


class _Events:
    """The errors that a range tells, look by look: as the daemon takes them from live answers."""

    def __init__(self) -> None:
        self._gauges, self._exported = GaugeEvents(), ExportedEvents()

    def take(
        self, gpus: Frame | None, exported: Matrix | None, number: int, at_s: float, inventory: Inventory
    ) -> list[KernelEvent]:
        found: list[KernelEvent] = []
        if exported is not None:
            row = exported.values[number]
            samples = [
                sample
                for column in np.flatnonzero(np.isfinite(row)).tolist()
                if (sample := exported_sample(exported.labels[column], float(row[column]))) is not None
            ]
            # rows of a range also stand for GPUs of later: only those with a value were looked at
            shown = gpus.observed() if gpus is not None else []
            found = self._exported.take(samples, inventory, at_s, shown)
        if gpus is not None:
            found += self._gauges.take(gpus, inventory, found)
        return sorted(found, key=lambda event: event.record.at.t_s)


class RangeReader:
    """Ticks of a time range. `load` is the share of the time in which a query may be under way."""

    def __init__(
        self,
        settings: PrometheusCollector.Settings,
        step_s: float,
        *,
        load: float = 0.5,
        timeout_s: float = 60.0,
        sleep: Callable[[float], None] = time.sleep,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        if not (0 < load <= 1 and step_s > 0):
            raise ValueError("load is a share of the time, step_s is positive")
        self._settings, self.step_s, self._load = settings, step_s, load
        self._timeout_s, self._sleep, self._timer = timeout_s, sleep, timer
        self._fetcher = Fetcher(
            settings.connection,
            max_bytes=256 * 2**20,
            accept="application/json",
            compress=True,
            parallel=1,
            timer=timer,
        )
        self._source = source_subject("prometheus", settings.url)
        self._labels = GpuLabels(settings.workload, timer)
        self.reading = RangeCost()

    def close(self) -> None:
        self._fetcher.close()

    def probe(self, at_s: float) -> None:
        """Asks for next to nothing. Raises Permanent where not even that is answered as Prometheus does."""
        try:
            read_vector(self._ask(instant(self._settings.url, "vector(1)", at_s, self._timeout_s)))
        except SourceError as error:
            raise Permanent(f"{self._settings.url}: {error}") from error

    def matrix(self, query: str, start_s: float, end_s: float, step_s: float) -> Matrix:
        """One range query of at most MOST_POINTS points. Raises SourceError after three tries (at once where the
        server calls it too large), Permanent at once where credentials or the address are wrong."""
        answer = self._ask(over_range(self._settings.url, query, start_s, end_s, step_s))
        found = read_matrix(answer, start_s, end_s, step_s)
        self.reading.samples += int(np.isfinite(found.values).sum())
        return found

    def matrices(self, query: str, start_s: float, end_s: float) -> Iterator[Matrix]:
        """The range in parts, which overlap by a point, as long as the server answers them. Raises SourceError."""
        span_s = min((MOST_POINTS - 1) * self.step_s, end_s - start_s)
        least_s = max(span_s / SMALLEST, self.step_s)
        while start_s < end_s:
            try:
                found = self.matrix(query, start_s, min(start_s + span_s, end_s), self.step_s)
            except SourceError as error:
                if not _too_much(error) or span_s <= least_s:
                    raise
                span_s = max(span_s / 4.0 // self.step_s * self.step_s, least_s)
                continue
            yield found
            start_s += span_s

    def ticks(self, start_s: float, end_s: float, inventory: Inventory) -> Iterator[Tick]:
        """Oldest first, `step_s` apart, aligned to multiples of it."""
        start_s = math.ceil(start_s / self.step_s) * self.step_s
        indices: dict[SubjectKind, SeriesIndex] = {}
        labelled_s, labelled, told = -math.inf, 0, _Events()
        for stretch in self._stretches(start_s, end_s, indices):
            for number in range(self._n_steps(stretch.first_s, stretch.last_s)):
                at_s = stretch.first_s + number * self.step_s
                frames = {
                    kind: self._frame(kind, metrics, values[number], indices, at_s)
                    for kind, (metrics, values) in stretch.blocks.items()
                }
                gpus = frames.get(SubjectKind.GPU)
                seen = 0 if gpus is None else int(np.isfinite(gpus.values).any(axis=1).sum())
                if seen and at_s - labelled_s >= (SOONER_S if seen > labelled else LABELS_EVERY_S):
                    labelled_s, labelled = at_s, seen
                    self._tell_labels(inventory, at_s)
                events = told.take(gpus, stretch.exported, number, at_s, inventory)
                yield self._tick(at_s, frames, stretch.problem, events)

    def _stretches(
        self, start_s: float, end_s: float, indices: dict[SubjectKind, SeriesIndex]
    ) -> Iterator[_Stretch]:
        """The range in stretches that the server answers; after GIVE_UP that it does not, the rest in one."""
        wanted = [(kind, self._exported(kind, start_s, end_s)) for kind in KINDS if kind in self._settings.kinds]
        chunk = min(self._steps(wanted), self._n_steps(start_s, end_s))
        least = max(chunk // SMALLEST, min(chunk, SMALLEST))
        first_s, lost = start_s, 0
        while first_s <= end_s and lost < GIVE_UP:
            last_s = min(first_s + (chunk - 1) * self.step_s, end_s)
            blocks, failed = self._blocks(wanted, first_s, last_s, indices)
            exported, refused = self._counted(first_s, last_s)
            if chunk > least and any(_too_much(error) for error in (*failed.values(), *refused)):
                chunk = max(chunk // 4, least)
                continue
            self.reading.failed += [f"{kind} at {first_s:.0f}: {error}" for kind, error in failed.items()]
            self.reading.failed += [f"errors that exporters count at {first_s:.0f}: {error}" for error in refused]
            yield _Stretch(first_s, last_s, blocks, "; ".join(map(str, failed.values())), exported)
            lost = lost + 1 if failed and not blocks else 0
            first_s = last_s + self.step_s
        if first_s <= end_s:
            self.reading.failed.append(f"everything from {first_s:.0f} on: {lost} stretches in a row failed")
            yield _Stretch(first_s, end_s, {}, "given up")

    def _n_steps(self, first_s: float, last_s: float) -> int:
        # 1e-9: 0.3 / 0.1 is 2.9999999999999996, and the last tick of the range must not be lost to that
        return math.floor((last_s - first_s) / self.step_s + 1e-9) + 1

    def _blocks(
        self,
        wanted: Sequence[tuple[SubjectKind, list[Metric]]],
        first_s: float,
        last_s: float,
        indices: dict[SubjectKind, SeriesIndex],
    ) -> tuple[dict[SubjectKind, tuple[tuple[str, ...], Floats]], dict[SubjectKind, SourceError]]:
        """What could be read of a stretch by kind, and why the rest could not."""
        blocks: dict[SubjectKind, tuple[tuple[str, ...], Floats]] = {}
        failed: dict[SubjectKind, SourceError] = {}
        for kind, metrics in wanted:
            try:
                blocks[kind] = self._block(kind, metrics, first_s, last_s, indices)
            except SourceError as error:
                failed[kind] = error
        return blocks, failed

    def _tick(
        self, at_s: float, frames: dict[SubjectKind, Frame], problem: str, events: Sequence[KernelEvent]
    ) -> Tick:
        status = SourceStatus(
            self._source,
            at_s,
            not problem,
            Reason.UNREACHABLE if problem else None,
            problem,
            covers=self._labels.nodes(),
        )
        shown = {kind: frame for kind, frame in frames.items() if len(frame.index)}
        return Tick(at_s, shown, logs=[e.record for e in events], events=events, sources=(status,))

    def _counted(self, first_s: float, last_s: float) -> tuple[Matrix | None, list[SourceError]]:
        """The errors that exporters count themselves, and why they could not be read."""
        if SubjectKind.GPU not in self._settings.kinds:
            return None, []
        try:
            return self.matrix(exported_query(self._settings.matchers), first_s, last_s, self.step_s), []
        except SourceError as error:
            return None, [error]

    def _exported(self, kind: SubjectKind, start_s: float, end_s: float) -> list[Metric]:
        """The metrics of a kind that anybody exported in the range: one small query each."""
        found = []
        step_s = max((end_s - start_s) / 50.0, self.step_s)
        for metric in of_kind(kind):
            query = f"count({query_for(kind, metric, self._settings.matchers)})"
            try:
                counts = self.matrix(query, start_s, end_s, step_s).values
            except SourceError as error:
                self.reading.failed.append(f"how many have {metric.name}: {error}")
                found.append(metric)  # not known is not absent: it is asked for
                continue
            most = int(np.nanmax(counts)) if np.isfinite(counts).any() else 0
            self.reading.series[metric.name] = most
            if most:
                found.append(metric)
        return found

    def _steps(self, wanted: Sequence[tuple[SubjectKind, list[Metric]]]) -> int:
        known = self.reading.series
        guess = max(known.values(), default=0) or UNKNOWN_SERIES
        cells = sum(known.get(m.name, guess) for _, metrics in wanted for m in metrics)
        return max(1, min(MOST_POINTS, MOST_VALUES // max(cells, 1)))

    def _block(
        self,
        kind: SubjectKind,
        metrics: Sequence[Metric],
        first_s: float,
        last_s: float,
        indices: dict[SubjectKind, SeriesIndex],
    ) -> tuple[tuple[str, ...], Floats]:
        """([metric names], values [n_times, n_subjects, n_metrics]); adds new subjects to the kind's index."""
        index = indices.get(kind, SeriesIndex(kind, ()))
        rows, answers = dict(index.rows), []
        for metric in metrics:
            matrix = self.matrix(query_for(kind, metric, self._settings.matchers), first_s, last_s, self.step_s)
            places = []
            for labels in matrix.labels:
                try:
                    subject = subject_of(kind, tuple(labels.get(key) or "" for key in KEYS[kind]))
                    places.append(rows.setdefault(subject, len(rows)))
                except (ValueError, TypeError, AttributeError):
                    places.append(-1)
            answers.append((metric, places, matrix.values))
        if len(rows) > len(index):
            indices[kind] = SeriesIndex(kind, tuple(rows))
        indices.setdefault(kind, index)
        n_times = self._n_steps(first_s, last_s)
        values = np.full((n_times, len(rows), len(metrics)), np.nan)
        for column, (metric, places, found) in enumerate(answers):
            known = np.array(places, dtype=np.int64)
            scaled = found[:, known >= 0] * metric.scale
            with np.errstate(invalid="ignore"):
                possible = (scaled >= metric.low) & (scaled <= metric.high)
            # as in the live rows: 0 is written for what could not be read
            if metric.zero_is_missing:
                possible &= scaled != 0.0
            values[:, known[known >= 0], column] = np.where(possible, scaled, np.nan)
        return tuple(m.name for m in metrics), values

    def _frame(
        self,
        kind: SubjectKind,
        metrics: tuple[str, ...],
        values: Floats,
        indices: dict[SubjectKind, SeriesIndex],
        at_s: float,
    ) -> Frame:
        index = indices[kind]
        # a later stretch has found more subjects: the rows of this one end before theirs
        if len(values) < len(index):
            values = np.vstack([values, np.full((len(index) - len(values), len(metrics)), np.nan)])
        epoch = np.zeros(len(index), dtype=np.int64)
        return Frame(at_s, index, metrics, values, np.full((1, len(metrics)), at_s), epoch)

    def _tell_labels(self, inventory: Inventory, at_s: float) -> None:
        query = f"{IDENTITY}{{{self._settings.matchers}}}"
        try:
            vector = read_vector(self._ask(instant(self._settings.url, query, at_s, self._timeout_s)))
        except SourceError as error:
            self.reading.failed.append(f"labels at {at_s:.0f}: {error}")
            return
        self._labels.take(vector.labels)
        self._labels.tell(inventory, at_s, self._timeout_s)

    def _ask(self, request: HttpRequest) -> HttpResponse:
        failed = SourceError(Reason.UNREACHABLE, "not asked")
        for attempt in range(TRIES):
            began_s = self._timer()
            (answer,) = self._fetcher.fetch([request], self._timeout_s)
            took_s = self._timer() - began_s
            self.reading.queries += 1
            self.reading.busy_s += took_s
            rest_s = took_s * (1.0 / self._load - 1.0) * (1 if isinstance(answer, HttpResponse) else 2**attempt)
            if isinstance(answer, SourceError):
                # a refusal takes no time: resting as long as it took would ask a server in trouble without a pause
                rest_s = max(rest_s, 0.2 * 2**attempt, answer.retry_after_s or 0.0)
            self.reading.rested_s += rest_s
            self._sleep(rest_s)
            if isinstance(answer, HttpResponse):
                return answer
            failed = answer
            # the same query would be refused the same way; `matrices` asks for a shorter range instead
            if _refused(answer):
                break
            if answer.reason in (Reason.UNAUTHORISED, Reason.NOT_FOUND):
                raise Permanent(f"{self._settings.url}: {answer}")
        raise failed


def _refused(error: SourceError) -> bool:
    """The server, or our own limit, calls the answer too large: Prometheus, Thanos, Mimir and VictoriaMetrics all
    say it with a 422."""
    return error.reason is Reason.TOO_LARGE or error.detail.startswith("HTTP 422")


def _too_much(error: SourceError) -> bool:
    """Whether a shorter stretch may be answered: refused, or not ended in time (Prometheus then says 503)."""
    late = error.reason is Reason.TIMEOUT or error.detail.startswith(("HTTP 503", "HTTP 504"))
    return late or _refused(error)
