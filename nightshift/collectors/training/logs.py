"""Training signals without code changes: follows the trainers' log files and reads their steps.

The file's path tells namespace, pod and container; the pod's name tells job and rank
(`collectors.training.workload`), unless the line itself says `rank=`. What a step line may look like stands in
`collectors.training.line`.
"""

from __future__ import annotations

import math
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic.json_schema import SkipJsonSchema

from nightshift.collectors.frame import STEP_COLUMNS, Instant, LogRecord, Reason, SourceStatus, StepSeries
from nightshift.collectors.local_time import zone_of
from nightshift.collectors.shared_settings import stated_once
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tail import FileTail
from nightshift.collectors.telemetry.pages import source_subject
from nightshift.collectors.tick import Batch
from nightshift.collectors.training.hang_dumps import FILE_PATTERN, DumpError, as_line
from nightshift.collectors.training.hang_dumps import MAX_BYTES as MAX_DUMP_BYTES
from nightshift.collectors.training.line import (
    CRI,
    LinePattern,
    NcclLine,
    TrainerLine,
    read_line,
    read_nccl_line,
    read_nccl_version,
)
from nightshift.collectors.training.workload import WorkloadRule, container_subject, pod_subject, rank_of

FILE_PATTERNS = (
    r"(?P<namespace>[^_/]+)_(?P<pod>[^_/]+)_[0-9a-f-]{32,36}/(?P<container>[^/]+)/\d+\.log",
    r"(?P<pod>[^_/]+)_(?P<namespace>[^_/]+)_(?P<container>.+)-[0-9a-f]{64}\.log",
    r"(?P<namespace>[^_/]+)_(?P<pod>[^_/]+)_(?P<container>[^_/]+)\.log",
)
"""The kubelet's /var/log/pods and /var/log/containers, and `<namespace>_<pod>_<container>.log`."""
DUMP_GLOBS = ("*_nccl_trace_rank*", "*_pyspy_rank*", "*_nccl_ras*")
# A dump that changed so lately may still be written; folders are searched for new ones so often.
DUMP_WRITTEN_S, DUMPS_EVERY_S = 5.0, 30.0
FUTURE_S = 300.0
MAX_TEXT = 2048
_NOTABLE = re.compile(
    r"Traceback|[Ee]rror|ERROR|FATAL|Exception|NCCL|[Ww]atchdog|[Oo]ut of memory|CUDA|Killed"
    r"|SIG(?:KILL|TERM|SEGV|ABRT)"
    r"|[Cc]heckpoint|nightshift kernels:"
    # how launchers, schedulers and servers say that a process ended
    r"|exitcode|Root Cause|terminate called|core dumped|DUE TO|[Ee]ngine (?:dead|core)|No space left|quota exceeded"
    r"|\bOOM\b|oom[-_]kill|Out Of Memory|RESOURCE_EXHAUSTED|bad_alloc|Received sigquit|actor is dead"
    r"|Loss (?:is|became) |\[c10d\]"
    r"|return code|exit (?:code|status)|exited on signal|non-zero|MPI_ABORT|BAD TERMINATION|panicked at|^panic: "
    r"|command not found|Shard|failed to (?:load|start)|TRT-LLM|UCX |raylet|startup failed|double free|smashing"
    r"|\bexc\.[A-Z]|TimeoutExpired|[Ss]egmentation fault|\bAborted\b|Caught signal"
    r"|Terminating process|Check failure|already in use|memory limit|NVML|incarnation|[Nn]on-?finite loss"
    r"|[Ff]ailed to modify|lack of heartbeats|timed-out|missing ranks|dump signal due"
    # ROCm, the C library, MPI and the shell
    r"|Memory access fault|HSA_|malloc|munmap_chunk|corrupted |free\(\): |NVIDIA driver|device handle|ORTE |PRTE "
    r"|ssh: |hit an exception|terminating server|already dead|[Tt]hread creation|pthread_create|invalid load key"
    r"|[a-z]\.exceptions\.|Process received signal|died |Job step aborted|not enough memory|Not enough memory"
)
_DIGITS = dict.fromkeys(map(ord, "0123456789"))
_CACHED_CHARACTERS = 512


@lru_cache(maxsize=4096)
def _is_notable_shape(shape: str) -> bool:
    return _NOTABLE.search(shape) is not None or "[cd]" in shape


