"""Power limits are lent for a time: without renewal they fall back, and a refused lease changes nothing."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator

import pytest

from nightshift.agent.node_agent import Power, answer_lease, run
from nightshift.collectors.base import Permanent, Temporary
from nightshift.collectors.telemetry.exporter import Settings
from nightshift.controllers.actuators.nvml_power import NvmlPower
from nightshift.controllers.actuators.power_leases import LeaseRefused, PowerLeases

GPUS = [f"GPU-0000000{i}-0000-0000-0000-000000000000" for i in range(8)]
FALLBACK_MW = 400_000


@pytest.fixture
def device(nvml_library: ctypes.CDLL) -> Iterator[NvmlPower]:
    nvml_library.stub_reset()
    yield NvmlPower()
    nvml_library.stub_reset()


def lease(limit_mw: int = 500_000, ttl_s: float = 60.0, term: int = 1, gpus: list[str] = GPUS) -> bytes:
    limits = dict.fromkeys(gpus, limit_mw)
    return json.dumps({"id": "L1", "term": term, "ttl_s": ttl_s, "limits_mw": limits}).encode()


def limits(device: NvmlPower) -> set[int]:
    return {found.now_mw for found in device.ranges().values()}


def test_without_a_lease_gpus_are_at_their_fallback(device: NvmlPower, nvml_library: ctypes.CDLL) -> None:
    """From the start on, and at their default where none is named."""
    PowerLeases(device, FALLBACK_MW)
    assert limits(device) == {FALLBACK_MW}
    nvml_library.stub_reset()
    NvmlPower()
    PowerLeases(device, None)
    assert limits(device) == {700_000}


def test_a_lease_holds_while_it_is_renewed_and_ends_by_itself(device: NvmlPower) -> None:
    leases = PowerLeases(device, FALLBACK_MW)
    leases.grant(lease(), 100.0)
    assert limits(device) == {500_000}
    assert leases.turn(159.0) is False
    leases.grant(lease(), 159.0)
    assert leases.turn(200.0) is False
    assert leases.status(200.0)["left_s"] == 19.0
    assert leases.turn(219.0) is True
    assert limits(device) == {FALLBACK_MW}
    assert leases.status(219.0)["lease"] is None


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"no json", "JSON"),
        (lease(ttl_s=1e6), "ttl_s"),
        (lease(limit_mw=900_000, term=5), "takes 200000 to 700000 mW"),
        (lease(gpus=["GPU-of-another-node"], term=5), "no GPU of this machine"),
        (lease(term=4), "term 4 is over"),
    ],
    ids=["not a lease", "too long", "beyond the GPU", "another node", "an earlier leader"],
)
def test_what_is_refused_changes_nothing(device: NvmlPower, body: bytes, said: str) -> None:
    leases = PowerLeases(device, FALLBACK_MW)
    leases.grant(lease(term=5), 100.0)
    with pytest.raises(LeaseRefused, match=said):
        leases.grant(body, 101.0)
    assert limits(device) == {500_000}
    assert answer_lease(leases, body, lambda: 101.0)[0] == 409


def test_a_gpu_that_does_not_take_its_limit_ends_the_lease(device: NvmlPower, nvml_library: ctypes.CDLL) -> None:
    """All that can go to their fallback; the one that cannot is tried again until it can."""
    leases = PowerLeases(device, FALLBACK_MW)
    nvml_library.stub_stuck(3, 1)
    with pytest.raises(Temporary, match="GPU-00000003"):
        leases.grant(lease(), 100.0)
    assert limits(device) == {FALLBACK_MW}, "nothing was left raised"
    nvml_library.stub_stuck(3, 0)
    leases.grant(lease(), 101.0)
    nvml_library.stub_stuck(3, 1)
    with pytest.raises(Temporary):
        leases.turn(200.0)
    nvml_library.stub_stuck(3, 0)
    assert leases.turn(201.0) is True
    assert limits(device) == {FALLBACK_MW}


def test_the_sum_is_never_above_both_the_old_and_the_new(device: NvmlPower) -> None:
    """Limits are lowered before others are raised."""
    leases = PowerLeases(device, FALLBACK_MW)
    sums = []
    plain = device.set_limit

    def seen(uuid: str, limit_mw: int) -> None:
        plain(uuid, limit_mw)
        sums.append(sum(found.now_mw for found in device.ranges().values()))

    device.set_limit = seen  # type: ignore[method-assign]
    mixed = {gpu: 600_000 if i % 2 else 200_000 for i, gpu in enumerate(GPUS)}
    body = json.dumps({"id": "L", "term": 1, "ttl_s": 60, "limits_mw": mixed}).encode()
    leases.grant(body, 0.0)
    assert max(sums) <= max(8 * FALLBACK_MW, sum(mixed.values()))


def test_leaving_ends_the_lease(device: NvmlPower) -> None:
    leases = PowerLeases(device, FALLBACK_MW)
    leases.grant(lease(), 100.0)
    leases.close()
    assert limits(device) == {FALLBACK_MW}


def test_a_fallback_that_a_gpu_cannot_have_is_refused_at_the_start(device: NvmlPower) -> None:
    with pytest.raises(LeaseRefused, match="fallback of 900000 mW"):
        PowerLeases(device, 900_000)


def test_leases_are_taken_by_mutual_tls_alone(device: NvmlPower) -> None:
    with pytest.raises(Permanent, match="mutual TLS alone"):
        run(Settings(host="127.0.0.1", port=0), "n1", Power(device, FALLBACK_MW))
    assert limits(device) == {700_000}, "nothing was touched"


def test_a_persons_limit_is_never_corrected(device: NvmlPower, nvml_library: ctypes.CDLL) -> None:
    """Neither by a lease, nor by its end, nor by leaving; and it is told."""
    leases = PowerLeases(device, FALLBACK_MW)
    leases.grant(lease(), 100.0)
    nvml_library.stub_by_hand(2, 450_000)
    leases.grant(lease(), 110.0)
    assert leases.status(110.0)["by_hand"] == [GPUS[2]]
    leases.turn(500.0)
    leases.close()
    assert device.ranges()[GPUS[2]].now_mw == 450_000
    assert limits(device) == {FALLBACK_MW, 450_000}


def test_at_the_start_a_lower_limit_is_a_persons_unless_the_agent_had_ordered_it(
    device: NvmlPower, nvml_library: ctypes.CDLL
) -> None:
    """A higher one is taken to the fallback, whoever set it: the budget counts on that."""
    nvml_library.stub_by_hand(0, 300_000)
    nvml_library.stub_by_hand(1, 250_000)
    nvml_library.stub_by_hand(2, 650_000)
    leases = PowerLeases(device, FALLBACK_MW)
    now = [found.now_mw for found in device.ranges().values()]
    assert now[:4] == [300_000, 250_000, FALLBACK_MW, FALLBACK_MW]
    body = json.loads(lease())
    leases.grant(json.dumps({**body, "held_mw": {GPUS[1]: 250_000}}).encode(), 1.0)
    now = [found.now_mw for found in device.ranges().values()]
    assert now[:4] == [300_000, 500_000, 500_000, 500_000]


def test_clocks_are_locked_with_a_lease_and_free_without(device: NvmlPower, nvml_library: ctypes.CDLL) -> None:
    leases = PowerLeases(device, FALLBACK_MW)
    body = {**json.loads(lease()), "clocks_mhz": {GPUS[0]: 1200, GPUS[1]: 1300}}
    leases.grant(json.dumps(body).encode(), 0.0)
    assert [nvml_library.stub_clock(i) for i in range(3)] == [1200, 1300, 0]
    leases.grant(json.dumps({**body, "clocks_mhz": {GPUS[1]: 1100}}).encode(), 1.0)
    assert [nvml_library.stub_clock(i) for i in range(3)] == [0, 1100, 0]
    leases.turn(100.0)
    assert nvml_library.stub_clock(1) == 0
    for wrong in ({GPUS[0]: 5000}, {"GPU-of-another-node": 1000}):
        with pytest.raises(LeaseRefused):
            leases.grant(json.dumps({**body, "clocks_mhz": wrong}).encode(), 2.0)


def test_a_lock_of_an_earlier_process_is_freed_where_the_agent_says_that_it_was_its(
    device: NvmlPower, nvml_library: ctypes.CDLL
) -> None:
    """Once, and of GPUs that are there; a person's is not touched."""
    body = {**json.loads(lease()), "clocks_mhz": {GPUS[0]: 1200, GPUS[1]: 1200, GPUS[2]: 1200}}
    PowerLeases(device, FALLBACK_MW).grant(json.dumps(body).encode(), 0.0)  # and was killed
    leases = PowerLeases(device, FALLBACK_MW)
    body |= {"clocks_mhz": {}, "clocks_freed": [GPUS[0], GPUS[1], "GPU-gone"], "clocks_left": [GPUS[1]]}
    leases.grant(json.dumps(body).encode(), 1.0)
    assert [nvml_library.stub_clock(i) for i in range(3)] == [0, 1200, 1200]
    device.lock_clock(GPUS[0], 1500)
    leases.grant(json.dumps(body).encode(), 2.0)
    leases.close()
    assert [nvml_library.stub_clock(i) for i in range(3)] == [1500, 1200, 1200]


