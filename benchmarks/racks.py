"""Faults of racks in drawn fleets: `python -m benchmarks.racks`.

The daemon itself, on a stepped clock, with the shipped detectors, over 12 racks of 18 nodes with 4 GPUs: one
dcgm-exporter page, ipmi_exporter pages of each rack's parts, a topology file, a simulated cluster. The draws are
our own: no public record of rack faults with telemetry was found. At minute 10 one rack fails: a switch tray, its
fabric without a word of a part, a power shelf, coolant, or 4 to 9 single trays. Beside it one node of another rack
fails on its own. A person approves each plan. A draw is right where the rack has one incident and one plan, and the
nodes that were drained in it are those that the failed part serves, and no others.

Bad input, in draws of their own: half of the rack is in another cluster; GPUs of one node are in two fabrics.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa
import structlog
import yaml

from benchmarks.detect_held_out import commit
from benchmarks.report import RESULTS, write
from nightshift.agent.app import App
from nightshift.agent.approvals.policy import Person, Role
from nightshift.agent.correlation import collection
from nightshift.agent.settings import load
from nightshift.agent.store.incident import IncidentState
from nightshift.agent.store.tables import plans
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.controllers.action import ActionKind
from nightshift.controllers.actuators.simulated import SimulatedCluster
from nightshift.detectors.base import Finding

RACKS, NODES, GPUS = 12, 18, 4
DRAWS, SEED, START_S, LOOK_S, LOOKS, BEGIN = 8, 1, 1.79e9, 60.0, 20, 6
KINDS = ("switch_tray", "fabric", "power_shelf", "coolant", "trays", "half_elsewhere", "two_fabrics")
LINK_XID, OTHER_XIDS, ALONE_XID = 74, (79, 119, 95), 48
PERSON = Person("ann", frozenset({Role.APPROVER, Role.ADMIN}), "console", None)


def name_of(rack: int, node: int) -> str:
    return f"r{rack:02d}-n{node:02d}"


class Fleet:
    """The pages of the fleet as of the clock's time, and what is right for the draw."""

    def __init__(self, kind: str, rng: np.random.Generator) -> None:
        self.kind, self.now_s = kind, START_S
        self.rack, self.alone = (int(n) for n in rng.choice(RACKS, 2, replace=False))
        self.alone_node = int(rng.integers(NODES))
        self.here = set(range(NODES)) - (set(range(9, NODES)) if kind == "half_elsewhere" else set())
        bad = (
            int(rng.integers(9, NODES))
            if kind in ("switch_tray", "fabric", "two_fabrics")
            else int(rng.integers(4, 10))
        )
        pool = sorted(self.here)
        self.bad = {int(n) for n in rng.choice(pool, min(bad, len(pool)), replace=False)}
        self.shelf = set(range(9)) if rng.random() < 0.5 else set(range(9, NODES))
        if kind == "power_shelf":
            self.bad = set(self.shelf)
        if kind == "coolant":
            self.bad = set()
        self.xid = (
            LINK_XID
            if kind in ("switch_tray", "fabric", "half_elsewhere", "two_fabrics")
            else int(rng.choice(OTHER_XIDS))
        )
        self.begin_s = {n: START_S + (BEGIN + rng.uniform(0, 0.8)) * LOOK_S for n in sorted(self.bad)}
        self.part_s = START_S + BEGIN * LOOK_S
        self.odd = min(self.bad) if kind == "two_fabrics" else -1
        self.token = int(rng.integers(2**31))

    @property
    def right(self) -> set[str]:
        """Nodes to drain."""
        whole = self.kind in ("switch_tray", "fabric", "coolant", "half_elsewhere", "two_fabrics")
        nodes = self.here if whole else self.bad
        return {name_of(self.rack, n) for n in nodes - {self.odd}}

    def topology(self) -> dict[str, Any]:
        racks = {}
        for rack in range(RACKS):
            names = [name_of(rack, n) for n in range(NODES)]
            racks[f"r{rack:02d}"] = {
                "nodes": names,
                "spares": names[-1:],
                "parts": {
                    f"r{rack:02d}-shelf-1": {"kind": "power_shelf", "feeds": names[:9]},
                    f"r{rack:02d}-shelf-2": {"kind": "power_shelf", "feeds": names[9:]},
                    f"r{rack:02d}-switch-1": {"kind": "switch_tray"},
                    f"r{rack:02d}-cdu": {"kind": "coolant"},
                },
            }
        return {"racks": racks}

    def part(self) -> str:
        shelf = 1 if 0 in self.shelf else 2
        named = {"switch_tray": "switch-1", "power_shelf": f"shelf-{shelf}", "coolant": "cdu"}.get(self.kind, "")
        return f"r{self.rack:02d}-{named}" if named else ""

    def gpus(self) -> str:
        lines = []
        for rack in range(RACKS):
            for node in range(NODES):
                if rack == self.rack and node not in self.here:
                    continue
                lines += self._node(rack, node)
        return "\n".join(lines) + "\n"

    def _node(self, rack: int, node: int) -> list[str]:
        fails = rack == self.rack and node in self.bad and self.now_s >= self.begin_s[node]
        alone = (rack, node) == (self.alone, self.alone_node) and self.now_s >= self.part_s
        if fails and self.kind == "power_shelf":
            return []
        lines = []
        for gpu in range(GPUS):
            fabric = f"{self.token:08x}-0000-4000-8000-{rack:012d}"
            clique = 2 if rack == self.rack and node == self.odd and gpu == 0 else 1
            labels = (
                f'gpu="{gpu}",UUID="GPU-{rack:04x}{node:04x}-0000-0000-0000-{gpu:012x}",'
                f'Hostname="{name_of(rack, node)}",modelName="NVIDIA GB200",'
                f'DCGM_FI_DEV_FABRIC_CLUSTER_UUID="{fabric}",DCGM_FI_DEV_FABRIC_CLIQUE_ID="{clique}"'
            )
            xid = self.xid if fails else ALONE_XID if alone and gpu == 0 else 0
            lines += [f"DCGM_FI_DEV_XID_ERRORS{{{labels}}} {xid}", f"DCGM_FI_DEV_POWER_USAGE{{{labels}}} 400"]
        return lines

    def bmc(self, target: str) -> str:
        bad = target == self.part() and self.now_s >= self.part_s
        return f'ipmi_sensor_state{{id="1",name="Unit",type="Power Supply"}} {2 if bad else 0}\n'


