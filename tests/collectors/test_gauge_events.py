"""Errors that gauges tell: the same events to the daemon, a recording and a look-back, each of them once."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.collectors.frame import Frame, Instant, LogRecord, SeriesIndex, SourceStatus
from nightshift.collectors.kernel_log.event import KernelEvent, KernelEventKind
from nightshift.collectors.kernel_log.lines import RECOVERY_WORDS
from nightshift.collectors.merge import Merger
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.telemetry.gauge_events import COUNTED, HEALTH, ExportedEvents, GaugeEvents
from nightshift.collectors.tick import Batch, Tick
from nightshift.detectors.base import Severity, State
from nightshift.detectors.hardware.xid import XidDetector

NODE, SOURCE = Subject(SubjectKind.NODE, "n1"), Subject(SubjectKind.SOURCE, "page n1")
GPUS = tuple(Subject(SubjectKind.GPU, f"GPU-{number}") for number in range(3))
INDEX = SeriesIndex(SubjectKind.GPU, GPUS)
START_S = 1_795_266_000.0


def frame(at_s: float, xids: list[float], actions: list[float] | None = None, index: SeriesIndex = INDEX) -> Frame:
    columns = [xids] + ([actions] if actions is not None else [])
    names = ("gpu_xid_last", "gpu_recovery_action")[: len(columns)]
    values = np.array(columns, dtype=np.float64).T
    return Frame(at_s, index, names, values, np.array([[at_s]]), np.zeros(len(index), dtype=np.int64))


def inventory() -> Inventory:
    known = Inventory()
    for gpu in GPUS:
        known.observe(gpu, NODE, 0.0)
    return known


def looked(merger: Merger, one: Frame, known: Inventory, events: tuple[KernelEvent, ...] = ()) -> Tick:
    status = SourceStatus(SOURCE, one.at_s, True, covers=(NODE,))
    return merger.merge([Batch([status], [one], events=events)], one.at_s, known)


codes = st.sampled_from([0.0, 13.0, 31.0, 48.0, 79.0, 95.0, float("nan")])


@given(st.lists(st.tuples(codes, codes, codes), min_size=1, max_size=12))
def test_the_gauge_tells_each_change_once_and_a_first_sight_as_old(pages: list[tuple[float, ...]]) -> None:
    """The merge of the daemon and the range reader's own pass say the same; NaN (a missed scrape) says nothing."""
    merger, alone, known = Merger(), GaugeEvents(), inventory()
    last: dict[int, float] = {}
    for number, page in enumerate(pages):
        one = frame(START_S + 5.0 * number, list(page))
        told = [(e.gpu, e.code, e.attributes.get("old")) for e in looked(merger, one, known).events]
        expected = []
        for row, code in enumerate(page):
            if np.isnan(code) or last.get(row) == code:
                continue
            if code:
                expected.append((GPUS[row], int(code), None if row in last else "yes"))
            last[row] = code
        assert told == expected
        assert told == [(e.gpu, e.code, e.attributes.get("old")) for e in alone.take(one, known)]


def test_the_kernel_log_and_the_gauge_of_one_look_are_one_event() -> None:
    merger, known = Merger(), inventory()
    looked(merger, frame(START_S, [0, 0, 0]), known)
    record = LogRecord(Instant(START_S + 4), "/dev/kmsg", NODE, "NVRM: Xid (PCI:0000:9b:00): 79, x", 1)
    said = KernelEvent(KernelEventKind.XID, record, NODE, code=79, gpu=GPUS[1])
    tick = looked(merger, frame(START_S + 5, [0, 79, 0]), known, (said,))
    assert [event.record for event in tick.events] == [record]


@pytest.mark.parametrize("seed", range(4))
def test_a_gpu_that_changes_its_row_keeps_what_it_showed(seed: int) -> None:
    """Rows move when GPUs join and leave: an old Xid must not look like a new one of another GPU."""
    draw, gauges, known = random.Random(seed), GaugeEvents(), inventory()
    shown = {gpu: draw.choice([0.0, 31.0, 95.0]) for gpu in GPUS}
    gauges.take(frame(START_S, [shown[gpu] for gpu in GPUS]), known)
    order = draw.sample(GPUS, len(GPUS))
    moved = frame(START_S + 5, [shown[gpu] for gpu in order], index=SeriesIndex(SubjectKind.GPU, tuple(order)))
    assert gauges.take(moved, known) == ()


def test_a_gpu_whose_node_is_told_later_is_heard_then() -> None:
    gauges, known = GaugeEvents(), Inventory()
    assert gauges.take(frame(START_S, [95, 0, 0]), known) == ()
    known.observe(GPUS[0], NODE, START_S)
    assert [event.code for event in gauges.take(frame(START_S + 5, [95, 0, 0]), known)] == [95]


