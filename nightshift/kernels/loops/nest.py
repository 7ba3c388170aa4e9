"""A loop nest in C as data: its arrays, and each statement with its loops, reads and writes.

The C read here is small: `#define NAME number`, `static double` arrays, and one function `void kernel(void)` of
counted `for` loops with bounds that are affine in outer loops, around assignments (`=`, `+=`, `-=`, `*=`) to array
elements with affine places. What is not of that kind is refused with its line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

NESTS = Path(__file__).parent / "nests"
_TOKEN = re.compile(r"\s*(?:for\s*\([^)]*\)|[{}]|[^;{}\s][^;{}]*;)")
_FOR = re.compile(r"for\s*\(\s*int\s+(\w+)\s*=\s*([^;]+);\s*(\w+)\s*(<=?)\s*([^;]+);\s*(\w+)\+\+\s*\)")
_ASSIGN = re.compile(r"(\w+)((?:\[[^\]]+\])+)\s*([-+*]?=)(?!=)\s*(.+);$", re.DOTALL)
_ACCESS = re.compile(r"\b([A-Za-z_]\w*)((?:\[[^\]]+\])+)")
_NAME = re.compile(r"[A-Za-z_]\w*")
_AFFINE = re.compile(r"[\w\s+*-]+")


class NestError(ValueError):
    """A nest is outside the C that is read here, or no such nest exists. The message names the place."""


@dataclass(frozen=True)
class Loop:
    """low ≤ name ≤ high, in isl's notation."""

    name: str
    low: str
    high: str


@dataclass(frozen=True)
class Statement:
    """`text` inside `loops`. order: its place among its siblings at each depth, one number more than loops.
    reads, writes: array and places, in isl's notation."""

    name: str
    text: str
    loops: tuple[Loop, ...]
    order: tuple[int, ...]
    reads: tuple[tuple[str, str], ...]
    writes: tuple[tuple[str, str], ...]

    @property
    def iterators(self) -> tuple[str, ...]:
        return tuple(loop.name for loop in self.loops)

    @property
    def tuple_text(self) -> str:
        return f"{self.name}[{', '.join(self.iterators)}]"

    @property
    def domain(self) -> str:
        bounds = " and ".join(f"{loop.low} <= {loop.name} <= {loop.high}" for loop in self.loops)
        return f"{self.tuple_text} : {bounds or 'true'}"


@dataclass(frozen=True)
class LoopNest:
    """source: the C text. sizes: the values of its macros. arrays: name → lengths."""

    name: str
    source: str
    sizes: tuple[tuple[str, int], ...]
    arrays: tuple[tuple[str, tuple[int, ...]], ...]
    statements: tuple[Statement, ...]

    @property
    def declarations(self) -> str:
        return self.source[: self.source.index("void kernel")]


