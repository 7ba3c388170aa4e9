"""A replica in a process of its own, whose stages write down when they began and ended."""

from __future__ import annotations

import os
import time
from pathlib import Path

from nightshift.agent.clock import WallClock
from nightshift.agent.incidents.lifecycle import Lifecycle
from nightshift.agent.store.diagnosis import Diagnosis
from nightshift.agent.store.election import Settings as ElectionSettings
from nightshift.agent.store.election import build as build_election
from nightshift.agent.store.incident import Incident
from nightshift.agent.store.lease import LEASE_S
from nightshift.controllers.action import Action
from nightshift.controllers.actuators.simulated import SimulatedActuator
from tests.agent.incidents import a_diagnosis, an_action
from tests.agent.world import World


def note(folder: Path, *words: object) -> None:
    """One line, written at once, so that processes do not mix theirs."""
    line = " ".join(map(str, (time.monotonic(), os.getpid(), *words))) + "\n"
    descriptor = os.open(folder / "notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, line.encode())
    os.close(descriptor)


def hold(folder: Path, name: str) -> None:
    """Waits as long as a file of that name exists: how a test keeps a stage inside itself."""
    while (folder / name).exists():
        time.sleep(0.01)


class HeldActuator(SimulatedActuator):
    """Checks the preconditions, and then may be held before it says so."""

    def __init__(self, folder: Path, replica: str) -> None:
        super().__init__(folder / "cluster.sqlite")
        self._folder, self._replica = folder, replica

    def changed(self, action: Action) -> list[str]:
        note(self._folder, "checks", action.id)
        hold(self._folder, f"hold-act-{self._replica}")
        return super().changed(action)


def replica(
    url: str, folder: str, name: str, lease_s: float = LEASE_S, election: ElectionSettings | None = None
) -> None:
    """Stands for the lead until it is killed, or until the file `stop` appears."""
    home = Path(folder)
    world = World(url, home, WallClock())
    actuator = HeldActuator(home, name)

    def diagnose(incident: Incident) -> Diagnosis:
        note(home, "begin", incident.id)
        hold(home, f"hold-{name}")
        time.sleep(0.05)
        note(home, "end", incident.id)
        return a_diagnosis()

    world.action = lambda incident: an_action(f"{incident.id}-1", expires_at_s=time.time() + 3600)
    parts = world.parts(diagnose=diagnose, actuator_for=lambda _: actuator)
    by = None if election is None else build_election(election, name, is_sqlite=False)
    lifecycle = Lifecycle(parts, replica=name, lease_s=lease_s, election=by, poll_s=0.05)
    lifecycle.start()
    leads = None
    while not (home / "stop").exists():
        if lifecycle.leads is not leads:
            leads = lifecycle.leads
            note(home, "leads" if leads else "follows", name)
        time.sleep(0.02)
    lifecycle.close()
