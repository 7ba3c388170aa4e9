"""A drain that a disruption budget holds up without end, on an API server: who hears of it, and what is left."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from kubernetes import client, config

from nightshift.agent.approvals.policy import ApprovalRule, ApprovalSettings, Person, Role
from nightshift.agent.incidents.lifecycle import Lifecycle
from nightshift.agent.incidents.stages import LONGEST_PACE_S, LifecycleSettings
from nightshift.agent.notify.slack.card import TOLD, event
from nightshift.agent.rca.summary import as_text, summarise
from nightshift.agent.store.incident import (
    Cause,
    HistoryStep,
    Incident,
    IncidentState,
    entered_s,
    half_done,
    last_cause,
    world_says,
)
from nightshift.agent.store.intents import commitments
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.controllers.action import Action, ActionKind, BlastRadius, Undo
from nightshift.controllers.actuators.kube_client import KubeClient
from nightshift.controllers.actuators.kubernetes import KubernetesActuator, KubernetesActuatorSettings
from nightshift.detectors.base import Fault, State
from tests.agent.approvals.test_interleavings import AtOnce
from tests.agent.incidents import ManualClock, a_finding
from tests.agent.world import ANN, World
from tests.kubernetes_api.cluster import transport_of
from tests.kubernetes_api.faults import STATUS
from tests.kubernetes_api.faults import Fault as ServerFault
from tests.kubernetes_api.server import ApiServer

NODE = Subject(SubjectKind.NODE, "n1")
GUARDED = {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}}


DOWN = 'failed calling webhook "owners.example": context deadline exceeded'


@dataclass
class Scene:
    """One incident whose plan drains n1, where the only pod of a budget of one runs."""

    world: World
    clock: ManualClock
    server: ApiServer
    core: client.CoreV1Api
    lifecycle: Lifecycle
    name: str

    def pass_time(self, seconds: float, every_s: float = 30.0) -> Incident:
        end_s = self.clock.now_s() + seconds
        while self.clock.now_s() < end_s:
            self.clock.advance(every_s)
            self.lifecycle._stand()  # a slow machine outlives the lease
            self.lifecycle.advance(self.clock.now_s())
        return self.world.store.incident(self.name)

    def untouched(self) -> bool:
        return self.core.read_namespaced_pod("p", "default").metadata.deletion_timestamp is None


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with ApiServer() as server:
        api = config.new_client_from_config_dict(server.kubeconfig())
        core, clock = client.CoreV1Api(api), ManualClock()
        core.create_node({"metadata": {"name": NODE.name}})
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u1", "controller": True}
        meta = {"name": "p", "labels": {"app": "a"}, "ownerReferences": [owner]}
        spec = {"nodeName": NODE.name, "containers": [{"name": "c", "image": "i"}]}
        core.create_namespaced_pod("default", {"metadata": meta, "spec": spec})
        running = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        core.patch_namespaced_pod_status("p", "default", {"status": running})
        policy = client.PolicyV1Api(api)
        policy.create_namespaced_pod_disruption_budget("default", {"metadata": {"name": "b"}, "spec": GUARDED})
        actuator = KubernetesActuator(
            KubernetesActuatorSettings(), KubeClient(transport_of(server.kubeconfig())), now_s=clock.now_s
        )

        def plan(incident: Incident) -> Action:
            radius, undo = BlastRadius(nodes=(NODE.name,)), Undo(True, "uncordon it")
            name = f"{incident.id}-{incident.attempt + 1}".lower()
            return Action(name, ActionKind.DRAIN, NODE, "because", radius, undo, clock.now_s() + 600)

        world = World(
            f"sqlite:///{tmp_path}/store.sqlite",
            tmp_path,
            clock,
            policy=ApprovalSettings(kinds={ActionKind.DRAIN: ApprovalRule.AUTOMATIC}),
            settings=LifecycleSettings(),
            action=plan,
        )
        lifecycle = Lifecycle(replace(world.parts(), actuator_for=lambda _: actuator), new_queue=AtOnce)
        lifecycle._stand()
        name = world.store.open_incident("hot", [a_finding(Fault.THROTTLE, NODE, at_s=clock.now_s())])
        yield Scene(world, clock, server, core, lifecycle, name)
        lifecycle._leadership.abandon()
        world.store.close()
        api.close()


def test_a_drain_that_a_budget_holds_up_is_told_within_minutes_and_given_to_a_person_in_the_end(
    scene: Scene,
) -> None:
    """With the budget's own words and the cordon that stays; nothing is deleted for it."""
    incident = scene.pass_time(500.0)
    assert incident.state is IncidentState.ACTING
    (told,) = [step for step in incident.history if step.cause == Cause.UNDER_WAY]
    assert "pod default/p waits" in told.note
    assert "would violate the pod's disruption budget" in told.note
    assert told.note in as_text(summarise(incident, scene.clock.now_s()))
    assert told.cause in TOLD
    assert "Still under way" in str(event(incident, told))
    ended = scene.pass_time(4000.0, 120.0)
    assert sum(step.cause == Cause.UNDER_WAY for step in ended.history) == 4
    assert (ended.state, ended.history[-1].cause) == (IncidentState.ESCALATED, Cause.WORLD_READ)
    assert ended.history[-2].cause == Cause.OUTCOME_UNKNOWN
    assert "would violate the pod's disruption budget" in ended.history[-2].note
    assert ended.history[-2].note.endswith("the node stays cordoned")
    assert scene.core.read_node("n1").spec.unschedulable
    assert scene.untouched()