def test_a_persons_clock_is_left_when_it_is_seen_or_told(device: NvmlPower, nvml_library: ctypes.CDLL) -> None:
    """Above our lock the node sees it; below, the agent says so; neither a renewal nor the end touches it."""
    leases = PowerLeases(device, FALLBACK_MW)
    body = {**json.loads(lease()), "clocks_mhz": {GPUS[0]: 1200, GPUS[1]: 1200, GPUS[2]: 1200}}
    leases.grant(json.dumps(body).encode(), 0.0)
    device.lock_clock(GPUS[0], 1500)
    device.lock_clock(GPUS[1], 900)
    leases.grant(json.dumps({**body, "clocks_left": [GPUS[1]]}).encode(), 1.0)
    assert leases.status(1.0)["clocks_by_hand"] == [GPUS[0], GPUS[1]]
    leases.turn(100.0)
    leases.close()
    assert [nvml_library.stub_clock(i) for i in range(3)] == [1500, 900, 0]
    leases.grant(json.dumps(body).encode(), 101.0)
    assert [nvml_library.stub_clock(i) for i in range(3)] == [1500, 1200, 1200], "the second was given back"


def test_without_the_right_the_lease_is_refused_and_says_why(device: NvmlPower, nvml_library: ctypes.CDLL) -> None:
    leases = PowerLeases(device, FALLBACK_MW)
    nvml_library.stub_deny(1)
    status, said = answer_lease(leases, lease(), lambda: 1.0)
    assert status == 503
    assert b"needs root and CAP_SYS_ADMIN" in said


