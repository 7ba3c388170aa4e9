"""What 2,000 incidents that wait for approval cost: threads, memory, the daemon's pass, and the time to a new one.

    python -m benchmarks.waiting_incidents [--waiting 2000] [--url postgresql://…] [--out FILE]

Measures the same figures with no incident waiting and with N, on a fresh SQLite file or on the given empty
PostgreSQL database. Diagnosis and planning answer at once, so that what is measured is the lifecycle: store, queue
and approval. Writes JSON with the environment to benchmarks/results/waiting_incidents.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import structlog

from nightshift.agent.approvals.gate import Gate
from nightshift.agent.approvals.policy import ApprovalSettings, Person, Role
from nightshift.agent.clock import WallClock
from nightshift.agent.incidents.lifecycle import Lifecycle
from nightshift.agent.incidents.stages import LifecycleSettings, StageParts
from nightshift.agent.store.diagnosis import Confidence, Diagnosis
from nightshift.agent.store.incident import Incident, IncidentState
from nightshift.agent.store.incident_store import Store
from nightshift.collectors.frame import Instant
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.controllers.action import Action, ActionKind, ActionProposal, BlastRadius, Undo
from nightshift.controllers.actuators.simulated import SimulatedActuator
from nightshift.detectors.base import Fault, Finding, Severity, State

RESULT = Path(__file__).parent / "results" / "waiting_incidents.json"
ANN = Person("ann", frozenset({Role.APPROVER}), "benchmark")
NEW, PASSES = 20, 50


def finding(number: int) -> Finding:
    now = Instant(time.time())
    subject = Subject(SubjectKind.GPU, f"GPU-{number}")
    return Finding(
        detector="memory_leak",
        fault=Fault.GPU_MEMORY_LEAK,
        subject=subject,
        state=State.FIRING,
        since=now,
        at=now,
        severity=Severity.WARNING,
        summary=f"memory of {subject} grows",
        score=9.0,
        threshold=4.0,
    )


def diagnose(incident: Incident) -> Diagnosis:
    return Diagnosis(Fault.GPU_MEMORY_LEAK, incident.title, Confidence.HIGH, (), ())


def plan(incident: Incident) -> ActionProposal:
    action = Action(
        id=f"{incident.id}-{incident.attempt + 1}".lower(),
        kind=ActionKind.RESTART_JOB,
        target=Subject(SubjectKind.JOB, "team/job"),
        why="the leak grows until the job dies",
        blast_radius=BlastRadius(jobs=("team/job",), cost_gpu_hours=1.0, cost_of_waiting_gpu_hours=4.0),
        undo=Undo(False, "a restart cannot be undone"),
        expires_at_s=time.time() + 86_400,
    )
    return ActionProposal(action, "least disruptive")


def fill(store: Store, number: int) -> None:
    """One more incident that waits for approval."""
    name = store.open_incident(f"leak {number}", [finding(100_000 + number)])
    store.save_diagnosis(store.incident(name), diagnose(store.incident(name)), by="benchmark")
    incident = store.incident(name)
    store.save_plan(incident, plan(incident).action or sys.exit("no plan"), "least disruptive", by="benchmark")


def reach(store: Store, name: str, state: IncidentState, timeout_s: float = 60.0) -> float:
    """Seconds until an incident is in a state."""
    began = time.perf_counter()
    while store.incident(name).state is not state:
        if time.perf_counter() - began > timeout_s:
            raise TimeoutError(f"{name} did not become {state} in {timeout_s:.0f} s")
        time.sleep(0.005)
    return time.perf_counter() - began


def measure(store: Store, gate: Gate, lifecycle: Lifecycle, start_number: int) -> dict[str, Any]:
    """Figures with whatever waits now."""
    to_plan, to_action = [], []
    for number in range(start_number, start_number + NEW):
        began = time.perf_counter()
        name = store.open_incident(f"leak {number}", [finding(number)])
        lifecycle.wake()
        reach(store, name, IncidentState.AWAITING_APPROVAL)
        to_plan.append(time.perf_counter() - began)
        action = store.incident(name).action
        assert action is not None
        began = time.perf_counter()  # as a click in another process: the daemon is not woken
        assert gate.approve(name, action.plan_sha256, ANN).changed
        reach(store, name, IncidentState.CONFIRMING)
        to_action.append(time.perf_counter() - began)
        end(store, name)
    passes = []
    for _ in range(PASSES):
        began = time.perf_counter()
        lifecycle.advance(time.time())
        passes.append(time.perf_counter() - began)
    cpu, began = time.process_time(), time.perf_counter()
    time.sleep(10)
    busy = (time.process_time() - cpu) / (time.perf_counter() - began)
    return {
        "waiting": len(store.incidents([IncidentState.AWAITING_APPROVAL])),
        "threads": threading.active_count(),
        "open_to_plan_s": spread(to_plan),
        "click_to_action_done_s": spread(to_action),
        "pass_ms": spread([1e3 * value for value in passes]),
        "idle_core_percent": round(100 * busy, 2),
        "max_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }


def end(store: Store, name: str) -> None:
    """Lets a measured incident resolve, so that only those that wait remain."""
    found = store.incident(name).findings[0].finding
    store.update_finding(name, replace(found, state=State.CLEAR, at=Instant(time.time())))


def spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "median": round(statistics.median(ordered), 4),
        "p95": round(ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))], 4),
        "max": round(ordered[-1], 4),
    }


def environment(store: Store) -> dict[str, Any]:
    with store.database.read() as connection:
        version = "SELECT sqlite_version()" if store.database.is_sqlite else "SHOW server_version"
        database = str(connection.execute(sa.text(version)).scalar())
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load_average": [round(value, 1) for value in os.getloadavg()],
        "database": f"{store.database.url.get_backend_name()} {database}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waiting", type=int, default=2000)
    parser.add_argument("--url")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    with tempfile.TemporaryDirectory() as folder:
        clock = WallClock()
        store = Store(options.url or f"sqlite:///{folder}/store.sqlite", clock)
        gate = Gate(store, ApprovalSettings(), clock)
        actuator = SimulatedActuator(Path(folder) / "cluster.sqlite")
        actuator.cluster.add(Subject(SubjectKind.JOB, "team/job"))
        settings = LifecycleSettings(quiet_s=0.0)
        parts = StageParts(store, gate, clock, diagnose, plan, lambda _: actuator, settings)
        lifecycle = Lifecycle(parts)
        lifecycle.start()
        try:
            name = store.open_incident("first", [finding(0)])  # the queue's first start is not what is measured
            reach(store, name, IncidentState.AWAITING_APPROVAL)
            gate.close(name, ANN, "warm-up")
            empty = measure(store, gate, lifecycle, 1)
            began = time.perf_counter()
            lifecycle.close()  # the rows are what waits; how they came there is not measured
            for number in range(options.waiting):
                fill(store, number)
            filled_s = time.perf_counter() - began
            lifecycle = Lifecycle(parts)
            lifecycle.start()
            full = measure(store, gate, lifecycle, 1_000)
            began = time.perf_counter()
            report = store.audit.verify()
            result = {
                "environment": environment(store),
                "fill_s": round(filled_s, 1),
                "none_waiting": empty,
                "many_waiting": full,
                "audit_records": report.records,
                "audit_verify_s": round(time.perf_counter() - began, 2),
            }
        finally:
            lifecycle.close()
            store.close()
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
