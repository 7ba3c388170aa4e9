"""One command scores any detector on a recording with labelled events; a bad label names its line."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from nightshift.detectors.contract.backtest import EventsError, load_events, main
from nightshift.detectors.contract.evaluate import AlarmAt, Event, score
from nightshift.detectors.plugins import ALL

RECORDINGS = Path(__file__).parent.parent / "recordings"
RECORDING = RECORDINGS / "h200_vision.nightshift.gz"
DAY_S = 86400.0


def labels(tmp_path: Path) -> Path:
    phases = json.loads((RECORDINGS / "h200_vision_labels.json").read_text())["phases"]
    phase = next(p for p in phases if p["phase"] == "lr_spike")
    path = tmp_path / "events.csv"
    path.write_text(f"series,start_s,end_s\nnobody,{phase['onset_s']},{phase['end_s']}\n")
    return path


@pytest.mark.parametrize("kind", ALL[:4], ids=lambda k: k.plugin)
def test_a_detector_is_scored_by_one_command(kind, tmp_path, capsys) -> None:  # type: ignore[no-untyped-def]
    """Real minutes of one GPU: the days are too few to say whether a budget was held, and the report says so."""
    assert main([kind.plugin, str(RECORDING), str(labels(tmp_path))]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["events"] == 1
    assert told["found"] == 0
    assert told["delay_median_s"] is None
    assert told["budget"] in ("extrapolated", "not measurable", "broken")
    assert 0 <= told["healthy_days"] < 0.01


def test_alarms_within_an_event_count_once_and_others_are_false() -> None:
    """Two alarms in one event: found once, no false one. One outside: false, with Garwood's interval."""
    events = [Event("a", 100.0, 200.0), Event("b", 0.0, 50.0)]
    found = score(events, [AlarmAt("a", 150.0), AlarmAt("a", 160.0), AlarmAt("a", 300.0)], {"a": DAY_S, "b": DAY_S})
    assert (found.found, found.recall, found.false_alarms, found.delay_median_s) == (1, 0.5, 1, 50.0)
    assert found.false_interval[0] < found.false_rate < found.false_interval[1]


def test_a_figure_without_a_base_is_nan() -> None:
    found = score([], [], {})
    assert all(map(math.isnan, (found.recall, found.false_rate, found.delay_median_s, *found.false_interval)))
    assert found.held(10.0) == "not measurable"


@pytest.mark.parametrize("line", ["gpu:G,1", "gpu:G,one,2", "gpu:G,3,2", "gpu:G,1,inf"])
def test_a_label_that_is_none_is_refused_with_its_line(line: str, tmp_path: Path) -> None:
    path = tmp_path / "events.csv"
    path.write_text(f"series,start_s,end_s\ngpu:G,1,2\n{line}\n")
    with pytest.raises(EventsError, match="line 3"):
        load_events(path)
