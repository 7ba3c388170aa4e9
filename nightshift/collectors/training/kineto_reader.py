"""Reads torch.profiler (Kineto) traces into columns, a few megabytes at a time, plain or gzip.

A trace of a few training steps is easily hundreds of megabytes of JSON, and a tree of Python objects over it is ten
times that. So the text is cut at event boundaries, each piece is parsed by orjson, and what remains of it are rows
of numbers. A cut is found by trying: a prefix of a JSON array that parses as an array by itself ends between two
elements, whatever the elements' text holds.

Format: the Chrome trace event format as libkineto writes it
(https://github.com/pytorch/kineto/blob/main/libkineto/src/output_json.cpp); also a bare array of events.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson
from numpy.typing import NDArray

from nightshift.collectors.frame import Reason
from nightshift.collectors.training.kineto_trace import CATEGORY, Events, Flows, Trace, TraceError

_DROPPED = frozenset({"python_function", "Trace"})
CHUNK_BYTES = 4 << 20
MAX_EVENT_BYTES = 32 << 20
MAX_NAME_CHARS = 1024
_TRIES = 48
_CUT = re.compile(rb"\}\s*,\s*(?=\{)")
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_MAX_INTEGER = 1 << 62
_NONE = -1


@dataclass
class _Columns:
    """What is collected while a file is read."""

    names: dict[str, int] = field(default_factory=dict)
    tracks: dict[tuple[str, str], int] = field(default_factory=dict)
    signatures: dict[bytes, int] = field(default_factory=dict)
    rows: list[NDArray[np.int64]] = field(default_factory=list)
    flows: list[NDArray[np.int64]] = field(default_factory=list)
    count: int = 0
    rejected: int = 0


class TraceReader:
    """Reads one file in steps: iterate `steps()` to its end (each step is one piece), then take `trace()`."""

    def __init__(self, path: Path, max_bytes: int = 4 << 30, max_events: int = 20_000_000) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._max_events = max_events
        self._columns = _Columns()
        self._head: dict[str, Any] = {}
        self._read_bytes = 0
        self._done = False

    def steps(self) -> Iterator[int]:
        """Yields the number of events so far after each piece. Raises TraceError; OSError where nothing is read."""
        pieces = self._pieces()
        buffer, offset, is_array = b"", 0, False
        start: int | None = None
        ended = False
        while not ended:
            piece = next(pieces, b"")
            ended = not piece
            buffer += piece
            if start is None:
                found = self._begin(buffer)
                if found is None:
                    if ended or len(buffer) > MAX_EVENT_BYTES:
                        raise self._bad(0, "no traceEvents: this is no trace of torch.profiler", buffer, ended)
                    continue
                start, is_array = found
                buffer, offset = buffer[start:], start
            if ended:
                self._finish(buffer, offset, is_array)
            elif len(buffer) >= CHUNK_BYTES:
                used = self._cut(buffer, offset)
                buffer, offset = buffer[used:], offset + used
            yield self._columns.count
        self._done = True

    def trace(self) -> Trace:
        """What was read. Raises TraceError where the file has no event that can be used."""
        columns, head = self._columns, self._head
        if not self._done:
            raise TraceError(f"{self.path}: not read to its end")
        table = np.concatenate(columns.rows) if columns.rows else np.zeros((0, 13), np.int64)
        flows = np.concatenate(columns.flows) if columns.flows else np.zeros((0, 5), np.int64)
        if not len(table):
            raise TraceError(f"{self.path}: holds no complete event")
        devices = head.get("deviceProperties")
        distributed = head.get("distributedInfo")
        base = head.get("baseTimeNanoseconds", 0)
        return Trace(
            str(self.path),
            Events(table[:, 0].astype(np.uint8), *(np.ascontiguousarray(table[:, i]) for i in range(1, 13))),
            Flows(
                flows[:, 0].astype(np.uint8),
                flows[:, 1].copy(),
                flows[:, 2] == 1,
                flows[:, 3].copy(),
                flows[:, 4].copy(),
            ),
            tuple(columns.names),
            tuple(columns.tracks),
            tuple(columns.signatures),
            base if isinstance(base, int) and 0 <= base < _MAX_INTEGER else 0,
            tuple(d for d in devices if isinstance(d, dict)) if isinstance(devices, list) else (),
            distributed if isinstance(distributed, dict) else {},
            bool(head.get("record_shapes")) or any(b'"' in raw for raw in columns.signatures),
            {Reason.MALFORMED: columns.rejected} if columns.rejected else {},
        )

    # Bytes ------------------------------------------------------------------------------------------------------

    def _pieces(self) -> Iterator[bytes]:
        with self.path.open("rb") as stream:
            magic = stream.read(2)
            stream.seek(0)
            plain = self._inflated(stream) if magic == b"\x1f\x8b" else iter(lambda: stream.read(CHUNK_BYTES), b"")
            for piece in plain:
                self._read_bytes += len(piece)
                if self._read_bytes > self._max_bytes:
                    raise TraceError(f"{self.path}: more than {self._max_bytes} bytes", Reason.TOO_LARGE)
                yield piece

    def _inflated(self, stream: BinaryIO) -> Iterator[bytes]:
        """Decompressed pieces of bounded size, of every member of a gzip file."""
        inflate = zlib.decompressobj(wbits=31)
        fresh = True
        pending = b""
        while True:
            data = pending or stream.read(1 << 20)
            if not data:
                break
            try:
                piece = inflate.decompress(data, CHUNK_BYTES)
            except zlib.error as error:
                told = f"{self.path}: byte {stream.tell()} of the compressed file: {error}"
                raise TraceError(told) from error
            fresh = False
            pending = inflate.unconsumed_tail
            if inflate.eof:
                pending = inflate.unused_data
                if not pending:
                    pending = stream.read(1 << 20)
                if pending.lstrip(b"\0"):
                    inflate, fresh = zlib.decompressobj(wbits=31), True
                else:
                    pending = b""
            if piece:
                yield piece
        if not fresh and not inflate.eof:
            raise TraceError(f"{self.path}: the compressed file is cut off", Reason.TRUNCATED)

    # Pieces -----------------------------------------------------------------------------------------------------

    def _begin(self, buffer: bytes) -> tuple[int, bool] | None:
        """Where the first event begins, and whether the file is a bare array; None: not to be seen yet."""
        stripped = buffer.lstrip(b" \t\r\n\xef\xbb\xbf")
        if stripped.startswith(b"["):
            return len(buffer) - len(stripped) + 1, True
        for match in _ARRAY.finditer(buffer):
            try:
                head = orjson.loads(buffer[: match.end()].lstrip(b"\xef\xbb\xbf") + b"]}")
            except orjson.JSONDecodeError:
                continue  # the words stand inside a text or an inner object
            if isinstance(head, dict) and head.get("traceEvents") == []:
                self._head = head
                return match.end(), False
        return None

    def _cut(self, buffer: bytes, offset: int) -> int:
        """Takes in the events of all but the last of a buffer; returns how many bytes were used."""
        cuts = [match.start() + 1 for match in _CUT.finditer(buffer)]
        for end in reversed(cuts[-_TRIES:]):
            try:
                events = orjson.loads(b"[" + buffer[:end] + b"]")
            except orjson.JSONDecodeError:
                continue
            self._take(events)
            return end + buffer[end:].index(b",") + 1
        if len(buffer) <= MAX_EVENT_BYTES:
            return 0
        raise self._bad(offset, "not JSON, or one event of more than 32 MiB", buffer, False)

    def _finish(self, buffer: bytes, offset: int, is_array: bool) -> None:
        """The last piece: the remaining events, the array's end and what stands behind it."""
        text = b"[" + buffer if is_array else b'{"traceEvents":[' + buffer
        try:
            rest = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            try:
                rest = json.loads(text)  # Kineto may print bare NaN and Infinity
            except (ValueError, RecursionError):
                raise self._bad(offset, str(error), buffer, True) from error
        events = rest if is_array else rest.pop("traceEvents")
        if not isinstance(events, list):
            raise self._bad(offset, "traceEvents is no array", buffer, True)
        self._take(events)
        if isinstance(rest, dict):
            self._head |= rest

    def _bad(self, offset: int, what: str, buffer: bytes, ended: bool) -> TraceError:
        opens = offset > 0 or buffer.lstrip(b" \t\r\n\xef\xbb\xbf")[:1] in (b"{", b"[", b"")
        cut = ended and opens and not buffer.rstrip().endswith((b"}", b"]"))
        told = "the file is cut off" if cut else what
        at = f"{self.path}: byte {offset} and after: {told}"
        reason = Reason.TRUNCATED if cut else Reason.MALFORMED
        return TraceError(f"{at} ({self._columns.count} events were read before)", reason)

    # Events -----------------------------------------------------------------------------------------------------

    def _take(self, events: list[Any]) -> None:
        columns = self._columns
        rows: list[tuple[int, ...]] = []
        flows: list[tuple[int, ...]] = []
        for event in events:
            try:
                kind = event["ph"]
                if kind == "X":
                    row = _row(event, columns)
                    if row is not None:
                        rows.append(row)
                elif kind in ("s", "f"):
                    flow = _flow(event, kind, columns)
                    if flow is not None:
                        flows.append(flow)
            except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
                columns.rejected += 1
        columns.count += len(rows)
        if rows:
            columns.rows.append(np.array(rows, dtype=np.int64))
        if flows:
            columns.flows.append(np.array(flows, dtype=np.int64))
        if columns.count > self._max_events:
            raise TraceError(f"{self.path}: more than {self._max_events} events", Reason.TOO_LARGE)


