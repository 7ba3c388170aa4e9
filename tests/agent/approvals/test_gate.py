"""The gate: every click has one defined outcome, whoever clicks, however often, and whatever happens meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nightshift.agent.approvals import gate as gates
from nightshift.agent.approvals.answer import GateAnswer
from nightshift.agent.approvals.gate import Gate
from nightshift.agent.approvals.people import Directory
from nightshift.agent.approvals.people import Settings as People
from nightshift.agent.approvals.policy import ApprovalRule, ApprovalSettings, Person, Role, RoleGrant, rule_for
from nightshift.agent.cli.terminal import operator
from nightshift.agent.store.incident import Cause, IncidentState
from nightshift.agent.store.incident_store import NoSuchIncident, Store
from nightshift.controllers.action import Action, ActionKind, BlastRadius
from tests.agent.incidents import NODE, ManualClock, a_diagnosis, a_finding, an_action

ANN = Person("ann@example.org", frozenset({Role.APPROVER}), "console", 1_000.0)
BOB = Person("bob@example.org", frozenset({Role.APPROVER, Role.VIEWER}), "cli")
VIEWER = Person("vic@example.org", frozenset({Role.VIEWER}), "console")
RESPONDER = Person("rae@example.org", frozenset({Role.RESPONDER}), "slack")
ADMIN = Person("ada@example.org", frozenset({Role.ADMIN}), "cli")


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.sqlite"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def store(url: str, clock: ManualClock) -> Iterator[Store]:
    opened = Store(url, clock)
    yield opened
    opened.close()


@pytest.fixture
def gate(store: Store, clock: ManualClock) -> Gate:
    return Gate(
        store,
        ApprovalSettings(kinds={ActionKind.DRAIN: ApprovalRule.TWO, ActionKind.OPEN_RMA: ApprovalRule.NEVER}),
        clock,
    )


def _awaiting(store: Store, action: Action | None = None) -> tuple[str, Action]:
    name = store.open_incident("leak", [a_finding()])
    store.save_diagnosis(store.incident(name), a_diagnosis(), by="rules")
    plan = action or an_action(f"{name}-1")
    store.save_plan(store.incident(name), plan, "least disruptive", by="mitigate")
    return name, plan


def _kinds(store: Store, name: str) -> list[str]:
    return [record.kind for record in store.audit.records() if record.incident == name]


def test_an_approval_binds_plan_person_role_and_expiry(store: Store, gate: Gate) -> None:
    name, plan = _awaiting(store)
    assert gate.approve(name, plan.plan_sha256, ANN) == GateAnswer(
        True, "Approved: restart_job job:team/job starts now.", True
    )
    assert store.incident(name).state is IncidentState.APPROVED
    (approval,) = gate.approvals(name)
    assert (approval.person, approval.role, approval.channel) == ("ann@example.org", Role.APPROVER, "console")
    assert (approval.plan_sha256, approval.at_s, approval.expires_s) == (plan.plan_sha256, 1_000.0, 4_600.0)
    assert _kinds(store, name)[-2:] == ["approval", "moved"]


def test_a_double_click_changes_nothing_and_says_so(store: Store, gate: Gate) -> None:
    name, plan = _awaiting(store)
    gate.approve(name, plan.plan_sha256, ANN)
    before = store.audit.head()
    again = gate.approve(name, plan.plan_sha256, replace(ANN, name=" ANN@example.org", channel="slack"))
    assert (again.ok, again.changed) == (True, False)
    assert again.message == f"You approved this already; {name} is approved."
    assert store.audit.head() == before


def test_a_second_person_after_the_decision_is_told_who_decided(store: Store, gate: Gate) -> None:
    name, plan = _awaiting(store)
    gate.approve(name, plan.plan_sha256, ANN)
    answer = gate.approve(name, plan.plan_sha256, BOB)
    assert answer == GateAnswer(False, f"Approved already by ann@example.org; {name} is approved.")


def test_a_click_on_a_plan_that_changed_is_refused(store: Store, gate: Gate, clock: ManualClock) -> None:
    name, plan = _awaiting(store)
    store.move(name, Cause.WORLD_CHANGED, "lifecycle", "", store.incident(name).version)
    store.save_plan(store.incident(name), an_action(f"{name}-2"), "again", by="mitigate")
    answer = gate.approve(name, plan.plan_sha256, ANN)
    assert (answer.ok, answer.message) == (
        False,
        f"The plan of {name} has changed since you saw it. Reload it and decide again.",
    )
    assert store.incident(name).state is IncidentState.AWAITING_APPROVAL


def test_a_click_after_expiry_is_refused(store: Store, gate: Gate, clock: ManualClock) -> None:
    name, plan = _awaiting(store)
    clock.advance(3_600)
    answer = gate.approve(name, plan.plan_sha256, ANN)
    assert (answer.ok, answer.message) == (False, f"The plan of {name} has expired; a new one is on its way.")


def test_a_replayed_click_of_a_finished_incident_does_nothing(store: Store, gate: Gate) -> None:
    name, plan = _awaiting(store)
    gate.approve(name, plan.plan_sha256, ANN)
    for cause in (Cause.INTENT_STORED, Cause.ACTION_DONE, Cause.CONFIRMED):
        store.move(name, cause, "lifecycle", "", store.incident(name).version)
    assert gate.approve(name, plan.plan_sha256, ANN).ok is False
    assert gate.approve(name, plan.plan_sha256, BOB).message == f"{name} is resolved; there is nothing to approve."
    assert store.incident(name).state is IncidentState.RESOLVED


@pytest.mark.parametrize("person", [VIEWER, RESPONDER, Person("", frozenset({Role.ADMIN}), "cli")])
def test_who_is_no_approver_is_refused_and_the_attempt_is_in_the_audit_log(
    store: Store, gate: Gate, person: Person
) -> None:
    name, plan = _awaiting(store)
    assert gate.approve(name, plan.plan_sha256, person).ok is False
    assert store.incident(name).state is IncidentState.AWAITING_APPROVAL
    assert _kinds(store, name)[-1] == "refused"


def test_two_people_are_two_different_people(store: Store, gate: Gate) -> None:
    name, plan = _awaiting(store, an_action("INC-1-1", ActionKind.DRAIN, NODE))
    assert gate.approve(name, plan.plan_sha256, ANN).message == "Recorded: 1 of 2. A second person must approve."
    same = gate.approve(name, plan.plan_sha256, replace(ANN, name="Ann@Example.org "))
    assert (same.ok, same.changed) == (True, False)
    assert store.incident(name).state is IncidentState.AWAITING_APPROVAL
    assert gate.approve(name, plan.plan_sha256, BOB).changed
    assert store.incident(name).state is IncidentState.APPROVED


def test_who_asked_for_a_plan_cannot_be_one_of_the_two(store: Store, gate: Gate) -> None:
    name, plan = _awaiting(store, an_action("INC-1-1", ActionKind.DRAIN, NODE))
    asker = Person("Nightshift", frozenset({Role.ADMIN}), "cli")
    assert gate.approve(name, plan.plan_sha256, asker).message.startswith("You requested this plan")


def test_the_first_of_two_approvals_runs_out(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "VALID_S", 60.0)
    gate = Gate(store, ApprovalSettings(default=ApprovalRule.TWO), clock)
    name, plan = _awaiting(store)
    gate.approve(name, plan.plan_sha256, ANN)
    clock.advance(61)
    assert gate.approve(name, plan.plan_sha256, BOB).message.startswith("Recorded: 1 of 2")
    assert gate.approve(name, plan.plan_sha256, ANN).changed
    assert store.incident(name).state is IncidentState.APPROVED


def test_a_kind_that_policy_forbids_is_advice(store: Store, gate: Gate) -> None:
    name, plan = _awaiting(store, an_action("INC-1-1", ActionKind.OPEN_RMA, NODE))
    assert "manually" in gate.approve(name, plan.plan_sha256, ADMIN).message


def test_a_reboot_asks_for_a_fresh_sign_in(store: Store, gate: Gate, clock: ManualClock) -> None:
    name, plan = _awaiting(store, an_action("INC-1-1", ActionKind.REBOOT_NODE, NODE))
    assert "sign in again" in gate.approve(name, plan.plan_sha256, BOB).message
    clock.advance(301)
    assert "sign in again" in gate.approve(name, plan.plan_sha256, ANN).message
    assert "sign in again" in gate.approve(name, plan.plan_sha256, replace(ANN, signed_in_s=9e9)).message
    assert "approve it there" in gate.approve(name, plan.plan_sha256, operator()).message
    assert gate.approve(name, plan.plan_sha256, replace(ANN, signed_in_s=clock.now_s())).changed


def test_a_wide_plan_needs_two_people_and_policy_is_never_loosened_by_width() -> None:
    policy = ApprovalSettings(
        kinds={ActionKind.CORDON: ApprovalRule.AUTOMATIC, ActionKind.OPEN_RMA: ApprovalRule.NEVER}, wide_gpus=2
    )
    wide = BlastRadius(gpus=("a", "b", "c"))
    assert rule_for(an_action(kind=ActionKind.CORDON), policy) is ApprovalRule.AUTOMATIC
    assert rule_for(replace(an_action(kind=ActionKind.CORDON), blast_radius=wide), policy) is ApprovalRule.TWO
    assert rule_for(replace(an_action(kind=ActionKind.OPEN_RMA), blast_radius=wide), policy) is ApprovalRule.NEVER


def test_a_plan_that_touches_a_guarded_place_falls_under_the_stricter_rule() -> None:
    policy = ApprovalSettings(places={"job:prod-*": ApprovalRule.TWO, "node:lab-*": ApprovalRule.AUTOMATIC})
    for jobs, rule in [(("prod-a/train",), ApprovalRule.TWO), (("dev/train",), ApprovalRule.ONE)]:
        plan = replace(an_action(kind=ActionKind.DRAIN, target=NODE), blast_radius=BlastRadius(jobs=jobs))
        assert rule_for(plan, policy) is rule
    lab = replace(an_action(kind=ActionKind.DRAIN), blast_radius=BlastRadius(nodes=("lab-1",)))
    assert rule_for(lab, policy) is ApprovalRule.ONE  # a place never loosens


def test_a_plan_cannot_excuse_itself_from_approval_unless_its_kind_is_harmless() -> None:
    excused = replace(an_action(kind=ActionKind.REBOOT_NODE), needs_approval=False)
    assert rule_for(excused, ApprovalSettings()) is ApprovalRule.ONE
    notice = replace(an_action(kind=ActionKind.NOTIFY_OWNER), needs_approval=False)
    assert rule_for(notice, ApprovalSettings()) is ApprovalRule.AUTOMATIC
    assert rule_for(notice, ApprovalSettings(kinds={ActionKind.NOTIFY_OWNER: ApprovalRule.TWO})) is ApprovalRule.TWO


def test_a_rejection_has_a_reason_and_stops_an_approved_plan_that_has_not_begun(store: Store, gate: Gate) -> None:
    name, plan = _awaiting(store)
    gate.approve(name, plan.plan_sha256, ANN)
    assert gate.reject(name, plan.plan_sha256, VIEWER, "no").ok is False
    assert gate.reject(name, plan.plan_sha256, RESPONDER, "the owner fixes it").changed
    read = store.incident(name)
    assert (read.state, read.history[-1].note) == (IncidentState.MONITORING, "the owner fixes it")
    assert gate.reject(name, plan.plan_sha256, RESPONDER, "again").ok is False


def test_a_rejection_after_the_action_began_says_what_can_be_done(store: Store, gate: Gate) -> None:
    name, plan = _awaiting(store)
    gate.approve(name, plan.plan_sha256, ANN)
    store.move(name, Cause.INTENT_STORED, "lifecycle", "", store.incident(name).version)
    assert "nightshift halt" in gate.reject(name, plan.plan_sha256, ANN, "stop").message


def test_halting_holds_for_every_process_and_only_approvers_resume(store: Store, gate: Gate, url: str) -> None:
    name, plan = _awaiting(store)
    assert gate.halt(VIEWER).ok is False
    assert gate.halt(RESPONDER, "wrong nodes").changed
    elsewhere = Store(url, ManualClock())
    other = Gate(elsewhere, ApprovalSettings(), ManualClock())
    assert other.halted().by == "rae@example.org"
    assert other.approve(name, plan.plan_sha256, ANN).message.startswith("Halted by rae@example.org (wrong nodes)")
    elsewhere.close()
    assert gate.halt(ANN).changed is False
    assert gate.resume(RESPONDER).ok is False
    assert gate.resume(ANN).changed
    assert gate.resume(ANN).changed is False
    assert gate.approve(name, plan.plan_sha256, ANN).changed
    assert [r.kind for r in store.audit.records() if r.incident is None] == ["halted", "resumed"]


def test_a_halt_names_what_it_holds_where_it_stands(store: Store, gate: Gate) -> None:
    """What has begun is named to whoever halts, and stands among what is held until it ends."""
    name, plan = _awaiting(store)
    gate.approve(name, plan.plan_sha256, ANN)
    assert gate.held() == []
    store.move(name, Cause.INTENT_STORED, "lifecycle", "", store.incident(name).version)
    left = f"{name} (restart job of job:team/job; stays stopped: team/job)"
    assert gate.halt(RESPONDER).message.endswith(f"Paused: {left}.")
    assert gate.held() == [left]


def test_a_halt_in_mid_drain_names_the_node_and_the_jobs_that_may_be_left_stopped(store: Store, gate: Gate) -> None:
    """The first five of many, and how many more; taking back stops no job."""
    jobs = tuple(f"ml/j{number}" for number in range(7))
    drain = an_action("INC-1-1", ActionKind.DRAIN, NODE)
    name, plan = _awaiting(store, replace(drain, blast_radius=BlastRadius(jobs=jobs, nodes=("n1",))))
    for person in (ANN, BOB):
        gate.approve(name, plan.plan_sha256, person)
    store.move(name, Cause.INTENT_STORED, "lifecycle", "", store.incident(name).version)
    stopped = "stays stopped: ml/j0, ml/j1, ml/j2, ml/j3, ml/j4 and 2 more jobs"
    assert gate.held() == [f"{name} (drain of node:n1; {stopped})"]


def test_a_team_approves_its_own_and_knows_of_nothing_else(store: Store, gate: Gate) -> None:
    """Over its namespace a grant decides; over another's there is no such incident; the stop is the cluster's."""
    name, plan = _awaiting(store)
    tia = Person("tia", frozenset(), "console", grants=(RoleGrant(Role.APPROVER, ("team",)),))
    tom = Person("tom", frozenset(), "slack", grants=(RoleGrant(Role.APPROVER, ("other",)),))
    with pytest.raises(NoSuchIncident, match=f"there is no {name}"):
        gate.approve(name, plan.plan_sha256, tom)
    assert not gate.halt(tia).ok
    assert gate.approve(name, plan.plan_sha256, tia).changed


def test_execution_asks_again_for_hash_expiry_and_standing_approvals(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "VALID_S", 600.0)
    gate = Gate(store, ApprovalSettings(), clock)
    name, plan = _awaiting(store)
    gate.approve(name, plan.plan_sha256, ANN)
    assert gate.objections(store.incident(name)) == []
    changed = replace(store.incident(name), action=an_action("INC-1-9"))
    assert gate.objections(changed) == [(Cause.WORLD_CHANGED, "the plan is not the one that was approved")]
    stricter = Gate(store, ApprovalSettings(kinds={plan.kind: ApprovalRule.TWO}), clock)
    assert stricter.objections(store.incident(name)) == [(Cause.EXPIRED, "1 of 2 approvals still count")]
    forbidden = Gate(store, ApprovalSettings(kinds={plan.kind: ApprovalRule.NEVER}), clock)
    assert forbidden.objections(store.incident(name))[0][0] is Cause.WORLD_CHANGED
    clock.advance(601)
    assert gate.objections(store.incident(name)) == [(Cause.EXPIRED, "0 of 1 approvals still count")]
    clock.advance(3_600)
    assert gate.objections(store.incident(name)) == [(Cause.EXPIRED, "the plan expired before it began")]


def test_who_was_taken_out_since_approves_nothing_any_more(store: Store, clock: ManualClock) -> None:
    """By name, or by a group that lost its role; what the directory never said, such as the operator's, stands."""
    before = People(roles={"ann@example.org": Role.APPROVER}, groups={"sre": Role.APPROVER})
    directory = Directory(before)
    gate = Gate(store, ApprovalSettings(), clock, directory)
    by_name = directory.person("Ann@example.org", "slack")
    by_group = directory.person("gus@example.org", "console", 1_000.0, ["sre", "choir"])
    assert (by_name.groups, by_group.groups) == ((), ("sre",))
    for who, after in (
        (by_name, People(groups={"sre": Role.APPROVER})),
        (by_name, People(roles={"ann@example.org": Role.RESPONDER})),
        (by_group, People(roles={"ann@example.org": Role.APPROVER})),
    ):
        name, plan = _awaiting(store)
        assert gate.approve(name, plan.plan_sha256, who).changed
        assert gate.objections(store.incident(name)) == []
        directory.heed(after)
        said = f"0 of 1 approvals still count; {who.identity} may no longer approve it"
        assert gate.objections(store.incident(name)) == [(Cause.EXPIRED, said)]
        directory.heed(before)
        assert gate.objections(store.incident(name)) == []
    name, plan = _awaiting(store)
    gate.approve(name, plan.plan_sha256, ADMIN)
    directory.heed(People())
    assert gate.objections(store.incident(name)) == []


