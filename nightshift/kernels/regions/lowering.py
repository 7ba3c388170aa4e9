"""What each small operator is in Triton: an expression of its operands, or a place to read one operand at."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from nightshift.kernels.regions.graph import MANY
from nightshift.kernels.regions.index import ZERO, Coordinate, Place, Uncut, regrouped

Node = torch.fx.Node
Bound = tuple[Coordinate, int, int]
"""low ≤ coordinate < high."""


@dataclass(frozen=True)
class Read:
    """An operand at a place. bounds: only where these hold is it read; elsewhere `other` stands."""

    node: Node
    element: Place
    bounds: tuple[Bound, ...] = ()
    other: str = "0.0"


def arguments(node: Node) -> tuple[Any, ...]:
    """A node's arguments, of which torch.fx says nothing but that they may be anything."""
    return tuple(node.args)


def name_of(node: Node) -> str:
    """`aten.mul.Tensor` → `mul`; empty for what is no operator."""
    return str(node.target).split(".")[1] if node.op == "call_function" and "." in str(node.target) else ""


def shape_of(node: Node) -> tuple[int, ...]:
    return tuple(int(n) for n in node.meta["val"].shape)


def dtype_of(node: Node) -> torch.dtype:
    made: torch.dtype = node.meta["val"].dtype
    return made


def is_tensor(value: object) -> bool:
    return isinstance(value, Node) and isinstance(value.meta.get("val"), torch.Tensor)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_TANH = (
    "tl.where(tl.abs({0}) < 0.25, {0} * (1.0 + {0} * {0} * (-0.33333333333 + {0} * {0} * (0.13333333333"
    " + {0} * {0} * (-0.053968253968 + {0} * {0} * 0.021869488536)))),"
    " tl.where({0} < 0, 2.0 / (tl.exp(-2.0 * {0}) + 1.0) - 1.0, 1.0 - 2.0 / (tl.exp(2.0 * {0}) + 1.0)))"
)
EXPRESSIONS: dict[str, str] = {
    "abs": "tl.abs({0})", "add": "{0} + {1}", "bitwise_and": "{0} & {1}", "bitwise_not": "~{0}",
    "bitwise_or": "{0} | {1}", "ceil": "tl.ceil({0})", "clone": "{0}", "contiguous": "{0}", "cos": "tl.cos({0})",
    "alias": "{0}", "detach": "{0}", "lift_fresh_copy": "{0}", "div": "{0} / {1}", "eq": "{0} == {1}",
    "erf": "tl.erf({0})", "erfc": "1.0 - tl.erf({0})", "exp": "tl.exp({0})", "exp2": "tl.exp2({0})",
    "expm1": "TANH(0.5 * {0}) * (tl.exp({0}) + 1.0)", "floor": "tl.floor({0})",
    "ge": "{0} >= {1}", "gt": "{0} > {1}",
    "isinf": "tl.abs({0}) == float('inf')", "isnan": "{0} != {0}", "le": "{0} <= {1}", "log": "tl.log({0})",
    "log1p": "tl.where({0} + 1.0 == 1.0, {0}, tl.log({0} + 1.0) * ({0} / ({0} + 1.0 - 1.0)))",
    "log2": "tl.log2({0})", "logical_and": "({0} != 0) & ({1} != 0)", "logical_not": "{0} == 0",
    "logical_or": "({0} != 0) | ({1} != 0)", "lt": "{0} < {1}",
    "maximum": "tl.where(({0} > {1}) | ({0} != {0}), {0}, {1})",
    "minimum": "tl.where(({0} < {1}) | ({0} != {0}), {0}, {1})", "mul": "{0} * {1}", "ne": "{0} != {1}",
    "neg": "-{0}", "reciprocal": "1.0 / {0}", "relu": "tl.where({0} < 0, 0.0, {0})", "rsqrt": "1.0 / tl.sqrt({0})",
    "sigmoid": "1.0 / (1.0 + tl.exp(-{0}))", "sign": "tl.where({0} > 0, 1.0, tl.where({0} < 0, -1.0, {0}))",
    "sin": "tl.sin({0})", "sqrt": "tl.sqrt({0})", "sub": "{0} - {1}", "tanh": _TANH,
    "where": "tl.where({0}, {1}, {2})",
}  # fmt: skip
"""By an operator's name, over its operands in order."""
SPECIAL = frozenset({"clamp", "clamp_min", "clamp_max", "pow", "_to_copy", "add", "sub", "div"})
VIEWS = _words("""
    view reshape _unsafe_view permute transpose t expand unsqueeze squeeze select slice flip as_strided alias
    detach
""")
FILLS = _words("""
    full full_like zeros zeros_like ones ones_like scalar_tensor arange empty_like
""")
REDUCTIONS = _words("""
    sum mean amax amin max min argmax argmin prod var var_mean any
""")
SCANS = frozenset({"cumsum", "cumprod"})
POOLS = frozenset(["max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d"])
JOINS = frozenset({"cat", "constant_pad_nd"})
_KINDS: dict[str, str] = {
    name: kind
    for kind, names in (("view", VIEWS), ("fill", FILLS), ("scan", SCANS), ("pool", POOLS), ("join", JOINS))
    for name in names
}
"""Of operators of which the name alone says it; of reductions and pointwise ones the operands decide too."""


