"""Actions on a real Slurm of four nodes: faults between us and slurmctld × mitigations, kills, Xid 48, drains of
other owners, a person at the same moment, Slurm as sites set it up, 10,000 nodes, and answers of later releases.

    python -m benchmarks.slurm [--only PART] [--again] [--answers FOLDER]

Starts Debian's slurmctld, four slurmd, munge and GPUs that are files, on loopback. The matrix is that of
benchmarks/control_plane.py with what Slurm has: every mitigation × every fault that may pass, then every fault that
lasts. Kills: SIGKILL at each arrow of an incident, and before, within and after each command that changes
something. FOLDER: `tests/assets/slurmrestd` of a checkout of https://github.com/rackslab/Slurm-web, recorded
answers of 24.05 to 25.11; without it that part is omitted. Writes benchmarks/results/slurm.json; a part alone
replaces its own figures.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import re
import resource
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import structlog

from benchmarks.report import RESULTS, write
from nightshift.collectors.base import Temporary
from nightshift.collectors.slurm.answers import AnswerError, SlurmFailure, expand, read_jobs, read_nodes
from nightshift.collectors.slurm.client import SlurmAccess, SlurmClient
from nightshift.collectors.slurm.nodes_and_jobs import SlurmCollector, SlurmSettings
from nightshift.collectors.subject import Inventory
from nightshift.controllers.action import ActionKind
from tests.agent.incidents import test_slurm_matrix as matrix_tests
from tests.agent.killed_on_slurm import KILLED, NOT_REACHED, KilledScene, kill_and_go_on
from tests.controllers.actuators.test_slurm_actuator import WHOSE, actuator_on, an_action, lifted
from tests.controllers.actuators.test_slurm_site import SITES
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


def said(*argv: str) -> str:
    return subprocess.run(argv, stdout=subprocess.PIPE, check=True, text=True, cwd=RESULTS).stdout.strip()


def whence() -> Figures:
    """The release of Slurm, and the commit; with `+` where the checkout has changes beside these results."""
    changes = said("git", "status", "--porcelain", "--", ":/", ":!/benchmarks/results")
    commit = said("git", "rev-parse", "--short=10", "HEAD") + ("+" if changes else "")
    return {"slurm": said("/usr/sbin/slurmctld", "-V").removeprefix("slurm "), "commit": commit}


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


def own_drains(lab: SlurmLab, _: Figures) -> Iterator[Figures]:
    """Resume only of our own: of each way in which a drain can stand, whether undo lifted it."""
    each = {}
    for name, case in WHOSE.items():
        lab.reset()
        each[name] = lifted(lab, case)
    right = {name: found is (name == "ours") for name, found in each.items()}
    yield {"cases": len(each), "right": sum(right.values()), "each": each}


ROUNDS = 150


def races(lab: SlurmLab, _: Figures) -> Iterator[Figures]:
    """A person drains n1 at a moment drawn from the time that our own drain, or our undo, takes. Their reason must
    be the last word; lost: it is not."""
    each = {"drain": [0, 0], "undo": [0, 0]}
    drawn = random.Random(7)
    windows_ms = []
    for round_ in range(ROUNDS):
        what = "undo" if round_ % 2 else "drain"
        lab.reset()
        client = TimedClient(lab.access)
        actuator, action = actuator_on(lab, client), an_action(ActionKind.CORDON)
        if what == "undo":
            actuator.execute(action)
        person = threading.Timer(drawn.uniform(0.0, 0.12), lab.drain_as_person, ("n1", "mine"))
        person.start()
        with suppress(Temporary):
            (actuator.undo if what == "undo" else actuator.execute)(action)
        person.join()
        each[what][0] += 1
        each[what][1] += not lab.node("n1").reason.startswith("mine")
        windows_ms += client.windows_ms
        found = {key: {"rounds": rounds, "lost": lost} for key, (rounds, lost) in each.items()}
        window = {"look_to_written_ms": {"median": round(statistics.median(windows_ms), 2)}} if windows_ms else {}
        yield found | window


class TimedClient(SlurmClient):
    """How long after the answer to its last look each write has been answered, at most (ms)."""

    def __init__(self, access: SlurmAccess) -> None:
        super().__init__(access)
        self.windows_ms: list[float] = []

    def write_after(self, look: str, line_of: Callable[[str], str]) -> str:
        began_s = [0.0]

        def timed(answer: str) -> str:
            began_s[0] = time.monotonic()
            return line_of(answer)

        said = super().write_after(look, timed)
        self.windows_ms.append((time.monotonic() - began_s[0]) * 1000)
        return said


def sites(_: SlurmLab, known: Figures) -> Iterator[Figures]:
    each: Figures = {}
    for name, (scene, is_right) in SITES.items():
        if not known.get(name, {}).get("right"):
            seen = scene()
            known[name] = {"right": is_right(seen), **seen}
        each[name] = known[name]
        yield {"of": len(SITES), "right": sum(found["right"] for found in each.values()), "each": each}


NODES = 10_000
_LARGE = f"NodeName=big[00001-{NODES}] NodeHostname=localhost NodeAddr=127.0.0.1 Port=1 State=DOWN Reason=test\n"


def large(_: SlurmLab, __: Figures) -> Iterator[Figures]:
    """A real slurmctld with 10,001 nodes, of which one has a slurmd: each way to read them, and whole rounds."""
    with running(1, _LARGE) as lab:
        client, took_s = lab.client(), {}
        for form in ("json", "text"):
            client.without_json = "" if form == "json" else "asked for text"
            began_s = time.monotonic()
            nodes = len(client.nodes())
            took_s[form] = round(time.monotonic() - began_s, 2)
        collector, inventory = SlurmCollector(SlurmSettings(access=lab.access)), Inventory()
        rounds = []
        for _round in range(3):
            began_s = time.monotonic()
            batch = collector.collect(time.time(), inventory, 20.0)
            assert all(source.ok for source in batch.sources)
            rounds.append(round(time.monotonic() - began_s, 2))
        began_s = time.monotonic()
        hosts = len(expand(f"big[00001-{NODES}]"))
        expand_ms = round((time.monotonic() - began_s) * 1000, 1)
        peak_mib = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        yield {
            "nodes": nodes,
            "read_s": took_s,
            "rounds_s": rounds,
            "process_peak_mib": peak_mib,
            "host_list": hosts,
            "expand_ms": expand_ms,
        }


_STATE = re.compile(r"slurm-(?:node|job)-(?:with-gpus-(?:model-)?|gpus-)?([a-z]+)\.json")
_WORDS = {"drain": "DRAIN", "draining": "DRAIN"}


def answers(folder: Path) -> Figures:
    """Recorded by others: each answer is read, has all its entries, and the state that its file is named after."""
    files, entries, wrong = 0, 0, []
    for path in sorted(folder.glob("*/*/slurm-*.json")):
        key = next((f"{kind}s" for kind in ("node", "job") if path.name.startswith(f"slurm-{kind}")), None)
        if key is None:
            continue
        files += 1
        where = str(path.relative_to(folder))
        text = path.read_text()
        try:
            found: list[Any] = (read_nodes if key == "nodes" else read_jobs)(text)
        except SlurmFailure:
            # of what that Slurm did not have: it says so, and names nothing
            if not re.search("unfound|archived", path.name):
                wrong.append(f"{where}: refused")
            continue
        except AnswerError as error:
            wrong.append(f"{where}: {error}")
            continue
        entries += len(found)
        named = _STATE.fullmatch(path.name)
        word = _WORDS.get(named[1], named[1].upper()) if named else ""
        is_state = word in ("ALLOCATED", "IDLE", "MIXED", "DOWN", "DRAIN", "PLANNED", "COMPLETED", "FAILED")
        is_state = is_state or word in ("PENDING", "RUNNING", "TIMEOUT")
        if len(found) != len(json.loads(text)[key]) or (is_state and word not in found[0].states):
            wrong.append(f"{where}: {len(found)} entries, {sorted(found[0].states)}")
        if re.search(r"with-gpus|gpus-(?!archived)", path.name) and not (
            found[0].gpus if key == "nodes" else found[0].gpu_count
        ):
            wrong.append(f"{where}: no GPU")
    releases = sorted({path.name for path in folder.iterdir() if path.is_dir()})
    return {"releases": releases, "files": files, "entries": entries, "wrong": wrong}


PARTS = {"xid48": xid48, "own_drains": own_drains, "races": races, "large": large, "sites": sites}
PARTS |= {"matrix": matrix, "kills": kills, "lasting": lasting}
ALONE = ("large", "sites")
"""Parts with clusters of their own."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--again", action="store_true", help="Run what has not passed yet; keep the other figures")
    parser.add_argument("--answers", type=Path, help="Folder of recorded answers of slurmrestd")
    asked = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    path = RESULTS / "slurm.json"

    def written() -> Figures:
        return dict(json.loads(path.read_text())["results"]) if path.exists() else {}

    if asked.answers:
        write("slurm", written() | {"answers": answers(asked.answers) | whence()})
    for name in asked.only or list(PARTS):
        began_s = time.monotonic()
        lab: Any
        with nullcontext() if name in ALONE else running() as lab:
            known = written().get(name, {}).get("each", {}) if asked.again else {}
            # after each cell, since a run may be cut off
            for found in PARTS[name](lab, known):
                took_s = round(time.monotonic() - began_s)
                write(
                    "slurm",
                    written() | {name: found | {"part_took_s": took_s, **whence(), "load": os.getloadavg()[2]}},
                )


if __name__ == "__main__":
    main()
