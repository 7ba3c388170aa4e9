"""What holds the lifecycle back or hurries it: the guard, the emergency stop, other daemons, news, clicks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nightshift.agent.approvals.policy import ApprovalRule, ApprovalSettings
from nightshift.agent.incidents.stages import WORKERS
from nightshift.agent.store.diagnosis import Diagnosis
from nightshift.agent.store.incident import Incident, IncidentState
from nightshift.agent.store.lease import AlreadyRunning
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.controllers.action import Action, ActionKind, ActionOutcome, ActionProposal
from nightshift.controllers.actuators.simulated import SimulatedActuator
from nightshift.controllers.guard import GuardRuling, Limit
from nightshift.detectors.base import Fault
from tests.agent.incidents import GPU, JOB, NODE, ManualClock, a_diagnosis, a_finding, an_action
from tests.agent.lives import approved, causes_of, opened, running
from tests.agent.world import ANN, World

_S = IncidentState


@pytest.fixture
def world(sqlite_url: str, tmp_path: Path, clock: ManualClock) -> Iterator[World]:
    made = World(sqlite_url, tmp_path, clock)
    yield made
    made.store.close()


def test_what_the_guard_refuses_at_planning_goes_to_a_person(world: World) -> None:
    refused = ActionProposal(None, "8 of 25 nodes are out", refused=True)
    with running(world, plan=lambda incident: refused) as lifecycle:
        name = opened(world)
        lifecycle.wait_idle()
        assert world.store.incident(name).history[-1].note == "8 of 25 nodes are out"


def test_the_guard_is_asked_in_the_transaction_of_the_intent_and_sees_what_has_begun(
    world: World, clock: ManualClock
) -> None:
    seen: list[list[str]] = []

    def one_at_a_time(action: Action, begun: list[object]) -> GuardRuling:
        ids = [item.action.id for item in begun]  # type: ignore[attr-defined]
        seen.append(ids)
        return GuardRuling(not ids, f"{len(ids)} begun", None if not ids else Limit.BUSY)

    with running(world, guard=one_at_a_time) as lifecycle:
        names = [opened(world), world.store.open_incident("other", [a_finding(Fault.XID, NODE)])]
        lifecycle.wait_idle()
        for name in names:
            approved(world, name)
        lifecycle.wait_idle()
        states = {world.store.incident(name).state for name in names}
    assert states == {_S.CONFIRMING, _S.ESCALATED}
    assert len(world.cluster.effects()) == 1
    assert sorted(len(ids) for ids in seen) == [0, 1]


def test_a_guard_that_says_when_to_ask_again_is_asked_again_then(world: World, clock: ManualClock) -> None:
    start_s = clock.now_s()

    def later(action: Action, begun: list[object]) -> GuardRuling:
        ready = clock.now_s() >= start_s + 30
        return GuardRuling(ready, "rate", None if ready else Limit.CLUSTER_RATE, None if ready else start_s + 30)

    with running(world, guard=later) as lifecycle:
        name = opened(world)
        lifecycle.wait_idle()
        approved(world, name)
        lifecycle.wait_idle()
        assert world.store.incident(name).state is _S.APPROVED
        clock.advance(31)
        lifecycle.wait_idle()
        assert world.store.incident(name).state is _S.CONFIRMING


def test_a_halt_freezes_approved_plans_and_undoing_and_resume_lets_them_go_on(
    world: World, clock: ManualClock
) -> None:
    with running(world) as lifecycle:
        name = opened(world)
        lifecycle.wait_idle()
        approved(world, name)
        world.gate.halt(ANN, "wrong cluster")
        lifecycle.wait_idle()
        clock.advance(60)
        lifecycle.wait_idle()
        frozen = world.store.incident(name).state
        world.gate.resume(ANN)
        lifecycle.wait_idle()
        assert world.store.incident(name).state is _S.CONFIRMING
    assert frozen in (_S.APPROVED, _S.CONFIRMING)  # the approval may have been acted on before the halt
    assert len(world.cluster.effects()) == 1


def test_a_halt_lets_nothing_begin_and_what_is_under_way_ends_by_itself(world: World, clock: ManualClock) -> None:
    began, under_way, may_end = list[str](), threading.Event(), threading.Event()

    class Slow(SimulatedActuator):
        def execute(self, action: Action) -> ActionOutcome:
            began.append(action.id)
            under_way.set()
            assert may_end.wait(120)
            return super().execute(action)

    slow = Slow(world.cluster.path, clock.now_s)
    with running(world, actuator_for=lambda _: slow) as lifecycle:
        names = [world.store.open_incident(f"leak {i}", [a_finding(since_s=float(i))]) for i in range(14)]
        lifecycle.wait_idle()
        for name in names:
            approved(world, name)
        assert under_way.wait(120)
        world.gate.halt(ANN)
        may_end.set()
        lifecycle.wait_idle()
        assert len(world.cluster.effects()) == len(began) <= WORKERS < len(names)
        begun = {world.store.incident(name).state for name in names}
        assert begun <= {_S.APPROVED, _S.ACTING, _S.CONFIRMING}
        world.gate.resume(ANN)
        clock.advance(6)
        lifecycle.wait_idle()
        clock.advance(6)
        lifecycle.wait_idle()
    effects = world.cluster.effects()
    assert sorted(effect.action_id for effect in effects) == sorted(f"{name}-1".lower() for name in names)


def test_an_automatic_kind_needs_nobody(world: World, clock: ManualClock) -> None:
    world.gate.policy = ApprovalSettings(kinds={ActionKind.RESTART_JOB: ApprovalRule.AUTOMATIC})
    with running(world) as lifecycle:
        name = opened(world)
        lifecycle.wait_idle()
        read = world.store.incident(name)
    assert (read.state, read.history[3].by) == (_S.CONFIRMING, "policy")


def test_an_action_id_that_was_used_for_another_plan_is_never_carried_out(world: World, clock: ManualClock) -> None:
    world.action = lambda incident: replace(an_action("same-id"), why=f"for {incident.id}")
    with running(world) as lifecycle:
        names = [opened(world), world.store.open_incident("other", [a_finding(Fault.XID, NODE)])]
        for name in names:
            lifecycle.wait_idle()
            approved(world, name)
            lifecycle.wait_idle()
        read = world.store.incident(names[1])
    assert read.state is _S.ESCALATED
    assert "same-id was used for another plan" in read.history[-1].note
    assert len(world.cluster.effects()) == 1


def test_a_second_daemon_on_a_sqlite_store_is_refused_and_says_what_to_do(world: World, tmp_path: Path) -> None:
    from nightshift.agent.store.lease import Leadership

    with running(world):
        rival = Leadership(world.store.database, "rival")
        with pytest.raises(AlreadyRunning, match=r"set store\.url to a PostgreSQL"):
            rival.claim()
    assert Leadership(world.store.database, "rival").claim()


def test_a_click_starts_the_action(world: World, clock: ManualClock) -> None:
    acted = threading.Event()

    def actuator_for(incident: Incident) -> object:
        acted.set()
        return world.actuator

    with running(world, actuator_for=actuator_for) as lifecycle:
        name = opened(world)
        lifecycle.wait_idle()
        approved(world, name)
        assert acted.wait(30)
        lifecycle.wait_idle()


def test_an_incident_that_a_person_closes_while_a_stage_runs_stays_closed(world: World) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def slow(incident: Incident) -> object:
        inside.set()
        go_on.wait(60)
        return a_diagnosis()

    with running(world, diagnose=slow) as lifecycle:
        name = opened(world)
        assert inside.wait(30)
        assert world.gate.close(name, ANN, "known").changed
        go_on.set()
        lifecycle.wait_idle()
    assert causes_of(world, name) == ["opened", "closed_by_person"]
    assert world.store.incident(name).subjects == (GPU,)


def test_a_late_run_of_an_earlier_version_holds_the_present_one_up_only_while_it_lasts(world: World) -> None:
    """After a crash both are offered at once; the present one is neither lost nor run beside the other."""
    late_is_in, go_on = threading.Event(), threading.Event()
    claim = world.store.claim

    def claim_slowly(number: int, version: int, *rest: Any) -> bool:
        if version == 99:
            late_is_in.set()
            go_on.wait(60)
        return claim(number, version, *rest)

    world.store.claim = claim_slowly  # type: ignore[method-assign]
    lifecycle = world.lifecycle()
    name = opened(world)
    late = threading.Thread(target=lifecycle._run, args=(f"{name}/late", 1, 99, 0))
    late.start()
    assert late_is_in.wait(30)
    present = threading.Thread(target=lifecycle._run, args=(f"{name}/diagnose/1/0", 1, 1, 0))
    present.start()
    present.join(0.2)
    assert present.is_alive()
    go_on.set()
    present.join(60)
    late.join(60)
    assert world.store.incident(name).state is _S.AWAITING_APPROVAL


def test_news_during_a_confirmation_that_calls_for_another_repair_is_planned_at_once(world: World) -> None:
    """A host that fails while its job's restart is being watched is not left until the watch has timed out."""
    causes = [Fault.HOST_MEMORY_LEAK]
    world.action = lambda incident: replace(
        an_action(f"{incident.id}-{incident.attempt + 1}".lower()),
        target=GPU if incident.diagnosis is not None and incident.diagnosis.cause is Fault.XID else JOB,
    )
    diagnose = lambda incident: replace(a_diagnosis(), cause=causes[-1])  # noqa: E731
    with running(world, diagnose=diagnose) as lifecycle:
        name = opened(world)
        lifecycle.wait_idle()
        approved(world, name)
        lifecycle.wait_idle()
        assert world.store.incident(name).state is _S.CONFIRMING
        causes.append(Fault.XID)
        world.store.attach(name, a_finding(Fault.XID, GPU))
        lifecycle.wait_idle()
        read = world.store.incident(name)
    assert causes_of(world, name)[-3:] == ["new_evidence", "diagnosis_stored", "plan_proposed"]
    assert read.state is _S.AWAITING_APPROVAL
    assert read.action is not None
    assert read.action.target == GPU


