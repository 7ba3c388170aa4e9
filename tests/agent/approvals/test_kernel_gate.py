"""Kernels pass the same gate: what was shown is what is approved, by whom policy names, and a stop holds them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nightshift.agent.approvals.gate import VALID_S, Gate
from nightshift.agent.approvals.kernel_gate import KernelGate, ProposalState, promotion, search
from nightshift.agent.approvals.people import Directory
from nightshift.agent.approvals.people import Settings as People
from nightshift.agent.approvals.policy import ApprovalRule, ApprovalSettings, Person, Role
from nightshift.agent.store.incident_store import Store
from nightshift.controllers.action import Action, ActionKind
from tests.agent.incidents import ManualClock
from tests.kernel_certificates import RECORD

ANN = Person("ann@example.org", frozenset({Role.APPROVER}), "console", 1_000.0)
BOB = Person("bob@example.org", frozenset({Role.APPROVER}), "cli")
VIEWER = Person("vic@example.org", frozenset({Role.VIEWER}), "console")
SHA = "ab" * 32


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    url = f"sqlite:///{tmp_path}/s.sqlite" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    opened = Store(str(url), clock)
    yield opened
    opened.close()


@pytest.fixture
def kernels(store: Store, clock: ManualClock) -> KernelGate:
    return KernelGate(Gate(store, ApprovalSettings(), clock), store, clock)


def _plan(clock: ManualClock, verdict: str = "faster (clears_best)") -> Action:
    return promotion(
        "lab", SHA, "rmsnorm", "canary", {"verdict": verdict, "speed-up": "1.40 [1.38, 1.42]"}, clock.now_s()
    )


def test_an_approved_plan_may_be_carried_out_and_every_click_is_in_the_audit_log(
    kernels: KernelGate, clock: ManualClock, store: Store
) -> None:
    plan = kernels.propose(_plan(clock), record=RECORD).action
    assert kernels.objections(plan) == ["it is waiting, not approved"]
    assert not kernels.approve(plan.id, plan.plan_sha256, VIEWER).ok
    assert kernels.approve(plan.id, plan.plan_sha256, ANN).changed
    again = kernels.approve(plan.id, plan.plan_sha256, ANN)
    assert again.ok
    assert not again.changed
    assert kernels.objections(plan) == []
    kernels.done(plan, "ann", "canary")
    assert kernels.objections(plan) == ["it is done, not approved"]
    assert [r.kind for r in store.audit.records()] == ["kernel_proposed", "refused", "approval", "kernel_done"]
    assert store.audit.verify().ok


def test_other_evidence_is_another_plan_that_needs_its_own_approval(
    kernels: KernelGate, clock: ManualClock
) -> None:
    first = kernels.propose(_plan(clock), record=RECORD).action
    kernels.approve(first.id, first.plan_sha256, ANN)
    changed = kernels.propose(_plan(clock, "correct (passed)"), record=RECORD).action
    assert changed.plan_sha256 != first.plan_sha256
    assert kernels.objections(changed) == ["it is waiting, not approved"]
    assert kernels.objections(first) == ["the plan is not the one that was proposed"]
    refused = kernels.approve(first.id, first.plan_sha256, BOB)
    assert not refused.ok
    assert "changed since you saw it" in refused.message
    clock.advance(60.0)
    later = kernels.propose(_plan(clock, "correct (passed)"), record=RECORD).action
    assert later.plan_sha256 == changed.plan_sha256  # only the time of asking differs


def test_the_emergency_stop_an_expiry_and_policy_hold_kernels_too(store: Store, clock: ManualClock) -> None:
    strict = ApprovalSettings(
        kinds={ActionKind.PROMOTE_KERNEL: ApprovalRule.TWO, ActionKind.KERNEL_JOB: ApprovalRule.NEVER}
    )
    people = Directory(People(same={"operator": "ann@example.org", "bob-laptop": "bob@example.org"}))
    kernels = KernelGate(Gate(store, strict, clock, people), store, clock)
    plan = kernels.propose(_plan(clock), "ann@example.org", RECORD).action
    for asked in (ANN, replace(ANN, name="operator")):
        assert "two other people" in kernels.approve(plan.id, plan.plan_sha256, asked).message
    for who in (BOB, replace(BOB, name="bob-laptop")):
        assert "1 of 2" in kernels.approve(plan.id, plan.plan_sha256, who).message
    carol = replace(ANN, name="carol")
    assert kernels.approve(plan.id, plan.plan_sha256, carol).message.startswith("Approved")
    kernels.gate.halt(ANN, "look first")
    assert any("halted" in why for why in kernels.objections(plan))
    assert "Halted" in kernels.approve(plan.id, plan.plan_sha256, ANN).message
    kernels.gate.resume(ANN)
    clock.advance(VALID_S + 1.0)
    assert kernels.objections(plan) == ["0 of 2 approvals still count"]
    never = kernels.propose(search("lab", "lab/gpt", "rmsnorm", "hot", 1.0, "low", clock.now_s())).action
    assert "never" in kernels.approve(never.id, never.plan_sha256, BOB).message


def test_a_rejected_plan_stays_rejected_and_gpu_hours_are_counted(kernels: KernelGate, clock: ManualClock) -> None:
    plan = kernels.propose(search("lab", "lab/gpt", "rmsnorm", "hot", 1.5, "low", clock.now_s())).action
    assert kernels.used_gpu_hours(0.0) == 0.0
    kernels.approve(plan.id, plan.plan_sha256, ANN)
    assert kernels.used_gpu_hours(0.0) == 1.5
    other = kernels.propose(_plan(clock), record=RECORD).action
    assert kernels.reject(other.id, other.plan_sha256, BOB, "not now").ok
    assert not kernels.approve(other.id, other.plan_sha256, ANN).ok
    assert not kernels.reject("kernel/none", "0" * 64, BOB, "").ok
    assert {p.state for p in kernels.proposals()} == {ProposalState.APPROVED, ProposalState.REJECTED}
    assert kernels.proposal("halt") is None
    clock.advance(VALID_S + 1.0)
    assert kernels.used_gpu_hours(0.0) == 0.0, "an approval that lapsed begins nothing"
