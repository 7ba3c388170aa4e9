"""A small world for the tests of the incident's way: a simulated cluster, and scripted diagnosis and planning."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from nightshift.agent.approvals.gate import Gate
from nightshift.agent.approvals.policy import ApprovalSettings, Person, Role
from nightshift.agent.clock import Clock
from nightshift.agent.incidents.lifecycle import Lifecycle
from nightshift.agent.incidents.node_return import GivingBack
from nightshift.agent.incidents.stages import LifecycleSettings, StageParts
from nightshift.agent.store.incident import Incident
from nightshift.agent.store.incident_store import Store
from nightshift.collectors.frame import Frame, SeriesIndex
from nightshift.collectors.history import History
from nightshift.collectors.subject import Inventory, SubjectKind
from nightshift.controllers.action import Action, ActionKind, ActionProposal, Undo
from nightshift.controllers.actuators.simulated import SimulatedActuator, SimulatedCluster
from tests.agent.incidents import GPU, JOB, NODE, a_diagnosis, an_action

ANN = Person("ann", frozenset({Role.APPROVER}), "console", None)
BOB = Person("bob", frozenset({Role.APPROVER}), "cli", None)
UNDOABLE = Undo(True, "lift the quarantine", ActionKind.QUARANTINE_GPU)


class SeenNow(History):
    """The telemetry of one GPU that is always there."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def latest(self, kind: SubjectKind) -> Frame | None:
        now_s, index = self._clock.now_s(), SeriesIndex(SubjectKind.GPU, (GPU,))
        return Frame(now_s, index, ("gpu_power_w",), np.ones((1, 1)), np.full((1, 1), now_s), np.zeros(1, np.int64))


def _restart(incident: Incident) -> Action:
    return an_action(f"{incident.id}-{incident.attempt + 1}".lower())


@dataclass
class World:
    """What a lifecycle under test works with. Two of them on one `url` and folder are two processes' views."""

    url: str
    folder: Path
    clock: Clock
    fault_point: Callable[[str], None] = field(default=lambda place: None)
    policy: ApprovalSettings = field(default_factory=ApprovalSettings)
    settings: LifecycleSettings = field(
        default_factory=lambda: LifecycleSettings(quiet_s=10, confirm_timeout_s=100)
    )
    action: Callable[[Incident], Action] = _restart
    lease_s: float = 3.0
    gives_back: bool = False
    """Its actuator probes nodes, so that those which were only cordoned or drained are given back."""

    def __post_init__(self) -> None:
        self.store = Store(self.url, self.clock, fault_point=self.fault_point)
        self.gate = Gate(self.store, self.policy, self.clock)
        self.cluster = SimulatedCluster(self.folder / "cluster.sqlite")
        self.actuator = SimulatedActuator(self.cluster.path, self.clock.now_s, probes=self.gives_back)
        self.history: History = SeenNow(self.clock)
        self.inventory = Inventory()
        self.inventory.observe(GPU, NODE, 0.0)
        for subject in (NODE, GPU, JOB):
            self.cluster.add(subject)

    def parts(self, **changes: object) -> StageParts:
        made = StageParts(
            store=self.store,
            gate=self.gate,
            clock=self.clock,
            diagnose=lambda incident: a_diagnosis(),
            plan=lambda incident: ActionProposal(self.action(incident), "least disruptive"),
            actuator_for=lambda _: self.actuator,
            settings=self.settings,
            giving_back=GivingBack(
                self.store, lambda: self.history, self.inventory, self.clock.now_s, lambda: self.gives_back
            ),
        )
        return replace(made, **changes)  # type: ignore[arg-type]

    def lifecycle(self, **changes: object) -> Lifecycle:
        return Lifecycle(self.parts(**changes), lease_s=self.lease_s, poll_s=0.05)
