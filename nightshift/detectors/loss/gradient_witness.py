"""What the gradient norm says of a loss that jumped: whether the model itself changed, or only its data.

A loss that jumps and stays up may be a shift of the data that the run will learn, or damage that it will not; the
first dozen losses look alike. The gradient norm tells many of them apart: new data move it little (it rises for a
few steps and comes back), while damaged weights or a broken backward pass change its size at once, by a factor, for
good: saturated layers pass almost no gradient, an exploding one passes far too much. So it is a witness and never
the accuser: it shortens the wait for a loss that stands above its baseline. Alone it says nothing: a larger batch
or a longer context moves it as well, without a rise of the loss.

Norms are judged as logarithms: they are positive, and their scatter is a factor (Gaussian on the logarithm, as in
the adaptive clipping of AutoClip, Seetharaman et al., arXiv 2007.14469).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nightshift.collectors.frame import Floats
from nightshift.detectors.series_table import Column, SeriesTable

STEPS = 8
"""Steps of a watch that must all agree."""
LEAST = 40
"""Norms that a baseline needs."""
COLLAPSED = 0.8
"""Every norm below e^-0.8 = 0.45 of the baseline. A batch four times as large, with gradients that are all noise,
halves the norm (McCandlish et al., arXiv 1812.06162); of the benign labelled runs none fell below 0.65."""
EXPLODED = 1.5
"""The median above e^1.5 = 4.5 times the baseline; on new data 3 times was seen, for five steps."""
HELD = 0.9
"""... and every norm above e^0.9 = 2.5 times."""
SIGMAS = 6.0

COLUMNS = {
    "grad": Column(np.float64, np.nan),
    "grad_dev": Column(np.float64, 0.0),
    "grad_n": Column(np.int64, 0),
    "ring_grad": Column(np.float64, np.nan, (STEPS,)),
}

Slots = NDArray[np.int64]


def note(table: SeriesTable, slots: Slots, position: NDArray[Any], norm: Floats) -> None:
    """Keeps the norms of one step of each of these series; NaN where none was printed, or it is no number."""
    with np.errstate(invalid="ignore"):
        log = np.where(np.isfinite(norm) & (norm >= 0), np.log(np.fmax(norm, 1e-30)), np.nan)
    table["ring_grad"][slots, position % STEPS] = log


def learn(table: SeriesTable, slots: Slots, position: NDArray[Any], memory_steps: int) -> None:
    """Baseline and scatter of the logarithm from the newest norms, robustly; steps without a norm teach nothing."""
    log = table["ring_grad"][slots, position % STEPS]
    known = np.isfinite(log)
    slots, log = slots[known], log[known]
    table["grad_n"][slots] += 1
    n = table["grad_n"][slots]
    rate = np.maximum(1.0 / n, 1.0 / memory_steps)
    base = np.where(n == 1, log, table["grad"][slots])
    dev = table["grad_dev"][slots]
    limit = np.where(n > 10, 4.0 * 1.2533 * dev + 0.02, np.inf)
    residual = np.clip(log - base, -limit, limit)
    table["grad"][slots] = base + rate * residual
    table["grad_dev"][slots] = dev + rate * (np.abs(residual) - dev)


def testifies(
    table: SeriesTable, slots: Slots, watched: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """([n] collapsed, [n] exploded) over all of the last STEPS steps of watches this long."""
    shift = table["ring_grad"][slots] - table["grad"][slots][:, None]
    sigma = 1.2533 * table["grad_dev"][slots]
    ready = (watched >= STEPS) & (table["grad_n"][slots] >= LEAST) & np.isfinite(shift).all(axis=1)
    shift = np.where(ready[:, None], shift, 0.0)
    far = SIGMAS * sigma
    collapsed = ready & (shift.max(axis=1) < -np.maximum(COLLAPSED, far))
    exploded = ready & (shift.min(axis=1) > np.maximum(HELD, far)) & (np.median(shift, axis=1) > EXPLODED)
    return collapsed, exploded


def recent(table: SeriesTable, slots: Slots) -> Floats:
    """[n, STEPS] logarithms of the last norms, newest last; NaN where none was printed."""
    places = (table["total"][slots][:, None] + np.arange(-STEPS, 0)[None, :]) % STEPS
    found: Floats = table["ring_grad"][slots[:, None], places]
    return found


def factor(table: SeriesTable, slot: int) -> float:
    """The last STEPS gradient norms over their baseline (geometric mean); NaN where unknown."""
    shift = table["ring_grad"][slot] - table["grad"][slot]
    seen = shift[np.isfinite(shift)]
    return float(np.exp(np.clip(np.mean(seen), -50.0, 50.0))) if len(seen) else float("nan")
