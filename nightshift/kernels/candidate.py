"""What a contestant hands to the judge: source, the class it claims, and the domain that it answers for.

The declaration is a promise that the judge holds the candidate to, never evidence: an "own kernel" that calls a
library, a "bitwise" kernel that changes between runs and an in-place kernel that writes elsewhere are refused.
Nothing here runs or even parses the source; a source that does not parse is a verdict, not an exception.

Triton and Python sources are Python text with a callable ``entry(*inputs)`` that returns a tensor or a tuple of
tensors, or None where every output is one of the declared ``mutates``. A differentiable candidate returns outputs
on which ``torch.autograd.grad`` works. CUDA C++ sources are one NVRTC translation unit (``extern "C"`` kernels)
with a launch plan; they bring no host code at all. CuTe sources ("cute") are Python text with ``@cute.kernel``
functions and such a plan: their Python runs while they are compiled, none of it in a call.
"""

from __future__ import annotations

import ast
import keyword
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from nightshift.collectors.seal import SealError, canonical_json, sha256_hex

Language = Literal["triton", "cuda", "cute", "python"]
Kind = Literal["own_kernel", "library", "in_place", "composition"]
Determinism = Literal["bitwise", "run_to_run", "none"]

LAYOUTS = ("contiguous", "padded", "transposed", "offset", "sliced")
"""How inputs may lie in memory; `kernels.judge.probes.layouts.place` says what each means."""

MIXED: Mapping[str, tuple[str, str]] = {
    "odd_padded": ("contiguous", "padded"),
    "pairs_padded": ("contiguous", "padded"),
    "odd_sliced": ("contiguous", "sliced"),
    "pairs_sliced": ("contiguous", "sliced"),
}
"""Layouts in which inputs differ: those at odd positions, or every second pair of them, have the second. Whoever
answers for both answers for their mixtures: a kernel that takes one input's strides for another's is wrong."""

REPEATED = "repeated"
"""A layout in which one row is repeated by a stride of 0, as `torch.Tensor.expand` hands it down."""
STEPPED = "stepped"
"""A layout of every second column, as `x[:, ::2]` hands it down: no stride is 1."""
STRIDED = ("padded", "transposed")
"""Who answers for these answers for any stride, that of 0 too."""

PARTS: Mapping[str, tuple[str, ...]] = {**MIXED, REPEATED: STRIDED, STEPPED: STRIDED}
"""Layouts that are made of others: whoever answers for all the parts is asked for the whole."""

MAX_SOURCE_BYTES = 1 << 20


class CandidateError(ValueError):
    """A declaration is malformed. The message names the field."""


@dataclass(frozen=True)
class Bound:
    """Values of one case parameter that the candidate answers for: low ≤ value ≤ high, divisible by `multiple`."""

    name: str
    low: int = 0
    high: int = 2**53  # canonical JSON takes no larger integer, and a declaration is hashed as that
    multiple: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high <= 2**53 or self.multiple < 1:
            said = f"{self.name} {self.low}..{self.high} /{self.multiple}"
            raise CandidateError(f"bounds: {said} is not 0 ≤ low ≤ high ≤ 2^53 with a multiple from 1")

    def admits(self, value: int) -> bool:
        return self.low <= value <= self.high and value % self.multiple == 0


@dataclass(frozen=True)
class Domain:
    """What the candidate claims to compute; elsewhere users fall back to torch. Empty tuples mean "everything"."""

    dtypes: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()
    bounds: tuple[Bound, ...] = ()

    def admits(self, params: Mapping[str, int], dtype: str, layout: str) -> bool:
        return not self.outside(params, dtype, layout)

    def outside(self, params: Mapping[str, int], dtype: str, layout: str) -> str:
        """Why these lie outside the domain; empty where they do not."""
        if self.dtypes and dtype not in self.dtypes:
            return f"{dtype} is none of {', '.join(self.dtypes)}"
        if self.layouts and not all(name in self.layouts for name in PARTS.get(layout, (layout,))):
            return f"{layout} is none of {', '.join(self.layouts)}"
        for bound in self.bounds:
            if bound.name in params and not bound.admits(params[bound.name]):
                step = f" in steps of {bound.multiple}" if bound.multiple > 1 else ""
                high = f" to {bound.high}" if bound.high < 2**53 else " up"
                return f"{bound.name} = {params[bound.name]}, and it takes {bound.low}{high}{step}"
        return ""