def is_notable(text: str) -> bool:
    """Whether a line is worth a quote. Most lines of a log differ by their digits alone, so what is left without
    them is searched once. Digits stand in no alternative but `[c10d]`, so no notable line is missed.

    >>> is_notable("step=7 loss=2.5"), is_notable("[c10d] rank 3"), is_notable("2 OOM"), is_notable("OOM2")
    (False, True, True, False)
    """
    if len(text) <= _CACHED_CHARACTERS and not _is_notable_shape(text.translate(_DIGITS)):
        return False
    return _NOTABLE.search(text) is not None


_RANK_PREFIX = re.compile(r"^(?:\[[^\]]{1,40}\]:? ?)+")
# A log of so many lines without one figure is in a format that nobody here reads.
UNREAD_LINES = 100
# A log that is followed from its beginning may print that much before its first step: so long is waited for one.
UNREAD_S = 600.0
_WELL_ABOVE_ZERO, _ENOUGH_LOSSES, _BAD_NORMS = 0.05, 10, 5


@dataclass
class _Points:
    """New steps of one subject in one run."""

    step: list[int] = field(default_factory=list)
    t_s: list[float] = field(default_factory=list)
    figures: list[dict[str, float]] = field(default_factory=list)


@dataclass
class _File:
    tail: FileTail
    source: str
    pod: Subject
    job: Subject
    rank: Subject | None
    container: Subject | None
    runs: int = 0
    last_step: dict[Subject, int] = field(default_factory=dict)
    highest: dict[Subject, int] = field(default_factory=dict)
    """The furthest step of each subject in this run."""
    begins: bool = False
    """A line said that a process starts, or the file is another; whether it trains anew, its first step tells: an
    evaluation loads checkpoints, and logs are rotated."""
    loss_step: dict[Subject, int] = field(default_factory=dict)
    """The step of each subject's last loss."""
    zone_s: float = 0.0
    """What to add to a time that names no zone and is not in UTC."""
    epoch: int = 0
    of: int = 0
    """The epoch within which Keras' bars count, and how many steps it has; 0: not known yet."""
    by_epoch: bool = False
    """Its steps are epochs: no line has counted anything else."""
    rest: bytes = b""
    """What was told of a bar's state that the container runtime cut in two."""
    in_traceback: bool = False
    """The lines of a Python traceback go on, up to the exception's own line."""
    unread: int = 0
    """Lines since the last one that told a figure, or since the beginning."""
    unread_from_s: float = math.nan
    """When the last figure was read, or the file was found; a file that was full of lines then counts as old."""
    block: TrainerLine | None = None
    """A line that told its step and time alone: its figures follow in lines of their own."""
    recent: dict[Subject, deque[float]] = field(default_factory=dict)
    zeros: dict[Subject, int] = field(default_factory=dict)
    """Of each subject the last losses that were not 0, and how many of exactly 0 came in a row since."""
    bad_norms: dict[Subject, int] = field(default_factory=dict)
    """How many gradient norms in a row were no numbers."""

    def keeps(self, text: str) -> bool:
        """Whether a line belongs to a traceback: its frames, and the exception after them, whatever its name is."""
        said = _RANK_PREFIX.sub("", text)
        if said.startswith("Traceback (most recent call last)"):
            self.in_traceback = True
            return True
        kept = self.in_traceback and bool(said.strip())
        self.in_traceback = self.in_traceback and said.startswith((" ", "\t"))
        return kept

    def unfiltered(self, subject: Subject, figures: Mapping[str, float]) -> Mapping[str, float]:
        """The figures; as infinite what was printed otherwise: a loss that HF Trainer printed as 0.0 instead of
        NaN (its logging_nan_inf_filter: no loss falls from well above to exactly 0, and stays there, by training),
        and the loss of steps with gradients that are no numbers."""
        loss = figures.get("loss")
        if "grad_norm" in figures:
            is_bad = not math.isfinite(figures["grad_norm"])
            self.bad_norms[subject] = self.bad_norms.get(subject, 0) + 1 if is_bad else 0
        if loss is None:
            return figures
        # mixed precision skips a step of infinite gradients and halves its scale; of five in a row, printed after a
        # sound run, none trains
        if self.bad_norms.get(subject, 0) >= _BAD_NORMS and len(self.recent.get(subject, ())) == _ENOUGH_LOSSES:
            return {**figures, "loss": math.inf}
        recent = self.recent.setdefault(subject, deque(maxlen=_ENOUGH_LOSSES))
        if loss != 0.0:
            recent.append(loss)
            self.zeros[subject] = 0
            return figures
        self.zeros[subject] = self.zeros.get(subject, 0) + 1
        # a loss that was on its way to 0 (overfitting, GRPO) may arrive there
        steady = len(recent) == _ENOUGH_LOSSES and min(recent) >= max(_WELL_ABOVE_ZERO, max(recent) / 3)
        return {**figures, "loss": math.inf} if steady and self.zeros[subject] > 1 else figures

    def over_epochs(self, line: TrainerLine) -> TrainerLine | None:
        """The line with a step that goes on over epochs; None where its bar is an evaluation's."""
        if line.by_epoch and self.last_step and not self.by_epoch:
            return None  # the summary of an epoch whose steps were told
        if line.step is not None:
            self.begins |= self.by_epoch and not line.by_epoch
            self.by_epoch = line.by_epoch
        if line.epoch is not None:
            self.epoch, self.of = line.epoch, self.of if line.epoch else 0
        if line.of is None or line.step is None:
            return line
        self.of = self.of or line.of
        if line.of not in (0, self.of):
            return None
        return replace(line, step=self.epoch * self.of + line.step)

    def step_of(self, subject: Subject, line: TrainerLine) -> tuple[int, bool]:
        """The step of a line, and whether it was counted: where losses follow each other and no step is told, as by
        HF Trainer without its bar, each is one."""
        told = self.last_step.get(subject, 0) if line.step is None else line.step
        is_counted = line.step is None and "loss" in line.figures and self.loss_step.get(subject) == told
        step = told + is_counted
        self.last_step[subject] = step
        if "loss" in line.figures:
            self.loss_step[subject] = step
        return step, is_counted

    def keep_zone(self, lines: Sequence[TrainerLine | None], changed_s: float, now_s: float) -> None:
        """Lines that were just written tell how far their clock is from UTC."""
        t_s = next((line.t_s for line in reversed(lines) if line is not None and not line.zoned), None)
        zone_s = None if t_s is None else zone_of(t_s, changed_s, now_s)
        self.zone_s = self.zone_s if zone_s is None else zone_s


