"""Which rank left its peers first, where each rank logs its own loss or gradient norm.

After an all-reduce all ranks show the same damage, and nobody can be named. But what a rank computes alone leaves
first on the rank whose hardware flipped the bit: its local gradient norm or loss runs away a few steps before the
others' does. A rank is named only if it was away alone, by several of its peers' spreads, in every step right
before the damage reached the job: a spike of its own long before says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nightshift.agent.rca.grounding import MAD_TO_SIGMA
from nightshift.collectors.frame import Floats
from nightshift.collectors.history import History
from nightshift.collectors.subject import Subject

SIGNALS = ("grad_norm", "loss")
SPREADS = 8.0
"""Robust standard deviations of the peers from which on a rank has left them."""
RATIO = 1.5
"""... and by this factor: peers may agree to many digits, and a spread of nothing makes all look far."""
BEFORE_S, AFTER_S = 300.0, 60.0
LEAST_STEPS, LEAST_LEAD, STAYS = 20, 2, 3
"""Steps to know the usual by; steps alone before the others; steps for which the job stays damaged."""


@dataclass(frozen=True)
class Departure:
    """The rank that left first at `step` (t_s: Unix s), `lead_steps` before any other; its value and its peers'."""

    rank: Subject
    signal: str
    step: int
    t_s: float
    value: float
    peers: float
    lead_steps: int
    ranks: int


def first_to_leave(history: History, ranks: Sequence[Subject], onset_s: float) -> Departure | None:
    """The rank that left its peers before the onset's damage reached all; None where none stands out."""
    for signal in SIGNALS:
        found = _first(signal, _aligned(history, ranks, signal, onset_s))
        if found is not None:
            return found
    return None


def _aligned(
    history: History, ranks: Sequence[Subject], signal: str, onset_s: float
) -> Mapping[Subject, Mapping[int, tuple[float, float]]]:
    """By rank: step → (t_s, value), of the newest run through each step."""
    found = {}
    for rank in ranks:
        steps = history.steps(rank, onset_s - BEFORE_S, onset_s + AFTER_S)
        if steps is None:
            continue
        values = steps.column(signal)
        rows = {
            int(s): (float(t), float(v))
            for s, t, v in zip(steps.step, steps.t_s, values, strict=True)
            if not np.isnan(v)
        }
        if len(rows) >= LEAST_STEPS:
            found[rank] = rows
    return found


def _first(signal: str, told: Mapping[Subject, Mapping[int, tuple[float, float]]]) -> Departure | None:
    ranks = sorted(told)
    if len(ranks) < 2:
        return None
    common = sorted(set.intersection(*(set(rows) for rows in told.values())))
    if len(common) < LEAST_STEPS:
        return None
    values = np.array([[told[rank][step][1] for rank in ranks] for step in common])
    if np.ptp(np.where(np.isfinite(values), values, 0.0), axis=1).max() == 0.0:
        return None  # all-reduced: everybody's is the same
    spread_out = _spread_out(values)
    away = _away(values)
    row = spread_out - 1
    column = int(np.argmax(away[row])) if row >= 0 else 0
    while row >= 0 and away[row].sum() == 1 and away[row, column]:
        row -= 1
    lead = spread_out - 1 - row
    if lead < LEAST_LEAD:
        return None
    row += 1
    peers = float(np.median(np.delete(values[row], column)))
    step = common[row]
    t_s, value = told[ranks[column]][step]
    return Departure(ranks[column], signal, step, t_s, value, peers, lead, len(ranks))


def _usual(values: Floats) -> Floats:
    """The early steps, by which the usual level and spread are known."""
    return values[: max(LEAST_STEPS // 2, len(values) // 2)]


def _spread_out(values: Floats) -> int:
    """The row at which the damage reached the job: half of the ranks or more, for several steps; else the end."""
    level = float(np.nanmedian(_usual(values)))
    with np.errstate(invalid="ignore"):
        damaged = ~np.isfinite(values) | (values > RATIO * level)
    many = damaged.sum(axis=1) >= max(2, values.shape[1] // 2)
    for row in range(len(many)):
        if many[row : row + STAYS].all():
            return row
    return len(many)


def _away(values: Floats) -> NDArray[np.bool_]:
    """[n_steps, n_ranks] whether a rank has left the others: beyond spread and factor, or not finite alone."""
    early = _usual(values)
    gap = np.abs(early - np.median(early, axis=1, keepdims=True))
    known = gap[np.isfinite(gap) & (gap > 0)]
    spread = max(MAD_TO_SIGMA * float(np.median(known)) if len(known) else 0.0, 1e-3 * float(np.nanmedian(early)))
    away = np.zeros(values.shape, dtype=np.bool_)
    for column in range(values.shape[1]):
        own, level = values[:, column], np.median(np.delete(values, column, axis=1), axis=1)
        with np.errstate(invalid="ignore"):
            far = (own - level > SPREADS * spread) & (own > RATIO * np.abs(level))
        away[:, column] = (far | ~np.isfinite(own)) & np.isfinite(level)
    return away