def test_a_job_that_hangs_after_a_cordon_is_moved_by_a_further_plan(world: World) -> None:
    """The cause is the same: only the job that suffers now makes a cordon too little."""
    world.action = lambda incident: replace(
        an_action(
            f"{incident.id}-{incident.attempt + 1}".lower(),
            ActionKind.DRAIN if len(incident.findings) > 1 else ActionKind.CORDON,
        ),
        target=NODE,
    )
    with running(world) as lifecycle:
        name = world.store.open_incident("node", [a_finding(Fault.NODE_CONDITION, NODE)])
        lifecycle.wait_idle()
        approved(world, name)
        lifecycle.wait_idle()
        assert world.store.incident(name).state is _S.CONFIRMING
        world.store.attach(name, a_finding(Fault.HANG, JOB, since_s=1_001.0))
        lifecycle.wait_idle()
        read = world.store.incident(name)
    assert causes_of(world, name)[-3:] == ["new_evidence", "diagnosis_stored", "plan_proposed"]
    assert read.action is not None
    assert read.action.kind is ActionKind.DRAIN


def test_news_that_leaves_the_repair_as_it_is_is_kept_and_the_confirmation_goes_on_to_its_end(
    world: World, clock: ManualClock
) -> None:
    """However often a noisy fault says more, the diagnosis follows and the time for recovery runs out."""
    with running(world) as lifecycle:
        name = opened(world)
        lifecycle.wait_idle()
        approved(world, name)
        lifecycle.wait_idle()
        entered_s = world.store.incident(name).entered_s
        for _ in range(3):
            clock.advance(30)
            world.store.update_finding(name, a_finding(), news=True)
            lifecycle.wait_idle()
            read = world.store.incident(name)
            assert (read.state, read.entered_s, read.news) == (_S.CONFIRMING, entered_s, False)
        clock.advance(11)
        world.store.update_finding(name, a_finding(), news=True)
        lifecycle.wait_idle()
    assert [record.kind for record in world.store.audit.records()].count("diagnosis") == 4
    assert "not_confirmed" in causes_of(world, name)


