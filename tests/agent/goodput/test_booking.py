"""Looks are booked beside the looking: none waits for a turn, and each is in the books in the end."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from nightshift.agent.goodput.booking import MOST_WAITING, GoodputBooking
from nightshift.collectors.tick import Tick


class SlowLedger:
    """Stands in for a ledger: its turn takes until it is released."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.times: list[float] = []

    def look(self, tick: Tick) -> None:
        self.release.wait(10.0)
        self.times.append(tick.at_s)
        if tick.at_s == 3.0:
            raise ValueError("a defect")

    def resume(self) -> None:
        self.times.append(-1.0)


@pytest.fixture
def booking() -> Any:
    made = GoodputBooking(SlowLedger())  # type: ignore[arg-type]
    yield made
    made.ledger.release.set()  # type: ignore[attr-defined]
    made.close()


def test_no_look_waits_and_a_defect_ends_nothing(booking: Any) -> None:
    began = time.monotonic()
    for at_s in range(5):
        booking.look(Tick(float(at_s)))
    assert time.monotonic() - began < 1.0
    assert not booking.wait(0.05)
    booking.ledger.release.set()
    assert booking.wait(10.0)
    assert booking.ledger.times == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_a_full_queue_drops_the_oldest(booking: Any) -> None:
    booking.look(Tick(-5.0))
    while booking._waiting:
        time.sleep(0.01)
    for at_s in range(MOST_WAITING + 3):
        booking.look(Tick(float(at_s)))
    booking.ledger.release.set()
    assert booking.wait(10.0)
    assert booking.dropped == 3
    assert booking.ledger.times == [-5.0, *map(float, range(3, MOST_WAITING + 3))]


def test_a_new_leader_forgets_looks_from_before(booking: Any) -> None:
    for at_s in range(4):
        booking.look(Tick(float(at_s)))
    booking.ledger.release.set()
    booking.resume()
    assert booking.ledger.times[-1] == -1.0


def test_what_waits_is_booked_before_the_end(booking: Any) -> None:
    for at_s in range(3):
        booking.look(Tick(float(at_s)))
    booking.ledger.release.set()
    booking.close()
    booking.look(Tick(9.0))
    assert booking.ledger.times == [0.0, 1.0, 2.0]
