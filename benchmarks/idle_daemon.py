"""What a daemon costs that has nothing to do: memory, share of a core, and the time to its first frame.

    python -m benchmarks.idle_daemon [--window-s 120]

`nightshift run`, as a process of its own, watches the demo's fleet in real time: four nodes × 8 GPUs, 4 sources, a
look every 5 s, before any fault begins. The fleet is served by this process. Limits: under 250 MB, under 5 % of a
core, under 3 s from start to first frame; on a machine that does other work the last one is that work's figure, so
the processor time to the first frame and the load stand beside it.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import yaml

from benchmarks.report import write
from examples.demo import recording
from examples.demo.run import configuration
from examples.demo.scenario import TICK_S, draw
from examples.demo.world import World

ROOT = Path(__file__).resolve().parents[1]
LIMITS = {"rss_mb": 250.0, "core_share": 0.05, "first_frame_s": 3.0}
_WARM_UP_S = 15.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--window-s", type=float, default=120.0)
    options = parser.parse_args()
    figures = measure(options.window_s)
    figures["within"] = {name: figures[name] < limit for name, limit in LIMITS.items()}
    figures["limits"] = LIMITS
    write("idle_daemon", figures)
    return 0 if all(figures["within"].values()) else 1


def measure(window_s: float) -> dict[str, object]:
    """Starts the fleet and the daemon, and reads the daemon's cost from /proc."""
    with tempfile.TemporaryDirectory(prefix="nightshift-idle-") as name:
        folder = Path(name)
        world = World(draw(7), recording.load(), folder, start_s=time.time())
        port = _free_port()
        config = folder / "nightshift.yaml"
        config.write_text(yaml.safe_dump(configuration(world, folder, port)))
        over = threading.Event()
        fleet = threading.Thread(target=_play, args=(world, over), daemon=True)
        fleet.start()
        began_s = time.monotonic()
        command = [sys.executable, "-m", "nightshift.agent", "run", "--config", str(config)]
        with (folder / "daemon.log").open("w") as log:
            daemon = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        try:
            gpus = _first_frame(f"http://127.0.0.1:{port}/metrics", daemon)
            first_s, start_cpu_s = time.monotonic() - began_s, _cpu_s(daemon.pid)
            time.sleep(_WARM_UP_S)
            before_s, before = time.monotonic(), _cpu_s(daemon.pid)
            time.sleep(window_s)
            share = (_cpu_s(daemon.pid) - before) / (time.monotonic() - before_s)
            status = Path(f"/proc/{daemon.pid}/status").read_text()
        finally:
            daemon.terminate()
            daemon.wait(20)
            over.set()
            fleet.join()
            world.close()
    return {
        "gpus": gpus,
        "rss_mb": round(_kib(status, "VmRSS") / 1024, 1),
        "peak_rss_mb": round(_kib(status, "VmHWM") / 1024, 1),
        "threads": int(re.findall(r"^Threads:\s+(\d+)", status, re.M)[0]),
        "core_share": round(share, 4),
        "first_frame_s": round(first_s, 2),
        "first_frame_cpu_s": round(start_cpu_s, 2),
        "window_s": window_s,
        "load_average": os.getloadavg()[0],
    }


def _play(world: World, over: threading.Event) -> None:
    while not over.wait(max(0.0, world.now_s + TICK_S - time.time())):
        world.advance(time.time())


def _first_frame(url: str, daemon: subprocess.Popen[bytes]) -> int:
    """Waits until the daemon has looked once; returns how many GPUs it saw."""
    while daemon.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                page = answer.read().decode()
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            page = ""
        if found := re.findall(r'nightshift_subjects\{kind="gpu"\} (\d+)', page):
            return int(found[0])
        time.sleep(0.01)
    raise RuntimeError(f"the daemon ended with {daemon.returncode}")


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _kib(status: str, name: str) -> int:
    return int(re.findall(rf"^{name}:\s+(\d+) kB", status, re.M)[0])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    raise SystemExit(main())
