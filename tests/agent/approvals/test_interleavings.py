"""Random interleavings of signals, clicks, expiry, halts, mishaps and crashes: the promises hold at every step."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nightshift.agent.approvals import gate as gates
from nightshift.agent.approvals.access import Permission, Sight, may, sight
from nightshift.agent.approvals.answer import GateAnswer
from nightshift.agent.approvals.policy import (
    FRESH_SIGN_IN_S,
    PEOPLE,
    ApprovalRule,
    ApprovalSettings,
    Person,
    Role,
    RoleGrant,
    rule_for,
)
from nightshift.agent.incidents import stages
from nightshift.agent.incidents.lifecycle import Lifecycle, Run
from nightshift.agent.incidents.stages import LifecycleSettings
from nightshift.agent.store.incident import TRANSITIONS, Cause, Incident, IncidentState
from nightshift.agent.store.incident_store import NoSuchIncident
from nightshift.controllers.action import Action, ActionKind, ActionOutcome, BlastRadius, Precondition
from nightshift.controllers.actuators.simulated import Mishap, SimulatedActuator
from nightshift.detectors.base import Fault, State
from tests.agent.incidents import NODE, ManualClock, a_finding, an_action
from tests.agent.world import UNDOABLE, World

_S = IncidentState
_RESTS = (_S.AWAITING_APPROVAL, _S.CONFIRMING, _S.MONITORING, _S.ESCALATED, _S.RESOLVED)
PEOPLE_HERE = [
    Person("ann", frozenset({Role.APPROVER}), "console"),
    Person("bob", frozenset({Role.ADMIN}), "cli"),
    Person("Ann ", frozenset({Role.APPROVER}), "slack"),
    Person("vic", frozenset({Role.VIEWER}), "console"),
    Person("nightshift", frozenset({Role.ADMIN}), "cli"),
    Person("tia", frozenset(), "console", grants=(RoleGrant(Role.APPROVER, ("team",)),)),
    Person("tom", frozenset(), "slack", grants=(RoleGrant(Role.APPROVER, ("other",)),)),
    Person("who", frozenset(), "slack"),
]
TENANTS = {"tia": {"team"}, "tom": {"other"}, "who": set[str]()}
AGES_S = [None, 0.0, 299.0, 301.0, 5000.0]
KINDS = [ActionKind.RESTART_JOB, ActionKind.UNCORDON, ActionKind.CORDON]
POLICY = ApprovalSettings(
    kinds={ActionKind.CORDON: ApprovalRule.TWO, ActionKind.UNCORDON: ApprovalRule.AUTOMATIC},
    fresh_sign_in=frozenset({ActionKind.CORDON}),
)


@pytest.fixture(autouse=True)
def _few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Walks reach the last plan and the last try, too."""
    monkeypatch.setattr(stages, "MAX_TRIES", 3)
    monkeypatch.setattr(stages, "MAX_PLANS", 4)
    monkeypatch.setattr(gates, "VALID_S", 300.0)


class Crash(BaseException):
    """The process ends here: nothing catches it."""


