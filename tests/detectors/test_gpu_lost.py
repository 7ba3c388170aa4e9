"""A GPU is lost where its node's page goes on without it, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nightshift.collectors.frame import Frame, Instant, LogRecord, Reason, SeriesIndex
from nightshift.collectors.kernel_log.event import KernelEvent, KernelEventKind
from nightshift.collectors.subject import SHOWS_HELD_ONLY, Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Fault, Severity, State
from nightshift.detectors.contract.testing import NODE, START_S, changes, gpu, inventory, tick
from nightshift.detectors.hardware.gpu_lost import GpuLost

ALIVE = {"gpu_power_w": 100.0}


def seen(n: int, numbers: list[int], nan: tuple[int, ...] = ()) -> Tick:
    return tick(START_S + 5.0 * n, {g: {"gpu_power_w": np.nan} if g in nan else ALIVE for g in numbers})


WELL = [seen(n, list(range(8))) for n in range(40)]


@pytest.mark.parametrize("as_nan", [False, True])
def test_a_gpu_that_vanishes_from_a_page_that_goes_on_is_lost_and_clears_when_it_is_back(as_nan: bool) -> None:
    """Its row gone, or there with nothing in it: the same. Dated by its last look; critical."""
    gone = [seen(n, [g for g in range(8) if as_nan or g != 3], (3,) if as_nan else ()) for n in range(40, 90)]
    back = [seen(n, list(range(8))) for n in range(90, 95)]
    found = changes(GpuLost(), WELL + gone + back)
    assert [f.state for f in found] == [State.FIRING, State.CLEAR]
    assert (found[0].fault, found[0].subject, found[0].severity) == (Fault.GPU_LOST, gpu(3), Severity.CRITICAL)
    assert found[0].since.t_s == START_S + 5.0 * 39
    assert 120 <= found[0].at.t_s - found[0].since.t_s <= 130


def test_a_silent_look_that_comes_out_of_order_clears_nothing() -> None:
    """Its time lies before the GPU was last seen; it shows nobody all the same."""
    gone = [seen(n, [g for g in range(8) if g != 3]) for n in range(40, 90)]
    found = changes(GpuLost(), [*WELL, *gone, Tick(START_S + 5.0 * 20, {})])
    assert State.CLEAR not in [f.state for f in found]


def test_a_reset_a_silent_node_and_a_young_gpu_are_not_lost() -> None:
    """Away for a minute; the whole node silent, for hours; seen only twice before."""
    reset = [seen(n, [0, 1, 2, 4, 5, 6, 7]) for n in range(40, 60)] + [seen(60, list(range(8)))]
    assert changes(GpuLost(), WELL + reset) == []
    other = tick(START_S + 5.0 * 60, {})
    silent = [Tick(other.at_s + 5.0 * n, other.frames) for n in range(200)]
    assert changes(GpuLost(), WELL + silent) == []
    young = [seen(n, list(range(8 if n in (5, 6) else 7))) for n in range(80)]
    assert changes(GpuLost(), young) == []


def test_a_swapped_board_is_not_lost() -> None:
    """Another UUID takes its place: the node counts as many GPUs as before."""
    known = inventory()
    known.observe(gpu("new"), NODE, START_S + 200)
    rows = {**{g: ALIVE for g in range(8) if g != 3}, "new": ALIVE}
    swapped = [tick(START_S + 5.0 * n, rows) for n in range(40, 120)]  # type: ignore[arg-type]
    assert changes(GpuLost(), WELL + swapped, known) == []


def test_a_lost_gpu_is_lost_no_more_once_another_board_is_in_its_place() -> None:
    """Days later, under a new UUID; one that was there before the loss stands for nobody, nor does a new one while
    a second one is away."""
    known = inventory()
    away = [seen(n, [g for g in range(8) if g != 3]) for n in range(40, 90)]
    known.observe(gpu("new"), NODE, START_S + 5.0 * 90)
    rows = {**{g: ALIVE for g in range(8) if g != 3}, "new": ALIVE}
    fewer = {name: row for name, row in rows.items() if name != 5}
    partly = [tick(START_S + 5.0 * n, fewer) for n in range(90, 95)]  # type: ignore[arg-type]
    swapped = [tick(START_S + 5.0 * n, rows) for n in range(95, 100)]  # type: ignore[arg-type]
    found = changes(GpuLost(), WELL + away + partly + swapped, known)
    assert [(f.state, f.subject) for f in found] == [(State.FIRING, gpu(3)), (State.CLEAR, gpu(3))]
    assert found[1].at.t_s == START_S + 5.0 * 95
    assert "taken its place" in found[1].summary


def test_a_lost_gpu_that_has_left_its_node_is_replaced_there() -> None:
    """Once another board holds its slot it is on no node any more, and was lost for ever."""
    known = inventory()
    away = [seen(n, [g for g in range(8) if g != 3]) for n in range(40, 90)]
    detector = GpuLost()
    assert [f.state for f in changes(detector, WELL + away, known)] == [State.FIRING]
    known.end(gpu(3), NODE, START_S + 5.0 * 90)
    known.observe(gpu("new"), NODE, START_S + 5.0 * 90)
    rows = {**{g: ALIVE for g in range(8) if g != 3}, "new": ALIVE}
    swapped = [tick(START_S + 5.0 * n, rows) for n in range(90, 95)]  # type: ignore[arg-type]
    assert changes(detector, swapped, known)[-1].state is State.CLEAR


@pytest.mark.parametrize("as_rejected", [False, True])
def test_of_a_page_that_was_cut_short_nothing_follows_until_it_is_whole_again(as_rejected: bool) -> None:
    """A proxy that cuts pages would have its GPUs called lost, and their node rebooted."""
    rest = [seen(n, [0, 1, 2]) for n in range(40, 120)]
    how = {"rejected": {Reason.TRUNCATED: 1}} if as_rejected else {"ok": False, "reason": Reason.TRUNCATED}
    told_of = [
        replace(t, sources=tuple(replace(s, covers=(NODE,), **how) for s in t.sources))  # type: ignore[arg-type]
        for t in rest
    ]
    assert changes(GpuLost(), WELL + told_of) == []
    whole = [seen(120, [0, 1, 2, 3, 4, 5, 6])]
    assert [f.subject for f in changes(GpuLost(), WELL + told_of + whole)] == [gpu(7)]


def test_a_gpu_that_was_cut_into_mig_instances_is_not_lost() -> None:
    """Its instances' rows stand for it."""
    index = SeriesIndex(SubjectKind.MIG, (Subject(SubjectKind.MIG, "GPU-3/mig1"),))
    ticks = list(WELL)
    for n in range(40, 120):
        rest = seen(n, [g for g in range(8) if g != 3])
        mig = Frame(
            rest.at_s,
            index,
            ("gpu_power_w",),
            np.ones((1, 1)),
            np.full((1, 1), rest.at_s),
            np.zeros(1, dtype=np.int64),
        )
        ticks.append(Tick(rest.at_s, {**rest.frames, SubjectKind.MIG: mig}, sources=rest.sources))
    assert changes(GpuLost(), ticks) == []


