"""Training signals from the files of experiment trackers, followed while a trainer writes them: TensorBoard's event
files, W&B's run files (`*.wandb`, online or offline) and MLflow's file store (`mlruns/…/metrics/`).

The path tells whose they are: by default the first folder is the namespace and the second the job. The trainer
writes one event per tag, so a step is told once a later step, or a look without news, shows that it is complete. A
new file in a job's folder is the job started anew. Which tags are which figure stands in
`collectors.training.signal_names`.
"""

from __future__ import annotations

import math
import os
import re
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic.json_schema import SkipJsonSchema

from nightshift.collectors.frame import STEP_COLUMNS, Reason, SourceStatus, StepSeries
from nightshift.collectors.shared_settings import stated_once
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tail import FileTail
from nightshift.collectors.telemetry.pages import source_subject
from nightshift.collectors.tick import Batch
from nightshift.collectors.training.signal_names import SignalNames
from nightshift.collectors.training.workload import rank_of

PATH_PATTERN = (
    r"(?P<namespace>[^/]+)/(?P<job>[^/]+)/(?:.*/)?(?:events\.out\.tfevents\.[^/]+|[^/]+\.wandb|[^/]+/metrics)"
)
FUTURE_S = 300.0


@dataclass
class _Run:
    """One run's file, or its folder of metrics. `open` is the step whose tags may not all be there yet."""

    file: EventFile | WandbFile | MlflowMetrics
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


_PATTERNS = ("*tfevents*", "*.wandb", "metrics")
# Most files that are followed, the newest: open files are limited to about so many by default.
MAX_FILES = 1024
# Most that is read of one file in one tick; the rest follows in the next.
MAX_BYTES = 2**22
# Files untouched for a day are not followed: their run has ended.
IDLE_S = 86400.0


class TensorboardCollector:
    r"""New training steps of every run whose event files are found.

    >>> import tempfile
    >>> def whole(data):  # TFRecord: each part is followed by its masked CRC
    ...     return data + struct.pack("<I", masked(crc32c(data)))
    >>> value = b"\x0a\x04loss\x15" + struct.pack("<f", 2.5)  # tag and simple_value
    >>> event = b"\x09" + struct.pack("<d", 1e9) + b"\x10\x07" + b"\x2a\x0d\x0a\x0b" + value  # time, step, …
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Path(folder, "ml/llm").mkdir(parents=True)
    ...     file = Path(folder, "ml/llm/events.out.tfevents.1")
    ...     _ = file.write_bytes(whole(struct.pack("<Q", len(event))) + whole(event))
    ...     collector = TensorboardCollector(TensorboardCollector.Settings(directory=folder))
    ...     looks = [collector.collect(time.time(), Inventory(), timeout_s=60.0) for _ in range(2)]
    >>> [(str(s.subject), s.step.tolist(), s.column("loss").tolist()) for look in looks for s in look.steps]
    [('job:ml/llm', [7], [2.5])]
    """

    plugin: ClassVar[str] = "tensorboard"

    class Settings(BaseModel):
        """Follows the files of TensorBoard, W&B and MLflow."""

        model_config = ConfigDict(extra="forbid")

        directory: Path = Field(description="Folder of the runs, searched with its subfolders")
        path_pattern: str = Field(
            PATH_PATTERN,
            description="Pattern of a file's path within the folder, with the groups job and, if it tells them, "
            "namespace and rank",
        )
        namespace: SkipJsonSchema[str] = stated_once("workload.namespace", lambda: "default")
        names: SkipJsonSchema[SignalNames] = stated_once("signal_names", SignalNames)

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
                # detectors tell runs apart by name: a file that was replaced is another run
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
        # rglob passes silently over a folder that cannot be read: ask for it once, so that the status says so
        next(root.iterdir(), None)
        found: list[tuple[float, Path, re.Match[str]]] = []
        for path in (path for pattern in _PATTERNS for path in root.rglob(pattern)):
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
        if path.suffix == ".wandb":
            return _Run(WandbFile(path, MAX_BYTES), subject, job, path.name[-200:])
        if path.name == "metrics":
            return _Run(MlflowMetrics(path, MAX_BYTES), subject, job, path.parent.name[-200:])
        return _Run(EventFile(path, MAX_BYTES), subject, job, path.name[-200:])

    def _points(self, run: _Run, scalars: list[EventScalar], now_s: float, rejected: dict[Reason, int]) -> _Points:
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
        # a look without news: a trainer writes the tags of a step at once, so the open one has all of its
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


