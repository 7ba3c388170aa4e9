"""Link errors are said by lasting rates that matter, and lost width or speed by the link's own best."""

from __future__ import annotations

import pytest

from nightshift.collectors.subject import SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Fault, State
from nightshift.detectors.contract.testing import START_S, changes, gpu, inventory, tick
from nightshift.detectors.hardware.interconnect import Interconnect

REPLAY, CRC = "gpu_pcie_replay_total", "gpu_nvlink_crc_errors_total"


def counted(metric: str, per_tick: list[float], kind: SubjectKind = SubjectKind.GPU) -> list[Tick]:
    total, found = 500.0, []
    for n, more in enumerate(per_tick):
        total += more
        found.append(tick(START_S + 5.0 * n, {0: {metric: total}, 1: {metric: 500.0}}, kind))
    return found


@pytest.mark.parametrize(
    ("metric", "per_tick", "fault", "kind"),
    [
        (REPLAY, 1.0, Fault.PCIE_DEGRADED, SubjectKind.GPU),
        (CRC, 600.0, Fault.NVLINK_DEGRADED, SubjectKind.GPU),
        ("link_crc_errors_total", 600.0, Fault.NVLINK_DEGRADED, SubjectKind.LINK),
        ("link_recovery_errors_total", 0.1, Fault.NVLINK_DEGRADED, SubjectKind.LINK),
        ("nic_link_down_total", 0.1, Fault.NETWORK_DEGRADED, SubjectKind.NIC),
        ("nic_symbol_errors_total", 20.0, Fault.NETWORK_DEGRADED, SubjectKind.NIC),
    ],
)
def test_a_rate_that_matters_and_lasts_is_said_and_cleared(
    metric: str, per_tick: float, fault: Fault, kind: SubjectKind
) -> None:
    """Said within three stretches, on the one link, with the counter as evidence; cleared when it is quiet."""
    found = changes(Interconnect(), counted(metric, [0.0] * 60 + [per_tick] * 60 + [0.0] * 240, kind))
    assert [f.state for f in found] == [State.FIRING, State.CLEAR]
    assert (found[0].fault, found[0].subject.name.partition("/")[0]) == (fault, "GPU-0")
    assert found[0].at.t_s - START_S - 300 <= 190
    before, now = found[0].evidence[0].values
    assert now > before >= 500.0


@pytest.mark.parametrize(
    "per_tick",
    [[0.5] * 200, [0.0] * 50 + [5000.0] + [0.0] * 150, [0.0] * 50 + [-400.0] + [0.0] * 150],
    ids=["below the limit", "one jump", "a counter that starts anew"],
)
def test_rare_errors_a_single_jump_and_a_reset_are_not_said(per_tick: list[float]) -> None:
    """Six replays a minute are below the limit of eight; one burst is one stretch; a reset is no rate."""
    assert changes(Interconnect(), counted(REPLAY, per_tick)) == []


def test_a_link_that_trains_narrower_is_said_and_an_idle_slow_one_is_not() -> None:
    """Eight of sixteen lanes for two minutes; the generation drops only while the GPU idles."""

    def at(n: int, width: float, generation: float, busy: float) -> Tick:
        values = {"gpu_pcie_link_width": width, "gpu_pcie_link_generation": generation}
        return tick(START_S + 5.0 * n, {0: {**values, "gpu_utilization_percent": busy}})

    idle = [at(n, 16.0, 5.0 if n % 40 < 20 else 1.0, 90.0 if n % 40 < 20 else 0.0) for n in range(200)]
    assert changes(Interconnect(), idle) == []
    found = changes(Interconnect(), idle + [at(n, 8.0, 5.0, 90.0) for n in range(200, 260)])
    assert [(f.state, f.fault, f.subject) for f in found] == [(State.FIRING, Fault.PCIE_DEGRADED, gpu(0))]
    assert (found[0].facts["level"], found[0].facts["best"]) == (8.0, 16.0)


@pytest.mark.parametrize(
    ("lanes", "told_of"),
    [
        ([16, 16, 16, 8, 16, 16, 16, 16], ["GPU-3"]),
        ([16, 8, 16, 8, 16, 8, 16, 8], []),
        ([8] * 8, []),
        ([16, 16, 8], []),
    ],
    ids=["one of eight", "as the board is built", "all alike", "too few to tell"],
)
def test_a_link_that_was_narrow_from_the_first_look_is_told_by_its_peers(
    lanes: list[float], told_of: list[str]
) -> None:
    """It has no better past; all other GPUs of its node and model do. Several of another width are by design."""
    stream = [
        tick(START_S + 5.0 * n, {g: {"gpu_pcie_link_width": w} for g, w in enumerate(lanes)}) for n in range(60)
    ]
    found = changes(Interconnect(), stream)
    assert [(f.fault, f.subject.name) for f in found] == [(Fault.PCIE_DEGRADED, name) for name in told_of]


def test_a_gpu_of_another_model_is_no_peer() -> None:
    """An L4 with its eight lanes among H200s is as it should be."""
    known = inventory()
    for number in range(8):
        known.describe(gpu(number), model="NVIDIA L4" if number == 3 else "NVIDIA H200")
    row = {g: {"gpu_pcie_link_width": 8.0 if g == 3 else 16.0} for g in range(8)}
    assert changes(Interconnect(), [tick(START_S + 5.0 * n, row) for n in range(60)], known) == []
