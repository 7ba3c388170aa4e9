"""The line between the judge and a candidate's process: bounded, numbered, authenticated frames over one socket.

A frame is a 4-byte length, a 32-byte HMAC-SHA256 and a JSON body; the MAC covers direction, sequence number and
body, so a frame can be neither replayed, reordered, reflected nor forged by another process that got hold of the
socket. The key is handed over at fork. The candidate lives in the same process as its end of the line, so a valid
frame proves only *which process* spoke, never that it told the truth: the judge believes "done" and "failed" from
it and nothing else. Outputs come from buffers that the judge owns, times from the judge's clock.

Large binaries (a cubin) ride behind the JSON body of the same frame, under the same MAC.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import select
import socket
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

MAX_FRAME_BYTES = 16 << 20
KEY_BYTES = 32
_MAC_BYTES = 32
_HEAD = struct.Struct("<II")  # body length, blob length


class ChannelClosed(ConnectionError):
    """The other end is gone (it exited, was killed or closed the socket)."""


class ChannelForged(ValueError):
    """A frame is malformed, too large, out of sequence or under a wrong MAC."""


class ChannelTimeout(TimeoutError):
    """No whole frame came within the time given."""


@dataclass(frozen=True)
class Message:
    """One frame's content."""

    body: Mapping[str, Any]
    blob: bytes = b""


class Channel:
    """One end. `side` is b"J" (judge) or b"C" (candidate host); the ends must differ."""

    def __init__(
        self,
        line: socket.socket,
        key: bytes,
        side: bytes,
        monotonic: Callable[[], float] = time.monotonic,
        max_bytes: int = MAX_FRAME_BYTES,
    ) -> None:
        if len(key) != KEY_BYTES or side not in (b"J", b"C"):
            raise ValueError("channel: the key has 32 bytes and the side is b'J' or b'C'")
        self._line = line
        self._key = key
        self._side = side
        self._peer = b"C" if side == b"J" else b"J"
        self._now = monotonic
        self._max_bytes = max_bytes
        self._sent = 0
        self._received = 0

    def send(self, body: Mapping[str, Any], blob: bytes = b"") -> None:
        """Raises ChannelClosed where the other end is gone, ValueError where the frame is over the limit."""
        text = json.dumps(body, separators=(",", ":")).encode()
        if len(text) + len(blob) > self._max_bytes:
            raise ValueError(f"channel: a frame of {len(text) + len(blob)} bytes is over {self._max_bytes}")
        head = _HEAD.pack(len(text), len(blob))
        mac = self._mac(self._side, self._sent, head, text, blob)
        self._sent += 1
        try:
            self._line.sendall(head + mac + text + blob)
        except (BrokenPipeError, ConnectionError) as error:
            raise ChannelClosed("the other end is gone") from error
        except TimeoutError as error:
            raise ChannelTimeout("the other end does not read") from error

    def receive(self, timeout_s: float) -> Message:
        """The next frame. Raises ChannelTimeout, ChannelClosed or ChannelForged."""
        deadline = self._now() + timeout_s
        head = self._read(_HEAD.size + _MAC_BYTES, deadline)
        text_bytes, blob_bytes = _HEAD.unpack_from(head)
        if text_bytes + blob_bytes > self._max_bytes:
            raise ChannelForged(f"a frame claims {text_bytes + blob_bytes} bytes, over {self._max_bytes}")
        payload = self._read(text_bytes + blob_bytes, deadline)
        text, blob = payload[:text_bytes], payload[text_bytes:]
        expected = self._mac(self._peer, self._received, head[: _HEAD.size], text, blob)
        if not hmac.compare_digest(expected, head[_HEAD.size :]):
            raise ChannelForged("a frame's MAC does not hold")
        self._received += 1
        try:
            body = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ChannelForged(f"a frame is not JSON ({error})") from error
        if not isinstance(body, dict):
            raise ChannelForged("a frame's body is not a JSON object")
        return Message(body, blob)

    def close(self) -> None:
        self._line.close()

    def fileno(self) -> int:
        return self._line.fileno()

    def _mac(self, side: bytes, number: int, head: bytes, text: bytes, blob: bytes) -> bytes:
        mac = hmac.new(self._key, side + number.to_bytes(8, "little") + head, hashlib.sha256)
        mac.update(text)
        mac.update(blob)
        return mac.digest()

    def _read(self, count: int, deadline: float) -> bytes:
        pieces: list[bytes] = []
        while count:
            left_s = deadline - self._now()
            if left_s <= 0:
                raise ChannelTimeout("no whole frame in time")
            try:
                if not select.select([self._line], [], [], left_s)[0]:
                    continue
                piece = self._line.recv(min(count, 1 << 20))
            except (ConnectionError, ValueError) as error:
                raise ChannelClosed("the other end is gone") from error
            if not piece:
                raise ChannelClosed("the other end is gone")
            pieces.append(piece)
            count -= len(piece)
        return b"".join(pieces)
