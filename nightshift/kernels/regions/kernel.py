"""One region as one Triton kernel: a chain of pointwise operators, reductions over some axes, a scan, or all of
them.

A kernel computes one tensor, the target, from tensors that lie in memory. Loop variable `x` runs over what the
region's reductions keep, `r` over what they reduce; without reductions there is `x` alone. A target that needs two
different splits of one tensor into x and r is no region: `Cut` names the node that has to be in memory first.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from nightshift.kernels.regions.graph import LAID, STRIDES
from nightshift.kernels.regions.index import (
    ZERO,
    Coordinate,
    Digit,
    Place,
    Uncut,
    grouped,
    linear,
    merged,
    number,
    renamed,
)
from nightshift.kernels.regions.lowering import (
    Bound,
    Node,
    Read,
    axes_of,
    dtype_of,
    expression,
    is_tensor,
    keeps,
    kind_of,
    name_of,
    pool_of,
    reads,
    shape_of,
)

TRITON = {
    torch.float16: "tl.float16", torch.bfloat16: "tl.bfloat16", torch.float32: "tl.float32", torch.int8: "tl.int8",
    torch.int16: "tl.int16", torch.int32: "tl.int32", torch.int64: "tl.int64", torch.uint8: "tl.uint8",
    torch.bool: "tl.int1",
}  # fmt: skip
_MANY_ELEMENTS = (1 << 31) - (1 << 20)
_PROGRAMS = 1024
"""Of a kernel, if its work can be shared among so many."""
_WINDOW = 16
"""Elements of a window whose source is computed at each of them, and not written to memory first."""


class Cut(Exception):
    """A node has to be in memory before the kernel that asked."""

    def __init__(self, node: Node, why: str) -> None:
        super().__init__(f"{node.target}: {why}")
        self.node, self.why = node, why


@dataclass(frozen=True)
class Schedule:
    """How a region's loops are laid out. block: elements at a time; rows: of them how many along x, 0 for what fits
    the memory's order; persistent: the longest r that is held whole."""

    block: int = 2048
    warps: int = 4
    rows: int = 0
    persistent: int = 8192


@dataclass
class Written:
    """A kernel's text, and how it is launched: grid, arguments in order (nodes; the target last), constants."""

    name: str
    source: str
    grid: str
    arguments: tuple[Node, ...]
    constants: str
    warps: int
    stages: int = 0
    reductions: tuple[Node, ...] = ()


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    made: list[int] = []
    step = 1
    for size in reversed(shape):
        made.insert(0, step)
        step *= size
    return tuple(made)


def strides_of(node: Node) -> tuple[int, ...]:
    """How a tensor lies in memory."""
    return node.meta.get(STRIDES) or contiguous(shape_of(node))


