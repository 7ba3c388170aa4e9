"""Memory that climbs and is freed, over and over: a saw is told once, a leak under it at its own pace."""

from __future__ import annotations

import numpy as np
import pytest

from nightshift.collectors.frame import Frame, SeriesIndex
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Finding, State
from nightshift.detectors.memory.contrast import growth_over
from nightshift.detectors.memory.leak import MemoryLeak

GIB = 2.0**30
LIMIT = 80.0 * GIB
STEP_S = 15.0
METRICS = ("gpu_memory_used_bytes", "gpu_memory_free_bytes")


def hours(count: float) -> np.ndarray:
    return np.arange(int(count * 3600.0 / STEP_S)) * STEP_S


def teeth(t_s: np.ndarray, period_s: float, height_gib: float, late_s: float = 0.0) -> np.ndarray:
    """[n] GiB: fills evenly and is freed at once, `late_s` after the others."""
    found: np.ndarray = 40.0 + height_gib * ((t_s - late_s) % period_s) / period_s
    return found


def told(levels_gib: np.ndarray, detector: MemoryLeak | None = None, job: bool = True) -> list[Finding]:
    """Every change of state of every episode, of GPUs [n_gpus, n] of one job's ranks, or of none."""
    gpus = tuple(Subject(SubjectKind.GPU, f"GPU-{n}") for n in range(len(levels_gib)))
    known = Inventory()
    for n, gpu in enumerate(gpus if job else ()):
        rank = Subject(SubjectKind.RANK, f"ml/train#{n}")
        known.observe(gpu, rank, 0.0)
        known.observe(rank, Subject(SubjectKind.JOB, "ml/train"), 0.0)
    index, epoch = SeriesIndex(SubjectKind.GPU, gpus), np.zeros(len(gpus), dtype=np.int64)
    detector = detector or MemoryLeak()
    states: dict[str, State] = {}
    changes = []
    for step, used in enumerate(GIB * levels_gib.T):
        at_s = 1.79e9 + STEP_S * step
        frame = Frame(at_s, index, METRICS, np.stack([used, LIMIT - used], 1), np.full((1, 2), at_s), epoch)
        for finding in detector.update(Tick(at_s, {SubjectKind.GPU: frame}), known):
            if states.get(finding.episode) != finding.state:
                states[finding.episode] = finding.state
                changes.append(finding)
    return changes


@pytest.mark.parametrize("period_s", [900.0, pytest.param(3600.0, marks=pytest.mark.full)])
@pytest.mark.parametrize("height_gib", [pytest.param(10.0, marks=pytest.mark.full), 25.0])
def test_a_rank_that_fills_and_frees_is_told_at_its_first_tooth_alone(period_s: float, height_gib: float) -> None:
    """Rank 0 gathers what it saves: every tooth was a leak, critical, a hundred times a day."""
    t_s = hours(6)
    levels = np.full((4, len(t_s)), 40.0)
    levels[0] = teeth(t_s, period_s, height_gib)
    assert [f.state for f in told(levels)] == [State.FIRING, State.CLEAR]


@pytest.mark.parametrize("period_s", [300.0, *(pytest.param(s, marks=pytest.mark.full) for s in (900.0, 1800.0))])
@pytest.mark.parametrize("apart_s", [7.0, 31.0])
def test_ranks_that_free_one_after_another_are_no_leaks_meanwhile(period_s: float, apart_s: float) -> None:
    """Against ranks that had freed a moment before, whoever had not climbed alone."""
    t_s = hours(3)
    levels = np.stack([teeth(t_s + 1e6, period_s, 10.0, apart_s * n) for n in range(8)])
    assert len({f.subject for f in told(levels)}) <= 1


@pytest.mark.full
def test_a_long_tooth_is_told_once_and_a_higher_one_again() -> None:
    t_s = hours(20)
    healthy = told(teeth(t_s, 4 * 3600.0, 20.0)[None], job=False)
    assert [f.state for f in healthy] == [State.FIRING, State.CLEAR]
    higher = np.where(t_s < 12 * 3600.0, 20.0, 36.0) / 20.0
    again = told((40.0 + (teeth(t_s, 4 * 3600.0, 20.0) - 40.0) * higher)[None], job=False)
    assert [f.state for f in again[:3]] == [State.FIRING, State.CLEAR, State.FIRING]
    assert again[2].at.t_s > 1.79e9 + 12 * 3600.0


