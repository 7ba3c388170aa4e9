"""Floors that climb like a leak are told from floors that jump, level off, or only vary."""

from __future__ import annotations

import numpy as np
import pytest

from nightshift.collectors.frame import Floats
from nightshift.detectors.memory.climb import LENGTHS, MOST, SHAPES, climbs, odds

LIMIT = 64.0
WIDTH_S = 300.0
HORIZON_S = 72 * 3600.0
BUCKETS = max(LENGTHS) + 1


def first_alarm(level: Floats) -> tuple[int, int] | None:
    """(bucket, shape) at which a floor of one process, bucket by bucket, first looks like a leak; None if never.

    Each bucket's window is one row of one question: rows know nothing of each other.
    """
    buckets = np.arange(10, len(level) + 1)
    padded = np.concatenate([np.full(BUCKETS, np.nan), level])
    windows = np.lib.stride_tricks.sliding_window_view(padded, BUCKETS)[buckets]
    found = climbs(windows, np.full(len(buckets), LIMIT), buckets, WIDTH_S, HORIZON_S)
    if not found.found.any():
        return None
    first = int(found.found.argmax())
    return int(buckets[first]), int(found.shape[first])


def noisy(level: Floats, size: float = 0.05) -> Floats:
    return level + size * np.random.default_rng(4).random(len(level))


BUCKET = np.arange(300.0)
SINCE = np.clip(BUCKET - 60, 0, None)
LEAKS = {
    "fills in two hours": (20.0 + 44.0 * SINCE / 24, 60 + 24 - 3),
    "fills in a day": (20.0 + 44.0 * SINCE / 288, 300),
    "gains pace": (20.0 + 44.0 * (SINCE / 288) ** 2, 300),
    "by stairs": (20.0 + 2.0 * np.floor(SINCE / 15), 60 + 6 * 15),
    "by a stair in six hours": (20.0 + 3.0 * np.floor(SINCE / 72), 60 + 3 * 72 + 6),
    "by stairs that take two buckets": (
        20.0 + np.floor(SINCE / 40) + np.floor(np.clip(BUCKET - 61, 0, None) / 40),
        60 + 3 * 40 + 6,
    ),
    "nearly from the start": (20.0 + 0.4 * BUCKET, 100),
}
HEALTHY = {
    "constant": np.full(300, 20.0),
    "a warm-up that levels off": 50.0 - 40.0 * np.exp(-BUCKET / 4),
    "two models loaded": 10.0 + 12.0 * (BUCKET > 80) + 20.0 * (BUCKET > 140),
    "jumps that are not alike": 10.0 + sum(s * (a < BUCKET) for s, a in ((2, 70), (9, 85), (1, 150), (15, 160))),
    "three models loaded within the hour": np.where(
        BUCKET < 80, 30.0, 13.0 + 4.6 * (BUCKET > 80) + 6.2 * (BUCKET > 83) + 4.1 * (BUCKET > 86)
    ),
    "waves of an hour": 30.0 + 8.0 * np.sin(BUCKET / 2.0),
    "a cache that fills in half an hour": 10.0 + np.clip((BUCKET - 60) * 4.0, 0, 24.0),
}


@pytest.mark.parametrize("name", sorted(LEAKS))
def test_a_leak_of_any_shape_is_found_while_there_is_time(name: str) -> None:
    """Linear, fast, gaining pace, by stairs, and of a process that climbs from its start."""
    level, before = LEAKS[name]
    found = first_alarm(noisy(np.minimum(level, LIMIT)))
    assert found is not None
    assert 60 * (name != "nearly from the start") < found[0] <= before


@pytest.mark.parametrize("name", sorted(HEALTHY))
def test_what_jumps_levels_off_or_varies_is_no_leak(name: str) -> None:
    assert first_alarm(noisy(HEALTHY[name])) is None


def test_stairs_are_named_as_such() -> None:
    found = first_alarm(noisy(LEAKS["by stairs"][0], 0.01))
    assert found is not None
    assert found[1] in (len(SHAPES) + 1, *range(len(SHAPES)))


def test_a_climb_that_needs_longer_than_the_horizon_is_none() -> None:
    """A hundredth of the room in a day: weeks to the limit."""
    assert first_alarm(noisy(20.0 + 0.44 * SINCE / 288, 0.001)) is None


def test_a_climb_that_ends_at_the_limit_is_no_stronger_than_one_just_below() -> None:
    """The tail of what healthy series do has a shape only where one of them cannot outweigh all others."""
    share = np.array([0.5, MOST, 1.0, 1.2])
    assert odds(share, 0.5) == pytest.approx([1.0, 19.0, 19.0, 19.0])
