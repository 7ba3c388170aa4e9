"""Two signs on which the watch of a loss need not wait: what was learnt is gone, or loss and gradients climb; and
whether a loss has a scale at all.

A loss that jumps by half may be new data, which the run will learn, or wrong labels, which it will not. Measured
against what the run has learnt so far they differ: data of the same task share most of what was learnt, and a part
of the rise falls back at once; wrong labels take nearly all of it away, and nothing comes back.

A loss that climbs step by step while the gradient norm climbs with it is an optimisation that has become unstable
(of such instabilities: Wortsman et al., arXiv 2309.14322); new data raise both at once, and then let them fall.

The thresholds were chosen on 164 labelled divergences and 244 benign runs (`benchmarks.loss_runs`). CLIMB between
0.25 and 0.5 gives the same verdicts; at LOST = 0.7 one benign shift of a domain would be accused.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nightshift.collectors.frame import Floats

LOST_STEPS = 12
LOST = 0.75
"""All of the last LOST_STEPS on average above the baseline by this share of what the run has learnt."""
LOST_BY = 16
"""Asked in the steps LOST_STEPS to this of a watch: asked at every step of a long one, noise looks flat once."""
FLAT = 0.05
"""... and their second half lower than the first by less than this share of the rise."""
CLIMB_STEPS = 6
CLIMB = 0.5
"""Both of the last two losses are this share of the baseline, and of what the run has learnt, above it."""
NORMS = 0.2
"""The gradient norm rose by e^0.2 = 1.2 within eight steps, or by three standard deviations where that is more."""

BEYOND_DOUBT = 0.5
"""A rise that means something whatever the level: 0.5 nats."""


def has_scale(level: Floats, top: Floats, sigma: Floats, progress: Floats) -> NDArray[np.bool_]:
    """[n] whether shares of a level mean anything: it and where the run began are apart from zero by the noise,
    or it has learnt something. A policy gradient's loss begins at zero and grows, and nothing is wrong with it."""
    apart = np.minimum(np.abs(level), np.abs(top)) > 2.0 * sigma
    found: NDArray[np.bool_] = apart | (progress > 6.0 * sigma)
    return found


def lost(
    recent: Floats, base: Floats, sigma: Floats, progress: Floats, level: float, strength: float
) -> NDArray[np.bool_]:
    """[n] whether what was learnt is gone and does not come back.

    recent [n, ≥ LOST_STEPS]: losses, newest last; base, sigma (noise), progress (fall since the run began): [n], in
    units of the loss. level: the smallest rise that counts, as a share of the baseline; strength: times as much.
    """
    window = recent[:, -LOST_STEPS:]
    half = LOST_STEPS // 2
    rise = window.mean(axis=1) - base
    fallen = window[:, :half].mean(axis=1) - window[:, half:].mean(axis=1)
    enough = np.maximum(5.0 * sigma, strength * np.maximum(level * np.abs(base), LOST * progress))
    now = np.median(window[:, -5:], axis=1) - base
    found: NDArray[np.bool_] = (rise > enough) & (now > enough) & (fallen < FLAT * rise)
    return found


def climbing(
    recent: Floats,
    base: Floats,
    sigma: Floats,
    progress: Floats,
    norms: Floats,
    scatter: Floats,
    strength: float,
) -> NDArray[np.bool_]:
    """[n] whether loss and gradient norm climb together.

    norms [n, 8]: logarithms of the last gradient norms, newest last; scatter [n]: their standard deviation before.
    NaN (no norm printed) never testifies.
    """
    pairs = recent[:, -CLIMB_STEPS:].reshape(len(recent), 3, 2).mean(axis=2)
    first, second, last = pairs.T
    risen = norms[:, -3:].mean(axis=1) - norms[:, :3].mean(axis=1)
    enough = np.maximum(5.0 * sigma, strength * CLIMB * np.maximum(np.abs(base), progress))
    found: NDArray[np.bool_] = (last - second > 2.0 * sigma) & (second - first > sigma)
    found &= (recent[:, -2:].min(axis=1) - base > enough) & (risen > np.maximum(NORMS, 3.0 * scatter))
    return found
