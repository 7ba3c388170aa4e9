"""Random sequences of faults, approvals, crashes and people's own hands, through the whole lifecycle on the
Kubernetes actuator and an API server: the guard's limits hold at every instant, and everything ends done, undone or
with a person."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kubernetes import client, config

from nightshift.agent.approvals import gate as gates
from nightshift.agent.approvals.policy import ApprovalRule, ApprovalSettings
from nightshift.agent.incidents import stages
from nightshift.agent.incidents.advisor import out_of_use
from nightshift.agent.incidents.lifecycle import Lifecycle
from nightshift.agent.incidents.stages import LifecycleSettings
from nightshift.agent.store.incident import Incident, IncidentState
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.controllers import guard
from nightshift.controllers.action import Action, ActionKind, BlastRadius, Precondition, Undo
from nightshift.controllers.actuators.kube_client import KubeClient
from nightshift.controllers.actuators.kubernetes import KubernetesActuator, KubernetesActuatorSettings
from nightshift.controllers.guard import RATE_S
from nightshift.detectors.base import Fault, State
from tests.agent.approvals.test_interleavings import AtOnce, Crash, Crashing
from tests.agent.incidents import ManualClock, a_finding
from tests.agent.world import ANN, World
from tests.kubernetes_api.cluster import transport_of
from tests.kubernetes_api.faults import Fault as ServerFault
from tests.kubernetes_api.rbac import ADMIN, User
from tests.kubernetes_api.server import ApiServer

K, A, S = SubjectKind, ActionKind, IncidentState
NODES = [f"n{number}" for number in range(8)]
RACK = {name: f"r{number % 2}" for number, name in enumerate(NODES)}
GPUS = 2
LIMITS = guard.Settings(cluster_fraction=0.4, rack_fraction=0.5, floor_gpus=8, cluster_rate=5, rack_rate=4)
POLICY = ApprovalSettings(
    kinds={
        A.CORDON: ApprovalRule.AUTOMATIC,
        A.QUARANTINE_GPU: ApprovalRule.AUTOMATIC,
        A.TAINT: ApprovalRule.AUTOMATIC,
        A.DRAIN: ApprovalRule.ONE,
    },
)
KINDS = [A.CORDON, A.DRAIN, A.QUARANTINE_GPU, A.TAINT]
ENDS = (S.RESOLVED, S.ESCALATED, S.AWAITING_APPROVAL, S.MONITORING)
MARK = "nightshift.dev/action."


@pytest.fixture(autouse=True)
def _few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Walks reach the last plan and the last try, too."""
    monkeypatch.setattr(stages, "MAX_TRIES", 3)
    monkeypatch.setattr(stages, "MAX_PLANS", 3)
    monkeypatch.setattr(gates, "VALID_S", 600.0)


class CrashingKube(KubeClient):
    """May end the process right before or right after each write."""

    crash: Crashing

    def request(self, method: str, path: str, **how: Any) -> Any:
        self.crash(f"before {method}")
        answer = super().request(method, path, **how)
        self.crash(f"after {method}")
        return answer


