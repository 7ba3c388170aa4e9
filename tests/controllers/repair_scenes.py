"""What the tests of repairs share: a clock, an actuator, plans, and one step of a repair."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.controllers.action import (
    Action,
    ActionKind,
    ActionOutcome,
    BlastRadius,
    OutcomeStatus,
    Precondition,
    UnderWay,
    Undo,
)
from nightshift.controllers.actuators.kube_client import KubeClient
from nightshift.controllers.actuators.kube_repair import KubernetesRepairActuator, RepairSettings
from nightshift.controllers.actuators.kubernetes import KubernetesActuatorSettings
from nightshift.controllers.cordon import CORDON_OF
from tests.controllers.kube_scenes import Patient, PatientRepair
from tests.controllers.kube_scenes import finished as scenes_finished
from tests.kubernetes_api.cluster import Cluster

_numbers = itertools.count()


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def repairer(cluster: Cluster, clock: Clock) -> KubernetesRepairActuator:
    settings = RepairSettings(
        image="tools:1",
        namespace=cluster.namespace,
        drain={"grace_s": 0, "evict_unmanaged": True},
        job_timeout_s=600,
    )
    return PatientRepair(settings, KubeClient(cluster.transport), now_s=clock)


def plan(kind: ActionKind, target: Subject, node: str, *, jobs: tuple[str, ...] = ()) -> Action:
    return Action(
        id=f"inc-{next(_numbers)}-{kind}",
        kind=kind,
        target=target,
        why="because",
        blast_radius=BlastRadius(jobs=jobs),
        undo=Undo(False, "never"),
        expires_at_s=2e9,
        params={"node": node},
    )


def reset(node: str, *jobs: str) -> Action:
    return plan(ActionKind.RESET_GPU, Subject(SubjectKind.GPU, "GPU-7"), node, jobs=jobs)


def reboot(node: str) -> Action:
    return plan(ActionKind.REBOOT_NODE, Subject(SubjectKind.NODE, node), node)


def cordoned_by_us(cluster: Cluster, node: str) -> Action:
    """The plan to give back a node that we cordoned."""
    ours = plan(ActionKind.CORDON, Subject(SubjectKind.NODE, node), node)
    Patient(KubernetesActuatorSettings(), KubeClient(cluster.transport)).execute(ours)
    back = plan(ActionKind.RETURN_NODE, ours.target, node)
    holds = (Precondition(ours.target, CORDON_OF, ours.id),)
    return replace(back, params={"probe": "dcgm"}, preconditions=holds)


def waits(actuator: KubernetesRepairActuator, action: Action, match: str) -> None:
    with pytest.raises(UnderWay, match=match):
        actuator.execute(action)
    assert actuator.read(action).status is OutcomeStatus.UNDER_WAY


def finished(actuator: KubernetesRepairActuator, action: Action, between: Callable[[], None]) -> ActionOutcome:
    return scenes_finished(lambda: actuator.execute(action), between)
