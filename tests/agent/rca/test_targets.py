"""A plan acts only where its evidence points: on a machine with an open finding that asks for that action."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.agent.incidents.advisor import Advisor, is_outdated
from nightshift.agent.rca.targets import at_issue, objection
from nightshift.agent.store.diagnosis import Confidence
from nightshift.agent.store.incident import Cause, HistoryStep, Incident, IncidentState, StoredFinding
from nightshift.collectors.frame import Instant
from nightshift.collectors.history import History
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.controllers.action import Action, ActionKind, ActionProposal, BlastRadius, Situation, Undo
from nightshift.controllers.guard import Commitment
from nightshift.controllers.guard import Settings as GuardSettings
from nightshift.controllers.playbooks.plugins import build
from nightshift.controllers.playbooks.return_node import return_node
from nightshift.detectors.base import Fault, Finding, Severity, State
from tests.agent.incidents import ManualClock, a_finding
from tests.agent.lives import causes_of, running
from tests.agent.world import World

A, F, K = ActionKind, Fault, SubjectKind
NODES, GPUS_PER_NODE, NOW_S = 3, 2, 10_000.0
MACHINES = (K.NODE, K.GPU)


def fleet() -> Inventory:
    """Job ml/a on the first GPU of every node, job ml/b on the second GPUs of nodes 0 and 1."""
    inventory = Inventory()
    for n in range(NODES):
        for g in range(GPUS_PER_NODE):
            gpu, pod = Subject(K.GPU, f"GPU-{n}-{g}"), Subject(K.POD, f"ml/{'ab'[g]}-{n}")
            inventory.observe(gpu, Subject(K.NODE, f"n{n}"), 0.0)
            if g == 0 or n < 2:
                inventory.observe(gpu, pod, 0.0)
                inventory.observe(pod, Subject(K.NODE, f"n{n}"), 0.0)
                inventory.observe(pod, Subject(K.JOB, f"ml/{'ab'[g]}"), 0.0)
    return inventory


FLEET = fleet()


@dataclass(frozen=True)
class Sign:
    """A fault as a detector tells it, and which kinds of action on its machine it can ask for."""

    fault: Fault
    asks: frozenset[ActionKind]
    severity: Severity = Severity.WARNING
    codes: str = ""
    announced: str = ""


_BEYOND_A_REBOOT = frozenset({A.REBOOT_NODE, A.QUARANTINE_GPU, A.OPEN_RMA})
_OUT = frozenset({A.DRAIN, A.CORDON, A.TAINT})
SIGNS = (
    Sign(F.XID, _BEYOND_A_REBOOT | {A.CORDON, A.TAINT}, Severity.CRITICAL, "79"),
    Sign(F.XID, _BEYOND_A_REBOOT | {A.RESET_GPU}, Severity.CRITICAL, "48"),
    Sign(F.XID, _BEYOND_A_REBOOT, Severity.CRITICAL, "48 154", "Node Reboot Required"),
    Sign(F.XID, frozenset({A.QUARANTINE_GPU, A.OPEN_RMA, A.RESET_GPU, A.REBOOT_NODE}), Severity.CRITICAL, "64"),
    Sign(F.XID, frozenset(), Severity.WARNING, "13"),
    Sign(F.XID, frozenset({A.QUARANTINE_GPU}), Severity.INFO, "45"),
    Sign(F.HBM_DEGRADED, frozenset({A.QUARANTINE_GPU})),
    Sign(F.NVLINK_DEGRADED, _OUT),
    Sign(F.THROTTLE, _OUT),
    Sign(F.GPU_LOST, frozenset({A.CORDON, A.TAINT}), Severity.CRITICAL),
    Sign(F.GPU_MEMORY_LEAK, frozenset()),
    Sign(F.HANG, frozenset()),
    Sign(F.STRAGGLER, frozenset()),
    Sign(F.ANOMALY, frozenset()),
)


@dataclass(frozen=True)
class Told:
    """One drawn finding, how it stood when the diagnosis was made, and how it stands when the plan is."""

    sign: Sign
    node: int
    gpu: int
    since_s: float
    before: State
    now: State

    @property
    def finding(self) -> Finding:
        subject = Subject(K.GPU, f"GPU-{self.node}-{self.gpu}")
        if self.sign.fault is F.HANG:
            subject = Subject(K.JOB, f"ml/{'ab'[self.gpu]}")
        facts: dict[str, float | str] = {}
        if self.sign.codes:
            facts = {"xid": float(self.sign.codes.split()[0]), "codes": self.sign.codes}
        if self.sign.announced:
            facts["announced_recovery"] = self.sign.announced
        return Finding(
            "test", self.sign.fault, subject, State.FIRING, Instant(self.since_s), Instant(self.since_s + 5),
            self.sign.severity, "as told", 2.0, 1.0, facts=facts,
        )  # fmt: skip

    def is_open(self, done_s: float) -> bool:
        """As of the plan: a grave Xid's silence says nothing until something was done."""
        grave = self.sign.fault is F.XID and self.sign.severity is Severity.CRITICAL
        return self.now is not State.CLEAR or (grave and self.since_s > done_s)

    def asks_for(self, action: Action) -> bool:
        where = {K.GPU: f"GPU-{self.node}-{self.gpu}", K.NODE: f"n{self.node}"}.get(action.target.kind)
        return action.target.name == where and action.kind in self.sign.asks