@pytest.mark.parametrize("waits", ["a budget", "a job's pods"])
def test_waiting_costs_a_request_in_twenty_seconds_and_progress_is_looked_at_within_five(
    scene: Scene, waits: str
) -> None:
    """Counted by the API server over half an hour of waiting; once it goes on, looks are close again."""
    if waits == "a job's pods":
        with_a_stopped_job(scene)
    scene.server.requests.clear()
    scene.pass_time(1800.0, 5.0)
    assert len(scene.server.requests) <= 0.05 * 1800.0
    if waits == "a budget":
        client.PolicyV1Api(scene.core.api_client).delete_namespaced_pod_disruption_budget("b", "default")
        scene.pass_time(LONGEST_PACE_S, 5.0)
        end_pods(scene)
        assert scene.pass_time(10.0, 5.0).state is IncidentState.CONFIRMING


def test_what_an_action_waited_for_is_forgotten_once_another_replica_has_ended_it(scene: Scene) -> None:
    """The next one that waits is all that is known ten minutes later."""
    paces = lambda: set(scene.lifecycle._stages._paces)  # noqa: E731
    version = scene.pass_time(120.0).version
    assert paces() == {"INC-1"}
    scene.world.store.move("INC-1", Cause.ACTION_DONE, "another replica", "", version)
    other = a_finding(Fault.XID, NODE, at_s=scene.clock.now_s())
    assert scene.world.store.open_incident("hot again", [other]) == "INC-2"
    scene.pass_time(600.0)
    assert paces() == {"INC-2"}


def with_a_stopped_job(scene: Scene) -> None:
    """Job `j` runs on the node in place of pod `p`, and the drain has just stopped it."""
    batch = client.BatchV1Api(scene.core.api_client)
    scene.core.delete_namespaced_pod("p", "default", grace_period_seconds=0)
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
    job = batch.create_namespaced_job("default", {"metadata": {"name": "j"}, "spec": {"template": template}})
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": job.metadata.uid, "controller": True}
    meta = {"name": "j-0", "labels": {"batch.kubernetes.io/job-name": "j"}, "ownerReferences": [owner]}
    spec = {"nodeName": NODE.name, "containers": [{"name": "c", "image": "i"}]}
    scene.core.create_namespaced_pod("default", {"metadata": meta, "spec": spec})
    while not batch.read_namespaced_job("j", "default").spec.suspend:
        scene.pass_time(10.0, 10.0)


