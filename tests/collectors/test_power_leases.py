"""Power limits are lent for a time: without renewal they fall back, and a refused lease changes nothing."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator

import pytest

from agent.node import Power, answer_lease, run
from collectors.base import Permanent, Temporary
from collectors.exporter import Settings
from controllers.actuators.power_leases import NvmlPower, PowerLeases, Refused

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


def test_without_a_lease_gpus_are_at_their_fallback(device: NvmlPower) -> None:
    """From the start on, and at their default where none is named."""
    PowerLeases(device, FALLBACK_MW)
    assert limits(device) == {FALLBACK_MW}
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
    with pytest.raises(Refused, match=said):
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
    with pytest.raises(Refused, match="fallback of 900000 mW"):
        PowerLeases(device, 900_000)


def test_leases_are_taken_by_mutual_tls_alone(device: NvmlPower) -> None:
    with pytest.raises(Permanent, match="mutual TLS alone"):
        run(Settings(host="127.0.0.1", port=0), "n1", Power(device, FALLBACK_MW))
    assert limits(device) == {700_000}, "nothing was touched"
