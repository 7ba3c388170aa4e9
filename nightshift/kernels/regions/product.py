"""Matrix products and convolutions with what stands before and after them, as one Triton kernel each.

A product is tiles of rows (`ma`), columns (`nb`) and depth. What it multiplies is read through views, pads and
pointwise operators where that costs no second reading; what follows is computed on the accumulator. A convolution
is the same product: its rows are positions, its columns channels, its depth the window of every channel (implicit
GEMM).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from nightshift.kernels.regions.index import Coordinate, Digit, Place, Uncut, linear, merged, renamed
from nightshift.kernels.regions.kernel import TRITON, Body, Cut, Written, contiguous, strides_of
from nightshift.kernels.regions.lowering import Node, dtype_of, is_tensor, kind_of, name_of, reads, shape_of

PRODUCTS = frozenset({"mm", "addmm", "bmm"})
_BAND = 8
"""Tiles of rows that neighbouring programs share columns over, for L2's sake."""
_IN_FLIGHT_BYTES = 192 << 10
"""What a loop's loads may take of an H100's 227 KiB of shared memory: layouts are changed in the rest."""


_ROUNDED = """@triton.jit
def _rounded(x):
    kept = ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return tl.where(x == x, kept, x)


"""
"""To the nearest TF32 number, ties away from zero; NaN stays."""


@dataclass(frozen=True)
class ProductSchedule:
    """Tiles of a product. precision: of `tl.dot`; fewest: tiles that its results fill, or torch makes them."""

    rows: int = 128
    columns: int = 128
    depth: int = 32
    warps: int = 8
    stages: int = 3
    precision: str = "tf32x3"
    fewest: int = 0

    def fits(self, node: Node) -> bool:
        """Whether a product has enough results for these tiles."""
        return math.prod(shape_of(node)) >= self.fewest * self.rows * self.columns


@dataclass(frozen=True)
class Window:
    """A convolution's numbers, for each of its last dimensions."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    turned: bool
    groups: int


@dataclass(frozen=True)
class Taps:
    """One dimension of a window as a kernel walks it. move: in the source, for each tap; every, first: which taps
    of the weights; bounds: what holds for those that there are."""

    count: int
    move: int
    every: int = 1
    first: str = ""
    bounds: tuple[str, ...] = ()

    def held(self, number: str) -> list[str]:
        """What holds for the tap of that number among these."""
        return [bound.format(f"({number})") for bound in self.bounds]


def window_of(node: Node) -> Window:
    rank = len(shape_of(node)) - 2
    numbers: Any = node.args[3:9]
    stride, padding, dilation, turned, _, groups = numbers
    whole = [tuple(int(x) for x in item) * (rank if len(item) == 1 else 1) for item in (stride, padding, dilation)]
    return Window(whole[0], whole[1], whole[2], bool(turned), int(groups))


def phases_of(node: Node) -> tuple[int, ...]:
    """By how many each of the last dimensions of a product is taken apart: outputs of a transposed convolution that
    lie at one place within the stride use the same part of the window, and no others do."""
    if name_of(node) != "convolution":
        return ()
    window = window_of(node)
    return window.stride if window.turned else (1,) * len(window.stride)


def writes_product(node: Node) -> bool:
    """Whether a kernel here computes it. A transposed convolution's size is to be a multiple of its stride."""
    if not is_tensor(node) or not dtype_of(node).is_floating_point:
        return False
    if name_of(node) in PRODUCTS:
        return not node.kwargs and min(shape_of(node)[-2:]) > 1
    if name_of(node) != "convolution":
        return False
    window, source = window_of(node), node.args[0]
    channels = shape_of(source)[1] // window.groups  # type: ignore[arg-type]
    whole = all(size % phases == 0 for size, phases in zip(shape_of(node)[2:], phases_of(node), strict=True))
    return whole and shape_of(node)[1] // window.groups >= 8 and channels > 1


