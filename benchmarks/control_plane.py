"""Actions while their API server is away, their node vanishes, or they wait: what ends half-way, and what it costs.

    python -m benchmarks.control_plane [--only outages|nodes|waiting|rights]

On the API server of the tests, with the whole lifecycle on the real actuators and a stepped clock: every cell of
{refused, time-out, 401, 403, 5xx, half-open} × {1 s, 10 s, 75 s, 10 min} × {cordoned, suspended, releasing,
rebooting, check}; a node deleted or replaced in each phase of each action; half an hour of waiting, counted by the
server; and the rights that each kind of action has and uses. Writes benchmarks/results/control_plane.json; a part
alone replaces its own figures there.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import structlog

from benchmarks.report import RESULTS, write
from nightshift.agent.incidents.stages import RETRY_S, STAGE_OF, Stage
from nightshift.controllers.action import ActionKind
from nightshift.controllers.actuators.kube_repair import KubernetesRepairActuator
from nightshift.controllers.actuators.kube_rights import OWN_RIGHTS, RIGHTS, Right
from nightshift.controllers.actuators.kubernetes import KubernetesActuator
from tests.agent.incidents import test_fault_matrix, test_under_way
from tests.agent.incidents.test_fault_matrix import Cell
from tests.agent.incidents.test_outages import OUTAGES, PHASES, outage
from tests.agent.incidents.test_vanished_node import CELLS, on_this_machine, open_intents, reached, vanish
from tests.controllers.actuators import test_kube_repair, test_kube_rights
from tests.controllers.kube_scenes import finished, rules_of
from tests.controllers.repair_scenes import Clock
from tests.kubernetes_api.cluster import Cluster, _cluster

WAITED_S, LOOKED_S = 1800.0, 60.0


@contextmanager
def a_cell(kind: ActionKind, what: str) -> Iterator[Cell]:
    with tempfile.TemporaryDirectory() as folder, _cluster(tls=False) as cluster:
        asked = SimpleNamespace(param=(kind, what))
        made = test_fault_matrix.cell.__wrapped__(cluster, Path(folder), asked)  # type: ignore[attr-defined]
        found = next(made)
        yield found
        next(made, None)


def outages() -> dict[str, Any]:
    cells: dict[str, Any] = {}
    for fault, lasting_s, phase in OUTAGES:
        with a_cell(PHASES[phase], fault) as cell:
            try:
                cells[f"{fault} · {lasting_s:g} s · {phase}"] = vars(outage(cell, fault, lasting_s, phase))
            except AssertionError as error:
                cells[f"{fault} · {lasting_s:g} s · {phase}"] = {"not_run": str(error)}
    ran = [found for found in cells.values() if "not_run" not in found]
    totals = {name: sum(found[name] for found in ran) for name in ("escalated", "half_done", "twice")}
    late_s = [found["done_after_s"] for found in ran if not math.isnan(found["done_after_s"])]
    return {"cells": len(cells), "ran": len(ran), **totals, "latest_done_after_s": max(late_s), "each": cells}


def nodes() -> dict[str, Any]:
    """`runs_in_5_s`: the most runs of one stage in five seconds, from when the node vanished. Another stage that
    follows at once (what ended is planned anew) is no second run."""
    cells: dict[str, Any] = {}
    for kind, phase, how in CELLS:
        with a_cell(kind, "gone") as cell:
            gone_s: list[float] = []
            runs: list[tuple[float, Stage]] = []
            run = cell.lifecycle._stages.run

            def counted(incident: Any, cell: Cell = cell, runs: Any = runs, run: Any = run) -> None:
                runs.append((cell.clock.now_s(), STAGE_OF[incident.state]))
                run(incident)

            cell.lifecycle._stages.run = counted  # type: ignore[method-assign]

            def look(_: int, cell: Cell = cell, phase: str = phase, how: str = how, gone_s: Any = gone_s) -> None:
                if not gone_s and reached(cell, phase):
                    vanish(cell, how)
                    gone_s.append(cell.clock.now_s())
                    cell.round_s = 1.0

            on_this_machine(cell, gang=phase == "suspended")
            cell.run(look, rounds=600)
            while cell.clock.now_s() < gone_s[0] + LOOKED_S:
                cell.lifecycle._stand()
                cell.lifecycle.advance(cell.clock.now_s())
                cell.controllers()
                cell.clock.advance(1.0)
            after = [(at_s, stage) for at_s, stage in runs if at_s >= gone_s[0]]
            within = [
                sum(stage is other and 0 <= later_s - at_s < RETRY_S for later_s, other in after)
                for at_s, stage in after
            ]
            most = max(within, default=0)
            cells[f"{kind} · {phase} · {how}"] = {"open_intents": len(open_intents(cell)), "runs_in_5_s": most}
    names = ("open_intents", "runs_in_5_s")
    return {"cells": len(cells), **{n: max(c[n] for c in cells.values()) for n in names}, "each": cells}


def waiting() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for waits in ("a budget", "a job's pods"):
        with tempfile.TemporaryDirectory() as folder:
            made = test_under_way.scene.__wrapped__(Path(folder))  # type: ignore[attr-defined]
            scene = next(made)
            if waits == "a job's pods":
                test_under_way.with_a_stopped_job(scene)
            scene.server.requests.clear()
            scene.server.answers.clear()
            scene.pass_time(WAITED_S, 5.0)
            answers = dict(scene.server.answers)
            found[waits] = {
                "requests_per_s": round(len(scene.server.requests) / WAITED_S, 4),
                "not_found": answers.get(404, 0),
                "answers": answers,
            }
            next(made, None)
    return found


def _used(cluster: Cluster, kind: ActionKind) -> set[Right]:
    action, after = test_kube_rights.scene(cluster, kind)
    actuator = test_kube_rights.identity(cluster, rules_of(RIGHTS[kind]))
    actuator.changed(action)
    finished(lambda: actuator.execute(action), after)
    actuator.read(action)
    actuator.undo(action)
    return test_kube_rights.asked_by_us(cluster)


def rights() -> dict[str, Any]:
    """Of each kind of action: rights granted, and those of them that it never asked for."""
    found: dict[str, Any] = {}
    for kind in KubernetesActuator.TARGETS:
        with _cluster(tls=False) as cluster:
            used = _used(cluster, kind)
        if kind in (ActionKind.RESTART_JOB, ActionKind.DRAIN):
            with _cluster(tls=False) as cluster:
                test_kube_rights.test_each_right_on_whole_jobs_is_used(cluster, kind)
                used |= test_kube_rights.asked_by_us(cluster)
        found[kind] = _row(RIGHTS[kind], used)
    for kind in KubernetesRepairActuator.TARGETS:
        with _cluster(tls=False) as cluster:
            test_kube_repair.test_a_repair_needs_just_its_rights(cluster, Clock(), kind)
            used = test_kube_rights.asked_by_us(cluster)
        granted = RIGHTS[kind] | OWN_RIGHTS.get(kind, frozenset())
        # it stops jobs: what that takes on operators' kinds was counted with the restart and the drain
        counted = RIGHTS[ActionKind.RESTART_JOB] | RIGHTS[ActionKind.DRAIN]
        granted -= {right for right in counted - used if right.group not in ("", "batch")}
        found[kind] = _row(granted, used)
    return {"unused": sum(len(row["unused"]) for row in found.values()), "each": found}


def _row(granted: frozenset[Right], used: set[Right]) -> dict[str, Any]:
    return {"granted": len(granted), "unused": sorted(str(right) for right in granted - used)}


PARTS = {"outages": outages, "nodes": nodes, "waiting": waiting, "rights": rights}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, action="append")
    chosen = parser.parse_args().only or list(PARTS)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    path = RESULTS / "control_plane.json"
    before = json.loads(path.read_text())["results"] if path.exists() else {}
    write("control_plane", before | {name: PARTS[name]() for name in chosen})


if __name__ == "__main__":
    main()
