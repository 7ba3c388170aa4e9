"""Time as an argument: the daemon's own, or one that a replay, the demo or a test steps."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Unix seconds, and a way to wait that a shutdown can cut short."""

    def now_s(self) -> float: ...

    def wait_until(self, t_s: float) -> bool:
        """Waits until `now_s() >= t_s`. False where `wake` ended the wait early."""
        ...

    def wake(self) -> None:
        """Ends a wait that is under way, or the next one; may be called from another thread or a signal handler."""
        ...


class WallClock:
    """The machine's clock. Waits in short pieces, so that a clock that jumps does not strand the caller."""

    _PIECE_S = 1.0

    def __init__(self) -> None:
        self._woken = threading.Event()

    def now_s(self) -> float:
        return time.time()

    def wait_until(self, t_s: float) -> bool:
        left_s = t_s - self.now_s()
        while left_s > 0:
            if self._woken.wait(min(left_s, self._PIECE_S)):
                self._woken.clear()
                return False
            left_s = min(left_s - self._PIECE_S, t_s - self.now_s())
        return True

    def wake(self) -> None:
        self._woken.set()


class SteppedClock:
    """Stands still until it is told; waiting for a time makes it that time at once."""

    def __init__(self, start_s: float) -> None:
        self._now_s = start_s
        self._woken = threading.Event()

    def now_s(self) -> float:
        return self._now_s

    def wait_until(self, t_s: float) -> bool:
        if self._woken.is_set():
            self._woken.clear()
            return False
        self._now_s = max(self._now_s, t_s)
        return True

    def wake(self) -> None:
        self._woken.set()
