"""Profiler traces as a source: new torch.profiler (Kineto) files of a folder become steps with their times.

A trace says what no log line does: how much of each step the GPU computed, waited for others, or stood idle. Large
files are read a piece at a time over several ticks, so that a look at the fleet is never late because of one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic.json_schema import SkipJsonSchema

from nightshift.collectors.frame import Instant, LogRecord, Reason, SourceStatus, StepSeries
from nightshift.collectors.shared_settings import stated_once
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.telemetry.pages import source_subject
from nightshift.collectors.tick import Batch
from nightshift.collectors.training.kineto_reader import TraceReader
from nightshift.collectors.training.kineto_steps import StepTimes, activities_of, step_times
from nightshift.collectors.training.kineto_trace import Trace, TraceError
from nightshift.collectors.training.workload import WorkloadRule, rank_of

FILE_PATTERN = (
    r"(?:(?P<namespace>[^/]+)/)?(?:[^/]+/)*?(?P<pod>[A-Za-z0-9.-]+?)(?:_\d+)?(?:\.\d+)*(?:\.pt)?(?:\.trace)?"
    r"\.json(?:\.gz)?"
)
"""`NAMESPACE/…/POD_PID.TIME.pt.trace.json.gz`, as torch.profiler.tensorboard_trace_handler names its files."""
SUFFIXES = (".json", ".json.gz")


@dataclass
class _Reading:
    path: Path
    mark: tuple[int, int]
    reader: TraceReader
    steps: Iterator[int]


@dataclass
class _Seen:
    """What is known of a folder: the (size, mtime) at which each file was read, and at which it was last found."""

    done: dict[Path, tuple[int, int]] = field(default_factory=dict)
    found: dict[Path, tuple[tuple[int, int], float]] = field(default_factory=dict)


# Largest trace that is read, decompressed: a few steps of a large job.
MAX_BYTES = 4 << 30
# Older traces are skipped: they are of another run.
MAX_AGE_S = 3600.0
# A file that still changes is left for this long: profilers write a trace in one go.
SETTLE_S = 5.0


class KinetoCollector:
    """Step times out of profiler traces, one file after the other.

    >>> import json, os, tempfile
    >>> step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#7", "tid": 1, "ts": 0, "dur": 1000}
    >>> step["pid"] = 1
    >>> gemm = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 100, "dur": 600}
    >>> gemm["args"] = {"stream": 7}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     trace = Path(folder, "llm-0.json")
    ...     _ = trace.write_text(json.dumps({"traceEvents": [step, gemm]}))
    ...     collector = KinetoCollector(KinetoCollector.Settings(path=trace), wall=lambda: time.time() + 60.0)
    ...     batch = collector.collect(time.time(), Inventory(), timeout_s=60.0)
    >>> batch.logs[0].text.partition(": ")[2]
    '1 steps of 1.0 ms on GPU: computes 60%, waits for communication 0%, copies 0%, idle 40%'
    """

    plugin: ClassVar[str] = "kineto"

    class Settings(BaseModel):
        """Reads torch.profiler traces."""

        model_config = ConfigDict(extra="forbid")

        path: Path = Field(description="A trace (.json or .json.gz), or a folder of traces with its subfolders")
        file_pattern: str = Field(
            FILE_PATTERN,
            description="Pattern of a file's path within the folder; groups pod and (optional) namespace",
        )
        namespace: SkipJsonSchema[str] = stated_once("workload.namespace", lambda: "default")
        workload: SkipJsonSchema[WorkloadRule] = stated_once("workload", WorkloadRule)

        @field_validator("file_pattern")
        @classmethod
        def _names_the_pod(cls, text: str) -> str:
            try:
                groups = re.compile(text).groupindex
            except re.error as error:
                raise ValueError(f"file_pattern: {error}") from error
            if "pod" not in groups:
                raise ValueError("file_pattern: no group named pod")
            return text

    def __init__(
        self,
        settings: Settings,
        *,
        timer: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._timer = timer
        self._wall = wall
        self._pattern = re.compile(settings.file_pattern)
        self._source = source_subject(self.plugin, str(settings.path))
        self._seen = _Seen()
        self._reading: _Reading | None = None

    @property
    def name(self) -> str:
        return self.plugin

    def collect(self, now_s: float, inventory: Inventory, timeout_s: float) -> Batch:
        started = self._timer()
        deadline = started + 0.8 * timeout_s
        rejected: dict[Reason, int] = {}
        steps: list[StepSeries] = []
        logs: list[LogRecord] = []
        told, reason = "", None
        try:
            waiting = self._waiting()
            while self._timer() < deadline:
                if self._reading is None:
                    if not waiting:
                        break
                    path, mark = waiting.pop(0)
                    reader = TraceReader(path, MAX_BYTES)
                    self._reading = _Reading(path, mark, reader, reader.steps())
                reading = self._reading
                try:
                    if next(reading.steps, None) is not None:
                        continue
                    self._finish(reading, now_s, inventory, steps, logs, rejected)
                except TraceError as error:
                    told, reason = str(error), error.reason
                    rejected[error.reason] = rejected.get(error.reason, 0) + 1
                self._seen.done[reading.path] = reading.mark
                self._reading = None
        except OSError as error:
            self._reading = None
            absent = isinstance(error, FileNotFoundError | NotADirectoryError)
            told = f"{error.filename or self._settings.path}: {error.strerror}"
            reason = Reason.NOT_FOUND if absent else Reason.UNAUTHORISED
        status = SourceStatus(
            self._source,
            now_s,
            reason is None or bool(steps),
            None if steps else reason,
            told[:500],
            samples=sum(len(series.step) for series in steps),
            rejected=rejected,
            took_s=self._timer() - started,
        )
        return Batch([status], steps=steps, logs=logs)

    def close(self) -> None:
        self._reading = None

    def _waiting(self) -> list[tuple[Path, tuple[int, int]]]:
        """Whole, new files, oldest first. Raises OSError where the path cannot be read."""
        now = self._wall()
        found: list[tuple[float, Path, tuple[int, int]]] = []
        seen: dict[Path, tuple[tuple[int, int], float]] = {}
        for path in _traces(self._settings.path):
            try:
                status = path.stat()
            except OSError:
                continue  # removed since it was listed
            mark = (status.st_size, status.st_mtime_ns)
            known = self._seen.found.get(path)
            # a file system may not keep times (NFS, an object store's mount): that size and time stand still is
            # seen here, too
            since = known[1] if known is not None and known[0] == mark else now
            seen[path] = (mark, since)
            settled = now - min(since, status.st_mtime) >= SETTLE_S
            taken = self._reading is not None and self._reading.path == path
            fresh = now - status.st_mtime <= MAX_AGE_S
            if settled and fresh and not taken and self._seen.done.get(path) != mark:
                found.append((status.st_mtime, path, mark))
        self._seen.found = seen
        self._seen.done = {path: mark for path, mark in self._seen.done.items() if path in seen}
        return [(path, mark) for _, path, mark in sorted(found)]

    def _finish(
        self,
        reading: _Reading,
        now_s: float,
        inventory: Inventory,
        steps: list[StepSeries],
        logs: list[LogRecord],
        rejected: dict[Reason, int],
    ) -> None:
        trace = reading.reader.trace()
        for why, count in trace.rejected.items():
            rejected[why] = rejected.get(why, 0) + count
        subject = self._subject(reading.path, trace, inventory, now_s)
        times = step_times(trace, activities_of(trace))
        at_s = times.begin_ns * 1e-9 + trace.base_ns * 1e-9 + times.length_s
        if not trace.base_ns:
            at_s = np.full(len(times.number), now_s)
        columns = {
            "step_time_s": times.length_s,
            "compute_s": times.compute_s,
            "comm_s": times.communication_s,
        }
        run = f"trace {reading.path.name}"[:200]
        steps.append(StepSeries(subject, run, times.number, np.minimum(at_s, now_s), columns, self._source.name))
        text = f"profiler trace {reading.path}: {summary(trace, times)}"
        logs.append(LogRecord(Instant(now_s), self._source.name, subject, text[:2048], 0))

    def _subject(self, path: Path, trace: Trace, inventory: Inventory, now_s: float) -> Subject:
        """The rank, or the job: by the path, and by what the job's process group said of itself."""
        root = self._settings.path
        relative = path.relative_to(root).as_posix() if path != root else path.name
        match = self._pattern.fullmatch(relative)
        groups = match.groupdict() if match else {}
        namespace = groups.get("namespace") or self._settings.namespace
        pod = groups.get("pod") or path.name.split(".")[0][:200] or "trace"
        job, rank = self._settings.workload.place(namespace, pod)
        job = job or Subject(SubjectKind.JOB, f"{namespace}/{pod}"[:500])
        told = trace.distributed.get("rank")
        if isinstance(told, int) and not isinstance(told, bool) and 0 <= told < 1 << 24:
            rank = rank_of(job, told)
        if rank is not None:
            inventory.observe(rank, job, now_s)
        return rank or job


def _traces(root: Path) -> list[Path]:
    """Raises OSError where the path cannot be read: `rglob` alone passes over a folder that it may not list."""
    if not root.is_dir():
        root.stat()
        return [root]
    next(root.iterdir(), None)
    return [path for path in root.rglob("*") if path.name.endswith(SUFFIXES)]


def summary(trace: Trace, times: StepTimes) -> str:
    """One sentence on where the time of a trace's steps went."""
    total = float(times.length_s.sum())
    if not total > 0:
        return "no step with a length"
    compute, communication, copies = (
        float(part.sum()) / total for part in (times.compute_s, times.communication_s, times.copy_s)
    )
    idle = max(0.0, 1.0 - compute - communication - copies)
    gpu = trace.devices[0].get("name", "GPU") if trace.devices else "GPU"
    return (
        f"{len(times.number)} steps of {total / len(times.number) * 1e3:.1f} ms on {gpu}: computes {compute:.0%}, "
        f"waits for communication {communication:.0%}, copies {copies:.0%}, idle {idle:.0%}"
    )
