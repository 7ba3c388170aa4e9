"""How often a healthy series looks at least this bad: a generalised Pareto tail over measured false episodes.

Scores of healthy telemetry are not Gaussian: z > 5 fires a thousand times more often than its p-value says. What is
rarer than anything measured is told by the tail of what was measured (Pickands 1975); past the data it is an
extrapolation, and everything that prints it says so.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SHAPE_LIMIT = 0.9
"""A fitted shape is kept within [0, this]: never a tail that ends, never one without a mean."""


@dataclass(frozen=True, slots=True)
class Tail:
    """False episodes whose peak score exceeds s, per 1,000 healthy series-days:
    `rate_per_1000 × (1 + shape (s − threshold) / scale)^(−1 / shape)`, and `rate_per_1000` for s ≤ threshold.

    episodes, series_days: what it was fitted on; rates below 16 episodes' worth of those days are extrapolated.
    No days: a bound that a model gives, not a measurement.

    >>> tail = Tail(1.0, 20.0, 0.5, 0.0, 40, 2000.0, "a fleet")
    >>> tail.rate(1.0), round(tail.rate(2.0), 2)  # per 1,000 healthy series-days
    (20.0, 2.71)
    """

    threshold: float
    rate_per_1000: float
    scale: float
    shape: float
    episodes: int
    series_days: float
    source: str

    def rate(self, score: float) -> float:
        """Expected false episodes at least this strong, per 1,000 series-days."""
        beyond = max(score - self.threshold, 0.0) / self.scale
        if not np.isfinite(beyond):
            return 0.0
        if self.shape < 1e-6:
            return self.rate_per_1000 * float(np.exp(-beyond))
        return self.rate_per_1000 * float(np.exp(-np.log1p(self.shape * beyond) / self.shape))

    def score(self, rate_per_1000: float) -> float:
        """The score that is exceeded at this rate; the threshold where the whole tail is rarer."""
        if rate_per_1000 >= self.rate_per_1000:
            return self.threshold
        decades = np.log(self.rate_per_1000 / max(rate_per_1000, 1e-300))
        steps = decades if self.shape < 1e-6 else np.expm1(self.shape * decades) / self.shape
        return self.threshold + self.scale * float(steps)

    @property
    def measured_to(self) -> float:
        """The lowest rate per 1,000 series-days that its days can tell from its double (16 episodes)."""
        return 16.0 * 1000.0 / self.series_days if self.series_days > 0 else float("inf")


def fit(scores: NDArray[np.float64], series_days: float, threshold: float, source: str) -> Tail:
    """The tail of false episodes' peak scores above `threshold` (probability-weighted moments: Hosking and Wallis,
    Technometrics 29, 1987). The rate counts one episode more than were seen, so that none is not never.

    Raises ValueError where no series-days stand behind it.
    """
    if not series_days > 0:
        raise ValueError("a tail needs healthy series-days")
    excess = np.sort(scores[np.isfinite(scores) & (scores >= threshold)] - threshold)
    count = len(excess)
    mean = float(excess.mean()) if count else 0.0
    scale, shape = max(mean, 1e-12 + 1e-3 * abs(threshold)), 0.0
    if count >= 10 and mean > 0:
        place = (np.arange(1, count + 1) - 0.35) / count
        weighted = float(((1.0 - place) * excess).mean())
        spread = mean - 2.0 * weighted
        if spread > 1e-12 * mean:
            shape = float(np.clip(2.0 - mean / spread, 0.0, SHAPE_LIMIT))
            scale = mean * (1.0 - shape)
    rate = 1000.0 * (count + 1) / series_days
    return Tail(float(threshold), rate, float(scale), shape, count, float(series_days), source)


@cache
def calibrated(detector: str) -> Tail | None:
    """The tail in `calibration.json` of a detector, from healthy telemetry by `detectors.alarms.calibration`; None
    where none is shipped (it has not been watched for enough healthy days), so that its stated rate is a claim."""
    return read(Path(__file__).with_name("calibration.json")).get(detector)


def read(path: Path) -> dict[str, Tail]:
    """Tails by detector from a file that `detectors.alarms.calibration.save` wrote. Raises OSError and
    ValueError."""
    entries = json.loads(path.read_text(encoding="utf-8"))
    found = {}
    for name, entry in entries.items():
        try:
            tail = Tail(**entry)
            numbers = [tail.threshold, tail.rate_per_1000, tail.scale, tail.shape, tail.series_days, tail.episodes]
            if not all(np.isfinite(float(n)) for n in numbers) or not tail.scale > 0 or tail.rate_per_1000 < 0:
                raise ValueError("a figure is not finite, or scale or rate_per_1000 is negative")
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name}: {error}") from error
        found[name] = tail
    return found
