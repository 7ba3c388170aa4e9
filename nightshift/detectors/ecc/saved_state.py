"""The ECC detector's state as JSON: what each GPU's log said of cells and of reading, and states of version 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nightshift.collectors.subject import Subject
from nightshift.detectors.base import Fault
from nightshift.detectors.ecc.clusters import MemoryCell
from nightshift.detectors.ecc.hazard import ErrorHistory, Moment


def told_by_lines(
    cells: Mapping[Subject, set[MemoryCell]], histories: Mapping[Subject, ErrorHistory]
) -> dict[str, Any]:
    """Parts of a snapshot's meta."""
    return {
        "cells": {str(s): sorted(map(_cell_json, found)) for s, found in cells.items()},
        "history": {str(s): [[m.t_s, m.consumed] for m in h.moments] for s, h in histories.items()},
    }


def cells_of(meta: Mapping[str, Any]) -> dict[Subject, set[MemoryCell]]:
    return {
        Subject.parse(name): {MemoryCell(*(c or None for c in cell)) for cell in cells}
        for name, cells in meta["cells"].items()
    }


def histories_of(meta: Mapping[str, Any]) -> dict[Subject, ErrorHistory]:
    return {
        Subject.parse(name): ErrorHistory(Moment(float(t_s), bool(consumed)) for t_s, consumed in moments)
        for name, moments in meta["history"].items()
    }


def from_1(meta: dict[str, Any], arrays: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Version 1's state as this version's: its test starts anew."""
    twins = [
        {**e, "fault": Fault.HBM_DEGRADED.value} for e in meta["episodes"] if e["fault"] == Fault.HBM_IMMINENT.value
    ]
    last = [[Fault.HBM_DEGRADED.value, s, t] for fault, s, t in meta["last"] if fault == Fault.HBM_IMMINENT.value]
    degraded = {e["subject"] for e in meta["episodes"] if e["fault"] == Fault.HBM_DEGRADED.value}
    twins = [e for e in twins if e["subject"] not in degraded]
    cells = {
        name: [[bank if bank != "?" else "", row, ""] for bank, rows in banks.items() for row in rows]
        for name, banks in meta["rows"].items()
    }
    test = ("table.cusum", "table.active", "table.active_bins", "table.cusum_since_s")
    kept = {name: array for name, array in arrays.items() if name not in test}
    known = {**meta, "bin": -1, "cells": cells, "history": {}, "logged": [], "together": {}}
    return {**known, "episodes": [*meta["episodes"], *twins], "last": [*last, *meta["last"]]}, kept


def _cell_json(cell: MemoryCell) -> list[str]:
    return [cell.bank or "", cell.row or "", cell.column or ""]
