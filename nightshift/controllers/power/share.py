"""How what a rack has is shared among its gangs: fair by what is believed of each one's curve. Pure.

Fairness is isoelastic (J. Mo, J. Walrand, "Fair End-to-End Window-Based Congestion Control", 2000) in the time per
work: `aversion` 1 would be best for the mean, without end for the slowest. Every gang's gain per watt is made
falling (its concave majorant, by pool adjacent violators), so that taking the best gain first is exact up to one
level.

A gang that was never seen at its highest limit has no reference: how slow it is now is a guess, ten per cent off,
and that is where the slowest job loses most. So the least known ones get the highest limit that the rack has for
one, for a window, a few at a time, before they get their share.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np

from nightshift.controllers.power.belief import TOP, Bank, Ints, LevelWindows, N, Noise, outlook
from nightshift.controllers.power.curves import LEVELS, Floats, nearest_monotone

RANGE = 1.5
"""Log time that matters to a rack: its slowest jobs stand far below any slowdown budget."""


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
    """Of n gangs: believed time per work [n, n_levels], 1 at the highest; and [n] each: its deviation where the
    gang is now, the highest level that it was seen at (-1: none), the level that it is at, its lowest and the
    highest that it asks for, windows in which its reference was asked for in vain."""

    time: Floats
    doubt: Floats
    top: Ints
    level: Ints
    lowest: Ints
    ceiling: Ints
    tried: Ints

    @classmethod
    def of(
        cls, bank: Bank, windows: LevelWindows, level: Ints, lowest: Ints, ceiling: Ints, tried: Ints, noise: Noise
    ) -> Claims:
        """`bank`: made with a `steep` of RANGE."""
        seen = outlook(bank, windows, level, noise, guess=True)
        time = np.maximum.accumulate((1.0 + seen.slowdown)[:, ::-1], axis=1)[:, ::-1]
        doubt = seen.slowdown_sd[np.arange(len(level)), level]
        top = np.where(windows.count > 0, np.arange(N), -1).max(1)
        return cls(time, doubt, top, level, lowest, ceiling, tried)

    def rows(self, rows: Ints) -> Claims:
        return Claims(*(getattr(self, f.name)[rows] for f in fields(self)))


def divide(claims: Claims, cost: Floats, budget: float, s: Sharing) -> tuple[Ints, Ints]:
    """(level of each gang [n], rows that are asked for their reference). `cost`: of one level [n], in the unit of
    the budget. The sum of level times cost, counted from limit nought, keeps within it wherever it does at the
    lowest levels."""
    reach = _reach(claims.lowest, cost, budget)
    asks = (claims.top < reach) & (claims.level < reach) & (claims.ceiling >= reach)
    asks &= (claims.doubt > s.known) & (claims.tried < s.tries)
    order = np.argsort(np.where(asks, -claims.doubt, np.inf), kind="stable")[: s.probes]
    lowest, probed = claims.lowest.copy(), []
    for row in order[asks[order]]:
        before, lowest[row] = lowest[row], reach[row]
        if _cost(lowest, cost) > budget * (1.0 + 1e-9):  # not beside the others that are asked
            lowest[row] = before
        else:
            probed.append(int(row))
    return share_out(claims.time, cost, lowest, claims.ceiling, budget, s), np.array(probed, dtype=np.int64)


def share_out(time: Floats, cost: Floats, lowest: Ints, ceiling: Ints, budget: float, s: Sharing) -> Ints:
    """Levels [n] by `time` [n, n_levels] per work, 1 at the highest."""
    gain = np.diff(-(time**s.aversion) / s.aversion, axis=1)
    steps = np.arange(N - 1)[None]
    gain = np.where((steps >= lowest[:, None]) & (steps < ceiling[:, None]), gain, 0.0)
    for row, (low, high) in enumerate(zip(lowest, ceiling, strict=True)):
        if high - low > 1:
            gain[row, low:high] = nearest_monotone(gain[row, low:high], rises=False)
    flat = gain.ravel()
    best = np.argsort(-flat, kind="stable")
    best = best[flat[best] > s.least]
    spent = np.cumsum(cost[best // (N - 1)])
    taken = best[spent <= budget - _cost(lowest, cost) + 1e-9 * budget]
    return np.asarray(lowest + np.bincount(taken // (N - 1), minlength=len(lowest)))


def _reach(lowest: Ints, cost: Floats, room: float) -> Ints:
    """The highest level that each could have [n] with all others at their lowest."""
    alone = (room - _cost(lowest, cost)) / cost + LEVELS[lowest] * 100.0
    found = np.searchsorted(LEVELS * 100.0, alone + 1e-6, side="right") - 1
    return np.asarray(np.clip(found, lowest, TOP))


def _cost(level: Ints, cost: Floats) -> float:
    return float((LEVELS[level] * 100.0 * cost).sum())
