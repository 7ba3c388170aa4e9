"""The page of measured figures, from the committed results of the benchmarks: no figure is written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import figures_control
import figures_detect
import figures_fleet
import figures_kernels
import figures_people
from figures_power import CLOCKS, MEMORY, POWER, RACK, START

TABLES = (
    *figures_detect.TABLES,
    *figures_people.TABLES,
    *figures_fleet.TABLES,
    *figures_kernels.TABLES,
    *figures_control.TABLES,
    POWER,
    MEMORY,
    CLOCKS,
    START,
    RACK,
)
RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results"
_ABOUT = (
    "Measured by the benchmarks and written from their committed results (`benchmarks/results/`), which name the "
    "environment. A goal that is missed stands here like one that is met. `make setup-benchmarks` installs peers."
)


def look_up(data: Any, path: str) -> Any:
    """The value at a `/`-separated path of keys and indices; the whole where it is empty."""
    for key in path.split("/") if path else ():
        data = data[int(key)] if isinstance(data, list) else data[key]
    return data


def figures_page() -> str:
    lines = [
        "# Figures",
        "",
        _ABOUT,
    ]
    for table in TABLES:
        data = json.loads((RESULTS / f"{table.file}.json").read_text(encoding="utf-8"))
        lines += ["", f"## {table.title}", "", f"`{table.command}` → `{table.file}.json`", ""]
        lines += ["| | measured | goal |", "|---|---|---|"]
        for row in table.rows:
            value = look_up(data, row.path)
            lines.append(f"| {row.label} | {'not measured' if value is None else row.show(value)} | {row.goal} |")
        lines += ["", table.note] if table.note else []
        lines += ["", *table.more(data)] if table.more else []
    return "\n".join(lines) + "\n"
