"""Learned policies pass the one gate: statistics first, then people; down at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from typer.testing import CliRunner

from nightshift.agent.__main__ import app
from nightshift.agent.approvals.gate import Gate
from nightshift.agent.approvals.policy import ApprovalRule, ApprovalSettings, Person, Role
from nightshift.agent.approvals.policy_gate import PolicyGate
from nightshift.agent.control.policy_watch import PolicyWatch
from nightshift.agent.incidents.retention import Keeping
from nightshift.agent.incidents.retention import Settings as KeepingSettings
from nightshift.agent.setup.policies import stand_up, stood_up
from nightshift.agent.store.incident_store import Store
from nightshift.agent.store.receipts import Receipts
from nightshift.collectors.base import Permanent
from nightshift.collectors.seal import Signer
from nightshift.controllers.action import ActionKind
from nightshift.controllers.decision import Clip, ControlDecision, Mode
from nightshift.controllers.policy_file import Network, Normaliser, PolicyFile, PolicyRefused, write
from nightshift.controllers.power.features import ACTIONS, FEATURES, INTERFACE
from nightshift.controllers.promotion import Criteria, PolicyHealth
from tests.agent.incidents import ManualClock
from tests.agent.killed_policy import a_receipt
from tests.controllers.test_promotion import world

ANN = Person("ann@example.org", frozenset({Role.APPROVER}), "console", 1_000.0)
BOB = Person("bob@example.org", frozenset({Role.APPROVER}), "cli")
SHA = "ab" * 32


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    url = f"sqlite:///{tmp_path}/s.sqlite" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    opened = Store(str(url), clock)
    yield opened
    opened.close()


@pytest.fixture
def policies(store: Store, clock: ManualClock) -> PolicyGate:
    return PolicyGate(Gate(store, ApprovalSettings(), clock), store, clock, "lab", Criteria(looks=2))


def climb(policies: PolicyGate, to: Mode) -> None:
    policies.stand("scheduling", "ppo@ab", SHA)
    while policies.standing("scheduling").mode is not to:
        policies.look("scheduling", world(1, 0.2, 400, 4), 0.0)
        plan = policies.propose("scheduling").action
        assert policies.approve(plan.id, plan.plan_sha256, ANN).ok
        policies.carry_out("scheduling", "ann@example.org")


def test_a_policy_climbs_one_approved_step_at_a_time_and_every_one_is_in_the_audit_log(
    policies: PolicyGate, store: Store
) -> None:
    climb(policies, Mode.ACTIVE)
    standing = policies.standing("scheduling")
    assert [change.after for change in standing.history] == [Mode.TRIAL, Mode.CANARY, Mode.ACTIVE]
    with pytest.raises(Permanent, match="no further step"):
        policies.propose("scheduling")
    kinds = [record.kind for record in store.audit.records()]
    assert kinds.count("policy_promoted") == kinds.count("approval") == kinds.count("policy_done") == 3
    assert store.audit.verify().ok


def test_no_step_without_evidence_without_approval_or_while_halted(policies: PolicyGate) -> None:
    policies.stand("scheduling", "ppo@ab", SHA)
    with pytest.raises(Permanent, match="has no evidence yet"):
        policies.propose("scheduling")
    policies.look("scheduling", world(1, 0.2, 20, 4), 0.0)
    with pytest.raises(Permanent, match="20 of 60 jobs"):
        policies.propose("scheduling")
    policies.look("scheduling", world(1, 0.2, 400, 4), 0.0)
    plan = policies.propose("scheduling").action
    with pytest.raises(Permanent, match="waiting, not approved"):
        policies.carry_out("scheduling", "ann")
    policies.approve(plan.id, plan.plan_sha256, ANN)
    policies.gate.halt(ANN, "fire")
    with pytest.raises(Permanent, match="halted"):
        policies.carry_out("scheduling", "ann")
    assert policies.standing("scheduling").mode is Mode.SHADOW


def test_looks_are_counted_in_the_store_and_run_out(policies: PolicyGate) -> None:
    policies.stand("scheduling", "ppo@ab", SHA)
    for _ in range(2):
        policies.look("scheduling", world(1, 0.2, 20, 4), 0.0)
    assert not policies.look("scheduling", world(1, 0.2, 400, 4), 0.0).ready


def test_newer_evidence_needs_its_own_approval(policies: PolicyGate) -> None:
    policies.stand("scheduling", "ppo@ab", SHA)
    policies.look("scheduling", world(1, 0.2, 400, 4), 0.0)
    plan = policies.propose("scheduling").action
    policies.approve(plan.id, plan.plan_sha256, ANN)
    policies.look("scheduling", world(2, 0.2, 400, 4), 0.0)
    with pytest.raises(Permanent, match="waiting, not approved"):
        policies.carry_out("scheduling", "ann")


def test_a_rule_for_two_asks_two_people_for_a_promotion(store: Store, clock: ManualClock) -> None:
    settings = ApprovalSettings(kinds={ActionKind.PROMOTE_POLICY: ApprovalRule.TWO})
    policies = PolicyGate(Gate(store, settings, clock), store, clock, "lab")
    policies.stand("scheduling", "ppo@ab", SHA)
    policies.look("scheduling", world(1, 0.2, 400, 4), 0.0)
    plan = policies.propose("scheduling").action
    policies.approve(plan.id, plan.plan_sha256, ANN)
    with pytest.raises(Permanent, match="not approved"):
        policies.carry_out("scheduling", "ann")
    policies.approve(plan.id, plan.plan_sha256, BOB)
    assert policies.carry_out("scheduling", "bob").mode is Mode.TRIAL


def test_a_budget_event_demotes_at_once_without_anybody_and_the_climb_begins_anew(policies: PolicyGate) -> None:
    climb(policies, Mode.CANARY)
    assert policies.watch("scheduling", PolicyHealth(10)) == ""
    assert "budget" in policies.watch("scheduling", PolicyHealth(10, budget_events=1))
    standing = policies.standing("scheduling")
    assert (standing.mode, standing.next, standing.evidence) == (Mode.SHADOW, Mode.TRIAL, None)
    assert "budget" in standing.demotion


def test_anyone_who_may_halt_may_take_a_policy_back_and_a_viewer_may_not(policies: PolicyGate) -> None:
    climb(policies, Mode.TRIAL)
    viewer = Person("vic@example.org", frozenset({Role.VIEWER}), "console")
    assert not policies.undo("scheduling", viewer, "").ok
    assert policies.undo("scheduling", replace(ANN, roles=frozenset({Role.RESPONDER})), "odd waits").changed
    assert policies.standing("scheduling").demotion == "odd waits"


def test_another_policy_of_the_kind_begins_in_shadow(policies: PolicyGate) -> None:
    climb(policies, Mode.CANARY)
    assert policies.stand("scheduling", "ppo@cd", "cd" * 32).mode is Mode.SHADOW
    assert policies.stand("scheduling", "ppo@cd", "cd" * 32) == policies.standing("scheduling")


def receipt(number: int, *, fallback: str = "") -> ControlDecision:
    return ControlDecision(
        f"{number:016x}", "scheduling", float(number), Mode.TRIAL, "queue", f"job-{number % 7}", "ppo@ab", fallback,
        {"waiting": 3}, "hold", 0.5, (Clip("starvation", "hold", "start", "waited 5 h"),), "start", 0.5, "start",
        "fifo_backfill", {"slowdown": 1.02}, "narrow first",
    )  # fmt: skip


def test_a_receipt_is_found_by_its_beginning_and_what_came_of_it_makes_a_turn(store: Store) -> None:
    receipts = Receipts(store.database)
    for number in range(1, 5):
        receipts.keep(receipt(number, fallback="missing: x" if number == 4 else ""), chance=0.5, treated=True)
        receipts.keep(receipt(number), chance=0.1)
    assert receipts.find(f"{2:016x}") == receipt(2)
    with pytest.raises(Permanent, match="several"):
        receipts.find("000")
    with pytest.raises(Permanent, match="no such"):
        receipts.find("zz")
    receipts.settle(f"{2:016x}", reward=1.0, slowdown=1.01)
    gathered = receipts.gathered("scheduling", "ppo@ab", Mode.TRIAL, 0.0)
    turns, fell_back = gathered.turns, gathered.fallback_share
    assert [(turn.job, turn.chance, turn.predicted) for turn in turns] == [("job-2", 0.5, 1.02)]
    assert fell_back == 0.25
    assert receipts.prune(3.0) == 2


def test_old_receipts_go_when_their_days_are_over(store: Store) -> None:
    receipts = Receipts(store.database)
    receipts.keep(receipt(1))
    keeping = Keeping(store.database, KeepingSettings())
    keeping.turn(30 * 86_400.0)
    assert len(receipts.newest()) == 1
    keeping.turn(30.2 * 86_400.0)
    assert receipts.newest() == []


def test_the_command_line_stands_explains_and_takes_back(tmp_path: Path, clock: ManualClock) -> None:
    url = f"sqlite:///{tmp_path}/s.sqlite"
    store = Store(url, clock)
    climb(PolicyGate(Gate(store, ApprovalSettings(), clock), store, clock, "lab", Criteria(looks=2)), Mode.TRIAL)
    Receipts(store.database).keep(receipt(1))
    store.close()
    config = tmp_path / "config.yaml"
    config.write_text(f"store: {{url: {url}}}\n")

    def said(*words: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, ["policy", *words, "--config", str(config)])
        assert result.exit_code == code, result.output
        return str(result.output)

    assert "ppo@ab is trial" in said("list")
    told = said("explain", f"{1:016x}")
    for word in ("seen", "proposed", "clipped     starvation: hold → start", "executed", "fifo_backfill"):
        assert word in told
    for _ in range(5):  # more than there are looks
        result = CliRunner().invoke(app, ["policy", "promote", "scheduling", "--config", str(config)])
        assert "outcomes of 0 hours" in str(result.exception)
    assert "not checked yet" in said("list")
    assert "the baseline controls" in said("undo", "scheduling", "--reason", "odd waits")
    assert "ppo@ab is shadow (odd waits)" in said("list")


def test_a_replica_that_stands_by_gives_up_nothing_and_one_that_takes_over_says_why(
    policies: PolicyGate, store: Store, clock: ManualClock
) -> None:
    """And a policy that was stood up after a daemon's start is not trusted by it: it asks another one."""
    receipts = Receipts(store.database)
    leader, other = PolicyWatch(policies, receipts), PolicyWatch(policies, receipts)
    leader.begin("scheduling", "ppo@ab", SHA)
    climb(policies, Mode.ACTIVE)
    assert leader.trusts("scheduling")("job", True, clock.now_s()).designed > 0
    receipts.keep(a_receipt(1, clock.now_s()), chance=0.5, treated=True)
    other.begin("scheduling", "ppo@ab", SHA)
    assert receipts.came(f"{1:016x}").words == "not known yet"
    clock.advance(30)
    other.lead()
    assert "another replica took over" in receipts.came(f"{1:016x}").words
    policies.stand("scheduling", "new@cd", "cd" * 32)
    climb_from = policies.standing("scheduling")
    assert climb_from.mode is Mode.SHADOW
    with store.database.write() as connection:
        policies._write(connection, replace(climb_from, mode=Mode.ACTIVE), "test", "policy_promoted", {})
    assert leader.trusts("scheduling")("job", True, clock.now_s()).designed == 0.0


