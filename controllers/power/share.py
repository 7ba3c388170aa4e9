"""How what a rack has is shared among its gangs: fair by what is believed of each one's curve. Pure.

Fairness is isoelastic (J. Mo, J. Walrand, "Fair End-to-End Window-Based Congestion Control", 2000) in the time per
work: `aversion` 1 would be best for the mean, without end for the slowest. Every gang's gain per watt is made
falling (its concave majorant, by pool adjacent violators), so that taking the best gain first is exact up to one
level.

A gang that was never seen at its highest limit has no reference: how slow it is now is a guess, ten per cent off,
and that is where the slowest job loses most. So the least known ones get the highest limit for a window, a few at a
time, before they get their share.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import isotonic_regression

from controllers.power.belief import TOP, Bank, Ints, N, Noise, Windows, outlook
from controllers.power.curves import LEVELS, Floats


@dataclass(frozen=True)
class Sharing:
    """How a rack is shared."""

    aversion: float = 12.0
    probes: int = 2  # gangs at once
    known: float = 0.03  # deviation of the believed slowdown from which a gang is asked for its reference
    tries: int = 4  # windows in which that may fail
    least: float = 1e-4  # gain of a level (slowdown, weighed) that is worth its power
    noise: Noise = field(default_factory=Noise)


@dataclass(frozen=True, eq=False)
class Claims:
    """Of n gangs: their windows; the level that each is at, its lowest and the highest that it asks for [n]; what
    one level costs [n], in the unit of the room; windows in which its reference was asked for in vain [n]."""

    windows: Windows
    level: Ints
    lowest: Ints
    ceiling: Ints
    cost: Floats
    tried: Ints


def divide(bank: Bank, claims: Claims, room: float, s: Sharing) -> tuple[Ints, Ints]:
    """(level of each gang [n], rows that are asked for their reference). The sum of level times cost, counted from
    limit nought, keeps within `room` wherever it does at the lowest levels. `bank`: made with `steep` of RANGE."""
    n, rows = len(claims.level), np.arange(len(claims.level))
    if n == 0:
        return claims.lowest.copy(), rows
    seen = outlook(bank, claims.windows, claims.level, s.noise, guess=True)
    time = np.maximum.accumulate((1.0 + seen.slowdown)[:, ::-1], axis=1)[:, ::-1]
    doubt = seen.slowdown_sd[rows, claims.level]
    asks = (claims.windows.count[:, TOP] == 0) & (doubt > s.known) & (claims.tried < s.tries)
    asks &= (claims.ceiling == TOP) & (claims.level < TOP)
    probed = np.argsort(np.where(asks, -doubt, np.inf), kind="stable")[: s.probes]
    probed = probed[asks[probed]]
    lowest = claims.lowest.copy()
    for row in probed:
        lowest[row] = TOP
        if _cost(lowest, claims.cost) > room:  # not even with all others at their lowest
            lowest[row] = claims.lowest[row]
    probed = probed[lowest[probed] == TOP]
    return share_out(time, claims.cost, lowest, claims.ceiling, room, s), probed


def share_out(time: Floats, cost: Floats, lowest: Ints, ceiling: Ints, room: float, s: Sharing) -> Ints:
    """Levels [n] by `time` [n, n_levels] per work, 1 at the highest."""
    gain = np.diff(-(time**s.aversion) / s.aversion, axis=1)
    steps = np.arange(N - 1)[None]
    gain = np.where((steps >= lowest[:, None]) & (steps < ceiling[:, None]), gain, 0.0)
    for row, (low, high) in enumerate(zip(lowest, ceiling, strict=True)):
        if high - low > 1:
            gain[row, low:high] = isotonic_regression(gain[row, low:high], increasing=False).x
    flat = gain.ravel()
    best = np.argsort(-flat, kind="stable")
    best = best[flat[best] > s.least]
    spent = np.cumsum(cost[best // (N - 1)])
    taken = best[spent <= room - _cost(lowest, cost) + 1e-9 * room]
    return np.asarray(lowest + np.bincount(taken // (N - 1), minlength=len(lowest)))


def _cost(level: Ints, cost: Floats) -> float:
    return float((LEVELS[level] * 100.0 * cost).sum())
