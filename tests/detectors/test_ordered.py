"""Medians and quantiles of rows: NumPy's own, to the bit."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from nightshift.detectors.ordered import medians, quantiles


@pytest.mark.parametrize("columns", [1, 2, 7, 32])
def test_they_are_numpys(columns: int) -> None:
    rng, shares = np.random.default_rng(columns), [0.0, 0.05, 0.5, 0.95, 1.0]
    for known in (0.0, 0.3, 0.8, 1.0):
        x = rng.normal(size=(200, columns)) * 10.0 ** rng.integers(-6, 12, size=(200, 1))
        x[rng.random(x.shape) >= known] = np.nan
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of rows without a value
            middle, parts = np.nanmedian(x, axis=1), np.nanquantile(x, shares, axis=1)
        assert np.array_equal(medians(x), middle, equal_nan=True)
        assert np.array_equal(quantiles(x, shares), parts, equal_nan=True)
