"""The look-back: what it returns is what was observed, and it never outgrows its bounds."""

from __future__ import annotations

import math
import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.collectors.frame import Frame, Instant, LogRecord, SeriesIndex, StepSeries
from nightshift.collectors.history import MIN_RAW_LINES, History, RawLines
from nightshift.collectors.kernel_log.event import KernelEvent, KernelEventKind
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.collectors.tick import Tick

GPUS = tuple(Subject(SubjectKind.GPU, f"GPU-{n}") for n in range(8))
RANK, NODE = Subject(SubjectKind.RANK, "ml/job#0"), Subject(SubjectKind.NODE, "n1")


def tick(at_s: float, index: SeriesIndex, power: float) -> Tick:
    values = np.full((len(index), 1), power) + np.arange(len(index))[:, None]
    frame = Frame(at_s, index, ("gpu_power_w",), values, np.full((1, 1), at_s - 1), np.zeros(len(index), np.int64))
    return Tick(at_s, {SubjectKind.GPU: frame})


def test_a_window_gives_observation_times_and_leaves_missing_values_out() -> None:
    history, index = History(), SeriesIndex(SubjectKind.GPU, GPUS)
    for n in range(10):
        history.add(tick(5.0 * n, index, math.nan if n == 4 else 100.0 + n))
    t_s, values = history.window(GPUS[2], "gpu_power_w", 10.0, 30.0)
    assert t_s.tolist() == [9.0, 14.0, 24.0, 29.0]
    assert values.tolist() == [104.0, 105.0, 107.0, 108.0]
    assert history.window(Subject(SubjectKind.GPU, "other"), "gpu_power_w", 0, 99)[0].size == 0
    assert history.window(GPUS[0], "gpu_unheard_of", 0, 99)[0].size == 0


def test_frames_stay_within_the_budget_and_old_ones_thin_out_instead_of_vanishing() -> None:
    history = History(max_frame_bytes=2**18)
    index = SeriesIndex(SubjectKind.GPU, GPUS)
    for n in range(5000):
        history.add(tick(5.0 * n, index, 100.0))
    assert sum(sum(ring.bytes) for ring in history._rings.values()) <= 2**18
    t_s, _ = history.window(GPUS[0], "gpu_power_w", 0.0, 1e9)
    assert np.all(np.diff(t_s) > 0)
    assert t_s[-1] == 5.0 * 4999 - 1
    assert t_s[0] < 5.0 * 2500
    assert np.median(np.diff(t_s)[-50:]) == 5.0


def test_peers_line_up_although_membership_changed() -> None:
    history = History()
    history.add(tick(0.0, SeriesIndex(SubjectKind.GPU, GPUS[:3]), 10.0))
    history.add(tick(5.0, SeriesIndex(SubjectKind.GPU, (GPUS[4], GPUS[1])), 20.0))
    columns = history.columns(SubjectKind.GPU, "gpu_power_w", 0.0, 9.0)
    assert columns.subjects == (GPUS[4], GPUS[1])
    np.testing.assert_array_equal(columns.values, [[math.nan, 11.0], [20.0, 21.0]])


def steps(first: int, count: int, t_s: float) -> StepSeries:
    number = np.arange(first, first + count)
    return StepSeries(RANK, "run", number, np.full(count, t_s), {"loss": number.astype(float)}, "training_logs x")


def test_steps_join_over_ticks_and_are_windows_too() -> None:
    history = History(max_steps=30)
    for n in range(10):
        history.add(Tick(n * 5.0, steps=(steps(n * 5, 5, n * 5.0),)))
    joined = history.steps(RANK, 0.0, 100.0)
    assert joined is not None
    assert joined.step.tolist() == list(range(20, 50))
    t_s, loss = history.window(RANK, "loss", 40.0, 45.0)
    assert t_s.tolist() == [40.0] * 5 + [45.0] * 5
    assert loss.tolist() == list(range(40, 50))
    assert history.steps(RANK, 1000.0, 2000.0) is None


