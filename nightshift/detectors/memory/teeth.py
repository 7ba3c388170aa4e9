"""Teeth that come down less each time: a leak under a saw, by three troughs, where the job's other ranks have none.

A saw whose teeth take an hour shows one stair an hour, too few for `detectors.memory.climb` before a fast leak is
over. Against ranks that fill and free alike and come down to where they were, three are enough.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from nightshift.collectors.frame import Floats
from nightshift.collectors.subject import Inventory
from nightshift.detectors.memory.climb import NEAR, SAW, STAIRS
from nightshift.detectors.memory.contrast import Climb
from nightshift.detectors.memory.floors import Matrix
from nightshift.detectors.memory.signals import (
    CONTRAST_RATIO,
    MIN_GROWTH_BYTES,
    LeakSettings,
    LeakSignal,
    peers_of,
    rank_of,
)

TROUGHS = 3
Places = tuple[int, int, int]
Told = tuple[int, float, dict[str, float | str]]
"""Row, strength and facts."""


def told(
    signal: LeakSignal,
    window: Matrix,
    candidates: NDArray[np.int64],
    settings: LeakSettings,
    inventory: Inventory,
    at_s: float,
) -> tuple[Climb, list[Told]]:
    """The candidates (slots) whose troughs rise, and soon reach the limit, while those of their job's other ranks
    stay."""
    climb, places = rising(window[candidates], signal.patience.width_s, MIN_GROWTH_BYTES)
    return climb, list(_alone(signal, window, candidates, climb, places, settings, inventory, at_s))


def _alone(
    signal: LeakSignal,
    window: Matrix,
    candidates: NDArray[np.int64],
    climb: Climb,
    places: list[Places],
    settings: LeakSettings,
    inventory: Inventory,
    at_s: float,
) -> Iterator[Told]:
    for row in np.flatnonzero(climb.steady & signal.observed[candidates]).tolist():
        slot, growth = int(candidates[row]), float(climb.growth_bytes[row])
        subject = signal.table.subjects[slot]
        if rank_of(subject, inventory, at_s) is None:
            continue  # replicas of a service hold what their own users bring them: no control
        rose = grown(window[peers_of(subject, signal, inventory, at_s)], places[row])
        rose = rose[np.isfinite(rose)]
        if len(rose) == 0 or signal.eta_s(slot, float(climb.slope[row]), crest=True) > NEAR.horizon_s:
            continue
        usual = max(float(np.median(rose)), 0.0)
        strength = growth / (CONTRAST_RATIO * usual + 0.5 * MIN_GROWTH_BYTES)
        if strength > settings.strength and float(np.mean(rose > growth / CONTRAST_RATIO)) <= 0.34:
            peers: dict[str, float | str] = {"peers": float(len(rose)), "peer_growth_bytes": usual}
            yield row, strength, peers | {"test": "patience", "shape": "teeth"}


def rising(window: Matrix, width_s: float, least: float) -> tuple[Climb, list[Places]]:
    """How the last three troughs of each row of `window` [n, k] rise, and the buckets in which they stand.

    `steady`: by at least `least` each time, alike in size and interval, the last of them not long ago.
    """
    n, count = window.shape
    steady, found = np.zeros(n, dtype=bool), np.full((6, n), np.nan)
    places: list[Places] = [(0, 0, 0)] * n
    with np.errstate(invalid="ignore"):
        spread = np.fmax.reduce(window, axis=1) - np.fmin.reduce(window, axis=1)
        falls = -np.diff(window, axis=1) >= SAW.fall * spread[:, None]
    for row in np.flatnonzero(falls.sum(axis=1) >= TROUGHS).tolist():
        first, second, third = (int(place) for place in np.flatnonzero(falls[row])[-TROUGHS:] + 1)
        troughs = window[row, [first, second, third]].astype(float)
        rises, gaps = np.diff(troughs), np.array([second - first, third - second])
        alike = rises.min() >= STAIRS.alike * rises.max() and gaps.min() + 1 >= STAIRS.alike * gaps.max()
        since = count - 1 - third
        if rises.min() < least or not alike or gaps.min() < 2 or since > gaps.max() / STAIRS.alike:
            continue
        paces, lasted_s, growth = rises / (gaps * width_s), (third - first) * width_s, troughs[2] - troughs[0]
        steady[row], places[row] = True, (first, second, third)
        found[:, row] = growth, lasted_s, growth / lasted_s, paces.min(), paces.max(), troughs[2]
    return Climb(steady, *found), places


def grown(window: Matrix, places: Places) -> Floats:
    """[n] bytes by which peers' floors rose meanwhile: from the first tooth to the second, twice."""
    first, second, third = places
    lows = [np.fmin.reduce(window[:, a:b], axis=1) for a, b in ((first, second), (second, third))]
    rose: Floats = 2.0 * (lows[1] - lows[0]).astype(float)
    return rose