def incident(told: list[Told], *, planned: bool, done_s: float) -> Incident:
    """With the findings' states as of the diagnosis, or of the plan."""
    stored = tuple(StoredFinding(t.finding, t.now if planned else t.before, NOW_S, NOW_S) for t in told)
    done = (HistoryStep(done_s, IncidentState.ACTING, IncidentState.CONFIRMING, Cause.ACTION_DONE, "act"),)
    return Incident(
        id="INC-7", state=IncidentState.DIAGNOSED, title="x", severity=Severity.CRITICAL, opened_s=0.0,
        updated_s=NOW_S, entered_s=NOW_S, findings=stored, diagnosis=None, action=None, plan_reason="", attempt=1,
        clear_since_s=NOW_S if all(s.state is State.CLEAR for s in stored) else None,
        history=done if done_s > 0 else (), version=1,
    )  # fmt: skip


def commitment(kind: ActionKind, node: int, gpu: int, begun_s: float) -> Commitment:
    subject = Subject(K.GPU, f"GPU-{node}-{gpu}") if kind is A.RESET_GPU else Subject(K.NODE, f"n{node}")
    action = Action(f"a-{begun_s}", kind, subject, "", BlastRadius(), Undo(False, ""), 1e9)
    return Commitment(action, begun_s, begun_s + 1, begun_s + 1)


def advisor(begun: list[Commitment], can: frozenset[ActionKind] | None = None) -> Advisor:
    limits = GuardSettings(cluster_fraction=1.0, rack_fraction=1.0, domain_fraction=1.0, cluster_rate=10**6)
    return Advisor(History(), FLEET, build(), can, lambda: NOW_S, guard_settings=limits, begun=lambda: begun)


def planned(
    told: list[Told], begun: list[Commitment], done_s: float, can: frozenset[ActionKind] | None = None
) -> Action | None:
    """The plan that the lifecycle would come to: an outdated diagnosis is made again."""
    asked, now = advisor(begun, can), incident(told, planned=True, done_s=done_s)
    diagnosis = asked.diagnose(incident(told, planned=False, done_s=done_s))
    for _ in range(2):
        known = replace(now, diagnosis=replace(diagnosis, confidence=Confidence.HIGH))
        proposal = asked.plan(known)
        if not proposal.outdated:
            return proposal.action
        diagnosis = asked.diagnose(now)
        assert not is_outdated(replace(now, diagnosis=diagnosis)), "it would be made again and again"
    raise AssertionError("the second diagnosis was outdated, too")


STATES = st.sampled_from([State.FIRING, State.FIRING, State.CLEAR, State.NO_DATA])
TOLD = st.builds(
    Told, st.sampled_from(SIGNS), st.integers(0, NODES - 1), st.integers(0, GPUS_PER_NODE - 1),
    st.integers(9000, 9900).map(float), STATES, STATES,
)  # fmt: skip
BEGUN = st.builds(
    commitment, st.sampled_from([A.RESET_GPU, A.REBOOT_NODE]), st.integers(0, NODES - 1),
    st.integers(0, GPUS_PER_NODE - 1), st.integers(1000, 9900).map(float),
)  # fmt: skip
CAN = st.one_of(st.none(), st.frozensets(st.sampled_from(sorted(A)), min_size=4))


