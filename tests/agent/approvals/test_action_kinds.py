"""The table of action kinds: each kind has a row, everything that depends on a kind reads it, and a kind without a
row is refused."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from nightshift.agent.approvals.policy import ApprovalSettings, Person, Role, may_not_approve, rule_for
from nightshift.agent.incidents.advisor import choose
from nightshift.agent.setup.practice import actuator_of
from nightshift.collectors.base import Permanent
from nightshift.collectors.subject import SubjectKind
from nightshift.controllers.action import KINDS, Action, ActionKind, ApprovalRule, target_of, traits_of
from nightshift.controllers.actuators.kube_repair import KubernetesRepairActuator
from nightshift.controllers.actuators.kube_rights import OWN_RIGHTS, RIGHTS
from nightshift.controllers.actuators.kubernetes import KubernetesActuator
from nightshift.controllers.actuators.simulated import EFFECTS, SimulatedActuator
from nightshift.controllers.guard import Commitment, Limit, Settings, rule
from nightshift.controllers.playbooks.plugins import build
from nightshift.detectors.base import Fault
from tests.agent.incidents.test_mitigate import situation
from tests.controllers.test_guard import FLEET, action

ROOT = Path(__file__).parents[3]
OWN_LISTS = {
    "nightshift/agent/incidents/advisor.py": 3,  # exceptions to the table's order: a crash, a return, a last word
    "nightshift/controllers/actuators/kube_repair.py": 1,  # what an actuator can do is its own word
    "nightshift/controllers/actuators/kubernetes.py": 3,
    "nightshift/controllers/actuators/simulated.py": 2,
    "nightshift/controllers/actuators/slurm.py": 1,
    "nightshift/controllers/playbooks/ladder.py": 1,  # budgets of the rungs are its settings
}
"""Files whose own lists of kinds are no property of a kind, and how many each has."""


@pytest.fixture(params=sorted(ActionKind))
def unclassified(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ActionKind:
    """A kind whose row was forgotten."""
    kind = ActionKind(request.param)
    monkeypatch.delitem(KINDS, kind)  # type: ignore[arg-type]
    return kind


def plan(kind: ActionKind) -> Action:
    return action(kind, "node:n0")


def test_every_kind_has_a_row_with_targets_and_words() -> None:
    assert set(KINDS) == set(ActionKind)
    for kind, row in KINDS.items():
        assert row.targets, kind
        assert row.does, kind


def test_a_kind_that_acts_says_what_it_changes_and_the_guard_counts_what_it_takes() -> None:
    for kind, row in KINDS.items():
        assert row.changes or row.harmless or kind is ActionKind.KERNEL_JOB, kind
        assert not (row.harmless and (row.takes_capacity or row.cordons or row.stops_jobs)), kind
        assert row.takes_capacity or not (row.cordons or row.contains), kind
        assert row.approval is not ApprovalRule.AUTOMATIC or row.harmless, kind
        assert row.causes or not row.stops_jobs, kind


def test_remedies_and_rungs_have_places_of_their_own() -> None:
    for places in ([row.order for row in KINDS.values()], [row.rung for row in KINDS.values()]):
        assert max(Counter(place for place in places if place is not None).values()) == 1
    assert all(row.repairs for row in KINDS.values() if row.order is not None)


def test_what_actuators_carry_out_has_a_target_and_rights_in_the_table() -> None:
    for actuator in (KubernetesActuator, KubernetesRepairActuator):
        assert {kind: target_of(kind) for kind in actuator.TARGETS} == actuator.TARGETS
        assert set(actuator.TARGETS) <= set(RIGHTS)
    assert set(OWN_RIGHTS) <= set(RIGHTS) <= set(KINDS)
    assert set(EFFECTS) <= set(KINDS)


def lists_of_kinds(tree: ast.AST) -> Iterator[int]:
    """Lines of sets, tuples, lists and dictionaries that name two kinds or more."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Set | ast.Tuple | ast.List | ast.Dict):
            parts = node.keys if isinstance(node, ast.Dict) else node.elts
            named = [p for p in parts if isinstance(p, ast.Attribute) and p.attr in ActionKind.__members__]
            if len([p for p in named if isinstance(p.value, ast.Name) and p.value.id in ("_A", "ActionKind")]) > 1:
                yield node.lineno


def test_no_other_list_says_what_a_kind_is() -> None:
    found = {
        str(path.relative_to(ROOT)): len(list(lists_of_kinds(ast.parse(path.read_text()))))
        for folder in ("nightshift/agent", "nightshift/controllers")
        for path in (ROOT / folder).rglob("*.py")
        if path != ROOT / "nightshift/controllers/action.py"
    }
    assert {name: count for name, count in found.items() if count} == OWN_LISTS


def test_a_second_list_of_kinds_would_be_found() -> None:
    planted = "SAFE = frozenset({ActionKind.CORDON, ActionKind.DRAIN})\nWORDS = {_A.TAINT: 1, _A.DRAIN: 2}"
    assert sorted(lists_of_kinds(ast.parse(planted))) == [1, 2]


def test_the_guard_refuses_a_kind_without_a_row_and_counts_what_it_may_have_taken(unclassified: ActionKind) -> None:
    ruling = rule(plan(unclassified), [], FLEET, 0.0, Settings())
    assert (ruling.allowed, ruling.limit) == (False, Limit.UNKNOWN_KIND)
    begun = [Commitment(plan(unclassified), 0.0, 1.0)]
    other = next(kind for kind in (ActionKind.CORDON, ActionKind.TAINT) if kind is not unclassified)
    assert rule(action(other, "node:n9"), begun, FLEET, 9e5, Settings()).limit is Limit.CLUSTER_CAPACITY


def test_nobody_can_approve_a_kind_without_a_row_whatever_is_configured(unclassified: ActionKind) -> None:
    lax = ApprovalSettings(
        default=ApprovalRule.AUTOMATIC, kinds={unclassified: ApprovalRule.AUTOMATIC}, fresh_sign_in=frozenset()
    )
    assert rule_for(plan(unclassified), lax) is ApprovalRule.NEVER
    ann = Person("ann", frozenset({Role.ADMIN}), "console", 0.0)
    assert "never allows" in may_not_approve(ann, plan(unclassified), lax, "nightshift", 0.0)


def test_no_actuator_carries_out_a_kind_without_a_row(unclassified: ActionKind, tmp_path: Path) -> None:
    simulated = SimulatedActuator(tmp_path / "world.sqlite")
    assert unclassified not in simulated.kinds()
    with pytest.raises(Permanent, match="has no"):
        simulated.execute(plan(unclassified))

    class Boaster(SimulatedActuator):
        def kinds(self) -> frozenset[ActionKind]:
            return frozenset(ActionKind)

    with pytest.raises(Permanent, match="has no row"):
        actuator_of(unclassified, [Boaster(tmp_path / "other.sqlite")])
    with pytest.raises(KeyError):
        target_of(unclassified)


def test_a_kind_without_a_row_is_no_remedy(unclassified: ActionKind) -> None:
    for fault in Fault:
        told = choose(situation(fault, "gpu:GPU-0-3", recovery_action=unclassified.value), build()).proposal
        assert told.action is None or told.action.kind is not unclassified


def test_the_row_of_an_unknown_kind_is_the_strictest(unclassified: ActionKind) -> None:
    row = traits_of(unclassified)
    assert (row.approval, row.least_approval) == (ApprovalRule.NEVER, ApprovalRule.NEVER)
    assert row.takes_capacity
    assert row.stops_jobs
    assert row.fresh_sign_in
    assert not row.harmless
    assert not row.targets & set(SubjectKind)
