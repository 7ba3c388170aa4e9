"""Random walks over the gate of kernels and policies: the same promises as for repairs, at every step."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from nightshift.agent.approvals import gate as gates
from nightshift.agent.approvals.access import Permission, Sight, may, sight
from nightshift.agent.approvals.gate import Gate
from nightshift.agent.approvals.kernel_gate import KernelGate, ProposalState, namespaces, promotion, search
from nightshift.agent.approvals.policy import (
    PEOPLE,
    ApprovalRule,
    ApprovalSettings,
    Person,
    Role,
    RoleGrant,
    rule_for,
)
from nightshift.agent.store.incident_store import Store
from nightshift.controllers.action import Action, ActionKind
from tests.agent.incidents import ManualClock
from tests.kernel_certificates import RECORD

PEOPLE_HERE = [
    Person("ann", frozenset({Role.APPROVER}), "console"),
    Person("bob", frozenset({Role.ADMIN}), "cli"),
    Person("ＡNN ", frozenset({Role.APPROVER}), "slack"),
    Person("vic", frozenset({Role.VIEWER}), "console"),
    Person("asker", frozenset({Role.ADMIN}), "cli"),
    Person("tia", frozenset(), "console", grants=(RoleGrant(Role.APPROVER, ("team",)),)),
    Person("tom", frozenset(), "api", grants=(RoleGrant(Role.APPROVER, ("other",)),)),
    Person("", frozenset({Role.ADMIN}), "console"),
]
POLICY = ApprovalSettings(kinds={ActionKind.PROMOTE_KERNEL: ApprovalRule.TWO})


@pytest.fixture(autouse=True)
def _approvals_end_before_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "VALID_S", 500.0)


class Walk(RuleBasedStateMachine):
    """Two plans, proposed and changed again and again, and everybody who clicks on them."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = ManualClock()
        self.store = Store(f"sqlite:///{Path(self.folder.name)}/store.sqlite", self.clock)
        self.gate = Gate(self.store, POLICY, self.clock)
        self.kernels = KernelGate(self.gate, self.store, self.clock)
        self.plans: list[Action] = []
        self.propose("walk", 0)
        self.propose("walk", 1)

    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()

    @rule(verdict=st.sampled_from(["walk", "run"]), which=st.integers(0, 1))
    def propose(self, verdict: str, which: int) -> None:
        now_s = self.clock.now_s()
        plan = (
            promotion("c", "f" * 64, "gelu", "canary", {"verdict": verdict}, now_s)
            if which
            else search("c", "team/job", "gelu", verdict, 1.0, "low", now_s)
        )
        self.plans.append(self.kernels.propose(replace(plan, expires_at_s=now_s + 1000), "asker", RECORD).action)

    @rule(seconds=st.sampled_from([1.0, 400.0, 700.0, 1100.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(person=st.sampled_from(PEOPLE_HERE))
    def halt_or_resume(self, person: Person) -> None:
        before = self.gate.halted().halted
        changed = (self.gate.resume if before else self.gate.halt)(person).changed
        assert changed is bool(may(person, Permission.RESUME if before else Permission.HALT))

    @rule(person=st.sampled_from(PEOPLE_HERE), data=st.data())
    def click(self, person: Person, data: st.DataObject) -> None:
        """Approves a plan of any age; what changes was allowed, and shown as it is now."""
        plan = data.draw(st.sampled_from(self.plans[-8:]))
        before = self.kernels.proposal(plan.id)
        assert before is not None
        answer = self.kernels.approve(plan.id, plan.plan_sha256, person)
        if sight(person, namespaces(plan)) is not Sight.WHOLE and person.identity:
            assert answer.message == "There is no such plan."
        if answer.changed:
            assert may(person, Permission.APPROVE, namespaces(plan))
            assert before.action.plan_sha256 == plan.plan_sha256
            assert before.state in (ProposalState.WAITING, ProposalState.APPROVED)
            assert self.clock.now_s() < before.action.expires_at_s
            assert not self.gate.halted().halted
            assert rule_for(plan, POLICY) is not ApprovalRule.TWO or person.identity != "asker"
        else:
            after = self.kernels.proposal(plan.id)
            assert after is not None
            assert (after.state, after.approvals) == (before.state, before.approvals)

    @rule(person=st.sampled_from(PEOPLE_HERE), data=st.data())
    def decline(self, person: Person, data: st.DataObject) -> None:
        plan = data.draw(st.sampled_from(self.plans[-8:]))
        if self.kernels.reject(plan.id, plan.plan_sha256, person, "no").changed:
            assert may(person, Permission.REJECT, namespaces(plan))

    @rule(data=st.data())
    def carry_out(self, data: st.DataObject) -> None:
        """What nothing objects to is approved by enough different people whose word still counts."""
        plan = data.draw(st.sampled_from(self.plans[-8:]))
        if self.kernels.objections(plan):
            return
        known = self.kernels.proposal(plan.id)
        assert known is not None
        people = {a.person for a in known.approvals if a.expires_s > self.clock.now_s()}
        assert len(people) >= max(1, PEOPLE[rule_for(plan, POLICY)])
        assert all(a.plan_sha256 == plan.plan_sha256 for a in known.approvals)
        assert not self.gate.halted().halted
        assert self.clock.now_s() < plan.expires_at_s
        self.kernels.done(plan, "walk", "done")

    @invariant()
    def the_audit_log_holds(self) -> None:
        assert self.store.audit.verify().ok


_common = {"deadline": None, "suppress_health_check": list(HealthCheck)}
TestWalk = Walk.TestCase
TestWalk.settings = settings(max_examples=12, stateful_step_count=25, **_common)  # type: ignore[arg-type]


class LongWalk(Walk):
    """Longer, and more of them."""


TestLongWalk = pytest.mark.full(LongWalk.TestCase)
TestLongWalk.settings = settings(max_examples=40, stateful_step_count=50, **_common)  # type: ignore[arg-type]
