"""Charts keep what matters of a signal: spikes, gaps, the onset; and say in words what they show."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nightshift.agent.presentation.line_chart import MAX_POINTS, Chart, describe, draw, thin
from nightshift.agent.units import duration, quantity

T_S = np.arange(2000.0)


def test_a_spike_of_one_sample_survives_thinning() -> None:
    """2,000 points become about 600, and the single outlier is among them."""
    values = np.ones(2000)
    values[1234] = 50.0
    t_s, kept = thin(T_S, values)
    assert len(kept) <= MAX_POINTS + MAX_POINTS // 2
    assert t_s[np.argmax(kept)] == 1234.0


@pytest.mark.parametrize("missing", ["nan", "gap"])
def test_nothing_is_drawn_where_nothing_was_observed(missing: str) -> None:
    """A missing stretch, told as NaN or as absent samples, splits the line instead of being bridged."""
    values = np.sin(T_S / 50)
    t_s = T_S
    if missing == "nan":
        values[900:1000] = np.nan
    else:
        t_s, values = np.delete(T_S, np.s_[900:1000]), np.delete(values, np.s_[900:1000])
    path = re.findall(r'class="signal" d="([^"]+)"', str(draw(Chart("x", "", t_s, values))))[0]
    assert path.count("M") == 2


def test_a_chart_is_well_formed_and_escapes_its_text() -> None:
    """A title from outside cannot end the attribute or the element that it stands in."""
    svg = str(draw(Chart('"><script>x</script>', "<b>", T_S, T_S, onset_s=5.0, marks=((9.0, "<i>"),))))
    root = ElementTree.fromstring(svg)
    assert root.find(".//script") is None
    assert "style=" not in svg, "an inline style would need a weaker content security policy"


@given(st.lists(st.floats(width=64), min_size=1, max_size=50))
@example([1.7e308])
@example([-1.7e308, 1.7e308])
def test_any_values_draw(values: list[float]) -> None:
    """NaN, infinities, constants and huge ranges give a chart or a sentence, never an error."""
    found = np.array(values)
    text = str(draw(Chart("x", "bytes", np.arange(float(len(found))), found)))
    assert text.startswith(("<svg", "<p"))
    assert "nan" not in text.lower()


def test_words_say_the_shape() -> None:
    """A screen reader hears first, last, lowest, highest and the onset."""
    words = describe(Chart("Memory", "bytes", T_S, np.linspace(2**30, 2**31, 2000), onset_s=60.0))
    assert words == "Memory: from 1 GiB to 2 GiB, between 1 GiB and 2 GiB; onset at 00:01:00"


@pytest.mark.parametrize(
    ("span_s", "text"),
    [(0, "0 s"), (89, "89 s"), (90, "2 min"), (5400, "1 h 30 min"), (7200, "2 h"), (187200, "2 d 4 h")],
)
def test_durations_read_like_speech(span_s: float, text: str) -> None:
    """The largest two units that matter."""
    assert duration(span_s) == text


def test_an_unknown_figure_is_a_dash() -> None:
    """NaN is never shown as zero."""
    assert (quantity(float("nan"), "W"), duration(float("nan"))) == ("–", "–")