def read_trace(path: Path, max_bytes: int = 4 << 30) -> Trace:
    """The whole trace of a file. Raises TraceError that names the place; OSError where the file cannot be read.

    Example::

        trace = read_trace(Path("train_trace.json.gz"))
        kernels = trace.events.rows("kernel")
    """
    reader = TraceReader(path, max_bytes)
    for _ in reader.steps():
        pass
    return reader.trace()


def _row(event: Mapping[str, Any], columns: _Columns) -> tuple[int, ...] | None:
    category = event.get("cat")
    if category in _DROPPED:
        return None
    begin, duration = event["ts"], event["dur"]
    begin_ns, dur_ns = round(begin * 1000), round(duration * 1000)  # NaN and infinity raise
    if dur_ns < 0 or abs(begin_ns) > _MAX_INTEGER or dur_ns > _MAX_INTEGER:
        raise ValueError("time")
    name = event["name"]
    if len(name) > MAX_NAME_CHARS:
        name = name[:MAX_NAME_CHARS]
    name = name.encode(errors="replace").decode()  # JSON may hold half a surrogate pair, which nobody can print
    args = event.get("args") or {}
    get = args.get
    signature = _NONE
    if category == "cpu_op" and "Input Dims" in args:
        key = orjson.dumps((get("Input Dims"), get("Input Strides"), get("Input type"), get("Concrete Inputs")))
        signature = columns.signatures.setdefault(key, len(columns.signatures))
    track = (str(event.get("pid")), str(event.get("tid")))
    return (
        CATEGORY.get(category, 0) if isinstance(category, str) else 0,
        columns.names.setdefault(name, len(columns.names)),
        columns.tracks.setdefault(track, len(columns.tracks)),
        begin_ns,
        dur_ns,
        _integer(get("External id")),
        _integer(get("correlation")),
        _integer(get("Sequence number")),
        _integer(get("Fwd thread id")),
        signature,
        _integer(get("stream")),
        _integer(get("device")),
        _integer(get("bytes")),
    )


def _integer(value: object) -> int:
    """A whole number as Kineto writes it, also as text; −1 where there is none."""
    if isinstance(value, int) and not isinstance(value, bool) and -_MAX_INTEGER < value < _MAX_INTEGER:
        return value
    if isinstance(value, str) and value.isdecimal() and len(value) < 19:
        return int(value)
    return _NONE


def _flow(event: Mapping[str, Any], kind: str, columns: _Columns) -> tuple[int, ...] | None:
    category = event.get("cat")
    if category not in ("ac2g", "fwdbwd"):
        return None
    track = (str(event.get("pid")), str(event.get("tid")))
    at = round(event["ts"] * 1000)
    if abs(at) > _MAX_INTEGER:
        raise ValueError("time")
    return (
        int(category == "fwdbwd"),
        _integer(event["id"]),
        int(kind == "s"),
        columns.tracks.setdefault(track, len(columns.tracks)),
        at,
    )
