"""The house's own tails and quantiles against SciPy's, over what it decides by."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special, stats

from nightshift.controllers.power.curves import nearest_monotone
from nightshift.detectors.tails import (
    beta_binomial_tail,
    beta_cdf,
    beta_quantile,
    binomial_tail,
    gamma_quantile,
    t_quantile,
    t_tail,
)

CHANCES = (1e-12, 1e-6, 0.001, 0.025, 0.5, 0.95, 0.975, 1 - 1e-6)


@pytest.mark.parametrize("a", [0.5, 1, 2, 9, 100, 5000])
@pytest.mark.parametrize("b", [0.5, 1, 3, 50, 20_000])
def test_the_beta_distribution(a: float, b: float) -> None:
    for p in CHANCES:
        assert beta_quantile(a, b, p) == pytest.approx(special.betaincinv(a, b, p), rel=1e-9)
        assert beta_cdf(a, b, p) == pytest.approx(special.betainc(a, b, p), rel=1e-9, abs=1e-300)


@pytest.mark.parametrize("shape", [1, 2, 11, 400, 10_000])
def test_the_gamma_distribution(shape: float) -> None:
    for p in CHANCES:
        assert gamma_quantile(shape, p) == pytest.approx(special.gammaincinv(shape, p), rel=1e-9)


@pytest.mark.parametrize("free", [1.0, 2.5, 9, 300, 1e6])
def test_students_t(free: float) -> None:
    for p in (0.5, 0.6, 0.95, 0.975, 1 - 1e-5):
        assert t_quantile(free, p) == pytest.approx(special.stdtrit(free, p), rel=1e-8)
        assert t_tail(free, t_quantile(free, p)) == pytest.approx(1.0 - p, rel=1e-7)


def test_the_binomial_and_its_mixture() -> None:
    draws = np.random.default_rng(1)
    for _ in range(200):
        of = int(draws.integers(1, 2000))
        least, chance = int(draws.integers(0, of + 2)), 10.0 ** draws.uniform(-6, -0.01)
        assert binomial_tail(least, of, chance) == pytest.approx(
            stats.binom.sf(least - 1, of, chance), rel=1e-8, abs=1e-290
        )
    for _ in range(200):
        days = int(draws.integers(1, 29))
        failures, a, b = int(draws.integers(0, days + 1)), draws.uniform(0.01, 5), draws.uniform(1, 200)
        assert beta_binomial_tail(failures, days, a, b) == pytest.approx(
            stats.betabinom.sf(failures - 1, days, a, b), rel=1e-8
        )


@pytest.mark.parametrize("rises", [True, False])
def test_the_nearest_monotone_values(rises: bool) -> None:
    from scipy.optimize import isotonic_regression

    draws = np.random.default_rng(2)
    for _ in range(100):
        values = draws.normal(size=int(draws.integers(1, 30))).round(1)
        expected = isotonic_regression(values, increasing=rises).x
        np.testing.assert_allclose(nearest_monotone(values, rises=rises), expected, atol=1e-12)
