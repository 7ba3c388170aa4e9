"""Rules for problems with a random answer or several right ones: sampling, top-k with ties, chosen places.

A rule reads a probe's calls (inputs and outputs, the latest last) and says what is wrong; nothing where all is
right. What is forbidden is exact: a token outside the nucleus, a value that is no k-th largest, an index that comes
twice. What is random is a test with a stated error and power.

Sampling. A token may be drawn if it is among the k most probable (any of those that tie with the k-th), and if the
mass of all more probable ones is at most p. On `SHARED` rows of one distribution a χ² test compares counts with
it, and two calls on the same inputs must not agree more often than chance. Both are false at most once in 10⁹. With
1,024 draws a total variation of 0.2 is found with probability 0.999: `power`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import torch

from nightshift.kernels.problem import Inputs, Outputs
from nightshift.kernels.suites.definitions import Definition

FALSE_REFUSAL = 1e-9
SHARED = "ties"
"""The distribution of values in which all rows of probabilities are one."""
_LIMIT = NormalDist().inv_cdf(1 - FALSE_REFUSAL)
# Of a cumulative sum of float32 in any order over a vocabulary, beside 1.
_ROUNDING = 2.0**-16
_LEAST_EXPECTED = 5.0

Calls = Sequence[tuple[Inputs, Outputs]]


@dataclass(frozen=True)
class AnswerRule:
    """accepts: what is wrong in a probe's calls, in words; empty where nothing is. name: for reports."""

    name: str
    accepts: Callable[[Calls], str]
    random: bool = False


def rule_of(definition: Definition, references: Callable[[Inputs], tuple[Outputs, Outputs]]) -> AnswerRule | None:
    """The rule of a definition; None where its right answer is one, up to rounding. references: eager's outputs
    and the float64 oracle's."""
    names = list(definition.inputs)
    if "probs" in names:
        positions: dict[str, int] = {
            name: names.index(name) for name in ("probs", "top_k", "top_p") if name in names
        }
        return AnswerRule("sampling", lambda calls: sampled_wrong(calls, positions), random=True)
    if set(definition.outputs) == {"values", "indices"}:
        return AnswerRule("top-k", lambda calls: topk_wrong(*calls[-1]))
    if "topk_indices" in definition.outputs:
        return AnswerRule("chosen places", lambda calls: places_wrong(calls[-1][1], *references(calls[-1][0])))
    return None


def nucleus(row: torch.Tensor, k: int | None, p: float | None) -> tuple[torch.Tensor, torch.Tensor]:
    """(allowed, probabilities): which tokens may be drawn, and with what probability. Of tokens that tie at the
    edge each may be drawn, and the probabilities are those of one choice among them."""
    row = row.double()
    order = torch.argsort(row, descending=True, stable=True)
    allowed, kept = torch.ones_like(row, dtype=torch.bool), row.clone()
    if k is not None and 0 < k < len(row):
        least = row[order[k - 1]]
        allowed &= row >= least
        kept = torch.zeros_like(row).index_copy_(0, order[:k], row[order[:k]])
        kept /= kept.sum()
    if p is not None and p < 1.0:
        ranked, places = torch.sort(kept, descending=True, stable=True)
        before = ranked.cumsum(0) - ranked
        inside = before <= max(p, 0.0) if p > 0 else torch.arange(len(row), device=row.device) == 0
        near = before <= p + _ROUNDING if p > 0 else inside
        least_near = ranked[near][-1]
        allowed &= (kept >= least_near) | ((row == row[order[0]]) if p <= 0 else (row >= least_near) & (kept > 0))
        if k is not None and 0 < k < len(row):  # a token that ties with one inside may stand in for it
            allowed |= (row >= row[places[near]].min()) & (row > 0)
        kept = torch.zeros_like(kept).index_copy_(0, places[inside], ranked[inside])
    allowed &= row > 0
    return allowed, kept / kept.sum()


def sampled_wrong(calls: Calls, positions: dict[str, int]) -> str:
    """What is wrong in the samples of a probe's calls on one set of inputs after the other."""
    inputs, outputs = calls[-1]
    probs = inputs[positions["probs"]]
    assert isinstance(probs, torch.Tensor)
    samples = outputs[0].reshape(len(probs), -1)[:, 0].long()
    outside = (samples < 0) | (samples >= probs.shape[1])
    if bool(outside.any()):
        return f"row {int(outside.nonzero()[0])}: token {int(samples[outside][0])} is none of {probs.shape[1]}"
    limits = [_limits(inputs, positions, row) for row in range(len(probs))]
    alike = len(probs) > 1 and len(set(limits)) == 1 and bool((probs == probs[:1]).all())
    allowed, expected = nucleus(probs[0], *limits[0])
    for row in range(len(probs)):
        if row and not alike:
            allowed, expected = nucleus(probs[row], *limits[row])
        if not bool(allowed[samples[row]]):
            k, p = limits[row]
            given = ", ".join(f"{name} = {x:.4g}" for name, x in (("top_k", k), ("top_p", p)) if x is not None)
            mass = float(probs[row][samples[row]])
            return f"row {row}: token {int(samples[row])} of probability {mass:.3g} is outside {given or 'all'}"
    return _improbable(calls, expected, len(probs)) if alike else ""


