"""Where memory errors lie: cells of one GPU that belong together, and GPUs of one node or rack that err together.

A bad cell, row, column and bank are different faults: a cell or row is remapped and done with, a bank is not. And
GPUs that begin to err at the same time in one place have one cause (power, cooling, a driver), which is not their
memory: a chance of independent GPUs is told by the binomial tail.

Grouping is single linkage on a line: DBSCAN with min_samples = 1 (Ester et al., KDD 1996) in one dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nightshift.collectors.frame import Floats

NEIGHBOUR_ROWS = 8
"""Rows this close in number are called one group: neighbours share drivers and sense amplifiers."""


@dataclass(frozen=True, slots=True)
class MemoryCell:
    """An address as a log line gave it; None where it did not. Numbers are parsed where they are numbers."""

    bank: str | None
    row: str | None
    column: str | None = None


@dataclass(frozen=True, slots=True)
class CellPattern:
    """What the cells of one GPU make up."""

    name: str
    """nothing named | one cell | one row | one column | one bank | several banks | rows, bank not named"""
    rows: int
    banks: int
    rows_in_bank: int
    """The most distinct rows of one named bank."""
    row_groups: int
    """Groups of neighbouring rows in that bank."""

    def facts(self) -> dict[str, float | str]:
        return {
            "cells": self.name,
            "rows_named": float(self.rows),
            "rows_in_bank": float(self.rows_in_bank),
            "row_groups": float(self.row_groups),
        }


def pattern(cells: Sequence[MemoryCell]) -> CellPattern:
    """The shape of the distinct cells of one GPU.

    >>> pattern([MemoryCell("3", "100"), MemoryCell("3", "101"), MemoryCell("3", "9000")])
    CellPattern(name='one bank', rows=3, banks=1, rows_in_bank=3, row_groups=2)
    """
    rows = {(c.bank, c.row) for c in cells if c.row is not None}
    banks = {c.bank for c in cells if c.bank is not None}
    if not rows and not banks:
        return CellPattern("nothing named", 0, 0, 0, 0)
    by_bank = {bank: {r for b, r in rows if b == bank} for bank in banks}
    worst = max(by_bank.values(), key=len, default=set())
    numbers = np.array(sorted(n for n in map(_number, worst) if n is not None), dtype=float)
    grouped = int(groups(numbers, NEIGHBOUR_ROWS).max(initial=-1)) + 1
    if not banks:
        return CellPattern("rows, bank not named" if len(rows) > 1 else "one row", len(rows), 0, 0, 0)
    columns = {c.column for c in cells if c.column is not None}
    if len(banks) > 1:
        name = "several banks"
    elif len(rows) > 1:
        name = "one column" if len(columns) == 1 else "one bank"
    else:
        name = "one row" if len(columns) != 1 else "one cell"
    return CellPattern(name, len(rows), len(banks), len(worst), grouped)


def groups(values: Floats, gap: float) -> NDArray[np.int64]:
    """[n] the group of each value: 0, 1, … in ascending order; neighbours at most `gap` apart are of one group.

    >>> groups(np.array([9.0, 1.0, 2.0]), gap=3.0).tolist()
    [1, 0, 0]
    """
    order = np.argsort(values, kind="stable")
    steps = np.diff(values[order], prepend=values[order][:1])
    found = np.empty(len(values), dtype=np.int64)
    found[order] = np.cumsum(steps > gap)
    return found


def together(erring: int, of: int, chance: float) -> float:
    """P(at least `erring` of `of` independent GPUs err within a window in which one does with this chance).

    >>> together(3, 8, 0.001) < 1e-6  # three of eight by chance
    True
    """
    from scipy.special import bdtrc  # slow to load, and every command loads this module

    return float(bdtrc(erring - 1, of, chance)) if 0 < erring <= of else 1.0


def over_nodes(erring: int, nodes: int, gpus: int, chance: float) -> float:
    """P(GPUs err on at least `erring` of a rack's `nodes` by chance): one node's trouble is not the rack's."""
    return together(erring, nodes, 1.0 - (1.0 - chance) ** (gpus / nodes))


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text, 0)
    except ValueError:
        return None
