"""From `nightshift approve INC-n` to the gate's yes: start-up, decision, end. On the store, and by token.

    python -m benchmarks.approve [--rounds 20]

Each round is a process of its own, as at a terminal, beside a daemon that runs; its first start is not counted.
Processor time is the process's own; wall time is what a person waits, and depends on what else the machine does.
Writes benchmarks/results/approve.json.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import yaml

from benchmarks.report import write
from benchmarks.waiting_incidents import fill
from nightshift.agent.clock import WallClock
from nightshift.agent.console.sign_in import operator_token
from nightshift.agent.store.incident_store import Store

LIMIT_S = 240.0


def until(look: Any, what: str) -> Any:
    end = time.monotonic() + LIMIT_S
    while not (found := look()):
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.05)
    return found


def approve(incident: str, environ: dict[str, str]) -> tuple[float, float]:
    """(processor time, wall time) of one command (s). Raises where the gate did not say yes."""
    began, before = time.perf_counter(), os.times()
    command = [sys.executable, "-m", "nightshift.agent", "approve", incident]
    done = subprocess.run(command, env={**os.environ, **environ}, capture_output=True, text=True, check=False)
    wall_s, after = time.perf_counter() - began, os.times()
    if done.returncode != 0 or "approved" not in done.stdout.lower():
        raise AssertionError(f"{incident}: {done.stdout}{done.stderr}")
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    return cpu_s, wall_s


def spread(values: list[float]) -> dict[str, float]:
    return {"median": round(statistics.median(values), 3), "max": round(max(values), 3)}


def measure(folder: Path, rounds: int) -> dict[str, Any]:
    state = folder / "state"
    configuration = folder / "nightshift.yaml"
    sources = [{"type": "dcgm_exporter", "urls": ["http://127.0.0.1:9/metrics"]}]
    values = {"state_dir": str(state), "console": {"port": 0}, "sources": sources, "cluster": "benchmark"}
    configuration.write_text(yaml.safe_dump(values))
    with (folder / "log").open("wb") as log:
        command = [sys.executable, "-m", "nightshift.agent", "run", "--config", str(configuration)]
        daemon = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        pattern = r"console=(http://\S+?)(?:\x1b|\s)"
        url = until(lambda: re.findall(pattern, (folder / "log").read_text()), "the daemon did not start")[-1]
        until(lambda: httpx.get(f"{url}/readyz").status_code == 200, "the daemon is not ready")
        token = folder / "token"
        token.write_text(operator_token(state, None))
        store = Store(f"sqlite:///{state}/nightshift.db", WallClock())
        for number in range(2 * (rounds + 1)):
            fill(store, number)
        store.close()
        here = {"NIGHTSHIFT_CONFIG": str(configuration)}
        ways = {"on_the_store": here, "by_token": {"NIGHTSHIFT_API": url, "NIGHTSHIFT_TOKEN_FILE": str(token)}}
        found: dict[str, Any] = {"rounds": rounds, "load_average": round(os.getloadavg()[0], 1)}
        first = 1
        for name, environ in ways.items():
            times = [approve(f"INC-{number}", environ) for number in range(first, first + rounds + 1)][1:]
            first += rounds + 1
            found[name] = {
                "processor_s": spread([cpu_s for cpu_s, _ in times]),
                "wall_s": spread([wall_s for _, wall_s in times]),
            }
        return found
    finally:
        daemon.kill()
        daemon.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    with tempfile.TemporaryDirectory() as folder:
        write("approve", measure(Path(folder), parser.parse_args().rounds))


if __name__ == "__main__":
    main()
