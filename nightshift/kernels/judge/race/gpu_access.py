"""Who may use the GPU beside whom: examinations share it, a race that will be certified has it alone."""

from __future__ import annotations

import contextlib
import fcntl
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path


class Quiet:
    """A lock for many examiners or one racer; a waiting racer goes before new examiners. Not reentrant.

    With a file it holds among the processes that are given the same one, too.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._condition = threading.Condition()
        self._sharing = 0
        self._waiting = 0
        self._alone = False
        self.waiting: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
        """Is entered while other processes have the GPU: what counts time does not count that."""

    @property
    def across(self) -> bool:
        """Whether other processes take part."""
        return self._file is not None

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        with self._condition:
            self._condition.wait_for(lambda: not self._alone and not self._waiting)
            self._sharing += 1
        try:
            with self._among_processes(fcntl.LOCK_SH):
                yield
        finally:
            with self._condition:
                self._sharing -= 1
                self._condition.notify_all()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        with self._condition:
            self._waiting += 1
            self._condition.wait_for(lambda: not self._alone and not self._sharing)
            self._waiting -= 1
            self._alone = True
        try:
            with self._among_processes(fcntl.LOCK_EX):
                yield
        finally:
            with self._condition:
                self._alone = False
                self._condition.notify_all()

    @contextlib.contextmanager
    def _among_processes(self, how: int) -> Iterator[None]:
        if self._file is None:
            yield
            return
        with self._file.open("a") as place, self._file.with_suffix(".next").open("a") as turn:
            with self.waiting():
                # who waits for the place holds the turn, so that a racer is not passed by ever new examiners
                fcntl.flock(turn, fcntl.LOCK_EX)
                fcntl.flock(place, how)
                fcntl.flock(turn, fcntl.LOCK_UN)
            yield
