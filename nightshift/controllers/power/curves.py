"""Power-performance curves: what a job's speed and draw are at each power limit.

Measured ones come from sweeps (Zeus's format: one row per limit). A sweep's points are single noisy measurements,
so speed and draw are made monotone in the limit first (isotonic regression, pool adjacent violators), which every
physical curve is. Synthetic ones follow from a mixture of kernels under dynamic voltage and frequency scaling:

    draw(f) = static + dynamic · f^e        time(f) = compute / f + memory + host

at the highest clock f that keeps the draw under the limit (Hong & Kim, ISCA 2010; Zeus, NSDI 2023). They are drawn
wide (domain randomisation) and then measured with the same noise and clean-up as the measured ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LEVELS = np.round(np.arange(0.30, 1.0001, 0.01), 2)
"""Limits as shares of the GPU's highest limit: one level is one step of every controller."""


@dataclass(frozen=True, eq=False)
class Curve:
    """`limit_w` [n] ascending; `time` [n] per unit of work, 1 at the highest limit; `draw_w` [n]."""

    gpu: str
    workload: str
    limit_w: Floats
    time: Floats
    draw_w: Floats

    @property
    def max_w(self) -> float:
        return float(self.limit_w[-1])

    @property
    def min_w(self) -> float:
        return float(self.limit_w[0])

    def slowdown(self, limit_w: Floats | float) -> Floats:
        """Time per work beyond that at the highest limit, as a share: 0.05 is five per cent slower."""
        return np.asarray(np.interp(limit_w, self.limit_w, self.time) - 1.0)

    def draw(self, limit_w: Floats | float) -> Floats:
        return np.asarray(np.interp(limit_w, self.limit_w, self.draw_w))

    def on_levels(self) -> tuple[Floats, Floats]:
        """(time, draw as a share of the highest limit), each [n_levels]; below the lowest limit: as at it."""
        limit_w = LEVELS * self.max_w
        return self.slowdown(limit_w) + 1.0, self.draw(limit_w) / self.max_w


def monotone(limit_w: Floats, time: Floats, draw_w: Floats) -> tuple[Floats, Floats]:
    """(time relative to that at the highest limit, draw): no slower and no less draw at a higher limit."""
    log_time = nearest_monotone(np.log(time), rises=False)
    return np.exp(log_time - log_time[-1]), nearest_monotone(draw_w, rises=True)


def nearest_monotone(values: Floats, *, rises: bool) -> Floats:
    """The monotone values [n] nearest to some by least squares: neighbours in the wrong order become their mean
    (pool adjacent violators; Barlow and others 1972).

    >>> nearest_monotone(np.array([1.0, 3.0, 2.0]), rises=True).tolist()
    [1.0, 2.5, 2.5]
    """
    sign = 1.0 if rises else -1.0
    pools: list[tuple[float, int]] = []
    for value in (sign * np.asarray(values, dtype=float)).tolist():
        mean, size = value, 1
        while pools and pools[-1][0] >= mean:
            before, held = pools.pop()
            mean, size = (before * held + mean * size) / (held + size), held + size
        pools.append((mean, size))
    means, sizes = zip(*pools, strict=True)
    return np.asarray(sign * np.repeat(means, sizes))


def synthetic(count: int, rng: np.random.Generator, noise: float = 0.01) -> list[Curve]:
    """Curves of a made-up GPU of 1 W (limits are shares), measured on 6 to 13 limits with `noise`."""
    curves = []
    clock = np.linspace(0.12, 1.0, 221)
    for number in range(count):
        lowest = rng.uniform(0.30, 0.55)
        static = rng.uniform(0.10, 0.40)
        power_of = rng.uniform(1.2, 3.2)
        kernels = rng.integers(1, 4)
        share = rng.dirichlet(np.ones(kernels))
        host = rng.choice([0.0, rng.uniform(0.0, 0.6)])
        peak = rng.uniform(max(0.3, static + 0.02), 1.5, kernels)
        compute = rng.beta(1.0, 0.8, kernels)
        limit = np.linspace(lowest, 1.0, int(rng.integers(6, 14)))
        time, energy = np.full(len(limit), host), np.full(len(limit), host * static)
        for w, pk, comp in zip(share, peak, compute, strict=True):
            draw = static + (pk - static) * clock**power_of
            at = np.searchsorted(draw, limit, side="right") - 1
            f = clock[np.clip(at, 0, None)]
            took = (1.0 - host) * w * (comp / f + 1.0 - comp)
            time += took
            energy += took * np.minimum(draw[np.clip(at, 0, None)], limit)
        wobble = noise * 10.0 ** rng.uniform(-1.0, 0.7)  # some sweeps are much rougher than one window
        seen = time * (1 + wobble * rng.normal(size=len(limit)))
        drawn = energy / time * (1 + noise * rng.normal(size=len(limit)))
        curves.append(Curve("synthetic", str(number), limit, *monotone(limit, seen, drawn)))
    return curves


def on_levels(curves: Sequence[Curve]) -> tuple[Floats, Floats]:
    """(time, draw share), each [n_curves, n_levels]."""
    pairs = [curve.on_levels() for curve in curves]
    return np.array([t for t, _ in pairs]), np.array([d for _, d in pairs])
