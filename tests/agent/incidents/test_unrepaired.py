"""A GPU that needs a reset logs that once and is silent: its incident is not over by its silence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nightshift.agent.correlation.silent_faults import is_unrepaired
from nightshift.agent.incidents.manual_repairs import Repaired
from nightshift.agent.store.incident import IncidentState
from nightshift.collectors.base import Temporary
from nightshift.collectors.frame import Instant, LogRecord
from nightshift.collectors.kernel_log.event import KernelEvent, KernelEventKind
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.controllers.action import ActionKind, ActionProposal, BlastRadius
from nightshift.detectors.base import Fault, Severity, State
from tests.agent.incidents import GPU, NODE, ManualClock, a_finding, an_action
from tests.agent.lives import approved, causes_of, running
from tests.agent.world import ANN, UNDOABLE, World

_S = IncidentState


@pytest.fixture
def world(sqlite_url: str, tmp_path: Path, clock: ManualClock) -> Iterator[World]:
    made = World(sqlite_url, tmp_path, clock)
    made.action = lambda i: an_action(
        f"{i.id}-{i.attempt + 1}".lower(), ActionKind.CORDON, NODE, undo=UNDOABLE, expires_at_s=clock.now_s() + 3600
    )
    yield made
    made.store.close()


def told(world: World, name: str, state: State, severity: Severity = Severity.CRITICAL) -> None:
    world.store.update_finding(name, a_finding(Fault.XID, state=state, severity=severity))


def opened(world: World, severity: Severity = Severity.CRITICAL) -> str:
    return world.store.open_incident("xid", [a_finding(Fault.XID, GPU, severity=severity)])


def test_a_fatal_xid_that_fell_silent_waits_for_a_decision_and_can_be_approved(
    world: World, clock: ManualClock
) -> None:
    with running(world) as lifecycle:
        name = opened(world)
        assert lifecycle.wait_idle()
        told(world, name, State.CLEAR)
        clock.advance(1000)
        assert lifecycle.wait_idle()
        assert world.store.incident(name).state is _S.AWAITING_APPROVAL
        approved(world, name)
        assert lifecycle.wait_idle()
        clock.advance(11)
        assert lifecycle.wait_idle()
        assert world.store.incident(name).state is _S.RESOLVED
    assert causes_of(world, name)[3:] == ["approved", "intent_stored", "action_done", "confirmed"]
    assert len(world.cluster.effects()) == 1


def test_its_plan_is_made_anew_when_nobody_decides_and_ends_with_a_person(world: World, clock: ManualClock) -> None:
    with running(world) as lifecycle:
        name = opened(world)
        assert lifecycle.wait_idle()
        told(world, name, State.CLEAR)
        for _ in range(6):
            clock.advance(3601)
            assert lifecycle.wait_idle()
    read = world.store.incident(name)
    assert (read.state, read.attempt, causes_of(world, name).count("expired")) == (_S.ESCALATED, 5, 5)


@pytest.mark.parametrize("severity", [Severity.WARNING, Severity.INFO])
def test_what_needs_no_repair_and_what_a_driver_left_behind_is_over_by_silence(
    world: World, clock: ManualClock, severity: Severity
) -> None:
    with running(world) as lifecycle:
        for name in (opened(world), opened(world, severity)):
            assert lifecycle.wait_idle()
            told(world, name, State.FIRING, severity)  # of the first: its driver began anew
            told(world, name, State.CLEAR, severity)
            clock.advance(11)
            assert lifecycle.wait_idle()
            assert world.store.incident(name).state is _S.RESOLVED


def test_what_a_person_rejected_or_closed_is_over_by_silence(world: World, clock: ManualClock) -> None:
    with running(world) as lifecycle:
        rejected, closed = opened(world), opened(world)
        assert lifecycle.wait_idle()
        plan = world.store.incident(rejected).action
        assert plan is not None
        assert world.gate.reject(rejected, plan.plan_sha256, ANN, "we looked").changed
        told(world, rejected, State.CLEAR)
        assert world.gate.close(closed, ANN, "reset by hand").changed
        clock.advance(11)
        assert lifecycle.wait_idle()
        assert [world.store.incident(name).state for name in (rejected, closed)] == [_S.RESOLVED, _S.RESOLVED]


def test_without_a_plan_it_is_watched_until_a_person_closes_it(world: World, clock: ManualClock) -> None:
    with running(world, plan=lambda incident: ActionProposal(None, "nothing fits")) as lifecycle:
        name = opened(world)
        assert lifecycle.wait_idle()
        told(world, name, State.CLEAR)
        clock.advance(10_000)
        assert lifecycle.wait_idle()
        assert world.store.incident(name).state is _S.MONITORING
        assert world.gate.close(name, ANN, "replaced").changed


def booted(at_s: float, node: Subject = NODE) -> KernelEvent:
    record = LogRecord(Instant(at_s), "node_log n1", node, "Linux version 6.8.0", 1)
    return KernelEvent(KernelEventKind.BOOT, record, node, attributes={"scope": "host"})


def test_a_repair_by_hand_is_over_when_its_node_began_anew_and_stayed_quiet(
    world: World, clock: ManualClock
) -> None:
    """Somebody rebooted the node long after its Xid fell silent: its incident stood open until it was closed."""
    held = Inventory()
    held.observe(GPU, NODE, 0.0)
    repaired = Repaired(world.store, held)
    with running(world, plan=lambda incident: ActionProposal(None, "nothing fits")) as lifecycle:
        name = opened(world)
        assert lifecycle.wait_idle()
        told(world, name, State.CLEAR)
        clock.advance(10_000)
        for at_s, node in ((980.0, NODE), (11_000.0, Subject(SubjectKind.NODE, "n2"))):
            repaired.look([booted(at_s, node)], clock.now_s())  # before its error, and another's
        clock.advance(100)
        assert lifecycle.wait_idle()
        assert world.store.incident(name).state is _S.MONITORING

        held.observe(Subject(SubjectKind.GPU, "GPU-new"), NODE, clock.now_s())  # its board was replaced
        repaired.look([booted(clock.now_s() - 5.0)], clock.now_s())
        read = world.store.incident(name)
        assert read.clear_since_s == clock.now_s()
        assert read.findings[0].finding.summary.endswith("its driver has restarted since")
        assert lifecycle.wait_idle()
        assert world.store.incident(name).state is _S.MONITORING, "quiet is counted from the repair"
        clock.advance(11)
        assert lifecycle.wait_idle()
        assert world.store.incident(name).state is _S.RESOLVED
    assert [r.body["node"] for r in world.store.audit.records() if r.kind == "repair_seen"] == ["n1"]
    assert world.store.audit.verify().ok


def test_an_error_that_comes_back_after_the_repair_keeps_its_incident(world: World, clock: ManualClock) -> None:
    held = Inventory()
    held.observe(GPU, NODE, 0.0)
    with running(world, plan=lambda incident: ActionProposal(None, "nothing fits")) as lifecycle:
        name = opened(world)
        assert lifecycle.wait_idle()
        told(world, name, State.CLEAR)
        clock.advance(1_000)
        Repaired(world.store, held).look([booted(clock.now_s())], clock.now_s())
        clock.advance(5)
        again = a_finding(Fault.XID, severity=Severity.CRITICAL, since_s=clock.now_s(), at_s=clock.now_s())
        world.store.attach(name, again)
        world.store.update_finding(name, replace(again, state=State.CLEAR))
        clock.advance(10_000)
        assert lifecycle.wait_idle()
        assert world.store.incident(name).state is _S.MONITORING


def test_a_beginning_that_could_not_be_stored_is_stored_at_a_later_look(
    world: World, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Inventory()
    held.observe(GPU, NODE, 0.0)
    name, repaired = opened(world), Repaired(world.store, held)
    told(world, name, State.CLEAR)

    def away(*_: object, **__: object) -> None:
        raise Temporary("the database is away")

    with monkeypatch.context() as patch:
        patch.setattr(world.store, "incidents", away)
        repaired.look([booted(1_100.0)], 1_100.0)
    assert is_unrepaired(world.store.incident(name))
    repaired.look([], 1_115.0)
    assert not is_unrepaired(world.store.incident(name))


@pytest.mark.parametrize("kept_out", [False, True])
def test_a_fatal_xid_since_the_action_that_fell_silent_is_confirmed_only_where_the_action_keeps_it_out_of_use(
    world: World, clock: ManualClock, kept_out: bool
) -> None:
    made = world.action
    if kept_out:
        world.action = lambda i: replace(made(i), blast_radius=BlastRadius(gpus=("GPU-2",)))
    with running(world) as lifecycle:
        name = opened(world)
        assert lifecycle.wait_idle()
        approved(world, name)
        assert lifecycle.wait_idle()
        assert world.store.incident(name).state is _S.CONFIRMING
        clock.advance(1)
        other = Subject(SubjectKind.GPU, "GPU-2")
        fatal = a_finding(Fault.XID, other, since_s=clock.now_s(), severity=Severity.CRITICAL)
        world.store.attach(name, fatal)
        assert lifecycle.wait_idle()
        told(world, name, State.CLEAR)
        world.store.update_finding(name, replace(fatal, state=State.CLEAR))
        clock.advance(11)
        assert lifecycle.wait_idle()
        assert world.store.incident(name).state is (_S.RESOLVED if kept_out else _S.AWAITING_APPROVAL)
    planned = ["new_evidence", "diagnosis_stored", "plan_proposed"]
    assert causes_of(world, name)[5:] == (["action_done", "confirmed"] if kept_out else ["action_done", *planned])
