"""Whether a floor has climbed like a leak: over hours, without peers to compare with.

The floor at a past moment is the lowest value since then: what each collection, restart and idle hour came back to.
A healthy process moves its floor in jumps (a model loaded, a cache sized) or levels off; a leak lifts it in every
part of the window, up to the end, or in jumps that are alike in size and interval (a task that runs again and again
and leaves something behind). Windows of many lengths are tried, so that no onset has to be searched for.

The shapes were fitted on a day of pod memory and of GPU memory of half the pods of Alibaba's GenAI trace
(`benchmarks/detect_leak.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nightshift.collectors.frame import Floats
from nightshift.detectors.ordered import medians

LENGTHS = (8, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 224, 256)
"""Windows in buckets."""


@dataclass(frozen=True, slots=True)
class ClimbShape:
    """What a window must look like. Shares are of the headroom at its start, or of its growth.

    part: the least growth of any sixth of the window, 1 = even; late: the same of the last third; jump: the largest
    single bucket; age: buckets between the start of the process and the window.
    """

    name: str
    buckets: int
    headroom: float
    part: float
    late: float
    jump: float
    age: int


SHAPES = (
    ClimbShape("steady", 20, 0.20, 0.3, 0.6, 0.2, 18),
    ClimbShape("slow", 30, 0.02, 0.5, 0.7, 0.2, 18),
    ClimbShape("fast", 12, 0.30, 0.5, 0.85, 0.25, 12),
    ClimbShape("young", 24, 0.15, 0.4, 0.85, 0.2, 3),
)
"""`fast` leaves a quarter of an hour before the limit of a leak that fills it in two hours; `young` needs little
history of a process that climbs nearly from its start."""


MEAN_PACE = 3.0
"""At the mean pace of its window a leak of a shape reaches the limit within this many horizons. The daily rise of a
service looks like a leak that gains pace, far below its limit."""


@dataclass(frozen=True, slots=True)
class Near:
    """The last hours before the limit: a level never seen before, high, and rising fast."""

    buckets: int = 8
    quarter: float = 0.2
    jump: float = 0.5
    history: int = 36
    above: float = 0.25
    level: float = 0.85
    horizon_s: float = 4 * 3600.0


NEAR = Near()


@dataclass(frozen=True, slots=True)
class Stairs:
    """Jumps of like size at like intervals, flat between: what a periodic task leaves behind each time.

    jumps: at least; alike: smallest over largest, of their sizes and of their intervals, and the share of the
    growth that they bring; few, much: the same where they are fewer; on: the share of time that the level stays on
    its stair, at most `above` of a jump over it.
    """

    jumps: int = 4
    alike: float = 0.6
    few: int = 3
    much: float = 0.7
    on: float = 0.6
    above: float = 0.25
    headroom: float = 0.05
    age: int = 6


STAIRS = Stairs()


@dataclass(frozen=True, slots=True)
class Saw:
    """Memory that fills and is freed, again and again: so many falls, each of a share of all that it spans."""

    teeth: int = 3
    fall: float = 0.15


SAW = Saw()


REVERTED, HIGHER = 0.75, 0.5
"""Shares: of a climb, from which a former fall compares with it; and of that fall, by which it must come higher."""


def falls(past: Floats) -> Floats:
    """[n, k] by how much each level is below the highest before it; 0 where it was not observed."""
    with np.errstate(invalid="ignore"):
        found: Floats = np.nan_to_num(np.fmax.accumulate(past, axis=1) - past)
    return found


AT_ONCE = 0.5
"""The share of a fall, down to the lowest level after it, from which on it came at once: between two values."""


def gradual(past: Floats) -> Floats:
    """[n, k] the same levels (`falls_back`) without the falls that came at once: bursts, and models that leave.

    >>> gradual(np.array([[2.0, 6.0, 2.0, 2.0, 2.0], [2.0, 6.0, 5.0, 4.0, 3.0]])).tolist()
    [[2.0, 6.0, 6.0, 6.0, 6.0], [2.0, 6.0, 5.0, 4.0, 3.0]]
    """
    columns = np.where(np.isfinite(past), np.arange(past.shape[1]), 0)
    level = np.take_along_axis(past, np.maximum.accumulate(columns, axis=1), axis=1)
    with np.errstate(invalid="ignore"):
        drop = np.nan_to_num(level[:, :-1] - level[:, 1:])
        fall = np.fmax.accumulate(level, axis=1)[:, :-1] - np.fmin.accumulate(level[:, :0:-1], axis=1)[:, ::-1]
        at_once = np.where((drop > 0) & (drop >= AT_ONCE * fall), drop, 0.0)
    found: Floats = past + np.cumsum(np.pad(at_once, ((0, 0), (1, 0))), axis=1)
    return found


def falls_back(past: Floats, growth: Floats, end: Floats, limit: Floats) -> NDArray[np.bool_]:
    """[n] whether a climb is no more than a tide: as much as it grew has come and gone before, and no lower.

    past [n, k]: levels of days, oldest first, bytes, NaN = not observed; growth, end, limit [n]: bytes. A tide of
    the day and a cache that is emptied have each been up there and come down by themselves.

    >>> tide = np.array([[2.0, 6.0, 2.0, 5.0]])
    >>> falls_back(tide, np.array([3.0]), np.array([5.0]), np.array([10.0])).tolist()
    [True]
    >>> falls_back(tide, np.array([5.5]), np.array([7.5]), np.array([10.0])).tolist()
    [False]
    """
    high = np.fmax.accumulate(past, axis=1)
    with np.errstate(invalid="ignore"):
        fall = high - past
        # a crest near the limit must leave room for news: half of what is left above it
        bar = high + np.minimum(HIGHER * fall, 0.5 * np.maximum(limit[:, None] - high, 0.0))
        bar = np.where(fall >= REVERTED * growth[:, None], bar, -np.inf)
        found: NDArray[np.bool_] = end < np.fmax.reduce(bar, axis=1, initial=-np.inf)
    return found


CHANCE, CHANCE_BUCKETS = 1.5, 96
"""Over windows of eight hours and more, a climb is this many times what chance comes to (`by_chance`): a tide and
its noise rise as far. Shorter ones are told by their shape."""


def by_chance(raw: Floats) -> Floats:
    """[n] bytes to which k steps of each row's usual size come by chance, `raw` [n, k] as in `climbs`.

    >>> by_chance(np.array([[0.0, 1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 2.0, 3.0, 4.0]])).round(1).tolist()
    [3.0, 0.0]
    """
    return _chance(raw)[1]


def _chance(raw: Floats) -> tuple[Floats, Floats]:
    """The usual step [n] of each row, and `by_chance`."""
    steps = np.diff(raw, axis=1)
    usual = medians(steps)
    return usual, 1.4826 * medians(np.abs(steps - usual[:, None])) * np.sqrt(steps.shape[1])


CLEAN, CLEAN_PART, HELD = 16.0, 0.25, 3
"""A climb of so many times what chance comes to is clean. Noise does not make its pace, so a sixth of it may grow
by so little, it may gain pace, and the floor at its end counts when it has held for so many buckets. A tide has
noise, and falls in hours as it rises: what fell at once is none."""


def is_clean(raw: Floats, growth: Floats) -> NDArray[np.bool_]:
    """[n] whether most buckets of `raw` [n, k] rise, and the climb is far from chance. To gain pace is no noise.

    >>> is_clean(np.array([[0.0, 1.1, 2.0, 3.0, 4.0], [0.0, 2.0, 1.0, 3.0, 4.0]]), np.array([4.0, 4.0])).tolist()
    [True, False]
    >>> is_clean(np.array([[0.0, 1.0, 4.0, 9.0, 16.0]]), np.array([16.0])).tolist()
    [True]
    """
    usual, chance = _chance(raw)
    chance = np.fmin(chance, _chance(raw - _bend(raw))[1])
    with np.errstate(invalid="ignore"):
        found: NDArray[np.bool_] = (usual > 0) & (growth >= CLEAN * chance)
    return found


def _bend(raw: Floats) -> Floats:
    """[n, k] the bend of a level that gains pace evenly, from its first half's median step to its second half's."""
    steps = np.diff(raw, axis=1)
    count = steps.shape[1]
    gain = medians(steps[:, -(count // 2) :]) - medians(steps[:, : count // 2])
    at = np.arange(count + 1.0)
    bend: Floats = gain[:, None] * at * (at - count) / count
    return bend


@dataclass(frozen=True, slots=True)
class Climbs:
    """The first window of each row that looks like a leak; arrays [n], bytes, buckets and bytes per bucket."""

    found: NDArray[np.bool_]
    buckets: NDArray[np.int64]
    growth: Floats
    slope: Floats
    slope_low: Floats
    slope_high: Floats
    shape: NDArray[np.int64]
    """Index into SHAPES; len(SHAPES) is `near`, one more is `stairs`."""
    end: Floats
    """The floor at the end of it."""
    strength: Floats
    """How much of the headroom the climb took, as odds over the odds that its shape asks for; 0 where none fits."""
    clean: NDArray[np.bool_]
    """Whether it is CLEAN times what chance comes to; never for `near`."""


def climbs(
    window: Floats, limit: Floats, age: NDArray[np.int64], width_s: float, horizon_s: float, strength: float = 1.0
) -> Climbs:
    """Looks at floors `window` [n, k] (bytes, oldest first, NaN = not observed) under `limit` [n] (bytes).

    age [n]: buckets since the process started. A climb that needs more than `horizon_s` to the limit is none.
    strength: the least that is found; of several windows the strongest is told.
    """
    n, count = window.shape
    result = Climbs(
        np.zeros(n, dtype=bool),
        np.zeros(n, dtype=np.int64),
        np.full(n, np.nan),
        np.full(n, np.nan),
        np.full(n, np.nan),
        np.full(n, np.nan),
        np.full(n, -1, dtype=np.int64),
        np.full(n, np.nan),
        np.zeros(n),
        np.zeros(n, dtype=bool),
    )
    highest = np.fmax.accumulate(window, axis=1)
    observed = np.isfinite(window)
    infinite = np.where(observed, window, np.inf)
    floor_now = np.minimum.accumulate(infinite[:, ::-1], axis=1)[:, ::-1]
    falls = -np.diff(window, axis=1)
    top, low = np.fmax.accumulate(window[:, ::-1], axis=1), np.fmin.accumulate(window[:, ::-1], axis=1)
    for length in LENGTHS:
        if length > count:
            break
        rows = np.flatnonzero(
            observed[:, -1] & (age >= length) & (observed[:, -length:].mean(axis=1) >= min(0.8, 3.0 / length + 0.5))
        )
        before = highest[:, -length - 1] if length < count else np.full(n, np.nan)

        def look(at: NDArray[np.int64], floor: Floats, before: Floats = before, length: int = length) -> None:
            if len(at):
                raw = window[at, -length:]
                seen = _look(result, at, floor, raw, before[at], limit[at], age[at], width_s, horizon_s, strength)
                rest, floor, raw = at[~seen], floor[~seen], raw[~seen]
                _look_for_stairs(result, rest, floor, raw, limit[rest], age[rest], width_s, horizon_s, strength)

        look(rows, floor_now[rows, -length:])
        big = falls[rows, 1 - length :] >= SAW.fall * (top[rows, length - 1] - low[rows, length - 1])[:, None]
        saws = (big.sum(axis=1) >= SAW.teeth) & ~result.found[rows]
        look(rows[saws], _to_last_trough(floor_now[rows[saws], -length:], big[saws]))
    return result


def _look(
    result: Climbs,
    rows: NDArray[np.int64],
    floor: Floats,
    raw: Floats,
    before: Floats,
    limit: Floats,
    age: NDArray[np.int64],
    width_s: float,
    horizon_s: float,
    least: float,
) -> NDArray[np.bool_]:
    """Which of `rows` have one of SHAPES or NEAR in this window; `result` takes what is stronger than it has."""
    length = floor.shape[1]
    late, growth, share = _grown(floor, _held(length), limit)
    clean: NDArray[np.bool_] = (growth > 0) & (share >= min(s.headroom for s in SHAPES))
    clean[clean] = is_clean(raw[clean], growth[clean])
    floor = np.where(clean[:, None], late, _grown(floor, max(1, length // 12), limit)[0])
    floor, growth, share = _grown(floor, 1, limit)
    some, end = growth > 0, floor[:, -1]
    growth, left = np.where(some, growth, 1.0), limit - end
    eta_s = _eta(left, floor, growth) * width_s
    # A climb may gain pace, but not so much that most of what it needs is yet to be seen.
    eta_s = np.where(clean | (width_s * left * (length - 1) / growth <= MEAN_PACE * horizon_s), eta_s, np.inf)
    sixths = _parts(floor, 6) / growth[:, None]
    quarters = _parts(floor, 4) / growth[:, None]
    jump = np.diff(floor, axis=1).max(axis=1) / growth
    shape, strength = np.full(len(rows), -1), np.zeros(len(rows))
    for number, s in reversed(list(enumerate(SHAPES))):
        part = np.where(clean, min(s.part, CLEAN_PART), s.part)
        fits = some & (length >= s.buckets) & (6 * sixths.min(axis=1) >= part) & (jump <= s.jump)
        fits &= (3 * sixths[:, -2:].sum(axis=1) >= s.late) & (age - length >= s.age) & (eta_s <= horizon_s)
        _stronger(shape, strength, number, np.where(fits, odds(share, s.headroom), 0.0))
    with np.errstate(invalid="ignore"):
        near = (age - length >= NEAR.history) & (
            end - before >= NEAR.above * np.maximum(limit - before, 0.02 * limit)
        )
    near &= some & (eta_s <= NEAR.horizon_s) & (jump <= NEAR.jump)
    near &= (4 * quarters.min(axis=1) >= NEAR.quarter) & (length >= NEAR.buckets)
    _stronger(shape, strength, len(SHAPES), np.where(near, odds(end / limit, NEAR.level), 0.0))
    seen: NDArray[np.bool_] = strength >= least
    fits = seen & (strength > result.strength[rows])
    if length >= CHANCE_BUCKETS and fits.any():
        fits[fits] = growth[fits] >= CHANCE * by_chance(raw[fits])
    result.clean[rows[fits]] = (shape[fits] < len(SHAPES)) & clean[fits]
    slope = growth[fits] / length
    _take(result, rows[fits], shape[fits], strength[fits], floor[fits], growth[fits], slope)
    return seen


def _look_for_stairs(
    result: Climbs,
    rows: NDArray[np.int64],
    floor: Floats,
    raw: Floats,
    limit: Floats,
    age: NDArray[np.int64],
    width_s: float,
    horizon_s: float,
    least: float,
) -> None:
    """Between its jumps a stair does not move: chance is no matter, and HELD buckets of the last one are enough."""
    length = floor.shape[1]
    floor, growth, share = _grown(floor, _held(length), limit)
    left, strength = limit - floor[:, -1], odds(share, STAIRS.headroom)
    fits = (strength >= least) & (strength > result.strength[rows]) & (age - length >= STAIRS.age)
    fits &= width_s * left * (length - 1) <= MEAN_PACE * horizon_s * growth
    fits[fits] = _eta(left[fits], floor[fits], growth[fits]) * width_s <= horizon_s
    at = np.flatnonzero(fits)
    # models are loaded by stairs, too, but within the hour
    clean = (growth[at] >= CLEAN * by_chance(raw[at])) & (length > 12 * HELD)
    found = _stairs(floor[at], raw[at], growth[at], clean)
    at, clean = at[found], clean[found]
    rises = np.diff(floor[at], axis=1) > 0
    until = rises.shape[1] - np.argmax(rises[:, ::-1], axis=1)  # how long the last stair lasts is not known yet
    result.clean[rows[at]] = clean
    shape = np.full(len(at), len(SHAPES) + 1)
    _take(result, rows[at], shape, strength[at], floor[at], growth[at], growth[at] / until)


def _held(length: int) -> int:
    """Buckets for which the end of a climb without noise was seen to hold."""
    return min(HELD, max(1, length // 12))


def _grown(floor: Floats, tail: int, limit: Floats) -> tuple[Floats, Floats, Floats]:
    """Floors up to `tail` buckets before the end, level from there; their growth, 0 where none; and its share of
    the headroom. The floor of the last buckets has yet to be seen to hold."""
    floor = np.minimum(floor, floor[:, -tail, None])
    start = floor[:, 0]
    growth = np.where(np.isfinite(start), floor[:, -1] - start, 0.0)
    headroom = np.maximum(limit - start, 1.0)
    growth = np.where(growth > 1e-9 * headroom, growth, 0.0)
    return floor, growth, growth / headroom


def _take(
    result: Climbs,
    at: NDArray[np.int64],
    shape: NDArray[np.int64],
    strength: Floats,
    floor: Floats,
    growth: Floats,
    slope: Floats,
) -> None:
    """Rows `at` of `result` are these climbs from now on, at `slope` (bytes per bucket)."""
    length = floor.shape[1]
    result.found[at], result.buckets[at], result.shape[at] = True, length, shape
    result.strength[at], result.growth[at], result.end[at] = strength, growth, floor[:, -1]
    pace = 6 * _parts(floor, 6) / length
    spread = pace.std(axis=1, ddof=1) / np.sqrt(6) * 2.015  # t quantile, 5 degrees of freedom, one-sided 95 %
    result.slope[at] = slope
    result.slope_low[at], result.slope_high[at] = np.maximum(slope - spread, 0.0), slope + spread


def _to_last_trough(floor: Floats, falls: NDArray[np.bool_]) -> Floats:
    """The floors of saws up to what their last tooth came down to, since the tooth that stands on it rises like a
    leak until it comes down in its turn. falls [n, length - 1]: where teeth end."""
    last = falls.shape[1] - np.argmax(falls[:, ::-1], axis=1)
    found: Floats = np.minimum(floor, np.take_along_axis(floor, last[:, None], axis=1))
    return found


def _stronger(shape: NDArray[np.int64], strength: Floats, number: int, of_it: Floats) -> None:
    """Takes `number` over where it is stronger (in place)."""
    better = of_it > strength
    shape[better], strength[better] = number, of_it[better]


MOST = 0.95
"""A climb that took this share of its headroom is as strong as one that took all: how near the limit a healthy
series happens to be says nothing of the odds of the next."""


def odds(share: Floats, bar: float) -> Floats:
    """Odds of a share over the odds of the bar: 1 where just met, the same from MOST on.

    >>> odds(np.array([0.2, 0.5, 0.95, 1.0]), 0.2).round(1).tolist()
    [1.0, 4.0, 76.0, 76.0]
    """
    clipped = np.clip(share, 0.0, MOST)
    found: Floats = clipped / (1.0 - clipped) * (1.0 - bar) / bar
    return found


def _parts(floor: Floats, count: int) -> Floats:
    """[n, count] growth of each of `count` equal parts of the window."""
    edges = np.linspace(0, floor.shape[1] - 1, count + 1).astype(int)
    return np.diff(floor[:, edges], axis=1)


def _eta(left: Floats, floor: Floats, growth: Floats) -> Floats:
    """Buckets to the limit, at the pace of the end of the window and gaining pace as it did within it.

    A climb that slows down is carried on at its mean pace.
    """
    last = floor.shape[1] - 1
    half = last // 2
    first = (floor[:, half] - floor[:, 0]) / half
    second = (floor[:, last] - floor[:, half]) / (last - half)
    gain = np.maximum(second - first, 0.0) / (last / 2)
    pace = np.maximum(growth / last, second + gain * (last - half) / 2)
    with np.errstate(invalid="ignore"):
        speed = np.sqrt(pace * pace + 2.0 * gain * np.maximum(left, 0.0))
    found: Floats = 2.0 * np.maximum(left, 0.0) / (pace + speed)
    return found


def _stairs(floor: Floats, raw: Floats, growth: Floats, clean: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which rows climb by jumps that are alike, and stay on the stair between. Where nothing else moves (`clean`),
    a jump may take two buckets, and three jumps need be no more alike than four."""
    rises = np.diff(floor, axis=1)
    rises[:, 1:] = np.where(clean[:, None], floor[:, 2:] - floor[:, :-2], rises[:, 1:])
    largest = rises.max(axis=1)
    jumps = rises >= STAIRS.alike * largest[:, None]
    begins = jumps & ~(clean[:, None] & np.pad(jumps[:, :-1], ((0, 0), (1, 0))))
    count = begins.sum(axis=1)
    found: NDArray[np.bool_] = (largest > 0) & (count >= STAIRS.few) & (count <= floor.shape[1] // 4)
    for row in np.flatnonzero(found).tolist():
        first = np.flatnonzero(begins[row])
        parts = np.split(np.where(jumps[row], rises[row], 0.0), first)[1:]
        sizes = np.array([part.max() for part in parts])
        places = first + np.array([int(np.argmax(part)) for part in parts])
        gaps = np.diff(places)
        asked = STAIRS.alike if clean[row] or count[row] >= STAIRS.jumps else STAIRS.much
        above = raw[row] - floor[row]
        on = float(np.mean(above[np.isfinite(above)] <= STAIRS.above * float(np.median(sizes))))
        since = floor.shape[1] - 1 - places[-1]
        alike = sizes.min() >= asked * largest[row] and gaps.min() + 1 >= asked * gaps.max()
        held = sizes.sum() >= asked * growth[row] and on >= max(asked, STAIRS.on)
        found[row] = bool(gaps.min() >= 2 and alike and held and since <= gaps.max() / STAIRS.alike)
    return found
