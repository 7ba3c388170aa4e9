"""Follows a growing file: whole lines only, across rotation and truncation, never more than a bound at a time.

A progress bar that rewrites its line ends its states by carriage returns, and the line perhaps never: what is too
long for a line, or not ended yet, is read by them.
"""

from __future__ import annotations

import gzip
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

MAX_LINE_BYTES = 2**16
_MARK_BYTES = 256


@dataclass(frozen=True, slots=True)
class TailRead:
    """Whole lines with the byte offset of each, oldest first. `replaced`: the file is another one than before, or
    was cut; `skipped_bytes` were passed over because they were too many or held a line that never ends;
    `changed_s`: when the file was last written (Unix s)."""

    lines: tuple[tuple[int, bytes], ...] = ()
    replaced: bool = False
    skipped_bytes: int = 0
    changed_s: float = 0.0
    lost: bool = False
    """The file was replaced, and what was written to it after the last read is found nowhere."""


@dataclass
class FileTail:
    r"""One path. The first read starts at most `max_bytes` before the file's end.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as log:
    ...     tail = FileTail(Path(log.name), max_bytes=2**20)
    ...     log.write(b"step 1\nstep 2\nst") and log.flush()
    ...     tail.read().lines  # the last line has not ended yet
    ((0, b'step 1'), (7, b'step 2'))
    """

    path: Path
    max_bytes: int
    _identity: tuple[int, int] | None = None
    _offset: int = 0
    _skipping: bool = False
    _mark: bytes = b""
    """What stands before `_offset`: tells the same content under another name from another under the same."""

    def read(self) -> TailRead:
        """What was added since the last call. Raises OSError where the file cannot be read.

        Where the file was rotated (renamed, copied and cut, or compressed) its last lines are read first, if they
        are still found beside it under `<name>.1`, `<name>-…` or `….gz`.
        """
        with self.path.open("rb", buffering=0) as stream:  # a few files or a thousand: each call counts
            status = os.fstat(stream.fileno())
            identity = (status.st_dev, status.st_ino)
            first, replaced, lost = self._identity is None, False, False
            before: list[tuple[int, bytes]] = []
            marked, data = (b"", b"") if first else self._around(stream, status.st_size)
            if first:
                self._offset = max(0, status.st_size - self.max_bytes)
                # a start in the middle of the file is most likely in the middle of a line
                self._skipping = self._offset > 0
            # shorter than what was read, or other bytes before it: cut in place (logrotate's copytruncate), and
            # perhaps grown again, under the same inode
            elif identity != self._identity or status.st_size < self._offset or marked != self._mark:
                replaced = True
                found = self._last_of_rotated()
                before, lost = found or [], found is None and self._offset > 0
                self._offset, self._skipping = 0, False
            self._identity = identity
            skipped = max(0, status.st_size - self._offset - self.max_bytes)
            if skipped:
                self._offset += skipped
                self._skipping = True
            if first or replaced or skipped:
                marked, data = self._around(stream, status.st_size)
            start = self._offset - len(marked)
            lines, passed = self._lines(data)
            self._mark = (marked + data)[: self._offset - start][-_MARK_BYTES:]
        return TailRead((*before, *lines), replaced, skipped + passed, status.st_mtime, lost)

    def _around(self, stream: IO[bytes], size: int) -> tuple[bytes, bytes]:
        """What stands before `_offset`, as long as a mark, and what was added since, in one read."""
        start = max(0, self._offset - _MARK_BYTES)
        length = self._offset - start + min(max(0, size - self._offset), self.max_bytes)
        data = os.pread(stream.fileno(), length, start)
        return data[: self._offset - start], data[self._offset - start :]

    def _before(self, stream: IO[bytes]) -> bytes:
        stream.seek(max(0, self._offset - _MARK_BYTES))
        return stream.read(min(self._offset, _MARK_BYTES))

    def _lines(self, data: bytes) -> tuple[list[tuple[int, bytes]], int]:
        skipped = 0
        if self._skipping:
            # a progress bar ends its states with a carriage return, and writes no newline for hours
            end = (data.find(b"\n") + 1) or (data.find(b"\r") + 1)
            if end == 0:
                self._offset += len(data)
                return [], len(data)
            skipped, data = end, data[end:]
            self._offset += end
            self._skipping = False
        whole = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        # a line that never ends (binary data) must not be read again and again from its beginning
        if whole == 0 and len(data) > MAX_LINE_BYTES:
            self._offset += len(data)
            self._skipping = True
            return [], skipped + len(data)
        lines: list[tuple[int, bytes]] = []
        at = self._offset
        *ended, open_line = data[:whole].split(b"\n")
        # a bar's whole run up to its newline is one long line: each of its states is read as one
        parts = [p for line in ended for p in (line.split(b"\r") if len(line) > MAX_LINE_BYTES else (line,))]
        for part in (*parts, *open_line.split(b"\r")[:-1]):
            if len(part) <= MAX_LINE_BYTES:
                lines.append((at, part))
            else:
                skipped += len(part)
            at += len(part) + 1
        self._offset += whole
        return lines, skipped

    def _last_of_rotated(self) -> list[tuple[int, bytes]] | None:
        """What the file got after the last read, from where its content is now; None where that is not found."""
        # logrotate names the old file .1 or -DATE; the inode tells which it is, else what was read last
        for old in sorted(self.path.parent.glob(f"{self.path.name}[.-]*")):
            try:
                with _opened(old) as stream:
                    status = os.fstat(stream.fileno())
                    is_it = (status.st_dev, status.st_ino) == self._identity and status.st_size >= self._offset
                    if is_it or (self._mark and self._before(stream) == self._mark):
                        stream.seek(self._offset)
                        return self._lines(stream.read(self.max_bytes))[0]
            except (OSError, EOFError, zlib.error):
                continue  # removed meanwhile, or still being compressed
        return None


def _opened(path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        unpacked: Any = gzip.open(path)  # noqa: SIM115  its caller closes it
        return unpacked  # type: ignore[no-any-return]
    return path.open("rb")