_CRC_TABLE = [0] * 256
for _n in range(256):
    _c = _n
    for _ in range(8):
        _c = (_c >> 1) ^ (0x82F63B78 if _c & 1 else 0)
    _CRC_TABLE[_n] = _c
_HEAD, _FOOT = 12, 4
# A larger record holds an image or a graph: it is passed over unread, its own CRC with it.
MAX_EVENT_BYTES = 2**20
MAX_TAG_CHARS = 200
_DT_FLOAT, _DT_DOUBLE = 1, 2
_Value = int | float | bytes


@dataclass(frozen=True, slots=True)
class EventScalar:
    """One figure. `t_s` is when it was written (Unix s); `value` may be NaN or infinite, as it was told."""

    tag: str
    step: int
    t_s: float
    value: float


@dataclass
class EventsRead:
    """What a look brought. `broken` records were refused; `skipped_bytes` were passed over to find the next."""

    scalars: list[EventScalar] = field(default_factory=list)
    broken: int = 0
    skipped_bytes: int = 0
    replaced: bool = False


@dataclass
class EventFile:
    """Follows one event file while it is written. The first look begins at most `max_bytes` before its end.

    A file is TFRecords (length, its CRC, data, its CRC) of Event messages. Only the few fields that a scalar needs
    are read off the protobuf wire; images and graphs are passed over. A record that is not whole yet waits for the
    next look. Where a CRC does not fit, the file is searched for the next record whose length and CRC agree.

    Formats: tensorflow/core/lib/io/record_writer.h (TFRecord, masked CRC-32C of RFC 3720), tensorflow/core/util/
    event.proto, tensorflow/core/framework/summary.proto and tensor.proto; protobuf.dev/programming-guides/encoding.
    """

    path: Path
    max_bytes: int
    _offset: int = 0
    _size: int = 0
    _identity: tuple[int, int] | None = None
    _lost: bool = False

    def read(self) -> EventsRead:
        """What was added since the last look, at most `max_bytes` of it. Raises OSError where it cannot be read."""
        found = EventsRead()
        with self.path.open("rb") as stream:
            status = os.fstat(stream.fileno())
            identity = (status.st_dev, status.st_ino)
            if self._identity is None:
                self._offset = max(0, status.st_size - self.max_bytes)
                self._lost = self._offset > 0
            elif identity != self._identity or status.st_size < self._size:
                self._offset, self._lost, found.replaced = 0, False, True
            self._identity, self._size = identity, status.st_size
            stream.seek(self._offset)
            data = stream.read(self.max_bytes)
        self._offset += self._take(data, found)
        return found

    def _take(self, data: bytes, found: EventsRead) -> int:
        """Reads the records that are whole; returns how far it came, which may be beyond the data's end."""
        at = 0
        while True:
            if self._lost:
                start, at = at, next_record(data, at)
                found.skipped_bytes += at - start
                if len(data) - at < _HEAD:
                    return at
                self._lost = False
            if len(data) - at < _HEAD:
                return at
            length = int.from_bytes(data[at : at + 8], "little")
            if _unmasked(data, at + 8) != crc32c(data[at : at + 8]):
                found.broken += 1
                self._lost = True
                at += 1
                continue
            end = at + _HEAD + length + _FOOT
            if length > min(MAX_EVENT_BYTES, self.max_bytes // 2):
                at = end
                if at > len(data):
                    return at  # beyond what was read: reading goes on there once it is written
                continue
            if end > len(data):
                return at
            body = data[at + _HEAD : end - _FOOT]
            if _unmasked(data, end - _FOOT) == crc32c(body):
                try:
                    found.scalars.extend(_event(body))
                except (ValueError, IndexError, struct.error):
                    found.broken += 1
            else:
                found.broken += 1
            at = end


_WANDB_HEAD = b":W&B"
_BLOCK, _RECORD_HEAD = 2**15, 7
_FULL, _FIRST, _MIDDLE, _LAST = range(1, 5)


@dataclass
class WandbFile:
    """Follows one W&B run file. The first look begins at the file's beginning, at most `max_bytes` a look.

    The file is a LevelDB log: 7 bytes of its own (`:W&B`, magic, version), then in blocks of 32 KiB records of
    checksum (4 bytes), length (2), kind (1) and data; what does not fit a block goes on in the next. The data are
    Record messages; only history (field 2) is read. Formats: wandb/sdk/internal/datastore.py and
    wandb/proto/wandb_internal.proto; google/leveldb, doc/log_format.md.
    """

    path: Path
    max_bytes: int
    _offset: int = 0
    _identity: tuple[int, int] | None = None
    _part: bytes = b""

    def read(self) -> EventsRead:
        """What was added since the last look. Raises OSError where it cannot be read."""
        found = EventsRead()
        with self.path.open("rb") as stream:
            status = os.fstat(stream.fileno())
            identity = (status.st_dev, status.st_ino)
            if self._identity is not None and (identity != self._identity or status.st_size < self._offset):
                self._offset, self._part, found.replaced = 0, b"", True
            self._identity = identity
            stream.seek(self._offset)
            data = stream.read(self.max_bytes)
        self._offset += self._take(data, found)
        return found

    def _take(self, data: bytes, found: EventsRead) -> int:
        at = 0
        if self._offset == 0:
            if len(data) < _RECORD_HEAD:
                return 0
            if not data.startswith(_WANDB_HEAD):
                found.broken += 1
                return len(data)
            at = _RECORD_HEAD
        while True:
            left = _BLOCK - (self._offset + at) % _BLOCK
            if left < _RECORD_HEAD:  # a block's end too short for a record is padded
                at += left
                continue
            if at + _RECORD_HEAD > len(data):
                return min(at, len(data))
            length, kind = struct.unpack_from("<HB", data, at + 4)
            end = at + _RECORD_HEAD + length
            if end > len(data):
                return at
            if kind not in (_FULL, _FIRST, _MIDDLE, _LAST) or length > left - _RECORD_HEAD:
                found.broken += 1
                at, self._part = at + left, b""  # the next block begins with a record
                continue
            body = data[at + _RECORD_HEAD : end]
            self._part = body if kind in (_FULL, _FIRST) else self._part + body
            if kind in (_FULL, _LAST):
                try:
                    found.scalars.extend(_history(self._part))
                except (ValueError, IndexError, struct.error):
                    found.broken += 1
                self._part = b""
            at = end


def _history(body: bytes) -> Iterator[EventScalar]:
    """The figures of a Record that is history. Raises ValueError where the bytes are no message."""
    for number, value in _fields(body):
        if number != 2 or not isinstance(value, bytes):
            continue
        told, step = dict[str, str](), 0
        for inner, item in _fields(value):
            if inner == 2 and isinstance(item, bytes):
                step = next((n for field, n in _fields(item) if field == 1 and isinstance(n, int)), 0)
            elif inner == 1 and isinstance(item, bytes) and len(item) <= 4 * MAX_TAG_CHARS:
                parts = [
                    (field, part.decode(errors="replace"))
                    for field, part in _fields(item)
                    if isinstance(part, bytes)
                ]
                names = [part for field, part in parts if field in (1, 2)]  # a key, or a nested key's parts
                told["/".join(names)] = next((part for field, part in parts if field == 16), "")
        t_s, step = _figure(told.get("_timestamp", "")), int(_figure(told.get("_step", "")) or step)
        for tag, text in told.items():
            if not tag.startswith("_") and (figure := _figure(text)) is not None:
                yield EventScalar(tag, step, math.nan if t_s is None else t_s, figure)


def _figure(text: str) -> float | None:
    """A number as JSON, or as W&B writes those that JSON has not: NaN, "Infinity"; None for anything else."""
    try:
        return float(text.strip('"'))
    except ValueError:
        return None


@dataclass
class MlflowMetrics:
    """Follows the `metrics` folder of one MLflow run: a file for each metric, a line `milliseconds value step` for
    each value (mlflow/store/tracking/file_store.py). What a look finds in all of them is told step by step."""

    path: Path
    max_bytes: int
    _tails: dict[Path, FileTail] = field(default_factory=dict)

    def read(self) -> EventsRead:
        """What was added since the last look. Raises OSError where the folder cannot be read."""
        found = EventsRead()
        if not self.path.is_dir():
            raise FileNotFoundError(self.path)
        for path in sorted(self.path.rglob("*")):
            if not path.is_file():
                continue
            tail = self._tails.setdefault(path, FileTail(path, self.max_bytes))
            tag = path.relative_to(self.path).as_posix()[:MAX_TAG_CHARS]
            for _, line in tail.read().lines:
                at, _, rest = line.decode(errors="replace").partition(" ")
                value, _, step = rest.partition(" ")
                figure = _figure(value)
                if figure is None or not at.isdecimal() or not (step or "0").lstrip("-").isdecimal():
                    found.broken += 1
                    continue
                found.scalars.append(EventScalar(tag, int(step or 0), int(at[:16]) / 1000, figure))
        found.scalars.sort(key=lambda scalar: scalar.step)
        return found


def next_record(data: bytes, at: int) -> int:
    """Where the next record begins whose length fits its CRC, or where to go on once there is more data."""
    while (high := data.find(b"\0\0\0\0", at + 4)) >= 0 and high + 8 <= len(data):
        start = high - 4  # no record is 4 GiB long
        if _unmasked(data, start + 8) == crc32c(data[start : start + 8]):
            return start
        at = start + 1
    return max(at, len(data) - _HEAD + 1)


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli) of RFC 3720, appendix B.4."""
    crc, table = 0xFFFFFFFF, _CRC_TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def masked(crc: int) -> int:
    """As TFRecord stores it: rotated right by 15 bits, plus a constant.

    >>> f"{crc32c(b'123456789'):08x}"  # the check value of CRC-32C
    'e3069283'
    >>> f"{masked(crc32c(b'123456789')):08x}"
    'c78ab0e5'
    """
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _unmasked(data: bytes, at: int) -> int:
    turned = (int.from_bytes(data[at : at + 4], "little") - 0xA282EAD8) & 0xFFFFFFFF
    return ((turned >> 17) | (turned << 15)) & 0xFFFFFFFF


def _event(body: bytes) -> Iterator[EventScalar]:
    """The scalars of an Event. Raises ValueError where the bytes are no message."""
    t_s, step, summaries = math.nan, 0, []
    for number, value in _fields(body):
        if number == 1 and isinstance(value, float):
            t_s = value
        elif number == 2 and isinstance(value, int):
            step = value - 2**64 if value >= 2**63 else value
        elif number == 5 and isinstance(value, bytes):
            summaries.append(value)
    for summary in summaries:
        for number, value in _fields(summary):
            if number == 1 and isinstance(value, bytes) and (told := _scalar(value)) is not None:
                yield EventScalar(told[0], step, t_s, told[1])


def _scalar(body: bytes) -> tuple[str, float] | None:
    """Tag and value of a Summary.Value, or None where it is no scalar."""
    tag, figure = "", None
    for number, value in _fields(body):
        if number == 1 and isinstance(value, bytes):
            tag = value[: 4 * MAX_TAG_CHARS].decode(errors="replace")[:MAX_TAG_CHARS]
        elif number == 2 and isinstance(value, float):
            figure = value
        elif number == 8 and isinstance(value, bytes):
            figure = _tensor(value)
    return None if figure is None or not tag else (tag, figure)


def _tensor(body: bytes) -> float | None:
    """The one number of a float tensor, or None where it holds others."""
    kind, content, packed = 0, b"", b""
    for number, value in _fields(body):
        if number == 1 and isinstance(value, int):
            kind = value
        elif number == 4 and isinstance(value, bytes):
            content = value
        elif number in (5, 6):
            packed = value if isinstance(value, bytes) else struct.pack("<f" if number == 5 else "<d", value)
    form = {_DT_FLOAT: "<f", _DT_DOUBLE: "<d"}.get(kind)
    raw = content or packed
    if form is None or len(raw) != struct.calcsize(form):
        return None
    return float(struct.unpack(form, raw)[0])


def _fields(body: bytes) -> Iterator[tuple[int, _Value]]:
    """(field number, value) of a message: varints as int, fixed64 and fixed32 as floats, the rest as bytes. Raises
    ValueError or struct.error where the bytes are no message."""
    at, end = 0, len(body)
    while at < end:
        key, at = _varint(body, at)
        match key & 7:
            case 0:
                value, at = _varint(body, at)
                yield key >> 3, value
            case 1:
                yield key >> 3, float(struct.unpack_from("<d", body, at)[0])
                at += 8
            case 5:
                yield key >> 3, float(struct.unpack_from("<f", body, at)[0])
                at += 4
            case 2:
                length, at = _varint(body, at)
                if at + length > end:
                    raise ValueError("a field beyond its message")
                yield key >> 3, body[at : at + length]
                at += length
            case other:
                raise ValueError(f"wire type {other}")


def _varint(body: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = body[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a varint without end")
