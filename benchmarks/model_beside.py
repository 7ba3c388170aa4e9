"""What a language model that thinks for 300 s costs the plan: nothing. `python -m benchmarks.model_beside [--runs
N]`.

Each run is one fresh daemon (SQLite, no actuators) that reads an Xid 79 from a kernel log. Half of the runs have a
model behind a local endpoint that takes every request and never answers within its 300 s; the others have none.
Measured is the wall time from the look that finds the fault to the plan that waits for approval, and whether the
plan with that hash can be approved while the model thinks. Runs with and without alternate, so that other load hits
both alike."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.field.__main__ import START_S, TICK_S, Drawn
from benchmarks.field.feeds import FEEDS
from benchmarks.field.report import Channel, kernel
from benchmarks.report import write
from nightshift.agent.app import App
from nightshift.agent.approvals.policy import Person, Role
from nightshift.agent.clock import SteppedClock
from nightshift.agent.settings import Settings
from nightshift.agent.store.incident import IncidentState
from nightshift.version import commit
from tests.agent.scripted_model import Scripted, never, scripted

REPORT = kernel(
    "benchmarks/model_beside",
    "fallen off",
    "NVRM: GPU at PCI:$pci: GPU-$n",
    "NVRM: Xid (PCI:$pci): 79, pid=$pid, name=python3, GPU has fallen off the bus.",
)
WAIT_S = 60.0
_ONE_NODE = {"cluster_fraction": 1.0, "rack_fraction": 1.0, "domain_fraction": 1.0, "least_nodes": 0}


def until(what: str, ready: Any) -> float:
    """Seconds until something holds. Raises TimeoutError."""
    began_s = time.monotonic()
    while not ready():
        if time.monotonic() - began_s > WAIT_S:
            raise TimeoutError(what)
        time.sleep(0.005)
    return time.monotonic() - began_s


def run(number: int, server: Scripted | None) -> dict[str, Any]:
    drawn = Drawn(number, REPORT.source)
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        feed = stack.enter_context(FEEDS[Channel.KERNEL](home, REPORT, drawn))
        # by which the node's GPUs are known: a plan has to count what it takes away
        page = stack.enter_context(FEEDS[Channel.EXPORTER](home, REPORT, drawn))
        sources = [*feed.settings()["sources"], *page.settings()["sources"]]
        llm = {} if server is None else {"provider": "openai", "model": "never", "base_url": f"{server.url}/v1"}
        settings = Settings.model_validate(
            {"cluster": "beside", "state_dir": str(home / "state"), "tick_s": TICK_S, "actuators": [], "llm": llm,
             "console": {"port": 0}, "sources": sources, "guard": _ONE_NODE}
        )  # fmt: skip
        clock = SteppedClock(START_S)
        app = App(settings, clock=clock)
        try:
            app.start()
            app.tick()
            feed.put(REPORT.lines, clock.now_s())
            clock.wait_until(clock.now_s() + TICK_S)
            began_s = time.monotonic()
            app.tick()

            def plan() -> str:
                found = app.store.incidents([IncidentState.AWAITING_APPROVAL])
                return (found[0].plan_sha256 or "") if found else ""

            until("the plan", plan)
            to_plan_s = time.monotonic() - began_s
            name, shown = app.store.incidents()[0].id, plan()
            if server is not None:
                until("the model is asked", lambda: len(server.asked) > 0)
            # a reboot asks for a fresh sign-in
            approver = Person("alice", frozenset({Role.APPROVER}), "console", signed_in_s=clock.now_s())
            answer = app.gate.approve(name, shown, approver)
            thinking = app.store.incident(name).reading
        finally:
            app.stop()
    return {
        "model": server is not None,
        "to_plan_s": round(to_plan_s, 3),
        "approved": answer.ok,
        "answer": answer.message,
        "reading": None if thinking is None else str(thinking.state),
    }


def at_rest() -> None:
    """Waits for the model's late answers: a thread that reads one while Python ends aborts the process (3.11)."""
    for thread in threading.enumerate():
        if thread.name in ("language model", "model-reading"):
            thread.join(WAIT_S)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time to plan beside a model that thinks for 300 s")
    parser.add_argument("--runs", type=int, default=10, help="runs with and as many without a model")
    args = parser.parse_args()
    rows = []
    for number in range(args.runs):
        rows.append(run(number, None))
        with scripted(never) as server:
            rows.append(run(number, server))
        at_rest()
    beside = [row["to_plan_s"] for row in rows if row["model"]]
    alone = [row["to_plan_s"] for row in rows if not row["model"]]
    result = {
        "commit": commit(),
        "runs": args.runs,
        "to_plan_s_median_without": statistics.median(alone),
        "to_plan_s_median_with": statistics.median(beside),
        "difference_of_medians_s": round(statistics.median(beside) - statistics.median(alone), 3),
        "approvals_refused": sum(not row["approved"] for row in rows),
        "rows": rows,
    }
    write("model_beside", result)


if __name__ == "__main__":
    main()