def product_kernel(
    target: Node,
    name: str,
    resident: Collection[Node],
    plan_of: Callable[[Node], ProductSchedule | None],
    alive: Collection[Node],
) -> Written | None:
    """The kernel of a target that a product leads to, alone and element by element; None where there is none."""
    shape = shape_of(target)
    names = [f"d{i}" for i in range(len(shape))]
    element: Place = tuple(Coordinate(merged([Digit(v, 1, n)])) for v, n in zip(names, shape, strict=True))
    found: dict[tuple[Node, Place], None] = {}
    within: set[Node] = set()
    if not _products(target, element, resident, plan_of, found, within) or len(found) != 1:
        return None
    ((product, at),) = found
    schedule = plan_of(product)
    users = {user for node in within - {target} for user in node.users if user in alive}
    if schedule is None or not users <= within:  # somebody else would compute the product once more
        return None
    try:
        return _Product(target, element, product, at, name, resident, schedule).written()
    except Uncut:
        return None


def _products(
    node: Node,
    element: Place,
    resident: Collection[Node],
    plan_of: Callable[[Node], ProductSchedule | None],
    found: dict[tuple[Node, Place], None],
    within: set[Node],
) -> bool:
    """Notes the products below a node, and all nodes on the way; False where anything but pointwise operators and
    views is."""
    if node in resident:
        return True
    within.add(node)
    if plan_of(node) is not None:
        found[node, element] = None
        return True
    if kind_of(node) not in ("point", "view", "fill"):
        return False
    try:
        return all(_products(r.node, r.element, resident, plan_of, found, within) for r in reads(node, element))
    except Uncut:
        return False


