"""How long the cluster is without a leader when the one that leads is killed with an action in its hands.

    python -m benchmarks.failover --url postgresql://… [--kubeconfig FILE] [--rounds 10] [--out FILE]

Two daemons' lifecycles on one empty PostgreSQL database, each in a process of its own. One leads and is killed
(SIGKILL) between its intent and the action; measured is the time from the kill until the other one leads, and until
the action is done. Once elected by the store's row alone, once by a Kubernetes Lease fenced by it: on the API
server of the tests, or on the cluster that a kubeconfig names. The effects on the simulated cluster are counted:
each happens once.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from kubernetes import client, config

from benchmarks.report import write
from nightshift.agent.approvals.gate import Gate
from nightshift.agent.approvals.policy import ApprovalSettings
from nightshift.agent.clock import WallClock
from nightshift.agent.store.election import Settings
from nightshift.agent.store.incident import IncidentState
from nightshift.agent.store.incident_store import Store
from nightshift.controllers.actuators.simulated import SimulatedCluster
from tests.agent.incidents import a_finding
from tests.agent.replicas import replica
from tests.agent.world import ANN
from tests.kubernetes_api.server import ApiServer

_FORKS = multiprocessing.get_context("forkserver")
NAMESPACE = "default"


def until(condition: Callable[[], object], timeout_s: float = 60.0) -> float:
    """Seconds until it holds."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > timeout_s:
            raise TimeoutError("it did not happen within a minute")
        time.sleep(0.01)
    return time.monotonic() - began


def notes(folder: Path) -> str:
    path = folder / "notes"
    return path.read_text() if path.exists() else ""


def one_round(url: str, election: Settings) -> dict[str, float]:
    """Kills the leader once. Raises AssertionError where anything happened twice."""
    with tempfile.TemporaryDirectory() as name:
        folder, store, running = Path(name), Store(url, WallClock()), []

        def start(who: str) -> Any:
            kwargs = {"election": election} if election.by == "kubernetes" else {}
            process = _FORKS.Process(target=replica, args=(url, name, who), kwargs=kwargs)
            process.start()
            running.append(process)
            return process

        try:
            (folder / "hold-act-a").touch()
            first = start("a")
            incident = store.open_incident("leak", [a_finding(since_s=time.time())])
            until(lambda: store.incident(incident).state is IncidentState.AWAITING_APPROVAL)
            action = store.incident(incident).action
            assert action is not None
            Gate(store, ApprovalSettings(), WallClock()).approve(incident, action.plan_sha256, ANN)
            until(lambda: f"{first.pid} checks {action.id}" in notes(folder))
            second = start("b")
            until(lambda: f"{second.pid} follows b" in notes(folder))
            time.sleep(1.0 + (time.monotonic() * 997) % 1.0)  # anywhere between two renewals
            os.kill(first.pid, signal.SIGKILL)
            leads_s = until(lambda: f"{second.pid} leads b" in notes(folder))
            done_s = leads_s + until(lambda: store.incident(incident).state is IncidentState.CONFIRMING)
            effects = SimulatedCluster(folder / "cluster.sqlite").effects()
            assert [effect.action_id for effect in effects] == [action.id], "an action happened twice"
            assert store.audit.verify().ok
            store.move(incident, *_closed(store, incident))
            return {"leads_s": leads_s, "done_s": done_s}
        finally:
            (folder / "stop").touch()
            for process in running:
                process.join(20)
                process.kill()
                process.join()
            store.close()


def _closed(store: Store, incident: str) -> tuple[Any, ...]:
    from nightshift.agent.store.incident import Cause

    return Cause.CONFIRMED, "benchmark", "the next round begins", store.incident(incident).version


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="an empty PostgreSQL database")
    parser.add_argument("--kubeconfig", type=Path, help="a cluster to elect on; none: the API server of the tests")
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ApiServer() as server:
        path = arguments.kubeconfig or Path(folder) / "kubeconfig"
        if arguments.kubeconfig is None:
            path.write_text(yaml.safe_dump(server.kubeconfig()))
        results: dict[str, Any] = {"rounds": arguments.rounds, "real_cluster": arguments.kubeconfig is not None}
        for by in ("store", "kubernetes"):
            lease = f"nightshift-failover-{os.getpid()}"
            settings = Settings(by=by, name=lease, namespace=NAMESPACE, access={"kubeconfig": path})
            rounds = [one_round(arguments.url, settings) for _ in range(arguments.rounds)]
            results[by] = {
                name: {"median": statistics.median(r[name] for r in rounds), "max": max(r[name] for r in rounds)}
                for name in ("leads_s", "done_s")
            }
        api = config.new_client_from_config(str(path))
        client.CoordinationV1Api(api).delete_namespaced_lease(lease, NAMESPACE)
    write("failover", results)


if __name__ == "__main__":
    main()
