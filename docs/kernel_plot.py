"""The kernel table as a picture: our time beside the best peer's, row by row, losses like wins."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

TABLE = Path(__file__).resolve().parents[1] / "benchmarks" / "results" / "kernels_table.json"
_LEFT, _WIDTH, _RIGHT, _LINE, _TOP = 480, 430, 130, 19, 46
_LOW, _HIGH = 0.9, 3.4
_COLOURS = {"faster": "#2a9d5c", "inconclusive": "#8a8f98", "slower": "#c8553d"}


def kernels_svg() -> str:
    """A bar for each judged row: best peer's time over ours on a log axis; its interval is the thin line."""
    record = json.loads(TABLE.read_text())
    rows = [r for r in record["rows"] if r.get("certified") and r["speedup"]]
    rows.sort(key=lambda r: -r["told"])
    height = _TOP + _LINE * len(rows) + 12
    title = f"Best peer's time over ours, {record['environment']['gpu']} ({len(rows)} rows, 99 % intervals)"
    size = f'width="{_LEFT + _WIDTH + _RIGHT}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="10" y="18" font-size="14">{escape(title)}</text>',
    ]
    for value in (1.0, 1.25, 1.5, 2.0, 3.0):
        x = _x(value)
        parts.append(f'<line x1="{x}" y1="{_TOP - 6}" x2="{x}" y2="{height - 8}" stroke="#d0d4da"/>')
        parts.append(f'<text x="{x}" y="{_TOP - 10}" text-anchor="middle" fill="#555">{value:g}×</text>')
    for number, row in enumerate(rows):
        parts += _bar(row, _TOP + _LINE * number)
    return "\n".join([*parts, "</svg>", ""])


def _bar(row: dict[str, Any], y: int) -> list[str]:
    point, (low, _, high) = row["told"], row["speedup"]
    start, end = sorted((_x(1.0), _x(point)))
    label = f"{row['problem']} {row['case']}"
    length, colour = max(1.0, round(end - start, 1)), _COLOURS[row["status"]]
    middle = y + 6
    return [
        f'<text x="{_LEFT - 8}" y="{y + 10}" text-anchor="end">{escape(label)}</text>',
        f'<rect x="{start}" y="{y}" width="{length}" height="12" fill="{colour}"/>',
        f'<line x1="{_x(low)}" y1="{middle}" x2="{_x(high)}" y2="{middle}" stroke="#222"/>',
        f'<text x="{max(end, _x(high)) + 6}" y="{y + 10}">{point:.2f} ({escape(row["best_peer"])})</text>',
    ]


def _x(value: float) -> float:
    share = math.log(min(max(value, _LOW), _HIGH) / _LOW) / math.log(_HIGH / _LOW)
    return round(_LEFT + _WIDTH * share, 1)
