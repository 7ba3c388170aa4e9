"""A source that lies about every node: `python -m benchmarks.lying_source`.

The daemon itself over drawn fleets of 1,000 nodes: one dcgm-exporter page by HTTP tells of GPU errors that do not
exist. Every kind of action runs without a person, on a simulated cluster, and the clock is simulated. Half-way the
daemon ends and another one starts. Counted: nodes that were changed, and incidents of the stop. How the page lies:

    at_once     about every node in one look
    by_minutes  about one node after the other, some two a minute
    believed    the same, and a node's error is gone once it was acted on, so that every repair seems to help
    slowly      one node in twelve minutes, below the limit of nodes an hour; each error comes back under another
                code every six minutes, so that no repair seems to help
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import structlog
import yaml

from benchmarks.detect_held_out import commit
from benchmarks.report import RESULTS, write
from nightshift.agent.app import App
from nightshift.agent.correlation import collection
from nightshift.agent.settings import load
from nightshift.agent.store.incident import IncidentState
from nightshift.collectors.subject import SubjectKind
from nightshift.controllers.action import ActionKind
from nightshift.controllers.actuators.simulated import EFFECTS, SimulatedCluster
from nightshift.controllers.guard import Settings as GuardSettings
from nightshift.detectors.base import Fault

NODES, GPUS, SEEDS = 1000, 1, (1, 2)
START_S, LOOK_S, HOURS = 1.79e9, 240.0, 2
XIDS = (48, 74, 79, 95, 119)
"""Errors that call for resets and reboots (NVIDIA's Xid catalogue)."""
COMES_BACK_S = 360.0
MODES = {"at_once": 0.0, "by_minutes": 30.0, "believed": 30.0, "slowly": 720.0}
"""Mean time between two nodes' lies (s)."""


class LyingPage:
    """Serves the page of the whole fleet as of the clock's time."""

    def __init__(self, mode: str, rng: np.random.Generator, cluster: SimulatedCluster) -> None:
        gaps_s = rng.exponential(1.0, NODES) * MODES[mode]
        self._from_s = dict(zip(rng.permutation(NODES), START_S + 600.0 + np.cumsum(gaps_s), strict=True))
        self._xid = rng.choice(XIDS, NODES)
        self._gpu = rng.integers(0, GPUS, NODES)
        self._believed, self._comes_back = mode == "believed", mode == "slowly"
        self._cluster = cluster
        self.now_s = START_S
        page = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = page.text().encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/metrics"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _said(self, node: int, again: int) -> int:
        return XIDS[(XIDS.index(int(self._xid[node])) + again) % len(XIDS)]

    def text(self) -> str:
        mended = touched(self._cluster) if self._believed else set()
        lines = []
        for node in range(NODES):
            again = int((self.now_s - self._from_s[node]) // COMES_BACK_S) if self._comes_back else 0
            lies = self.now_s >= self._from_s[node] and name_of(node) not in mended
            for gpu in range(GPUS):
                labels = (
                    f'gpu="{gpu}",UUID="{uuid_of(node, gpu)}",Hostname="{name_of(node)}",modelName="NVIDIA H100"'
                )
                xid = self._said(node, again) if lies and gpu == self._gpu[node] else 0
                lines += [f"DCGM_FI_DEV_XID_ERRORS{{{labels}}} {xid}", f"DCGM_FI_DEV_POWER_USAGE{{{labels}}} 400"]
        return "\n".join(lines) + "\n"


class LookClock:
    """Moves by one look as soon as all incidents have come as far as they can."""

    def __init__(self, page: LyingPage) -> None:
        self.page = page
        self.app: App | None = None
        self.end_s = START_S

    def now_s(self) -> float:
        return self.page.now_s

    def wait_until(self, t_s: float) -> bool:
        assert self.app is not None
        self.app.settle(60.0)
        self.page.now_s = t_s
        if t_s >= self.end_s:
            self.app.shut_down()
        return True

    def wake(self) -> None:
        pass


def name_of(node: int) -> str:
    return f"n{node:04d}"


def uuid_of(node: int, gpu: int) -> str:
    return f"GPU-{node:08x}-0000-0000-0000-{gpu:012x}"


def touched(cluster: SimulatedCluster) -> set[str]:
    """Nodes on which, or on a GPU of which, something was changed."""
    found = set()
    for effect in cluster.effects():
        node = effect.target.name if effect.target.kind is SubjectKind.NODE else effect.params.get("node")
        if effect.kind is not ActionKind.NOTIFY_OWNER:
            found.add(str(node))
    return found


def settings_of(folder: Path, cluster: SimulatedCluster, url: str) -> dict[str, Any]:
    automatic = {str(kind): "automatic" for kind in EFFECTS if kind is not ActionKind.RETURN_NODE}
    return {
        "cluster": "lied-to",
        "state_dir": str(folder / "state"),
        "tick_s": LOOK_S,
        "console": {"port": 0},
        "sources": [{"type": "dcgm_exporter", "urls": [url]}],
        "actuators": [{"type": "simulated", "path": str(cluster.path)}],
        "approval": {"kinds": automatic, "wide": "automatic"},
    }


def draw(mode: str, seed: int, folder: Path) -> dict[str, Any]:
    cluster = SimulatedCluster(folder / "cluster.sqlite")
    with cluster.transaction() as db:
        for node in range(NODES):
            for subject in (f"node:{name_of(node)}", *(f"gpu:{uuid_of(node, gpu)}" for gpu in range(GPUS))):
                db.execute("INSERT INTO fact VALUES (?, 'resets', '0')", (subject,))
    page = LyingPage(mode, np.random.default_rng(seed), cluster)
    path = folder / "nightshift.yaml"
    path.write_text(yaml.safe_dump(settings_of(folder, cluster, page.url)))
    clock = LookClock(page)
    found: dict[str, Any] = {}
    try:
        for hours in (HOURS / 2, HOURS):
            clock.end_s = START_S + hours * 3600.0
            app = clock.app = App(load(path), clock=clock)
            app.start()
            try:
                app.run()
                found = counted(app, cluster)
            finally:
                app.stop()
    finally:
        page.close()
    return found


def counted(app: App, cluster: SimulatedCluster) -> dict[str, Any]:
    stops = [s for s in app.store.incidents() if s.findings[0].fault is Fault.ACTIONS_STOPPED]
    return {
        "nodes_touched": len(touched(cluster)),
        "effects": len(cluster.effects()),
        "incidents": len(app.store.incidents(limit=10_000)),
        "stopped": app.gate.halted().reason,
        "stops_that_page": sum(s.state is not IncidentState.RESOLVED for s in stops),
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mode", choices=MODES, action="append", help="Run these alone, and keep the others' rows")
    chosen = parser.parse_args(argv).mode or list(MODES)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    collection.LEAST_PATIENCE_S = 60.0  # the clock waits for each look
    path, at = RESULTS / "lying_source.json", commit()
    before = json.loads(path.read_text())["results"]["draws"] if path.exists() else []
    draws = [one for one in before if one["mode"] not in chosen]
    for mode in chosen:
        for seed in SEEDS:
            with tempfile.TemporaryDirectory() as folder:
                found = draw(mode, seed, Path(folder))
            draws.append({"mode": mode, "seed": seed, "commit": at, **found})
            print(draws[-1], flush=True)
    draws.sort(key=lambda one: (list(MODES).index(one["mode"]), one["seed"]))
    results = {
        "commit": at, "nodes": NODES, "hours": HOURS, "allowed": GuardSettings().breaker_nodes,
        "most_nodes_touched": max(one["nodes_touched"] for one in draws), "draws": draws,
    }  # fmt: skip
    write("lying_source", results)


if __name__ == "__main__":
    main()