class Clock:
    """Moves by one look as soon as every incident came as far as it can; a person approves what waits."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.app: App | None = None
        self.end_s = START_S + LOOKS * LOOK_S

    def now_s(self) -> float:
        return self.fleet.now_s

    def wait_until(self, t_s: float) -> bool:
        assert self.app is not None
        self.app.settle(60.0)
        for summary in self.app.store.open_incidents():
            incident = self.app.store.incident(summary.id)
            if incident.state is IncidentState.AWAITING_APPROVAL and incident.action is not None:
                self.app.gate.approve(incident.id, incident.action.plan_sha256, PERSON)
        self.app.settle(60.0)
        self.fleet.now_s = t_s
        if t_s >= self.end_s:
            self.app.shut_down()
        return True

    def wake(self) -> None:
        pass


def serving(fleet: Fleet) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            target = self.path.partition("target=")[2]
            body = (fleet.bmc(target) if target else fleet.gpus()).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    class Server(ThreadingHTTPServer):
        request_queue_size = 256  # 49 pages are asked for at once

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def draw(kind: str, seed: int, folder: Path) -> dict[str, Any]:
    fleet = Fleet(kind, np.random.default_rng([seed, KINDS.index(kind)]))
    cluster = SimulatedCluster(folder / "cluster.sqlite")
    with cluster.transaction() as db:
        for rack in range(RACKS):
            for node in range(NODES):
                for fact in ("cordoned", "drained"):
                    row = (f"node:{name_of(rack, node)}", fact, "false")
                    db.execute("INSERT INTO fact VALUES (?, ?, ?)", row)
    server = serving(fleet)
    url = f"http://127.0.0.1:{server.server_port}"
    (folder / "racks.yaml").write_text(yaml.safe_dump(fleet.topology()))
    parts = [
        f"{url}/ipmi?target=r{rack:02d}-{part}"
        for rack in range(RACKS)
        for part in ("shelf-1", "shelf-2", "switch-1", "cdu")
    ]
    told = {
        "cluster": "racks",
        "state_dir": str(folder / "state"),
        "tick_s": LOOK_S,
        "console": {"port": 0},
        "sources": [
            {"type": "topology", "path": str(folder / "racks.yaml")},
            {"type": "dcgm_exporter", "urls": [f"{url}/metrics"]},
            {"type": "equipment", "urls": parts},
        ],
        "actuators": [{"type": "simulated", "path": str(cluster.path)}],
        "approval": {"wide": "one"},
    }
    path = folder / "nightshift.yaml"
    path.write_text(yaml.safe_dump(told))
    clock = Clock(fleet)
    app = clock.app = App(load(path), clock=clock)
    app.start()
    try:
        app.run()
        return counted(app, cluster, fleet)
    finally:
        app.stop()
        server.shutdown()
        server.server_close()


def counted(app: App, cluster: SimulatedCluster, fleet: Fleet) -> dict[str, Any]:
    mine = f"r{fleet.rack:02d}-"
    with app.store.database.read() as connection:
        rows = connection.execute(sa.select(plans.c.incident, plans.c.body)).all()
    ours = [json.loads(body) | {"incident": number} for number, body in rows if mine in body]
    drained = {e.target.name for e in cluster.effects() if e.kind is ActionKind.DRAIN and not e.undo}
    in_rack = {name for name in drained if name.startswith(mine)}
    whole = [app.store.incident(one.id) for one in app.store.incidents(limit=10_000)]
    incidents = [i for i in whole if any(_concerns(app, f.finding, fleet.rack) for f in i.findings)]
    return {
        "kind": fleet.kind,
        "bad_nodes": len(fleet.bad),
        "incidents": len(incidents),
        "plans": len(ours),
        "drained": len(in_rack),
        "right_nodes": in_rack == fleet.right,
        "elsewhere": sorted(drained - in_rack),
        "first_causes": sorted(str(i.findings[0].finding.subject) for i in incidents)[:4],
        "kinds": dict(Counter(str(plan["kind"]) for plan in ours)),
    }


def _concerns(app: App, finding: Finding, rack: int) -> bool:
    """Whether a finding is about the rack, or a node, GPU or part in it."""
    place = Subject(SubjectKind.RACK, f"r{rack:02d}")
    times = (finding.since.t_s, finding.at.t_s)
    above = any(place in app.inventory.ancestors(finding.subject, t_s) for t_s in times)
    return above or finding.subject.name.startswith(f"{place.name}-")


def figures_of(draws: list[dict[str, Any]]) -> dict[str, Any]:
    """By kind: how many draws there are, and how many of them are right in each respect."""
    found = {}
    for kind in KINDS:
        mine = [d for d in draws if d["kind"] == kind]
        right = {
            "one_incident": [d["incidents"] == 1 for d in mine],
            "one_plan": [d["plans"] == 1 for d in mine],
            "right_nodes": [d["right_nodes"] for d in mine],
        }
        found[kind] = {"draws": len(mine)} | {name: sum(each) for name, each in right.items()}
    return found


def main() -> None:
    collection.LEAST_PATIENCE_S = 60.0  # the clock waits for each look
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kind", choices=KINDS, help="these draws alone")
    parser.add_argument("--anew", action="store_true", help="forget the draws that the file has")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    file = RESULTS / "racks.json"
    draws = json.loads(file.read_text())["results"]["draws"] if file.exists() and not options.anew else []
    known = {(d["kind"], d["number"]) for d in draws}
    for kind in KINDS if options.kind is None else (options.kind,):
        for number in range(DRAWS):
            if (kind, number) in known:
                continue
            with tempfile.TemporaryDirectory() as folder:
                drawn = draw(kind, SEED * 1000 + number, Path(folder))
            draws.append({"commit": commit(), "number": number, **drawn})
            # after each: a run of all of them takes an hour on a busy machine, and resumes after the last one
            shape = {"racks": RACKS, "nodes": NODES, "gpus": GPUS, "draws_of_a_kind": DRAWS}
            write("racks", {**shape, "kinds": figures_of(draws), "draws": draws})


if __name__ == "__main__":
    main()
