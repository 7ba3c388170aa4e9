"""Training signals that a trainer exports as Prometheus metrics: from its own page, or from a Prometheus API.

Whose they are is told by the labels `namespace` and `pod` (or `exported_…`) and `rank`, else by `jobs`. Which names
are which figure stands in `collectors.training.signal_names`. A step is told when the step's own metric has moved;
where there is none, each new sample counts as one.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from nightshift.collectors.frame import STEP_COLUMNS, Reason, SourceStatus, StepSeries
from nightshift.collectors.http import (
    CONNECTION,
    Address,
    Connection,
    Fetcher,
    HttpRequest,
    HttpResponse,
    HttpSettings,
    SourceError,
)
from nightshift.collectors.prometheus.api import VectorReader, instant
from nightshift.collectors.shared_settings import stated_once
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.telemetry.exposition import PageParser
from nightshift.collectors.telemetry.pages import ACCEPT, source_subject
from nightshift.collectors.tick import Batch
from nightshift.collectors.training.signal_names import STEP_NAMES, SignalNames
from nightshift.collectors.training.workload import WorkloadRule, pod_subject, rank_of

_STEP = re.compile(STEP_NAMES, re.IGNORECASE)
QUERY = (
    '{__name__=~"(train|training)?_?(global_|local_)?(step|iteration|loss|lm_loss|grad_norm|learning_rate|lr|step_time_seconds'
    '|iteration_time_seconds|tokens_per_second|data_time_seconds)s?(_total)?"}'
)
Sample = tuple[str, Mapping[str, str], float, float]


@dataclass
class _Subject:
    """What one rank or job said last."""

    step: int | None = None
    at_s: float = math.nan
    run: int = 0
    numbers: set[str] = field(default_factory=set)
    """The figures that have been numbers: a NaN of theirs was computed, any other's is a gauge not set yet."""

    def figures(self, samples: Mapping[str, tuple[float, float]]) -> dict[str, float]:
        stepped = {column: value for column, (value, _) in samples.items() if column in STEP_COLUMNS}
        found = {c: value for c, value in stepped.items() if c in self.numbers or not math.isnan(value)}
        self.numbers |= {column for column, value in found.items() if math.isfinite(value)}
        return found


@dataclass
class _Place:
    """A page or an API."""

    request: HttpRequest
    source: Subject
    job: Subject | None
    page: PageParser = field(default_factory=PageParser)
    vector: VectorReader = field(default_factory=VectorReader)


# Largest answer that is read.
MAX_BYTES = 16 * 2**20
# Most ranks and jobs that are followed; the rest is counted.
MAX_SUBJECTS = 8192