@pytest.mark.parametrize(
    ("pace_gib_h", "period_s"), [(8.0, 300.0), (8.0, 900.0), pytest.param(2.0, 900.0, marks=pytest.mark.full)]
)
def test_a_leak_under_a_saw_is_told_at_its_own_pace_long_before_the_end(period_s: float, pace_gib_h: float) -> None:
    """At each tooth's end it was called freed, or levelled off, and its incident closed."""
    t_s = hours(30.0 / pace_gib_h)
    levels = np.stack([teeth(t_s, period_s, 10.0)] * 4)
    levels[2] += pace_gib_h * t_s / 3600.0
    found = told(np.minimum(levels, 79.9))
    assert [(f.state, f.subject.name) for f in found] == [(State.FIRING, "GPU-2")]
    assert float(found[0].facts["slope_bytes_per_h"]) == pytest.approx(pace_gib_h * GIB, rel=0.25)
    left_s = 1.79e9 + 3600.0 * 30.0 / pace_gib_h - found[0].at.t_s
    assert left_s > 3600.0
    assert float(found[0].facts["eta_s"]) == pytest.approx(left_s, rel=0.4)


@pytest.mark.full
@pytest.mark.parametrize(("height_gib", "left_h"), [(25.0, 2.0), pytest.param(10.0, 10.5, marks=pytest.mark.full)])
def test_a_slow_leak_under_long_teeth_is_told_once_by_what_they_come_down_to(
    height_gib: float, left_h: float
) -> None:
    """Teeth of half an hour: the high ones were each taken for a new process, the low ones for memory that was
    freed, and the incident closed at their ends."""
    ends_h = (80.0 - 40.0 - height_gib) / 2.0
    t_s = hours(ends_h)
    levels = np.stack([teeth(t_s, 1800.0, height_gib)] * 4)
    levels[2] += 2.0 * t_s / 3600.0
    (found,) = told(np.minimum(levels, 79.9))
    assert (found.state, found.subject.name) == (State.FIRING, "GPU-2")
    assert ends_h - (found.at.t_s - 1.79e9) / 3600.0 > left_h
    assert float(found.facts["slope_bytes_per_h"]) == pytest.approx(2.0 * GIB, rel=0.25)
    assert 40.0 < float(found.facts["floor_bytes"]) / GIB < 52.0, "of the floor, not of a tooth"


@pytest.mark.full
@pytest.mark.parametrize(
    ("period_s", "pace_gib_h", "height_gib"),
    [
        (3600.0, 8.0, 10.0),
        (1800.0, 8.0, 25.0),
        *(pytest.param(3600.0, *of, marks=pytest.mark.full) for of in ((4.0, 10.0), (4.0, 25.0), (2.0, 25.0))),
    ],
)
def test_a_leak_under_teeth_of_an_hour_is_told_by_three_troughs_where_no_other_rank_has_them(
    period_s: float, pace_gib_h: float, height_gib: float
) -> None:
    """Fast ones ran to their end without an alarm; others were told and called freed at each tooth's end."""
    ends_h = (40.0 - height_gib) / pace_gib_h
    t_s = hours(ends_h)
    saw, leak = np.stack([teeth(t_s, period_s, height_gib)] * 4), pace_gib_h * t_s / 3600.0
    one = np.array([[0.0], [0.0], [1.0], [0.0]])
    (found,) = told(np.minimum(saw + one * leak, 79.9))
    assert (found.state, found.subject.name, found.facts["shape"]) == (State.FIRING, "GPU-2", "teeth")
    assert ends_h - (found.at.t_s - 1.79e9) / 3600.0 > 0.3
    assert float(found.facts["slope_bytes_per_h"]) == pytest.approx(pace_gib_h * GIB, rel=0.05)
    alike = told(np.minimum(saw + leak, 79.9))
    assert "teeth" not in {f.facts.get("shape") for f in alike}, "all ranks do: the job, not a rank of it"


def test_a_process_that_ends_takes_what_was_learnt_of_its_teeth_along() -> None:
    """The next job on the GPU is another: its leak is told at once, not past the first job's teeth."""
    t_s = hours(2)
    first = np.full((4, len(t_s)), 40.0)
    first[0] = teeth(t_s, 3600.0, 25.0)
    second = np.full((4, len(t_s)), 30.0)
    second[0] += 10.0 * t_s / 3600.0
    for between, states in ((0.5, 3), (40.0, 2)):
        gap = np.full((4, 40), between)
        found = told(np.concatenate([first, gap, second], axis=1))
        assert len(found) == states


def test_what_was_learnt_outlives_a_restart() -> None:
    t_s = hours(2)
    levels = np.full((4, len(t_s)), 40.0)
    levels[0] = teeth(t_s, 3600.0, 25.0)
    before, after = MemoryLeak(), MemoryLeak()
    assert told(levels[:, : len(t_s) * 5 // 8], before)
    after.restore(before.snapshot())
    assert told(levels[:, len(t_s) * 5 // 8 :], after) == []


def test_peers_that_freed_meanwhile_count_with_what_they_had_climbed() -> None:
    window = np.array([[0.0, 1, 2, 3, 4, 0], [0.0, 1, 2, 3, 4, 5], [2.0, 2, 2, 2, 2, 1.9], [np.nan, 1, 2, 3, 4, 0]])
    grown = growth_over(window, 5.0, 1.0, 4.0)
    assert grown[:3].tolist() == pytest.approx([4.0, 5.0, -0.1])
    assert np.isnan(grown[3])
