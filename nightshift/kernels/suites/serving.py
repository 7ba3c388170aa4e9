"""A definition of serving as a problem: ragged and paged inputs, questions beyond its workloads, a float64 oracle.

A case is `rows` (sequences, tokens or lines), a `regime` (how long the sequences are and where their pages lie: see
`REGIMES`) and a `workload`, 0 or the number of a published one. Every other size follows from these three. What an
input means follows from its name and place: `VALUES`, in order. A definition with an unknown input or axis is
refused: random integers for indices would read outside a cache.

The reference is run in the judge's process: load only folders that you trust, as with `kernels.suites.kernelbench`.
The oracle is the reference again, in which every float of 16 or 32 bits is float64.

Problems with a random answer or several right ones (sampling, top-k with ties, chosen places) have a rule. It reads
a probe's calls (inputs and outputs, the latest last) and says what is wrong; nothing where all is right. What is
forbidden is exact: a token outside the nucleus, a value that is no k-th largest, an index that comes twice. What is
random is a test with a stated error and power.

Sampling. A token may be drawn if it is among the k most probable (any of those that tie with the k-th), and if the
mass of all more probable ones is at most p. On `SHARED` rows of one distribution a χ² test compares counts with
it, and two calls on the same inputs must not agree more often than chance. Both are false at most once in 10⁹. With
1,024 draws a total variation of 0.2 is found with probability 0.999: `power`.
"""

from __future__ import annotations

import importlib.util
import inspect
import math
import random
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import NormalDist
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from nightshift.kernels.candidate import Candidate, Language
from nightshift.kernels.draw import TWIN, Draw, mix
from nightshift.kernels.judge.probes.inputs import Probe
from nightshift.kernels.judge.probes.sizes import Scope
from nightshift.kernels.judge.verdict import FIT, Reason, Verdict
from nightshift.kernels.problem import Axis, Case, Input, Inputs, Outputs, Problem, ProblemError
from nightshift.kernels.suites.definitions import FLOATS, Definition, Solution, TensorForm, Workload
from nightshift.kernels.suites.extension import MODULE
from nightshift.kernels.suites.process_settings import as_it_was

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


REGIMES: tuple[tuple[str, str], ...] = (
    ("mixed", "lengths from 1 on, most no multiple of the page"),
    ("one", "every sequence is one token, on one page"),
    ("full page", "every sequence fills its pages"),
    ("past a page", "every sequence has one token on its last page"),
    ("empty", "the first and every second sequence after it are empty"),
    ("all empty", "no sequence has a token"),
    ("shared", "sequences share pages, and some page comes twice in one sequence"),
    ("long", "one long sequence among short ones"),
    ("prefix", "queries continue a sequence: fewer of them than keys"),
)
"""How long sequences are, and where they lie: (name, meaning), by the number that a case has."""
_NAMES = tuple(name for name, _ in REGIMES)
RAGGED = frozenset({"kv_indptr", "qo_indptr", "cu_seqlens", "seq_lens"})
ROWS = ("batch_size", "M", "num_tokens", "total_num_tokens", "seq_len", "num_seqs")
"""Axes that are a case's rows where a definition varies in them, the first that it has."""
DISTRIBUTIONS = ("normal", "ties", "tiny", "far", "large_mean", "zeros")
"""What values are: see `_scaled`. "far" are logits of several hundred."""
_PAGED = ("page_size",)
_SPARE_PAGES = 3
_STEPS = 4
_SHARED_TOKENS = 12
LINES = (1, 2, 3, 7, 16, 17, 33, 65, 129)
SEQUENCES = (1, 2, 5)


@dataclass(frozen=True)
class Lengths:
    """Of a case's sequences, in tokens: keys and queries; how many pages each takes; and the sizes of all axes."""

    keys: tuple[int, ...]
    queries: tuple[int, ...]
    counts: tuple[int, ...]
    sizes: Mapping[str, int]

    @cached_property
    def pages(self) -> tuple[tuple[int, ...], ...]:
        """Where fewer pages exist than sequences take, they share some."""
        most, at, made = self.sizes.get("num_pages", 0), 0, []
        order = _shuffled(most, most)
        for count in self.counts:
            made.append(tuple(order[(at + k) % most] for k in range(count)))
            at += count
        return tuple(made)


class _Wide(TorchFunctionMode):
    """Everything in float64: a factory's dtype, a conversion, and a tensor that was made elsewhere."""

    _NARROW = frozenset({torch.float32, torch.float16, torch.bfloat16})
    _CASTS = frozenset({torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16})

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self._CASTS:
            return args[0].double()
        if func is torch.Tensor.view:  # the bytes of a packed cache are what they are
            return func(*args, **(kwargs or {}))
        given = tuple(self._wide(x) for x in args)
        return func(*given, **{name: self._wide(x) for name, x in (kwargs or {}).items()})

    def _wide(self, value: Any) -> Any:
        return torch.float64 if isinstance(value, torch.dtype) and value in self._NARROW else value


