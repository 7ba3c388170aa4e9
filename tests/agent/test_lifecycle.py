"""The lifecycle: every way through the table, on a simulated cluster whose effects can be counted."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from agent.incident import Incident, IncidentState
from agent.lease import AlreadyRunning
from agent.lifecycle import Lifecycle
from agent.policy import ApprovalSettings, Rule
from agent.stages import LifecycleSettings
from collectors.base import Permanent, Temporary
from controllers.action import Action, ActionKind, Outcome, OutcomeStatus, Precondition, Proposal
from controllers.actuators.simulated import Mishap, SimulatedActuator
from controllers.guard import Limit, Ruling
from detectors.base import Fault, State
from tests.agent.incidents import GPU, JOB, NODE, ManualClock, a_diagnosis, a_finding, an_action
from tests.agent.world import ANN, UNDOABLE, World

_S = IncidentState


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def world(sqlite_url: str, tmp_path: Path, clock: ManualClock) -> Iterator[World]:
    made = World(sqlite_url, tmp_path, clock)
    yield made
    made.store.close()


@contextmanager
def running(world: World, **changes: object) -> Iterator[Lifecycle]:
    lifecycle = world.lifecycle(**changes)
    lifecycle.start()
    try:
        yield lifecycle
    finally:
        lifecycle.close()


def _open(world: World, **finding: object) -> str:
    return world.store.open_incident("leak", [a_finding(**finding)])  # type: ignore[arg-type]


def _causes(world: World, name: str) -> list[str]:
    return [step.cause for step in world.store.incident(name).history]


def _approve(world: World, name: str) -> None:
    action = world.store.incident(name).action
    assert action is not None
    assert world.gate.approve(name, action.plan_sha256, ANN).changed


def _clear(world: World, clock: ManualClock, name: str) -> None:
    world.store.update_finding(name, a_finding(state=State.CLEAR))
    clock.advance(11)


def test_a_fault_is_diagnosed_planned_approved_repaired_confirmed_and_resolved(
    world: World, clock: ManualClock
) -> None:
    with running(world) as lifecycle:
        name = _open(world)
        assert lifecycle.wait_idle()
        assert world.store.incident(name).state is _S.AWAITING_APPROVAL
        assert world.cluster.effects() == []
        _approve(world, name)
        assert lifecycle.wait_idle()
        assert world.store.incident(name).state is _S.CONFIRMING
        assert [effect.action_id for effect in world.cluster.effects()] == [f"{name}-1".lower()]
        clock.advance(50)
        assert lifecycle.wait_idle()
        assert world.store.incident(name).state is _S.CONFIRMING  # the detector still fires
        _clear(world, clock, name)
        assert lifecycle.wait_idle()
    assert _causes(world, name) == [
        "opened",
        "diagnosis_stored",
        "plan_proposed",
        "approved",
        "intent_stored",
        "action_done",
        "confirmed",
    ]
    kinds = [record.kind for record in world.store.audit.records()]
    assert [kinds.count(kind) for kind in ("diagnosis", "plan", "approval", "intent", "outcome")] == [1, 1, 1, 1, 1]
    assert world.store.audit.verify().ok


def test_two_lifecycles_one_after_the_other_in_one_process_and_never_two_at_once(
    world: World, clock: ManualClock
) -> None:
    name = _open(world)
    with running(world) as first:
        first.wait_idle()
        with pytest.raises(Permanent, match="already started"):
            world.lifecycle().start()
    _approve(world, name)
    with running(world) as second:
        assert second.wait_idle()
        assert second.term > 1
    assert world.store.incident(name).state is _S.CONFIRMING
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith(("lifecycle", "queue-w"))]


def test_a_missing_signal_is_never_taken_for_recovery(world: World, clock: ManualClock) -> None:
    with running(world) as lifecycle:
        name = _open(world)
        lifecycle.wait_idle()
        _approve(world, name)
        lifecycle.wait_idle()
        world.store.update_finding(name, a_finding(state=State.NO_DATA))
        clock.advance(99)
        lifecycle.wait_idle()
        assert world.store.incident(name).state is _S.CONFIRMING
        clock.advance(2)
        lifecycle.wait_idle()
        read = world.store.incident(name)
    assert (read.state, read.history[-1].note) == (
        _S.ESCALATED,
        "cannot be taken back: a restart cannot be taken back",
    )


def test_what_does_not_help_is_taken_back_and_escalated(world: World, clock: ManualClock) -> None:
    world.action = lambda i: an_action(f"{i.id}-{i.attempt + 1}", ActionKind.UNCORDON, NODE, undo=UNDOABLE)
    with running(world) as lifecycle:
        name = _open(world)
        lifecycle.wait_idle()
        _approve(world, name)
        lifecycle.wait_idle()
        clock.advance(101)
        assert lifecycle.wait_idle()
    assert _causes(world, name)[-2:] == ["not_confirmed", "undone"]
    assert [effect.undo for effect in world.cluster.effects()] == [False, True]


def test_containment_stays_in_place_when_the_fault_persists(world: World, clock: ManualClock) -> None:
    world.action = lambda i: an_action(f"{i.id}-{i.attempt + 1}", ActionKind.CORDON, NODE, undo=UNDOABLE)
    with running(world) as lifecycle:
        name = _open(world)
        lifecycle.wait_idle()
        _approve(world, name)
        lifecycle.wait_idle()
        clock.advance(101)
        assert lifecycle.wait_idle()
    assert _causes(world, name)[-1] == "containment_kept"
    assert world.cluster.facts(NODE)["cordoned"] == "true"


@pytest.mark.parametrize(
    ("status", "last"), [(OutcomeStatus.DONE, ["confirmed"]), (OutcomeStatus.FAILED, ["not_confirmed", "undone"])]
)
def test_the_probe_has_the_last_word(
    world: World, clock: ManualClock, status: OutcomeStatus, last: list[str]
) -> None:
    world.action = lambda i: an_action(f"{i.id}-{i.attempt + 1}", ActionKind.UNCORDON, NODE, undo=UNDOABLE)
    with running(world, probe=lambda incident: Outcome(status, "GEMM probe", clock.now_s())) as lifecycle:
        name = _open(world)
        lifecycle.wait_idle()
        _approve(world, name)
        lifecycle.wait_idle()
        _clear(world, clock, name)
        assert lifecycle.wait_idle()
    assert _causes(world, name)[-len(last) :] == last


def test_an_unanswered_plan_expires_and_is_made_anew_until_a_person_has_to_take_over(
    world: World, clock: ManualClock
) -> None:
    world.settings = LifecycleSettings(max_plans=2)
    world.action = lambda i: an_action(f"{i.id}-{i.attempt + 1}", expires_at_s=clock.now_s() + 60)
    with running(world) as lifecycle:
        name = _open(world)
        for _ in range(3):
            lifecycle.wait_idle()
            clock.advance(61)
        lifecycle.wait_idle()
        read = world.store.incident(name)
    assert read.state is _S.ESCALATED
    assert _causes(world, name).count("expired") == 2
    assert world.cluster.effects() == []


def test_a_changed_world_asks_again_instead_of_acting(world: World, clock: ManualClock) -> None:
    rests_on = (Precondition(NODE, "cordoned", "false"),)
    world.action = lambda i: an_action(f"{i.id}-{i.attempt + 1}", preconditions=rests_on)
    with running(world) as lifecycle:
        name = _open(world)
        lifecycle.wait_idle()
        world.cluster.add(NODE, cordoned="true")
        _approve(world, name)
        lifecycle.wait_idle()
        read = world.store.incident(name)
    assert (read.state, read.attempt) == (_S.AWAITING_APPROVAL, 2)
    assert "cordoned is true, expected false" in read.history[-2].note
    assert world.cluster.effects() == []


def test_a_new_fault_is_diagnosed_again_and_voids_the_plan(world: World, clock: ManualClock) -> None:
    with running(world) as lifecycle:
        name = _open(world)
        lifecycle.wait_idle()
        old = world.store.incident(name).action
        world.store.attach(name, a_finding(Fault.GPU_MEMORY_LEAK, NODE))  # a fault that the diagnosis knows
        lifecycle.wait_idle()
        assert "new_evidence" not in _causes(world, name)
        world.store.attach(name, a_finding(Fault.XID, NODE))
        lifecycle.wait_idle()
        assert _causes(world, name).count("diagnosis_stored") == 2
        assert old is not None
        assert "changed since you saw it" in world.gate.approve(name, old.plan_sha256, ANN).message


@pytest.mark.parametrize("mishap", [Mishap.BUSY, Mishap.LOST_REPLY])
def test_a_temporary_failure_is_tried_again_and_acts_once(world: World, clock: ManualClock, mishap: Mishap) -> None:
    world.cluster.plan_mishap(mishap)
    with running(world) as lifecycle:
        name = _open(world)
        lifecycle.wait_idle()
        _approve(world, name)
        lifecycle.wait_idle()
        clock.advance(6)
        lifecycle.wait_idle()
        assert world.store.incident(name).state is _S.CONFIRMING
    assert len(world.cluster.effects()) == 1


def test_a_stage_that_keeps_failing_ends_with_a_person_after_growing_pauses(
    world: World, clock: ManualClock
) -> None:
    tried_at: list[float] = []

    def never(incident: Incident) -> None:
        tried_at.append(clock.now_s())
        raise Temporary("no answer from the model")

    world.settings = LifecycleSettings(max_tries=4, retry_s=5, retry_max_s=12)
    with running(world, diagnose=never) as lifecycle:
        name = _open(world)
        for _ in range(60):
            lifecycle.wait_idle()
            clock.advance(1)
        read = world.store.incident(name)
    assert (read.state, read.history[-1].note) == (_S.ESCALATED, "tried 4 times: no answer from the model")
    assert [round(b - a) for a, b in pairwise(tried_at)] == [5, 10, 12]


@pytest.mark.parametrize(
    ("error", "note"),
    [
        (Permanent("no such model"), "no such model"),
        (ZeroDivisionError("x"), "defect in nightshift: ZeroDivisionError: x"),
    ],
)
def test_a_permanent_failure_or_a_defect_of_ours_is_said_and_strands_nobody(
    world: World, error: Exception, note: str
) -> None:
    def broken(incident: Incident) -> None:
        raise error

    with running(world, plan=broken) as lifecycle:
        name = _open(world)
        lifecycle.wait_idle()
        read = world.store.incident(name)
    assert (read.state, read.history[-1].note) == (_S.ESCALATED, note)


@pytest.mark.parametrize(
    ("mishap", "causes"),
    [(Mishap.REFUSE, ["action_failed"]), (Mishap.UNKNOWN, ["outcome_unknown"])],
)
def test_a_refused_action_and_an_unknown_outcome_go_to_a_person(
    world: World, mishap: Mishap, causes: list[str]
) -> None:
    world.cluster.plan_mishap(mishap)
    with running(world) as lifecycle:
        name = _open(world)
        lifecycle.wait_idle()
        _approve(world, name)
        lifecycle.wait_idle()
        assert world.store.incident(name).state is _S.ESCALATED
    assert _causes(world, name)[-1:] == causes


def test_no_plan_is_watched_and_resolves_when_clear_and_relapses_when_it_comes_back(
    world: World, clock: ManualClock
) -> None:
    with running(world, plan=lambda incident: Proposal(None, "watched only")) as lifecycle:
        name = _open(world)
        lifecycle.wait_idle()
        assert world.store.incident(name).state is _S.MONITORING
        _clear(world, clock, name)
        lifecycle.wait_idle()
        assert world.store.incident(name).state is _S.RESOLVED
        world.store.update_finding(name, a_finding())
        lifecycle.wait_idle()
    assert _causes(world, name)[3:] == ["cleared_by_itself", "relapsed", "diagnosis_stored", "no_plan"]


def test_what_the_guard_refuses_at_planning_goes_to_a_person(world: World) -> None:
    refused = Proposal(None, "8 of 25 nodes are out", refused=True)
    with running(world, plan=lambda incident: refused) as lifecycle:
        name = _open(world)
        lifecycle.wait_idle()
        assert world.store.incident(name).history[-1].note == "8 of 25 nodes are out"


def test_the_guard_is_asked_in_the_transaction_of_the_intent_and_sees_what_has_begun(
    world: World, clock: ManualClock
) -> None:
    seen: list[list[str]] = []

    def one_at_a_time(action: Action, begun: list[object]) -> Ruling:
        ids = [item.action.id for item in begun]  # type: ignore[attr-defined]
        seen.append(ids)
        return Ruling(not ids, f"{len(ids)} begun", None if not ids else Limit.BUSY)

    with running(world, guard=one_at_a_time) as lifecycle:
        names = [_open(world), world.store.open_incident("other", [a_finding(Fault.XID, NODE)])]
        lifecycle.wait_idle()
        for name in names:
            _approve(world, name)
        lifecycle.wait_idle()
        states = {world.store.incident(name).state for name in names}
    assert states == {_S.CONFIRMING, _S.ESCALATED}
    assert len(world.cluster.effects()) == 1
    assert sorted(len(ids) for ids in seen) == [0, 1]


def test_a_guard_that_says_when_to_ask_again_is_asked_again_then(world: World, clock: ManualClock) -> None:
    start_s = clock.now_s()

    def later(action: Action, begun: list[object]) -> Ruling:
        ready = clock.now_s() >= start_s + 30
        return Ruling(ready, "rate", None if ready else Limit.CLUSTER_RATE, None if ready else start_s + 30)

    with running(world, guard=later) as lifecycle:
        name = _open(world)
        lifecycle.wait_idle()
        _approve(world, name)
        lifecycle.wait_idle()
        assert world.store.incident(name).state is _S.APPROVED
        clock.advance(31)
        lifecycle.wait_idle()
        assert world.store.incident(name).state is _S.CONFIRMING


def test_a_halt_freezes_approved_plans_and_undoing_and_resume_lets_them_go_on(
    world: World, clock: ManualClock
) -> None:
    with running(world) as lifecycle:
        name = _open(world)
        lifecycle.wait_idle()
        _approve(world, name)
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


def test_a_halt_holds_within_two_seconds_and_what_is_under_way_ends_by_itself(
    world: World, clock: ManualClock
) -> None:
    class Slow(SimulatedActuator):
        def execute(self, action: Action) -> Outcome:
            time.sleep(0.3)
            return super().execute(action)

    slow = Slow(world.cluster.path, clock.now_s)
    with running(world, actuator_for=lambda _: slow) as lifecycle:
        names = [world.store.open_incident(f"leak {i}", [a_finding(since_s=float(i))]) for i in range(14)]
        lifecycle.wait_idle()
        for name in names:
            _approve(world, name)
        time.sleep(0.5)
        world.gate.halt(ANN)
        time.sleep(2.0)
        after_two_s = len(world.cluster.effects())
        time.sleep(1.0)
        assert len(world.cluster.effects()) == after_two_s < len(names)
        begun = {world.store.incident(name).state for name in names}
        assert begun <= {_S.APPROVED, _S.ACTING, _S.CONFIRMING}
        world.gate.resume(ANN)
        clock.advance(6)
        lifecycle.wait_idle(60)
        clock.advance(6)
        lifecycle.wait_idle(60)
    effects = world.cluster.effects()
    assert sorted(effect.action_id for effect in effects) == sorted(f"{name}-1".lower() for name in names)


def test_an_automatic_kind_needs_nobody(world: World, clock: ManualClock) -> None:
    world.gate.policy = ApprovalSettings(kinds={ActionKind.RESTART_JOB: Rule.AUTOMATIC})
    with running(world) as lifecycle:
        name = _open(world)
        lifecycle.wait_idle()
        read = world.store.incident(name)
    assert (read.state, read.history[3].by) == (_S.CONFIRMING, "policy")


def test_an_action_id_that_was_used_for_another_plan_is_never_carried_out(world: World, clock: ManualClock) -> None:
    world.action = lambda incident: replace(an_action("same-id"), why=f"for {incident.id}")
    with running(world) as lifecycle:
        names = [_open(world), world.store.open_incident("other", [a_finding(Fault.XID, NODE)])]
        for name in names:
            lifecycle.wait_idle()
            _approve(world, name)
            lifecycle.wait_idle()
        read = world.store.incident(names[1])
    assert read.state is _S.ESCALATED
    assert "same-id was used for another plan" in read.history[-1].note
    assert len(world.cluster.effects()) == 1


def test_a_second_daemon_on_a_sqlite_store_is_refused_and_says_what_to_do(world: World, tmp_path: Path) -> None:
    from agent.lease import Leadership

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
        name = _open(world)
        lifecycle.wait_idle()
        _approve(world, name)
        assert acted.wait(30)
        lifecycle.wait_idle()


def test_an_incident_that_a_person_closes_while_a_stage_runs_stays_closed(world: World) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def slow(incident: Incident) -> object:
        inside.set()
        go_on.wait(60)
        return a_diagnosis()

    with running(world, diagnose=slow) as lifecycle:
        name = _open(world)
        assert inside.wait(30)
        assert world.gate.close(name, ANN, "known").changed
        go_on.set()
        lifecycle.wait_idle()
    assert _causes(world, name) == ["opened", "closed_by_person"]
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
    name = _open(world)
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
        name = _open(world)
        lifecycle.wait_idle()
        _approve(world, name)
        lifecycle.wait_idle()
        assert world.store.incident(name).state is _S.CONFIRMING
        causes.append(Fault.XID)
        world.store.attach(name, a_finding(Fault.XID, GPU))
        lifecycle.wait_idle()
        read = world.store.incident(name)
    assert _causes(world, name)[-3:] == ["new_evidence", "diagnosis_stored", "plan_proposed"]
    assert read.state is _S.AWAITING_APPROVAL
    assert read.action is not None
    assert read.action.target == GPU


def test_news_that_leaves_the_repair_as_it_is_is_kept_and_the_confirmation_goes_on_to_its_end(
    world: World, clock: ManualClock
) -> None:
    """However often a noisy fault says more, the diagnosis follows and the time for recovery runs out."""
    with running(world) as lifecycle:
        name = _open(world)
        lifecycle.wait_idle()
        _approve(world, name)
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
    assert "not_confirmed" in _causes(world, name)
