"""Is an output right? Pure functions over tensors that the parent holds; no candidate code, no clock, no process.

A fixed tolerance is no oracle: it passes a softmax with a constant denominator wherever the outputs are small. Here
an output is compared with a float64 oracle, and its error with the error that torch's own eager result makes on
the same problem: RMSE(candidate) ≤ m · RMSE(eager), m = 3 for float16 and bfloat16 and 2 for float32, the rule of
`torch._dynamo.utils.same` (PyTorch 2.11), made stricter: per row and per element as well as in the mean, with the
placement of NaN and ±inf, and bit for bit where the operation is exact.

Two things keep the rule fair. A correctly rounded result is off by up to half a unit in the last place (ULP), so
no allowance is below that; and eager's error on a handful of elements is a matter of luck, so for small outputs it
is pooled over further draws of the same case (`kernels.judge.probes.oracle`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from nightshift.kernels.judge.probes.errors import errors_together, parts, positive, rows_of, ulp
from nightshift.kernels.judge.verdict import Reason
from nightshift.kernels.problem import Outputs

RMSE_FACTOR = {torch.float16: 3.0, torch.bfloat16: 3.0, torch.float32: 2.0, torch.float64: 2.0}
"""m of `torch._dynamo.utils.same`."""
# Allowed multiple, beyond m, of eager's worst element: extremes of two equally good results differ that much. An
# RMSE over n rows gets 1 + 3/√n, which is the same for one row and nothing for many: all elements of a row may
# share one error, that of the row's sum or maximum. Of a float32 output the part that all its elements share
# (`kernels.judge.probes.errors`) counts as one row's, however many there are: it is the rounding of one sum over
# the whole output, where eager's own is a matter of luck (its orders of summation err by ~√n · 2⁻²⁴ at random:
# Higham and Mary 2019, SIAM J. Sci. Comput. 41 (5)), while each element's own error is held to the strict factor.
# In 16 bits a float32 sum's rounding is far below the output's, so nothing is granted there.
ELEMENT_FACTOR = 4.0
# One element's error always allowed, in ULP. For float32 it is what rounding the argument of exp costs in the far
# tail of a softmax: |x · log₂e| ≤ 126 at 2⁻²⁴ each, where libm's expf (eager) splits the argument in two.
ELEMENT_FLOOR_ULP = {torch.float16: 2.0, torch.bfloat16: 2.0, torch.float32: 128.0, torch.float64: 128.0}
# Where a row holds both signs, or eager's own worst element is beyond this, an output near zero may come of
# cancellation, and ULP say little: the element is then held against the RMS of eager's error in its row, times the
# same m and ELEMENT_FACTOR as any other element, or m times the worst element that eager has in that row. Where a
# few large values make the errors of a row, eager's worst of them is luck: its worst beside any row's largest value
# holds for every row, up to its worst error in the whole output.
CANCELLING_ULP = 16.0
# Of a float32 output that cancels, elements that are exactly zero in truth and eager tell no error (`_clipped`).
# In 16 bits the output's own rounding is far above that of the sum before it, and nothing is granted.
# Dtypes in which a sum of m equal terms may always err by √m units: equal roundings do not cancel, so that the
# order of summation decides alone. One of √m blocks of √m, as good a kernel as any, is bound by 2√m · u (Higham
# 1993, SIAM J. Sci. Comput. 14 (4)), where eager's tree may be exact.
EQUAL_TERMS = (torch.float32, torch.float64)
EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)
"""Dtypes in which an element is a step or none away from the truth: an RMS in steps of a sixteenth says little, and
half of one as a floor would pass a scale that is off by a tenth."""
# Share of elements that may be a step off beside thrice eager's own, and how many in any case: values at the middle
# between two steps, which another rounding in between moves.
STEP_SHARE, STEP_COUNT = 0.01, 3
# Rows of fewer elements may cancel as a whole, so they are held against eager's worst absolute error only.
SHORT_ROW = 8
# Of rows of fewer elements, thousands of which stand in one output, some have one sign by luck.
MIXED_ROW = 32


@dataclass(frozen=True)
class ProbeFinding:
    """The comparison of one output: reason is None where it passed. Ratios are to the allowance (≤ 1 passes).
    unplaced: elements that may be finite, NaN or infinite, as the references differ in that."""

    reason: Reason | None
    detail: str
    rmse_ratio: float = 0.0
    row_ratio: float = 0.0
    element_ratio: float = 0.0
    max_ulp: float = 0.0
    rmse_to_eager: float = 0.0
    unplaced: int = 0


RATIOS = ("rmse_ratio", "row_ratio", "element_ratio", "max_ulp", "rmse_to_eager")
"""Of a finding, the figures whose largest over all calls a verdict carries."""


@dataclass(frozen=True)
class ErrorAllowance:
    """What eager's own errors permit for one output: absolute RMSE, worst row (absolute and relative to the row's
    RMS), worst element in ULP. Pooled: the largest, or the root mean square, over draws. mixed: of short rows,
    whether both signs came up in any draw: two sums may share their sign by luck, and one still cancel."""

    rmse: float
    row: float
    row_relative: float
    ulp: float
    eager_rmse: float
    mixed: bool = False


@dataclass(frozen=True)
class Expected:
    """What the parent holds a call's outputs against. rows: indices compared, or None for all. spoilt: of each
    output the elements that must not be finite; where given, nothing else is compared. terms: of each output how
    many equal terms it is a sum of, 1 where they are not known to be equal (`EQUAL_TERMS`). bound: 0.0, or the
    largest relative error of an element, all of which are positive. bits: outputs that are compared as of an exact
    operation. doubt: of a question that was meant to have one right answer, why it is judged by its error instead
    (`kernels.judge.probes.exact`)."""

    truth: Outputs
    eager: Outputs
    allowances: tuple[ErrorAllowance, ...]
    rows: torch.Tensor | None
    exact: bool
    signed_zero: bool
    gradients: bool
    elementwise: bool = False
    placed: bool = False
    spoilt: tuple[torch.Tensor, ...] = ()
    terms: tuple[int, ...] = ()
    bound: float = 0.0
    bits: tuple[int, ...] = ()
    doubt: str = ""
    written_out: Outputs = ()


def compare(expected: Expected, outputs: Sequence[torch.Tensor]) -> ProbeFinding:
    """The first output that fails, or the worst ratios of those that pass."""
    if len(outputs) != len(expected.eager):
        return ProbeFinding(Reason.wrong_type, f"{len(outputs)} outputs, expected {len(expected.eager)}")
    worst = ProbeFinding(None, "")
    for i, (output, truth, eager) in enumerate(zip(outputs, expected.truth, expected.eager, strict=True)):
        rows = expected.rows
        found = _one(expected, i, output if rows is None else output.index_select(0, rows), truth, eager)
        if found.reason is not None:
            reason = Reason.gradient if expected.gradients else found.reason
            what = "gradient" if expected.gradients else "output"
            return replace(found, reason=reason, detail=f"{what} {i}: {found.detail}")
        ratios = {name: max(getattr(worst, name), getattr(found, name)) for name in RATIOS}
        worst = ProbeFinding(None, "", **ratios, unplaced=worst.unplaced + found.unplaced)
    return worst


def _form(got: torch.Tensor, eager: torch.Tensor) -> ProbeFinding | None:
    """What is not eager's in an output before any of its values; None where nothing is."""
    for reason, mine, should in (
        (Reason.wrong_shape, tuple(got.shape), tuple(eager.shape)),
        (Reason.wrong_dtype, got.dtype, eager.dtype),
        (Reason.wrong_device, got.device, eager.device),
    ):
        if mine != should:
            return ProbeFinding(reason, f"{mine}, expected {should}")
    return None


