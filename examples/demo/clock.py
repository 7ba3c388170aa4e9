"""The demo's time: as fast as the daemon asks for it, or slowly enough to watch.

To the daemon this is a clock like any other (`agent.clock.Clock`). Waiting for a time plays the world up to it;
when a run is watched, a pace keeps the terminal readable and nearly stops while a person has something to decide.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from examples.demo.world import World

Pace = Callable[[], float]
"""How many seconds of wall time one tick should take now."""


def unpaced() -> float:
    return 0.0


class DemoClock:
    """Fulfils `agent.clock.Clock`."""

    def __init__(self, world: World, pace: Pace = unpaced) -> None:
        self._world = world
        self._pace = pace
        self._woken = threading.Event()

    def now_s(self) -> float:
        return self._world.now_s

    def wait_until(self, t_s: float) -> bool:
        began_s = time.monotonic()
        while self._world.now_s < t_s:
            left_s = self._pace() - (time.monotonic() - began_s)
            if self._woken.wait(max(0.0, left_s)):
                self._woken.clear()
                return False
            before_s = self._world.now_s
            self._world.advance(t_s)
            if self._world.now_s == before_s:
                break
        return True

    def wake(self) -> None:
        self._woken.set()