def kind_of(node: Node) -> str:
    """What a kernel can do with a node: "point", "view", "fill", "reduction", "scan", "pool", "join", "item"; ""
    where torch is to call it."""
    if node.op == "call_function" and "getitem" in str(node.target):
        source = arguments(node)[0]
        return "item" if isinstance(source, Node) and kind_of(source) == "reduction" else ""
    if not isinstance(node.meta.get("val"), torch.Tensor | tuple | list):
        return ""
    if name_of(node) == "convolution":
        return "pool" if is_depthwise(node) else ""
    return _kind_of_small(node)


def _kind_of_small(node: Node) -> str:
    name = name_of(node)
    if _is_wide(node):
        return ""
    if name in _KINDS:
        return _KINDS[name] if _simple(node, _KINDS[name]) else ""
    if name in REDUCTIONS and not _is_of_two(node):
        source = arguments(node)[0]
        assert isinstance(source, Node)
        return "reduction" if dtype_of(source).is_floating_point or name == "any" else ""
    return "point" if name in EXPRESSIONS or (name in SPECIAL and _simple(node, "point")) else ""


def _is_wide(node: Node) -> bool:
    """Whether a result is complex or in float64, which no kernel here computes."""
    values = node.meta["val"] if isinstance(node.meta["val"], tuple | list) else [node.meta["val"]]
    return any(v is not None and (v.dtype.is_complex or v.dtype is torch.float64) for v in values)


def _is_of_two(node: Node) -> bool:
    """Whether a maximum or minimum is of two tensors, element by element, and not over a dimension."""
    return name_of(node) in ("max", "min") and len(arguments(node)) > 1 and is_tensor(arguments(node)[1])


def _simple(node: Node, kind: str) -> bool:
    if kind == "pool":
        window = pool_of(node)
        return window is not None and math.prod(window.kernel) <= MANY
    if kind == "view" and name_of(node) == "as_strided":
        value, source = node.meta["val"], arguments(node)[0]
        return isinstance(source, Node) and value.numel() == source.meta["val"].numel() and value.is_contiguous()
    return not (name_of(node) == "pow" and (is_tensor(arguments(node)[1]) or not is_tensor(arguments(node)[0])))


def is_depthwise(node: Node) -> bool:
    """Whether a convolution, of no bias and not transposed, has one input and one output channel in each group."""
    source, weight, bias = arguments(node)[:3]
    if not is_tensor(source) or bias is not None or arguments(node)[6]:
        return False
    shape = shape_of(weight)
    return arguments(node)[8] == shape[0] == shape_of(source)[1] and shape[1] == 1 and math.prod(shape[2:]) <= 64


def axes_of(node: Node) -> tuple[int, ...]:
    """The reduced dimensions, in order."""
    source = arguments(node)[0]
    assert isinstance(source, Node)
    rank = len(shape_of(source))
    name = name_of(node)
    given: Any = node.kwargs.get("dim", arguments(node)[1] if len(arguments(node)) > 1 else None)
    if name in ("sum", "mean") and "dtype" not in str(node.target) and isinstance(given, torch.dtype):
        given = None
    if given is None or given in ([], ()):
        return tuple(range(rank))
    dims = given if isinstance(given, list | tuple) else [given]
    return tuple(sorted(int(d) % rank for d in dims)) if rank else ()


def keeps(node: Node) -> bool:
    """Whether a reduction keeps its dimensions, of size 1."""
    values = node.meta["val"]
    value = values[0] if isinstance(values, tuple | list) else values
    source = arguments(node)[0]
    assert isinstance(source, Node)
    return len(value.shape) == len(shape_of(source)) and bool(axes_of(node))


