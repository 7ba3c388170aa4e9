"""A daemon that carries an incident through on a real Slurm and is killed with SIGKILL at a named place: at an
arrow of the incident, or before or after its n-th command that changes something."""

from __future__ import annotations

import itertools
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from nightshift.agent.approvals.policy import ApprovalRule, ApprovalSettings
from nightshift.agent.incidents import stages
from nightshift.agent.incidents.stages import LifecycleSettings
from nightshift.agent.store.incident import REMARKS, IncidentState
from nightshift.agent.store.incident_store import Store
from nightshift.collectors.slurm.client import SlurmAccess, SlurmClient
from nightshift.collectors.subject import SITE, Subject, SubjectKind
from nightshift.controllers.action import Action, ActionKind, BlastRadius, Precondition, Undo
from nightshift.controllers.actuators.slurm import SlurmActuator, SlurmActuatorSettings
from nightshift.controllers.cordon import CORDON_OF
from tests.agent.forks import run_in_process
from tests.agent.incidents import ManualClock
from tests.agent.killed import _ACTED, FileClock, Scenario, _approve, _clear, _pass, go_through
from tests.agent.world import World
from tests.slurm_lab import SlurmLab

_S, A, K = IncidentState, ActionKind, SubjectKind
NODE = Subject(K.NODE, "n1")
_ENDS = {_S.AWAITING_APPROVAL: _approve, _S.CONFIRMING: _clear}
KILLED: Mapping[str, tuple[ActionKind, Scenario]] = {
    "drained, then given back": (
        A.DRAIN,
        Scenario((*_ACTED, "return_due", *_ACTED[2:], "confirmed"), _ENDS, gives_back=True),
    ),
    "rebooted": (A.REBOOT_NODE, Scenario((*_ACTED, "confirmed"), _ENDS)),
    "restarted": (A.RESTART_JOB, Scenario((*_ACTED, "confirmed"), _ENDS)),
    "quarantined": (A.QUARANTINE_GPU, Scenario((*_ACTED, "confirmed"), _ENDS)),
}
NOT_REACHED = "the place was not reached"
_WRITES = re.compile(r"update|requeue|create|delete|reboot|release|hold")


def planned(kind: ActionKind, target: Subject, jobs: tuple[str, ...], name: str, now_s: float) -> Action:
    facts = {A.CORDON: ("cordoned", "false"), A.UNCORDON: ("cordoned", "true"), A.DRAIN: ("drained", "false")}
    facts |= {A.QUARANTINE_GPU: ("quarantined", "false"), A.RESTART_JOB: ("uid", "restart 0")}
    facts |= {A.TAINT: ("tainted", "false"), A.RETURN_NODE: (CORDON_OF, "earlier")}
    return Action(
        id=name.lower(),
        kind=kind,
        target=target,
        why="its memory degrades",
        blast_radius=BlastRadius(jobs=jobs, nodes=("n1",)),
        undo=Undo(kind in (A.TAINT, A.CORDON, A.QUARANTINE_GPU), "take it back"),
        expires_at_s=now_s + 3600,
        params={"node": "n1", "value": "nvlink-degraded", "site": "slurm"},
        preconditions=(Precondition(target, *facts[kind]),) if kind in facts else (),
    )


class MortalClient(SlurmClient):
    """Kills its process before or after its n-th command that changes something, counted over all processes."""

    def __init__(self, access: SlurmAccess, home: Path, kill_at: str) -> None:
        super().__init__(access)
        self._home, self._kill_at = home, kill_at

    def ask(self, *argv: str) -> str:
        if not (_WRITES.search(" ".join(argv[1:2])) or argv[0] in ("sbatch", "scancel")):
            return super().ask(*argv)
        number = self._begun()
        self._count(" ".join(argv))
        answer = super().ask(*argv)
        self._die(f"after write {number}")
        return answer

    def write_after(self, look: str, line_of: Callable[[str], str]) -> str:
        number = self._begun()

        def counted(answer: str) -> str:
            line = line_of(answer)
            self._count(line)
            self._die(f"within write {number}")
            return line

        answer = super().write_after(look, counted)
        self._die(f"after write {number}")
        return answer

    def _begun(self) -> int:
        number = len((self._home / "writes").read_text().splitlines()) if (self._home / "writes").exists() else 0
        self._die(f"before write {number}")
        return number

    def _count(self, line: str) -> None:
        with (self._home / "writes").open("a") as written:
            written.write(line.replace("\n", " ") + "\n")

    def _die(self, place: str) -> None:
        if place == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def drive(url: str, folder: str, access: dict[str, Any], name: str, job: int, kill_at: str) -> None:
    """Runs in a process of its own: goes on from whatever is stored until the scenario's end."""
    kind, scenario = KILLED[name]
    home = Path(folder)
    stages.MAX_TRIES = 1  # whatever fails is seen at once

    def fault_point(where: str) -> None:
        if where == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    clock = FileClock(home / "now")
    settings = SlurmActuatorSettings(access=access, check_command=("true",))
    client = MortalClient(SlurmAccess(**access), home, kill_at)
    actuator = SlurmActuator(settings, client, now_s=clock.now_s)
    target = {A.RESTART_JOB: Subject(K.JOB, f"root/{job}"), A.QUARANTINE_GPU: Subject(K.GPU, "GPU-1")}.get(
        kind, NODE
    )
    world = World(
        url,
        home,
        clock,
        fault_point=fault_point,
        # a person who approves a reboot has just signed in; the scenario's has not
        policy=ApprovalSettings(kinds={A.REBOOT_NODE: ApprovalRule.AUTOMATIC}),
        settings=LifecycleSettings(quiet_s=10, confirm_timeout_s=1000, act_timeout_s=9000),
        lease_s=1.5,
        gives_back=scenario.gives_back,
    )
    world.action = lambda incident: planned(
        kind, target, (f"root/{job}",), f"{incident.id}-{incident.attempt + 1}", clock.now_s()
    )
    world.inventory.describe(NODE, **{SITE: "slurm"})
    lifecycle = world.lifecycle(actuator_for=lambda incident: actuator)
    slow = dict.fromkeys((_S.APPROVED, _S.ACTING), _slowly)
    go_through(world, Scenario(scenario.causes, {**slow, **scenario.events}), lifecycle)


