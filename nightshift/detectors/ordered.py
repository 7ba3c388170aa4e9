"""Medians and quantiles of what is known of each row, without NumPy's loop over rows or its masked arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nightshift.collectors.frame import Floats


def medians(x: Floats) -> Floats:
    """[n] the median of each row of x [n, k], k ≥ 1, NaN = not known; NaN where nothing of a row is known.

    >>> medians(np.array([[3.0, np.nan, 1.0], [1.0, 2.0, 9.0], [np.nan] * 3])).tolist()
    [2.0, 2.0, nan]
    """
    ordered, known = np.sort(x, axis=1), x.shape[1] - np.isnan(x).sum(axis=1)  # NaN comes last
    middle = np.stack([np.maximum(known - 1, 0) // 2, np.minimum(known // 2, x.shape[1] - 1)], axis=1)
    found: Floats = np.take_along_axis(ordered, middle, axis=1).mean(axis=1)
    return found


def quantiles(x: Floats, shares: Sequence[float]) -> Floats:
    """[shares, n] quantiles of each row of x [n, k], k ≥ 1, NaN = not known, linear between two values.

    >>> quantiles(np.array([[4.0, np.nan, 1.0, 2.0], [np.nan] * 4]), [0.0, 0.75]).tolist()
    [[1.0, nan], [3.0, nan]]
    """
    ordered, known = np.sort(x, axis=1), x.shape[1] - np.isnan(x).sum(axis=1)
    place = np.asarray(shares)[:, None] * np.maximum(known - 1, 0)
    below = place.astype(int)
    above = np.minimum(below + 1, np.maximum(known - 1, 0))
    low, high = (np.take_along_axis(ordered, at.T, axis=1).T for at in (below, above))
    apart, on = high - low, place - below
    found: Floats = np.where(on < 0.5, low + apart * on, high - apart * (1.0 - on))  # to the bit as NumPy's
    return found
