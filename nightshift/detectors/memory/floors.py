"""The floor of a level signal: its minimum in every bucket of time, for all series at once.

Memory rises and falls with every step and every collection; what a leak lifts is the lowest point that each
collection reaches. Buckets are of time, not of samples, so that any scrape interval up to their width will do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nightshift.collectors.frame import Floats
from nightshift.detectors.ordered import quantiles
from nightshift.detectors.series_table import Column, Rows, SeriesTable

Matrix = NDArray[np.floating[Any]]


class Floors:
    """A ring of `count` bucket minima per series, in `table` under names that begin with `name`."""

    def __init__(self, name: str, width_s: float, count: int) -> None:
        self.name, self.width_s, self.count = name, width_s, count
        self.least_s = width_s
        self.bucket = -1

    def widen(self, table: SeriesTable, gap_s: float) -> None:
        """Fits the width to samples that come every `gap_s`: a quarter more than that, and no less than asked for.

        What was learnt in buckets of another width is let go.
        """
        width_s = (
            self.least_s * float(np.ceil(1.25 * gap_s / self.least_s)) if gap_s > self.least_s else self.least_s
        )
        if abs(width_s - self.width_s) < 0.2 * self.width_s:
            return
        self.width_s, self.bucket = width_s, -1
        table[f"{self.name}.low"][:] = np.inf
        table[f"{self.name}.ring"][:] = np.nan

    def columns(self) -> dict[str, Column]:
        return {
            f"{self.name}.low": Column(np.float32, np.inf),
            f"{self.name}.ring": Column(np.float32, np.nan, (self.count,)),
        }

    def add(self, table: SeriesTable, rows: Rows, values: Floats, at_s: float) -> bool:
        """Takes one sample of these rows; True where a bucket has just closed for every series.

        A time before the open bucket (a clock that jumped back) is counted into the open bucket.
        """
        bucket = int(at_s // self.width_s)
        closed = self.bucket >= 0 and bucket > self.bucket
        if closed:
            self._close(table, bucket)
        self.bucket = max(self.bucket, bucket)
        low = table[f"{self.name}.low"]
        low[rows] = np.fmin(low[rows], values.astype(np.float32))
        return closed

    def _close(self, table: SeriesTable, bucket: int) -> None:
        low, ring = table[f"{self.name}.low"], table[f"{self.name}.ring"]
        ring[:, self.bucket % self.count] = np.where(np.isfinite(low), low, np.nan)
        for skipped in range(self.bucket + 1, min(bucket, self.bucket + 1 + self.count)):
            ring[:, skipped % self.count] = np.nan
        low[:] = np.inf

    def order(self) -> NDArray[np.int64]:
        """Ring columns of the closed buckets, oldest first."""
        return (np.arange(self.bucket - self.count, self.bucket)) % self.count

    def window(self, table: SeriesTable, slots: NDArray[np.int64] | None = None) -> Matrix:
        """[n, count] closed minima, oldest first; NaN where a bucket had no sample."""
        ring = table[f"{self.name}.ring"]
        found: Matrix = (ring if slots is None else ring[slots])[:, self.order()]
        return found

    def times_s(self) -> Floats:
        """[count] middle of each closed bucket (Unix s), oldest first."""
        found: Floats = (np.arange(self.bucket - self.count, self.bucket).astype(np.float64) + 0.5) * self.width_s
        return found

    def set_back(self, table: SeriesTable, by_s: float) -> None:
        """The clock was: the closed buckets, and the open one, are so much earlier by it."""
        steps = round(by_s / self.width_s)
        if self.bucket >= 0:
            self.bucket -= steps
            ring = table[f"{self.name}.ring"]
            ring[:] = np.roll(ring, -steps, axis=1)

    def forget(self, table: SeriesTable, slots: NDArray[Any]) -> None:
        table[f"{self.name}.low"][slots] = np.inf
        table[f"{self.name}.ring"][slots] = np.nan


def sen(t_s: Floats, x: Matrix, apart: int = 0) -> tuple[Floats, Floats, Floats]:
    """Theil–Sen slope of each row of x [n, k] over t_s [k], with the 5 % and 95 % quantiles of pairwise slopes.

    The quantiles bound a typical pair, wider than a confidence interval of the slope; they are robust to steps.
    Sen, "Estimates of the regression coefficient based on Kendall's tau", JASA 63 (1968). Pairs are a quarter of k
    `apart`, or less where a row has not three such pairs. Rows with fewer than three values give NaN.
    """
    apart = apart or max(1, len(t_s) // 4)
    i, j = np.triu_indices(len(t_s), k=apart)
    with np.errstate(invalid="ignore"):
        slopes = (x[:, j] - x[:, i]).astype(float) / (t_s[j] - t_s[i])
    few = np.isfinite(slopes).sum(axis=1) < 3
    slopes[few] = 0.0
    low, middle, high = quantiles(slopes, [0.05, 0.5, 0.95])
    for bound, closer in zip((middle, low, high), _closer(t_s, x[few], apart), strict=True):
        bound[few] = closer
    return middle, low, high


def _closer(t_s: Floats, x: Matrix, apart: int) -> tuple[Floats, Floats, Floats]:
    """The same of rows with too few pairs that are so far apart."""
    if len(x) and apart > 1:
        return sen(t_s, x, apart // 2)
    unknown = np.full(len(x), np.nan)
    return unknown, unknown, unknown
