"""The picture and the table of floors and rooms, made from the folders and from the contracts of import-linter.

What a reader sees is what `.importlinter` enforces: nothing about the layout is written down a second time.
"""

from __future__ import annotations

import ast
import configparser
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WIDTH, LEFT, GAP, BOX, LETTER = 940, 40, 8, 26, 7.6


def layers(contract: str) -> list[list[str]]:
    """Layers from top to bottom; siblings share one."""
    config = configparser.ConfigParser()
    config.read(ROOT / ".importlinter")
    lines = config[f"importlinter:contract:{contract}"]["layers"].split("\n")
    return [[name.strip() for name in line.split("|")] for line in lines if line.strip()]


def rooms(floor: str) -> list[list[str]]:
    """A floor's rooms: in the order of its own contract where it has one, else side by side."""
    folder = ROOT / floor.replace(".", "/")
    found = sorted(path.parent.name for path in folder.glob("*/__init__.py"))
    if floor != "nightshift.agent":
        return [found]
    ordered = layers("agent")
    listed = {name for row in ordered for name in row}
    return [*ordered, *([name] for name in found if name not in listed)]


def docstring(room: Path) -> str:
    """The first sentence that a package says of itself."""
    text = ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or ""
    return " ".join(text.split("\n\n")[0].split())


def rooms_table() -> str:
    lines = ["| room | what is in it |", "|---|---|"]
    for floor in (name for row in layers("floors") for name in row):
        folder = ROOT / floor.replace(".", "/")
        lines.append(f"| **`{floor.replace('.', '/')}/`** | **{docstring(folder)}** |")
        for room in sorted(path.parent for path in folder.glob("*/__init__.py")):
            lines.append(f"| `{room.relative_to(ROOT)}/` | {docstring(room)} |")
    return "\n".join(lines)


def floors_svg() -> str:
    """A band for each floor, a box for each room. An import may only point down."""
    parts: list[str] = []
    top = 34
    for row in layers("floors"):
        width = (WIDTH - LEFT - GAP * len(row)) // len(row)
        bands = [_band(floor, LEFT + (width + GAP) * number, top, width) for number, floor in enumerate(row)]
        height = max(bottom for _, bottom in bands) - top
        for number, (drawn, _) in enumerate(bands):
            x = LEFT + (width + GAP) * number
            parts += [_box(x, top, width, height, "#f3f5f8"), *drawn]
        top += height + GAP
    arrow = f"M18 40 V{top - 20} M12 {top - 28} L18 {top - 18} L24 {top - 28}"
    size = f'width="{WIDTH}" height="{top + 4}"'
    title = "Imports point down; inside nightshift.agent, to the right and down"
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="10" y="20" font-size="14">{title}</text>',
        f'<path d="{arrow}" stroke="#5b6675" fill="none" stroke-width="2"/>',
    ]
    return "\n".join([*head, *parts, "</svg>", ""])


def _band(floor: str, left: int, top: int, width: int) -> tuple[list[str], int]:
    """A floor's title and boxes, and where it ends. A contract's layer begins a new row where it has siblings."""
    parts = [f'<text x="{left + 10}" y="{top + 18}" font-weight="bold">{escape(floor)}</text>']
    x, y = left + 10, top + 28
    for layer in rooms(floor):
        size = sum(_width(name) + GAP for name in layer)
        if x > left + 10 and x + size > left + width - 10:
            x, y = left + 10, y + BOX + GAP
        for name in layer:
            if x > left + 10 and x + _width(name) > left + width - 10:
                x, y = left + 10, y + BOX + GAP
            parts.append(_box(x, y, _width(name), BOX, "#ffffff"))
            parts.append(f'<text x="{x + 8}" y="{y + 17}">{escape(name)}</text>')
            x += _width(name) + GAP
    return parts, y + BOX + 10


def _box(x: int, y: int, width: int, height: int, fill: str) -> str:
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5" fill="{fill}" stroke="#a9b3c0"/>'


def _width(name: str) -> int:
    return round(LETTER * len(name)) + 16
