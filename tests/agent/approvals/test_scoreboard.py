"""Autonomy is earned by people's decisions and by what worked, per kind and namespace, and never by few of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from nightshift.agent.__main__ import app as command_line
from nightshift.agent.approvals.policy import ApprovalRule, ApprovalSettings, Person, Role
from nightshift.agent.approvals.scoreboard import (
    AGREED,
    LEVELS,
    ApprovalScore,
    Level,
    Rating,
    Scoreboard,
    Settings,
    place_of,
    rate,
    wilson_low,
)
from nightshift.agent.incidents.lifecycle import Lifecycle
from nightshift.agent.incidents.stages import LifecycleSettings
from nightshift.agent.store.incident import IncidentState
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.controllers.action import ActionKind
from nightshift.detectors.base import State
from tests.agent.approvals.test_interleavings import AtOnce
from tests.agent.incidents import JOB, NODE, ManualClock, a_finding, an_action
from tests.agent.world import ANN, World

A, S = ActionKind, IncidentState
REA = Person("rea", frozenset({Role.RESPONDER}), "console", None)


def made(tmp_path: Path, **policy: object) -> tuple[World, ManualClock]:
    clock = ManualClock()
    world = World(
        f"sqlite:///{tmp_path}/store.sqlite",
        tmp_path,
        clock,
        policy=ApprovalSettings(**policy),  # type: ignore[arg-type]
        settings=LifecycleSettings(quiet_s=10, confirm_timeout_s=100),
    )
    return world, clock


def once(world: World, clock: ManualClock, decide: str, *, recovers: bool = True) -> IncidentState:
    """One incident from its finding to its end, as people decide."""
    lifecycle = Lifecycle(world.parts(), new_queue=AtOnce)
    lifecycle._stand()
    name = world.store.open_incident("leak", [a_finding(at_s=clock.now_s())])
    for _ in range(30):
        lifecycle.advance(clock.now_s())
        incident = world.store.incident(name)
        if incident.state is S.AWAITING_APPROVAL and incident.action is not None:
            if decide == "approve":
                world.gate.approve(name, incident.action.plan_sha256, ANN)
            elif decide == "reject":
                world.gate.reject(name, incident.action.plan_sha256, REA, "no")
        done = (incident.state is S.CONFIRMING and recovers) or incident.state is S.MONITORING
        if done and incident.clear_since_s is None:
            world.store.update_finding(name, a_finding(state=State.CLEAR, at_s=clock.now_s()))
        if incident.state in (S.RESOLVED, S.ESCALATED):
            break
        clock.advance(11)
    lifecycle._leadership.abandon()
    return world.store.incident(name).state


def ratings(world: World, clock: ManualClock, **settings: float) -> list[Rating]:
    return Scoreboard(world.store.database, Settings(**settings)).ratings(clock.now_s())  # type: ignore[arg-type]


def test_decisions_and_results_are_counted_where_they_belong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two approved and confirmed, one declined, one approved that did not help: each is counted once."""
    world, clock = made(tmp_path)
    for decide, recovers in (("approve", True), ("approve", True), ("reject", True), ("approve", False)):
        once(world, clock, decide, recovers=recovers)
    (rating,) = ratings(world, clock)
    assert rating.score == ApprovalScore(A.RESTART_JOB, "team", 4, agreed=3, disagreed=1, confirmed=2, failed=1)
    assert rating.level is Level.OBSERVE
    monkeypatch.setattr("nightshift.agent.approvals.scoreboard.WINDOW_S", 1.0)
    assert ratings(world, clock) == []


def test_the_command_explains_the_levels_that_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # the command reads by the wall clock what the test's own clock stamped
    monkeypatch.setattr("nightshift.agent.approvals.scoreboard.WINDOW_S", 1e12)
    world, clock = made(tmp_path)
    once(world, clock, "approve")
    config = tmp_path / "nightshift.yaml"
    config.write_text(json.dumps({"store": {"url": f"sqlite:///{tmp_path}/store.sqlite"}}))
    shown = CliRunner().invoke(command_line, ["scoreboard", "--config", str(config)])
    assert shown.exit_code == 0
    assert "observe: too few decisions to tell\n" in shown.output
    assert "propose: " not in shown.output
    assert "autonomy.required is off: " in shown.output