@pytest.mark.parametrize("action", range(10))
def test_the_recovery_action_is_a_state_that_acts_alone(action: int) -> None:
    """Shown at the first look it still holds; it lasts as long as it is shown, and 0 ends it."""
    merger, detector, known = Merger(), XidDetector(), inventory()
    tick = looked(merger, frame(START_S, [0, 0, 0], [0, float(action), 0]), known)
    words = [event.attributes["recovery_action"] for event in tick.events]
    if action == 0:
        assert words == []
        return
    assert words == [RECOVERY_WORDS[action] if action < 8 else f"unknown action {action}"]
    (finding,) = detector.update(tick, known)
    assert finding.subject == GPUS[1]
    assert finding.facts["recovery"] != "none"
    hours = [looked(merger, frame(START_S + 600.0 * n, [0, 0, 0], [0, float(action), 0]), known) for n in (1, 2, 3)]
    assert [[f.state for f in detector.update(each, known)] for each in hours] == [[State.FIRING]] * 3
    over = looked(merger, frame(START_S + 2400, [0, 0, 0], [0, 0, 0]), known)
    (ended,) = detector.update(over, known)
    assert ended.facts["recovery"] == "none"


@pytest.mark.parametrize("seed", range(4))
def test_what_dcgm_exporter_counts_is_an_event_when_it_rises(seed: int) -> None:
    draw, exported, known = random.Random(seed), ExportedEvents(), inventory()
    code, gpu = draw.choice([48, 79, 94, 95, 119]), draw.choice(GPUS)
    labels = {"xid": str(code)}
    name = draw.choice(["DCGM_EXP_XID_ERRORS_COUNT", "DCGM_EXP_XID_ERRORS_TOTAL"])
    assert exported.take([(gpu, name, {"xid": ""}, 0.0)], known, START_S) == []
    (event,) = exported.take([(gpu, name, labels, 1.0)], known, START_S + 5)
    assert (event.code, event.gpu, event.attributes) == (code, gpu, {})
    assert exported.take([(gpu, name, labels, 1.0)], known, START_S + 10) == []
    assert exported.take([(gpu, name, labels, 0.0)], known, START_S + 300) == []  # its window has passed
    assert len(exported.take([(gpu, name, labels, 2.0)], known, START_S + 305)) == 1


def test_an_xid_that_left_its_window_is_new_when_it_comes_again() -> None:
    """The exporter then writes a row without `xid`, or none: not the old row with a 0."""
    exported, known, gpu = ExportedEvents(), inventory(), GPUS[0]
    one, none = (gpu, COUNTED[0], {"xid": "94"}, 1.0), (gpu, COUNTED[0], {}, 0.0)
    assert exported.take([], known, START_S, shown=[gpu]) == []
    for at_s in (START_S + 5, START_S + 900):
        assert [event.attributes for event in exported.take([one], known, at_s)] == [{}]
        assert exported.take([one], known, at_s + 5) == []
        # a part of an answer does not end it: the rest may hold it
        assert exported.take([none], known, at_s + 10, partial=True) == []
        assert exported.take([one], known, at_s + 15) == []
        assert exported.take([none], known, at_s + 400) == []


def test_what_rose_before_its_node_was_known_is_heard_then() -> None:
    exported, known, gpu = ExportedEvents(), Inventory(), GPUS[0]
    one = (gpu, COUNTED[0], {"xid": "94"}, 1.0)
    assert exported.take([one], known, START_S) == []
    known.observe(gpu, NODE, START_S)
    assert [event.code for event in exported.take([one], known, START_S + 5)] == [94]


def test_a_failed_health_watch_is_its_xid_or_said_in_dcgms_words() -> None:
    exported, known, gpu = ExportedEvents(), inventory(), GPUS[0]
    well = {"health_watch": "MEM", "health_error_code": ""}
    exported.take([(gpu, HEALTH, well, 0.0)], known, START_S)
    failed = {"health_watch": "MEM", "health_error_code": "DCGM_FR_UNCONTAINED_ERROR"}
    (event,) = exported.take([(gpu, HEALTH, failed, 20.0)], known, START_S + 5)
    assert (event.kind, event.code) == (KernelEventKind.XID, 95)
    other = {"health_watch": "PCIE", "health_error_code": "DCGM_FR_PCI_REPLAY_RATE"}
    assert exported.take([(gpu, HEALTH, other, 10.0)], known, START_S + 10) == []  # a warning
    (event,) = exported.take([(gpu, HEALTH, other, 20.0)], known, START_S + 15)
    assert (event.kind, event.attributes["message"]) == (KernelEventKind.MESSAGE, "dcgm_health")
    assert "DCGM_FR_PCI_REPLAY_RATE" in event.record.text


def test_a_gauge_that_a_restarted_daemon_sees_again_opens_nothing_new() -> None:
    known, detector = inventory(), XidDetector()
    merger = Merger()
    detector.update(looked(merger, frame(START_S, [0, 0, 0]), known), known)
    (found,) = detector.update(looked(merger, frame(START_S + 5, [95, 0, 0]), known), known)
    assert found.severity is Severity.CRITICAL
    quiet = looked(merger, frame(START_S + 700, [95, 0, 0]), known)
    assert [f.state for f in detector.update(quiet, known)] == [State.CLEAR]
    after = XidDetector()
    after.restore(detector.snapshot())
    assert after.update(looked(Merger(), frame(START_S + 800, [95, 0, 0]), known), known) == []