class TrainingMetricsCollector:
    """One step per subject and tick at most: what the gauges say now."""

    plugin: ClassVar[str] = "training_metrics"

    class Settings(BaseModel):
        """Reads the figures of training from metrics."""

        model_config = ConfigDict(extra="forbid")

        urls: list[Address] = Field(default_factory=list, description="Addresses of the trainers' own pages")
        jobs: dict[str, str] = Field(
            default_factory=dict, description="Job (namespace/name) by address, for pages without a pod label"
        )
        api: Address | None = Field(
            None, description="Base address of a Prometheus-compatible API that has the metrics"
        )
        query: str = Field(QUERY, description="Query to send to the API")
        names: SkipJsonSchema[SignalNames] = stated_once("signal_names", SignalNames)
        workload: SkipJsonSchema[WorkloadRule] = stated_once("workload", WorkloadRule)
        connection: Connection = Field(default_factory=HttpSettings, description=CONNECTION)

        @model_validator(mode="after")
        def _asks_somebody(self) -> TrainingMetricsCollector.Settings:
            if not self.urls and self.api is None:
                raise ValueError("name urls or api")
            if wrong := [job for job in self.jobs.values() if job.count("/") != 1]:
                raise ValueError(f"jobs: {wrong[0]!r} is not namespace/name")
            return self

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._column = settings.names.reader().column
        self._fetcher = Fetcher(settings.connection, max_bytes=MAX_BYTES, accept=ACCEPT, timer=clock)
        self._known: dict[Subject, _Subject] = {}
        self._places = [
            _Place(
                HttpRequest(url),
                source_subject(self.plugin, url),
                Subject(SubjectKind.JOB, settings.jobs[url]) if url in settings.jobs else None,
            )
            for url in settings.urls
        ]
        self._api = None
        if settings.api is not None:
            ask = instant(settings.api, settings.query, None, 10.0)
            self._api = _Place(ask, source_subject(self.plugin, settings.api), None)
            self._places.append(self._api)

    @property
    def name(self) -> str:
        return self.plugin

    def collect(self, now_s: float, inventory: Inventory, timeout_s: float) -> Batch:
        answers = self._fetcher.fetch([place.request for place in self._places], timeout_s)
        statuses: list[SourceStatus] = []
        steps: list[StepSeries] = []
        for place, answer in zip(self._places, answers, strict=True):
            status, found = self._take(place, answer, now_s, inventory)
            statuses.append(status)
            steps += found
        return Batch(statuses, steps=steps)

    def close(self) -> None:
        self._fetcher.close()

    def _take(
        self, place: _Place, answer: HttpResponse | SourceError, now_s: float, inventory: Inventory
    ) -> tuple[SourceStatus, list[StepSeries]]:
        rejected: dict[Reason, int] = {}
        covers = (place.job,) if place.job is not None else ()
        try:
            if isinstance(answer, SourceError):
                raise answer
            samples = list(self._samples(place, answer, now_s, rejected))
        except SourceError as error:
            return SourceStatus(place.source, now_s, False, error.reason, error.detail, covers=covers), []
        figures: dict[Subject, dict[str, tuple[float, float]]] = {}
        for name, labels, value, at_s in samples:
            column = "step" if _STEP.fullmatch(name) else self._column(name)
            if column is None:
                continue
            try:
                subject = self._subject(place, labels, inventory, now_s)
            except ValueError:
                subject = None
            if subject is None:
                _count(rejected, Reason.MALFORMED)
            elif subject in self._known or len(self._known) < MAX_SUBJECTS:
                self._known.setdefault(subject, _Subject())
                figures.setdefault(subject, {})[column] = (value, at_s)
            else:
                _count(rejected, Reason.TOO_LARGE)
        found = [s for subject, told in figures.items() if (s := self._step(subject, told, place)) is not None]
        reason = None if figures else Reason.NOT_FOUND
        detail = "" if figures else f"none of {len(samples)} samples is a figure of training that is known"
        used = sum(map(len, figures.values()))
        status = SourceStatus(
            place.source, now_s, bool(figures), reason, detail, used, rejected, answer.took_s, covers=covers
        )
        return status, found

    def _samples(
        self, place: _Place, answer: HttpResponse, now_s: float, rejected: dict[Reason, int]
    ) -> Iterator[Sample]:
        """Name, labels, value and time (Unix s). Raises SourceError where the answer is none."""
        if place is self._api:
            vector = place.vector.read(answer)
            for labels, value in zip(vector.labels, vector.values.tolist(), strict=True):
                yield labels.get("__name__", ""), labels, value, vector.at_s
            return
        body = answer.body
        if not body.endswith(b"\n"):
            body = body[: body.rfind(b"\n") + 1]
            _count(rejected, Reason.TRUNCATED)
        page = place.page.parse(body)
        for reason, count in page.rejected.items():
            _count(rejected, reason, count)
        times = np.where(np.isnan(page.times_s), now_s, page.times_s).tolist()
        for series, value, at_s in zip(page.layout.series, page.values.tolist(), times, strict=True):
            yield series.name, dict(series.labels), value, at_s

    def _subject(
        self, place: _Place, labels: Mapping[str, str], inventory: Inventory, now_s: float
    ) -> Subject | None:
        """The rank or job that a sample is of. Raises ValueError where its labels cannot be."""
        pod, namespace = labels.get("exported_pod") or labels.get("pod"), labels.get("exported_namespace")
        namespace = namespace or labels.get("namespace")
        job, rank = place.job, None
        if pod and namespace:
            holder = pod_subject(namespace, pod)
            told, rank = self._settings.workload.place(namespace, pod)
            job = inventory.above(holder, SubjectKind.JOB, now_s) or told or Subject(SubjectKind.JOB, holder.name)
        if job is None:
            return None
        number = labels.get("rank") or labels.get("global_rank") or ""
        # a label may hold anything: a rank of seven digits is no rank, and would make a subject per scrape
        if number.isdecimal() and len(number) < 7:
            rank = rank_of(job, int(number))
        if rank is not None:
            inventory.observe(rank, job, now_s)
        return rank or job

    def _step(self, subject: Subject, told: Mapping[str, tuple[float, float]], place: _Place) -> StepSeries | None:
        """The subject's new step, or None where nothing moved. A step that goes back is a new run."""
        known = self._known[subject]
        figures = known.figures(told)
        at_s = max(at for _, at in told.values())
        step = _told_step(told)
        if step is None:  # no metric of the step: a sample of another time is another step
            step = (-1 if known.step is None else known.step) + (at_s != known.at_s)
        if step == known.step or not figures:
            return None
        if known.step is not None and step < known.step:
            known.run += 1
        known.step, known.at_s = step, at_s
        columns = {c: np.array([v if math.isfinite(v) else math.inf]) for c, v in figures.items()}
        run = f"{place.source.name[-150:]}:{known.run}"
        return StepSeries(
            subject, run, np.array([step], dtype=np.int64), np.array([at_s]), columns, place.source.name
        )


def _told_step(told: Mapping[str, tuple[float, float]]) -> int | None:
    value = told.get("step", (math.nan, 0.0))[0]
    # beyond 2^53 a float no longer holds every whole number: two steps would look like one
    return int(value) if math.isfinite(value) and abs(value) < 2**53 else None


def _count(rejected: dict[Reason, int], reason: Reason, count: int = 1) -> None:
    rejected[reason] = rejected.get(reason, 0) + count