@dataclass(frozen=True)
class Launch:
    """One kernel launch of a CUDA C++ or CuTe candidate: integer expressions over the case's parameters (see
    `evaluate`).

    `args` are, in the kernel's order, ``in0``… (inputs), ``out0``… (outputs), ``tmp0``… (scratch buffers),
    ``i32:EXPR``, ``i64:EXPR``, ``f32:NUMBER``, ``scalar:in3`` (a Python number among the inputs, as float32) or
    ``map:in0:2:ROWS:COLUMNS:BOX_ROWS:BOX_COLUMNS``: a tile descriptor (``const __grid_constant__``, 128 bytes) for
    the bulk copy engine over a contiguous matrix of 2-byte elements, in boxes that are swizzled as wide as their
    rows (128, 64 or 32 bytes; others are not).

    A CuTe kernel takes a buffer as a `cute.Pointer` to elements of the buffer's dtype (scratch: uint8), numbers as
    `cutlass.Int32`, `Int64` and `Float32`, and no ``map``. It is compiled for the block's threads.
    """

    kernel: str
    grid: tuple[str, str, str]
    block: tuple[str, str, str]
    args: tuple[str, ...]
    shared_bytes: str = "0"


@dataclass(frozen=True)
class Candidate:
    """A kernel and its declaration. `mutates`: positions of the inputs that it writes (kind "in_place" only).
    `exact`: it rounds nowhere where the operation's own sums and products would not; False for those of Winograd's
    or Strassen's kind, which are then not checked bit for bit, as every verdict says."""

    source: str
    entry: str
    language: Language
    kind: Kind
    determinism: Determinism
    mutates: tuple[int, ...] = ()
    differentiable: bool = False
    domain: Domain = Domain()
    launches: tuple[Launch, ...] = ()
    scratch_bytes: tuple[str, ...] = ()
    exact: bool = True

    def __post_init__(self) -> None:
        _choice("language", self.language, get_args(Language))
        _choice("kind", self.kind, get_args(Kind))
        _choice("determinism", self.determinism, get_args(Determinism))
        # from JSON it may be any value, and what only looks false would switch a check off
        if not isinstance(self.exact, bool):
            raise CandidateError(f"exact: {self.exact!r} is neither true nor false")
        if not self.entry.isidentifier() or keyword.iskeyword(self.entry):
            raise CandidateError(f"entry: {self.entry!r} is not a Python identifier")
        if bool(self.mutates) != (self.kind == "in_place"):
            raise CandidateError(f"mutates: {self.mutates} does not fit kind {self.kind!r}")
        if any(position < 0 for position in self.mutates) or len(set(self.mutates)) != len(self.mutates):
            raise CandidateError(f"mutates: {self.mutates} are not distinct positions")
        if bool(self.launches) != self.brings_launches:
            raise CandidateError(f"launches: {len(self.launches)} do not fit language {self.language!r}")
        if self.scratch_bytes and not self.brings_launches:
            raise CandidateError(f"scratch_bytes: {self.language!r} allocates its own")
        if self.language == "cute" and any(a.startswith("map:") for launch in self.launches for a in launch.args):
            raise CandidateError("launches: a tile descriptor (map) is CUDA C++'s alone")
        for layout in self.domain.layouts:
            _choice("domain.layouts", layout, LAYOUTS)
        # JSON may escape half of a surrogate pair: what cannot be encoded has no hash
        try:
            size = len(self.source.encode())
        except UnicodeEncodeError as error:
            raise CandidateError("source: holds a lone surrogate, which has no UTF-8 form") from error
        if size > MAX_SOURCE_BYTES:
            raise CandidateError(f"source: {size} bytes, more than {MAX_SOURCE_BYTES}")

    def to_json(self) -> dict[str, Any]:
        """What was not there when the first certificates were written is left out where it says nothing."""
        record = asdict(self)
        if self.exact:
            del record["exact"]
        return record

    @property
    def brings_launches(self) -> bool:
        """Whether it declares its launches, which the judge makes, in place of an entry that makes them."""
        return self.language in ("cuda", "cute")

    @property
    def calls_libraries(self) -> bool:
        """Whether torch may compute for it, beside kernels of its own or alone."""
        return self.kind in ("library", "composition")

    @property
    def sha256(self) -> str:
        """Of the canonical JSON of every field: another declaration is another candidate."""
        return sha256_hex(canonical_json(self.to_json()))

    @property
    def source_sha256(self) -> str:
        return sha256_hex(self.source.encode())

    @classmethod
    def from_json(cls, value: object) -> Candidate:
        """The inverse of `to_json`. Raises CandidateError that names the field."""
        record = _record("candidate", value, cls)
        domain = _record("domain", record.get("domain", {}), Domain)
        bounds = [_bound(_record("domain.bounds", b, Bound)) for b in _items("domain.bounds", domain.get("bounds"))]
        launches = []
        for item in _items("launches", record.get("launches")):
            launch = _record("launches", item, Launch)
            texts = {key: tuple(_texts(f"launches.{key}", launch.get(key))) for key in ("grid", "block", "args")}
            launches.append(Launch(**{**launch, **texts}))
        try:
            return cls(
                **{
                    **record,
                    "mutates": tuple(_items("mutates", record.get("mutates"))),
                    "scratch_bytes": tuple(_texts("scratch_bytes", record.get("scratch_bytes"))),
                    "launches": tuple(launches),
                    "domain": Domain(
                        tuple(_texts("domain.dtypes", domain.get("dtypes"))),
                        tuple(_texts("domain.layouts", domain.get("layouts"))),
                        tuple(bounds),
                    ),
                }
            )
        except (TypeError, AttributeError, SealError) as error:
            raise CandidateError(f"candidate: {error}") from error