_PASSES = itertools.count()


def _slowly(world: World, incident: Any) -> None:
    """Slurm's own time passes, too; more of it where a node takes long to come back."""
    time.sleep(0.1 if next(_PASSES) < 30 else 0.5)
    _pass(6)(world, incident)


class KilledScene:
    """One scenario on one Slurm, in the state in which it begins."""

    def __init__(self, lab: SlurmLab, folder: Path, name: str) -> None:
        self.lab, self.folder, self.name = lab, folder, name
        self.kind, self.scenario = KILLED[name]
        self.url = f"sqlite:///{folder}/store.sqlite"
        self.reboots = lab.reboots("n1")
        self.job = lab.run("--nodelist=n1,n2", nodes=2)

    def run(self, kill_at: str) -> int:
        """Runs it until it ends or is killed; a machine that is to be rebooted comes back meanwhile."""
        access = self.lab.access.model_dump()
        with ThreadPoolExecutor(1) as pool:
            ending = pool.submit(
                run_in_process, drive, self.url, str(self.folder), access, self.name, self.job, kill_at
            )
            while not ending.done():
                if self.kind is A.REBOOT_NODE:
                    self.lab.reboot_if_asked()
                time.sleep(0.05)
            return ending.result()

    def writes(self) -> list[str]:
        return (self.folder / "writes").read_text().splitlines()

    def places(self) -> Iterator[str]:
        """Where it can be killed, once it has run."""
        for state, cause in self.scenario.arrows():
            for when in ("before", "after"):
                yield f"{when} {state.value if state else 'none'} {cause}"
        for number in range(len(self.writes())):
            yield f"before write {number}"
            if self.writes()[number].startswith("update"):  # after its look and before the line that changes
                yield f"within write {number}"
            yield f"after write {number}"

    def check(self) -> None:
        """The whole history is the scenario's, and Slurm shows its effects once and nothing half done."""
        store = Store(self.url, ManualClock())
        (summary,) = store.incidents()
        incident = store.incident(summary.id)
        moves = [step.cause for step in incident.history if step.cause not in REMARKS]
        assert moves == list(self.scenario.causes), [(step.cause, step.note) for step in incident.history]
        assert incident.state is self.scenario.end
        assert store.audit.verify().ok
        store.close()
        lab = self.lab
        # a reservation's marks stay for as long as the controller takes to look
        lab.await_without({"MAINTENANCE", "RESERVED", "DOWN"}, "n1")
        assert ("DRAIN" in lab.node("n1").states) == (self.kind is A.QUARANTINE_GPU)
        assert "ReservationName" not in lab.call("scontrol", "show", "reservation", check=False)
        restarts = 0 if self.kind is A.QUARANTINE_GPU else 1
        assert lab.job(self.job, "Restarts") == str(restarts)
        assert lab.reboots("n1") - self.reboots == (self.kind is A.REBOOT_NODE)
        checks = lab.call("squeue", "--noheader", "--states=all", "--format=%j").split().count("inc-1-1")
        assert checks <= 1, "the check ran once"


def kill_and_go_on(scene: KilledScene, place: str) -> None:
    assert scene.run(place) == -signal.SIGKILL, NOT_REACHED
    assert scene.run("") == 0
    scene.check()