class AtOnce:
    """A queue without threads: a stage runs when it is put, and each key once."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._ended: set[str] = set()

    def start(self) -> int:
        return 0

    def stop(self) -> None:
        pass

    def put(self, key: str, number: int, version: int, runs: int) -> bool:
        if key in self._ended:
            return False
        self._ended.add(key)
        self._run(key, number, version, runs)
        return True

    def sweep(self) -> int:
        return 0


class Crashing:
    """Counts places and ends the process at the chosen one."""

    def __init__(self) -> None:
        self.left = -1

    def __call__(self, place: str) -> None:
        self.left -= 1
        if self.left == 0:
            raise Crash(place)


class CrashingActuator(SimulatedActuator):
    """May end the process right before or right after the world has changed."""

    def __init__(self, path: Path, clock: ManualClock, crash: Crashing) -> None:
        super().__init__(path, clock.now_s)
        self._crash = crash

    def execute(self, action: Action) -> ActionOutcome:
        self._crash("before execute")
        outcome = super().execute(action)
        self._crash("after execute")
        return outcome

    def undo(self, action: Action) -> ActionOutcome:
        self._crash("before undo")
        outcome = super().undo(action)
        self._crash("after undo")
        return outcome


class Interleavings(RuleBasedStateMachine):
    """One or two incidents; `advance` stands for the daemon's loop, everything else for the world and people."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = ManualClock()
        self.crash = Crashing()
        self.kind = ActionKind.RESTART_JOB
        self.shown: list[tuple[str, str]] = []
        self.effects_at_halt = -1
        home = Path(self.folder.name)
        self.world = World(
            f"sqlite:///{home}/store.sqlite",
            home,
            self.clock,
            fault_point=self.crash,
            policy=POLICY,
            settings=LifecycleSettings(quiet_s=10, confirm_timeout_s=100),
            action=self._plan,
        )
        self.world.actuator = CrashingActuator(home / "cluster.sqlite", self.clock, self.crash)
        self.lifecycle = self._restart()

    def _plan(self, incident: Incident) -> Action:
        rests_on = Precondition(NODE, "drained", self.world.cluster.facts(NODE)["drained"])
        action_id, expires_s = f"{incident.id}-{incident.attempt + 1}", self.clock.now_s() + 120
        if self.kind is ActionKind.RESTART_JOB:
            return an_action(action_id, expires_at_s=expires_s, preconditions=(rests_on,))
        plan = an_action(
            action_id, self.kind, NODE, expires_at_s=expires_s, preconditions=(rests_on,), undo=UNDOABLE
        )
        if self.kind is not ActionKind.CORDON:
            return plan
        return replace(plan, blast_radius=BlastRadius(jobs=("team/job", "other/job")))

    def _restart(self) -> Lifecycle:
        lifecycle = Lifecycle(self.world.parts(), new_queue=AtOnce)
        lifecycle._stand()
        return lifecycle

    def teardown(self) -> None:
        self.lifecycle._leadership.abandon()
        self.world.store.close()
        self.folder.cleanup()

    def _attempt(self, call: Any) -> None:
        """Runs what may crash; a crash is followed by a restart on what is stored."""
        try:
            call()
        except Crash:
            self.crash.left = -1
            self.lifecycle._leadership.abandon()
            self.lifecycle = self._restart()

    # The daemon -------------------------------------------------------------------------------------------------

    @initialize()
    def opens(self) -> None:
        self.world.store.open_incident("leak", [a_finding()])

    @rule()
    def the_daemon_looks(self) -> None:
        for _ in range(4):
            self._attempt(lambda: self.lifecycle.advance(self.clock.now_s()))
        for item in self.world.store.incidents():
            if item.plan_sha256:
                self.shown.append((item.id, item.plan_sha256))

    @rule(after=st.integers(1, 12))
    def it_will_crash(self, after: int) -> None:
        self.crash.left = after

    # The world --------------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([1.0, 6.0, 11.0, 60.0, 130.0, 310.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(state=st.sampled_from(State), data=st.data())
    def a_signal_changes(self, state: State, data: st.DataObject) -> None:
        for item in self.world.store.incidents():
            for finding in item.findings:
                if data.draw(st.booleans()):
                    now = a_finding(finding.fault, finding.subject, state, at_s=self.clock.now_s())
                    self._attempt(lambda i=item.id, f=now: self.world.store.update_finding(i, f))

    @rule(fault=st.sampled_from([Fault.XID, Fault.HANG]))
    def another_fault_shows(self, fault: Fault) -> None:
        self._attempt(lambda: self.world.store.attach("INC-1", a_finding(fault, NODE)))

    @rule(drained=st.sampled_from(["true", "false"]))
    def somebody_changes_the_cluster(self, drained: str) -> None:
        self.world.cluster.add(NODE, drained=drained)

    @rule(
        mode=st.sampled_from([Mishap.BUSY, Mishap.LOST_REPLY, Mishap.REFUSE, Mishap.UNKNOWN, Mishap.NO_EFFECT]),
        method=st.sampled_from(["execute", "undo", "read"]),
    )
    def something_will_go_wrong(self, mode: Mishap, method: str) -> None:
        if (mode, method) != (Mishap.UNKNOWN, "undo"):
            self.world.cluster.plan_mishap(mode, method=method)

    @rule(kind=st.sampled_from(KINDS))
    def the_next_plan_is_of_a_kind(self, kind: ActionKind) -> None:
        self.kind = kind

    # People -----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.shown)
    @rule(person=st.sampled_from(PEOPLE_HERE), age_s=st.sampled_from(AGES_S), data=st.data())
    def somebody_approves(self, person: Person, age_s: float | None, data: st.DataObject) -> None:
        incident, plan = data.draw(st.sampled_from(self.shown[-6:]))
        signed_in_s = None if age_s is None else self.clock.now_s() - age_s
        self._attempt(lambda: self._approves(incident, plan, replace(person, signed_in_s=signed_in_s), age_s))

    def _approves(self, incident_id: str, plan: str, person: Person, age_s: float | None) -> None:
        """One click; what it changed, this person was allowed to change, with a sign-in that was fresh enough."""
        incident = self.world.store.incident(incident_id)
        hidden = sight(person, incident.namespaces) is Sight.NOTHING
        try:
            answer = self.world.gate.approve(incident_id, plan, person)
        except NoSuchIncident:
            assert hidden
            return
        assert not hidden
        if answer.changed:
            assert may(person, Permission.APPROVE, incident.namespaces)
            assert incident.action is not None
            fresh = age_s is not None and age_s <= FRESH_SIGN_IN_S
            assert fresh or incident.action.kind not in POLICY.fresh_sign_in
            assert not self.world.gate.halted().halted

    @precondition(lambda self: self.shown)
    @rule(person=st.sampled_from(PEOPLE_HERE), data=st.data())
    def somebody_rejects(self, person: Person, data: st.DataObject) -> None:
        incident, plan = data.draw(st.sampled_from(self.shown[-6:]))
        self._attempt(lambda: self._told(lambda: self.world.gate.reject(incident, plan, person, "no"), person))

    def _told(self, decide: Callable[[], GateAnswer], person: Person) -> None:
        """A decision whose answer is that there is no such incident is of somebody who may not know of it."""
        try:
            decide()
        except NoSuchIncident:
            assert person.is_tenant

    @rule(person=st.sampled_from(PEOPLE_HERE))
    def somebody_closes(self, person: Person) -> None:
        self._attempt(lambda: self._told(lambda: self.world.gate.close("INC-1", person, "known"), person))

    @rule()
    def somebody_halts(self) -> None:
        self.world.gate.halt(PEOPLE_HERE[0])
        if self.effects_at_halt < 0:
            self.effects_at_halt = len(self.world.cluster.effects())

    @rule()
    def somebody_resumes(self) -> None:
        self.world.gate.resume(PEOPLE_HERE[0])
        self.effects_at_halt = -1

    # Promises ---------------------------------------------------------------------------------------------------

    @invariant()
    def the_history_is_a_walk_through_the_table(self) -> None:
        for item in self.world.store.incidents():
            state: IncidentState | None = None
            for step in self.world.store.incident(item.id).history:
                assert step.before is state
                if state is not None:
                    assert TRANSITIONS[state, Cause(step.cause)] is step.after
                state = step.after
            assert state is item.state

    @invariant()
    def the_audit_log_holds(self) -> None:
        assert self.world.store.audit.verify().ok

    @invariant()
    def no_effect_happens_twice_or_unapproved_or_late(self) -> None:
        effects = self.world.cluster.effects()
        assert len({(effect.action_id, effect.undo) for effect in effects}) == len(effects)
        plans = {r.body["plan"]["id"]: r.body for r in self.world.store.audit.records() if r.kind == "plan"}
        intended = {r.body["action_id"] for r in self.world.store.audit.records() if r.kind == "intent"}
        for effect in effects:
            assert effect.action_id in intended
            plan = plans[effect.action_id]
            assert effect.undo or effect.at_s < plan["plan"]["expires_at_s"]
            given = [a for a in self.world.gate.approvals("INC-1") if a.plan_sha256 == plan["plan_sha256"]]
            people = {a.person for a in given if a.at_s <= effect.at_s}
            needed = PEOPLE[POLICY.kinds.get(effect.kind, ApprovalRule.ONE)]
            assert len(people) >= max(1, needed)
            assert needed < 2 or "nightshift" not in people
            assert "vic" not in people
            touched = {job.partition("/")[0] for job in plan["plan"]["blast_radius"]["jobs"]}
            for tenant, own in TENANTS.items():
                assert tenant not in people or touched <= own, "a team decides on what is its own alone"

    @invariant()
    def nothing_is_done_while_halted(self) -> None:
        if self.effects_at_halt >= 0:
            assert len(self.world.cluster.effects()) == self.effects_at_halt

    @rule()
    def left_alone_every_incident_comes_to_rest(self) -> None:
        """Nothing is stranded: with the halt lifted and time passing, the daemon brings each to a resting state."""
        self.somebody_resumes()
        self.crash.left = -1
        for _ in range(30):
            for _ in range(5):
                self.lifecycle.advance(self.clock.now_s())
            if {item.state for item in self.world.store.incidents()} <= set(_RESTS):
                return
            self.clock.advance(10)
        raise AssertionError(f"stranded: {self.world.store.incidents()}")


def test_rule_for_is_what_the_promises_above_assume() -> None:
    assert rule_for(an_action(kind=ActionKind.CORDON), POLICY) is ApprovalRule.TWO
    assert rule_for(an_action(kind=ActionKind.UNCORDON), POLICY) is ApprovalRule.AUTOMATIC


_common = {"deadline": None, "suppress_health_check": list(HealthCheck)}
TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(max_examples=15, stateful_step_count=20, **_common)  # type: ignore[arg-type]


class LongInterleavings(Interleavings):
    """The same promises over longer and more walks."""


TestLongInterleavings = pytest.mark.full(LongInterleavings.TestCase)
TestLongInterleavings.settings = settings(max_examples=40, stateful_step_count=40, **_common)  # type: ignore[arg-type]
