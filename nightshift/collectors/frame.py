"""What one tick of telemetry looks like to everything above: columns, step series, log lines and sources' health.

Values are columnar because detectors work on whole columns with NumPy, never series by series. NaN means missing:
never zero, never healthy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nightshift.collectors.subject import Subject, SubjectKind

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Order(StrEnum):
    BEFORE = "before"
    CONCURRENT = "concurrent"
    AFTER = "after"


@dataclass(frozen=True, slots=True)
class Instant:
    """A time on some node's clock: Unix seconds, its uncertainty (half width, s) and whose clock it is."""

    t_s: float
    uncertainty_s: float = 0.0
    clock: str = ""

    def order(self, other: Instant) -> Order:
        """Before or after only where the intervals do not touch; one clock needs no margin against itself.

        >>> Instant(10.0, 0.5, "n1").order(Instant(10.8, 0.5, "n2")).value  # the intervals touch
        'concurrent'
        >>> Instant(10.0, 0.5, "n1").order(Instant(10.8, 0.5, "n1")).value  # one clock
        'before'
        """
        margin = 0.0 if self.clock == other.clock else self.uncertainty_s + other.uncertainty_s
        if self.t_s + margin < other.t_s:
            return Order.BEFORE
        if other.t_s + margin < self.t_s:
            return Order.AFTER
        return Order.CONCURRENT


@dataclass(frozen=True, eq=False)
class SeriesIndex:
    """The subjects of a frame's rows, in order. Kept and shared from tick to tick while membership is unchanged,
    so that `frame.index is previous.index` tells a detector that its rows have not moved."""

    kind: SubjectKind
    subjects: tuple[Subject, ...]

    @cached_property
    def rows(self) -> Mapping[Subject, int]:
        return {subject: row for row, subject in enumerate(self.subjects)}

    def __len__(self) -> int:
        return len(self.subjects)


@dataclass(frozen=True, eq=False)
class Frame:
    """One tick of one kind of subject.

    values: [n_series, n_metrics], NaN = missing; metric names and units as in `collectors.telemetry.metrics`.
    observed_at_s: broadcastable to `values` (Unix s): [1, n_metrics] by column or [n_series, 1] by scraped page.
    epoch: [n_series]; it changes where the subject's counters started anew (reboot, driver reload, swapped GPU).

    >>> gpu = Subject(SubjectKind.GPU, "GPU-0")
    >>> index = SeriesIndex(SubjectKind.GPU, (gpu,))
    >>> frame = Frame(0.0, index, ("gpu_power_w",), np.array([[655.0]]), np.zeros((1, 1)), np.zeros(1, np.int64))
    >>> frame.value(gpu, "gpu_power_w"), frame.value(gpu, "gpu_temperature_c")
    (655.0, nan)
    """

    at_s: float
    index: SeriesIndex
    metrics: tuple[str, ...]
    values: Floats
    observed_at_s: Floats
    epoch: Ints

    def __post_init__(self) -> None:
        expected = (len(self.index), len(self.metrics))
        if self.values.shape != expected:
            raise ValueError(f"frame of {self.index.kind}: values {self.values.shape}, expected {expected}")
        if self.epoch.shape != expected[:1]:
            raise ValueError(f"frame of {self.index.kind}: epoch {self.epoch.shape}, expected {expected[:1]}")
        np.broadcast_shapes(self.observed_at_s.shape, expected)

    @property
    def kind(self) -> SubjectKind:
        return self.index.kind

    @cached_property
    def columns(self) -> Mapping[str, int]:
        return {name: column for column, name in enumerate(self.metrics)}

    def column(self, metric: str) -> Floats:
        """[n_series]; all NaN where the metric was not collected."""
        position = self.columns.get(metric)
        if position is None:
            return np.full(len(self.index), np.nan)
        column: Floats = self.values[:, position]
        return column

    def times_s(self, metric: str) -> Floats:
        """[n_series] observation times of a metric's column (Unix s); NaN where it was not collected."""
        position = self.columns.get(metric)
        if position is None:
            return np.full(len(self.index), np.nan)
        return np.broadcast_to(self.observed_at_s, self.values.shape)[:, position]

    def observed(self) -> list[Subject]:
        """The subjects of which any value was read: a row outlives its device as NaN."""
        return [self.index.subjects[row] for row in np.flatnonzero(np.isfinite(self.values).any(axis=1)).tolist()]

    def value(self, subject: Subject, metric: str) -> float:
        row = self.index.rows.get(subject)
        return math.nan if row is None else float(self.column(metric)[row])


STEP_COLUMNS = (
    "loss",
    "grad_norm",
    "local_grad_norm",
    "learning_rate",
    "step_time_s",
    "tokens_per_s",
    "compute_s",
    "data_s",
    "comm_s",
    "checkpoint_saved",
)


@dataclass(frozen=True, eq=False)
class StepSeries:
    """New training steps of one rank (or of a job, where its log does not say the rank), in log order.

    step: [n] (a rewind is a step that goes back); t_s: [n] Unix s; columns: name of `STEP_COLUMNS` → [n], NaN = not
    printed. `run` changes when the process started anew.
    """

    subject: Subject
    run: str
    step: Ints
    t_s: Floats
    columns: Mapping[str, Floats]
    source: str

    def column(self, name: str) -> Floats:
        found = self.columns.get(name)
        return np.full(len(self.step), np.nan) if found is None else found


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One line as it stood in its source. `offset` is the byte or sequence position, to cite and to resume from.
    `at` is when it was written: on our clock, once the merge knows how far the node's own is off."""

    at: Instant
    source: str
    subject: Subject
    text: str
    offset: int


class Reason(StrEnum):
    """Why a source has no data: the closed set that metrics and messages use."""

    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    UNAUTHORISED = "unauthorised"
    HTTP_STATUS = "http_status"
    LIMITED = "limited"
    """The server asked to be asked less often."""
    MALFORMED = "malformed"
    TOO_LARGE = "too_large"
    TRUNCATED = "truncated"
    STALE = "stale"
    CLOCK = "clock"
    DUPLICATE = "duplicate_series"
    NOT_FOUND = "not_found"
    UNSUPPORTED = "unsupported"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """How one source answered this tick. `rejected` counts samples or lines refused with a reason while the rest
    of the answer was used."""

    source: Subject
    at_s: float
    ok: bool
    reason: Reason | None = None
    detail: str = ""
    samples: int = 0
    rejected: Mapping[Reason, int] = field(default_factory=dict)
    took_s: float = 0.0
    covers: tuple[Subject, ...] = ()
    """The node or job whose signals are missing while this source is."""
    partly: str = ""
    """What the source leaves out of its answers, in words, although it answers."""
