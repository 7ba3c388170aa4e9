"""Parts, modules and switches that fail; one incident with the right part."""

from __future__ import annotations

import pytest

from nightshift.agent.correlation.correlate import correlate
from nightshift.agent.correlation.kinship import Kin, first_cause, kin_of
from nightshift.collectors.subject import CABLE, PEER, Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Fault, Finding, Severity, State
from nightshift.detectors.contract.testing import frame
from nightshift.detectors.contract.world import START_S
from nightshift.detectors.hardware.equipment import Equipment
from nightshift.detectors.hardware.interconnect import Interconnect

_K = SubjectKind
LEAF = Subject(_K.SWITCH, "leaf1")
LINKS = [(Subject(_K.NIC, f"n{n}/mlx5_0:1"), Subject(_K.NIC, f"leaf1/{n}")) for n in range(1, 7)]


def _fabric() -> Inventory:
    inventory = Inventory()
    for host, port in LINKS:
        inventory.observe(host, Subject(_K.NODE, host.name.partition("/")[0]), START_S - 60)
        for end, other in ((host, port), (port, host)):
            inventory.observe(end, LEAF, START_S - 60)
            inventory.describe(end, **{PEER: str(other), CABLE: f"SN MT{port.name[-1]}"})
    return inventory


def _run(
    detectors: list[Equipment | Interconnect], looks: list[tuple[float, dict[Subject, dict[str, float]]]]
) -> list[Finding]:
    inventory, said = _fabric(), []
    for at_s, rows in looks:
        kinds = {subject.kind for subject in rows}
        frames = {kind: frame(at_s, {s: r for s, r in rows.items() if s.kind is kind}, kind) for kind in kinds}
        said += [found for detector in detectors for found in detector.update(Tick(at_s, frames), inventory)]
    return said


def _part(health: float, name: str = "n1/PSU 1") -> dict[Subject, dict[str, float]]:
    return {Subject(_K.PART, name): {"part_health": health}}


def test_a_part_that_is_bad_for_one_look_is_no_fault() -> None:
    looks = [(START_S + 30 * n, _part(2.0 if n == 3 else 0.0)) for n in range(20)]
    assert _run([Equipment()], looks) == []


@pytest.mark.parametrize(("name", "health", "severity"), [
    ("n1/PSU 1", 1.0, Severity.WARNING), ("n1/PSU 1", 2.0, Severity.WARNING),
])  # fmt: skip
def test_a_part_fires_clears_and_is_no_data_when_unseen(name: str, health: float, severity: Severity) -> None:
    detector = Equipment()
    bad = _run([detector], [(START_S + 30 * n, _part(health, name)) for n in range(5)])
    assert {(f.fault, f.state, f.severity) for f in bad} == {(Fault.PART_FAILED, State.FIRING, severity)}
    assert bad[0].since.t_s == START_S
    unseen = _run([detector], [(START_S + 200, _part(float("nan"), name))])
    assert [f.state for f in unseen] == [State.NO_DATA]
    well = _run([detector], [(START_S + 230 + 30 * n, _part(0.0, name)) for n in range(20)])
    assert well[-1].state is State.CLEAR


def test_a_leak_that_its_bmc_calls_critical_is_critical() -> None:
    inventory = Inventory()
    inventory.describe(Subject(_K.PART, "n1/Leak 1"), sort="leak")
    detector, said = Equipment(), []
    for n in range(5):
        rows = _part(2.0, "n1/Leak 1")
        at_s = START_S + 30 * n
        said += detector.update(Tick(at_s, {_K.PART: frame(at_s, rows, _K.PART)}), inventory)
    assert said[-1].severity is Severity.CRITICAL


@pytest.mark.parametrize(("metric", "before", "after"), [
    ("nic_module_temperature_c", 48.0, 74.0), ("nic_rx_power_dbm", -1.5, -5.0),
])  # fmt: skip
def test_a_module_names_port_cable_and_other_end(metric: str, before: float, after: float) -> None:
    host, port = LINKS[0]
    looks = [(START_S + 30 * n, {host: {metric: before if n < 5 else after}}) for n in range(12)]
    said = _run([Equipment()], looks)
    assert said[-1].subject == host
    assert all(word in said[-1].summary for word in (host.name, port.name, "SN MT1"))


def _ports(downs: dict[Subject, float], dark: bool) -> dict[Subject, dict[str, float]]:
    rows = {host: {"nic_port_state": 1.0 if dark else 4.0, "nic_link_down_total": 0.0} for host, _ in LINKS}
    if not dark:
        rows |= {port: {"nic_port_state": 4.0, "nic_link_down_total": 0.0} for _, port in LINKS}
    for end, count in downs.items():
        rows[end]["nic_link_down_total"] = count
    return rows


def test_a_dead_switch_is_one_incident_and_its_first_cause() -> None:
    looks = [(START_S + 30 * n, _ports({}, dark=n >= 10)) for n in range(30)]
    said = _run([Equipment(), Interconnect()], looks)
    assert LEAF in {finding.subject for finding in said}
    newest = {finding.episode: finding for finding in said}
    (decision,) = correlate(newest.values(), [], _fabric(), looks[-1][0])
    assert decision.cause.subject == LEAF
    assert kin_of(decision.cause) is Kin.SWITCH
    assert "6 of 6 links" in decision.cause.summary


def test_a_flapping_link_is_one_incident_with_both_ends() -> None:
    host, port = LINKS[2]
    looks = [(START_S + 30 * n, _ports({host: max(0, n - 6), port: max(0, n - 6)}, dark=False)) for n in range(30)]
    said = _run([Equipment(), Interconnect()], looks)
    assert {finding.subject for finding in said} == {host, port}
    newest = {finding.episode: finding for finding in said if finding.state is State.FIRING}
    (decision,) = correlate(newest.values(), [], _fabric(), looks[-1][0])
    cause = first_cause(decision.findings)
    assert all(word in cause.summary for word in (host.name, port.name, "SN MT3"))


def test_three_links_of_a_switch_and_a_minority_are_no_switch() -> None:
    some = _ports({}, dark=False) | {host: {"nic_port_state": 1.0} for host, _ in LINKS[:3]}
    looks = [(START_S + 30 * n, some if n >= 10 else _ports({}, dark=False)) for n in range(20)]
    assert LEAF not in {finding.subject for finding in _run([Equipment()], looks)}


def test_a_restored_detector_goes_on_with_its_switch() -> None:
    first = Equipment()
    _run([first], [(START_S + 30 * n, _ports({}, dark=n >= 5)) for n in range(12)])
    second = Equipment()
    second.restore(first.snapshot())
    said = _run([second], [(START_S + 360, _ports({}, dark=True))])
    assert [(f.subject, f.state) for f in said] == [(LEAF, State.FIRING)]