def test_on_a_node_out_of_service_a_loss_is_a_warning() -> None:
    """Somebody is at work there: told, not critical."""
    known: Inventory = inventory()
    known.describe(NODE, unschedulable="true")
    (found,) = changes(GpuLost(), WELL + [seen(n, list(range(7))) for n in range(40, 90)], known)
    assert (found.severity, found.facts["out_of_service"]) == (Severity.WARNING, "yes")


def test_a_loss_is_not_cleared_by_its_node_falling_silent() -> None:
    """Firing becomes no_data, once, and stays so."""
    gone = [seen(n, list(range(7))) for n in range(40, 90)]
    silent = [Tick(START_S + 5.0 * n, {}) for n in range(90, 300)]
    assert [f.state for f in changes(GpuLost(), WELL + gone + silent)] == [State.FIRING, State.NO_DATA]


def bare() -> Inventory:
    """Eight GPUs of one node that no pod holds."""
    known = Inventory()
    for number in range(8):
        known.observe(gpu(number), NODE, START_S - 3600.0)
    return known


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("left", [1, 3])
def test_idle_gpus_that_an_exporter_stops_listing_are_not_lost(told: bool, left: int) -> None:
    """Its node's fact says so; or several that no pod held vanish at one scrape and all that are left are held."""
    known = bare()
    if told:
        known.describe(NODE, **{SHOWS_HELD_ONLY: "yes"})
    for number in range(left):
        known.observe(gpu(number), Subject(SubjectKind.POD, f"ml/job-{number}"), START_S)
    hidden = [seen(n, list(range(left))) for n in range(40, 90)]
    assert changes(GpuLost(), WELL + hidden, known) == []


def test_a_held_gpu_that_vanishes_with_idle_ones_is_lost() -> None:
    known = bare()
    for number in (0, 1):
        known.observe(gpu(number), Subject(SubjectKind.POD, f"ml/job-{number}"), START_S)
    gone = [seen(n, [0]) for n in range(40, 90)]
    assert {f.subject for f in changes(GpuLost(), WELL + gone, known)} == {gpu(n) for n in range(1, 8)}


def test_idle_gpus_that_the_kernel_log_calls_lost_are_not_hidden() -> None:
    """Several idle GPUs gone at one scrape look like an exporter that lists them no more, but for the log."""
    known = bare()
    for number in range(2):
        known.observe(gpu(number), Subject(SubjectKind.POD, f"ml/job-{number}"), START_S)
    hidden = [seen(n, [0, 1]) for n in range(40, 90)]
    record = LogRecord(Instant(START_S + 200), "/dev/kmsg", NODE, "x", 1)
    events = (
        KernelEvent(KernelEventKind.XID, record, NODE, code=79, gpu=gpu(4)),
        KernelEvent(KernelEventKind.FELL_OFF_BUS, record, NODE, gpu=gpu(5)),
        KernelEvent(KernelEventKind.MESSAGE, record, NODE, gpu=gpu(6), attributes={"message": "gpu_is_lost"}),
        KernelEvent(KernelEventKind.XID, record, NODE, code=31, gpu=gpu(7)),
    )
    assert changes(GpuLost(), [*WELL, *hidden], known) == []
    told = [*WELL, replace(hidden[0], events=events), *hidden[1:]]
    assert [f.subject for f in changes(GpuLost(), told, known)] == [gpu(4), gpu(5), gpu(6)]
