"""The look-back: what it returns is what was observed, and it never outgrows its bounds."""

from __future__ import annotations

import math

import numpy as np

from nightshift.collectors.frame import Frame, Instant, LogRecord, SeriesIndex, StepSeries
from nightshift.collectors.history import History
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.collectors.tick import Tick

GPUS = tuple(Subject(SubjectKind.GPU, f"GPU-{n}") for n in range(8))
RANK = Subject(SubjectKind.RANK, "ml/job#0")


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
