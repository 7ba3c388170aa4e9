"""Waiting ends at the time, or when somebody wakes it."""

from __future__ import annotations

import threading
import time

import pytest

from nightshift.agent.clock import SteppedClock, WallClock


def test_a_stepped_clock_jumps_to_the_time_that_is_waited_for_and_never_back() -> None:
    """Waiting costs no wall time and time does not run backwards."""
    clock = SteppedClock(100.0)
    assert clock.wait_until(3600.0)
    assert clock.now_s() == 3600.0
    assert clock.wait_until(50.0)
    assert clock.now_s() == 3600.0


def test_a_wake_ends_one_wait_even_when_it_came_first() -> None:
    """A shutdown between two waits is not lost, and does not end the wait after."""
    for clock in (WallClock(), SteppedClock(time.time())):
        clock.wake()
        assert not clock.wait_until(clock.now_s() + 60)
        assert clock.wait_until(clock.now_s() + 0.01)


def test_a_wait_is_cut_short_from_another_thread() -> None:
    """SIGTERM does not have to wait for the next tick."""
    clock = WallClock()
    threading.Timer(0.05, clock.wake).start()
    began_s = time.monotonic()
    assert not clock.wait_until(clock.now_s() + 30)
    assert time.monotonic() - began_s < 25


def test_a_clock_that_jumps_back_does_not_strand_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait never lasts longer than was asked for when it began, whatever happens to the wall clock."""
    clock = WallClock()
    now_s = time.time()
    readings = iter([now_s])
    monkeypatch.setattr(clock, "now_s", lambda: next(readings, now_s - 86_400))
    monkeypatch.setattr(WallClock, "_PIECE_S", 0.05)
    began_s = time.monotonic()
    assert clock.wait_until(now_s + 0.1)
    assert time.monotonic() - began_s < 25