def test_of_two_people_one_who_was_taken_out_does_not_count(store: Store, clock: ManualClock) -> None:
    both = People(roles={"ann@example.org": Role.APPROVER, "bob@example.org": Role.APPROVER})
    directory = Directory(both)
    gate = Gate(store, ApprovalSettings(default=ApprovalRule.TWO), clock, directory)
    name, plan = _awaiting(store)
    gate.approve(name, plan.plan_sha256, directory.person("ann@example.org", "slack"))
    directory.heed(People(roles={"bob@example.org": Role.APPROVER}))
    assert gate.approve(name, plan.plan_sha256, directory.person("bob@example.org", "slack")).message == (
        "Recorded: 1 of 2. A second person must approve."
    )
    assert store.incident(name).state is IncidentState.AWAITING_APPROVAL


def test_somebody_s_token_and_account_are_one_person(store: Store, clock: ManualClock) -> None:
    settings = People(same={"Operator": "Ann@example.org ", "ann-laptop": "ann@example.org"})
    gate = Gate(store, ApprovalSettings(default=ApprovalRule.TWO), clock, Directory(settings))
    name, plan = _awaiting(store)
    recorded = GateAnswer(True, "Recorded: 1 of 2. A second person must approve.", True)
    for who in ("operator", "ann@example.org", "ann-laptop"):
        assert gate.approve(name, plan.plan_sha256, replace(ANN, name=who)) == recorded
    assert store.incident(name).state is IncidentState.AWAITING_APPROVAL
    assert gate.approve(name, plan.plan_sha256, BOB).message.startswith("Approved: ")
    assert gate.objections(store.incident(name)) == []
    alone = Gate(store, gate.policy, clock, Directory(People(same=settings.same | {BOB.name: "ann@example.org"})))
    assert alone.objections(store.incident(name)) == [(Cause.EXPIRED, "1 of 2 approvals still count")]