def _one(expected: Expected, i: int, got: torch.Tensor, truth: torch.Tensor, eager: torch.Tensor) -> ProbeFinding:
    unfit = _form(got, eager)
    if unfit is not None or got.numel() == 0:
        return unfit or ProbeFinding(None, "")
    if expected.spoilt:
        return _hidden(got, expected.spoilt[i])
    if expected.exact or i in expected.bits:
        return same_bits(got, eager, expected.signed_zero and not expected.bits)
    if not got.is_floating_point():
        return _integers(got, truth, expected.allowances[i])
    if got.dtype in EIGHT_BITS:
        return _stepwise(got, truth, eager, expected.allowances[i])
    wrong, unplaced = _placement(got, (truth, eager, *expected.written_out[i : i + 1]))
    if wrong:
        return ProbeFinding(Reason.nan_placement, wrong)
    if expected.placed:
        found = ProbeFinding(None, "")
    elif expected.bound:
        found = _bounded(got, truth, expected.bound)
    else:
        terms = expected.terms[i] if expected.terms and got.dtype in EQUAL_TERMS else 1
        limits = expected.allowances[i], expected.elementwise, math.sqrt(terms)
        found = _accuracy(got, truth, eager, *limits)
    return replace(found, unplaced=unplaced)


def _hidden(got: torch.Tensor, spoilt: torch.Tensor) -> ProbeFinding:
    hidden = spoilt & torch.isfinite(got)
    if not bool(hidden.any()):
        return ProbeFinding(None, "")
    text = f"{int(hidden.sum())} elements, first at {_first(hidden)}: finite, but infinite gradients reach them"
    return ProbeFinding(Reason.nan_placement, text)