@dataclass(frozen=True)
class PoolWindow:
    """A pooling's window, a number for each of the last dimensions."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    counts_padding: bool
    divisor: int | None
    ceils: bool


def pool_of(node: Node) -> PoolWindow | None:
    """None where a kernel does not write it."""
    weights = shape_of(arguments(node)[1])[2:] if name_of(node) == "convolution" else None
    rank: int = len(weights) if weights else int(name_of(node)[-2])

    def numbers(value: Any, default: tuple[int, ...]) -> tuple[int, ...]:
        if value is None or value in ([], ()):
            return default
        items = tuple(value) if isinstance(value, list | tuple) else (value,)
        return tuple(int(x) for x in items) * (rank if len(items) == 1 else 1)

    args = [*arguments(node)[1:], *[None] * 6]
    if weights:
        stride, padding, dilation = (numbers(x, (0,) * rank) for x in arguments(node)[3:6])
        return PoolWindow(weights, stride, padding, dilation, True, None, False)
    named = node.kwargs
    kernel = numbers(named.get("kernel_size", args[0]), ())
    stride = numbers(named.get("stride", args[1]), kernel)
    padding = numbers(named.get("padding", args[2]), (0,) * rank)
    if name_of(node).startswith("max"):
        dilation = numbers(named.get("dilation", args[3]), (1,) * rank)
        return PoolWindow(kernel, stride, padding, dilation, False, None, bool(named.get("ceil_mode", args[4])))
    ceils = bool(named.get("ceil_mode", args[3]))
    include: Any = named.get("count_include_pad", args[4])
    divisor: Any = named.get("divisor_override", args[5])
    if ceils:
        return None
    return PoolWindow(kernel, stride, padding, (1,) * rank, include is None or bool(include), divisor, ceils)


def read_through(node: Node, element: Place) -> Read:
    """Where a view's element stands in its source."""
    source = arguments(node)[0]
    assert isinstance(source, Node)
    shape, name = shape_of(source), name_of(node)
    if name in ("permute", "transpose", "t"):
        order = _order(node, len(shape))
        found: list[Coordinate] = [ZERO] * len(shape)
        for out, of in enumerate(order):
            found[of] = element[out]
        return Read(source, tuple(found))
    if name == "expand":
        return Read(source, broadcast(element, shape))
    if name in ("select", "slice"):
        return Read(source, _sliced(node, element, shape))
    if name == "flip":
        dims = {int(d) % len(shape) for d in arguments(node)[1]}
        turned = (c.scaled(-1, shape[i] - 1) if i in dims else c for i, c in enumerate(element))
        return Read(source, tuple(turned))
    return Read(source, regrouped(element, shape))


def _order(node: Node, rank: int) -> list[int]:
    if name_of(node) == "permute":
        return [int(d) % rank for d in arguments(node)[1]]
    order = list(range(rank))
    a, b = (0, 1) if name_of(node) == "t" else (int(arguments(node)[1]) % rank, int(arguments(node)[2]) % rank)
    if rank > 1:
        order[a], order[b] = order[b], order[a]
    return order


def _sliced(node: Node, element: Place, shape: tuple[int, ...]) -> Place:
    args = [*arguments(node)[1:], *[None] * 4]
    dim = int(args[0] or 0) % len(shape)
    if name_of(node) == "select":
        at = int(args[1]) % shape[dim]
        return (*element[:dim], Coordinate((), at), *element[dim:])
    start, step = int(args[1] or 0), int(args[3] or 1)
    start = max(0, start + shape[dim] if start < 0 else min(start, shape[dim]))
    return (*element[:dim], element[dim].scaled(step, start), *element[dim + 1 :])


def broadcast(element: Place, shape: tuple[int, ...]) -> Place:
    """A place in a broadcast shape as the place in one operand of that shape."""
    tail = element[len(element) - len(shape) :] if shape else ()
    return tuple(ZERO if n == 1 else c for c, n in zip(tail, shape, strict=True))


