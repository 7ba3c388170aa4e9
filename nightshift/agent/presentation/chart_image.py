"""The chart of the signal that decided a diagnosis, as PNG: for chat, mail and reports, where no SVG is shown.

The same chart as the console's, drawn with Pillow at twice its size so that it stays sharp on a phone. Text in it
is printed as text: a picture has no markup to break out of.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from nightshift.agent.presentation.incident_view import evidence_chart
from nightshift.agent.presentation.line_chart import Chart, axis_range, drawable, thin, ticks, with_gaps
from nightshift.agent.rca.summary import plain
from nightshift.agent.store.diagnosis import SERIES, Diagnosis, Evidence, Predicate
from nightshift.agent.store.incident import Incident
from nightshift.agent.units import clock_time, quantity

WIDTH, HEIGHT, SCALE = 640, 220, 2
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 14, 34, 26
_INK, _QUIET, _LINE, _SINCE, _ONSET = "#1c2430", "#66707d", "#1f6feb", "#fdf1e3", "#c2410c"
MAX_TITLE = 80
_MEASURED = (Predicate.ROSE, Predicate.FELL, Predicate.REPEATED, Predicate.PRECEDED)


def deciding(incident: Incident) -> Chart | None:
    """The series that the first measured claim rests on, else the first of the evidence; None without one."""
    diagnosis = incident.diagnosis
    if diagnosis is None:
        return None
    onset_s = min((s.finding.since.t_s for s in incident.findings), default=incident.opened_s)
    # A claim's own series first: it is what the sentence beside the picture speaks of.
    for items in (_cited(diagnosis), diagnosis.evidence):
        charts = [evidence_chart(item, onset_s) for item in items if item.media_type == SERIES]
        drawn = [chart for chart in charts if chart is not None and not chart.is_empty and len(chart.t_s) > 1]
        drawn.sort(key=lambda chart: float(chart.t_s[0]) >= onset_s)  # one that shows before and after, if there is
        if drawn:
            return drawn[0]
    return None


def _cited(diagnosis: Diagnosis) -> Sequence[Evidence]:
    by_id = {item.id: item for item in diagnosis.evidence}
    measured = [claim for claim in diagnosis.claims if claim.predicate in _MEASURED]
    return [by_id[name] for claim in measured for name in claim.evidence_ids if name in by_id]


def png(chart: Chart) -> bytes:
    """The chart as PNG bytes. Raises ValueError where there is nothing to draw."""
    if chart.is_empty:
        raise ValueError("nothing to draw: no value is known")
    t_s, values = thin(*with_gaps(chart.t_s, drawable(chart.values)))
    low, high = axis_range(values[np.isfinite(values)], chart.reference)
    start_s, end_s = float(t_s[0]), float(t_s[-1])
    if chart.onset_s is not None:
        start_s, end_s = min(start_s, chart.onset_s), max(end_s, chart.onset_s)
    span_s = max(end_s - start_s, 1e-9)

    def x(at_s: float) -> float:
        return SCALE * (_LEFT + (at_s - start_s) / span_s * (WIDTH - _LEFT - _RIGHT))

    def y(value: float) -> float:
        return SCALE * (HEIGHT - _BOTTOM - (value - low) / (high - low) * (HEIGHT - _TOP - _BOTTOM))

    image = Image.new("RGB", (SCALE * WIDTH, SCALE * HEIGHT), "white")
    pen = ImageDraw.Draw(image)
    small, large = (ImageFont.load_default(SCALE * size) for size in (11, 13))
    right, bottom, top = SCALE * (WIDTH - _RIGHT), SCALE * (HEIGHT - _BOTTOM), SCALE * _TOP
    if chart.onset_s is not None:
        pen.rectangle((x(chart.onset_s), top, right, bottom), fill=_SINCE)
    for tick in ticks(low, high, chart.unit):
        pen.line((SCALE * _LEFT, y(tick), right, y(tick)), fill="#e5e8ec", width=SCALE)
        label = plain(quantity(tick, chart.unit), 16)
        pen.text((SCALE * (_LEFT - 8), y(tick)), label, fill=_QUIET, font=small, anchor="rm")
    for part, anchor in ((0.0, "lt"), (0.5, "mt"), (1.0, "rt")):
        at_s = start_s + part * span_s
        pen.text((x(at_s), bottom + SCALE * 8), clock_time(at_s), fill=_QUIET, font=small, anchor=anchor)
    if chart.reference is not None and math.isfinite(chart.reference):
        pen.line((SCALE * _LEFT, y(chart.reference), right, y(chart.reference)), fill=_QUIET, width=SCALE)
    if chart.onset_s is not None:
        pen.line((x(chart.onset_s), top, x(chart.onset_s), bottom), fill=_ONSET, width=SCALE)
        beside = x(chart.onset_s) + SCALE * 4
        width = pen.textlength("onset", font=small)
        if beside + width > right:  # it began at the end: the word stands before the line
            beside = x(chart.onset_s) - SCALE * 4 - width
        pen.text((beside, top + 2), "onset", fill=_ONSET, font=small)
    _line(pen, [(x(float(t)), y(float(v))) if math.isfinite(v) else None for t, v in zip(t_s, values, strict=True)])
    pen.text((SCALE * 12, SCALE * 9), plain(chart.title, MAX_TITLE), fill=_INK, font=large)
    out = io.BytesIO()
    image.resize((SCALE * WIDTH, SCALE * HEIGHT)).quantize(64).save(out, "PNG", optimize=True)
    return out.getvalue()


def _line(pen: ImageDraw.ImageDraw, points: list[tuple[float, float] | None]) -> None:
    """A line that no missing value is bridged by; a lone point is a dot."""
    run: list[tuple[float, float]] = []
    for point in [*points, None]:
        if point is not None:
            run.append(point)
            continue
        if len(run) == 1:
            ((at, height),) = run
            pen.ellipse((at - 3, height - 3, at + 3, height + 3), fill=_LINE)
        elif run:
            pen.line(run, fill=_LINE, width=2 * SCALE, joint="curve")
        run = []
