"""What a search has learnt about a space: a Gaussian process over log time, and what it expects of untried points.

The kernel is Matérn 5/2 with a length scale for each dimension (ranks; one-hot columns for words), found by the
marginal likelihood over random draws (Rasmussen and Williams, *Gaussian Processes for Machine Learning*, §5.4.1).
Points are chosen by expected improvement (Jones, Schonlau and Welch 1998). NumPy only: a few hundred points.
Failures (refused, out of resources) are told as slow: as slow as the slowest that ran.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_DRAWS = 48
erf = np.vectorize(math.erf, otypes=[float])


@dataclass(frozen=True)
class Prior:
    """Expected log times of all points of a space, up to a constant, from another shape; weight in [0, 1]."""

    log_s: Array
    weight: float = 1.0


@dataclass
class Surrogate:
    """Fit once to what was tried; then ask. points: (all, features); groups: the dimension of each feature."""

    points: Array
    groups: NDArray[np.int64]
    seed: int = 0
    prior: Prior | None = None

    def fit(self, tried: NDArray[np.int64], log_s: Array, tune: bool = True) -> None:
        """log_s: log seconds of the points `tried` (positions in `points`); +inf marks a failure.

        tune: look for length scales anew; else keep those of the last fit.
        """
        finite = np.isfinite(log_s)
        if not finite.any():
            raise ValueError("surrogate: nothing ran yet")
        worst = float(log_s[finite].max())
        y = np.where(finite, np.minimum(log_s, worst), worst + 0.1)
        base = self.prior.weight * self.prior.log_s[tried] if self.prior is not None else np.zeros(len(y))
        y = y - base
        # equal times have no spread to divide by
        self._mean, self._scale = float(y.mean()), max(float(y.std()), 1e-3)
        z = (y - self._mean) / self._scale
        rng = np.random.default_rng(self.seed)
        x = self.points[tried]
        best: tuple[float, Array, float] = (-math.inf, np.ones(int(self.groups.max()) + 1), 0.05)
        best = best if tune else self._chosen
        for number in range(_DRAWS if tune else 0):
            scales = np.exp(rng.uniform(-1.5, 1.5, len(best[1]))) if number else np.ones(len(best[1]))
            noise = float(np.exp(rng.uniform(-6.0, -2.0))) if number else 0.02
            score = _evidence(self._kernel(x, x, scales), z, noise)
            if score > best[0]:
                best = (score, scales, noise)
        self._chosen: tuple[float, Array, float] = best
        _, self._scales, self._noise = best
        gram = self._kernel(x, x, self._scales) + self._noise * np.eye(len(z))
        self._chol = np.linalg.cholesky(gram)
        self._alpha = np.linalg.solve(self._chol.T, np.linalg.solve(self._chol, z))
        self._x = x

    def predict(self) -> tuple[Array, Array]:
        """(expected log seconds, their standard deviation) of all points."""
        cross = self._kernel(self.points, self._x, self._scales)
        mean = cross @ self._alpha * self._scale + self._mean
        if self.prior is not None:
            mean = mean + self.prior.weight * self.prior.log_s
        reduced = np.linalg.solve(self._chol, cross.T)
        # at a point that was tried rounding can leave less than nothing
        spread = np.sqrt(np.maximum(1e-9, 1.0 - (reduced**2).sum(axis=0))) * self._scale
        return mean, spread

    def improvement(self, best_log_s: float) -> Array:
        """Expected improvement over `best_log_s` of all points, in log seconds."""
        mean, spread = self.predict()
        z = (best_log_s - mean) / spread
        density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
        return np.asarray((best_log_s - mean) * 0.5 * (1 + erf(z / math.sqrt(2))) + spread * density)

    def _kernel(self, a: Array, b: Array, scales: Array) -> Array:
        weights = 1.0 / scales[self.groups]
        total = np.zeros((len(a), len(b)))
        for column, weight in enumerate(weights):
            total += (weight * (a[:, column, None] - b[None, :, column])) ** 2
        r = np.sqrt(5.0 * total)
        return np.asarray((1.0 + r + r**2 / 3.0) * np.exp(-r))


def _evidence(gram: Array, z: Array, noise: float) -> float:
    try:
        chol = np.linalg.cholesky(gram + noise * np.eye(len(z)))
    except np.linalg.LinAlgError:  # under these scales two points coincide: other draws are left
        return -math.inf
    half = np.linalg.solve(chol, z)
    return float(-0.5 * half @ half - np.log(np.diag(chol)).sum())
