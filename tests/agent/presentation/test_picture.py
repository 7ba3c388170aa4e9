"""The deciding signal as PNG: there for measured incidents, honest about gaps, and never a crash."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from nightshift.agent.incidents.advisor import Advisor
from nightshift.agent.presentation.chart_image import HEIGHT, SCALE, WIDTH, deciding, png
from nightshift.agent.presentation.line_chart import Chart
from nightshift.agent.rca.redact import Redactor
from nightshift.controllers.action import ActionKind
from nightshift.detectors.base import Fault
from tests.agent.rooted import INVENTORY, JOB, NOW_S, finding, history, incident, leak
from tests.agent.test_hostile import INJECTIONS


def picture(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGB")


def test_the_signal_that_the_first_measured_claim_rests_on_is_drawn_small_and_readable() -> None:
    case = incident(leak())
    advisor = Advisor(history(), INVENTORY, [], frozenset(ActionKind), lambda: NOW_S, redact=Redactor())
    chart = deciding(incident(leak(), diagnosis=advisor.diagnose(case)))
    assert chart is not None
    assert chart.title.startswith("Framebuffer in use")
    data = png(chart)
    assert len(data) < 40_000
    assert picture(data).size == (SCALE * WIDTH, SCALE * HEIGHT)


def test_an_incident_that_nothing_measured_has_no_chart() -> None:
    assert deciding(incident(finding(Fault.SOURCE_LOST, JOB))) is None


def test_a_missing_stretch_is_a_gap_and_not_a_line() -> None:
    t_s = np.arange(100.0)
    values = np.where((t_s > 40) & (t_s < 60), math.nan, 1.0)
    whole, broken = (picture(png(Chart("x", "", t_s, v))) for v in (np.ones(100), values))
    column = SCALE * (70 + (WIDTH - 84) // 2)
    blue = [
        any(p[2] > p[0] + 60 for p in (image.getpixel((column, y)) for y in range(image.height)))  # type: ignore[index,operator]
        for image in (whole, broken)
    ]
    assert blue == [True, False]


@pytest.mark.parametrize("text", INJECTIONS[::4] + INJECTIONS[-2:])
def test_hostile_titles_and_units_are_drawn_as_text(text: str) -> None:
    assert png(Chart(text, text[:40], np.arange(5.0), np.arange(5.0), 2.0, 1.0))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(), min_size=1, max_size=50))
def test_any_values_are_drawn_or_refused_by_name(values: list[float]) -> None:
    chart = Chart("x", "bytes", np.arange(float(len(values))), np.array(values))
    if chart.is_empty:
        with pytest.raises(ValueError, match="nothing to draw"):
            png(chart)
    else:
        assert picture(png(chart)).size == (SCALE * WIDTH, SCALE * HEIGHT)
