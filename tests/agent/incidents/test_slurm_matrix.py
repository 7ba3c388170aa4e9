"""The matrix of test_fault_matrix.py on a real Slurm: faults between us and slurmctld × the mitigations that Slurm
has, through the whole lifecycle. Every cell ends done, undone or with a person, and nothing is done twice."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nightshift.agent.approvals.policy import ApprovalRule, ApprovalSettings
from nightshift.agent.incidents import stages
from nightshift.agent.incidents.stages import LifecycleSettings
from nightshift.agent.store.incident import IncidentState
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.controllers.action import ActionKind
from nightshift.controllers.actuators.slurm import Mark, SlurmActuator, SlurmActuatorSettings
from tests.agent.incidents import GPU, ManualClock
from tests.agent.incidents.test_fault_matrix import Cell
from tests.agent.killed_on_slurm import planned
from tests.agent.world import World
from tests.covering import covering
from tests.slurm_lab import SlurmFault, SlurmLab

K, A, S = SubjectKind, ActionKind, IncidentState
KINDS = list(SlurmActuator.TARGETS)
PATIENCE_S = 0.5
REAL = ("controller restart", "controller frozen", "munge away")
OTHER = ("clock ahead", "clock back", "partition", "crash", *REAL)
WHATS = [*(str(fault) for fault in SlurmFault if fault is not SlurmFault.FORBIDDEN), *OTHER]
"""What may pass. A right that is missing lasts: it is in the second matrix."""


class SlurmCell(Cell):
    """One mitigation on one Slurm."""

    lab: SlurmLab
    rounds: int = 0

    def controllers(self) -> None:
        """What machines do meanwhile; Slurm is given a moment, a longer one where a node is slow to come back."""
        if self.kind is A.REBOOT_NODE:
            with contextlib.suppress(
                AssertionError
            ):  # the controller may be away: no machine is asked for anything
                self.lab.reboot_if_asked()
        self.rounds += 1
        time.sleep(0.1 if self.rounds < 30 else 1.0)


def scene(lab: SlurmLab, kind: ActionKind) -> tuple[Subject, tuple[str, ...], Callable[[], bool]]:
    """(target, jobs that stop, whether the world is as the mitigation leaves it)."""
    node = Subject(K.NODE, "n1")

    def states() -> frozenset[str]:
        return lab.node("n1").states

    match kind:
        case A.RESTART_JOB:
            number = lab.run(nodes=2)
            return Subject(K.JOB, f"root/{number}"), (), lambda: lab.job(number, "Restarts") == "1"
        case A.DRAIN | A.REBOOT_NODE:
            number = lab.run("--nodelist=n1,n2", nodes=2)
            jobs = (f"root/{number}",)
            done = {"DRAIN"} if kind is A.DRAIN else set()
            return (
                node,
                jobs,
                lambda: (
                    lab.job(number, "Restarts") == "1"
                    and (states() & {"DRAIN"}) == done
                    and lab.reboots("n1") - lab.reboots_before == (kind is A.REBOOT_NODE)
                ),
            )
        case A.QUARANTINE_GPU:
            lab.run("--nodelist=n1", gpus=1)
            return Subject(K.GPU, "GPU-1"), (), lambda: {"DRAIN"} <= states()
        case A.TAINT:
            return node, (), lambda: lab.node("n1").active_features == ()
        case A.UNCORDON | A.RETURN_NODE:
            drained_by_us(lab)
            return node, (), lambda: not states() & {"DRAIN", "MAINTENANCE", "RESERVED"}
    return node, (), lambda: {"DRAIN"} <= states()


def drained_by_us(lab: SlurmLab, name: str = "n1") -> None:
    mark = Mark("nightshift", "earlier", lab.node(name).boot_s)
    lab.call("scontrol", "update", f"nodename={name}", "state=drain", "reason=nightshift: earlier", f"extra={mark}")


@pytest.fixture
def cell(
    slurm: SlurmLab, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SlurmCell]:
    monkeypatch.setattr(stages, "MAX_PLANS", 3)
    kind, what = request.param
    clock = ManualClock()
    slurm.reboots_before = slurm.reboots("n1")
    target, jobs, is_done = scene(slurm, kind)
    hangs = what in (SlurmFault.SLOW, "controller frozen")
    settings = SlurmActuatorSettings(
        access=slurm.access, features={"nvlink_degraded": ("nvlink",)}, check_command=("true",)
    )
    actuator = SlurmActuator(settings, slurm.client(PATIENCE_S if hangs else 20.0), now_s=clock.now_s)
    world = World(
        f"sqlite:///{tmp_path}/store.sqlite",
        tmp_path,
        clock,
        policy=ApprovalSettings(kinds=dict.fromkeys(KINDS, ApprovalRule.AUTOMATIC)),
        settings=LifecycleSettings(quiet_s=10, confirm_timeout_s=200, act_timeout_s=900),
        action=lambda incident: planned(kind, target, jobs, f"{incident.id}-{incident.attempt + 1}", clock.now_s()),
    )
    world.inventory = Inventory()
    world.inventory.observe(GPU, Subject(K.NODE, "n1"), -1e6)  # before any clock that goes back
    parts = world.parts(actuator_for=lambda incident: actuator)
    made = SlurmCell(None, world, clock, kind, "n1", target, jobs, is_done, parts, None)  # type: ignore[arg-type]
    made.lab = slurm
    yield made
    for name in REAL:
        restored(slurm, name)
    slurm.clear()
    made.lifecycle._leadership.abandon()
    world.store.close()


def restored(lab: SlurmLab, what: str) -> None:
    """Ends a real fault."""
    if what == "controller frozen":
        lab.freeze("slurmctld", frozen=False)
    elif what == "munge away" and (lab.home / "munge.away").exists():
        (lab.home / "munge.away").rename(lab.home / "munge.sock")


def upset(cell: SlurmCell, what: str, times: int) -> Callable[[int], None]:
    """What goes wrong from the first look at the act on, for so many calls (or looks)."""
    lab = cell.lab

    def go(round_: int) -> None:
        if what == "clock ahead" and round_ == 1:
            cell.clock.advance(1800.0)
        elif what == "clock back" and round_ == 1:
            cell.clock._now_s -= 1800.0
        elif what == "crash" and round_ < times:
            cell.restart()
        elif what == "partition" and round_ == 1:
            lab.plan(SlurmFault.REFUSED, times)
        elif what in list(SlurmFault) and round_ == 0:
            lab.plan(what, times, "writes")
        elif what in list(SlurmFault) and round_ == 1:
            lab.plan(what, times)
        elif what == "controller restart" and round_ == 0:
            lab.stop("slurmctld")
        elif what == "controller restart" and round_ == 1:
            lab.start_controller()
        elif what == "controller frozen" and round_ == 0:
            lab.freeze("slurmctld")
        elif what == "munge away" and round_ == 0:
            (lab.home / "munge.sock").rename(lab.home / "munge.away")
        elif what in REAL and round_ == 1:
            restored(lab, what)

    return go


def done_once(cell: SlurmCell) -> None:
    """The world is as the mitigation leaves it, and it went there once."""
    assert cell.is_done()
    outcomes = [r for r in cell.world.store.audit.records() if r.kind == "outcome"]
    assert len(outcomes) == 1
    assert cell.world.store.audit.verify().ok


def passes(cell: SlurmCell, what: str) -> None:
    cell.round_s = 6.0
    incident = cell.run(upset(cell, what, 2))
    assert incident.state is S.RESOLVED, incident.history[-1].note
    done_once(cell)


CELLS = list(itertools.product(KINDS, WHATS))
QUICK = [(kind, WHATS[(5 * number + 3) % len(WHATS)]) for number, kind in enumerate(KINDS)][::3]
FULL = covering(
    sorted(CELLS, key=lambda cell: (KINDS.index(cell[0]) + 3 * WHATS.index(cell[1])) % 7),
    lambda cell: (cell[0], WHATS.index(cell[1]) % 4),
    lambda cell: cell[1],
)
"""Every kind with faults of each sort; benchmarks/slurm.py runs every cell."""


def name_of(cell: tuple[ActionKind, str]) -> str:
    return f"{cell[0]}, {cell[1]}"


@pytest.mark.parametrize("cell", QUICK, indirect=True, ids=name_of)
def test_a_passing_fault_delays_a_mitigation_and_no_more(cell: SlurmCell, request: pytest.FixtureRequest) -> None:
    """A few cells of the matrix below."""
    passes(cell, request.node.callspec.params["cell"][1])


@pytest.mark.full
@pytest.mark.parametrize("cell", FULL, indirect=True, ids=name_of)
def test_every_passing_fault_ends_done(cell: SlurmCell, request: pytest.FixtureRequest) -> None:
    """Two calls go wrong, or the controller is away for a look, or the process ends twice: the mitigation is done,
    once, and confirmed."""
    passes(cell, request.node.callspec.params["cell"][1])


def ends_with_a_person(cell: SlurmCell, what: str) -> str:
    """Every change goes wrong from the first on: a person is told why; or, where the effect went through although
    its answer did not, it is found done. Returns how it ended."""

    def go(round_: int) -> None:
        if round_ == 0:
            cell.lab.plan(what, 10_000, "writes")

    cell.round_s = 30.0
    incident = cell.run(go)
    if incident.state is S.RESOLVED:
        assert what in (SlurmFault.LOST_REPLY, SlurmFault.SLOW, SlurmFault.KILLED)
        done_once(cell)
        return "found done"
    last = incident.history[-1]
    assert last.cause in ("action_failed", "outcome_unknown", "stage_failed", "containment_kept")
    assert len(last.note) > 20
    before = cell.lab.node("n1")
    cell.lab.clear()
    for _ in range(20):
        cell.lifecycle.advance(cell.clock.now_s())
        cell.clock.advance(6.0)
    after = cell.lab.node("n1")
    assert (before.states, before.reason, before.extra) == (after.states, after.reason, after.extra)
    return str(last.cause)


LASTING = covering(itertools.product(KINDS, map(str, SlurmFault)), lambda cell: cell[1], lambda cell: cell[0])


@pytest.mark.full
@pytest.mark.parametrize("cell", LASTING[::2], indirect=True, ids=name_of)
def test_every_lasting_fault_ends_with_a_person(cell: SlurmCell, request: pytest.FixtureRequest) -> None:
    """What was given to a person is not touched behind their back."""
    ends_with_a_person(cell, request.node.callspec.params["cell"][1])
