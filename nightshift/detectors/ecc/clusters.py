"""Where memory errors lie: cells of one GPU that belong together, and GPUs of one node or rack that err together.

A bad cell, row, column and bank are different faults: a cell or row is remapped and done with, a bank is not. And
GPUs that begin to err at the same time in one place have one cause (power, cooling, a driver), which is not their
memory: a chance of independent GPUs is told by the binomial tail.

Grouping is single linkage on a line: DBSCAN with min_samples = 1 (Ester et al., KDD 1996) in one dimension.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nightshift.collectors.frame import Floats
from nightshift.collectors.kernel_log.event import KernelEvent
from nightshift.detectors.tails import binomial_tail

DRAM, SRAM, UNKNOWN = "DRAM", "SRAM", "unit unknown"
_CODE_UNIT = {63: DRAM, 64: DRAM, 171: DRAM, 172: SRAM}
"""Rows and pages are taken out of DRAM alone; 171 and 172 are NVIDIA's own word on the unit of an Xid 48."""
# Lines of these name the place. Xid 94 and 95 name the engine that read the bad data ("Contained: SM"), also where
# the data lay in DRAM: their words say nothing of the unit.
_PLACED = frozenset({48, 140, 171, 172})
_DRAM_WORDS = re.compile(r"\b(?:framebuffer|DRAM|HBM|FBPA)\b")
_SRAM_WORDS = re.compile(
    r"\bin (?:the )?(?P<at>SM|L1|L2|LTC|GPC|TEX|GSP-RISCV|PMU)\b|(?P<of>[A-Z][\w-]*)[\w -]*, Uncorrectable SRAM"
)

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
    columns = {c.column for c in cells if c.column is not None}
    name = _shape(len(rows), len(banks), len(columns))
    if not banks:
        # rows of a bank that no line names may lie in as many banks as there are rows
        return CellPattern(name, len(rows), 0, 0, 0)
    worst = max(({r for b, r in rows if b == bank} for bank in banks), key=len)
    numbers = np.array(sorted(n for n in map(_number, worst) if n is not None), dtype=float)
    grouped = int(groups(numbers, NEIGHBOUR_ROWS).max(initial=-1)) + 1
    return CellPattern(name, len(rows), len(banks), len(worst), grouped)


def _shape(rows: int, banks: int, columns: int) -> str:
    if not banks:
        return "nothing named" if not rows else "one row" if rows == 1 else "rows, bank not named"
    if banks > 1:
        return "several banks"
    if rows > 1:
        return "one column" if columns == 1 else "one bank"
    return "one cell" if columns == 1 else "one row"


def units_of(events: Iterable[KernelEvent]) -> set[str]:
    """The units of memory that lines name: DRAM, SRAM, or SRAM with its part; empty where none does.

    >>> from nightshift.detectors.contract.testing import START_S, tick
    >>> def unit(said: str) -> list[str]:
    ...     return sorted(units_of(tick(START_S, kernel=[f"NVRM: Xid (PCI:0000:9b:00): {said}"]).events))
    >>> unit("48, A double bit error (DBE) has been detected on GPU in the framebuffer at partition 4")
    ['DRAM']
    >>> unit("172, SM ICACHE, Uncorrectable SRAM error in GPC 7 TPC 6"), unit("94, pid=1, Contained: SM (0x1)")
    (['SRAM (SM)'], [])
    """
    found = set()
    for event in events:
        text = event.record.text if event.code in _PLACED else ""
        part = _SRAM_WORDS.search(text)
        if _DRAM_WORDS.search(text) or event.attributes.get("row") or event.attributes.get("bank"):
            found.add(DRAM)  # an address of rows and banks is one in DRAM
        elif part is not None:
            found.add(f"{SRAM} ({part['at'] or part['of']})")
        elif event.code in _CODE_UNIT:
            found.add(_CODE_UNIT[event.code])
    return found


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
    return binomial_tail(erring, of, chance) if 0 < erring <= of else 1.0


def over_nodes(erring: int, nodes: int, gpus: int, chance: float) -> float:
    """P(GPUs err on at least `erring` of a rack's `nodes` by chance): one node's trouble is not the rack's."""
    return together(erring, nodes, 1.0 - (1.0 - chance) ** (gpus / nodes))


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text, 0)
    except ValueError:
        return None
