"""Lemons: units that fail more than their peers are named with their incidents; busy or unlucky ones are not."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from nightshift.agent.incidents.lemons import DAY_S, DAYS, Lemons, lemons
from nightshift.agent.store.incident_store import Store
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.detectors.alarms.lanes import Lane, lane_of
from nightshift.detectors.base import Fault, State
from tests.agent.incidents import ManualClock, a_diagnosis, a_finding

K = SubjectKind
NODES = 60


def gpu_of(node: int) -> Subject:
    return Subject(K.GPU, f"GPU-{node}")


@pytest.fixture
def store(sqlite_url: str, clock: ManualClock) -> Iterator[Store]:
    made = Store(sqlite_url, clock)
    yield made
    made.close()


def fleet() -> Inventory:
    inventory = Inventory()
    for n in range(NODES):
        node, pod = Subject(K.NODE, f"n{n}"), Subject(K.POD, f"ml/p{n}")
        inventory.observe(gpu_of(n), node, 0.0)
        inventory.observe(gpu_of(n), pod, 0.0)
        inventory.observe(pod, Subject(K.JOB, f"ml/j{n}"), 0.0)
        inventory.observe(Subject(K.NIC, f"n{n}/mlx5_0:1"), node, 0.0)
        inventory.describe(gpu_of(n), slot="0000:1b:00.0")
    return inventory


def fails(store: Store, clock: ManualClock, subject: Subject, fault: Fault = Fault.GPU_LOST) -> str:
    name = store.open_incident("bad", [a_finding(fault, subject, at_s=clock.now_s(), since_s=clock.now_s())])
    store.save_diagnosis(store.incident(name), a_diagnosis(fault), by="diagnose")
    return name


def weeks(store: Store, clock: ManualClock, bad: Subject, inventory: Inventory, every: int = 5) -> list[str]:
    """28 days with a failure of one unit every few days, and one of every tenth node."""
    counted, names = Lemons(store, inventory), []
    for day in range(DAYS):
        counted.findings(clock.now_s())
        if day % every == 1:
            names.append(fails(store, clock, bad))
        if day % 10 == 3:
            fails(store, clock, Subject(K.NODE, f"n{day}"), Fault.HOST_ERROR)
        clock.advance(DAY_S)
    return names


def test_a_gpu_that_fails_again_and_again_is_a_ticket_with_its_incidents(store: Store, clock: ManualClock) -> None:
    inventory = fleet()
    names = weeks(store, clock, gpu_of(7), inventory)
    again = Lemons(store, inventory)
    again.resume()  # what was counted outlives a restart
    (found,) = again.findings(clock.now_s())
    assert (found.subject, found.fault, lane_of(found)) == (Subject(K.NODE, "n7"), Fault.LEMON, Lane.TICKET)
    assert "gpu:GPU-7 failed on 6 of" in found.summary
    assert "slot:n7 0000:1b:00.0" in found.summary
    assert all(name in found.summary for name in names[1:])
    clock.advance(3601.0)
    assert [f.episode for f in again.findings(clock.now_s())] == [found.episode]
    clock.advance(DAYS * DAY_S)  # it fails no more
    (over,) = again.findings(clock.now_s())
    assert (over.state, over.episode) == (State.CLEAR, found.episode)
    assert again.findings(clock.now_s()) == []


def test_a_cable_is_known_by_its_serial_number_wherever_it_is_plugged(store: Store, clock: ManualClock) -> None:
    inventory = fleet()
    ports, leaf = [Subject(K.NIC, f"n{n}/mlx5_0:1") for n in range(NODES)], Subject(K.NIC, "leaf1/9")
    for number, port in enumerate(ports):
        inventory.describe(port, cable=f"SN MT{number}, PN MCP4")
    inventory.observe(leaf, Subject(K.SWITCH, "leaf1"), 0.0)
    inventory.describe(leaf, peer=str(ports[9]))
    counted = Lemons(store, inventory)
    for day in range(24):
        if day == 12:  # a person plugs the cable into another node
            inventory.describe(ports[9], cable="SN MT30, PN MCP4")
            inventory.describe(ports[30], cable="SN MT9, PN MCP4")
        counted.findings(clock.now_s())
        if day % 4 == 1:  # the switch's end says so first, later the host's
            fails(store, clock, leaf if day < 12 else ports[30], Fault.NETWORK_DEGRADED)
        clock.advance(DAY_S)
    told = {found.subject.name: found.summary for found in counted.findings(clock.now_s())}
    assert "cable:SN MT9, PN MCP4 failed on 6 of" in told["n30"], "where the cable is now"
    assert "nic:n9/mlx5_0:1 failed on 3 of" in told["n9"], "a switch's port is charged to the host's"


def test_faults_of_the_job_itself_are_nobodys_hardware(store: Store, clock: ManualClock) -> None:
    inventory, counted = fleet(), None
    counted = Lemons(store, inventory)
    for _ in range(20):
        counted.findings(clock.now_s())
        fails(store, clock, Subject(K.JOB, "ml/j7"), Fault.LOSS_NONFINITE)
        clock.advance(DAY_S)
    assert counted.findings(clock.now_s()) == []


def test_exposure_counts_and_two_failures_are_none() -> None:
    rng = np.random.default_rng(0)
    peers = {f"n{n}": (28, int(rng.binomial(28, 0.0065))) for n in range(1000)}
    assert lemons(peers | {"two": (28, 2)}) == {}
    assert set(lemons(peers | {"bad": (28, 6)})) == {"bad"}
    # the same failures in a fleet that fails as often are no reason
    rough = {f"n{n}": (28, int(rng.binomial(28, 0.2))) for n in range(1000)}
    assert lemons(rough | {"bad": (28, 6)}) == {}
    assert lemons({}) == {}