@pytest.mark.parametrize(
    "envelope", [{"level": [0, 1]}, dict.fromkeys(FEATURES, (1, 0)), dict.fromkeys(FEATURES, (0, "far")), [1]]
)
def test_a_policy_whose_envelope_is_not_fit_is_not_stood_up_and_ends_no_daemon(
    policies: PolicyGate, store: Store, tmp_path: Path, envelope: object
) -> None:
    """Signed as it is: refused by name when it is stood up; one that stands in the store already, such as after a
    downgrade, leaves the kind to its heuristic."""
    signer, key, path = Signer.generate(), tmp_path / "key.pub", tmp_path / "p.json"
    key.write_text(signer.public.public_bytes(Encoding.Raw, PublicFormat.Raw).hex())
    n = len(FEATURES)
    network = Network(Normaliser(np.zeros(n), np.ones(n)), ((np.zeros((len(ACTIONS), n)), np.zeros(len(ACTIONS))),))
    training = {"environment_sha256": "ab", "seeds": [1], "envelope": envelope}
    write(path, PolicyFile("odd", INTERFACE, network, training, {}), signer)
    with pytest.raises(PolicyRefused, match=r"p\.json: training\.envelope"):
        stand_up(policies, path, INTERFACE, [key], "ann@example.org", 1.0)
    assert policies.standings() == []
    store.keep({"policy-file/power": path.read_bytes()})
    assert stood_up(store, INTERFACE, [key]) is None