def test_lines_of_one_subject_are_bounded_and_do_not_evict_those_of_another() -> None:
    history = History(max_lines=10)
    quiet, loud = (Subject(SubjectKind.NODE, name) for name in ("quiet", "loud"))

    def record(node: Subject, n: int) -> LogRecord:
        return LogRecord(Instant(float(n)), "kmsg", node, f"line {n}", n)

    history.add(Tick(0.0, logs=(record(quiet, 0), *(record(loud, n) for n in range(500)))))
    assert [r.offset for r in history.logs(loud, 0, 1e9)] == list(range(490, 500))
    assert [r.offset for r in history.logs(quiet, 0, 1e9)] == [0]


def test_subjects_that_were_silent_longest_are_forgotten_first() -> None:
    history = History(max_subjects=2)
    for n in range(3):
        node = Subject(SubjectKind.NODE, f"n{n}")
        history.add(Tick(float(n), logs=(LogRecord(Instant(float(n)), "kmsg", node, "x", 0),)))
    kept = [history.logs(Subject(SubjectKind.NODE, f"n{n}"), 0, 9) for n in range(3)]
    assert [len(lines) for lines in kept] == [0, 1, 1]


def raw_record(subject: Subject, t_s: float, text: str) -> LogRecord:
    return LogRecord(Instant(t_s, 0.5, "n1"), "log", subject, text, int(t_s))


@given(st.lists(st.integers(1, 900), min_size=1, max_size=12), st.booleans())
@settings(max_examples=20)
def test_at_least_two_thousand_lines_of_a_rank_are_kept_as_they_stood(chunks: list[int], odd: bool) -> None:
    raw, rank, number = RawLines(), Subject(SubjectKind.RANK, "ml/train#3"), 0
    for chunk in chunks:
        raw.add(
            [raw_record(rank, n, f"line {n} \ud83d\x00" if odd else f"{n}") for n in range(number, number + chunk)]
        )
        number += chunk
    kept = raw.between(rank, -1.0, 1e9)
    assert len(kept) >= min(number, MIN_RAW_LINES)
    assert len(kept) <= MIN_RAW_LINES + 2 * 250
    assert (
        kept
        == [raw_record(rank, n, f"line {n} \ud83d\x00" if odd else f"{n}") for n in range(number)][-len(kept) :]
    )


def test_a_minute_around_an_event_outlives_a_flood() -> None:
    """Ten thousand lines after the event: those of the minute before and after it are still there."""
    history, at_s = History(), 1_000.0
    error = KernelEvent(KernelEventKind.XID, raw_record(NODE, at_s, "Xid"), NODE, code=79)
    quiet = [raw_record(NODE, at_s - 60.0 + n / 4, f"before {n}") for n in range(240)]
    history.add(Tick(at_s, logs=[*quiet, error.record], events=(error,)))
    for tick in range(30):
        flood = [raw_record(NODE, at_s + 10.0 * tick + n / 40, f"flood {tick} {n}") for n in range(400)]
        history.add(Tick(at_s + 10.0 * tick, logs=flood))
    texts = {record.text for record in history.raw_lines(NODE, at_s - 60.0, at_s + 60.0)}
    assert {record.text for record in quiet} | {"Xid", "flood 0 0", "flood 5 399"} <= texts
    later = history.raw_lines(NODE, at_s + 61.0, at_s + 1e6)
    assert MIN_RAW_LINES - 250 <= len(later) <= 4_000


def test_the_rings_stay_within_their_memory() -> None:
    raw = RawLines(max_bytes=200_000)
    draw = random.Random(5)
    for number in range(40):
        rank = Subject(SubjectKind.RANK, f"ml/train#{number}")
        raw.add([raw_record(rank, n, f"{draw.random()}" * 8) for n in range(500)])
    assert raw._bytes <= 200_000
    assert raw._bytes == sum(len(block.packed) for blocks in raw._blocks.values() for block in blocks)
    assert raw.between(Subject(SubjectKind.RANK, "ml/train#0"), 0.0, 1e9) == []
    assert len(raw.between(Subject(SubjectKind.RANK, "ml/train#39"), 0.0, 1e9)) == 500