def _bound(record: dict[str, Any]) -> Bound:
    try:
        return Bound(**record)
    except TypeError as error:
        raise CandidateError(f"domain.bounds: {error}") from error


def _choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise CandidateError(f"{name}: {value!r} is none of {', '.join(allowed)}")


def _record(name: str, value: object, cls: type) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise CandidateError(f"{name}: expected an object, found {type(value).__name__}")
    # refused, not ignored: a misspelt field would leave the wider default in its place
    unknown = sorted(set(value) - {field.name for field in fields(cls)})
    if unknown:
        raise CandidateError(f"{name}: unknown field {unknown[0]!r}")
    return dict(value)


def _items(name: str, value: object) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list | tuple):
        raise CandidateError(f"{name}: expected a list, found {type(value).__name__}")
    return list(value)


def _texts(name: str, value: object) -> list[str]:
    items = _items(name, value)
    if not all(isinstance(item, str) for item in items):
        raise CandidateError(f"{name}: expected a list of text")
    return items


_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: dict[str, Callable[..., int]] = {
    "cdiv": lambda a, b: -(-a // b),
    "min": min,
    "max": max,
    "pow2": lambda a: 1 << max(0, math.ceil(math.log2(max(1, a)))),
}


def evaluate(expression: str, params: Mapping[str, int]) -> int:
    """An integer expression of a launch plan: numbers, parameters, + - * // %, cdiv, min, max, pow2.

    >>> evaluate("cdiv(m * n, 256)", {"m": 10, "n": 100})
    4
    """
    try:
        # read, never run: `eval` would give a contestant's text the judge's process
        return _value(ast.parse(expression, mode="eval").body, params)
    except (SyntaxError, ZeroDivisionError, RecursionError, TypeError, OverflowError) as error:
        raise CandidateError(f"expression {expression!r}: {error}") from error


def _value(node: ast.expr, params: Mapping[str, int]) -> int:
    match node:
        # True is an int to Python, and no size
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            return number
        case ast.Name(id=name) if name in params:
            return params[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, params), _value(right, params))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*(_value(arg, params) for arg in args))
        case _:
            raise CandidateError(f"expression: {ast.unparse(node)!r} is not allowed")