def end_pods(scene: Scene) -> None:
    """What kubelets do with pods that are to go."""
    for pod in scene.core.list_namespaced_pod("default").items:
        scene.core.delete_namespaced_pod(pod.metadata.name, "default", grace_period_seconds=0)


@pytest.mark.parametrize("meanwhile", ["the clock jumps", "people have halted", "the daemon is down"])
def test_time_in_which_nobody_looked_ends_no_action(scene: Scene, meanwhile: str) -> None:
    """Two hours ahead in the middle of a drain: `act_timeout_s` counts what was waited, not what the clock says."""
    scene.pass_time(400.0)
    if meanwhile == "people have halted":
        scene.world.gate.halt(ANN, "stop")
        scene.pass_time(7200.0, 120.0)
        scene.world.gate.resume(ANN)
    scene.clock.advance(7200.0)
    if meanwhile == "the daemon is down":
        scene.lifecycle._leadership.abandon()
        scene.lifecycle = Lifecycle(scene.lifecycle._parts, new_queue=AtOnce)
        scene.lifecycle._stand()
    assert scene.pass_time(2400.0, 120.0).state is IncidentState.ACTING
    end_pods(scene)
    assert scene.pass_time(LONGEST_PACE_S).state is IncidentState.CONFIRMING


def cut_off(scene: Scene) -> Incident:
    """Escalated half-way, with job `j` stopped: an API server that is away for longer than `act_timeout_s`."""
    with_a_stopped_job(scene)
    scene.server.faults.plan(ServerFault.UNAVAILABLE, 10**6)
    incident = scene.pass_time(4500.0, 120.0)
    assert (incident.state, last_cause(incident)) == (IncidentState.ESCALATED, Cause.OUTCOME_UNKNOWN)
    assert world_says(incident) == ""
    return incident


def test_an_unknown_outcome_is_read_on_and_a_person_has_it_finished(scene: Scene) -> None:
    """The page says what the world says, once; the signals' clearing ends nothing; nothing is done unasked."""
    batch = client.BatchV1Api(scene.core.api_client)
    cut_off(scene)
    scene.server.faults.clear()
    scene.world.store.update_finding(
        scene.name, a_finding(Fault.THROTTLE, NODE, State.CLEAR, at_s=scene.clock.now_s())
    )
    read = scene.pass_time(900.0, 60.0)
    assert (read.state, half_done(read)) == (IncidentState.ESCALATED, "act")
    assert world_says(read).startswith("running: drain of node:n1 (")
    assert [step.cause for step in read.history].count(Cause.WORLD_READ) == 1
    shown = as_text(summarise(read, scene.clock.now_s()))
    assert "World: Running: drain of node:n1 (" in shown
    assert f"Decide: nightshift resume {read.id} · nightshift resume {read.id} --give-back" in shown
    assert batch.read_namespaced_job("j", "default").spec.suspend
    assert not scene.world.gate.carry_on(scene.name, Person("eve", frozenset({Role.RESPONDER}), "cli", None)).ok
    assert scene.world.gate.carry_on(scene.name, ANN).changed
    assert not scene.world.gate.carry_on(scene.name, ANN).ok
    end_pods(scene)
    assert scene.pass_time(120.0).state is IncidentState.CONFIRMING
    assert not batch.read_namespaced_job("j", "default").spec.suspend
    assert batch.read_namespaced_job("j", "default").metadata.generation == 3, "stopped once, started once"
    with scene.world.store.database.read() as connection:
        assert [item.ended_s is None for item in commitments(connection)] == [False]


def test_what_an_unknown_outcome_left_is_given_back(scene: Scene) -> None:
    """The jobs that were stopped run again, and the node takes work."""
    batch = client.BatchV1Api(scene.core.api_client)
    cut_off(scene)
    scene.server.faults.clear()
    assert scene.world.gate.carry_on(scene.name, ANN, give_back=True).changed
    end_pods(scene)
    incident = scene.pass_time(120.0)
    assert (incident.state, last_cause(incident)) == (IncidentState.ESCALATED, Cause.UNDONE)
    assert not batch.read_namespaced_job("j", "default").spec.suspend
    assert not scene.core.read_node("n1").spec.unschedulable


