"""Counters become rates: right where two samples tell them, missing in every doubtful case."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nightshift.collectors.frame import Frame, SeriesIndex
from nightshift.collectors.merge import Merger
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.collectors.telemetry.derived_metrics import MAX_GAP_S, Deriver, Rates
from nightshift.collectors.telemetry.metrics import of_kind
from nightshift.collectors.tick import Batch

NODE = Subject(SubjectKind.NODE, "n1")
DISK = Subject(SubjectKind.DISK, "n1/nvme0n1")


def index(*names: str) -> SeriesIndex:
    return SeriesIndex(SubjectKind.NODE, tuple(Subject(SubjectKind.NODE, name) for name in names))


def look(of: Rates, rows: SeriesIndex, value: float, at_s: float, epoch: int = 0) -> float:
    n = len(rows)
    return float(
        of.update(rows, np.full((n, 1), value), np.full((n, 1), at_s), np.full(n, epoch, dtype=np.int64))[0, 0]
    )


def test_the_rate_is_the_increase_over_the_samples_own_times() -> None:
    of, rows = Rates(1), index("n1")
    assert math.isnan(look(of, rows, 100.0, 10.0))
    assert look(of, rows, 130.0, 15.0) == 6.0
    assert look(of, rows, 130.0, 20.0) == 0.0


def test_the_same_sample_again_keeps_its_rate_and_an_older_one_says_nothing() -> None:
    of, rows = Rates(1), index("n1")
    look(of, rows, 100.0, 10.0)
    assert look(of, rows, 130.0, 15.0) == look(of, rows, 130.0, 15.0) == 6.0
    assert math.isnan(look(of, rows, 120.0, 12.0))
    assert math.isnan(look(of, rows, 131.0, 15.0))
    assert look(of, rows, 150.0, 20.0) == 4.0


def test_a_clock_that_was_put_back_costs_one_rate() -> None:
    """Put back by an hour, every rate of the node was missing for that hour."""
    of, rows = Rates(1), index("n1")
    assert math.isnan(look(of, rows, 100.0, 10_000.0))
    assert math.isnan(look(of, rows, 130.0, 10_000.0 - 3600.0))
    assert look(of, rows, 160.0, 10_005.0 - 3600.0) == 6.0


def test_a_missing_value_is_spanned_and_a_long_gap_is_not() -> None:
    of, rows = Rates(1), index("n1")
    look(of, rows, 0.0, 0.0)
    assert math.isnan(look(of, rows, math.nan, 5.0))
    assert look(of, rows, 20.0, 10.0) == 2.0
    assert math.isnan(look(of, rows, 21.0, 10.1 + MAX_GAP_S))
    assert look(of, rows, 31.1, 20.2 + MAX_GAP_S) > 0


def test_a_reset_and_a_new_epoch_are_missing_once() -> None:
    """Neither counts from zero: what a reboot hid is not known."""
    of, rows = Rates(1), index("n1")
    look(of, rows, 1000.0, 0.0)
    assert math.isnan(look(of, rows, 10.0, 5.0))
    assert look(of, rows, 20.0, 10.0) == 2.0
    assert math.isnan(look(of, rows, 30.0, 15.0, epoch=1))
    assert look(of, rows, 40.0, 20.0, epoch=1) == 2.0


def test_rows_keep_their_past_when_others_come_and_go() -> None:
    of = Rates(1)
    both = index("n1", "n2")
    zero, one = np.zeros(2, dtype=np.int64), np.zeros(1, dtype=np.int64)
    of.update(both, np.array([[0.0], [100.0]]), np.full((2, 1), 0.0), zero)
    only = index("n2")
    assert of.update(only, np.array([[110.0]]), np.full((1, 1), 10.0), one)[0, 0] == 1.0
    again = index("n1", "n2")
    rates = of.update(again, np.array([[5.0], [130.0]]), np.full((2, 1), 20.0), zero)
    assert math.isnan(rates[0, 0])
    assert rates[1, 0] == 2.0


SAMPLES = st.lists(
    st.tuples(
        st.floats(0, 1e12) | st.just(math.nan),
        st.floats(-50, 1400) | st.just(math.nan),
        st.integers(0, 1),
        st.booleans(),
    ),
    max_size=30,
)


def naive(samples: list[tuple[float, float, int, bool]]) -> list[float]:
    """The rules one sample at a time."""
    value = at_s = rate = math.nan
    epoch = None
    out = []
    for new, when, now_epoch, is_there in samples:
        if not is_there:
            value = at_s = rate = math.nan
            epoch = None
            continue
        if epoch is not None and epoch != now_epoch:
            value = at_s = rate = math.nan
        epoch = now_epoch
        if math.isnan(new) or math.isnan(when):
            out.append(math.nan)
            continue
        if math.isnan(value):
            value, at_s, rate = new, when, math.nan
        elif when == at_s and new == value:
            pass
        elif at_s - MAX_GAP_S <= when <= at_s:
            out.append(math.nan)
            continue
        elif abs(when - at_s) > MAX_GAP_S or new < value:
            value, at_s, rate = new, when, math.nan
        else:
            value, at_s, rate = new, when, (new - value) / (when - at_s)
        out.append(rate)
    return out


@given(SAMPLES)
def test_columns_give_what_the_rules_give_sample_by_sample(samples: list[tuple[float, float, int, bool]]) -> None:
    """Any order of times, holes, resets, epochs and absences; and a rate is never negative or infinite."""
    of, found = Rates(1), []
    with_row, without = index("a", "x"), index("a")
    for value, at_s, epoch, is_there in samples:
        rows = with_row if is_there else without
        n = len(rows)
        column, times = np.full((n, 1), np.nan), np.full((n, 1), np.nan)
        epochs = np.zeros(n, dtype=np.int64)
        if is_there:
            column[1], times[1], epochs[1] = value, at_s, epoch
        rates = of.update(rows, column, times, epochs)
        if is_there:
            found.append(float(rates[1, 0]))
    np.testing.assert_allclose(found, naive(samples))
    known = np.array([rate for rate in found if not math.isnan(rate)])
    assert (known >= 0).all()
    assert np.isfinite(known).all()


def disk(at_s: float, **told: float) -> Frame:
    metrics = tuple(metric.name for metric in of_kind(SubjectKind.DISK))
    values = np.array([[told.get(name, math.nan) for name in metrics]])
    rows = SeriesIndex(SubjectKind.DISK, (DISK,))
    return Frame(at_s, rows, metrics, values, np.full((1, 1), at_s), np.zeros(1, dtype=np.int64))


def test_a_latency_is_time_over_operations_and_missing_where_nothing_was_done() -> None:
    of, first = Deriver(), disk(0.0, disk_reads_total=10, disk_read_time_s_total=1.0, disk_busy_s_total=5.0)
    assert math.isnan(of.extend(first).value(DISK, "disk_read_latency_s"))
    second = disk(10.0, disk_reads_total=30, disk_read_time_s_total=2.0, disk_busy_s_total=10.0)
    found = of.extend(replace(second, index=first.index))
    assert found.value(DISK, "disk_read_latency_s") == 0.05
    assert found.value(DISK, "disk_busy_ratio") == 0.5
    assert found.times_s("disk_busy_ratio")[0] == 10.0
    idle = of.extend(replace(second, at_s=20.0, index=first.index, observed_at_s=np.full((1, 1), 20.0)))
    assert math.isnan(idle.value(DISK, "disk_read_latency_s"))
    assert idle.value(DISK, "disk_busy_ratio") == 0.0


def test_the_merged_tick_carries_the_rates() -> None:
    merger = Merger()
    first = disk(0.0, disk_read_bytes_total=0.0)
    merger.merge([Batch((), (first,))], 0.0)
    second = replace(disk(5.0, disk_read_bytes_total=50.0), index=first.index)
    tick = merger.merge([Batch((), (second,))], 5.0)
    assert tick.frames[SubjectKind.DISK].value(DISK, "disk_read_bytes_per_s") == 10.0
    assert tick.frames[SubjectKind.DISK].index is first.index