def power_of_two(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()


@dataclass
class Body:
    """The text of one kernel while it is written. loads: the nodes that are read, in the order of their pointers.

    given: what stands already for (node, element), as an accumulator does for a product. `mask`: of every access.
    along: the loop variables that a name has a value for each of.
    """

    resident: Collection[Node]
    sizes: dict[str, int]
    mask: str = ""
    lines: list[str] = field(default_factory=list)
    indent: str = "    "
    loads: dict[Node, str] = field(default_factory=dict)
    given: dict[tuple[Node, Place], str] = field(default_factory=dict)
    along: dict[str, set[str]] = field(default_factory=dict)
    _known: dict[tuple[Node, Place, tuple[Bound, ...]], str] = field(default_factory=dict)
    _count: int = 0

    def add(self, text: str) -> None:
        self.lines.append(self.indent + text)

    def name(self, text: str) -> str:
        self._count += 1
        made = f"v{self._count}"
        words = {word.removesuffix("m") if word.removesuffix("m") in self.sizes else word
                 for word in re.findall(r"\w+", text)}  # fmt: skip
        self.along[made] = set().union(words & self.sizes.keys(), *(self.along.get(word, ()) for word in words))
        self.add(f"{made} = {text}")
        return made

    def begin(self, line: str) -> None:
        """A loop, in which what was known inside the last one is not."""
        self.add(line)
        self.indent += "    "
        self._known.clear()

    def end(self) -> None:
        self.indent = self.indent[:-4]
        self._known.clear()

    def condition(self, bounds: Sequence[Bound]) -> str:
        parts = []
        for coordinate, low, high in bounds:
            text = number(coordinate, self.sizes)
            parts.append(f"({text} >= {low}) & ({text} < {high})")
        return " & ".join(parts)

    def value(self, node: Node, element: Place, bounds: tuple[Bound, ...] = ()) -> str:
        """The name of a node's element at a place. Raises Cut."""
        if (node, element) in self.given:
            return self.given[node, element]
        key = (node, element, bounds)
        if key not in self._known:
            self._known[key] = self._made(node, element, bounds)
        return self._known[key]

    def _made(self, node: Node, element: Place, bounds: tuple[Bound, ...]) -> str:
        if node in self.resident:
            return self._load(node, element, bounds)
        kind = kind_of(node)
        if kind in ("reduction", "item", "scan", ""):
            raise Cut(node, "not within this kernel")
        if kind == "fill":
            return self._fill(node, element)
        if kind == "pool":
            return self._pooled(node, element, bounds)
        sources = _reads(node, element)
        if kind == "view":
            return self.value(sources[0].node, sources[0].element, bounds)
        if kind == "join":
            return self._joined(sources, bounds)
        return self._pointwise(node, element, bounds)

    def _load(self, node: Node, element: Place, bounds: tuple[Bound, ...]) -> str:
        pointer = self.loads.setdefault(node, f"p{len(self.loads)}")
        used = {d.variable for c in element for d in c.digits}
        mask = " & ".join(part for part in (self.mask_of(used), self.condition(bounds)) if part)
        # a pointer has the shape of its mask
        spread = {d.variable for coordinate, *_ in bounds for d in coordinate.digits} - used
        offset = " + ".join([linear(element, strides_of(node), self.sizes), *(f"0 * {v}" for v in sorted(spread))])
        text = f"tl.load({pointer} + ({offset})"
        text += f", mask={mask}, other=0)" if mask else ")"
        dtype = dtype_of(node)
        if dtype is torch.bool:
            text = f"({text} != 0)"
        elif dtype in (torch.float16, torch.bfloat16):
            text += ".to(tl.float32)"
        return self.name(text)

    def mask_of(self, used: Collection[str]) -> str:
        """Of an access that depends on these variables."""
        parts = [f"{v}m" for v in sorted(used) if f"{v}m" in self.mask.split()]
        return " & ".join(parts)

    def _fill(self, node: Node, element: Place) -> str:
        """A number of the node's type: a mere literal has no type to be cast from."""
        name, args, made = name_of(node), node.args, TRITON[dtype_of(node)]
        if name == "arange":
            numbers = [a for a in args if isinstance(a, int | float)]
            start, step = (0, 1) if len(numbers) == 1 else (numbers[0], numbers[2] if len(numbers) > 2 else 1)
            text = f"({number(element[0], self.sizes)}) * {step} + {start}"
            return self.name(f"({text}).to({made})" if element[0].digits else f"tl.full([], {text}, {made})")
        if name in ("full", "full_like", "scalar_tensor"):
            text = literal(args[0] if name == "scalar_tensor" else args[1])
        else:
            text = "1" if name.startswith("ones") else "0"
        if dtype_of(node) in (torch.float16, torch.bfloat16):
            made = "tl.float32"
        return self.name(f"tl.full([], {text}, {made})")

    def _pooled(self, node: Node, element: Place, bounds: tuple[Bound, ...]) -> str:
        """The window's largest element or its mean; of a convolution the sum, each times its weight."""
        window, sources = pool_of(node), self._window(node, element)
        assert window is not None
        is_mean, is_weighted = name_of(node).startswith("avg"), name_of(node) == "convolution"
        joined = _LARGER if name_of(node).startswith("max") else "{0} + {1}"
        total, count = "", ""
        for position, read in enumerate(sources):
            text = self._within(read, read.other, bounds)
            if is_weighted:
                text = self.name(f"{text} * {self._weight(node, element, position)}")
            total = self.name(joined.format(total, text)) if total else text
            if is_mean and read.bounds and not window.counts_padding:
                counted = f"({self.condition(read.bounds)}).to(tl.float32)"
                count = self.name(f"{count} + {counted}" if count else counted)
        if not is_mean:
            return total
        if count and window.divisor is None:
            inner = sum(not read.bounds for read in sources)
            return self.name(f"{total} / ({count} + {float(inner)})")
        return self.name(f"{total} / {float(window.divisor or math.prod(window.kernel))}")

    def _window(self, node: Node, element: Place) -> list[Read]:
        """The elements of a window. Raises Cut where they are to be made once, in memory, not in each window."""
        source, window = node.args[0], pool_of(node)
        assert isinstance(source, Node)
        assert window is not None
        overlaps = any(s < k for s, k in zip(window.stride, window.kernel, strict=True))
        if source not in self.resident and (overlaps or windows_of(node, self.resident) > _WINDOW):
            raise Cut(source, "read by overlapping windows")
        return _reads(node, element)

    def _within(self, read: Read, other: str, bounds: tuple[Bound, ...]) -> str:
        """What is read, and another value where it lies beyond its own bounds."""
        text = self.value(read.node, read.element, (*bounds, *read.bounds))
        inside = self.condition(read.bounds)
        return self.name(f"tl.where({inside}, {text}, {other})") if inside else text

    def _weight(self, node: Node, element: Place, position: int) -> str:
        """A depthwise convolution's weight for one element of its window."""
        weight = node.args[1]
        assert isinstance(weight, Node)
        at: list[Coordinate] = []
        for size in reversed(shape_of(weight)[2:]):
            at.insert(0, Coordinate((), position % size))
            position //= size
        return self.value(weight, (element[1], ZERO, *at))

    def _joined(self, sources: Sequence[Read], bounds: tuple[Bound, ...]) -> str:
        made = ""
        for read in sources:
            made = self._within(read, made or read.other, bounds)
        return made

    def _pointwise(self, node: Node, element: Place, bounds: tuple[Bound, ...]) -> str:
        made = dtype_of(node)
        floats = made.is_floating_point
        operands = []
        sources = iter(reads(node, element))
        for position, argument in enumerate(node.args):
            if isinstance(argument, Node):
                read = next(sources)
                text = self.value(read.node, read.element, bounds)
                condition = position == 0 and name_of(node) == "where"
                if floats and not condition and not dtype_of(argument).is_floating_point and is_tensor(argument):
                    text = f"{text}.to(tl.float32)"
                operands.append(text)
            else:
                operands.append(literal(argument))
        if name_of(node) == "_to_copy" and not floats and dtype_of(node.args[0]) != made:  # type: ignore[arg-type]
            cast = f"{operands[0]} != 0" if made is torch.bool else f"({operands[0]}).to({TRITON[made]})"
            return self.name(cast)
        try:
            return self.name(expression(node, operands))
        except (Uncut, KeyError, IndexError) as error:
            raise Cut(node, str(error)) from error


_LARGER = "tl.where(({1} > {0}) | ({1} != {1}), {1}, {0})"
"""Of two; NaN before everything."""


def _reads(node: Node, element: Place) -> list[Read]:
    """What an element is made of. Raises Cut where its place cannot be followed into a source."""
    try:
        return reads(node, element)
    except Uncut as error:
        raise Cut(node, str(error)) from error


def windows_of(node: Node, resident: Collection[Node], counts: dict[Node, int] | None = None) -> int:
    """How many elements the windows below a node read for one of its own, windows of windows multiplied."""
    counts = {} if counts is None else counts
    if node in resident:
        return 1
    if node not in counts:
        window = pool_of(node) if kind_of(node) == "pool" else None
        below = max((windows_of(x, resident, counts) for x in node.all_input_nodes), default=1)
        counts[node] = below * math.prod(window.kernel) if window else below
    return counts[node]


def literal(value: object) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    return repr(value)


# Reductions -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Region:
    """A target split into loops: its place in x and r, and the reductions below it, the innermost first, or the
    scan that it is or follows."""

    target: Node
    element: Place
    sizes: Mapping[str, int]
    reductions: tuple[tuple[Node, Place], ...] = ()
    scan: tuple[Node, Place] | None = None


def reduction_of(node: Node) -> Node:
    """The reduction behind one of its results."""
    source = node.args[0] if kind_of(node) == "item" else node
    assert isinstance(source, Node)
    return source


def _below(
    node: Node, element: Place, resident: Collection[Node], seen: set[tuple[Node, Place]]
) -> Iterator[tuple[Node, Place]]:
    """The reductions that an element is made of, those inside of reductions apart."""
    if node in resident or (node, element) in seen:
        return
    seen.add((node, element))
    kind = kind_of(node)
    if kind in ("reduction", "item"):
        yield reduction_of(node), element
        return
    if kind in ("scan", ""):
        raise Cut(node, "not within a kernel")
    for read in _reads(node, element):
        yield from _below(read.node, read.element, resident, seen)


def memory_order(node: Node, resident: Collection[Node]) -> list[int]:
    """A node's dimensions from the slowest to the fastest in the memory of what it is made of; as they are where
    all of that is laid out row by row, and the node is no copy that is laid out otherwise."""
    shape = shape_of(node)
    names = [f"d{i}" for i in range(len(shape))]
    start: Place = tuple(Coordinate(merged([Digit(v, 1, n)])) for v, n in zip(names, shape, strict=True))
    left, seen = [(node, start)], {node}
    while left:
        at, element = left.pop()
        copied = LAID in node.meta and math.prod(shape_of(at)) == math.prod(shape)
        if at in resident and (STRIDES in at.meta or copied):
            steps = _steps(at, element)
            # what it does not depend on, and dimensions of one element, count as the slowest
            return sorted(range(len(shape)), key=lambda i: -(steps.get(names[i]) or math.inf))
        if at in resident or kind_of(at) in ("reduction", "item", "scan", ""):
            continue
        with contextlib.suppress(Uncut):
            reads_ = reads(at, element)
            left += [(r.node, r.element) for r in reads_ if r.node not in seen]
            seen |= {r.node for r in reads_}
    return list(range(len(shape)))


def _steps(node: Node, element: Place) -> dict[str, int]:
    """How far one step of each variable of an element's place goes in the node's memory."""
    steps: dict[str, int] = {}
    for coordinate, stride in zip(element, strides_of(node), strict=True):
        weight = abs(coordinate.step) * stride
        for digit in reversed(coordinate.digits):
            if digit.divisor == 1:
                steps[digit.variable] = weight
            weight *= digit.size
    return steps


def _source_place(reduction: Node, element: Place, length: int, resident: Collection[Node]) -> Place:
    """Where a reduction reads, at its result's place and `r`. Raises Cut where it reduces another number."""
    source = reduction.args[0]
    assert isinstance(source, Node)
    shape, reduced_axes = shape_of(source), axes_of(reduction)
    axes = [axis for axis in memory_order(source, resident) if axis in reduced_axes]
    if math.prod(shape[a] for a in axes) != length:
        raise Cut(reduction, "reduces another number of elements than its neighbours")
    try:
        reduced = dict(zip(axes, grouped([Digit("r", 1, length)], [shape[a] for a in axes]), strict=True))
    except Uncut as error:
        raise Cut(reduction, str(error)) from error
    kept = [c for i, c in enumerate(element) if not (keeps(reduction) and i in axes)]
    rest = iter(kept)
    return tuple(reduced[i] if i in reduced else next(rest) for i in range(len(shape)))


def region_of(target: Node, resident: Collection[Node]) -> Region:
    """Raises Cut where a node below the target has to be in memory first."""
    shape = shape_of(target)
    names = [f"d{i}" for i in range(len(shape))]
    element: Place = tuple(Coordinate(merged([Digit(v, 1, n)])) for v, n in zip(names, shape, strict=True))
    scan, place = _scan_below(target, element, resident)
    first = [(scan, _scanned(scan, element))] if scan else list(_below(target, element, resident, set()))
    order = list(range(len(shape))) if scan else memory_order(target, resident)
    if not first:
        return _turned(target, shape, order)
    reduction, at = first[0]
    sizes = {names[i]: shape[i] for i in order}
    pieces, x, r = _split([d for c in at for d in c.digits], sizes, reduction)
    if scan is None:
        r = _reduced_length(reduction, r)
    if r == 1:
        raise Cut(reduction, "reduces nothing")
    try:
        placed = renamed(place, pieces)
        if scan is not None:
            return Region(target, placed, {"x": x, "r": r}, scan=(scan, renamed(element, pieces)))
    except Uncut as error:
        raise Cut(reduction, str(error)) from error
    found: dict[tuple[Node, Place], None] = {}
    _nested(target, placed, resident, r, found)
    return Region(target, placed, {"x": x, "r": r}, tuple(found))


def _scan_below(target: Node, element: Place, resident: Collection[Node]) -> tuple[Node | None, Place]:
    """The one scan that a target is, or follows element by element, and where the target is while the scan is at
    `element`: there, or turned round. None where there is no such scan."""
    shape, turned = shape_of(target), element
    for _ in range(2):
        found = _scans(target, turned, resident)
        if found is None or len(found) != 1:
            break
        ((scan, at),) = found
        if shape_of(scan) != shape:
            break
        if at == element:
            return scan, turned
        turned = tuple(c if c == own else c.scaled(-1, n - 1) for c, own, n in zip(element, at, shape, strict=True))
    return None, element


def _scans(target: Node, element: Place, resident: Collection[Node]) -> set[tuple[Node, Place]] | None:
    """The scans that an element is made of; None where it is made of anything but those, views and pointwise
    operators."""
    found, seen, left = set[tuple[Node, Place]](), set[tuple[Node, Place]](), [(target, element)]
    while left:
        node, at = left.pop()
        if node in resident or (node, at) in seen:
            continue
        seen.add((node, at))
        if kind_of(node) == "scan":
            found.add((node, at))
        elif kind_of(node) in ("point", "view", "fill"):
            left += [(read.node, read.element) for read in _reads(node, at)]
        else:
            return None
    return found


def _reduced_length(reduction: Node, follow: int) -> int:
    """How many elements a reduction reduces. Raises Cut where another number follows along what it reduces."""
    source = reduction.args[0]
    assert isinstance(source, Node)
    length = math.prod(shape_of(source)[a] for a in axes_of(reduction))
    if follow not in (1, length):
        raise Cut(reduction, "reduces another number of elements than follow it")
    return length


def _turned(target: Node, shape: Sequence[int], order: Sequence[int]) -> Region:
    """A target without reductions: element by element, or in tiles where what it reads lies in another order."""
    inner, last = order[-1] if order else 0, max((i for i, n in enumerate(shape) if n > 1), default=0)
    if inner == last or not shape or shape[inner] == 1:
        return Region(target, grouped([Digit("x", 1, math.prod(shape))], shape), {"x": math.prod(shape)})
    count, others = shape[inner], [1 if i == inner else n for i, n in enumerate(shape)]
    rest = grouped([Digit("x", 1, math.prod(others))], others)
    along = Coordinate((Digit("r", 1, count),))
    place = tuple(along if i == inner else c for i, c in enumerate(rest))
    return Region(target, place, {"x": math.prod(others), "r": count})


def _scanned(target: Node, element: Place) -> Place:
    dim = int(target.args[1]) % len(element)  # type: ignore[arg-type]
    return tuple(ZERO if i == dim else c for i, c in enumerate(element))


def _split(
    digits: Sequence[Digit], sizes: Mapping[str, int], reduction: Node
) -> tuple[dict[Digit, Digit], int, int]:
    """What of a target's dimensions is x (a reduction's result depends on it) and what is r; their sizes."""
    pieces: list[tuple[Digit, str]] = []
    for variable, size in sizes.items():
        mine = sorted((d for d in digits if d.variable == variable), key=lambda d: d.divisor)
        at = 1
        for digit in mine:
            if digit.divisor < at or digit.divisor % at or size % (digit.divisor * digit.size):
                raise Cut(reduction, "its result is read in another order")
            if digit.divisor > at:
                pieces.append((Digit(variable, at, digit.divisor // at), "r"))
            pieces.append((digit, "x"))
            at = digit.divisor * digit.size
        if at < size:
            pieces.append((Digit(variable, at, size // at), "r"))
    order = list(sizes)
    pieces.sort(key=lambda p: (order.index(p[0].variable), -p[0].divisor))
    made: dict[Digit, Digit] = {}
    weight = {"x": 1, "r": 1}
    for digit, variable in reversed(pieces):
        made[digit] = Digit(variable, weight[variable], digit.size)
        weight[variable] *= digit.size
    return made, weight["x"], weight["r"]


def _nested(
    node: Node, element: Place, resident: Collection[Node], length: int, found: dict[tuple[Node, Place], None]
) -> None:
    """All reductions below a node, the innermost first."""
    for reduction, at in _below(node, element, resident, set()):
        if any(d.variable == "r" for c in at for d in c.digits):
            raise Cut(reduction, "its result is needed along what another reduces")
        if (reduction, at) in found:
            continue
        source = reduction.args[0]
        assert isinstance(source, Node)
        _nested(source, _source_place(reduction, at, length, resident), resident, length, found)
        found[reduction, at] = None


_STEPS = 64
"""Of a lane that adds up more values than this, what each addition rounds off is taken along."""


class RegionWriter:
    """Writes one region under one schedule."""

    def __init__(self, region: Region, name: str, resident: Collection[Node], schedule: Schedule) -> None:
        self.region, self.kernel, self.schedule = region, name, schedule
        self.sizes = dict(region.sizes)
        self.x, self.r = self.sizes["x"], self.sizes.get("r", 1)
        self.resident, self.along_r = resident, self._reads_along_r(resident)
        self.held, self.xb, self.rb = self._blocks()
        self.body = Body(resident, {**self.sizes, "r": self.r})

    def _reads_along_r(self, resident: Collection[Node]) -> bool:
        """Whether neighbours in memory are neighbours in r: by the first reduction's source."""
        if self.region.scan or not self.region.reductions:
            return bool(self.region.element) and any(d.variable == "r" for d in self.region.element[-1].digits)
        reduction, _ = self.region.reductions[0]
        source = reduction.args[0]
        assert isinstance(source, Node)
        shape = shape_of(source)
        order = [i for i in memory_order(source, resident) if shape[i] > 1]
        return not order or order[-1] in axes_of(reduction)

    def _blocks(self) -> tuple[bool, int, int]:
        """(r held whole, elements along x, along r)."""
        plan = self.schedule
        # windows are read one by one in straight code: fewer of them in a program compile sooner
        few = plan.block // power_of_two(max(1, windows_of(self.region.target, self.resident) // 4))
        block = max(min(256, plan.block), few)
        if self.r == 1:
            return True, min(block, power_of_two(self.x)), 1
        whole = power_of_two(self.r)
        wide = 1 if self.along_r else min(64, power_of_two(self.x))
        while wide > 8 and self.x // wide < _PROGRAMS:  # a sector of memory, and programs for all of a GPU
            wide //= 2
        rows = min(plan.rows or wide, power_of_two(self.x))
        held = whole * rows <= plan.persistent and not (self.region.scan and whole > block)
        if held:
            more = max(1, block // (whole * rows))
            return True, min(rows * more, power_of_two(self.x)), whole
        return False, rows, max(16, min(whole, block // rows))

    def written(self) -> Written:
        body, name = self.body, self.kernel
        if self.r > 1 and self.held:
            body.add("r = tl.arange(0, RB)[None, :]")
        masks = []
        if self.x % self.xb:
            body.add(f"xm = x < {self.x}")
            masks.append("xm")
        if self.r > 1 and self.r % self.rb:
            masks.append("rm")
            if self.held:
                body.add(f"rm = r < {self.r}")
        body.mask = " ".join(masks)
        self._scan(*self.region.scan) if self.region.scan else self._reductions()
        program = "tl.program_id(0).to(tl.int64)" if self._largest() >= _MANY_ELEMENTS else "tl.program_id(0)"
        along = "[:, None]" if self.r > 1 else ""
        body.lines.insert(0, f"    x = {program} * XB + tl.arange(0, XB){along}")
        arguments = (*body.loads, self.region.target)
        pointers = ", ".join([*body.loads.values(), "out"])
        helper = "@triton.jit\ndef _times(a, b):\n    return a * b\n\n\n" if "_times" in "".join(body.lines) else ""
        source = f"{helper}@triton.jit\ndef {name}({pointers}, XB: tl.constexpr, RB: tl.constexpr):\n"
        source += "\n".join(body.lines) + "\n"
        constants = f"XB={self.xb}, RB={self.rb}"
        within = [self.region.scan] if self.region.scan else self.region.reductions
        reductions = tuple(node for node, _ in within if node is not self.region.target)
        grid = f"({-(-self.x // self.xb)},)"
        return Written(name, source, grid, arguments, constants, self.schedule.warps, 0, reductions)

    def _largest(self) -> int:
        """The most elements that anything the kernel reads or makes reaches over in memory."""
        return max(
            1 + sum((size - 1) * step for size, step in zip(shape_of(n), strides_of(n), strict=True))
            for n in (self.region.target, *self.body.loads)
        )

    def _loop(self) -> None:
        self.body.begin(f"for r0 in range(0, {self.r}, RB):")
        self.body.add("r = r0 + tl.arange(0, RB)[None, :]")
        if "rm" in self.body.mask.split():
            self.body.add(f"rm = r < {self.r}")

    def _all(self) -> str:
        """Which elements count, along all of r: also of a value that is one for a whole row."""
        masks = self.body.mask.split()
        return " & ".join(masks if "rm" in masks else [*masks, "(r >= 0)"])

    def _reductions(self) -> None:
        body, region = self.body, self.region
        for reduction, element in region.reductions:
            self._reduce(reduction, element)
        along = any(d.variable == "r" for c in region.element for d in c.digits)
        looped = along and not self.held
        if looped:
            self._loop()
        self._store(body.value(region.target, region.element))
        if looped:
            body.end()

    def _store(self, text: str) -> None:
        body, region = self.body, self.region
        element = linear(region.element, contiguous(shape_of(region.target)), body.sizes)
        used = {d.variable for c in region.element for d in c.digits}
        mask = body.mask_of(used | ({"x"} if self.x > 1 or "xm" in body.mask.split() else set()))
        dtype = dtype_of(region.target)
        stored = "tl.int8" if dtype is torch.bool else TRITON[dtype]
        scalar = "x - x + " if not used else ""
        pointer = f"out + ({scalar}{element})"
        value = f"({text}).to({stored})"
        body.add(f"tl.store({pointer}, {value}, mask={mask})" if mask else f"tl.store({pointer}, {value})")

    def _reduce(self, reduction: Node, element: Place) -> None:
        source = reduction.args[0]
        assert isinstance(source, Node)
        at = _source_place(reduction, element, self.r, self.resident)
        kind = name_of(reduction)
        if self.held:
            text = self.body.value(source, at)
            made = self._whole(kind, reduction, text)
        else:
            made = self._by_parts(kind, reduction, source, at)
        self._note(reduction, element, made)

    def _note(self, reduction: Node, element: Place, made: tuple[str, ...]) -> None:
        self.body.given[reduction, element] = made[0]
        for user in reduction.users:
            if "getitem" in str(user.target):
                self.body.given[user, element] = made[int(user.args[1])]  # type: ignore[arg-type]

    def _count(self, reduction: Node) -> float:
        correction = reduction.kwargs.get("correction", 1)
        return max(0.0, self.r - float(1 if correction is None else correction))  # type: ignore[arg-type]

    def _whole(self, kind: str, reduction: Node, text: str) -> tuple[str, ...]:
        name, mask = self.body.name, self._all()

        def summed(value: str) -> str:
            return name(f"tl.sum(tl.where({mask}, {value}, 0), 1)[:, None]")

        if kind in ("sum", "mean"):
            total = summed(f"({text}).to(tl.float32)" if _to_float(reduction) else text)
            return (name(f"{total} / {float(self.r)}"),) if kind == "mean" else (total,)
        if kind in ("var", "var_mean"):
            mean = name(f"{summed(text)} / {float(self.r)}")
            spread = summed(f"({text} - {mean}) * ({text} - {mean})")
            return name(f"{spread} / {self._count(reduction)}"), mean
        if kind == "prod":
            return (name(f"tl.reduce(tl.where({mask}, {text}, 1), 1, _times)[:, None]"),)
        if kind == "any":
            return (name(f"tl.max(tl.where({mask}, ({text} != 0).to(tl.int32), 0), 1)[:, None]"),)
        return self._extreme(kind, text, name("r + tl.zeros([XB, RB], tl.int32)"), mask)

    def _extreme(self, kind: str, text: str, index: str, mask: str) -> tuple[str, ...]:
        """The largest or smallest of those that count and its first place; NaN before everything."""
        name = self.body.name
        low, word = ("float('-inf')", "max") if "max" in kind else ("float('inf')", "min")
        ends = "float('inf')" if word == "max" else "float('-inf')"
        plain = name(f"tl.where({mask}, ({text}).to(tl.float32), {low})")
        keyed = name(f"tl.where({plain} != {plain}, {ends}, {plain})")
        best = name(f"tl.{word}({keyed}, 1)[:, None]")
        odd = name(f"tl.max(({plain} != {plain}).to(tl.int32), 1)[:, None]")
        value = name(f"tl.where({odd} > 0, float('nan'), {best})")
        if kind.startswith("a") and not kind.startswith("arg"):
            return (value,)
        element = name(f"tl.min(tl.where(({keyed} == {best}) & ({mask}), {index}, 2147483647), 1)[:, None]")
        return (element,) if kind.startswith("arg") else (value, element)

    def _by_parts(self, kind: str, reduction: Node, source: Node, at: Place) -> tuple[str, ...]:
        """Lane by lane over a loop, then over the lanes."""
        body, name = self.body, self.body.name
        mask = self._all()

        def begun(value: str) -> str:
            return name(f"tl.full([XB, RB], {value}, tl.float32)")

        if kind in ("sum", "mean", "prod", "any"):
            start, join = ("1.0", "*") if kind == "prod" else ("0.0", "+")
            total = begun(start)
            lost = begun("0.0") if kind in ("sum", "mean") and self.r > _STEPS * self.rb else ""
            self._loop()
            text = body.value(source, at)
            text = f"({text} != 0).to(tl.float32)" if kind == "any" else text
            term = f"tl.where({mask}, {text}, {start})"
            if lost:
                self._add_compensated(total, lost, term)
            else:
                body.add(f"{total} = {total} {join} {term}")
            body.end()
            done = f"tl.reduce({total}, 1, _times)" if kind == "prod" else f"tl.sum({total}, 1)"
            made = name(f"{done}[:, None]")
            return (
                (name(f"{made} / {float(self.r)}"),)
                if kind == "mean"
                else (name(f"{made} > 0") if kind == "any" else made,)
            )
        if kind in ("var", "var_mean"):
            count, mean, spread = begun("0.0"), begun("0.0"), begun("0.0")
            self._loop()
            text = body.value(source, at)
            body.add(f"{count} += tl.where({mask}, 1.0, 0.0)")
            apart = name(f"tl.where({mask}, {text} - {mean}, 0.0)")
            body.add(f"{mean} += {apart} / tl.where({count} > 0, {count}, 1.0)")
            body.add(f"{spread} += tl.where({mask}, {apart} * ({text} - {mean}), 0.0)")
            body.end()
            whole = name(f"tl.sum({mean} * {count}, 1)[:, None] / {float(self.r)}")
            total = name(f"tl.sum({spread} + {count} * ({mean} - {whole}) * ({mean} - {whole}), 1)[:, None]")
            return name(f"{total} / {self._count(reduction)}"), whole
        return self._extreme_by_parts(kind, source, at, mask)

    def _add_compensated(self, total: str, lost: str, term: str) -> None:
        """Kahan's sum. What overflows has nothing to take along: infinity less itself is NaN."""
        body, name = self.body, self.body.name
        more = name(f"{term} - {lost}")
        made = name(f"{total} + {more}")
        off = name(f"({made} - {total}) - {more}")
        body.add(f"{lost} = tl.where(tl.abs({off}) < float('inf'), {off}, 0.0)")
        body.add(f"{total} = {made}")

    def _extreme_by_parts(self, kind: str, source: Node, at: Place, mask: str) -> tuple[str, ...]:
        body, name = self.body, self.body.name
        word, low = (">", "float('-inf')") if "max" in kind else ("<", "float('inf')")
        best = name(f"tl.full([XB, RB], {low}, tl.float32)")
        where = name("tl.full([XB, RB], 2147483647, tl.int32)")
        self._loop()
        text = name(f"tl.where({mask}, ({body.value(source, at)}).to(tl.float32), {low})")
        body.add(f"better = ({text} {word} {best}) | (({text} != {text}) & ({best} == {best})) | "
                 f"(({where} == 2147483647) & ({mask}))")  # fmt: skip
        body.add(f"{where} = tl.where(better, r, {where})")
        body.add(f"{best} = tl.where(better, {text}, {best})")
        body.end()
        return self._extreme(kind, best, where, f"({where} != 2147483647)")  # no variable outlives its loop

    def _scan(self, scan: Node, at: Place) -> None:
        body, target = self.body, self.region.target
        source = scan.args[0]
        assert isinstance(source, Node)
        product = name_of(scan) == "cumprod"
        start = "1.0" if product else "0.0"
        carry = body.name(f"tl.full([XB, 1], {start}, tl.float32)")
        if not self.held:
            self._loop()
        text = body.value(source, at)
        part = body.name(f"tl.where({self._all()}, ({text}).to(tl.float32), {start})")
        made = body.name(f"{carry} {'*' if product else '+'} tl.{name_of(scan)}({part}, 1)")
        body.given[scan, at] = made
        self._store(body.value(target, self.region.element))
        whole = f"tl.reduce({part}, 1, _times)" if product else f"tl.sum({part}, 1)"
        body.add(f"{carry} = {carry} {'*' if product else '+'} {whole}[:, None]")
        if not self.held:
            body.end()


def _to_float(reduction: Node) -> bool:
    return dtype_of(reduction).is_floating_point and not dtype_of(reduction.args[0]).is_floating_point  # type: ignore[arg-type]