class _TensorCores(TorchFunctionMode):
    """Products of float32 matrices that hold bfloat16's values as a GPU multiplies bfloat16: its tensor cores cut
    the running sum off after every few terms, where float32 arithmetic rounds it (M. Fasi et al., "Numerical
    behavior of NVIDIA tensor cores", PeerJ Computer Science 7, 2021): every server's kernel errs by more."""

    _PRODUCTS = frozenset({torch.matmul, torch.mm, torch.Tensor.matmul, torch.Tensor.mm, torch.Tensor.__matmul__})
    _TERMS = 16

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self._PRODUCTS and all(self._fits(x) for x in args):
            return self._product(*args)
        return func(*args, **(kwargs or {}))

    def _fits(self, x: torch.Tensor) -> bool:
        usual = x.dim() == 2 and x.numel() > 0 and x.dtype is torch.float32
        return usual and torch.equal(x, x.bfloat16().float())

    def _product(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        made = torch.zeros(len(a), b.shape[1], device=a.device)
        for first in range(0, a.shape[1], self._TERMS):
            terms = slice(first, first + self._TERMS)
            exact = made.double() + a[:, terms].double() @ b[terms].double()
            nearest = exact.float()
            shorter = torch.nextafter(nearest, torch.zeros_like(nearest))
            made = torch.where(nearest.double().abs() > exact.abs(), shorter, nearest)
        return made


def problem_of(definition: Definition, workloads: Sequence[Workload] = ()) -> Problem:
    """A definition and its workloads as a problem. Raises ProblemError where its inputs have no known meaning."""
    reference = _reference(definition)
    maker = _Maker(definition, tuple(workloads))
    dtype = _dtype(definition)
    cases = tuple(
        Case.of(dtype, rows=1, regime=0, workload=number) for number in _chosen(definition, workloads, maker)
    )
    small = Case.of(dtype, rows=2, regime=0, workload=0)
    maker.lengths(small)  # that every size can be told

    def oracle(*inputs: Any) -> Any:
        with as_it_was():
            torch.set_default_dtype(torch.float64)
            with _Wide():
                return reference(*inputs)

    def checked(*inputs: Any) -> Any:
        with as_it_was():
            return reference(*inputs)

    def narrow(*inputs: Any) -> Any:
        with as_it_was(), _TensorCores():
            return reference(*inputs)

    products = dtype == "bfloat16" and any(form.dtype == "float32" for form in definition.outputs.values())
    checked.__dict__["source"] = definition.reference  # a certificate names its hash
    problem = Problem(
        name=f"serving/{definition.name}",
        family=definition.kind,
        reference=checked,
        make_inputs=maker.make,
        cases=cases or (small,),
        axes=(
            Axis("rows", LINES, 1, 1 << 16),
            Axis("regime", (0,), 0, len(REGIMES)),
            Axis("workload", (0,), 0, 4096),
        ),
        compulsory_bytes=maker.moved_bytes,
        flops=maker.moved_bytes,
        dtypes=(dtype,),
        distributions=DISTRIBUTIONS,
        layouts=("contiguous",),
        oracle=oracle,
        narrow=narrow if products and torch.cuda.is_available() else None,
        probes=lambda problem, candidate, secret, scope: probes(problem, maker, secret, scope),
    )
    rule = rule_of(definition, lambda inputs: (problem.eager(inputs), problem.truth(inputs)))
    return problem if rule is None else replace(problem, accepts=rule.accepts, random=rule.random)


def probes(problem: Problem, maker: _Maker, secret: bytes, scope: Scope) -> tuple[Probe, ...]:
    """What a candidate is asked, the smallest first, so that a refusal names a small input.

    Every regime at a few numbers of rows; every distribution of values; streams, work beside it, repeated calls;
    the same memory with other values; and the published workloads, as far as the scope affords them.
    """
    key = int.from_bytes(secret[:8].ljust(8, b"\0"), "little")
    seeds = (mix(key, number) for number in range(1 << 20))
    dtype, unique = problem.dtypes[0], problem.accepts is None

    def case(rows: int, regime: str = "mixed", workload: int = 0) -> Case:
        return Case.of(dtype, rows=rows, regime=_NAMES.index(regime), workload=workload)

    def affordable(case: Case) -> bool:
        return problem.compulsory_bytes(case) <= scope.max_bytes

    def made() -> Iterator[Probe]:
        base = case(3)
        yield Probe("smoke", case(2), "normal", (next(seeds),))
        for rows in SEQUENCES if maker.ragged else LINES:
            for name in _NAMES if maker.ragged else ("mixed",):
                yield Probe("sweep", case(rows, name), "normal", (next(seeds),))
        for name in problem.distributions if unique else ():
            yield Probe("values", base, name, (next(seeds),))
        if "probs" in maker.definition.inputs:  # rows of one distribution, as many as its test asks for
            yield Probe("values", case(256), SHARED, (next(seeds),) * scope.repeats)
        again = (next(seeds),) * (scope.repeats if unique else 1)
        yield Probe("determinism", base, "normal", again, under_load=True)
        yield Probe("determinism", base, "normal", (next(seeds),), on_stream=True)
        yield Probe("determinism", base, "normal", (next(seeds),), overlapping=True)
        a, b = next(seeds), next(seeds)
        yield Probe("integrity", base, "normal", (a, b, a + TWIN, a) if unique else (a, b))
        for one in problem.cases if scope.benchmark else ():
            yield Probe("accuracy", one, "normal", (next(seeds),))

    return tuple(probe for probe in made() if probe.stage == "smoke" or affordable(probe.case))


def told(case: Case) -> str:
    """A case in words."""
    if case["workload"]:
        return f"workload {case['workload']}"
    regime = "" if case["regime"] == 0 else f", {_NAMES[case['regime']]}"
    return f"rows={case['rows']}{regime}"


def _reference(definition: Definition) -> Callable[..., Any]:
    module = types.ModuleType(f"definition_{definition.name}")
    sys.modules[module.__name__] = module  # Dynamo asks for a function's module by name
    with as_it_was():
        try:
            exec(compile(definition.reference, f"<{definition.name}>", "exec"), module.__dict__)
        except Exception as error:
            raise ProblemError(f"{definition.name}: reference: {type(error).__name__}: {error}") from error
    run: Callable[..., Any] = module.run
    needed = list(inspect.signature(run).parameters)
    if sorted(needed) != sorted(definition.inputs):
        text = f"{', '.join(needed)}, and the inputs are {', '.join(definition.inputs)}"
        raise ProblemError(f"{definition.name}: reference: run takes {text}")
    order, outputs = list(definition.inputs), list(definition.outputs)

    def reference(*inputs: Any) -> Any:
        made = run(**dict(zip(order, inputs, strict=True)))  # some list their inputs in another order
        return tuple(made[name] for name in outputs) if isinstance(made, Mapping) else made

    return reference


def _dtype(definition: Definition) -> str:
    names = (form.dtype for form in definition.inputs.values() if form.shape is not None)
    return next((name for name in names if name in ("bfloat16", "float16", "float32")), "bfloat16")


_LARGEST, _MOST_CASES = 1 << 28, 3


def _chosen(definition: Definition, workloads: Sequence[Workload], maker: _Maker) -> list[int]:
    """Of the workloads, from 1, the smallest, the middle and the largest of at most 256 MiB."""
    dtype = _dtype(definition)
    sized = sorted(
        (size, number)
        for number in range(1, len(workloads) + 1)
        if (size := maker.moved_bytes(Case.of(dtype, rows=1, regime=0, workload=number))) <= _LARGEST
    )
    places = sorted({0, len(sized) // 2, len(sized) - 1}) if sized else []
    return [sized[place][1] for place in places][:_MOST_CASES]


class _Maker:
    """Sizes and values of one definition's inputs, for every case."""

    def __init__(self, definition: Definition, workloads: tuple[Workload, ...]) -> None:
        self.definition = definition
        self.workloads = workloads
        self.ragged = bool(RAGGED & set(definition.inputs))
        self.whole = (
            "total_q == total_kv" in definition.constraints
        )  # every key has its query: no continued sequence
        self.page = next((definition.axes[name] or 1 for name in _PAGED if name in definition.axes), 1)
        self._lengths: dict[Case, Lengths] = {}
        unknown = [name for name, form in definition.inputs.items() if _role(name, form) is None]
        if unknown:
            raise ProblemError(f"{definition.name}: inputs.{unknown[0]}: an input of no known meaning")

    def make(self, case: Case, draw: Draw) -> Inputs:
        """Inputs in the definition's order."""
        lengths = self.lengths(case)
        made: list[Input] = []
        for name, form in self.definition.inputs.items():
            role = _role(name, form)
            assert role is not None
            value = role(self, name, form, lengths, draw, case)
            made.append(self._number(name, value, case) if form.shape is None else value)
        return tuple(made)

    def _number(self, name: str, value: Input, case: Case) -> Input:
        given = self.workloads[case["workload"] - 1].numbers if case["workload"] else {}
        return given.get(name, value)

    def shape(self, form: TensorForm, lengths: Lengths) -> tuple[int, ...]:
        return tuple(size if isinstance(size, int) else lengths.sizes[size] for size in form.shape or ())

    def moved_bytes(self, case: Case) -> int:
        """Of all inputs and outputs; of a table that is read by places, of the rows that they name."""
        lengths = self.lengths(case)
        sizes = [
            math.prod(self.shape(form, lengths)) * form.torch_dtype.itemsize * self._share(form, lengths)
            for form in self.definition.inputs.values()
            if form.shape
        ]
        made = (form for form in self.definition.outputs.values() if form.shape)
        sizes += [math.prod(self.shape(form, lengths)) * form.torch_dtype.itemsize for form in made]
        return int(sum(sizes))

    def _share(self, form: TensorForm, lengths: Lengths) -> float:
        """Of the rows of an input, at least so many are read: all but of a table with places among the inputs."""
        axis = (form.shape or ("",))[0]
        for axes, by, named in TABLES:
            if axis in axes and (given := by & set(self.definition.inputs)):
                size = max(1, lengths.sizes[str(axis)])
                return min(1.0, named(self, size, lengths, min(given)) / size)
        return 1.0

    def lengths(self, case: Case) -> Lengths:
        if case not in self._lengths:
            published = self.workloads[case["workload"] - 1].axes if case["workload"] else {}
            self._lengths[case] = self._published(published) if published else self._drawn(case)
        return self._lengths[case]

    def _drawn(self, case: Case) -> Lengths:
        count, regime = case["rows"], _NAMES[case["regime"]]
        if not self.ragged:
            return self._laid((), (), False, {}, count)
        keys = tuple(self._keys(regime, number, count) for number in range(count))
        queries = tuple(self._queries(regime, number, length) for number, length in enumerate(keys))
        return self._laid(keys, queries, regime == "shared", {}, count)

    def _keys(self, regime: str, number: int, count: int) -> int:
        page = self.page
        some = 1 + mix(count, number, 0x5E) % max(40, 2 * page + 5)
        match regime:
            case "one":
                return 1
            case "full page":
                return page * (1 + number % 2)
            case "past a page":
                return page * (1 + number % 2) + 1
            case "empty":
                return 0 if number % 2 == 0 else some
            case "all empty":
                return 0
            case "long":
                return 10 * page + 500 if number == count // 2 else some
            case _:
                return some

    def _queries(self, regime: str, number: int, keys: int) -> int:
        fewer = regime in ("prefix", "mixed") and keys and not self.whole
        return 1 + mix(number, keys, 0x9E) % keys if fewer else keys

    def _published(self, axes: Mapping[str, int]) -> Lengths:
        """Lengths that add up to a workload's axes; how it splits them is in files that no folder here has."""
        if not self.ragged:
            rows = next((axes[name] for name in ROWS if name in axes), 1)
            return self._laid((), (), False, axes, rows)
        count = axes.get("len_indptr", axes.get("len_cu_seqlens", 0)) - 1
        count = count if count >= 0 else axes.get("num_seqs", axes.get("batch_size", 1))
        total = axes.get("num_kv_indices", axes.get("total_kv", axes.get("total_seq_len", 0)))
        pages = _split(total, count)
        tokens = tuple(n * self.page for n in pages) if "num_kv_indices" in axes else pages
        queries = _split(axes.get("total_q", axes.get("total_seq_len", 0)), count)
        keys = tuple(max(k, q) for k, q in zip(tokens, queries, strict=True)) if "total_q" in axes else tokens
        if sum(keys) != sum(tokens):  # as many queries as keys, where a workload is one prefill
            keys = tokens
            queries = tuple(min(q, k) for q, k in zip(queries, tokens, strict=True))
            axes = {**axes, "total_q": sum(queries)}  # a query before the first key has no answer
        return self._laid(keys, queries, False, axes, count)

    def _laid(
        self, keys: tuple[int, ...], queries: tuple[int, ...], shared: bool, given: Mapping[str, int], count: int
    ) -> Lengths:
        counts = [-(-length // self.page) for length in keys]
        total = sum(counts)
        if not given.get("num_pages", 1):  # published with places in a cache of no pages: then as many as it takes
            given = {name: size for name, size in given.items() if name != "num_pages"}
        most = max(given.get("num_pages", 0), max(1, total // 2) if shared else total + _SPARE_PAGES)
        sizes = {name: size for name, size in self.definition.axes.items() if size is not None}
        widest = max((*counts, 1))
        topk = -(-sizes.get("topk", 1) // self.page)
        # the first of these names that a definition varies in is its rows; the rest follow
        derived = {
            **dict.fromkeys(ROWS, max(1, count)),
            "len_indptr": count + 1,
            "len_cu_seqlens": count + 1,
            "num_pages": most,
            "num_kv_indices": total,
            "total_q": sum(queries),
            "total_kv": sum(keys),
            "total_seq_len": sum(keys),
            "max_num_pages": max(widest, topk),
            "max_seq_len": max(64, sizes.get("topk", 1), *keys),
            "max_position": 64,
            "pool_size": count + 2,
            "state_cache_size": count + 2,
            "num_k_heads": 4,
            "num_qo_heads": 8,
            "num_kv_heads": 2,
        }
        if "seq_len" in self.definition.variable and "batch_size" in self.definition.variable:
            derived["seq_len"] = _STEPS
        for name in self.definition.variable:
            if name not in derived and name not in given:
                raise ProblemError(f"{self.definition.name}: axes.{name}: an axis of no known meaning")
            sizes[name] = given.get(name, derived.get(name, 0))
        return Lengths(keys, queries, tuple(counts), sizes)


def _split(total: int, count: int) -> tuple[int, ...]:
    """A total in so many parts, no two neighbours alike where that can be."""
    if count <= 0:
        return ()
    weights = [1 + mix(number, count) % 7 for number in range(count)]
    parts = [total * weight // sum(weights) for weight in weights]
    parts[-1] += total - sum(parts)
    return tuple(parts)


def _shuffled(count: int, key: int) -> list[int]:
    return random.Random(key).sample(range(count), count)


# --- what inputs mean ---------------------------------------------------------------------------------------------

Role = Callable[[_Maker, str, TensorForm, Lengths, Draw, Case], Any]


def _tensor(values: Sequence[int], form: TensorForm, draw: Draw) -> torch.Tensor:
    return torch.tensor(list(values), dtype=torch.int64).to(device=draw.device, dtype=form.torch_dtype)


def _sums(values: Sequence[int]) -> list[int]:
    found = [0]
    for value in values:
        found.append(found[-1] + value)
    return found


def _offsets(maker: _Maker, name: str, form: TensorForm, lengths: Lengths, draw: Draw, case: Case) -> Any:
    if name == "qo_indptr":
        return _tensor(_sums(lengths.queries), form, draw)
    paged = "kv_indices" in maker.definition.inputs
    return _tensor(_sums([len(p) for p in lengths.pages] if paged else lengths.keys), form, draw)


def _page_numbers(maker: _Maker, name: str, form: TensorForm, lengths: Lengths, draw: Draw, case: Case) -> Any:
    return _tensor([page for pages in lengths.pages for page in pages], form, draw)


def _last_pages(maker: _Maker, name: str, form: TensorForm, lengths: Lengths, draw: Draw, case: Case) -> Any:
    count = maker.shape(form, lengths)[0]
    last = [(length - 1) % maker.page + 1 if length else 0 for length in lengths.keys]
    return _tensor([*last, *[0] * count][:count], form, draw)


def _sequence_lengths(maker: _Maker, name: str, form: TensorForm, lengths: Lengths, draw: Draw, case: Case) -> Any:
    return _tensor(lengths.keys, form, draw)


def _page_table(maker: _Maker, name: str, form: TensorForm, lengths: Lengths, draw: Draw, case: Case) -> Any:
    """Of each sequence its pages, or the place of each of its tokens where a page holds one."""
    rows, width = maker.shape(form, lengths)
    if "max_seq_len" in (form.shape or ()):
        table = [[p * maker.page + k for p in pages for k in range(maker.page)] for pages in lengths.pages]
    else:
        table = [list(pages) for pages in lengths.pages]
    flat = [value for row in table[:rows] for value in (*row, *[0] * width)[:width]]
    return _tensor(flat, form, draw).reshape(rows, width)


def _chosen_places(maker: _Maker, name: str, form: TensorForm, lengths: Lengths, draw: Draw, case: Case) -> Any:
    """Of each row places in the cache, then −1 to its end: from none to all that fit."""
    rows, width = maker.shape(form, lengths)
    room = lengths.sizes["num_pages"] * maker.page
    table = []
    for row in range(rows):
        most = min(room, width)
        filled = (most, 1, 0, most // 2 + 1)[(row + mix(case["regime"], rows)) % 4]
        order = _shuffled(room, mix(draw.seed, row))[:filled]
        table += [*order, *[-1] * (width - filled)]
    return _tensor(table, form, draw).reshape(rows, width)


def _states(maker: _Maker, name: str, form: TensorForm, lengths: Lengths, draw: Draw, case: Case) -> Any:
    """Places in a pool of states, each once: two rows that write one state have no one right answer."""
    count = maker.shape(form, lengths)[0]
    room = lengths.sizes.get("pool_size", lengths.sizes.get("state_cache_size", count))
    return _tensor(_shuffled(room, mix(room, count))[:count], form, draw)


def _ids(maker: _Maker, name: str, form: TensorForm, lengths: Lengths, draw: Draw, case: Case) -> Any:
    axes = lengths.sizes
    high = axes.get("vocab_size", axes.get("num_experts", axes.get("max_position", axes.get("max_seq_len", 1))))
    if name == "topk_ids":  # each expert once
        rows, width = maker.shape(form, lengths)
        flat = [e for row in range(rows) for e in _shuffled(high, mix(high, row))[:width]]
        return _tensor(flat, form, draw).reshape(rows, width)
    return draw.integers(maker.shape(form, lengths), high, form.torch_dtype)


def _probabilities(maker: _Maker, name: str, form: TensorForm, lengths: Lengths, draw: Draw, case: Case) -> Any:
    rows, size = maker.shape(form, lengths)
    if draw.distribution != SHARED:
        return torch.softmax(draw.values((rows, size), torch.float32, "normal") * 3, dim=-1).to(form.torch_dtype)
    row = torch.zeros(size, dtype=torch.float32)
    for rank, place in enumerate(_shuffled(min(size, 4096), draw.seed)[:_SHARED_TOKENS], 1):
        row[place * (size // min(size, 4096))] = 2.0**-rank
    row /= row.sum()
    return row.to(draw.device).expand(rows, size).to(form.torch_dtype, copy=True).contiguous()


def _kept(maker: _Maker, name: str, form: TensorForm, lengths: Lengths, draw: Draw, case: Case) -> Any:
    """How many, or how much, sampling keeps of each row."""
    count = maker.shape(form, lengths)[0]
    if draw.distribution == SHARED:
        return torch.full((count,), 6 if name == "top_k" else 0.9, dtype=form.torch_dtype, device=draw.device)
    if name == "top_k":
        return _tensor([(1, 40, 2, 200)[row % 4] for row in range(count)], form, draw)
    kept = [(0.9, 0.5, 0.95, 0.1)[row % 4] for row in range(count)]
    return torch.tensor(kept, dtype=form.torch_dtype, device=draw.device)


def _routing(maker: _Maker, name: str, form: TensorForm, lengths: Lengths, draw: Draw, case: Case) -> Any:
    """No two logits of a row alike, so that the experts of each token are one set; by the case alone, as a race
    takes each element from one of two draws."""
    rows, experts = maker.shape(form, lengths)
    draw = Draw(mix(rows, experts), "normal", draw.device)
    order = draw.uniform((rows, experts), torch.float32).argsort(dim=-1).to(torch.float32)
    return ((order - experts / 2) * (8.0 / experts)).to(form.torch_dtype)


def _positive(maker: _Maker, name: str, form: TensorForm, lengths: Lengths, draw: Draw, case: Case) -> Any:
    """Scales of quantised values: what they scale is near one then."""
    shape = maker.shape(form, lengths)
    if form.shape is None:
        return 1.0
    return draw.uniform(shape, torch.float32, 0.5, 1.5).mul(2.0**-5).to(form.torch_dtype)


def _negative(maker: _Maker, name: str, form: TensorForm, lengths: Lengths, draw: Draw, case: Case) -> Any:
    """Mamba's A, below zero: a state that decays."""
    return -draw.uniform(maker.shape(form, lengths), torch.float32, 0.5, 1.5).to(form.torch_dtype)


def _angles(maker: _Maker, name: str, form: TensorForm, lengths: Lengths, draw: Draw, case: Case) -> Any:
    return draw.uniform(maker.shape(form, lengths), torch.float32, -1.0, 1.0).to(form.torch_dtype)


def _nibbles(maker: _Maker, name: str, form: TensorForm, lengths: Lengths, draw: Draw, case: Case) -> Any:
    """Pairs of int4 values in bytes: all of them mean something."""
    return draw.integers(maker.shape(form, lengths), 256, form.torch_dtype)


def _packed(maker: _Maker, name: str, form: TensorForm, lengths: Lengths, draw: Draw, case: Case) -> Any:
    """An FP8 cache as bytes: all keys of a page, then a float32 scale of each."""
    pages, size, heads, width = maker.shape(form, lengths)
    keys = draw.values((pages, size * heads * (width - 4)), torch.float32, "normal").to(torch.float8_e4m3fn)
    scales = draw.uniform((pages, size * heads), torch.float32, 0.5, 1.5)
    if draw.device.type == "meta":
        return torch.empty((pages, size, heads, width), dtype=form.torch_dtype, device="meta")
    flat = torch.cat([keys.view(torch.int8), scales.view(torch.int8).reshape(pages, -1)], dim=1)
    return flat.reshape(pages, size, heads, width)


def _weights(maker: _Maker, name: str, form: TensorForm, lengths: Lengths, draw: Draw, case: Case) -> Any:
    """Matrices that keep the size of what they multiply, and vectors near one."""
    shape = maker.shape(form, lengths)
    if len(shape) == 1:
        return draw.weights(shape, torch.float32).to(form.torch_dtype)
    scale = 1.0 if form.torch_dtype.itemsize == 1 or len(shape) < 3 else shape[-1] ** -0.5
    return draw.normal(shape, torch.float32, scale).to(form.torch_dtype)


_FAR = 16.0


def _values(maker: _Maker, name: str, form: TensorForm, lengths: Lengths, draw: Draw, case: Case) -> Any:
    made = _scaled(draw, maker.shape(form, lengths))
    if maker.definition.kind == "gdn" and name == "k":  # keys of a delta rule have length one, or its state grows
        made = torch.nn.functional.normalize(made, dim=-1)
    return made.to(form.torch_dtype)


def _scaled(draw: Draw, shape: Sequence[int]) -> torch.Tensor:
    """Values of a draw; "far" ones are 16 times the usual, so that logits of attention are several hundred."""
    if draw.distribution == "far":
        return draw.values(shape, torch.float32, "normal") * _FAR
    return draw.values(shape, torch.float32)


def _scale(maker: _Maker, name: str, form: TensorForm, lengths: Lengths, draw: Draw, case: Case) -> Any:
    axes = lengths.sizes
    wide = axes.get("head_dim_qk", axes.get("qk_dim", axes.get("head_dim", axes.get("head_size", 0))))
    return (wide or 192) ** -0.5  # MLA scales by the width before its keys were absorbed, 128 + 64


def _constant(value: float | int) -> Role:
    return lambda *_: value


def _decays(maker: _Maker, name: str, form: TensorForm, lengths: Lengths, draw: Draw, case: Case) -> Any:
    """Of a gated delta rule: g below zero where it is a logarithm, beta between 0 and 1."""
    return draw.uniform(maker.shape(form, lengths), torch.float32, 0.05, 0.95).to(form.torch_dtype)


ROLES: tuple[tuple[Callable[[str, TensorForm], bool], Role], ...] = (
    (lambda name, form: name in ("kv_indptr", "qo_indptr", "cu_seqlens"), _offsets),
    (lambda name, form: name == "kv_indices", _page_numbers),
    (lambda name, form: name == "kv_last_page_len", _last_pages),
    (lambda name, form: name == "seq_lens", _sequence_lengths),
    (lambda name, form: name in ("block_table", "page_table"), _page_table),
    (lambda name, form: name == "sparse_indices", _chosen_places),
    (lambda name, form: name in ("initial_state_indices", "state_batch_indices"), _states),
    (lambda name, form: name in ("input_ids", "positions", "topk_ids"), _ids),
    (lambda name, form: name == "probs", _probabilities),
    (lambda name, form: name in ("top_k", "top_p"), _kept),
    (lambda name, form: name in ("routing_logits", "gating_output"), _routing),
    (lambda name, form: name in ("sm_scale", "scale"), _scale),
    (lambda name, form: name == "k" and form.shape is None, _constant(50)),
    (lambda name, form: name == "num_samples", _constant(1)),
    (lambda name, form: form.dtype == "bool" and form.shape is None, _constant(True)),
    (lambda name, form: name == "local_expert_offset", _constant(0)),
    (lambda name, form: name == "routed_scaling_factor", _constant(2.5)),
    (lambda name, form: name == "rope_theta", _constant(10000.0)),
    (lambda name, form: "scale" in name, _positive),
    (lambda name, form: name == "topk_weights", _positive),
    (lambda name, form: name == "A", lambda *a: (_negative if a[2].dtype == "float32" else _values)(*a)),
    (lambda name, form: name in ("g", "beta"), _decays),
    (lambda name, form: name in ("cos", "sin", "cos_sin_cache"), _angles),
    (lambda name, form: name == "k_index_cache_fp8", _packed),
    (lambda name, form: name.endswith("_packed") and form.dtype == "uint8", _nibbles),
    (lambda name, form: name in ("weight", "B", "w1", "w2") or "_weights" in name or "_proj" in name, _weights),
    (lambda name, form: form.dtype in FLOATS and form.shape is not None, _values),
)
"""What an input is, by the first of these that fits."""


def _pages(maker: _Maker, size: int, lengths: Lengths, name: str) -> float:
    return len({page for pages in lengths.pages for page in pages})


def _rows(maker: _Maker, size: int, lengths: Lengths, name: str) -> float:
    """Of random places, which may repeat: as many as differ in the mean."""
    count = math.prod(maker.shape(maker.definition.inputs[name], lengths))
    return size * (1.0 - (1.0 - 1.0 / size) ** count)


def _experts(maker: _Maker, size: int, lengths: Lengths, name: str) -> float:
    total = max(size, lengths.sizes.get("num_experts", 0))
    tokens = maker.shape(maker.definition.inputs[name], lengths)[0]
    return size * (1.0 - (1.0 - 1.0 / total) ** (tokens * lengths.sizes.get("top_k", 1)))


TABLES: tuple[tuple[set[str], set[str], Callable[[_Maker, int, Lengths, str], float]], ...] = (
    ({"num_pages"}, {"sparse_indices"}, lambda *_: 0.0),  # rows without a place are many, and some name one twice
    ({"num_pages"}, {"kv_indices", "block_table", "page_table"}, _pages),
    ({"vocab_size"}, {"input_ids"}, _rows),
    ({"max_seq_len", "max_position"}, {"positions"}, _rows),
    ({"pool_size", "state_cache_size"}, {"initial_state_indices", "state_batch_indices"}, _rows),
    ({"num_experts", "num_local_experts"}, {"topk_ids", "routing_logits", "gating_output"}, _experts),
)
"""Axes of tables, by which inputs their rows are named, and how many are: a kernel need not read any other."""


def _role(name: str, form: TensorForm) -> Role | None:
    return next((role for fits, role in ROLES if fits(name, form)), None)


# --- solutions, and what is written of them -----------------------------------------------------------------------


def candidate_of(definition: Definition, solution: Solution, extension: Path | None = None) -> Candidate:
    """A solution as a candidate; of C++ and CUDA its built `extension`. It is a library: its host code may call
    torch, so it is judged and never certified as a kernel. Raises ProblemError that names what it lacks."""
    absent = [
        name for need in solution.needs if (name := _package(need)) and importlib.util.find_spec(name) is None
    ]
    if absent:
        raise ProblemError(f"{solution.name}: needs {absent[0]}, which is absent here")
    file, entry = solution.entry
    if solution.language == "cuda":
        if extension is None:
            raise ProblemError(f"{solution.name}: not built")
        source = _LOADED.format(module=MODULE, path=str(extension.resolve()), entry=entry)
    elif len(solution.sources) > 1:
        raise ProblemError(f"{solution.name}: {len(solution.sources)} Python files, and a candidate is one")
    else:
        source = f"{solution.sources[file]}\n\n_solution = {entry}\n"
    returned = _RETURNED.format(outputs=list(definition.outputs))
    source += returned if solution.style is False else _passed_in(definition)
    if solution.style is None:  # some return their outputs, others take them: the first call tells
        source += returned.replace("nightshift_entry", "_returned") + _EITHER
    language: Language = "triton" if solution.language == "triton" else "python"
    return Candidate(source, "nightshift_entry", language, "library", "none")


_LOADED = """import importlib.util

_spec = importlib.util.spec_from_file_location({module!r}, {path!r})
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
_solution = _module.{entry}
"""
_RETURNED = """

def nightshift_entry(*inputs):
    made = _solution(*inputs)
    return tuple(made[name] for name in {outputs!r}) if isinstance(made, dict) else made
"""

_EITHER = """

_passed = nightshift_entry
_ways = []


def nightshift_entry(*inputs):
    if not _ways:
        try:
            made = _returned(*inputs)
        except TypeError:
            made = _passed(*inputs)
            _ways.append(_passed)
        else:
            _ways.append(_returned)
        return made
    return _ways[0](*inputs)
"""


def _passed_in(definition: Definition) -> str:
    """The entry of a solution that is given its outputs: their sizes are those of axes that inputs have."""
    known = {name: str(size) for name, size in definition.axes.items() if size is not None}
    for number, form in enumerate(definition.inputs.values()):
        for place, size in enumerate(form.shape or ()):
            if isinstance(size, str):
                known.setdefault(size, f"inputs[{number}].shape[{place}]")
    first = next(i for i, form in enumerate(definition.inputs.values()) if form.shape)
    made = []
    for form in definition.outputs.values():
        sizes = ", ".join(known[size] if isinstance(size, str) else str(size) for size in form.shape or ())
        made.append(f"torch.empty(({sizes},), dtype=torch.{form.dtype}, device=inputs[{first}].device)")
    lines = ["import torch", "", "", "def nightshift_entry(*inputs):", f"    outputs = [{', '.join(made)}]"]
    return "\n" + "\n".join([*lines, "    _solution(*inputs, *outputs)", "    return tuple(outputs)", ""])


def _package(need: str) -> str:
    """The module that a requirement names; empty for what a compiler brings."""
    name = re.split(r"[ <>=!~\[;]", need.strip(), maxsplit=1)[0].lower().replace("-", "_")
    return "" if name in ("cuda", "cudnn", "cublas", "") else {"flashinfer_python": "flashinfer"}.get(name, name)


_STATUS: Mapping[Reason, str] = {
    Reason.passed: "PASSED",
    Reason.wrong_shape: "INCORRECT_SHAPE",
    Reason.wrong_type: "INCORRECT_SHAPE",
    Reason.wrong_dtype: "INCORRECT_DTYPE",
    Reason.compile_failed: "COMPILE_ERROR",
    Reason.syntax: "COMPILE_ERROR",
    Reason.entry_missing: "COMPILE_ERROR",
    Reason.import_timeout: "TIMEOUT",
    Reason.call_timeout: "TIMEOUT",
    Reason.raised: "RUNTIME_ERROR",
    Reason.host_died: "RUNTIME_ERROR",
    Reason.illegal_access: "RUNTIME_ERROR",
    Reason.out_of_memory: "RUNTIME_ERROR",
}


def trace_of(solution: Solution, workload: Workload, verdict: Verdict, at: str) -> dict[str, Any]:
    """A verdict as the format's trace entry: our reason and words in its log, figures beside the format's own.

    The format has no word for what it does not ask, so every other refusal is INCORRECT_NUMERICAL. It knows the
    largest errors of one run, and a verdict those of all probes relative to eager's: "NaN" says that. Of an
    accepted solution it wants times: the entry of one that was not timed has no status and is no PASSED.
    """
    status = "PASSED" if verdict.status in FIT else _STATUS.get(verdict.reason, "INCORRECT_NUMERICAL")
    evaluation: dict[str, Any] = {
        "status": status,
        "environment": {
            "hardware": str(verdict.environment.get("gpu") or "cpu"),
            "libs": {
                name: str(verdict.environment[name]) for name in ("torch", "triton") if name in verdict.environment
            },
        },
        "timestamp": at,
        "log": f"nightshift: {verdict.status}: {verdict.reason}: {verdict.detail}",
    }
    if status in ("PASSED", "INCORRECT_NUMERICAL"):
        extra = {"reason": str(verdict.reason), "candidate_sha256": verdict.candidate_sha256, **verdict.errors}
        evaluation["correctness"] = {"max_relative_error": "NaN", "max_absolute_error": "NaN", "extra": extra}
    timed = [c for c in verdict.comparisons if c.baseline == "eager"]
    if status == "PASSED" and timed:
        evaluation["performance"] = {
            "latency_ms": timed[0].candidate_s * 1e3,
            "reference_latency_ms": timed[0].baseline_s * 1e3,
            "speedup_factor": timed[0].speedup.point,
        }
    entry = {"definition": solution.definition, "workload": dict(workload.record), "solution": solution.name}
    return {**entry, "evaluation": evaluation if status != "PASSED" or timed else None}
