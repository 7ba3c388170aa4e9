"""A node that is deleted, or replaced by another machine of its name, in each phase of each action: cloud repair
and autoscalers do that to bad nodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from kubernetes import client

from nightshift.agent.incidents.lifecycle import Lifecycle
from nightshift.agent.incidents.stages import RETRY_S
from nightshift.agent.store.incident import Cause, Incident
from nightshift.agent.store.intents import commitments, store_intent
from nightshift.agent.store.tables import intents
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.controllers.action import Action, ActionKind, Precondition
from nightshift.controllers.guard import GuardRuling, Limit
from tests.agent.approvals.test_interleavings import AtOnce
from tests.agent.incidents import ManualClock, a_finding, an_action
from tests.agent.incidents.test_fault_matrix import Cell, S, cell
from tests.agent.lives import approved
from tests.agent.world import World
from tests.controllers.kube_scenes import boots, job, repair_jobs

__all__ = ["cell"]
A = ActionKind
PHASES = {
    A.CORDON: ("approved",),
    A.TAINT: ("approved",),
    A.QUARANTINE_GPU: ("approved",),
    A.DRAIN: ("approved", "cordoned", "suspended"),
    A.RESET_GPU: ("approved", "cordoned", "suspended", "releasing", "check"),
    A.REBOOT_NODE: ("approved", "cordoned", "suspended", "rebooting", "check"),
    A.RETURN_NODE: ("approved", "check"),
}
CELLS = [
    (kind, phase, how) for kind, phases in PHASES.items() for phase in phases for how in ("deleted", "replaced")
]


def reached(cell: Cell, phase: str) -> bool:
    node = cell.cluster.core.read_node(cell.node)
    jobs = client.BatchV1Api(cell.cluster.api).list_namespaced_job(cell.cluster.namespace).items
    mark = json.loads((node.metadata.annotations or {}).get(f"nightshift.dev/action.{cell.kind}", "{}"))
    return {
        "approved": True,
        "cordoned": bool(node.spec.unschedulable),
        "suspended": any(item.spec.suspend for item in jobs),
        "check": any(name.endswith("-check") for name in repair_jobs(cell.cluster)),
    }.get(phase, mark.get("phase") == phase)


def vanish(cell: Cell, how: str) -> None:
    """With its pods, as the garbage collector of pods has it."""
    cell.cluster.core.delete_node(cell.node)
    for pod in cell.cluster.core.list_namespaced_pod(cell.cluster.namespace).items:
        if pod.spec.node_name == cell.node:
            cell.cluster.remove_pod(pod.metadata.name)
    if how == "replaced":
        cell.cluster.core.create_node({"metadata": {"name": cell.node, "labels": {"nightshift.dev/test": "node"}}})
        boots(cell.cluster, cell.node, "boot-9")


def on_this_machine(cell: Cell, *, gang: bool) -> None:
    """Plans name the machine by its uid, as playbooks do, and a gang that runs there."""
    uid = cell.cluster.core.read_node(cell.node).metadata.uid
    plan: Callable[[Incident], Action] = cell.world.action
    if gang and not cell.jobs:
        cell.jobs = (job(cell.cluster, "gang", [cell.node, cell.cluster.node()]),)

    def named(incident: Incident) -> Action:
        action = plan(incident)
        same = Precondition(Subject(SubjectKind.NODE, cell.node), "uid", uid)
        radius = replace(action.blast_radius, jobs=cell.jobs)
        return replace(action, preconditions=(*action.preconditions, same), blast_radius=radius)

    cell.world.action = named


@pytest.mark.parametrize(
    ("cell", "phase", "how"),
    [((kind, "gone"), phase, how) for kind, phase, how in CELLS],
    indirect=["cell"],
    ids=lambda value: str(value[0]) if isinstance(value, tuple) else value,
)
def test_a_node_that_vanishes_leaves_no_ghost(cell: Cell, phase: str, how: str) -> None:
    """Within a minute the outcome is stored and people are asked. Nothing is done to the other machine, no job
    stays stopped, and no plan is made for what is gone."""
    gone_s: list[float] = []
    jobs: set[str] = set()

    def look(_: int) -> None:
        if not gone_s and reached(cell, phase):
            vanish(cell, how)
            gone_s.append(cell.clock.now_s())
            jobs.update(repair_jobs(cell.cluster))

    on_this_machine(cell, gang=phase == "suspended")
    incident = cell.run(look)
    assert gone_s, f"never {phase}"
    for _ in range(12):
        cell.lifecycle._stand()
        cell.lifecycle.advance(cell.clock.now_s())
        cell.controllers()
        cell.clock.advance(RETRY_S)
    incident = cell.world.store.incident(incident.id)
    assert open_intents(cell) == []
    assert incident.attempt == 1, "no plan is made for what is gone"
    assert incident.state in (S.AWAITING_APPROVAL, S.ESCALATED, S.RESOLVED)
    assert incident.history[-1].cause != "outcome_unknown", incident.history[-1].note
    batch = client.BatchV1Api(cell.cluster.api)
    left = batch.list_namespaced_job(cell.cluster.namespace).items
    assert not [item.metadata.name for item in left if item.spec.suspend]
    assert set(repair_jobs(cell.cluster)) == jobs, "nothing runs on the other machine"
    if how == "replaced":
        node = cell.cluster.core.read_node(cell.node)
        assert not node.spec.unschedulable
        assert not [taint.key for taint in node.spec.taints or [] if "nightshift" in taint.key]
        assert not [key for key in node.metadata.annotations or {} if key.startswith("nightshift.dev/")]


def open_intents(cell: Cell) -> list[str]:
    with cell.world.store.database.read() as connection:
        return list(connection.execute(sa.select(intents.c.action_id).where(intents.c.ended_s.is_(None))).scalars())


def test_a_busy_node_is_asked_about_every_five_seconds_and_not_at_every_poll(
    sqlite_url: str, tmp_path: Path
) -> None:
    clock, asked = ManualClock(), list[float]()

    def busy(action: Action, begun: object) -> GuardRuling:
        asked.append(clock.now_s())
        return GuardRuling(False, "drain INC-9 is running on n1", Limit.BUSY, clock.now_s())

    world = World(sqlite_url, tmp_path, clock)
    lifecycle = Lifecycle(world.parts(guard=busy), new_queue=AtOnce)
    lifecycle._stand()
    name = world.store.open_incident("leak", [a_finding()])
    lifecycle.advance(clock.now_s())
    approved(world, name)
    for _ in range(200):
        clock.advance(0.35)
        lifecycle._stand()
        lifecycle.advance(clock.now_s())
    lifecycle._leadership.abandon()
    world.store.close()
    assert len(asked) <= 70 / RETRY_S


def test_an_intent_that_nobody_carries_on_keeps_no_node_busy(sqlite_url: str, tmp_path: Path) -> None:
    """However it came about: its incident is not acting."""
    world = World(sqlite_url, tmp_path, ManualClock())
    name = world.store.open_incident("leak", [a_finding()])
    world.store.move(name, Cause.DIAGNOSIS_STORED, "x", "", 1)
    action = an_action(f"{name}-1")
    world.store.save_plan(world.store.incident(name), action, "x", by="x")
    with world.store.database.write() as connection:
        store_intent(connection, 1, action, "act", 1_000.0, "x")
    with world.store.database.read() as connection:
        assert [item.ended_s for item in commitments(connection)] == [1_000.0]
    world.store.close()
