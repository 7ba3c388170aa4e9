"""Actions on a real Slurm of four nodes: faults between us and slurmctld × mitigations, kills, Xid 48, whose drain.

    python -m benchmarks.slurm [--only matrix|lasting|kills|xid48|whose] [--again]

Starts Debian's slurmctld, four slurmd, munge and GPUs that are files, on loopback. The matrix is that of
benchmarks/control_plane.py with what Slurm has: every mitigation × every fault that may pass, then every fault that
lasts. Kills: SIGKILL at each arrow of an incident, and before and after each command that changes something.
Writes benchmarks/results/slurm.json; a part alone replaces its own figures there.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import structlog

from benchmarks.report import RESULTS, write
from nightshift.controllers.action import ActionKind
from tests.agent.incidents import test_slurm_matrix as matrix_tests
from tests.agent.killed_on_slurm import KILLED, KilledScene, kill_and_go_on
from tests.controllers.actuators.test_slurm_actuator import WHOSE, lifted
from tests.end_to_end.test_slurm import drained_after_approval
from tests.slurm_lab import SlurmFault, SlurmLab, running

NOT_THERE = {
    ActionKind.RESTART_POD: "a job restarts whole: restart_job",
    ActionKind.RESET_GPU: "Slurm runs nothing as root on a node but its prolog, epilog and health check",
    ActionKind.SUGGEST_SCALING: "Slurm has no replica counts",
}
"""Mitigations of the Kubernetes matrix, and of its actuator, that Slurm has no action for."""


@contextmanager
def a_cell(lab: SlurmLab, kind: ActionKind, what: str) -> Iterator[Any]:
    lab.reset()
    with tempfile.TemporaryDirectory() as folder:
        asked = SimpleNamespace(param=(kind, what))
        made = matrix_tests.cell.__wrapped__(lab, Path(folder), asked)  # type: ignore[attr-defined]
        cell = next(made)
        try:
            yield cell
        finally:
            next(made, None)


def cells(
    lab: SlurmLab, wanted: list[tuple[ActionKind, str]], check: Callable[[Any, str], Any], known: dict[str, Any]
) -> dict[str, Any]:
    each: dict[str, Any] = {}
    for kind, what in wanted:
        name, began_s = f"{kind} · {what}", time.monotonic()
        if known.get(name, {}).get("passed"):
            each[name] = known[name]
            continue
        try:
            with a_cell(lab, kind, what) as cell:
                said = {"end": end} if (end := check(cell, what)) else {}
            each[name] = {"passed": True, "took_s": round(time.monotonic() - began_s, 1), **said}
        except Exception as error:  # noqa: BLE001  # a cell that fails is a figure
            each[name] = {"passed": False, "why": f"{type(error).__name__}: {error}"[:300]}
        print(name, each[name], flush=True)
    return {"cells": len(each), "passed": sum(cell["passed"] for cell in each.values()), "each": each}


def matrix(lab: SlurmLab, known: dict[str, Any]) -> dict[str, Any]:
    found = cells(lab, matrix_tests.CELLS, matrix_tests.passes, known)
    return found | {"without_an_action": {str(kind): why for kind, why in NOT_THERE.items()}}


def lasting(lab: SlurmLab, known: dict[str, Any]) -> dict[str, Any]:
    wanted = [(kind, str(fault)) for kind, fault in itertools.product(matrix_tests.KINDS, SlurmFault)]
    return cells(lab, wanted, matrix_tests.ends_with_a_person, known)


@contextmanager
def a_scene(lab: SlurmLab, name: str) -> Iterator[KilledScene]:
    lab.reset()
    with tempfile.TemporaryDirectory() as folder:
        yield KilledScene(lab, Path(folder), name)


def kills(lab: SlurmLab, known: dict[str, Any]) -> dict[str, Any]:
    """Each arrow in the first scenario that has it, as in tests/agent/incidents/test_kill.py; each command in all."""
    each: dict[str, Any] = {}
    arrows: set[str] = set()
    for name in KILLED:
        with a_scene(lab, name) as scene:  # killed nowhere: it says where it could have been
            assert scene.run("") == 0
            scene.check()
            places = [place for place in scene.places() if place not in arrows]
        arrows |= {place for place in places if " write " not in place}
        for place in places:
            where = f"{name} · {place}"
            each[where] = known.get(where)
            if each[where] is not True:
                with a_scene(lab, name) as scene:
                    try:
                        kill_and_go_on(scene, place)
                        each[where] = True
                    except AssertionError as error:
                        each[where] = f"{error}"[:300]
                print(where, each[where], flush=True)
    return {"places": len(each), "passed": sum(found is True for found in each.values()), "each": each}


def xid48(lab: SlurmLab, _: dict[str, Any]) -> dict[str, Any]:
    rounds = []
    for _ in range(3):
        lab.reset()
        with tempfile.TemporaryDirectory() as folder:
            rounds.append(drained_after_approval(lab, Path(folder)))
    return {"nodes": len(lab.names), "most_s": max(found["after_approval_s"] for found in rounds), "rounds": rounds}


def whose(lab: SlurmLab, _: dict[str, Any]) -> dict[str, Any]:
    """Resume only of our own: of each way in which a drain can stand, whether undo lifted it."""
    each = {}
    for name, case in WHOSE.items():
        lab.reset()
        each[name] = lifted(lab, case)
    right = {name: found is (name == "ours") for name, found in each.items()}
    return {"cases": len(each), "right": sum(right.values()), "each": each}


PARTS = {"xid48": xid48, "whose": whose, "matrix": matrix, "lasting": lasting, "kills": kills}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--again", action="store_true", help="Run what has not passed yet; keep the other figures")
    asked = parser.parse_args()
    chosen = asked.only or list(PARTS)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    path = RESULTS / "slurm.json"
    for name in chosen:
        with running() as lab:
            release = "{}.{:02d}".format(*lab.client().release())
            before = json.loads(path.read_text())["results"] if path.exists() else {}
            known = before.get(name, {}).get("each", {}) if asked.again else {}
            write("slurm", before | {"slurm": release, name: PARTS[name](lab, known)})


if __name__ == "__main__":
    main()
