"""Faults of the API server × mitigations, through the whole lifecycle on the real actuators: every cell ends done,
undone or with a person, never half-way and silent, and nothing is done twice."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from nightshift.agent.approvals.policy import ApprovalRule, ApprovalSettings
from nightshift.agent.incidents import stages
from nightshift.agent.incidents.lifecycle import Lifecycle
from nightshift.agent.incidents.stages import LifecycleSettings, StageParts
from nightshift.agent.store.incident import Incident, IncidentState
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.controllers.action import Action, ActionKind, Actuator, BlastRadius, Precondition, Undo
from nightshift.controllers.actuators.kube_client import KubeClient
from nightshift.controllers.actuators.kube_nodes import is_tainted
from nightshift.controllers.actuators.kube_repair import KubernetesRepairActuator, RepairSettings
from nightshift.controllers.actuators.kubernetes import KubernetesActuator, KubernetesActuatorSettings
from nightshift.controllers.cordon import CORDON_OF
from nightshift.detectors.base import State
from tests.agent.approvals.test_interleavings import AtOnce
from tests.agent.incidents import GPU, ManualClock, a_finding
from tests.agent.world import ANN, World
from tests.controllers.actuators.test_kube_replace import made_by
from tests.controllers.kube_scenes import boots, job, repair_job_ends, repair_jobs, stop_pods
from tests.kubernetes_api.cluster import Cluster, transport_of
from tests.kubernetes_api.faults import Fault, Faults
from tests.kubernetes_api.rbac import ADMIN, User

K, A, S = SubjectKind, ActionKind, IncidentState
KINDS = [
    A.TAINT,
    A.CORDON,
    A.UNCORDON,
    A.DRAIN,
    A.QUARANTINE_GPU,
    A.RESTART_POD,
    A.RESTART_JOB,
    A.RESET_GPU,
    A.REBOOT_NODE,
    A.RETURN_NODE,
    A.REPLACE_NODE,
]
BY_A_PERSON = (A.RETURN_NODE, A.REPLACE_NODE)
PATIENCE_S = 0.3
ENDS = (S.RESOLVED, S.ESCALATED)
OTHER = ("clock ahead", "clock back", "partition", "crash")


@dataclass
class Cell:
    """One mitigation on one small cluster."""

    cluster: Cluster
    world: World
    clock: ManualClock
    kind: ActionKind
    node: str
    target: Subject
    jobs: tuple[str, ...]
    is_done: Callable[[], bool]
    parts: StageParts
    kube: KubeClient
    round_s: float = 6.0
    """How far apart the looks are. Where all writes fail until the time is over, fewer looks tell as much."""

    def __post_init__(self) -> None:
        self.lifecycle = Lifecycle(self.parts, new_queue=AtOnce)
        self.lifecycle._stand()

    def restart(self) -> None:
        """The process ends and another one begins on what is stored."""
        self.lifecycle._leadership.abandon()
        self.__post_init__()

    def controllers(self) -> None:
        """What kubelets and the Job controller do meanwhile."""
        for name in self.jobs:
            stop_pods(self.cluster, name.partition("/")[2])()
        for pod in self.cluster.core.list_namespaced_pod(self.cluster.namespace).items:
            if pod.metadata.deletion_timestamp is not None:
                self.cluster.remove_pod(pod.metadata.name)
        for name, made in repair_jobs(self.cluster).items():
            if not (made.status and made.status.conditions):
                boots(self.cluster, self.node, "boot-2")
                repair_job_ends(self.cluster, suffix="-check" if name.endswith("-check") else "")

    def run(self, upset: Callable[[int], None], rounds: int = 300) -> Any:
        """Until the incident has ended, with the people's and the detectors' side of it."""
        name = self.world.store.open_incident("fault", [a_finding(at_s=self.clock.now_s())])
        acting = itertools.count()
        for _ in range(rounds):
            incident = self.world.store.incident(name)
            if incident.state in ENDS:
                return incident
            if incident.state is S.OPEN and self.kind is A.RETURN_NODE:  # its fault is gone
                self.world.store.update_finding(name, a_finding(state=State.CLEAR, at_s=self.clock.now_s()))
            if incident.state is S.AWAITING_APPROVAL and incident.action and self.kind in BY_A_PERSON:
                self.world.gate.approve(name, incident.action.plan_sha256, ANN)
                continue
            if incident.state in (S.APPROVED, S.ACTING):
                upset(next(acting))
            self.lifecycle._stand()  # the lead is renewed, as the daemon's loop does
            self.lifecycle.advance(self.clock.now_s())
            looks = incident.clear_since_s is None or self.kind is A.RETURN_NODE
            if incident.state is S.CONFIRMING and looks:
                self.world.store.update_finding(name, a_finding(state=State.CLEAR, at_s=self.clock.now_s()))
            self.controllers()
            self.clock.advance(self.round_s)
        raise AssertionError(f"still {self.world.store.incident(name).state} after {rounds} rounds")


def scene(cluster: Cluster, kind: ActionKind) -> tuple[str, Subject, tuple[str, ...], Callable[[], bool]]:
    """(node, target, jobs that stop, whether the world is as the mitigation leaves it)."""
    node = cluster.node()
    boots(cluster, node, "boot-1")
    target, jobs = Subject(K.NODE, node), ()
    batch = client.BatchV1Api(cluster.api)

    def cordoned() -> bool:
        return bool(cluster.core.read_node(node).spec.unschedulable)

    def running(name: str) -> bool:
        return batch.read_namespaced_job(name, cluster.namespace).spec.suspend is False

    match kind:
        case A.TAINT:
            return (
                node,
                target,
                (),
                lambda: is_tainted(cluster.api.sanitize_for_serialization(cluster.core.read_node(node))),
            )
        case A.UNCORDON:
            cordoned_by_us(cluster, node)
            return node, target, (), lambda: not cordoned()
        case A.DRAIN:
            jobs = (job(cluster, "gang", [node, cluster.node()]),)
            cluster.pod("single", node)
            return node, target, jobs, lambda: cordoned() and running("gang")
        case A.REPLACE_NODE:
            made_by(cluster, "karpenter", node)
            jobs = (job(cluster, "gang", [node, cluster.node()]),)

            def replaced() -> bool:
                names = {each.metadata.name for each in cluster.core.list_node().items}
                return node not in names and running("gang")

            return node, target, jobs, replaced
        case A.QUARANTINE_GPU:
            label = "nightshift.dev/quarantined"
            return (
                node,
                Subject(K.GPU, "GPU-1"),
                (),
                lambda: label in (cluster.core.read_node(node).metadata.labels or {}),
            )
        case A.RESTART_POD:
            cluster.pod("owned", node, ownerReferences=[cluster.owner()])
            return (
                node,
                Subject(K.POD, f"{cluster.namespace}/owned"),
                (),
                lambda: (
                    "owned"
                    not in {p.metadata.name for p in cluster.core.list_namespaced_pod(cluster.namespace).items}
                ),
            )
        case A.RESTART_JOB:
            jobs = (job(cluster, "train", [node]),)
            return node, Subject(K.JOB, jobs[0]), jobs, lambda: running("train")
        case A.RESET_GPU:
            return node, Subject(K.GPU, "GPU-1"), (), lambda: not cordoned() and len(repair_jobs(cluster)) == 2
        case A.REBOOT_NODE:
            return node, target, (), lambda: not cordoned() and len(repair_jobs(cluster)) == 2
        case A.RETURN_NODE:
            cordoned_by_us(cluster, node)
            return node, target, (), lambda: not cordoned() and len(repair_jobs(cluster)) == 1
    return node, target, jobs, cordoned


def cordoned_by_us(cluster: Cluster, node: str) -> None:
    ours = {"nightshift.dev/action.cordon": '{"id": "earlier", "phase": "done", "undone": false}'}
    body = {"metadata": {"annotations": ours}, "spec": {"unschedulable": True}}
    cluster.core.patch_node(node, body, field_manager="nightshift")


@pytest.fixture
def cell(
    cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cell]:
    monkeypatch.setattr(stages, "MAX_PLANS", 3)
    kind, what = request.param
    if cluster.server is None and what in (*Fault, "partition"):
        pytest.skip("faults are planned on our own API server")
    clock = ManualClock()
    node, target, jobs, is_done = scene(cluster, kind)
    kubeconfig = cluster.kubeconfig
    if cluster.server is not None:
        cluster.server.faults.slow_s, cluster.server.faults.token = 2 * PATIENCE_S, "ours"
        cluster.server.tokens["ours"] = (User("nightshift", ADMIN.groups), None)
        kubeconfig = cluster.server.kubeconfig("ours")
    kube = KubeClient(transport_of(kubeconfig), timeout_s=PATIENCE_S if what == Fault.SLOW else 20.0)
    how: dict[str, Any] = {"drain": {"grace_s": 0, "evict_unmanaged": True}, "check_command": ("dcgmi", "diag")}
    settings = RepairSettings(image="tools:1", namespace=cluster.namespace, **how)
    plain = KubernetesActuator(
        KubernetesActuatorSettings(drain={"grace_s": 0, "evict_unmanaged": True}), kube, now_s=clock.now_s
    )
    repair = KubernetesRepairActuator(settings, kube, now_s=clock.now_s)

    def actuator_for(incident: Incident) -> Actuator:
        return repair if kind in repair.kinds() else plain

    pod_uid = ""
    if target.kind is K.POD:
        pod_uid = cluster.core.read_namespaced_pod("owned", cluster.namespace).metadata.uid

    uid = cluster.core.read_node(node).metadata.uid

    def plan(incident: Any) -> Action:
        facts = {A.CORDON: ("cordoned", "false"), A.UNCORDON: ("cordoned", "true"), A.DRAIN: ("drained", "false")}
        facts |= {A.QUARANTINE_GPU: ("quarantined", "false"), A.RESTART_POD: ("running", "true")}
        facts |= {A.RESTART_JOB: ("running", "true"), A.TAINT: ("tainted", "false")}
        facts |= {A.RETURN_NODE: (CORDON_OF, "earlier")}
        conditions = (Precondition(target, *facts[kind]),) if kind in facts else ()
        if kind is A.REPLACE_NODE:
            conditions = (Precondition(target, "uid", uid),)
        return Action(
            id=f"{incident.id}-{incident.attempt + 1}".lower(),
            kind=kind,
            target=target,
            why="because",
            blast_radius=BlastRadius(jobs=jobs, nodes=(node,)),
            undo=Undo(kind in (A.TAINT, A.CORDON, A.QUARANTINE_GPU), "take it back"),
            expires_at_s=clock.now_s() + 3600,
            params={"node": node} | ({"uid": pod_uid} if pod_uid else {}),
            preconditions=conditions,
        )

    world = World(
        f"sqlite:///{tmp_path}/store.sqlite",
        tmp_path,
        clock,
        policy=ApprovalSettings(kinds=dict.fromkeys(KINDS, ApprovalRule.AUTOMATIC), fresh_sign_in=frozenset()),
        settings=LifecycleSettings(quiet_s=10, confirm_timeout_s=200, act_timeout_s=900),
        action=plan,
    )
    world.inventory = Inventory()
    world.inventory.observe(GPU, Subject(K.NODE, node), -1e6)  # before any clock that goes back
    parts = world.parts(actuator_for=actuator_for)
    cell = Cell(cluster, world, clock, kind, node, target, jobs, is_done, parts, kube)
    yield cell
    if cluster.server is not None:
        cluster.server.faults.clear()
    cell.lifecycle._leadership.abandon()
    world.store.close()


def upset(cell: Cell, what: str, times: int) -> Callable[[int], None]:
    """What goes wrong from the first look at the act on, for so many calls (or looks)."""
    faults = cell.cluster.server.faults if cell.cluster.server is not None else Faults()

    def go(round_: int) -> None:
        if what == "clock ahead" and round_ == 1:
            cell.clock.advance(1800.0)
        elif what == "clock back" and round_ == 1:
            cell.clock._now_s -= 1800.0
        elif what == "crash" and round_ < times:
            cell.restart()
        elif what == "partition" and round_ == 1:
            faults.plan(Fault.DISCONNECT, times)
        elif what in list(Fault) and round_ == 0:
            faults.plan(Fault(what), times, lambda method, path: method != "GET")
        elif what in list(Fault) and round_ == 1:
            faults.plan(Fault(what), times)

    return go


def done_once(cell: Cell) -> None:
    """The world is as the mitigation leaves it, and it went there once."""
    assert cell.is_done()
    batch = client.BatchV1Api(cell.cluster.api)
    for name in cell.jobs:
        found = batch.read_namespaced_job(name.partition("/")[2], cell.cluster.namespace)
        assert found.metadata.generation == 3, "stopped once and started once"
    outcomes = [r for r in cell.world.store.audit.records() if r.kind == "outcome"]
    assert len(outcomes) == 1
    assert cell.world.store.audit.verify().ok


WHATS = [*(str(fault) for fault in Fault if fault is not Fault.FORBIDDEN), *OTHER]
"""What may pass; what is forbidden in the middle: test_withdrawn_rights.py."""
CELLS = list(itertools.product(KINDS, WHATS))
QUICK = [(kind, WHATS[(3 * number) % len(WHATS)]) for number, kind in enumerate(KINDS) if kind is not A.TAINT]


def name_of(cell: tuple[ActionKind, str]) -> str:
    return f"{cell[0]}, {cell[1]}"


@pytest.mark.parametrize("cell", QUICK, indirect=True, ids=name_of)
def test_a_passing_fault_delays_a_mitigation_and_no_more(cell: Cell, request: pytest.FixtureRequest) -> None:
    """A few cells of the matrix below."""
    passes(cell, request)


@pytest.mark.full
@pytest.mark.parametrize("cell", CELLS, indirect=True, ids=name_of)
def test_every_passing_fault_ends_done(cell: Cell, request: pytest.FixtureRequest) -> None:
    """Two calls go wrong, or the clock jumps, or the process ends twice: the mitigation is done, once, and
    confirmed."""
    passes(cell, request)


def passes(cell: Cell, request: pytest.FixtureRequest) -> None:
    what = request.node.callspec.params["cell"][1]
    incident = cell.run(upset(cell, what, 2))
    assert incident.state is S.RESOLVED, incident.history[-1].note
    done_once(cell)


@pytest.mark.full
@pytest.mark.parametrize("cell", [*itertools.product(KINDS, map(str, Fault))], indirect=True, ids=name_of)
def test_every_lasting_fault_ends_with_a_person(cell: Cell, request: pytest.FixtureRequest) -> None:
    """Every write goes wrong from then on: a person is told why, in words; or, where the effect went through
    although its answer did not, it is found done. A warning alone stops nothing."""
    assert cell.cluster.server is not None
    what = request.node.callspec.params["cell"][1]

    def go(round_: int) -> None:
        if round_ == 0:
            cell.cluster.server.faults.plan(Fault(what), 10_000, lambda method, path: method != "GET")  # type: ignore[union-attr]

    cell.round_s = 30.0
    incident = cell.run(go)
    if incident.state is S.RESOLVED:
        assert what in (Fault.LOST_REPLY, Fault.SLOW, Fault.WARN)
        done_once(cell)
        return
    last = incident.history[-1]
    assert last.cause in ("action_failed", "outcome_unknown", "stage_failed", "containment_kept")
    assert len(last.note) > 20
    before = cell.is_done()
    cell.cluster.server.faults.clear()
    for _ in range(20):
        cell.lifecycle.advance(cell.clock.now_s())
        cell.clock.advance(6.0)
    assert cell.is_done() == before, "what was given to a person is not touched behind their back"


@pytest.mark.parametrize("cell", [(A.DRAIN, "uncordon")], indirect=True, ids=name_of)
def test_a_person_who_uncordons_cancels_what_is_under_way(cell: Cell) -> None:
    """In the middle of a drain: it goes no further, the incident goes to a person, and the node stays as they
    left it."""

    def go(round_: int) -> None:
        if round_ == 1:
            cell.cluster.core.patch_node(cell.node, {"spec": {"unschedulable": None}})

    incident = cell.run(go)
    assert incident.state is S.ESCALATED
    assert "a person has uncordoned it during the drain; it stays uncordoned" in incident.history[-1].note
    assert not cell.cluster.core.read_node(cell.node).spec.unschedulable
