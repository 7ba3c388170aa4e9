"""Who may use the GPU beside whom: examinations share it, a race that will be certified has it alone."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class Quiet:
    """A lock for many examiners or one racer; a waiting racer goes before new examiners. Not reentrant."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._sharing = 0
        self._waiting = 0
        self._alone = False

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        with self._condition:
            self._condition.wait_for(lambda: not self._alone and not self._waiting)
            self._sharing += 1
        try:
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
            yield
        finally:
            with self._condition:
                self._alone = False
                self._condition.notify_all()
