"""Throttling is said where it costs work, and not where a workload or our own cap makes the clock lower."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Fault, State
from nightshift.detectors.contract.testing import START_S, changes, gpu, tick
from nightshift.detectors.hardware.throttle import CLEAR_S, TOLD_S, Throttle
from tests.recordings.replay import Job, cut, h200

CAP, SW_HEAT, HEAT, BRAKE = 0x4, 0x20, 0x40, 0x80
Row = dict[str, float]


def row(clock: float = 1980.0, mask: int = 0, busy: float = 95.0) -> Row:
    return {
        "gpu_sm_clock_mhz": clock,
        "gpu_throttle_reasons": float(mask),
        "gpu_utilization_percent": busy,
        "gpu_temperature_c": 60.0,
    }


def stream(
    count: int, of_zero: Callable[[int], Row], of_others: Row | None = None, from_tick: int = 0
) -> list[Tick]:
    return [
        tick(START_S + 5.0 * n, {0: of_zero(n), 1: of_others or row(), 2: of_others or row()})
        for n in range(from_tick, from_tick + count)
    ]


@pytest.mark.parametrize("mask", [HEAT, SW_HEAT, BRAKE, HEAT | 0x8])
def test_heat_or_a_power_brake_that_costs_clock_under_load_is_said_and_cleared(mask: int) -> None:
    """One episode on the one GPU, with its reason, its reference and the share lost."""
    found = changes(Throttle(), stream(400, lambda n: row(1500.0, mask) if 100 <= n < 200 else row()))
    assert [f.state for f in found] == [State.FIRING, State.CLEAR]
    first = found[0]
    assert (first.fault, first.subject) == (Fault.THROTTLE, gpu(0))
    assert first.facts["reference_mhz"] == pytest.approx(1980.0, rel=0.01)
    assert first.score > first.threshold
    assert 60 <= first.at.t_s - START_S - 500 <= 240
    (exhibit,) = first.evidence
    assert set(exhibit.values) == {1500.0}


@pytest.mark.parametrize(
    "of_zero",
    [
        lambda n: row(1455.0, CAP) if n >= 100 else row(),
        lambda n: row(1000.0, CAP) if n >= 100 else row(),
        lambda n: row(1200.0, 0x2) if n >= 100 else row(),
        lambda n: row(345.0, 0x1, 0.0) if n >= 100 else row(),
        lambda n: row(1950.0, HEAT) if n >= 100 else row(),
        lambda n: row(1500.0, HEAT) if n >= 100 and n % 20 == 0 else row(),
        lambda n: row(1500.0, HEAT, 3.0) if n >= 100 else row(),
        lambda n: row(1455.0, CAP) if n < 100 or n % 10 else row(1445.0, CAP | HEAT),
    ],
    ids=["power cap", "our own deep cap", "locked clocks", "idle", "no loss", "blips", "no work", "at its cap"],
)
def test_throttling_that_is_no_fault_or_costs_nothing_is_not_said(of_zero: Callable[[int], Row]) -> None:
    """Software power caps (ours or the board's), locked clocks, idling, a warm GPU at full clock, blips."""
    assert changes(Throttle(), stream(300, of_zero)) == []


def test_a_gpu_that_was_hot_from_its_first_look_is_compared_with_its_job() -> None:
    """No clock of its own to compare with: the job's other GPUs tell the loss; without a job nothing is said."""
    found = changes(Throttle(), stream(100, lambda n: row(1400.0, HEAT)))
    assert [(f.state, f.subject) for f in found] == [(State.FIRING, gpu(0))]
    assert changes(Throttle(), stream(100, lambda n: row(1400.0, HEAT), row(1400.0, HEAT))) == []


def test_missing_reasons_are_no_data_and_not_health() -> None:
    """While firing, a look without the mask is no_data, said once; it does not clear however long it lasts."""
    hot = stream(200, lambda n: row(1400.0, HEAT) if n >= 100 else row())
    blind = [tick(START_S + 5.0 * n, {0: {"gpu_sm_clock_mhz": 1980.0}}) for n in range(200, 400)]
    assert [f.state for f in changes(Throttle(), hot + blind)] == [State.FIRING, State.NO_DATA]
    cool = stream(600, lambda n: row())[400:]
    _, gone, back, clear = changes(Throttle(), hot + blind + cool)
    assert (gone.state, back.state, clear.state) == (State.NO_DATA, State.FIRING, State.CLEAR)
    assert back.summary.startswith("Works at 1400 MHz")
    assert clear.at.t_s - back.at.t_s >= CLEAR_S - 5.0  # it was blind until one look before


@pytest.mark.parametrize("name", ["gemm_bf16", "sdpa", "copy_hbm", "train_ok", "train_gpu_leak"])
def test_a_healthy_h200_at_its_power_limit_is_not_said_to_throttle(name: str) -> None:
    """Recorded load at 690 of 700 W, with the power cap bit set for minutes."""
    job = Job([[cut(h200("train_ok"), 40), h200(name)]])
    assert changes(Throttle(), list(job.ticks()), job.inventory()) == []


@pytest.mark.parametrize(("mask", "busy", "is_fault"), [
    (0x8, None, True), (BRAKE, 95.0, True), (HEAT | SW_HEAT, None, True),
    (SW_HEAT, None, False), (CAP, None, False), (BRAKE, 3.0, False),
])  # fmt: skip
def test_reasons_of_the_hardware_without_a_clock_are_a_fault_once_they_last(
    mask: int, busy: float | None, is_fault: bool
) -> None:
    def told(n: int) -> Row:
        seen = {"gpu_throttle_reasons": float(mask if 10 <= n < 60 else 0)}
        return seen if busy is None else {**seen, "gpu_utilization_percent": busy}

    found = changes(Throttle(), [tick(START_S + 5.0 * n, {0: told(n)}) for n in range(150)])
    assert [f.state for f in found] == ([State.FIRING, State.CLEAR] if is_fault else [])
    assert not is_fault or found[0].at.t_s - START_S == 50.0 + TOLD_S