def _bounded(got: torch.Tensor, truth: torch.Tensor, bound: float) -> ProbeFinding:
    ratios = ((got.double() - truth) / truth).abs() / bound
    worst, at = (float(x) for x in ratios.flatten().max(dim=0))
    if worst <= 1:
        return ProbeFinding(None, "", element_ratio=worst)
    told = f"{_values(_index(int(at), got.shape), got, truth)}: off by 2^{math.log2(worst * bound):.1f} of it, and"
    told += f" float32 in any order by at most 2^{math.log2(bound):.1f}: as with operands of fewer than 24 bits"
    return ProbeFinding(Reason.max_ulp, told, element_ratio=worst)


def same_bits(got: torch.Tensor, want: torch.Tensor, signed_zero: bool = True) -> ProbeFinding:
    """Bit for bit; any NaN equals any NaN (payloads are not part of IEEE 754's contract)."""
    if got.dtype in EIGHT_BITS and want.dtype == got.dtype:  # of which CUDA has few operators
        got, want = got.float(), want.float()
    equal = got == want
    if got.is_floating_point():
        equal |= torch.isnan(got) & torch.isnan(want)
        if signed_zero:
            equal &= torch.isnan(got) | (torch.signbit(got) == torch.signbit(want))
    if bool(equal.all()):
        return ProbeFinding(None, "")
    bad, at = int((~equal).sum()), _first(~equal)
    told = f"{bad} of {got.numel()} elements differ, first at {_values(at, got, want)}"
    return ProbeFinding(Reason.not_exact, told)


def _values(at: tuple[int, ...], got: torch.Tensor, want: torch.Tensor) -> str:
    """An element's place, what it is and what it should be."""
    return f"{at}: {got[at].item():.9g}, expected {want[at].item():.9g}"


def _first(mask: torch.Tensor) -> tuple[int, ...]:
    return _index(int(torch.argmax(mask.flatten().to(torch.int8))), mask.shape)


def _index(flat: int, shape: Sequence[int]) -> tuple[int, ...]:
    place = []
    for size in reversed(shape):
        place.append(flat % size)
        flat //= size
    return tuple(reversed(place))


def _classes(x: torch.Tensor) -> torch.Tensor:
    """0 finite, 1 NaN, 2 +inf, 3 −inf."""
    return (
        torch.isnan(x).to(torch.int8) + 2 * torch.isposinf(x).to(torch.int8) + 3 * torch.isneginf(x).to(torch.int8)
    )


def _placement(got: torch.Tensor, references: Sequence[torch.Tensor]) -> tuple[str, int]:
    """What stands where no reference, rounded to the output's dtype, has it (empty: nothing), and of how many
    elements the references differ: there the output may be as any of them has it.

    Three are needed. torch's fused RMSNorm on CUDA takes the mean by Welford's method where a row does not fill its
    vectors, and an infinity then makes the whole row NaN, in float64 as in float16; a sum of squares makes one NaN.
    """
    rounded = [x.to(got.dtype) for x in references]
    if bool(torch.stack([torch.isfinite(x).all() for x in (got, *rounded)]).all()):
        return "", 0
    seen, (first, *others) = _classes(got), map(_classes, rounded)
    wrong, differ = seen != first, torch.zeros_like(seen, dtype=torch.bool)
    for other in others:
        wrong &= seen != other
        differ |= first != other
    if not bool(wrong.any()):
        return "", int(differ.sum())
    at = _first(wrong)
    names = ("finite", "NaN", "+inf", "-inf")
    told = f"{int(wrong.sum())} elements, first at {at}: {names[int(seen[at])]}, expected {names[int(first[at])]}"
    return told, int(differ.sum())