@settings(max_examples=400)
@given(
    st.lists(TOLD, min_size=1, max_size=6), st.lists(BEGUN, max_size=4), st.sampled_from([0.0, 9400.0, 9950.0]), CAN
)
def test_no_plan_names_a_machine_without_an_open_finding_that_asks_for_it_there(
    told: list[Told], begun: list[Commitment], done_s: float, can: frozenset[ActionKind] | None
) -> None:
    action = planned(told, begun, done_s, can)
    if action is None or action.target.kind not in MACHINES:
        return
    open_ = [t for t in told if t.is_open(done_s)]
    assert any(t.asks_for(action) for t in open_), action
    node = action.target.name if action.target.kind is K.NODE else f"n{action.target.name.split('-')[1]}"
    assert set(action.blast_radius.nodes) <= {node}
    assert {f"n{name.split('-')[1]}" for name in action.blast_radius.gpus} <= {node}
    assert action.params.get("node", node) == node
    if (gpu := action.params.get("gpu")) is not None:  # a reboot for one GPU: that one asks for it
        mine = [t for t in open_ if gpu == f"GPU-{t.node}-{t.gpu}"]
        assert any(action.kind in t.sign.asks for t in mine), action


@pytest.mark.parametrize(
    ("sign", "kind", "target"),
    [
        (SIGNS[0], A.REBOOT_NODE, "node:n1"),
        (SIGNS[1], A.RESET_GPU, "gpu:GPU-1-0"),
        (SIGNS[2], A.REBOOT_NODE, "node:n1"),
        (SIGNS[3], A.QUARANTINE_GPU, "gpu:GPU-1-0"),
        (SIGNS[6], A.QUARANTINE_GPU, "gpu:GPU-1-0"),
        (SIGNS[7], A.CORDON, "node:n1"),
        (SIGNS[8], A.CORDON, "node:n1"),
        (SIGNS[9], A.CORDON, "node:n1"),
        (SIGNS[10], A.RESTART_JOB, "job:ml/a"),
    ],
)
def test_what_is_open_is_acted_on_where_it_is(sign: Sign, kind: ActionKind, target: str) -> None:
    action = planned([Told(sign, 1, 0, 9500.0, State.FIRING, State.FIRING)], [], 0.0)
    assert action is not None
    assert (action.kind, str(action.target)) == (kind, target)


def test_a_reset_that_was_tried_in_vain_leads_to_a_reboot_for_the_same_gpu_alone() -> None:
    told = [Told(SIGNS[1], 1, 0, 9500.0, State.FIRING, State.FIRING)]
    tried = [commitment(A.RESET_GPU, 1, 0, 9000.0 + n) for n in range(2)]
    others = [commitment(A.RESET_GPU, 1, 1, 9000.0 + n) for n in range(2)]
    up, same = planned(told, tried, 0.0), planned(told, others, 0.0)
    assert up is not None
    assert (up.kind, str(up.target), up.params["gpu"]) == (A.REBOOT_NODE, "node:n1", "GPU-1-0")
    assert same is not None
    assert (same.kind, str(same.target)) == (A.RESET_GPU, "gpu:GPU-1-0")


def two_nodes(first: State, second: State) -> list[Told]:
    """A double bit error on node 1, whose GPU was quarantined, and a GPU of node 0 that fell off the bus later."""
    return [
        Told(SIGNS[1], 1, 0, 9005.0, State.FIRING, first),
        Told(SIGNS[6], 1, 0, 9010.0, State.FIRING, first),
        Told(SIGNS[9], 0, 0, 9581.0, State.FIRING, second),
        Told(SIGNS[0], 0, 0, 9585.0, State.FIRING, second),
    ]


def test_a_fault_of_one_node_does_not_reboot_another_that_is_healthy_again() -> None:
    action = planned(two_nodes(State.CLEAR, State.FIRING), [], 9074.0)
    assert action is not None
    assert (action.kind, str(action.target)) == (A.REBOOT_NODE, "node:n0")


def test_a_plan_is_not_made_by_a_diagnosis_of_what_is_over_since() -> None:
    told, asked = two_nodes(State.CLEAR, State.FIRING), advisor([])
    now, before = (incident(told, planned=at, done_s=9074.0 if at else 0.0) for at in (True, False))
    proposal = asked.plan(replace(now, diagnosis=asked.diagnose(before)))
    assert (proposal.action, proposal.outdated) == (None, True)
    assert asked.plan(replace(now, diagnosis=asked.diagnose(now))).action is not None


def test_the_lifecycle_diagnoses_again_what_is_outdated(
    sqlite_url: str, tmp_path: Path, clock: ManualClock
) -> None:
    world = World(sqlite_url, tmp_path, clock)
    plans = [ActionProposal(None, "of what is over", outdated=True), ActionProposal(None, "fits")]

    def plan(found: Incident) -> ActionProposal:
        proposal = plans.pop(0)
        return proposal if proposal.outdated else replace(proposal, action=world.action(found))

    with running(world, plan=plan) as lifecycle:
        name = world.store.open_incident("leak", [a_finding()])
        assert lifecycle.wait_idle()
    assert causes_of(world, name)[1:] == ["diagnosis_stored", "new_evidence", "diagnosis_stored", "plan_proposed"]
    world.store.close()