def test_automatic_policy_approves_once_and_not_while_halted(store: Store, clock: ManualClock) -> None:
    gate = Gate(store, ApprovalSettings(kinds={ActionKind.RESTART_JOB: ApprovalRule.AUTOMATIC}), clock)
    name, _ = _awaiting(store)
    seen = store.incident(name)
    gate.halt(ANN)
    assert gate.approve_by_policy(seen) is False
    gate.resume(ANN)
    assert gate.approve_by_policy(seen) is True
    assert gate.approve_by_policy(seen) is False
    assert gate.objections(store.incident(name)) == []


def test_closing_is_refused_while_an_action_is_under_way(store: Store, gate: Gate) -> None:
    name, plan = _awaiting(store)
    gate.approve(name, plan.plan_sha256, ANN)
    assert gate.close(name, ANN, "done").ok is False
    other, _ = _awaiting(store, an_action("INC-2-1"))
    assert gate.close(other, VIEWER, "done").ok is False
    assert gate.close(other, RESPONDER, "false alarm").changed
    assert store.incident(other).state is IncidentState.RESOLVED


def _at_once(*calls: Callable[[], GateAnswer]) -> list[GateAnswer]:
    barrier = threading.Barrier(len(calls))
    answers: list[GateAnswer] = []

    def click(call: Callable[[], GateAnswer]) -> None:
        barrier.wait()
        answers.append(call())

    threads = [threading.Thread(target=click, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


@pytest.mark.parametrize("round_", range(3))
def test_of_many_approvers_at_once_exactly_one_approves(store: Store, gate: Gate, round_: int) -> None:
    name, plan = _awaiting(store)
    people = [Person(f"p{i}", frozenset({Role.APPROVER}), "console") for i in range(4)]
    calls = [lambda p=p: gate.approve(name, plan.plan_sha256, p) for p in people]  # type: ignore[misc]
    answers = _at_once(*calls)
    assert sum(answer.changed for answer in answers) == 1
    assert len(gate.approvals(name)) == 1
    assert [step.cause for step in store.incident(name).history].count("approved") == 1


@pytest.mark.parametrize("round_", range(3))
def test_two_first_approvals_at_once_make_two(store: Store, gate: Gate, round_: int) -> None:
    name, plan = _awaiting(store, an_action("INC-1-1", ActionKind.DRAIN, NODE))
    answers = _at_once(
        lambda: gate.approve(name, plan.plan_sha256, ANN), lambda: gate.approve(name, plan.plan_sha256, BOB)
    )
    assert all(answer.changed for answer in answers)
    assert store.incident(name).state is IncidentState.APPROVED


@pytest.mark.parametrize("round_", range(3))
def test_approve_and_reject_at_once_leave_one_decision(store: Store, gate: Gate, round_: int) -> None:
    name, plan = _awaiting(store)
    _at_once(
        lambda: gate.approve(name, plan.plan_sha256, ANN), lambda: gate.reject(name, plan.plan_sha256, BOB, "no")
    )
    causes = [step.cause for step in store.incident(name).history[3:]]
    assert causes in (["approved", "rejected"], ["rejected"])  # a rejection also stops what has not begun
    assert store.incident(name).state is IncidentState.MONITORING
