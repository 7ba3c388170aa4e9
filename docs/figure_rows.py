"""The form of a table of figures: rows that name a place in a benchmark's result and say how it is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Show = Callable[[Any], str]


@dataclass(frozen=True)
class Row:
    """One figure: what it is, where it stands in the file (path of keys), how it is written, what was aimed at."""

    label: str
    path: str
    show: Show
    goal: str = ""


@dataclass(frozen=True)
class Table:
    title: str
    file: str
    command: str
    rows: tuple[Row, ...]
    note: str = ""
    more: Callable[[Any], list[str]] | None = None
    """Lines of a second table, of the whole file."""


def number(unit: str = "", scale: float = 1.0, digits: int = 2) -> Show:
    def show(value: Any) -> str:
        return "–" if value is None else f"{value * scale:,.{digits}f}{unit}"

    return show


percent = number(" %", 100.0, 1)
count = number("", 1.0, 0)
