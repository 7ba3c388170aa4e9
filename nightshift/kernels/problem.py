"""A problem: what a kernel must compute, on which shapes, and what it must at least move and calculate.

The reference is the torch code that users write today ("eager"); run on float64 copies of the same inputs it is
the oracle. Nothing here knows who competes. Every input comes from `kernels.draw`, so that a seed names the same
bits on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from nightshift.kernels.draw import Draw, mix

Input = torch.Tensor | float | int | bool
Inputs = tuple[Input, ...]
Outputs = tuple[torch.Tensor, ...]

DTYPES: dict[str, torch.dtype] = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
    "int8": torch.int8,
    "int32": torch.int32,
    "int64": torch.int64,
}


class ProblemError(ValueError):
    """A problem, case or suite is malformed. The message names the place."""


@dataclass(frozen=True)
class Case:
    """One point of a problem's domain. `params` are sorted (name, value) pairs; read them with `case["n"]`."""

    params: tuple[tuple[str, int], ...]
    dtype: str
    layout: str = "contiguous"

    @classmethod
    def of(cls, dtype: str, layout: str = "contiguous", **params: int) -> Case:
        if dtype not in DTYPES:
            raise ProblemError(f"dtype: {dtype!r} is none of {', '.join(DTYPES)}")
        return cls(tuple(sorted(params.items())), dtype, layout)

    def __getitem__(self, name: str) -> int:
        for key, value in self.params:
            if key == name:
                return value
        raise KeyError(name)

    @property
    def sizes(self) -> dict[str, int]:
        return dict(self.params)

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    @property
    def element_bytes(self) -> int:
        return self.torch_dtype.itemsize

    def with_(self, dtype: str | None = None, layout: str | None = None, **params: int) -> Case:
        return Case.of(dtype or self.dtype, layout or self.layout, **{**self.sizes, **params})

    def to_json(self) -> dict[str, Any]:
        return {"params": self.sizes, "dtype": self.dtype, "layout": self.layout}

    def __str__(self) -> str:
        sizes = " ".join(f"{name}={value}" for name, value in self.params)
        return f"{sizes} {self.dtype}" + ("" if self.layout == "contiguous" else f" {self.layout}")


@dataclass(frozen=True)
class Axis:
    """How the shape sweep varies one parameter: fixed edge values, and random multiples in [low, high]. summed:
    some output is a sum over it in 32 bits whatever the case's dtype is, whose rounding grows with it."""

    name: str
    edges: tuple[int, ...]
    low: int
    high: int
    multiple: int = 1
    summed: bool = False


RULES: dict[str, str] = {
    "integers": "sums and products of small integers: exact in any order, as none leaves the dtype's integers",
    "powers_of_two": "roots, quotients and means of powers of two, or of rows whose sums cancel: none is rounded",
    "one_hot": "logits of 0 and of at most -2^7: exponentials are 1 and, to any rounding, 0",
    "saturated": "an activation far in its linear end, where it is the identity to any rounding",
    "mantissa": "positive operands that need 24 bits: float32 in any order stays below a bound, TF32 above it",
}
"""Ways to ask a question that has one right answer (or, with "mantissa", one that a narrower dtype cannot give)."""
NARROWER = 1000
"""Most terms of a sum in a mantissa probe: float32's error grows with them, TF32's (at least 2^-12 of it) does
not."""


@dataclass(frozen=True)
class Rule:
    """Inputs by which a candidate is held to bits: see RULES. Whether they are exact is found by the judge.

    inputs: as a problem's `make_inputs`, for cases that `near` names.
    near: cases near one that a plan has drawn on which the rule holds, the nearest first.
    terms: of a mantissa rule, how many terms the longest chain of sums has.
    outputs: those that are compared bit for bit, where honest approximations change the others; empty: all.
    reordered: the reference with another order of summation, where its sums are no reductions of torch's.
    """

    name: str
    inputs: Callable[[Case, Draw], Inputs]
    near: Callable[[Case], Iterable[Case]] = lambda case: (case,)
    terms: Callable[[Case], int] | None = None
    outputs: tuple[int, ...] = ()
    reordered: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        if self.name not in RULES or (self.name == "mantissa") != (self.terms is not None):
            raise ProblemError(f"rule: {self.name!r} is none of {', '.join(RULES)}, or has no bound")


def narrow(case: Case) -> Iterable[Case]:
    """Of outputs of 16 bits, whose rounding hides what an approximation of an exponential, a root or a quotient
    leaves in float32."""
    return () if case.dtype == "float32" else (case,)