# Most files that are followed, the newest.
MAX_FILES = 4096
# Most that is read of one file in one tick; the rest follows in the next.
MAX_BYTES = 2**22
# Most quotable lines that are kept of one file in one tick: a trace-back of every rank fits.
MAX_LINES = 200
# Files untouched for a day are not followed: their run has ended.
IDLE_S = 86400.0


class TrainingLogsCollector:
    r"""New training steps per rank (or job), and the lines worth quoting.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "ml_llm-0_main.log").write_text("step=1 loss=4.0\nstep=2 loss=3.5\n")
    ...     collector = TrainingLogsCollector(TrainingLogsCollector.Settings(directory=folder))
    ...     batch = collector.collect(time.time(), Inventory(), timeout_s=60.0)
    >>> [(str(s.subject), s.step.tolist(), s.column("loss").tolist()) for s in batch.steps]
    [('rank:ml/llm#0', [1, 2], [4.0, 3.5])]
    """

    plugin: ClassVar[str] = "training_logs"

    class Settings(BaseModel):
        """Follows the log files of training pods."""

        model_config = ConfigDict(extra="forbid")

        directory: Path = Field(description="Folder of the log files, searched with its subfolders")
        file_patterns: list[str] = Field(
            list(FILE_PATTERNS),
            min_length=1,
            description="Patterns of a file's path within the folder, with the groups namespace, pod and container",
        )
        line_patterns: list[str] = Field(
            default_factory=list,
            description="Patterns of step lines in a format of your own, tried first; named groups: step, loss, "
            "grad_norm, local_grad_norm, learning_rate, step_time_s, step_time_ms, tokens_per_s, rank, t_s, "
            "checkpoint_saved",
        )
        workload: SkipJsonSchema[WorkloadRule] = stated_once("workload", WorkloadRule)

        @field_validator("file_patterns")
        @classmethod
        def _name_pods(cls, patterns: list[str]) -> list[str]:
            for text in patterns:
                try:
                    groups = set(re.compile(text).groupindex)
                except re.error as error:
                    raise ValueError(f"file_patterns: {text!r}: {error}") from error
                if missing := {"namespace", "pod"} - groups:
                    raise ValueError(f"file_patterns: {text!r} lacks the groups {sorted(missing)}")
            return patterns

        @field_validator("line_patterns")
        @classmethod
        def _are_patterns(cls, patterns: list[str]) -> list[str]:
            for text in patterns:
                LinePattern.parse(text)
            return patterns

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._timer = clock
        self._paths = [re.compile(text) for text in settings.file_patterns]
        self._lines = [LinePattern.parse(text) for text in settings.line_patterns]
        self._raw: list[LogRecord] = []
        """Every line of this look."""
        self._files: dict[Path, _File] = {}
        self._dumps: dict[Path, float] = {}
        """Dumps of hangs that were read, and when they had changed."""
        self._dumps_read_s = -math.inf
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
        points: dict[tuple[Subject, str], _Points] = {}
        logs: list[LogRecord] = []
        self._raw = []
        n_lines = 0
        for path, file in list(self._files.items()):
            if self._timer() - started > timeout_s:
                rejected[Reason.TIMEOUT] = rejected.get(Reason.TIMEOUT, 0) + 1
                break
            try:
                n_lines += self._follow(file, now_s, points, logs, rejected, inventory)
            except FileNotFoundError:
                del self._files[path]  # its pod is gone
            except OSError:
                rejected[Reason.UNAUTHORISED] = rejected.get(Reason.UNAUTHORISED, 0) + 1
        steps = [_series(subject, run, found, self._source.name) for (subject, run), found in points.items()]
        self._read_dumps(now_s, rejected, inventory)
        status = self._status(now_s, started, n_lines, rejected, None)
        return Batch([status], steps=steps, logs=logs, raw=self._raw)

    def close(self) -> None:
        self._files.clear()

    def _status(
        self, now_s: float, started: float, n_lines: int, rejected: dict[Reason, int], error: OSError | None
    ) -> SourceStatus:
        reason = None
        if error is not None:
            missing = isinstance(error, FileNotFoundError | NotADirectoryError)
            reason = Reason.NOT_FOUND if missing else Reason.UNAUTHORISED
        covers = tuple(sorted({file.job for file in self._files.values()}))
        detail = "" if error is None else f"{self._settings.directory}: {error.strerror}"
        if error is None and (unread := self._unread(now_s)):
            # silence of a log that nobody can read is not a job that makes no steps
            reason, detail = Reason.MALFORMED, f"no figure of training in {unread}: see line_patterns"
        return SourceStatus(
            self._source,
            now_s,
            reason is None,
            reason,
            detail,
            samples=n_lines,
            rejected=rejected,
            took_s=self._timer() - started,
            covers=covers,
        )

    def _unread(self, now_s: float) -> str:
        """Which files have many lines and not one figure; empty where any file has some: a job's other ranks, or
        its launcher, print none."""
        told = [file for file in self._files.values() if file.highest or file.last_step]
        silent = [
            path
            for path, file in self._files.items()
            if file.unread >= UNREAD_LINES and now_s - file.unread_from_s >= UNREAD_S
        ]
        if told or not silent:
            return ""
        return f"{len(silent)} of {len(self._files)} logs ({', '.join(sorted(path.name for path in silent)[:3])})"

    def _find(self, inventory: Inventory, now_s: float, rejected: dict[Reason, int]) -> None:
        """Takes up new files. Raises OSError where the folder cannot be read."""
        root = self._settings.directory
        next(root.iterdir(), None)
        # by this machine's clock, not the look's: files have the times of this machine, a replay has others
        newest = time.time() - IDLE_S
        found: list[tuple[float, Path, re.Match[str]]] = []
        for path in root.rglob("*.log"):
            if path in self._files:
                continue
            relative = path.relative_to(root).as_posix()
            match = next((m for p in self._paths if (m := p.fullmatch(relative)) is not None), None)
            try:
                changed_s = path.stat().st_mtime
            except OSError:
                continue  # removed since it was listed
            if match is not None and changed_s >= newest:
                found.append((changed_s, path, match))
        # newest first: where there are too many, runs that have ended are the ones left out
        found.sort(key=lambda entry: entry[0], reverse=True)
        room = MAX_FILES - len(self._files)
        if len(found) > room:
            rejected[Reason.TOO_LARGE] = len(found) - room
        for _, path, match in found[:room]:
            try:
                self._files[path] = self._file(path, match)
            except ValueError:
                rejected[Reason.MALFORMED] = rejected.get(Reason.MALFORMED, 0) + 1
                continue
            _observe(self._files[path], inventory, now_s)

    def _read_dumps(self, now_s: float, rejected: dict[Reason, int], inventory: Inventory) -> None:
        """Adds what hanging ranks dumped beside their logs, once it has stopped changing."""
        if 0 <= now_s - self._dumps_read_s < DUMPS_EVERY_S:
            return
        self._dumps_read_s = now_s
        root = self._settings.directory
        found: dict[Path, float] = {}
        for path in (path for pattern in DUMP_GLOBS for path in root.rglob(pattern)):
            match = FILE_PATTERN.fullmatch(path.relative_to(root).as_posix())
            try:
                changed_s, size = path.stat().st_mtime, path.stat().st_size
                is_whole = IDLE_S > time.time() - changed_s >= DUMP_WRITTEN_S
                if match is None or self._dumps.get(path) == changed_s or not is_whole:
                    found[path] = self._dumps.get(path, math.nan)
                    continue
                found[path] = changed_s
                if size > MAX_DUMP_BYTES:
                    raise DumpError(f"{size} bytes")
                text = as_line(match, path.read_bytes())
            except (OSError, DumpError):
                rejected[Reason.MALFORMED] = rejected.get(Reason.MALFORMED, 0) + 1
                continue
            job, rank = self._settings.workload.place(match["namespace"], match["pod"])
            subject = rank or job or pod_subject(match["namespace"], match["pod"])
            if job is not None and match["rank"] is not None:
                subject = rank_of(job, int(match["rank"]))
                inventory.observe(subject, job, now_s)
            source = f"{self._source.name}/{path.relative_to(root)}"[:500]
            self._raw.append(LogRecord(Instant(now_s), source, subject, text, 0))
        self._dumps = found

    def _file(self, path: Path, match: re.Match[str]) -> _File:
        groups = match.groupdict()
        namespace, name, container = groups["namespace"], groups["pod"], groups.get("container")
        pod = pod_subject(namespace, name)
        job, rank = self._settings.workload.place(namespace, name)
        return _File(
            FileTail(path, MAX_BYTES),
            f"{self._source.name}/{path.relative_to(self._settings.directory)}"[:500],
            pod,
            job or Subject(SubjectKind.JOB, pod.name),
            rank,
            container_subject(namespace, name, container) if container else None,
        )

    def _follow(
        self,
        file: _File,
        now_s: float,
        points: dict[tuple[Subject, str], _Points],
        logs: list[LogRecord],
        rejected: dict[Reason, int],
        inventory: Inventory,
    ) -> int:
        read = file.tail.read()
        if read.replaced:
            file.begins = True  # or it was only rotated: its first step tells
        if read.skipped_bytes:
            rejected[Reason.TOO_LARGE] = rejected.get(Reason.TOO_LARGE, 0) + 1
        if read.lost:
            rejected[Reason.TRUNCATED] = rejected.get(Reason.TRUNCATED, 0) + 1
        if math.isnan(file.unread_from_s):
            file.unread_from_s = -math.inf if len(read.lines) >= UNREAD_LINES else now_s
        kept: list[LogRecord] = []
        last: LogRecord | None = None
        file.rest = b"" if read.replaced else file.rest
        told = [(offset, text, read_line(text, self._lines, now_s)) for offset, text in _texts(read.lines, file)]
        file.keep_zone([line for _, _, line in told], read.changed_s, now_s)
        for offset, text, read_as in told:
            nccl = read_nccl_line(text) if "NCCL" in text else None
            if (version := read_nccl_version(text)) is not None:
                job = inventory.above(file.pod, SubjectKind.JOB, now_s) or file.job
                inventory.describe(job, nccl=version)
            line = _placed(file, read_as, nccl)
            t_s = _time_of(line, file.zone_s, now_s, rejected)
            subject = self._subject(file, line, inventory, now_s)
            record = LogRecord(Instant(t_s, clock=file.pod.name), file.source, subject, text[:MAX_TEXT], offset)
            self._raw.append(record)
            file.unread = 0 if line.figures else file.unread + 1
            file.unread_from_s = now_s if line.figures else file.unread_from_s
            file.begins |= line.started
            if line.figures or line.step is not None:
                last = record if line.figures else last
                self._add(file, subject, line, t_s, points)
            if file.keeps(text) or self._is_kept(text, nccl, len(kept)):
                kept.append(record)
        # what the newest figures were read from can be cited
        if last is not None and last not in kept:
            kept.append(last)
        logs += kept
        return len(read.lines)

    def _is_kept(self, text: str, nccl: NcclLine | None, n_kept: int) -> bool:
        """Whether a line is worth keeping; a watchdog's word is, in a flood of other errors too."""
        room = MAX_LINES - n_kept
        if nccl is not None:
            return room > -MAX_LINES
        return room > 0 and is_notable(text)

    def _subject(self, file: _File, line: TrainerLine, inventory: Inventory, now_s: float) -> Subject:
        if line.rank is None:
            return file.rank or file.job
        rank = rank_of(file.job, line.rank)
        if rank != file.rank:
            inventory.observe(rank, file.job, now_s)
            inventory.observe(rank, file.pod, now_s)
            file.rank = rank if file.rank is None else file.rank
        return rank

    def _add(
        self,
        file: _File,
        subject: Subject,
        line: TrainerLine,
        t_s: float,
        points: dict[tuple[Subject, str], _Points],
    ) -> None:
        step, is_counted = file.step_of(subject, line)
        is_step = line.step is not None or "loss" in line.figures
        # a start line alone proves no new run: evaluations load checkpoints, and logs are rotated. The first step
        # decides
        if file.begins and is_step and line.figures.keys() - {"checkpoint_saved"}:
            file.begins = False
            if step < file.highest.get(subject, step + 1) or is_counted:
                file.runs += 1
                file.highest.clear()
        file.highest[subject] = max(step, file.highest.get(subject, step))
        if not line.figures:
            return
        figures = file.unfiltered(subject, line.figures)
        known = points.setdefault((subject, f"{file.pod.name}:{file.runs}"), _Points())
        # Composer and others print one figure a line: the loss, then the gradient norm of the same step
        if known.step and known.step[-1] == step and not known.figures[-1].keys() & line.figures.keys():
            known.figures[-1].update(figures)  # one step told in two lines
            return
        known.step.append(step)
        known.t_s.append(t_s)
        known.figures.append(dict(figures))


