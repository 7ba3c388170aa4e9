"""Fewer cells of a matrix, where a second matrix of the same cells has shown each of them already."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

Cell = TypeVar("Cell")


def covering(cells: Iterable[Cell], *views: Callable[[Cell], Hashable]) -> list[Cell]:
    """The cells that show something for the first time: together they have every value of every view.

    >>> covering([("a", 1), ("a", 2), ("b", 1), ("b", 2)], lambda cell: cell[0], lambda cell: cell[1])
    [('a', 1), ('a', 2), ('b', 1)]
    """
    seen: set[tuple[int, Hashable]] = set()
    kept = []
    for cell in cells:
        shows = {(number, view(cell)) for number, view in enumerate(views)}
        if not shows <= seen:
            kept.append(cell)
            seen |= shows
    return kept