def test_the_same_fault_on_another_machine_during_a_confirmation_is_planned_there(world: World) -> None:
    """Not the first cause decides what is new, but what failed since the action."""
    other = Subject(SubjectKind.NODE, "n2")
    world.cluster.add(other)

    def diagnose(incident: Incident) -> Diagnosis:
        newest = incident.findings[-1].finding.subject
        return replace(a_diagnosis(), cause=Fault.XID, facts={"subject": str(newest)})

    world.action = lambda incident: replace(
        an_action(f"{incident.id}-{incident.attempt + 1}".lower(), ActionKind.CORDON),
        target=incident.findings[-1].finding.subject,
    )
    with running(world, diagnose=diagnose) as lifecycle:
        name = world.store.open_incident("xid", [a_finding(Fault.XID, NODE)])
        lifecycle.wait_idle()
        approved(world, name)
        lifecycle.wait_idle()
        assert world.store.incident(name).state is _S.CONFIRMING
        world.store.attach(name, a_finding(Fault.XID, other, since_s=1_001.0))
        lifecycle.wait_idle()
        read = world.store.incident(name)
    assert causes_of(world, name)[-3:] == ["new_evidence", "diagnosis_stored", "plan_proposed"]
    assert read.action is not None
    assert read.action.target == other


def test_news_of_another_place_that_needs_no_other_action_leaves_the_diagnosis_that_the_proof_rests_on(
    world: World,
) -> None:
    def diagnose(incident: Incident) -> Diagnosis:
        newest = incident.findings[-1].finding
        return replace(a_diagnosis(), cause=newest.fault, facts={"subject": str(newest.subject)})

    with running(world, diagnose=diagnose) as lifecycle:
        name = opened(world)
        lifecycle.wait_idle()
        approved(world, name)
        lifecycle.wait_idle()
        world.store.attach(name, a_finding(Fault.THROTTLE, NODE, since_s=1_001.0))
        lifecycle.wait_idle()
        read = world.store.incident(name)
    assert (read.state, read.news) == (_S.CONFIRMING, False)
    assert read.diagnosis is not None
    assert read.diagnosis.facts == {"subject": str(GPU)}