def test_what_another_node_asks_for_is_not_done_to_the_first_while_both_are_open() -> None:
    action = planned(two_nodes(State.FIRING, State.FIRING), [], 0.0)
    assert action is not None
    assert (action.kind, str(action.target)) == (A.RESET_GPU, "gpu:GPU-1-0")


def acted_on_first(second: State) -> Incident:
    """The double bit error on node 1 was acted on; a GPU of node 0 has fallen off the bus since."""
    return incident(two_nodes(State.FIRING, second), planned=True, done_s=9074.0)


def test_after_an_action_a_machine_that_failed_since_is_diagnosed_though_the_first_cause_is_open() -> None:
    now, asked = acted_on_first(State.FIRING), advisor([])
    told = asked.diagnose(now)
    assert (told.cause, told.facts["subject"]) == (F.GPU_LOST, "gpu:GPU-0-0")
    action = asked.plan(replace(now, diagnosis=told)).action
    assert action is not None
    assert (action.kind, str(action.target)) == (A.REBOOT_NODE, "node:n0")


@pytest.mark.parametrize("sign", [SIGNS[9], SIGNS[11], SIGNS[5], SIGNS[4], SIGNS[12]])
def test_what_our_action_or_the_first_cause_may_have_caused_is_judged_with_the_first_cause(sign: Sign) -> None:
    told = [
        Told(SIGNS[1], 1, 0, 9005.0, State.FIRING, State.FIRING),
        Told(sign, 0, 0, 9581.0, State.FIRING, State.FIRING),
    ]
    assert len(at_issue(incident(told, planned=True, done_s=9074.0))) == 2


def test_a_fault_that_came_back_is_not_one_that_was_acted_on() -> None:
    now = acted_on_first(State.FIRING)
    again = HistoryStep(9500.0, IncidentState.RESOLVED, IncidentState.OPEN, Cause.RELAPSED, "nightshift")
    assert len(at_issue(replace(now, history=(*now.history, again)))) == 4


def test_a_crash_that_says_nothing_more_still_explains_the_job_that_hangs() -> None:
    crash = Told(SIGNS[4], 1, 0, 9000.0, State.FIRING, State.CLEAR)
    hang = Told(SIGNS[11], 1, 0, 9020.0, State.FIRING, State.FIRING)
    now = incident([crash, hang], planned=True, done_s=0.0)
    assert [f.fault for f in at_issue(now)] == [F.XID, F.HANG]
    action = planned([crash, hang], [], 0.0)
    assert action is not None
    assert (action.kind, str(action.target)) == (A.RESTART_JOB, "job:ml/a")


def test_a_playbook_that_aims_elsewhere_is_refused_whatever_it_says() -> None:
    told = Told(SIGNS[0], 0, 0, 9500.0, State.FIRING, State.FIRING)
    found = [told.finding]

    def aimed(kind: ActionKind, target: str) -> str:
        action = Action("a", kind, Subject.parse(target), "", BlastRadius(), Undo(False, ""), 1e9)
        return objection(action, found, FLEET, NOW_S)

    assert aimed(A.REBOOT_NODE, "node:n0") == ""
    assert aimed(A.REBOOT_NODE, "node:n1") == "no finding is open on node:n1"
    assert aimed(A.RESET_GPU, "gpu:GPU-0-1") == "no finding is open on gpu:GPU-0-1"
    assert aimed(A.RESET_GPU, "gpu:GPU-0-0") == "no open finding on gpu:GPU-0-0 calls for it"
    assert aimed(A.RESTART_JOB, "job:ml/b") == "no finding is open on job:ml/b"


def test_a_node_is_given_back_for_our_actions_on_it_alone() -> None:
    """An incident that cordoned two nodes gives one back at a time, each for its own cordons."""

    def cordon(node: str, number: int) -> Action:
        subject = Subject(K.NODE, node)
        return Action(f"inc-7-cordon-{number}", A.CORDON, subject, "", BlastRadius(), Undo(True, ""), 1e9)

    about = Situation("INC-7", F.THROTTLE, Subject(K.NODE, "n0"), (), FLEET, NOW_S)
    plan = return_node(about, [cordon("n0", 1), cordon("n1", 2), cordon("n1", 3)])
    (condition,) = plan.preconditions
    assert (plan.target, condition.subject.name) == (Subject(K.NODE, "n1"), "n1")
    assert condition.expected == "inc-7-cordon-2,inc-7-cordon-3"
    assert plan.blast_radius.nodes == ("n1",)