def _clean(text: str) -> str:
    """Without comments; lines keep their numbers."""
    return re.sub(r"/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.DOTALL)


class _Reader:
    """The body of one function, token by token."""

    def __init__(self, name: str, text: str, start: int, sizes: dict[str, int], arrays: dict[str, tuple[int, ...]]):
        self.name, self.text, self.sizes, self.arrays = name, text, sizes, arrays
        self.tokens = list(_TOKEN.finditer(text, start))
        self.at = 0
        self.statements: list[Statement] = []

    def fail(self, reason: str) -> NestError:
        token = self.tokens[min(self.at, len(self.tokens) - 1)] if self.tokens else None
        place = token.end() - len(token[0].lstrip()) if token else 0
        line = self.text.count("\n", 0, place + 1) + 1
        return NestError(f"{self.name}.c:{line}: {reason}")

    def peek(self) -> str:
        if self.at >= len(self.tokens):
            raise self.fail("the function has no end")
        return self.tokens[self.at][0].strip()

    def affine(self, text: str, outer: tuple[str, ...]) -> str:
        """An index or a bound, with macros replaced. Raises NestError where it is not affine."""
        names = set(_NAME.findall(text)) - set(self.sizes)
        products = re.findall(r"\w+\s*\*\s*\w+", text)
        linear = all(
            any(side.strip().isdigit() or side.strip() in self.sizes for side in p.split("*")) for p in products
        )
        if not _AFFINE.fullmatch(text) or not names <= set(outer) or not linear:
            raise self.fail(f"{text.strip()!r} is not affine in {', '.join(outer) or 'no loop'}")
        return _NAME.sub(lambda m: str(self.sizes.get(m[0], m[0])), text).strip()

    def items(self, loops: tuple[Loop, ...], order: tuple[int, ...]) -> None:
        """What stands in one loop: a block, or a single item."""
        if self.peek() != "{":
            self.item(loops, (*order, 0))
            return
        self.at += 1
        number = 0
        while self.peek() != "}":
            self.item(loops, (*order, number))
            number += 1
        self.at += 1

    def item(self, loops: tuple[Loop, ...], order: tuple[int, ...]) -> None:
        token = self.peek()
        outer = tuple(loop.name for loop in loops)
        if match := _FOR.fullmatch(token):
            name, low, tested, sign, high, stepped = match.groups()
            if len({name, tested, stepped}) > 1 or name in outer or name in self.arrays:
                raise self.fail(f"{token!r}: one new counter is expected")
            top = self.affine(high, outer)
            loop = Loop(name, self.affine(low, outer), f"({top})" + (" - 1" if sign == "<" else ""))
            self.at += 1
            self.items((*loops, loop), order)
        elif match := _ASSIGN.fullmatch(token):
            self.statements.append(self.statement(token, match, loops, order))
            self.at += 1
        else:
            raise self.fail(f"{token[:60]!r} is neither a counted loop nor an assignment to an array")

    def statement(
        self, token: str, match: re.Match[str], loops: tuple[Loop, ...], order: tuple[int, ...]
    ) -> Statement:
        outer = tuple(loop.name for loop in loops)
        array, places, sign, value = match.groups()
        written = self.access(array, places, outer)
        reads = [self.access(m[1], m[2], outer) for m in _ACCESS.finditer(value)]
        rest = _ACCESS.sub("", value)
        strange = set(_NAME.findall(rest)) - set(self.sizes) - set(outer)
        if strange:
            raise self.fail(f"{min(strange)!r} is no array element, loop or size")
        if sign != "=":
            reads.append(written)
        return Statement(f"S{len(self.statements)}", token, loops, order, tuple(reads), (written,))

    def access(self, array: str, indices: str, outer: tuple[str, ...]) -> tuple[str, str]:
        inside = re.findall(r"\[([^\]]+)\]", indices)
        if len(self.arrays.get(array, ())) != len(inside):
            raise self.fail(f"{array}{indices}: no array with so many indices")
        return array, ", ".join(self.affine(text, outer) for text in inside)


def parse(name: str, source: str, sizes: dict[str, int] | None = None) -> LoopNest:
    """A nest from its C text. sizes: other values for its macros. Raises NestError that names the line."""
    for macro, value in (sizes or {}).items():
        source = re.sub(rf"(#define {macro}) \d+", rf"\1 {value}", source)
    text = _clean(source)
    defined = {m[1]: int(m[2]) for m in re.finditer(r"#define (\w+) (\d+)", text)}
    start = text.find("void kernel(void)")
    if start < 0:
        raise NestError(f"{name}.c: no function `void kernel(void)`")
    arrays: dict[str, tuple[int, ...]] = {}
    for match in re.finditer(r"static double ([^;]+);", text[:start]):
        for array, places in _ACCESS.findall(match[1]):
            lengths = re.findall(r"\[([^\]]+)\]", places)
            arrays[array] = tuple(defined[x] if x in defined else int(x) for x in lengths)
    reader = _Reader(name, text, start + len("void kernel(void)"), defined, arrays)
    reader.items((), ())
    if not reader.statements or reader.at != len(reader.tokens):
        raise reader.fail("one function with statements is expected, and nothing after it")
    return LoopNest(name, source, tuple(defined.items()), tuple(arrays.items()), tuple(reader.statements))


@cache
def names() -> tuple[str, ...]:
    """Of the nests that come with Nightshift."""
    return tuple(sorted(path.stem for path in NESTS.glob("*.c")))


def named(name: str) -> LoopNest:
    """One of `names()`, or a C file. Raises NestError."""
    path = NESTS / f"{name}.c" if name in names() else Path(name)
    if path.suffix != ".c" or not path.is_file():
        raise NestError(f"{name!r} is neither a C file nor one of {', '.join(names())}")
    try:
        return parse(path.stem, path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise NestError(f"{path}: {error}") from error