def _limits(inputs: Inputs, positions: dict[str, int], row: int) -> tuple[int | None, float | None]:
    k, p = (inputs[positions[name]] if name in positions else None for name in ("top_k", "top_p"))
    return (
        int(k[row]) if isinstance(k, torch.Tensor) else None,
        float(p[row]) if isinstance(p, torch.Tensor) else None,
    )


def _improbable(calls: Calls, expected: torch.Tensor, rows: int) -> str:
    """What is too improbable in all calls on rows of one distribution: counts, or agreement of two calls."""
    drawn = [outputs[0].reshape(rows, -1)[:, 0].long() for _, outputs in calls]
    support = (expected > 0).nonzero().flatten()
    shares = expected[support]
    total = torch.cat(drawn)
    counts = torch.stack([(total == token).sum() for token in support]).double()
    wanted = shares * len(total)
    if len(support) > 1 and float(wanted.min()) >= _LEAST_EXPECTED:
        statistic, freedom = float(((counts - wanted).square() / wanted).sum()), len(support) - 1
        if statistic > chi_square_limit(freedom):
            far = 0.5 * float((counts / len(total) - shares).abs().sum())
            told = (
                f"χ² = {statistic:.0f} with {freedom} degrees of freedom, at most {chi_square_limit(freedom):.0f}"
            )
            return f"{len(total)} samples are off their distribution by {far:.3f} of total variation: {told}"
    if len(drawn) > 1:
        agree, chance = float((drawn[-1] == drawn[-2]).double().mean()), float(shares.square().sum())
        # Hoeffding, one-sided: the mean of independent indicators
        limit = chance + math.sqrt(-math.log(FALSE_REFUSAL) / (2 * rows))
        if agree > limit:
            return f"{agree:.0%} of the samples of two calls agree, {chance:.0%} by chance: not drawn anew"
    return ""


def chi_square_limit(freedom: int) -> float:
    """The value that χ² exceeds with probability `FALSE_REFUSAL`, by Wilson and Hilferty's approximation.

    >>> round(chi_square_limit(4))
    52
    """
    part = 2.0 / (9.0 * freedom)
    return freedom * (1.0 - part + _LIMIT * math.sqrt(part)) ** 3


def power(draws: int, variation: float, freedom: int) -> float:
    """The probability that so many draws refuse any sampler that is so far off, at least: χ²'s noncentrality is
    4 · draws · variation² or more, as no share is above 1. By the normal limit of the noncentral distribution.

    >>> power(1024, 0.2, 11) > 0.999
    True
    """
    off = 4.0 * draws * variation**2
    mean, spread = freedom + off, math.sqrt(2.0 * (freedom + 2.0 * off))
    return NormalDist(mean, spread).cdf(mean + mean - chi_square_limit(freedom))


def topk_wrong(inputs: Inputs, outputs: Outputs) -> str:
    """Values must be the k largest, in order, bit for bit; indices name each of them once, whichever of a tie."""
    given = inputs[0]
    assert isinstance(given, torch.Tensor)
    values, indices = outputs
    k = values.shape[-1]
    right = torch.topk(given, k, dim=-1).values
    if not torch.equal(right, values):
        row = int((right != values).any(dim=-1).nonzero()[0])
        return f"row {row}: the values are not its {k} largest in order"
    if bool(((indices < 0) | (indices >= given.shape[-1])).any()):
        return f"an index is none of {given.shape[-1]}"
    if not torch.equal(given.gather(-1, indices.long()), values):
        return "an index does not hold its value"
    ranked = indices.sort(dim=-1).values
    if k > 1 and bool((ranked[..., 1:] == ranked[..., :-1]).any()):
        return "one index comes twice"
    return ""


def places_wrong(outputs: Outputs, eager: Outputs, truth: Outputs) -> str:
    """Of each row the set of chosen places: what both references choose must be in it, and what neither does not.
    Scores, where they are returned, are compared in order."""
    for row, (mine, theirs, exact) in enumerate(zip(outputs[0], eager[0], truth[0], strict=True)):
        got, one, other = (set(x[x >= 0].tolist()) for x in (mine, theirs, exact))
        count, right = int((mine >= 0).sum()), int((theirs >= 0).sum())
        if count != right:
            return f"row {row}: {count} places, expected {right}"
        if len(got) < len(one & other):  # where sequences share a page, a place may come twice
            return f"row {row}: one place comes twice"
        if lost := sorted((one & other) - got):
            return f"row {row}: {len(lost)} of {len(one)} places are missing, first {lost[0]}"
        if more := sorted(got - (one | other)):
            return f"row {row}: {len(more)} places are none of the best, first {more[0]}"
    for mine, exact in zip(outputs[1:], truth[1:], strict=True):
        finite = torch.isfinite(exact)
        off = (mine.double().sort(-1).values - exact.double().sort(-1).values)[finite.sort(-1).values].abs()
        if off.numel() and float(off.max()) > 2.0**-7 * float(exact[finite].abs().max()):
            return f"a score is off by {float(off.max()):.3g}"
    return ""