def test_what_did_not_start_is_planned_again(scene: Scene) -> None:
    """A person has taken everything back by hand, so that nothing of the action is left."""
    batch = client.BatchV1Api(scene.core.api_client)
    before = cut_off(scene)
    scene.server.faults.clear()
    marks = {"metadata": {"annotations": {"nightshift.dev/action.drain": None}}, "spec": {"unschedulable": None}}
    scene.core.patch_node("n1", marks)
    batch.delete_namespaced_job("j", "default")
    read = scene.pass_time(900.0, 60.0)
    assert world_says(read).startswith("not started: ")
    assert scene.world.gate.carry_on(scene.name, ANN).changed
    incident = scene.pass_time(120.0)
    assert incident.attempt == before.attempt + 1
    with scene.world.store.database.read() as connection:
        assert [item.action.id for item in commitments(connection)] == ["inc-1-2"]


def test_while_people_have_halted_and_where_nothing_is_unknown_nothing_is_resumed(scene: Scene) -> None:
    assert "no action with an unknown outcome" in scene.world.gate.carry_on(scene.name, ANN).message
    cut_off(scene)
    scene.world.gate.halt(ANN, "stop")
    assert "lifts the stop" in scene.world.gate.carry_on(scene.name, ANN).message


def test_an_emergency_stop_ends_the_asking(scene: Scene) -> None:
    scene.pass_time(120.0)
    scene.world.gate.halt(ANN, "stop")
    asked = scene.world.store.incident(scene.name).history
    assert scene.pass_time(900.0).history == asked
    assert scene.untouched()


@pytest.mark.parametrize("outage_s", [600.0, 4500.0])
def test_an_outage_of_a_webhook_does_not_leave_a_job_stopped_that_was_about_to_be_started_again(
    scene: Scene, outage_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of a drain is worse than one that takes longer; what outlasts the limit is given to a person, with the
    cordon that stays."""
    monkeypatch.setitem(STATUS, ServerFault.INTERNAL, ("InternalError", DOWN))
    batch, path = client.BatchV1Api(scene.core.api_client), "/apis/batch/v1/namespaces/default/jobs/j"
    with_a_stopped_job(scene)
    end_pods(scene)
    scene.server.faults.plan(ServerFault.INTERNAL, 10**6, lambda method, at: (method, at) == ("PATCH", path))
    incident = scene.pass_time(outage_s, 120.0)
    if outage_s > LifecycleSettings().act_timeout_s:
        (moved,) = [step for step in incident.history if step.cause == Cause.OUTCOME_UNKNOWN]
        assert DOWN in moved.note
        assert moved.note.endswith("the node stays cordoned")
        assert half_done(incident) == "act"
        return
    assert (incident.state, incident.history[-1].cause) == (IncidentState.ACTING, Cause.UNDER_WAY)
    assert DOWN in incident.history[-1].note
    scene.server.faults.clear()
    assert scene.pass_time(120.0).state is IncidentState.CONFIRMING
    assert not batch.read_namespaced_job("j", "default").spec.suspend


def test_a_remark_is_no_move() -> None:
    """Who acknowledges in the pager while a repair is confirmed has not repaired it once more."""
    S = IncidentState
    history = [
        HistoryStep(10.0, S.APPROVED, S.ACTING, Cause.INTENT_STORED, "x"),
        HistoryStep(400.0, S.ACTING, S.ACTING, Cause.UNDER_WAY, "x"),
        HistoryStep(450.0, S.ACTING, S.CONFIRMING, Cause.ACTION_DONE, "x"),
        HistoryStep(500.0, S.CONFIRMING, S.CONFIRMING, Cause.ACKNOWLEDGED, "ann"),
    ]
    assert entered_s(history, S.ACTING) == [10.0]
    assert entered_s(history, S.CONFIRMING) == [450.0]
