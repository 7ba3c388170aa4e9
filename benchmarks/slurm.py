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
from tests.agent.killed_on_slurm import KILLED, NOT_REACHED, KilledScene, kill_and_go_on
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


Figures = dict[str, Any]


def cells(
    lab: SlurmLab, wanted: list[tuple[ActionKind, str]], check: Callable[[Any, str], Any], known: Figures
) -> Iterator[Figures]:
    each: Figures = {}
    for kind, what in wanted:
        name, began_s = f"{kind} · {what}", time.monotonic()
        if not known.get(name, {}).get("passed"):
            try:
                with a_cell(lab, kind, what) as cell:
                    said = {"end": end} if (end := check(cell, what)) else {}
                known[name] = {"passed": True, "took_s": round(time.monotonic() - began_s, 1), **said}
            except Exception as error:  # noqa: BLE001  # a cell that fails is a figure
                known[name] = {"passed": False, "why": f"{type(error).__name__}: {error}"[:300]}
        each[name] = known[name]
        passed = sum(cell["passed"] for cell in each.values())
        yield {"of": len(wanted), "cells": len(each), "passed": passed, "each": each}


def matrix(lab: SlurmLab, known: Figures) -> Iterator[Figures]:
    for found in cells(lab, matrix_tests.CELLS, matrix_tests.passes, known):
        yield found | {"without_an_action": {str(kind): why for kind, why in NOT_THERE.items()}}


def lasting(lab: SlurmLab, known: Figures) -> Iterator[Figures]:
    wanted = [(kind, str(fault)) for kind, fault in itertools.product(matrix_tests.KINDS, SlurmFault)]
    yield from cells(lab, wanted, matrix_tests.ends_with_a_person, known)


@contextmanager
def a_scene(lab: SlurmLab, name: str) -> Iterator[KilledScene]:
    lab.reset()
    with tempfile.TemporaryDirectory() as folder:
        yield KilledScene(lab, Path(folder), name)


def kills(lab: SlurmLab, known: Figures) -> Iterator[Figures]:
    """Each arrow in the first scenario that has it; each command in every scenario."""
    each: Figures = {}
    arrows: set[str] = set()
    for name in KILLED:
        with a_scene(lab, name) as scene:  # killed nowhere: it says where it could have been
            assert scene.run("") == 0
            scene.check()
            places = [place for place in scene.places() if place not in arrows]
        arrows |= {place for place in places if " write " not in place}
        for place in places:
            where = f"{name} · {place}"
            if known.get(where) is not True:
                with a_scene(lab, name) as scene:
                    try:
                        kill_and_go_on(scene, place)
                        known[where] = True
                    except AssertionError as error:
                        known[where] = f"{error}"[:300]
            if known[where] == NOT_REACHED:  # a command that the first run had to repeat
                continue
            each[where] = known[where]
            yield {"places": len(each), "passed": sum(found is True for found in each.values()), "each": each}


def xid48(lab: SlurmLab, _: Figures) -> Iterator[Figures]:
    rounds = []
    for _round in range(3):
        lab.reset()
        with tempfile.TemporaryDirectory() as folder:
            rounds.append(drained_after_approval(lab, Path(folder)))
    most_s = max(found["after_approval_s"] for found in rounds)
    yield {"nodes": len(lab.names), "most_s": most_s, "rounds": rounds}


def whose(lab: SlurmLab, _: Figures) -> Iterator[Figures]:
    """Resume only of our own: of each way in which a drain can stand, whether undo lifted it."""
    each = {}
    for name, case in WHOSE.items():
        lab.reset()
        each[name] = lifted(lab, case)
    right = {name: found is (name == "ours") for name, found in each.items()}
    yield {"cases": len(each), "right": sum(right.values()), "each": each}


PARTS = {"xid48": xid48, "whose": whose, "matrix": matrix, "kills": kills, "lasting": lasting}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--again", action="store_true", help="Run what has not passed yet; keep the other figures")
    asked = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    path = RESULTS / "slurm.json"

    def written() -> Figures:
        return dict(json.loads(path.read_text())["results"]) if path.exists() else {}

    for name in asked.only or list(PARTS):
        with running() as lab:
            release = "{}.{:02d}".format(*lab.client().release())
            known = written().get(name, {}).get("each", {}) if asked.again else {}
            # after each cell, since a run may be cut off
            for found in PARTS[name](lab, known):
                write("slurm", written() | {"slurm": release, name: found})


if __name__ == "__main__":
    main()