class GuardedCluster(RuleBasedStateMachine):
    """Eight nodes in two racks, some with pods; incidents on any of them, each with a plan of a drawn kind."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        home = Path(self.folder.name)
        self.server = ApiServer()
        self.server.__enter__()
        self.server.tokens["ours"] = (User("nightshift", ADMIN.groups), None)
        self.server.faults.token, self.server.faults.slow_s = "ours", 0.0
        self.api = config.new_client_from_config_dict(self.server.kubeconfig())
        self.core = client.CoreV1Api(self.api)
        self.clock, self.crash, self.kind = ManualClock(), Crashing(), A.CORDON
        self.inventory = Inventory()
        for name in NODES:
            node = Subject(K.NODE, name)
            self.core.create_node({"metadata": {"name": name}})
            self.inventory.observe(node, self.inventory.cluster, 0.0)
            self.inventory.observe(node, Subject(K.RACK, RACK[name]), 0.0)
            for number in range(GPUS):
                self.inventory.observe(Subject(K.GPU, f"{name}-g{number}"), node, 0.0)
        ours = transport_of(self.server.kubeconfig("ours"))
        self.kube = CrashingKube(ours)
        self.kube.crash = self.crash
        self.actuator = KubernetesActuator(
            KubernetesActuatorSettings(drain={"grace_s": 0, "evict_unmanaged": True}),
            self.kube,
            now_s=self.clock.now_s,
        )
        self.world = World(
            f"sqlite:///{home}/store.sqlite",
            home,
            self.clock,
            fault_point=self.crash,
            policy=POLICY,
            settings=LifecycleSettings(quiet_s=10, confirm_timeout_s=100),
            action=self._plan,
        )
        self.taken: set[str] = set()
        self.plans: dict[str, tuple[ActionKind, str]] = {}
        self.lifecycle = self._restart()

    def _plan(self, incident: Incident) -> Action:
        """Of the kind and node that were drawn for the incident; as any plan, a new one for each attempt."""
        kind, node = self.plans[incident.id]
        target = Subject(K.NODE, node) if kind is not A.QUARANTINE_GPU else Subject(K.GPU, f"{node}-g0")
        fact = {A.CORDON: "cordoned", A.DRAIN: "drained", A.QUARANTINE_GPU: "quarantined", A.TAINT: "tainted"}[kind]
        whole = kind is not A.QUARANTINE_GPU
        return Action(
            id=f"{incident.id}-{incident.attempt + 1}".lower(),
            kind=kind,
            target=target,
            why="because",
            blast_radius=BlastRadius(nodes=(node,) if whole else (), gpus=() if whole else (target.name,)),
            undo=Undo(True, "take it back"),
            expires_at_s=self.clock.now_s() + 600,
            params={"node": node},
            preconditions=(Precondition(target, fact, "false"),),
        )

    def _guard(self, action: Action, begun: Any) -> guard.GuardRuling:
        now_s = self.clock.now_s()
        return guard.rule(action, begun, self.inventory, now_s, LIMITS, out_of_use(self.inventory, now_s))

    def _restart(self) -> Lifecycle:
        parts = replace(self.world.parts(), actuator_for=lambda _: self.actuator, guard=self._guard)
        lifecycle = Lifecycle(parts, new_queue=AtOnce)
        lifecycle._stand()
        return lifecycle

    def _attempt(self, call: Any) -> None:
        try:
            call()
        except Crash:
            self.crash.left = -1
            self.lifecycle._leadership.abandon()
            self.lifecycle = self._restart()

    def teardown(self) -> None:
        self.lifecycle._leadership.abandon()
        self.world.store.close()
        self.api.close()
        self.server.__exit__(None, None, None)
        self.folder.cleanup()

    # the world

    @initialize(nodes=st.lists(st.sampled_from(NODES), max_size=3))
    def pods_run(self, nodes: list[str]) -> None:
        for number, node in enumerate(nodes):
            spec = {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}
            self.core.create_namespaced_pod("default", {"metadata": {"name": f"p{number}"}, "spec": spec})

    @rule(node=st.sampled_from(NODES), kind=st.sampled_from(KINDS))
    def a_fault_shows(self, node: str, kind: ActionKind) -> None:
        finding = a_finding(Fault.THROTTLE, Subject(K.NODE, node), at_s=self.clock.now_s())
        opened: list[str] = []

        def open_one() -> None:
            opened.append(self.world.store.open_incident(f"fault of {node}", [finding]))

        self._attempt(open_one)
        for item in self.world.store.incidents():
            self.plans.setdefault(item.id, (kind, node))

    @rule(data=st.data(), state=st.sampled_from([State.CLEAR, State.FIRING]))
    def a_signal_changes(self, data: st.DataObject, state: State) -> None:
        for item in self.world.store.incidents():
            for finding in item.findings:
                if data.draw(st.booleans()):
                    now = a_finding(finding.fault, finding.subject, state, at_s=self.clock.now_s())
                    self._attempt(lambda i=item.id, f=now: self.world.store.update_finding(i, f))

    @rule(seconds=st.sampled_from([1.0, 6.0, 61.0, 700.0, 3700.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(fault=st.sampled_from(list(ServerFault)), times=st.integers(1, 4))
    def the_server_will_fail(self, fault: ServerFault, times: int) -> None:
        self.server.faults.plan(fault, times)

    @rule(after=st.integers(1, 15))
    def it_will_crash(self, after: int) -> None:
        self.crash.left = after

    @rule(node=st.sampled_from(NODES), value=st.sampled_from([True, None]))
    def a_person_cordons_or_uncordons(self, node: str, value: bool | None) -> None:
        self.core.patch_node(node, {"spec": {"unschedulable": value}})

    @precondition(lambda self: self.plans)
    @rule(data=st.data())
    def a_person_approves(self, data: st.DataObject) -> None:
        waiting = [i for i in self.world.store.incidents() if i.state is S.AWAITING_APPROVAL and i.plan_sha256]
        if waiting:
            item = data.draw(st.sampled_from(waiting))
            self._attempt(lambda: self.world.gate.approve(item.id, str(item.plan_sha256), ANN))

    @rule()
    def the_daemon_looks(self) -> None:
        """One tick: the inventory as the watch gives it, then what is due, each with its own look at the limits."""
        for _ in range(4):
            self._attempt(self.lifecycle._stand)  # the lead is renewed, as the daemon's loop does
            self._see()
            self._attempt(lambda: self.lifecycle.advance(self.clock.now_s()))
            self._limits_hold()
            self.clock.advance(1.0)

    def _see(self) -> None:
        for node in self.core.list_node().items:
            word = "true" if node.spec.unschedulable else "false"
            self.inventory.describe(Subject(K.NODE, node.metadata.name), unschedulable=word)

    # promises

    def _ours(self) -> tuple[set[str], set[str]]:
        """GPUs that Nightshift took out of use, and all that are, as the API server has it."""
        ours: set[str] = set()
        everybody: set[str] = set()
        for node in self.core.list_node().items:
            name, notes = node.metadata.name, node.metadata.annotations or {}
            gpus = {f"{name}-g{number}" for number in range(GPUS)}
            marks = {k: json.loads(v) for k, v in notes.items() if k.startswith(MARK)}
            live = {k[len(MARK) :] for k, m in marks.items() if not m.get("undone") and not m.get("theirs")}
            if node.spec.unschedulable:
                everybody |= gpus
                ours |= gpus if live & {A.CORDON, A.DRAIN} else set()
            if any(t.key == "nightshift.dev/degraded" for t in node.spec.taints or []):
                ours |= gpus
            held = notes.get("nightshift.dev/quarantined-gpus", "")
            ours |= {uuid for uuid in held.split(",") if uuid}
        return ours, everybody | ours

    def _limits_hold(self) -> None:
        """What we newly took was within every limit, people's cordons counted; a person alone may go beyond."""
        ours, out = self._ours()
        new = ours - self.taken
        self.taken = ours
        if not new:
            return
        fleet = {f"{name}-g{number}" for name in NODES for number in range(GPUS)}
        assert len(out) <= max(int(LIMITS.cluster_fraction * len(fleet)), GPUS), out
        assert len(fleet - out) >= LIMITS.floor_gpus
        for rack in set(RACK.values()):
            held = {gpu for gpu in fleet if RACK[gpu.partition("-")[0]] == rack}
            if new & held:
                assert len(out & held) <= max(int(LIMITS.rack_fraction * len(held)), GPUS), rack

    @invariant()
    def the_rate_holds(self) -> None:
        intents = [r.at_s for r in self._intents()]
        for start_s in intents:
            within = [t for t in intents if start_s <= t < start_s + RATE_S]
            assert len(within) <= LIMITS.cluster_rate

    def _intents(self) -> list[Any]:
        return [r for r in self.world.store.audit.records() if r.kind == "intent" and r.body.get("phase") == "act"]

    @invariant()
    def one_action_at_a_time_works_on_a_node(self) -> None:
        acting = [self.plans[i.id][1] for i in self.world.store.incidents() if i.state is S.ACTING]
        assert max(Counter(acting).values(), default=0) <= 1

    @invariant()
    def the_audit_log_holds(self) -> None:
        assert self.world.store.audit.verify().ok

    @rule()
    def left_alone_everything_ends(self) -> None:
        """With the server well and nobody crashing, each incident comes to rest: done, undone, or with a person."""
        self.crash.left = -1
        self.server.faults.clear()
        for _ in range(80):
            for pod in self.core.list_namespaced_pod("default").items:
                if pod.metadata.deletion_timestamp is not None:
                    self.core.delete_namespaced_pod(pod.metadata.name, "default", grace_period_seconds=0)
            self.the_daemon_looks()
            if all(i.state in (*ENDS, S.CONFIRMING) for i in self.world.store.incidents()):
                break
            self.clock.advance(30.0)
        else:
            raise AssertionError(f"stranded: {[(i.id, i.state) for i in self.world.store.incidents()]}")
        for incident in self.world.store.incidents():
            if incident.state is S.ESCALATED:
                assert self.world.store.incident(incident.id).history[-1].note, "a person is told why"


_common = {"deadline": None, "suppress_health_check": list(HealthCheck)}
TestGuardedCluster = GuardedCluster.TestCase
TestGuardedCluster.settings = settings(max_examples=4, stateful_step_count=15, **_common)  # type: ignore[arg-type]


class LongGuardedCluster(GuardedCluster):
    """The same promises over longer and more walks."""


TestLongGuardedCluster = pytest.mark.full(LongGuardedCluster.TestCase)
TestLongGuardedCluster.settings = settings(max_examples=20, stateful_step_count=35, **_common)  # type: ignore[arg-type]