class _Product:
    """Writes one product and what follows it."""

    def __init__(
        self,
        target: Node,
        element: Place,
        product: Node,
        at: Place,
        name: str,
        resident: Collection[Node],
        schedule: ProductSchedule,
    ) -> None:
        self.target, self.product, self.kernel, self.schedule = target, product, name, schedule
        shape = shape_of(product)
        self.convolution = name_of(product) == "convolution"
        self.batch = name_of(product) == "bmm"
        columns = 1 if self.convolution else len(shape) - 1
        groups = window_of(product).groups if self.convolution else shape[0] if self.batch else 1
        self.phases = phases_of(product)
        self.apart = math.prod(self.phases)
        self.groups, self.columns = groups * self.apart, shape[columns] // (groups if self.convolution else 1)
        self.rows = math.prod(shape) // shape[columns] // (groups if self.batch else self.apart)
        pieces = self._pieces(at, columns)
        self.element, self.at = renamed(element, pieces), renamed(at, pieces)
        sizes = {"ma": self.rows, "nb": self.columns, "z": self.groups, "ka": 1, "kb": 1}
        self.body = Body(resident, sizes)

    def _pieces(self, at: Place, columns: int) -> dict[Digit, Digit]:
        """What stands for each digit of the target's dimensions: of rows, columns and groups."""
        made: dict[Digit, Digit] = {}
        weights = {"ma": 1, "nb": 1, "z": 1}
        for dim in reversed(range(len(at))):
            for digit in reversed(at[dim].digits):
                for part, variable in self._parts(digit, dim, columns, weights):
                    made[part] = Digit(variable, weights[variable], part.size)
                    weights[variable] *= part.size
        if weights != {"ma": self.rows, "nb": self.columns, "z": self.groups} or not all(c.plain for c in at):
            raise Uncut("a product of which not every element follows")
        return made

    def _parts(self, digit: Digit, dim: int, columns: int, weights: dict[str, int]) -> list[tuple[Digit, str]]:
        if self.batch and dim == 0:
            return [(digit, "z")]
        if dim != columns:
            return self._phased(digit, self.phases[dim - 2]) if self.apart > 1 and dim > 1 else [(digit, "ma")]
        left = self.columns // weights["nb"]
        if left >= digit.size or not self.convolution:
            return [(digit, "nb")]
        if left == 1:
            return [(digit, "z")]
        if digit.size % left:
            raise Uncut("groups of channels that a view splits")
        low = Digit(digit.variable, digit.divisor, left)
        return [(low, "nb"), (Digit(digit.variable, digit.divisor * left, digit.size // left), "z")]

    @staticmethod
    def _phased(digit: Digit, phases: int) -> list[tuple[Digit, str]]:
        """A position as its place within the stride, which `z` counts, and which stride it is in."""
        if digit.divisor > 1 or digit.size % phases:
            raise Uncut("a stride that a view splits")
        low, high = Digit(digit.variable, 1, phases), Digit(digit.variable, phases, digit.size // phases)
        return [(low, "z"), (high, "ma")]

    def written(self) -> Written:
        body, plan = self.body, self.schedule
        tiles_m, tiles_n = -(-self.rows // plan.rows), -(-self.columns // plan.columns)
        body.add("pid = tl.program_id(0)")
        if self.groups > 1:
            body.add("z = tl.program_id(1)")
        body.add(f"band = {_BAND} * {tiles_n}")
        body.add(f"first = pid // band * {_BAND}")
        body.add(f"high = tl.minimum({tiles_m} - first, {_BAND})")
        body.add("pm = first + pid % band % high")
        body.add("pn = pid % band // high")
        wide = self._many()
        body.add(f"rm = pm{wide} * BM + tl.arange(0, BM)")
        body.add(f"rn = pn{wide} * BN + tl.arange(0, BN)")
        body.add("ma = rm[:, None]")
        body.add("nb = rn[None, :]")
        masks = [f"{v}m" for v, size, tile in (("ma", self.rows, plan.rows), ("nb", self.columns, plan.columns))
                 if size % tile]  # fmt: skip
        for mask, size in zip(("mam", "nbm"), (self.rows, self.columns), strict=True):
            if mask in masks:
                body.add(f"{mask} = {mask[:-1]} < {size}")
        body.mask = " ".join(masks)
        body.add("acc = tl.zeros([BM, BN], tl.float32)")
        body.add("one = tl.full([BM, BN], 1.0, tl.float32)")
        self._convolve(masks) if self.convolution else self._multiply(masks)
        body.given[self.product, self.at] = self._biased()
        text = body.value(self.target, self.element)
        offset = linear(self.element, contiguous(shape_of(self.target)), body.sizes)
        mask = " & ".join(masks)
        value = f"({text}).to({TRITON[dtype_of(self.target)]})"
        body.add(f"tl.store(out + ({offset}), {value}" + (f", mask={mask})" if mask else ")"))
        return self._launch(tiles_m * tiles_n)

    def _launch(self, tiles: int) -> Written:
        body, plan = self.body, self.schedule
        pointers = ", ".join([*body.loads.values(), "out"])
        helper = _ROUNDED if plan.precision == "tf32" else ""
        sizes = ", ".join(f"{name}: tl.constexpr" for name in ("BM", "BN", "BK"))
        source = f"{helper}@triton.jit\ndef {self.kernel}({pointers}, {sizes}):\n"
        source += "\n".join(body.lines) + "\n"
        constants = f"BM={plan.rows}, BN={plan.columns}, BK={plan.depth}"
        arguments = (*body.loads, self.target)
        return Written(
            self.kernel, source, f"({tiles}, {self.groups})", arguments, constants, plan.warps, plan.stages
        )

    def _many(self) -> str:
        sizes = [math.prod(shape_of(n)) for n in (self.target, self.product, *self.product.all_input_nodes)]
        return ".to(tl.int64)" if max(sizes) >= 1 << 31 else ""

    def _biased(self) -> str:
        """The accumulator with the product's own bias."""
        name, args = name_of(self.product), self.product.args
        bias = args[0] if name == "addmm" else args[2] if name == "convolution" else None
        if not isinstance(bias, Node):
            return "acc"
        shape = shape_of(bias)
        at = self.at[1:2] if self.convolution else self.at[len(self.at) - len(shape) :]
        at = tuple(Coordinate() if n == 1 else c for c, n in zip(at, shape, strict=True))
        return self.body.name(f"acc + {self.body.value(bias, at)}")

    def _multiply(self, masks: list[str]) -> None:
        body, plan = self.body, self.schedule
        left, right = self.product.args[-2:]
        assert isinstance(left, Node)
        assert isinstance(right, Node)
        depth = shape_of(left)[-1]
        outer = (Coordinate(merged([Digit("z", 1, self.groups)])),) if self.batch else ()
        rows, columns = (Coordinate(merged([Digit(v, 1, n)])) for v, n in (("ma", self.rows), ("nb", self.columns)))
        body.sizes |= {"ka": depth, "kb": depth}
        body.begin(f"for k0 in range(0, {depth}, BK):")
        body.add("rk = k0 + tl.arange(0, BK)")
        body.add("ka = rk[None, :]")
        body.add("kb = rk[:, None]")
        if depth % plan.depth:
            body.add(f"kam = ka < {depth}")
            body.add(f"kbm = kb < {depth}")
            body.mask = " ".join([*masks, "kam", "kbm"])
        begun = len(body.lines)
        a = body.value(left, (*outer, rows, Coordinate(merged([Digit("ka", 1, depth)]))))
        between = len(body.lines)
        b = body.value(right, (*outer, Coordinate(merged([Digit("kb", 1, depth)])), columns))
        read = {left: self._tiles(body.lines[begun:between], {"ma", "ka"}) * plan.rows,
                right: self._tiles(body.lines[between:], {"kb", "nb"}) * plan.columns}  # fmt: skip
        in_flight = sum(read.values()) * plan.depth * dtype_of(left).itemsize * (plan.stages - 1)
        made = [node for node in read if node not in body.resident]
        if made and in_flight > _IN_FLIGHT_BYTES:
            raise Cut(max(made, key=read.__getitem__), "read from more tiles than shared memory holds")
        if depth % plan.depth and left not in body.resident:  # an operator may make something of the zeros read
            a = body.name(f"tl.where(kam, {a}, 0.0)")
        a, b = self._spread(a, "BM, BK", {"ma", "ka"}), self._spread(b, "BK, BN", {"kb", "nb"})
        self._dot(a, b)
        body.end()
        body.mask = " ".join(masks)

    def _tiles(self, lines: Sequence[str], along: set[str]) -> int:
        """How many whole tiles these lines read."""
        names = (line.split()[0] for line in lines if "tl.load(" in line)
        return sum(along <= self.body.along.get(name, set()) for name in names)

    def _spread(self, operand: str, tile: str, along: set[str]) -> str:
        """An operand for a whole tile, also where it is one row, one column or one number for all of it."""
        whole = along <= self.body.along.get(operand, set())
        return operand if whole else self.body.name(f"tl.zeros([{tile}], tl.float32) + {operand}")

    def _dot(self, a: str, b: str) -> None:
        if self.schedule.precision == "tf32":  # the tensor cores cut operands off; cuDNN and cuBLAS round them
            a, b = (self.body.name(f"_rounded({x})") for x in (a, b))
        # each block by itself and then to the total, as an fma (`kernels.ops.products.float32_kernels` says why)
        self.body.add(f'part = tl.dot({a}, {b}, input_precision="{self.schedule.precision}")')
        self.body.add("acc = tl.fma(part, one, acc)")

    def _convolve(self, masks: list[str]) -> None:
        body, plan = self.body, self.schedule
        source, weight = self.product.args[:2]
        assert isinstance(source, Node)
        assert isinstance(weight, Node)
        for node in (source, weight):
            if node not in body.resident:
                raise Cut(node, "read by overlapping windows")
        if strides_of(weight) != contiguous(shape_of(weight)):
            raise Cut(self.product, "its weights do not lie row by row")
        window = window_of(self.product)
        shape, kernel = shape_of(source), shape_of(weight)[2:]
        channels, steps = shape[1] // window.groups, strides_of(source)
        out = tuple(n // p for n, p in zip(shape_of(self.product)[2:], self.phases, strict=True))
        body.add(f"image = ma // {math.prod(out)}")
        taps = [
            self._along(i, window, kernel[i], f"ma // {inner} % {size}")
            for i, (size, inner) in enumerate(zip(out, contiguous(out), strict=True))
        ]
        within = math.prod(t.count for t in taps)
        depth = channels * within
        group = f" + {self._group} * {channels * steps[1]}" if window.groups > 1 else ""
        body.add(f"base = image * {steps[0]}{group}")
        pointers = [body.loads.setdefault(node, f"p{len(body.loads)}") for node in (source, weight)]
        body.begin(f"for k0 in range(0, {depth}, BK):")
        body.add("rk = k0 + tl.arange(0, BK)")
        body.add("ka = rk[None, :]")
        body.add("kb = rk[:, None]")
        is_ragged = depth % plan.depth > 0
        rows, columns = (
            [f"{outer}m"] * (f"{outer}m" in masks) + [f"({inner} < {depth})"] * is_ragged
            for outer, inner in (("ma", "ka"), ("nb", "kb"))
        )
        a = self._windows(pointers[0], window, shape, steps, kernel, taps, rows)
        at = f"kb % {within}" if self.apart == 1 else self._tap(taps, kernel)
        b = self._weights(pointers[1], window, taps, columns, channels, math.prod(kernel), at)
        self._dot(a, b)
        body.end()

    @property
    def _group(self) -> str:
        """Which group of channels a program is of."""
        return f"z // {self.apart}" if self.apart > 1 else "z"

    def _read(self, pointer: str, offset: str, masks: Sequence[str]) -> str:
        """A tile in memory; zeros where a mask does not hold."""
        mask = f", mask={' & '.join(masks)}, other=0.0" if masks else ""
        return self.body.name(f"tl.load({pointer} + ({offset}){mask})")

    def _windows(
        self,
        pointer: str,
        window: Window,
        shape: Sequence[int],
        steps: Sequence[int],
        kernel: Sequence[int],
        taps: Sequence[Taps],
        masks: Sequence[str],
    ) -> str:
        """A tile of the source, a row for each position: its windows, zeros where they reach over an edge."""
        counts = [t.count for t in taps]
        offset, masks = f"base + ka // {math.prod(counts)} * {steps[1]}", list(masks)
        for i, (tap, inner) in enumerate(zip(taps, contiguous(counts), strict=True)):
            place = f"ka // {inner} % {tap.count}"
            self.body.add(f"i{i} = at{i} {'-' if window.turned else '+'} {place} * {tap.move}")
            offset += f" + i{i} * {steps[2 + i]}"
            if kernel[i] > 1 or window.padding[i] or self.apart > 1:
                masks.append(f"(i{i} >= 0) & (i{i} < {shape[2 + i]})")
            masks += tap.held(place)
        return self._read(pointer, offset, masks)

    @staticmethod
    def _tap(taps: Sequence[Taps], kernel: Sequence[int]) -> str:
        """Which of a channel's weights the depth stands for, where only some of them are used."""
        inner = contiguous([t.count for t in taps])
        return " + ".join(
            f"({t.first}kb // {i} % {t.count} * {t.every}) * {step}"
            for t, i, step in zip(taps, inner, contiguous(kernel), strict=True)
        )

    def _along(self, i: int, window: Window, size: int, position: str) -> Taps:
        """One dimension of a window, and the line that says where it begins in the source.

        A transposed convolution's position at place p within the stride s uses the taps k for which p + padding -
        k · dilation is a multiple of s: every (s / g)th from the first on, g the divisor that dilation and s
        share."""
        stride, dilation, padding = window.stride[i], window.dilation[i], window.padding[i]
        if not window.turned:
            self.body.add(f"at{i} = {position} * {stride} - {padding}")
            return Taps(size, dilation)
        shared = math.gcd(dilation, stride)
        every = stride // shared
        if stride == 1:
            self.body.add(f"at{i} = {position} + {padding}")
            return Taps(size, dilation)
        below = math.prod(self.phases[i + 1 :])
        self.body.add(f"h{i} = z // {below} % {stride} + {padding}")
        inverse = pow(dilation // shared, -1, every) if every > 1 else 0
        self.body.add(f"f{i} = h{i} // {shared} * {inverse} % {every}")
        self.body.add(f"at{i} = ({position} * {stride} + h{i} - f{i} * {dilation}) // {stride}")
        bounds = [f"(f{i} + {{0}} * {every} < {size})"] + ([f"(h{i} % {shared} == 0)"] if shared > 1 else [])
        return Taps(-(-size // every), dilation // shared, every, f"f{i} + ", tuple(bounds))

    def _weights(
        self,
        pointer: str,
        window: Window,
        taps: Sequence[Taps],
        masks: Sequence[str],
        channels: int,
        size: int,
        tap: str,
    ) -> str:
        """A tile of weights. taps: those that are used of a channel's, which are `size`; tap: which of them."""
        counts, depth = [t.count for t in taps], channels * size
        group = f" + {self._group} * {self.columns * depth}" if window.groups > 1 else ""
        offset = f"nb * {depth} + kb{group}"
        if window.turned:  # weights lie as (input channel, output channel of its group, window)
            offset = f"kb // {math.prod(counts)} * {self.columns * size} + nb * {size} + {tap}{group}"
        walked = zip(taps, contiguous(counts), strict=True)
        held = [mask for t, inner in walked for mask in t.held(f"kb // {inner} % {t.count}")]
        return self._read(pointer, offset, [*masks, *held])
