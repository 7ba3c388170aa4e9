"""Reads TensorBoard event files while they are written: scalars, as `simple_value` or as a tensor of one number.

A file is TFRecords (length, its CRC, data, its CRC) of Event messages. Only the few fields that a scalar needs are
read off the protobuf wire; images and graphs are passed over. A record that is not whole yet waits for the next
look. Where a CRC does not fit, the file is searched for the next record whose length and CRC agree.

Formats: tensorflow/core/lib/io/record_writer.h (TFRecord, masked CRC-32C of RFC 3720), tensorflow/core/util/
event.proto, tensorflow/core/framework/summary.proto and tensor.proto; protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_CRC_TABLE = [0] * 256
for _n in range(256):
    _c = _n
    for _ in range(8):
        _c = (_c >> 1) ^ (0x82F63B78 if _c & 1 else 0)
    _CRC_TABLE[_n] = _c
_HEAD, _FOOT = 12, 4
MAX_EVENT_BYTES = 2**20
"""A larger record holds an image or a graph: it is passed over unread, its own CRC with it."""
MAX_TAG_CHARS = 200
_DT_FLOAT, _DT_DOUBLE = 1, 2
_Value = int | float | bytes


@dataclass(frozen=True, slots=True)
class Scalar:
    """One figure. `t_s` is when it was written (Unix s); `value` may be NaN or infinite, as it was told."""

    tag: str
    step: int
    t_s: float
    value: float


@dataclass
class Read:
    """What a look brought. `broken` records were refused; `skipped_bytes` were passed over to find the next."""

    scalars: list[Scalar] = field(default_factory=list)
    broken: int = 0
    skipped_bytes: int = 0
    replaced: bool = False


@dataclass
class EventFile:
    """Follows one file. The first look begins at most `max_bytes` before its end."""

    path: Path
    max_bytes: int
    _offset: int = 0
    _size: int = 0
    _identity: tuple[int, int] | None = None
    _lost: bool = False

    def read(self) -> Read:
        """What was added since the last look, at most `max_bytes` of it. Raises OSError where it cannot be read."""
        found = Read()
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

    def _take(self, data: bytes, found: Read) -> int:
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
    """As TFRecord stores it: rotated right by 15 bits, plus a constant."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _unmasked(data: bytes, at: int) -> int:
    turned = (int.from_bytes(data[at : at + 4], "little") - 0xA282EAD8) & 0xFFFFFFFF
    return ((turned >> 17) | (turned << 15)) & 0xFFFFFFFF


def _event(body: bytes) -> Iterator[Scalar]:
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
                yield Scalar(told[0], step, t_s, told[1])


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
