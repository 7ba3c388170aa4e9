"""What the console keeps for moments: how long, and who pays for making it anew."""

from __future__ import annotations

import threading

import pytest

from nightshift.agent.presentation.overview import Fresh

ANSWER_S = 60.0


class Maker:
    """Takes `took_s` of a clock that only it moves, and counts."""

    def __init__(self, took_s: float) -> None:
        self.took_s, self.made, self.now_s = took_s, 0, 1000.0
        self.done = threading.Semaphore(0)

    def __call__(self) -> int:
        self.now_s += self.took_s
        self.made += 1
        self.done.release()
        return self.made


@pytest.mark.parametrize(
    ("took_s", "good_s"), [(0.01, 2.5), (0.3, 6.0), (4.0, 7.5)], ids=["cheap", "dear", "slow machine"]
)
def test_what_takes_long_to_make_is_kept_for_longer(took_s: float, good_s: float) -> None:
    """Twenty times as long as it took, within bounds: the detectors share the interpreter with the readers."""
    maker = Maker(took_s)
    fresh: Fresh[int] = Fresh(clock=lambda: maker.now_s)
    assert fresh.get("fleet", maker) == 1
    assert maker.done.acquire(timeout=ANSWER_S)
    maker.now_s += good_s - 0.001
    assert fresh.get("fleet", maker) == 1
    assert maker.made == 1
    maker.now_s += 0.002
    assert fresh.get("fleet", maker) == 1, "a reader waits only for what is past bearing"
    assert maker.done.acquire(timeout=ANSWER_S)
    assert maker.made == 2


def test_past_bearing_the_reader_waits_for_what_is_true_now() -> None:
    """A page that is a quarter of a minute old is not shown."""
    maker = Maker(0.3)
    fresh: Fresh[int] = Fresh(clock=lambda: maker.now_s)
    fresh.get("fleet", maker)
    maker.now_s += 15.1
    assert fresh.get("fleet", maker) == 2


def test_what_was_made_for_its_first_reader_is_there_for_the_second() -> None:
    """Who made it before anybody knew that it is dear keeps it for the others."""
    maker = Maker(0.3)
    fresh: Fresh[int] = Fresh(clock=lambda: maker.now_s)
    assert fresh.anew("fleet", maker) == 1
    assert fresh.get("fleet", maker) == 1
    assert fresh.anew("fleet", maker) == 2


def test_an_error_reaches_the_reader_who_waits_and_is_not_kept() -> None:
    fresh: Fresh[int] = Fresh()

    def broken() -> int:
        raise OSError("the database is away")

    with pytest.raises(OSError, match="away"):
        fresh.get("fleet", broken)
    assert fresh.get("fleet", lambda: 7) == 7