def mantissa(inputs: Callable[[Case, Draw], Inputs], terms: Callable[[Case], int]) -> Rule:
    """The mantissa rule of an operation on positive float32 values."""

    def near(case: Case) -> Iterable[Case]:
        return (case.with_(dtype="float32"),) if terms(case) <= NARROWER else ()

    return Rule("mantissa", inputs, near, terms)


@dataclass(frozen=True)
class Problem:
    """An operation and everything needed to judge a kernel for it.

    reference: torch code on `make_inputs`'s tuple; a tensor or a tuple of tensors. For an operation that changes
      its inputs it returns their new values, in the order of `mutates`, and leaves the inputs alone.
    oracle: the same in float64, where the reference itself would not compute in float64; default: the reference.
    make_inputs: tensors vary with the draw; numbers depend on the case alone (a timed slot is registered once).
    exact: outputs must match the reference bit for bit.
    gradients: positions of the inputs that the operation is differentiated in; empty: forward only.
    outputs: how many there are, of a problem with gradients.
    flops, compulsory_bytes: what any implementation must calculate and move to or from memory once, per case.
    libraries: named baselines beside eager and torch.compile; each takes the same inputs.
    huge: cases with more than 2³¹ elements; their outputs are compared on sampled rows, which needs `row_inputs`:
      the positions of the inputs whose first dimension is the outputs' (the others are shared by all rows).
    numbers: some of its inputs are Python numbers, which are others where `unusual` says so: the number of kinds of
      unusual ones (`kind`).
    elementwise: each output is a product of functions of single inputs, so that nothing can cancel.
    sampled_rows: 0, or how many leading rows of large outputs are compared (see `row_inputs`), of every case.
    signed_zero: whether an exact operation must also tell +0 from −0.
    rules: how it is asked questions with one right answer; none where `exact` (each question has one).
    forward: of a training step (`kernels.differentiate`), the problem that it differentiates and how it does that
      to a function, so that baselines compile the forward pass.
    accepts: of a problem with more than one right answer: what is wrong in a probe's calls, the latest last, in
      words; empty where nothing is.
    random: its right answer is random: a candidate may draw from torch's generator.
    narrow: torch's own product of the inputs as they are, where the reference first makes them wider: on a GPU its
      error is allowed as eager's is.
    probes: the probes of a problem, candidate, secret and scope, where sizes follow from each other; else the plan
      of `kernels.judge.probes.inputs`.
    """

    name: str
    family: str
    reference: Callable[..., Any]
    make_inputs: Callable[[Case, Draw], Inputs]
    cases: tuple[Case, ...]
    axes: tuple[Axis, ...]
    compulsory_bytes: Callable[[Case], int]
    flops: Callable[[Case], int]
    dtypes: tuple[str, ...] = ("float16", "bfloat16", "float32")
    distributions: tuple[str, ...] = (
        "normal",
        "large_mean",
        "large_negative",
        "heavy_tail",
        "ties",
        "near_constant",
        "tiny",
        "ramps",
        "far",
        "zero_rows",
        "infinite",
        "nan",
    )
    layouts: tuple[str, ...] = ("contiguous", "padded", "transposed", "offset")
    oracle: Callable[..., Any] | None = None
    exact: bool = False
    mutates: tuple[int, ...] = ()
    gradients: tuple[int, ...] = ()
    outputs: int = 1
    libraries: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    constraint: Callable[[Case], bool] = lambda case: True
    huge: tuple[Case, ...] = ()
    row_inputs: tuple[int, ...] = ()
    sampled_rows: int = 0
    signed_zero: bool = True
    numbers: int = 0
    elementwise: bool = False
    rules: tuple[Rule, ...] = ()
    forward: tuple[Problem, Callable[[Callable[..., Any]], Callable[..., Any]]] | None = None
    accepts: Callable[[Sequence[tuple[Inputs, Outputs]]], str] | None = None
    random: bool = False
    narrow: Callable[..., Any] | None = None
    probes: Callable[[Problem, Any, bytes, Any], tuple[Any, ...]] | None = None

    def outside(self, case: Case) -> str:
        """Why a case is none of this problem's, in words; empty where it is one."""
        axes = {axis.name for axis in self.axes}
        fixed = {name: value for name, value in self.cases[0].params if name not in axes}
        wanted = sorted({*axes, *fixed})
        if case.dtype not in self.dtypes:
            return f"the problem has no dtype {case.dtype!r}, but {', '.join(self.dtypes)}"
        # a size too many is refused: a misspelt one would be ignored, and its default judged
        if sorted(case.sizes) != wanted:
            return f"its sizes are {', '.join(wanted)}, not {', '.join(case.sizes) or 'none'}"
        inside = case.sizes.items() >= fixed.items() and min(case.sizes.values()) > 0 and self.constraint(case)
        return "" if inside else "these sizes are outside the problem"

    def inputs(self, case: Case, distribution: str, seed: int, device: torch.device | str) -> Inputs:
        """Contiguous inputs; the same bits for the same (case, distribution, seed) on every device."""
        rule = self.rule(distribution)
        if rule is not None:
            return rule.inputs(case, Draw(seed, "normal", device))
        return self.make_inputs(case, Draw(seed, distribution, device))

    def rule(self, distribution: str) -> Rule | None:
        """The rule of that name, where a probe's distribution is one."""
        return next((rule for rule in self.rules if rule.name == distribution), None)

    def eager(self, inputs: Inputs) -> Outputs:
        return as_outputs(self.reference(*inputs))

    def truth(self, inputs: Inputs) -> Outputs:
        """The float64 oracle's outputs (or, for an exact problem, the reference's own)."""
        if self.exact:
            return self.eager(inputs)
        doubles = tuple(
            x.to(torch.float64) if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs
        )
        return as_outputs((self.oracle or self.reference)(*doubles))