def test_a_gpu_that_only_says_that_it_was_set_is_read_back(device: NvmlPower, nvml_library: ctypes.CDLL) -> None:
    """What is told is what NVML enforces, not what was asked for."""
    leases = PowerLeases(device, FALLBACK_MW)
    nvml_library.stub_lie(5, 1)
    leases.grant(lease(), 0.0)
    assert leases.status(0.0)["gpus"][GPUS[5]]["now_mw"] == FALLBACK_MW


def test_a_board_that_is_lost_keeps_no_other_from_its_fallback(
    device: NvmlPower, nvml_library: ctypes.CDLL
) -> None:
    """When the lease ends, and for a node agent that starts meanwhile; a lease that names it is refused and says
    which; one for the others is granted."""
    leases = PowerLeases(device, FALLBACK_MW)
    leases.grant(lease(), 100.0)
    nvml_library.stub_lose(3, 1)
    assert set(leases.status(110.0)["gpus"]) == {*GPUS} - {GPUS[3]}
    with pytest.raises(LeaseRefused, match=f"{GPUS[3]} is no GPU of this machine"):
        leases.grant(lease(), 120.0)
    assert leases.turn(161.0) is True
    assert limits(device) == {FALLBACK_MW}
    leases.grant(lease(gpus=GPUS[:3]), 170.0)
    assert leases.turn(171.0) is False
    assert [device.ranges()[uuid].now_mw for uuid in GPUS[:3]] == [500_000] * 3
    leases.close()
    PowerLeases(device, 300_000)
    assert limits(device) == {300_000}


def test_a_board_that_comes_back_from_a_reset_goes_to_its_fallback(
    device: NvmlPower, nvml_library: ctypes.CDLL
) -> None:
    """It is at its default then, which nobody set; one that a person had set before it was away stays theirs."""
    leases = PowerLeases(device, FALLBACK_MW)
    leases.grant(lease(300_000), 100.0)
    nvml_library.stub_by_hand(4, 700_000)
    leases.status(101.0)
    for board in (3, 4):
        nvml_library.stub_lose(board, 1)
    leases.turn(161.0)
    nvml_library.stub_by_hand(3, 700_000)  # what the driver's reset leaves
    for board in (3, 4):
        nvml_library.stub_lose(board, 0)
    told = leases.status(162.0)
    assert told["by_hand"] == [GPUS[4]]
    assert leases.turn(163.0) is True
    found = device.ranges()
    assert (found[GPUS[3]].now_mw, found[GPUS[4]].now_mw) == (FALLBACK_MW, 700_000)


def test_a_board_that_is_seen_later_than_the_start_is_at_its_fallback_too(
    device: NvmlPower, nvml_library: ctypes.CDLL
) -> None:
    nvml_library.stub_lose(5, 1)
    leases = PowerLeases(device, FALLBACK_MW)
    nvml_library.stub_lose(5, 0)
    assert leases.status(100.0)["gpus"][GPUS[5]]["fallback_mw"] == FALLBACK_MW
    assert leases.turn(101.0) is True
    assert limits(device) == {FALLBACK_MW}
    leases.grant(lease(), 110.0)
    assert leases.turn(111.0) is False
    assert limits(device) == {500_000}