def window_reads(node: Node, element: Place) -> Iterator[Read]:
    """The elements of a pooling's window."""
    source, window = arguments(node)[0], pool_of(node)
    assert isinstance(source, Node)
    assert window is not None
    shape, rank = shape_of(source), len(window.kernel)
    other = "float('-inf')" if name_of(node).startswith("max") else "0.0"
    for number in range(math.prod(window.kernel)):
        at, bounds, rest = list(element), [], number
        for axis in reversed(range(rank)):
            offset, rest = rest % window.kernel[axis], rest // window.kernel[axis]
            dim = len(shape) - rank + axis
            at[dim] = element[dim].scaled(
                window.stride[axis], offset * window.dilation[axis] - window.padding[axis]
            )
            last = (element[dim].extent - 1) * window.stride[axis] + at[dim].start
            if at[dim].start < 0 or last >= shape[dim]:
                bounds.append((at[dim], 0, shape[dim]))
        yield Read(source, tuple(at), tuple(bounds), other)


def joined_reads(node: Node, element: Place) -> Iterator[Read]:
    """The operands of a concatenation, or the source of a constant pad."""
    if name_of(node) == "constant_pad_nd":
        source, pads = arguments(node)[0], list(arguments(node)[1])
        assert isinstance(source, Node)
        shape, bounds = shape_of(source), list[Bound]()
        at = list(element)
        for i in range(len(pads) // 2):
            dim = len(shape) - 1 - i
            at[dim] = replace(element[dim], start=element[dim].start - int(pads[2 * i]))
            bounds.append((at[dim], 0, shape[dim]))
        fill = arguments(node)[2] if len(arguments(node)) > 2 else 0.0
        yield Read(source, tuple(at), tuple(bounds), repr(float(fill)))
        return
    parts: Any = arguments(node)[0]
    given: Any = arguments(node)[1] if len(arguments(node)) > 1 else node.kwargs.get("dim", 0)
    dim = int(given) % len(element)
    begun = 0
    for part in parts:
        size = shape_of(part)[dim] if len(shape_of(part)) == len(element) else 0
        moved = replace(element[dim], start=element[dim].start - begun)
        if size:
            yield Read(part, (*element[:dim], moved, *element[dim + 1 :]), ((element[dim], begun, begun + size),))
        begun += size


def reads(node: Node, element: Place) -> list[Read]:
    """What a node's element is made of, reductions and scans apart. Raises Uncut."""
    kind = kind_of(node)
    if kind == "view":
        return [read_through(node, element)]
    if kind == "pool":
        return list(window_reads(node, element))
    if kind == "join":
        return list(joined_reads(node, element))
    if kind == "point":
        return [Read(x, broadcast(element, shape_of(x))) for x in arguments(node) if isinstance(x, Node)]
    if kind == "fill":
        return []
    raise Uncut(f"{node.target}")


Writer = Callable[[str], str]


def expression(node: Node, operands: list[str]) -> str:
    """A pointwise operator over operands that are names or numbers, in the order of its arguments."""
    name, given = name_of(node), operands
    if name in ("clamp", "clamp_min", "clamp_max"):
        given = [*given, "None", "None"]
        low, high = ([given[1], given[2]] if name == "clamp" else
                     [given[1], "None"] if name == "clamp_min" else ["None", given[1]])  # fmt: skip
        text = given[0]
        text = text if low == "None" else f"tl.where({text} < {low}, {low}, {text})"
        return text if high == "None" else f"tl.where({given[0]} > {high}, {high}, {text})"
    if name == "pow":
        return _power(given[0], float(arguments(node)[1]))
    if name == "_to_copy":
        return given[0]
    if name in ("add", "sub") and node.kwargs.get("alpha", 1) != 1:
        given = [given[0], f"{given[1]} * {node.kwargs['alpha']}"]
    if name == "div" and node.kwargs.get("rounding_mode") is not None:
        divided = f"({given[0]} / {given[1]})"
        low = f"tl.floor({divided})"
        return (
            low
            if node.kwargs["rounding_mode"] == "floor"
            else f"tl.where({divided} < 0, tl.ceil({divided}), {low})"
        )
    text = EXPRESSIONS[name].format(*given)
    return text.replace("TANH(0.5 * " + given[0] + ")", "(" + _TANH.format(f"(0.5 * {given[0]})") + ")")


def _power(base: str, exponent: float) -> str:
    if exponent == int(exponent) and 1 <= abs(exponent) <= 8:
        product = " * ".join([base] * int(abs(exponent)))
        return product if exponent > 0 else f"1.0 / ({product})"
    if exponent in (0.5, -0.5):
        return f"tl.sqrt({base})" if exponent > 0 else f"1.0 / tl.sqrt({base})"
    if exponent == 0:
        return f"{base} * 0.0 + 1.0"
    if exponent != int(exponent):
        return f"tl.exp2({exponent!r} * tl.log2({base}))"
    raise Uncut(f"a power of {exponent}")
