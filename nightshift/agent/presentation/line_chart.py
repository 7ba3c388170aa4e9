"""Line charts as SVG, drawn on the server: they need no script, print, scale, and carry a text for screen readers.
`plot` gives the same chart to the console's script, which draws it with uPlot to zoom into.

No inline style is used, so the strict Content-Security-Policy holds; colours are classes of the stylesheet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup, escape

from nightshift.agent.units import SIZES, clock_time, quantity
from nightshift.collectors.frame import Floats

WIDTH, HEIGHT = 720, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 12, 26
MAX_POINTS = 600
PLOTTED_POINTS = 4000
"""Of a chart that can be zoomed into."""
# Beyond it, the span of an axis overflows; drawn as this.
_LARGEST = 1e300
# Times the usual distance of two points from which on nothing is drawn between them.
GAP = 6.0
Scale = Callable[[float], float]


@dataclass(frozen=True, eq=False)
class Chart:
    """One signal: t_s and values, both [n]; `onset_s` and `marks` (t_s, word) are drawn as vertical lines,
    `reference` as a dashed horizontal one."""

    title: str
    unit: str
    t_s: Floats
    values: Floats
    onset_s: float | None = None
    reference: float | None = None
    marks: tuple[tuple[float, str], ...] = ()
    note: str = ""

    @property
    def is_empty(self) -> bool:
        return not np.isfinite(self.values).any()


def draw(chart: Chart) -> Markup:
    """The chart as an SVG element, or a sentence where there is nothing to draw."""
    if chart.is_empty:
        return Markup('<p class="quiet">No values of {} were kept.</p>').format(chart.title)
    t_s, values = thin(*with_gaps(chart.t_s, drawable(chart.values)))
    # The margin holds some ten characters: long units stand in the title alone.
    axis_unit = chart.unit if chart.unit == "bytes" or len(chart.unit) <= 3 else ""
    known = values[np.isfinite(values)]
    low, high = axis_range(known, chart.reference)
    start_s, end_s = float(t_s[0]), float(t_s[-1])
    times = [t for t, _ in chart.marks] + ([chart.onset_s] if chart.onset_s is not None else [])
    # An onset or an action outside of the points is still drawn: a line that begins after it would hide that.
    start_s, end_s = min([start_s, *times]), max([end_s, *times])
    span_s = max(end_s - start_s, 1e-9)

    def x(at_s: float) -> float:
        return round(_LEFT + (at_s - start_s) / span_s * (WIDTH - _LEFT - _RIGHT), 1)

    def y(value: float) -> float:
        return round(HEIGHT - _BOTTOM - (value - low) / (high - low) * (HEIGHT - _TOP - _BOTTOM), 1)

    parts = []
    for tick in ticks(low, high, chart.unit):
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y(tick)}" y2="{y(tick)}"/>')
        label = escape(quantity(tick, axis_unit))
        parts.append(f'<text class="axis" x="{_LEFT - 8}" y="{y(tick) + 4}" text-anchor="end">{label}</text>')
    for part in (0.0, 0.25, 0.5, 0.75, 1.0):
        at_s = start_s + part * span_s
        anchor = "start" if part == 0 else "end" if part == 1 else "middle"
        place = f'x="{x(at_s)}" y="{HEIGHT - 8}" text-anchor="{anchor}"'
        parts.append(f'<text class="axis" {place}>{clock_time(at_s)}</text>')
    if chart.reference is not None and math.isfinite(chart.reference):
        height = y(chart.reference)
        parts.append(f'<line class="reference" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{height}" y2="{height}"/>')
    if chart.onset_s is not None:
        width = max(0.0, WIDTH - _RIGHT - x(chart.onset_s))
        shade = f'x="{x(chart.onset_s)}" y="{_TOP}" width="{width:.1f}" height="{HEIGHT - _TOP - _BOTTOM}"'
        parts.append(f'<rect class="since" {shade}/>')
        parts.append(_vertical(x(chart.onset_s), "onset", "onset"))
    parts += [_vertical(x(at_s), str(escape(word)), "mark") for at_s, word in chart.marks]
    parts.append(f'<path class="signal" d="{_path(t_s, values, x, y)}"/>')
    text = describe(chart)
    head = f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(text)}">'
    return Markup(f"{head}<title>{escape(text)}</title>{''.join(parts)}</svg>")


def plot(
    chart: Chart, marks: Sequence[tuple[float, str]], peers: Sequence[tuple[Floats, Floats]] = ()
) -> dict[str, Any]:
    """The chart as JSON for the console's script: times in Unix s, missing values as null. `peers`: (t_s, values)
    of what should look alike; drawn as their median between the lowest and the highest.

    >>> one = Chart("Power", "W", np.array([0.0, 5.0]), np.array([400.0, np.nan]))
    >>> plot(one, [(4.0, "acted")], [(np.array([0.0, 5.0]), np.array([390.0, 395.0]))])["peers"]["median"]
    [390.0, 395.0]
    """
    t_s, values = thin(*with_gaps(chart.t_s, drawable(chart.values)), PLOTTED_POINTS)
    known = [(at_s, drawn) for at_s, drawn in peers if at_s.size]
    band = None
    # Missing where a peer has no sample near: a line over its gap would be a value that no one measured.
    if known and t_s.size:
        rows = np.array([_nearest(t_s, at_s, drawable(drawn)) for at_s, drawn in known])
        seen = np.isfinite(rows).any(axis=0)
        band = {"count": len(known)} | {
            name: _finite(np.where(seen, quantile, np.nan))
            for name, quantile in zip(("low", "median", "high"), _quantiles(rows, seen), strict=True)
        }
    reference = chart.reference if chart.reference is not None and math.isfinite(chart.reference) else None
    return {
        "title": chart.title,
        "unit": chart.unit,
        "t_s": t_s.tolist(),
        "values": _finite(values),
        "onset": chart.onset_s,
        "reference": reference,
        "marks": [list(mark) for mark in marks],
        "peers": band,
    }


def _quantiles(rows: Floats, seen: npt.NDArray[np.bool_]) -> Floats:
    """Lowest, median and highest of each column, [3, n]; what no row has seen is 0."""
    return np.asarray(np.nanquantile(np.where(seen, rows, 0.0), (0.0, 0.5, 1.0), axis=0), dtype=np.float64)


def _nearest(t_s: Floats, at_s: Floats, values: Floats) -> Floats:
    """The values at the times nearest to `t_s`, missing where the nearest is further than a gap."""
    after = np.minimum(np.searchsorted(at_s, t_s), len(at_s) - 1)
    before = np.maximum(after - 1, 0)
    place = np.where(np.abs(at_s[before] - t_s) <= np.abs(at_s[after] - t_s), before, after)
    usual = float(np.median(np.diff(at_s))) if len(at_s) > 1 else 0.0
    near = np.abs(at_s[place] - t_s) <= max(GAP * usual, 1.0)
    return np.where(near, values[place], np.nan)


def _finite(values: Floats) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values.tolist()]


def describe(chart: Chart) -> str:
    """What the chart shows, in words."""
    known = chart.values[np.isfinite(chart.values)]
    if not known.size:
        return f"{chart.title}: no values"
    text = (
        f"{chart.title}: from {quantity(float(known[0]), chart.unit)} to {quantity(float(known[-1]), chart.unit)}"
    )
    text += f", between {quantity(float(known.min()), chart.unit)} and {quantity(float(known.max()), chart.unit)}"
    return text + (f"; onset at {clock_time(chart.onset_s)}" if chart.onset_s is not None else "")


def with_gaps(t_s: Floats, values: Floats) -> tuple[Floats, Floats]:
    """With a missing value where nothing was observed for much longer than usual, so that no line bridges it."""
    if len(t_s) < 3:
        return t_s, values
    steps = np.diff(t_s)
    # The median: one long gap among the steps moves a mean, and then is no gap.
    usual = float(np.median(steps[steps > 0])) if (steps > 0).any() else 0.0
    after = np.flatnonzero(steps > GAP * usual) if usual else np.empty(0, dtype=np.intp)
    return np.insert(t_s, after + 1, t_s[after]), np.insert(values, after + 1, np.nan)


def thin(t_s: Floats, values: Floats, limit: int = MAX_POINTS) -> tuple[Floats, Floats]:
    """At most `limit` points (or slightly more) that keep each stretch's lowest and highest value, so that a spike
    of one sample stays visible."""
    if len(t_s) <= limit:
        return t_s, values
    keep: set[int] = {0, len(t_s) - 1}
    for part in np.array_split(np.arange(len(t_s)), limit // 2):
        stretch = values[part]
        if np.isfinite(stretch).any():
            keep.add(int(part[np.nanargmin(stretch)]))
            keep.add(int(part[np.nanargmax(stretch)]))
        if not np.isfinite(stretch).all():
            # One missing value a stretch is enough for the line to break there.
            keep.add(int(part[np.flatnonzero(~np.isfinite(stretch))[0]]))
    rows = np.array(sorted(keep))
    return t_s[rows], values[rows]


def drawable(values: Floats) -> Floats:
    """Infinities as missing, finite values within what an axis can span."""
    return np.where(np.isfinite(values), np.clip(values, -_LARGEST, _LARGEST), np.nan)


def axis_range(values: Floats, reference: float | None) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    if reference is not None and math.isfinite(reference):
        reference = min(max(reference, -_LARGEST), _LARGEST)
        low, high = min(low, reference), max(high, reference)
    # A flat line has no span, and the division by it has to stand.
    margin = (high - low) * 0.06 or max(abs(high) * 0.05, 1e-9)
    # From zero where it is near: an axis that is cut off makes a ripple look like a jump.
    return (0.0 if 0 <= low < 0.3 * high else low - margin), high + margin


def ticks(low: float, high: float, unit: str) -> list[float]:
    """Round places on the axis; of bytes, round in the size that they are written in."""
    rough = (high - low) / 4
    base = next((size for size in SIZES if high >= size), 1) if unit == "bytes" else 1
    # 1, 2, 2.5, 5 or 10 of a power of ten: what people read as round.
    power = base * 10.0 ** math.floor(math.log10(rough / base))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough)
    first = math.ceil(low / step)
    return [i * step for i in range(first, math.floor(high / step) + 1)]


def _path(t_s: Floats, values: Floats, x: Scale, y: Scale) -> str:
    pieces, pen_down = [], False
    for at_s, value in zip(t_s, values, strict=True):
        if not math.isfinite(value):
            pen_down = False
            continue
        pieces.append(f"{'L' if pen_down else 'M'}{x(float(at_s))} {y(float(value))}")
        pen_down = True
    return "".join(pieces)


def _vertical(at: float, word: str, kind: str) -> str:
    anchor, shift = ("end", -5) if at > WIDTH * 0.8 else ("start", 5)
    line = f'<line class="{kind}" x1="{at}" x2="{at}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}"/>'
    return f'{line}<text class="{kind}-word" x="{at + shift}" y="{_TOP + 11}" text-anchor="{anchor}">{word}</text>'
