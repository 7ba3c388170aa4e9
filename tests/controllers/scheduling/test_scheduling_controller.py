"""A turn of scheduling, with doors that open and fail, and on an API server."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.collectors.base import Permanent
from nightshift.collectors.kubernetes.api import Busy, NotFound, Refused
from nightshift.controllers.actuators.kube_queue import (
    CONTROLLER,
    GangGate,
    KubernetesQueue,
    QueueSettings,
    pod_gate,
)
from nightshift.controllers.actuators.kube_queue_follow import GangDoors
from nightshift.controllers.decision import ControlDecision, Mode, Trust
from nightshift.controllers.scheduling.cluster import ClusterShape
from nightshift.controllers.scheduling.controller import JobSeen, SchedulingController, Snapshot
from nightshift.controllers.scheduling.steer import Steer, SteerVerb
from tests.controllers.actuators.test_kube_queue import gated_pod, mine, queue_of
from tests.kubernetes_api.cluster import Cluster

SHAPE = ClusterShape(2, 8)


@dataclass
class World:
    """Gates by name; `broken` ones cannot be written. Opens by age as the objects' own rule says."""

    gates: dict[str, float]
    broken: set[str] = field(default_factory=set)
    holds: dict[str, float] = field(default_factory=dict)
    now_s: float = 0.0
    longest_s: float = 3600.0

    def release_overdue(self) -> list[str]:
        due = [
            n
            for n, since in self.gates.items()
            if self.now_s >= min(since + self.longest_s, self.holds.get(n, math.inf))
        ]
        for name in due:
            self.gates.pop(name)
        return due

    def open(self, gate: Any) -> bool:
        if gate in self.broken:
            raise Busy("no answer")
        return self.gates.pop(gate, None) is not None

    def hold(self, gate: Any, until_s: float) -> None:
        if gate in self.broken:
            raise Permanent("refused")
        self.holds[gate] = until_s

    def boost(self, workload: str, value: int) -> str:
        return ""

    def read_back(self, gate: Any) -> Steer:
        return Steer(SteerVerb.HOLD, self.holds.get(gate, 0.0)) if gate in self.gates else Steer(SteerVerb.START)


def controller(doors: Any, trust: Trust) -> tuple[SchedulingController, list[ControlDecision]]:
    kept: list[ControlDecision] = []

    def keep(decision: ControlDecision, *, chance: float = 0.0, treated: bool = False) -> None:
        kept.append(decision)

    return SchedulingController(doors, keep, np.random.default_rng(0), lambda job: trust), kept


ACTIVE = Trust(Mode.ACTIVE, 1.0, 0.95)


def seen(name: str, gpus: int, at_s: float, **more: Any) -> JobSeen:
    return replace(JobSeen(name, "q", "ada", at_s, gpus, name), **more)


def test_in_shadow_every_gate_opens_and_receipts_say_what_would_have_been() -> None:
    doors = World({"a": 0.0, "b": 0.0})
    made, kept = controller(doors, Trust())
    full = JobSeen("runs", "q", "bob", 0.0, 16, None, {0: 8, 1: 8}, 1.0)
    made.turn(Snapshot(10.0, SHAPE, [full, seen("a", 8, 2.0), seen("b", 8, 3.0)]))
    assert doors.gates == {}
    assert {decision.proposed["verb"] for decision in kept} == {"hold"}
    assert {decision.executed["verb"] for decision in kept} == {"start"}


def test_active_starts_what_fits_and_holds_the_rest_with_an_end() -> None:
    doors = World({"a": 0.0, "b": 0.0, "c": 0.0})
    made, kept = controller(doors, ACTIVE)
    made.turn(Snapshot(10.0, SHAPE, [seen("a", 8, 0.0), seen("b", 8, 1.0), seen("c", 8, 2.0)]))
    assert len(doors.gates) == 1
    (held,) = doors.gates
    assert 10.0 < doors.holds[held] <= 310.0
    assert kept[-1].read_back["verb"] == "hold"


def test_degraded_gpus_count_as_taken() -> None:
    doors = World({"a": 0.0})
    made, _ = controller(doors, ACTIVE)
    made.turn(Snapshot(10.0, SHAPE, [seen("a", 8, 0.0)], {0: 1, 1: 1}))
    assert set(doors.gates) == {"a"}


def test_starts_are_spread_where_the_rack_may_not_rise_faster() -> None:
    doors = World({str(k): 0.0 for k in range(4)})
    made, kept = controller(doors, ACTIVE)
    jobs = [seen(str(k), 2, float(k), watts=1000.0) for k in range(4)]
    made.turn(Snapshot(10.0, SHAPE, jobs, slope_w=2000.0))
    assert len(doors.gates) == 2
    assert "rack_ramp" in {clip.constraint for decision in kept for clip in decision.clips}