def _integers(got: torch.Tensor, truth: torch.Tensor, allowed: ErrorAllowance) -> ProbeFinding:
    distance = (got.double() - truth.double()).abs()
    worst = float(distance.max())
    ratio = worst / allowed.rmse
    if ratio > 1:
        at = _first(distance == worst)
        return ProbeFinding(
            Reason.not_exact, f"off by {worst:.4g} at {at}, allowed {allowed.rmse:.4g}", element_ratio=ratio
        )
    return ProbeFinding(None, "", element_ratio=ratio)


def steps_apart(result: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """How many steps lie between the elements of two tensors of one dtype of `EIGHT_BITS`; 255 where one is NaN."""

    def place(x: torch.Tensor) -> torch.Tensor:
        bits = x.view(torch.int8).to(torch.int16)
        size = bits & 0x7F
        return torch.where(bits < 0, -size, size)

    nan = [torch.isnan(x.to(torch.float32)) for x in (result, truth)]
    apart = torch.where(nan[0] != nan[1], 255, (place(result) - place(truth)).abs())
    return torch.where(nan[0] & nan[1], 0, apart)


def _stepwise(got: torch.Tensor, truth: torch.Tensor, eager: torch.Tensor, allowed: ErrorAllowance) -> ProbeFinding:
    """No element more than a step off, or further than eager; and about as many off as of eager's."""
    truth = truth.to(got.dtype)
    apart, own = steps_apart(got, truth), steps_apart(eager, truth)
    far = torch.minimum(apart, steps_apart(got, eager)) > 1
    if bool(far.any()):
        at = _first(far)
        return ProbeFinding(
            Reason.max_ulp, f"{_values(at, got.float(), truth.float())}: {int(apart[at])} steps off"
        )
    off, count = int((apart > 0).sum()), got.numel()
    limit = STEP_COUNT + count * (STEP_SHARE + 3.0 * max(allowed.rmse, float((own > 0).double().mean())))
    if off > limit:
        return ProbeFinding(Reason.rmse, f"{off} of {count} elements are a step off, at most {limit:.0f}")
    return ProbeFinding(None, "", rmse_ratio=off / limit)


def _luck(count: int) -> float:
    return 1.0 + (ELEMENT_FACTOR - 1.0) / math.sqrt(max(1, count))


def _luck_of_rows(most: int, carriers: torch.Tensor) -> torch.Tensor:
    """As `_luck`, of so many elements at most as carry the row: twelve of 1,482 where the others are masked."""
    return 1.0 + (ELEMENT_FACTOR - 1.0) / carriers.clamp(min=1.0, max=max(1, most)).sqrt()


def _accuracy(
    got: torch.Tensor,
    truth: torch.Tensor,
    eager: torch.Tensor,
    allowed: ErrorAllowance,
    elementwise: bool,
    floors: float,
) -> ProbeFinding:
    factor = RMSE_FACTOR[got.dtype]
    count, columns = rows_of(got).shape
    mine, own = errors_together([got, eager], truth)
    base = factor * max(allowed.rmse, own.rmse, floors * own.floor, torch.finfo(torch.float64).tiny)
    limit, rmse_ratio = _luck(count) * base, mine.rmse / (_luck(count) * base)
    if rmse_ratio > 1 and got.itemsize >= 4 and mine.residual <= limit:
        limit = math.hypot(mine.residual, _luck(1) * base)
        rmse_ratio = mine.rmse / limit
    eager_ulp = max(allowed.ulp, own.worst_ulp)
    cancels = (_mixed_signs(truth) | allowed.mixed) & (not elementwise)
    if eager_ulp > CANCELLING_ULP:
        cancels = torch.ones_like(cancels)
    beside = torch.maximum(own.rows, floors * own.row_floors)
    if got.itemsize >= 4 and bool(cancels.any()):
        beside = torch.where(cancels, torch.maximum(beside, _clipped(truth, eager, own.rows)), beside)
    pooled = torch.full_like(beside, allowed.row)
    if columns >= SHORT_ROW:
        pooled = torch.minimum(pooled, mine.row_scales * allowed.row_relative)
    row_limits = factor * _luck_of_rows(min(count, columns), mine.row_carriers) * torch.maximum(beside, pooled)
    high, row = (mine.rows / positive(row_limits)).max(dim=0)
    row_ratio = float(high)
    ulp_limit = max(ELEMENT_FLOOR_ULP[got.dtype], factor * ELEMENT_FACTOR * min(eager_ulp, CANCELLING_ULP))
    peaks = own.row_worst
    if columns >= SHORT_ROW:
        relative = (peaks / positive(own.row_tops)).max()
        peaks = torch.minimum(peaks.max(), own.row_tops * relative)
    usual = factor * torch.maximum(ELEMENT_FACTOR * torch.maximum(beside, pooled), peaks)
    row_elements = torch.where(cancels, usual, 0.0)
    element_ratio, at = _worst_element(got, truth, eager, ulp_limit, row_elements)
    figures = (rmse_ratio, row_ratio, element_ratio, mine.worst_ulp, mine.rmse / max(own.rmse, 1e-300))
    if rmse_ratio > 1:
        told = f"RMSE {mine.rmse:.3g}, allowed {limit:.3g} (eager {own.rmse:.3g}), most at {_farthest(got, truth)}"
        return ProbeFinding(Reason.rmse, told, *figures)
    if row_ratio > 1:
        told = f"row {int(row)}: RMSE {float(mine.rows[row]):.3g}, allowed {float(row_limits[row]):.3g}"
        told += f", most at {_farthest(got, truth, int(row))}"
        return ProbeFinding(Reason.worst_row, told, *figures)
    if element_ratio > 1:
        place = _values(_index(at, got.shape), got, truth)
        told = f"{element_ratio:.3g} times the allowed error ({ulp_limit:.3g} ULP) at {place}"
        return ProbeFinding(Reason.max_ulp, told, *figures)
    return ProbeFinding(None, "", *figures)


def _clipped(truth: torch.Tensor, eager: torch.Tensor, errors: torch.Tensor) -> torch.Tensor:
    """What each row's elements that are exactly zero in truth and eager stand for. A ReLU or a clamp hides there
    what the sum before it erred by, of eager as of anybody, so they count with the error of the other elements in a
    usual row. errors: of eager, by row."""
    zeros = torch.cat([((exact == 0) & (own == 0)).sum(dim=1) for exact, own in parts(truth, eager)])
    columns = max(1, rows_of(truth).shape[1])
    others = columns - zeros
    told = others > 0
    if not bool(told.any()) or not bool(zeros.any()):
        return torch.zeros_like(errors)
    usual = (errors[told] * (columns / others[told]).sqrt()).median()
    return usual * (zeros / columns).sqrt()


def _farthest(got: torch.Tensor, truth: torch.Tensor, row: int | None = None) -> str:
    """The element with the largest error, of all or of one row."""
    rows = slice(None) if row is None else slice(row, row + 1)
    start = 0 if row is None else row * rows_of(got).shape[1]
    worst, at = -1.0, start
    for values, exact in parts(rows_of(got)[rows], rows_of(truth)[rows]):
        high, place = torch.nan_to_num((values - exact).abs(), 0.0, 0.0, 0.0).flatten().max(dim=0)
        if float(high) > worst:
            worst, at = float(high), start + int(place)
        start += values.numel()
    return _values(_index(at, got.shape), got, truth)


def _mixed_signs(truth: torch.Tensor) -> torch.Tensor:
    """For each row, whether it holds values of both signs; short rows together (`ErrorAllowance.mixed`)."""
    rows = rows_of(truth)
    return (rows < 0).any(dim=1) & (rows > 0).any(dim=1)


def _worst_element(
    got: torch.Tensor, truth: torch.Tensor, eager: torch.Tensor, ulp_limit: float, row_limits: torch.Tensor
) -> tuple[float, int]:
    """The largest ratio of an element's error to its allowance, and its flat index."""
    worst, worst_at, start = 0.0, 0, 0
    for values, exact, beside in parts(got, truth, eager):
        mask = torch.isfinite(values) & torch.isfinite(exact) & torch.isfinite(beside)
        true = torch.where(mask, exact, 0.0)
        limits = torch.maximum(ulp(true, got.dtype) * ulp_limit, row_limits[start : start + len(values), None])
        ratio = torch.where(mask, values - true, 0.0).abs() / limits
        if ratio.numel():
            high, at = ratio.flatten().max(dim=0)
            if float(high) > worst:
                worst, worst_at = float(high), start * values.shape[1] + int(at)
        start += len(values)
    return worst, worst_at


def repeats_agree(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> bool:
    """Whether two calls on the same inputs gave the same bits (NaN equals NaN)."""
    return len(first) == len(second) and all(
        a.shape == b.shape and a.dtype == b.dtype and same_bits(a, b).reason is None
        for a, b in zip(first, second, strict=True)
    )