def test_every_level_is_explained() -> None:
    assert list(LEVELS) == list(Level)


def test_what_policy_approved_by_itself_earns_nothing(tmp_path: Path) -> None:
    world, clock = made(tmp_path, kinds={A.RESTART_JOB: ApprovalRule.AUTOMATIC})
    once(world, clock, "")
    (rating,) = ratings(world, clock)
    assert (rating.score.automatic, rating.score.decided) == (1, 0)


def test_an_automatic_kind_asks_a_person_until_it_has_earned_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same policy: at first somebody has to approve, and the plan says why; after enough agreement it acts."""
    world, clock = made(tmp_path, kinds={A.RESTART_JOB: ApprovalRule.AUTOMATIC})
    monkeypatch.setattr("nightshift.agent.approvals.scoreboard.DECISIONS", 2)
    monkeypatch.setattr("nightshift.agent.approvals.scoreboard.AGREEMENT", 0.4)
    monkeypatch.setattr("nightshift.agent.approvals.scoreboard.AGREED", 3)
    board = Scoreboard(world.store.database, Settings(required=True))

    def not_earned(action: object) -> str:
        found = board.may_act(action, clock.now_s())  # type: ignore[arg-type]
        return found.reason if found else ""

    plain = world.parts
    world.parts = lambda **changes: plain(not_earned=not_earned, **changes)  # type: ignore[method-assign]
    for _ in range(3):
        assert once(world, clock, "approve") is S.RESOLVED
    names = [i.id for i in world.store.incidents()]
    assert "A person decides, since 0 of 2 decisions" in world.store.incident(min(names)).plan_reason
    assert once(world, clock, "nobody") is S.RESOLVED
    (rating,) = ratings(world, clock)
    assert (rating.score.agreed, rating.score.automatic) == (3, 1)


def test_nodes_and_namespaces_are_rated_apart() -> None:
    assert place_of(an_action(kind=A.RESTART_JOB, target=JOB)) == "team"
    assert place_of(an_action(kind=A.CORDON, target=NODE)) == "*"
    assert place_of(an_action(kind=A.RESET_GPU, target=Subject(SubjectKind.GPU, "GPU-1"))) == "*"


def test_what_does_not_help_loses_what_was_earned() -> None:
    good = ApprovalScore(A.CORDON, "*", agreed=40, confirmed=40)
    assert rate(good).level is Level.ACT
    bad = rate(ApprovalScore(A.CORDON, "*", agreed=40, confirmed=30, failed=10))
    assert (bad.level, bad.reason) == (Level.PROPOSE, "10 of 40 did not help; 10% may")
    assert rate(ApprovalScore(A.CORDON, "*", agreed=40, disagreed=10, confirmed=40)).level is Level.PROPOSE


def test_the_bound_is_wilsons() -> None:
    """Against the published formula's value for 8 of 10 at z = 1.645, and its limits."""
    assert abs(wilson_low(8, 10) - 0.5404) < 2e-3
    assert wilson_low(0, 0) == 0.0
    assert wilson_low(0, 20) < 1e-9


counts = st.integers(0, 60)


@given(
    st.builds(
        ApprovalScore, st.just(A.CORDON), st.just("*"), counts, counts, counts, counts, counts, counts, counts
    )
)
def test_more_agreement_never_lowers_and_more_failure_never_raises(score: ApprovalScore) -> None:
    order = list(Level)
    level = order.index(rate(score).level)
    assert order.index(rate(replace(score, agreed=score.agreed + 1)).level) >= level
    assert order.index(rate(replace(score, failed=score.failed + 1)).level) <= level
    if level == order.index(Level.ACT):
        assert score.agreed >= AGREED
