"""A waterfall as SVG, drawn on the server like `line_chart`: a whole, and what goes off it, bar by bar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH = 720
_LABEL, _VALUE, _ROW, _BAR = 200, 96, 24, 15


@dataclass(frozen=True, slots=True)
class Bar:
    """One row. `kind` is a class of the stylesheet: `total` begins at the left again, the others go off it."""

    label: str
    value: float
    words: str
    kind: str = "lost"
    note: str = ""


def waterfall(title: str, bars: Sequence[Bar]) -> Markup:
    """The chart as an SVG element; the first bar is the whole. A sentence where that is nothing.

    >>> text = waterfall("Wall", [Bar("Wall", 10.0, "10 GPU-h", "total"), Bar("Free", 4.0, "4 GPU-h")])
    >>> "Free: 4 GPU-h" in text, 'width="169.6"' in text
    (True, True)
    """
    whole = bars[0].value if bars else 0.0
    if not whole > 0:
        return Markup('<p class="quiet">{}: nothing was booked in this time.</p>').format(title)
    scale = (WIDTH - _LABEL - _VALUE) / whole
    parts, left = [], whole
    for row, bar in enumerate(bars):
        if bar.kind == "total":
            left = bar.value
        start = 0.0 if bar.kind == "total" else max(0.0, left - bar.value)
        left = left if bar.kind == "total" else left - bar.value
        y = row * _ROW
        x, width = _LABEL + start * scale, max(bar.value * scale, 0.5 if bar.value > 0 else 0.0)
        words = f"{bar.label}: {bar.words}{f'. {bar.note}' if bar.note else ''}"
        parts.append(
            f"<g><title>{escape(words)}</title>"
            f'<text class="axis" x="{_LABEL - 8}" y="{y + 12}" text-anchor="end">{escape(bar.label)}</text>'
            f'<rect class="bar {escape(bar.kind)}" x="{x:.1f}" y="{y + 1}" width="{width:.1f}" height="{_BAR}"/>'
            f'<text class="axis" x="{WIDTH - _VALUE + 8}" y="{y + 12}">{escape(bar.words)}</text></g>'
        )
    text = f"{title}: " + "; ".join(f"{bar.label} {bar.words}" for bar in bars)
    head = f'<svg class="chart waterfall" viewBox="0 0 {WIDTH} {len(bars) * _ROW}" role="img"'
    return Markup(f'{head} aria-label="{escape(text)}">{"".join(parts)}</svg>')
