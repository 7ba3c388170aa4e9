"""Books beside the looks: one thread takes looks in and turns the ledger, so that no look waits for it.

A turn over 100,000 GPUs takes seconds (`benchmarks/results/goodput_speed.json`), and a look is due every few. Looks
wait in a short queue meanwhile. If it is full, the oldest is dropped: the ledger bridges lost points, as it does
over a restart.
"""

from __future__ import annotations

import threading
from collections import deque

import structlog

from nightshift.agent.goodput.ledger import GoodputLedger
from nightshift.collectors.tick import Tick

MOST_WAITING = 16
"""Looks that wait, each with its frames: 80 s at one look each 5 s."""


class GoodputBooking:
    """One per daemon. The ledger belongs to the thread; others read what it publishes."""

    def __init__(self, ledger: GoodputLedger) -> None:
        self.ledger = ledger
        self.dropped = 0
        """Looks that the ledger never had."""
        self._waiting: deque[Tick] = deque()
        self._changed = threading.Condition()
        self._busy = self._closed = False
        self._thread: threading.Thread | None = None
        self._log = structlog.get_logger("goodput")

    def look(self, tick: Tick) -> None:
        """Hands a look over; returns at once."""
        with self._changed:
            if self._closed:
                return
            if len(self._waiting) == MOST_WAITING:
                self._waiting.popleft()
                self.dropped += 1
                self._log.warning("goodput look dropped", count=self.dropped)
            self._waiting.append(tick)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="goodput", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def resume(self) -> None:
        """Takes up what the replica that led before kept; looks from before are not booked."""
        with self._changed:
            self._waiting.clear()
        self.wait()
        self.ledger.resume()

    def wait(self, timeout_s: float = 30.0) -> bool:
        """Until every look is taken in; False where that took too long."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._busy, timeout_s)

    def close(self) -> None:
        """Ends the thread once the looks that wait are in the books."""
        self.wait()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(30.0)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                tick = self._waiting.popleft()
                self._busy = True
            try:
                self.ledger.look(tick)
            except Exception:  # noqa: BLE001  a defect of the ledger must not end the books
                self._log.exception("goodput failed")