def unusual(case: Case) -> bool:
    """Whether a problem with `numbers` gives a case other numbers than the usual ones: every third small case, so
    that a kernel which knows those by heart is found out. By the case alone, like all numbers among the inputs."""
    sizes = tuple(case.sizes.values())
    return math.prod(sizes) < 1 << 22 and mix(*sizes) % 3 == 0


def kind(case: Case, kinds: int) -> int:
    """0 for a case with the usual numbers, else which of so many kinds of unusual ones it has, from 1."""
    return 1 + mix(*case.sizes.values()) // 3 % kinds if kinds and unusual(case) else 0


def epsilon(case: Case, usual: float, alternatives: Sequence[float] = (1e-3,)) -> float:
    """The usual epsilon of a normalisation, or one of the others (the problem's `numbers` are as many)."""
    return (usual, *alternatives)[kind(case, len(alternatives))]


def nearest(case: Case, axis: str, fits: Callable[[Case], bool]) -> Iterator[Case]:
    """The case, and those with a few more or fewer along the axis, as far as they fit."""
    steps = (0, 1, -1, 2, -2, 4, -4, 8, -8, 16, -16, 24, -24, 32, -32, 40, -40, 48, -48, 64, -64)
    sizes = ({**case.sizes, axis: case[axis] + by} for by in steps if case[axis] + by >= 0)
    near = (Case.of(case.dtype, case.layout, **each) for each in sizes)
    return (other for other in near if fits(other))


def as_outputs(result: Any) -> Outputs:
    """A tensor or a sequence of tensors as a tuple. Raises ProblemError on anything else."""
    if isinstance(result, torch.Tensor):
        return (result,)
    if isinstance(result, tuple | list) and all(isinstance(item, torch.Tensor) for item in result):
        return tuple(result)
    raise ProblemError(f"outputs: expected a tensor or a tuple of tensors, found {type(result).__name__}")


def gradients_of(
    function: Callable[..., Any],
    inputs: Inputs,
    positions: tuple[int, ...],
    grad_outputs: Outputs,
    only: int = -1,
) -> Outputs:
    """Gradients of sum(output · grad_output) in the inputs at `positions`, through autograd; outputs that depend on
    none of them have no part in it. only: −1, or the one output that has a gradient: zeros where it needs none."""
    leaves = list(inputs)
    for position in positions:
        value = inputs[position]
        if not isinstance(value, torch.Tensor):
            raise ProblemError(f"gradients: input {position} is not a tensor")
        # strides stay: a backward pass may read a transposed input as if it were contiguous
        leaves[position] = value.detach().clone(memory_format=torch.preserve_format).requires_grad_(True)
    with torch.enable_grad():
        outputs = as_outputs(function(*leaves))
    wanted = [leaf for leaf in (leaves[p] for p in positions) if isinstance(leaf, torch.Tensor)]
    pairs = list(zip(outputs, grad_outputs, strict=True))
    # to its dtype: the oracle's outputs are float64, and the gradients were drawn for the candidate's
    reached = [(o, g.to(o.dtype)) for o, g in (pairs if only < 0 else pairs[only : only + 1]) if o.requires_grad]
    made = torch.autograd.grad([o for o, _ in reached], wanted, [g for _, g in reached], allow_unused=only >= 0)
    return tuple(torch.zeros_like(x) if g is None else g for x, g in zip(wanted, made, strict=True))
