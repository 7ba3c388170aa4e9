"""Tails and quantiles of the distributions that the house decides by: binomial, beta, gamma, Student's t and
beta-binomial. Five functions, in place of a library of 114 MB (decision 072); tests compare them with SciPy.

The incomplete beta function is Lentz's continued fraction (*Numerical Recipes*, 3rd edition, 6.4), the incomplete
gamma its series and fraction (6.2). A quantile is found by halving on a scale without ends: log odds, or the log.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

_TINY, _CLOSE, _MOST = 1e-300, 1e-16, 100_000


def _sigmoid(u: float) -> float:
    return 1.0 / (1.0 + math.exp(-u)) if u >= 0 else math.exp(u) / (1.0 + math.exp(u))


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function; it converges fast below (a + 1) / (a + b + 2)."""
    c, d = 1.0, 1.0 / _away(1.0 - (a + b) * x / (a + 1.0))
    h = d
    for m in range(1, _MOST):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 / _away(1.0 + term * d)
            c = _away(1.0 + term / c)
            h *= d * c
        if abs(d * c - 1.0) < _CLOSE * 4:
            break
    return h


def _away(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def _beta(a: float, b: float, x: float, y: float) -> float:
    """The regularised incomplete beta function at x = 1 - y; both are passed, since one of them may be tiny."""
    if x <= 0.0 or y <= 0.0:
        return 0.0 if x <= 0.0 else 1.0
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(y)
    if x < (a + 1.0) / (a + b + 2.0):
        return min(math.exp(scale) * _fraction(a, b, x) / a, 1.0)
    return max(1.0 - math.exp(scale) * _fraction(b, a, y) / b, 0.0)


def beta_cdf(a: float, b: float, x: float) -> float:
    """P(X <= x) for a beta distribution; the binomial's tail P(K >= a) of a + b - 1 draws with chance x.

    >>> round(beta_cdf(3, 6, 0.5), 6)  # at least 3 heads of 8
    0.855469
    """
    return _beta(a, b, x, 1.0 - x)


def binomial_tail(least: int, of: int, chance: float) -> float:
    """P(at least `least` of `of` independent draws succeed).

    >>> binomial_tail(0, 8, 0.1), binomial_tail(9, 8, 0.1), round(binomial_tail(1, 8, 0.1), 6)
    (1.0, 0.0, 0.569533)
    """
    if least <= 0:
        return 1.0
    return beta_cdf(least, of - least + 1, chance) if least <= of else 0.0


def beta_quantile(a: float, b: float, p: float) -> float:
    """x with P(X <= x) = p for a beta distribution.

    >>> round(beta_quantile(9, 2, 0.025), 4)
    0.555
    """
    return _sigmoid(_log_odds(a, b, p))


def _log_odds(a: float, b: float, p: float) -> float:
    return _halve(lambda u: _beta(a, b, _sigmoid(u), _sigmoid(-u)) < p, -700.0, 700.0)


def t_quantile(free: float, p: float) -> float:
    """Student's t with `free` degrees of freedom, p in [0.5, 1).

    >>> round(t_quantile(9, 0.975), 4)
    2.2622
    """
    if p == 0.5:
        return 0.0
    # t²/free has the odds of a beta variable
    return math.sqrt(free) * math.exp(_log_odds(0.5, free / 2.0, 2.0 * p - 1.0) / 2.0)


def t_tail(free: float, least: float) -> float:
    """P(X >= least) of Student's t with so many degrees of freedom.

    >>> round(t_tail(5, 2.0), 6), t_tail(5, 0.0), round(t_tail(5, -2.0), 6)
    (0.05097, 0.5, 0.94903)
    """
    beyond = 0.5 * beta_cdf(free / 2, 0.5, free / (free + least * least))
    return beyond if least >= 0 else 1.0 - beyond


def gamma_quantile(shape: float, p: float) -> float:
    """x with P(X <= x) = p for a gamma distribution of scale 1.

    >>> round(gamma_quantile(11, 0.975), 3)
    18.39
    """
    return math.exp(_halve(lambda u: _gamma(shape, math.exp(u)) < p, -700.0, 50.0))


def _gamma(a: float, x: float) -> float:
    """The regularised lower incomplete gamma function."""
    scale = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1.0:
        term = total = 1.0 / a
        for n in range(1, _MOST):
            term *= x / (a + n)
            total += term
            if term < total * _CLOSE:
                break
        return min(scale * total, 1.0)
    b, c, d = x + 1.0 - a, 1.0 / _TINY, 1.0 / _away(x + 1.0 - a)
    h = d
    for n in range(1, _MOST):
        term, b = -n * (n - a), b + 2.0
        d = 1.0 / _away(term * d + b)
        c = _away(b + term / c)
        h *= d * c
        if abs(d * c - 1.0) < _CLOSE * 4:
            break
    return max(1.0 - scale * h, 0.0)


def _halve(below: Callable[[float], bool], low: float, high: float) -> float:
    while True:
        middle = 0.5 * (low + high)
        if middle in (low, high):
            return middle
        low, high = (middle, high) if below(middle) else (low, middle)


@cache
def beta_binomial_tail(least: int, of: int, a: float, b: float) -> float:
    """P(at least `least` of `of` draws succeed), their chance drawn once from a beta distribution.

    >>> round(beta_binomial_tail(1, 2, 1.0, 1.0), 6)
    0.666667
    """
    whole = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)

    def mass(k: int) -> float:
        ways = math.lgamma(of + 1) - math.lgamma(k + 1) - math.lgamma(of - k + 1)
        both = math.lgamma(a + k) + math.lgamma(b + of - k) - math.lgamma(a + b + of)
        return math.exp(ways + both - whole)

    return 1.0 if least <= 0 else min(math.fsum(mass(k) for k in range(least, of + 1)), 1.0)