class Api:
    """Pods on an API server that answers some writes with a refusal or a conflict, as it likes."""

    def __init__(self, *names: str) -> None:
        self.pods = {path_of(name): pod_item(name) for name in names}
        self.broken: dict[str, Exception] = {}
        self.now_s = 0.0

    def find(self, path: str) -> Any:
        return self.pods.get(path)

    def merge(self, path: str, changes: Any, *, version: str, manager: str) -> None:
        if path in self.broken:
            raise self.broken[path]
        item = self.pods[path]
        item["spec"] |= changes.get("spec", {})
        item["metadata"]["annotations"] |= changes["metadata"]["annotations"]

    def gates(self) -> list[GangGate]:
        """As a `QueueView` would have heard of them."""
        return [gate for item in self.pods.values() if (gate := pod_gate(item)) is not None]


def path_of(name: str) -> str:
    return f"/api/v1/namespaces/n/pods/{name}"


def pod_item(name: str) -> Any:
    made = {"namespace": "n", "name": name, "resourceVersion": "1", "creationTimestamp": "1970-01-01T00:00:00Z"}
    return {"metadata": {**made, "annotations": {}}, "spec": {"schedulingGates": [{"name": CONTROLLER}]}}


def doors_on(api: Any) -> GangDoors:
    return GangDoors(KubernetesQueue(api, now_s=lambda: float(api.now_s)), api)


FAULTS = (Busy("conflict", 409), Refused("denied by a webhook", 403), NotFound("gone", 404))
TURN = st.tuples(
    st.floats(0, 20000),
    st.dictionaries(st.integers(0, 5), st.sampled_from(FAULTS)),
    st.booleans(),
    st.integers(0, 20),
)


@given(st.lists(TURN, min_size=3, max_size=12))
@settings(max_examples=40, deadline=None)
def test_whenever_it_dies_and_whatever_cannot_be_written_no_other_gate_stays_shut_past_its_longest(
    turns: list[tuple[float, dict[int, Exception], bool, int]],
) -> None:
    """Gangs of two pods, `0` and `1` to `4` and `5`; pods vanish while they are held."""
    api = Api(*map(str, range(6)))
    made, _ = controller(doors_on(api), ACTIVE)
    longest_s = QueueSettings().longest_hold_s
    for at_s, broken, dies, gone in sorted(turns, key=lambda turn: turn[0]):
        api.now_s = at_s
        api.broken = {path_of(str(k)): error for k, error in broken.items()}
        api.pods.pop(path_of(str(gone)), None)
        if dies:
            made, _ = controller(doors_on(api), ACTIVE)  # knows nothing of what the last one did
        shut = {gate.path: gate for gate in api.gates()}
        gangs = [tuple(shut[path_of(str(k))] for k in (a, a + 1) if path_of(str(k)) in shut) for a in (0, 2, 4)]
        jobs = [replace(seen(str(at), 16, 0.0), gate=gates) for at, gates in enumerate(gangs) if gates]
        made.turn(Snapshot(at_s, SHAPE, jobs))
        assert all(gate.path in api.broken or at_s < longest_s for gate in api.gates())


def test_a_boost_that_kueue_refuses_leaves_the_hold_written_and_its_receipt_complete() -> None:
    class Refusing(World):
        def boost(self, workload: str, value: int) -> str:
            raise Refused("denied by a webhook", 403)

    doors = Refusing({"a": 0.0, "b": 0.0})
    made, kept = controller(doors, ACTIVE)
    made.turn(
        Snapshot(10.0, SHAPE, [seen(name, 16, at, workload=name, evicts=False) for at, name in enumerate("ab")])
    )
    assert doors.holds == {"b": 130.0}
    assert "denied by a webhook" in made.failures["b"]
    assert kept[-1].read_back is not None
    assert kept[-1].read_back["verb"] == "hold"


def test_on_an_api_server_a_new_process_opens_what_the_dead_one_held(cluster: Cluster) -> None:
    gated_pod(cluster, "p")
    queue = queue_of(cluster)
    (gate,) = mine(cluster, queue.gates())
    assert isinstance(gate, GangGate)
    first, kept = controller(queue, ACTIVE)
    full = JobSeen("runs", "q", "bob", 0.0, 16, None, {0: 8, 1: 8}, 1.0)
    job = JobSeen(gate.name, "q", "ada", gate.since_s, 8, gate)
    first.turn(Snapshot(time.time(), SHAPE, [full, job]))
    assert kept[-1].read_back["verb"] == "hold"
    assert mine(cluster, queue.gates())[0].until_s > time.time()
    del first
    later = queue_of(cluster, now_s=time.time() + 400.0)
    second, _ = controller(later, ACTIVE)
    second.turn(Snapshot(time.time() + 400.0, SHAPE, []))
    pod = cluster.core.read_namespaced_pod("p", cluster.namespace)
    assert [g.name for g in pod.spec.scheduling_gates] == ["example.com/quota"]
    assert not any(g.name.startswith(CONTROLLER) for g in pod.spec.scheduling_gates)
