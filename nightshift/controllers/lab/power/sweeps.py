"""Measured sweeps of power limits: curves out of a CSV, and the best limit of a curve in hindsight."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from pathlib import Path

import numpy as np

from nightshift.collectors.base import Permanent
from nightshift.controllers.power.curves import Curve, monotone

COLUMNS = ("dataset", "network", "batch_size", "optimizer", "power_limit", "time_per_epoch", "average_power")


def read_sweeps(path: Path, gpu: str = "") -> list[Curve]:
    """Curves of a CSV with `COLUMNS`; `gpu`: its name, from the file's where none is given.

    A workload with fewer than four limits makes no curve. Raises Permanent naming the file, line and column.
    """
    rows: dict[tuple[str, ...], dict[float, tuple[float, float]]] = defaultdict(dict)
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            lacking = set(COLUMNS) - set(reader.fieldnames or ())
            if lacking:
                raise Permanent(f"{path}: line 1: no column {', '.join(sorted(lacking))}")
            for row in reader:
                values = []
                for column in COLUMNS[4:]:
                    try:
                        value = float(row[column])
                    except (TypeError, ValueError):
                        value = math.nan
                    if not (math.isfinite(value) and value > 0):
                        raise Permanent(
                            f"{path}: line {reader.line_num}: {column}: {row[column]!r} is no positive number"
                        )
                    values.append(value)
                rows[tuple(str(row[c]) for c in COLUMNS[:4])][values[0]] = (values[1], values[2])
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise Permanent(f"{path}: {error}") from error
    name = gpu or path.stem.removeprefix("summary_power_")
    curves = []
    for key, points in rows.items():
        if len(points) < 4:
            continue
        limit_w = np.array(sorted(points))
        time, draw_w = np.array([points[w] for w in limit_w]).T
        curves.append(Curve(name, "/".join(key), limit_w, *monotone(limit_w, time, draw_w)))
    if not curves:
        raise Permanent(f"{path}: no workload has four limits")
    return curves


def oracle_grid(curve: Curve, budget: float, step_w: float = 25.0) -> float:
    """The limit (W) on the grid of `step_w` (and the highest) of least energy per work within the budget."""
    grid = np.arange(np.ceil(curve.min_w / step_w) * step_w, curve.max_w, step_w)
    grid = np.unique(np.append(grid, curve.max_w))
    fits = grid[curve.slowdown(grid) <= budget + 1e-12]
    energy = curve.draw(fits) * (1.0 + curve.slowdown(fits))
    return float(fits[int(np.argmin(energy))])
