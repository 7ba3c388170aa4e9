"""Certificates that are renewed in their files while a process runs: noticed by their times, taken up between
two uses.

cert-manager and kubelets replace the files a good while before a certificate ends. A half-written set is not
taken up: the one before goes on until the next look, so a renewal leaves no gap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")


class Renewed(Generic[T]):
    """What `make` makes of some files; made again once they have changed."""

    def __init__(self, files: Sequence[Path], make: Callable[[], T]) -> None:
        """Raises what `make` raises, the first time only."""
        self._files, self._make = tuple(files), make
        self._seen = self._stamps()
        self._value = make()
        self.problem = ""
        """Why the newest files could not be taken up; empty where they were."""

    def get(self) -> T:
        """The newest usable value."""
        stamps = self._stamps()
        if stamps != self._seen:
            try:
                self._value = self._make()
            except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
                self.problem = str(error)
            else:
                self._seen, self.problem = stamps, ""
        return self._value

    def _stamps(self) -> tuple[tuple[int, int, int], ...]:
        found = []
        for file in self._files:
            try:
                status = file.stat()
            except OSError:
                found.append((0, 0, 0))
            else:
                found.append((status.st_mtime_ns, status.st_ino, status.st_size))
        return tuple(found)
