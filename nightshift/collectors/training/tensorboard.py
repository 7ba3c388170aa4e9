"""Training signals from TensorBoard's event files, followed while a trainer writes them.

The path tells whose they are: by default the first folder is the namespace and the second the job. The trainer
writes one event per tag, so a step is told once a later step, or a look without news, shows that it is complete. A
new file in a job's folder is the job started anew. Which tags are which figure stands in
`collectors.training.signal_names`.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator

from nightshift.collectors.frame import STEP_COLUMNS, Reason, SourceStatus, StepSeries
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.telemetry.pages import source_subject
from nightshift.collectors.tick import Batch
from nightshift.collectors.training.signal_names import SignalNames
from nightshift.collectors.training.tfevents import EventFile, Scalar
from nightshift.collectors.training.workload import rank_of

PATH_PATTERN = r"(?P<namespace>[^/]+)/(?P<job>[^/]+)/(?:.*/)?events\.out\.tfevents\.[^/]+"
FUTURE_S = 300.0


@dataclass
class _Run:
    """One event file. `open` is the step whose tags may not all be there yet."""

    file: EventFile
    subject: Subject
    job: Subject
    name: str
    open_step: int | None = None
    open_at_s: float = math.nan
    open: dict[str, float] = field(default_factory=dict)


@dataclass
class _Points:
    step: list[int] = field(default_factory=list)
    t_s: list[float] = field(default_factory=list)
    figures: list[dict[str, float]] = field(default_factory=list)


# Most files that are followed, the newest: open files are limited to about so many by default.
MAX_FILES = 1024
# Most that is read of one file in one tick; the rest follows in the next.
MAX_BYTES = 2**22
# Files untouched for a day are not followed: their run has ended.
IDLE_S = 86400.0


class TensorboardCollector:
    """New training steps of every run whose event files are found."""

    plugin: ClassVar[str] = "tensorboard"

    class Settings(BaseModel):
        """Follows TensorBoard's event files."""

        model_config = ConfigDict(extra="forbid")

        directory: Path = Field(description="Folder of the runs, searched with its subfolders")
        path_pattern: str = Field(
            PATH_PATTERN,
            description="Pattern of a file's path within the folder, with the groups job and, if it tells them, "
            "namespace and rank",
        )
        namespace: str = Field("default", description="The jobs' namespace where the path does not tell it")
        names: SignalNames = Field(default_factory=SignalNames, description="Tags of your own trainer")

        @field_validator("path_pattern")
        @classmethod
        def _names_a_job(cls, text: str) -> str:
            try:
                groups = re.compile(text).groupindex
            except re.error as error:
                raise ValueError(f"path_pattern: {error}") from error
            if "job" not in groups:
                raise ValueError("path_pattern: no group named job")
            return text

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._timer = clock
        self._path = re.compile(settings.path_pattern)
        self._column = settings.names.reader().column
        self._runs: dict[Path, _Run] = {}
        self._source = source_subject(self.plugin, str(settings.directory))

    @property
    def name(self) -> str:
        return self.plugin

    def collect(self, now_s: float, inventory: Inventory, timeout_s: float) -> Batch:
        started = self._timer()
        rejected: dict[Reason, int] = {}
        try:
            self._find(inventory, now_s, rejected)
        except OSError as error:
            return Batch([self._status(now_s, started, 0, rejected, error)])
        steps: list[StepSeries] = []
        n_scalars = 0
        for path, run in list(self._runs.items()):
            if self._timer() - started > timeout_s:
                _count(rejected, Reason.TIMEOUT)
                break
            try:
                read = run.file.read()
            except FileNotFoundError:
                del self._runs[path]
                continue
            except OSError:
                _count(rejected, Reason.UNAUTHORISED)
                continue
            if read.replaced:
                run.name += "'"
                run.open_step, run.open = None, {}
            _count(rejected, Reason.MALFORMED, read.broken)
            n_scalars += len(read.scalars)
            points = self._points(run, read.scalars, now_s, rejected)
            if points.step:
                steps.append(_series(run, points, self._source.name))
        return Batch([self._status(now_s, started, n_scalars, rejected, None)], steps=steps)

    def close(self) -> None:
        self._runs.clear()

    def _status(
        self, now_s: float, started: float, samples: int, rejected: dict[Reason, int], error: OSError | None
    ) -> SourceStatus:
        reason, detail = None, ""
        if error is not None:
            missing = isinstance(error, FileNotFoundError | NotADirectoryError)
            reason = Reason.NOT_FOUND if missing else Reason.UNAUTHORISED
            detail = f"{self._settings.directory}: {error.strerror}"
        took_s, jobs = self._timer() - started, tuple(sorted({run.job for run in self._runs.values()}))
        return SourceStatus(
            self._source, now_s, error is None, reason, detail, samples, rejected, took_s, covers=jobs
        )

    def _find(self, inventory: Inventory, now_s: float, rejected: dict[Reason, int]) -> None:
        """Takes up new files, newest first. Raises OSError where the folder cannot be read."""
        root, newest = self._settings.directory, time.time() - IDLE_S
        next(root.iterdir(), None)
        found: list[tuple[float, Path, re.Match[str]]] = []
        for path in root.rglob("*tfevents*"):
            if path in self._runs:
                continue
            match = self._path.fullmatch(path.relative_to(root).as_posix())
            try:
                changed_s = path.stat().st_mtime
            except OSError:
                continue  # removed since it was listed
            if match is not None and changed_s >= newest:
                found.append((changed_s, path, match))
        found.sort(key=lambda entry: entry[0], reverse=True)
        room = MAX_FILES - len(self._runs)
        _count(rejected, Reason.TOO_LARGE, max(0, len(found) - room))
        for _, path, match in found[:room]:
            try:
                run = self._run(path, match)
            except ValueError:
                _count(rejected, Reason.MALFORMED)
                continue
            self._runs[path] = run
            if run.subject != run.job:
                inventory.observe(run.subject, run.job, now_s)

    def _run(self, path: Path, match: re.Match[str]) -> _Run:
        groups = match.groupdict()
        namespace, name = groups.get("namespace") or self._settings.namespace, groups["job"]
        if not (namespace.isprintable() and name.isprintable()):
            raise ValueError("a path with control characters")
        job = Subject(SubjectKind.JOB, f"{namespace}/{name}")
        rank = groups.get("rank") or ""
        subject = rank_of(job, int(rank)) if rank.isdecimal() and len(rank) < 7 else job
        return _Run(EventFile(path, MAX_BYTES), subject, job, path.name[-200:])

    def _points(self, run: _Run, scalars: list[Scalar], now_s: float, rejected: dict[Reason, int]) -> _Points:
        points = _Points()
        for scalar in scalars:
            column = self._column(scalar.tag)
            if column is None:
                continue
            t_s = scalar.t_s
            if not 0 < t_s <= now_s + FUTURE_S:  # NaN too
                _count(rejected, Reason.CLOCK)
                t_s = now_s
            if scalar.step != run.open_step:
                _close(run, points)
                run.open_step = scalar.step
            run.open_at_s = t_s
            run.open[column] = scalar.value if math.isfinite(scalar.value) else math.inf
        if not scalars:
            _close(run, points)
        return points


def _close(run: _Run, points: _Points) -> None:
    """Tells the step whose tags are complete."""
    if run.open_step is not None and run.open:
        points.step.append(run.open_step)
        points.t_s.append(run.open_at_s)
        points.figures.append(run.open)
    run.open_step, run.open = None, {}


def _series(run: _Run, points: _Points, source: str) -> StepSeries:
    names = [name for name in STEP_COLUMNS if any(name in figures for figures in points.figures)]
    return StepSeries(
        run.subject,
        run.name,
        np.array(points.step, dtype=np.int64),
        np.array(points.t_s),
        {name: np.array([figures.get(name, np.nan) for figures in points.figures]) for name in names},
        source,
    )


def _count(rejected: dict[Reason, int], reason: Reason, count: int = 1) -> None:
    if count:
        rejected[reason] = rejected.get(reason, 0) + count