def _placed(file: _File, line: TrainerLine | None, nccl: NcclLine | None) -> TrainerLine:
    """A line in the file's run; of one that tells no figure, the rank that the NCCL watchdog names in it."""
    placed = None if line is None else file.over_epochs(line)
    if placed is not None:
        if placed.step is not None:
            file.block = None if placed.figures else placed
        elif placed.t_s is None and file.block is not None:
            placed = replace(placed, t_s=file.block.t_s, zoned=file.block.zoned)
        return placed
    return TrainerLine(rank=None if nccl is None else nccl.rank)


def _time_of(line: TrainerLine, zone_s: float, now_s: float, rejected: dict[Reason, int]) -> float:
    """When a line was written (Unix s); the time of the look where it does not say, or says a future one."""
    t_s = now_s if line.t_s is None else line.t_s
    t_s += 0.0 if line.zoned else zone_s
    # a line of a clock that runs ahead would stay the newest for ever
    if t_s <= now_s + FUTURE_S:
        return t_s
    rejected[Reason.CLOCK] = rejected.get(Reason.CLOCK, 0) + 1
    return now_s


def _texts(lines: tuple[tuple[int, bytes], ...], file: _File) -> Iterator[tuple[int, str]]:
    """Printable lines; a progress bar's carriage returns separate its states. A state that the container runtime
    cut in two is joined: of `loss=12.3` it may have left `loss=1`."""
    for offset, raw in lines:
        runtime = CRI.match(raw[:80].decode(errors="replace"))
        head, body = b"", raw
        if runtime is not None:
            head, body = raw[: runtime.end()], file.rest + raw[runtime.end() :]
            file.rest = b""
        parts = body.removesuffix(b"\r").split(b"\r")
        if runtime is not None and runtime.group(2) == "P" and len(parts[-1]) < MAX_TEXT:
            file.rest = parts.pop() + (b"\r" if body.endswith(b"\r") else b"")
        for part in parts:
            if part.strip():
                yield offset, (head + part).decode(errors="replace")


def _series(subject: Subject, run: str, points: _Points, source: str) -> StepSeries:
    names = [name for name in STEP_COLUMNS if any(name in figures for figures in points.figures)]
    return StepSeries(
        subject,
        run,
        np.array(points.step, dtype=np.int64),
        np.array(points.t_s),
        {name: np.array([figures.get(name, np.nan) for figures in points.figures]) for name in names},
        source,
    )


def _observe(file: _File, inventory: Inventory, now_s: float) -> None:
    inventory.observe(file.pod, file.job, now_s)
    if file.container is not None:
        inventory.observe(file.container, file.pod, now_s)
    if file.rank is not None:
        inventory.observe(file.rank, file.job, now_s)
        inventory.observe(file.rank, file.pod, now_s)
