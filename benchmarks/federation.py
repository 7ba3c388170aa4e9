"""The page of all clusters over a million GPUs: `python -m benchmarks.federation [--agents 8] [--gpus 125000]`.

Eight agents' consoles, each over a store and a history of 125,000 GPUs and 500 open incidents, in a process of
their own; a ninth agent's console shows them. A real Chromium paints its page (`benchmarks.console`, from the start
of the navigation). Then one agent is stopped and one is asked with a wrong token: how the page shows them, and
whether a figure of theirs is in a sum.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import tempfile
import time
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import httpx
import structlog
from playwright.sync_api import sync_playwright

from benchmarks.console import _VISITS, figures, visit
from benchmarks.console_fleet import LargeFleet
from benchmarks.detect_held_out import commit
from benchmarks.report import write
from nightshift.agent.console import members as federation
from nightshift.agent.console.members import Members
from nightshift.agent.console.server import Server
from nightshift.agent.console.settings import Settings
from nightshift.agent.setup.console import build_console
from nightshift.collectors.http import HttpSettings

INCIDENTS = 500
AUTHORISED = {"Authorization": "Bearer token"}


def agents(count: int, gpus: int, folder: str, told: Any, stop: Event) -> None:
    """Serves the agents' consoles until `stop`; tells their addresses."""
    worlds, servers = [], []
    for number in range(count):
        place = Path(folder) / f"agent-{number}"
        place.mkdir()
        worlds.append(LargeFleet(place, gpus, INCIDENTS))
        servers.append(Server(build_console(worlds[-1].parts(), Settings()), "127.0.0.1", 0))
        servers[-1].start()
    told.send([server.url for server in servers])
    told.recv()
    servers[0].stop()
    told.send("stopped")
    stop.wait()
    for server in servers[1:]:
        server.stop()


def asked(url: str) -> dict[str, float]:
    """One summary, as an agent that shows others reads it: seconds, bytes."""
    began_s = time.perf_counter()
    answer = httpx.get(f"{url}/api/v1/summary", headers=AUTHORISED)
    answer.raise_for_status()
    return {"took_s": time.perf_counter() - began_s, "bytes": float(len(answer.content))}


def measure(count: int, gpus: int, folder: Path) -> dict[str, Any]:
    ours, theirs = multiprocessing.Pipe()
    stop = multiprocessing.get_context("spawn").Event()
    args = (count, gpus, str(folder), theirs, stop)
    process = multiprocessing.get_context("spawn").Process(target=agents, args=args)
    process.start()
    urls = ours.recv()
    (folder / "own").mkdir()
    world = LargeFleet(folder / "own", 8, 0)
    token = folder / "token"
    token.write_text("token")
    members = Members({url: HttpSettings(bearer_token_file=token) for url in urls})
    found: dict[str, Any] = {"agents": count, "gpus_an_agent": gpus, "incidents_an_agent": INCIDENTS}
    found["summary_first"] = [asked(url) for url in urls]
    found["summary_kept"] = [asked(url) for url in urls]
    parts = world.parts()
    object.__setattr__(parts, "members", members.all)
    server = Server(build_console(parts, Settings()), "127.0.0.1", 0)
    server.start()
    members.start()
    while any(member.said is None for member in members.all()):
        time.sleep(0.1)
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            visit(browser, f"{server.url}/healthz")  # the browser's own start
            page = f"{server.url}/clusters"
            found["first_visit"] = figures([visit(browser, page) for _ in range(_VISITS)])
            found["later_visit"] = figures([visit(browser, page, again=True) for _ in range(_VISITS)])
            browser.close()
        found["whole"] = shown(server.url)
        ours.send("stop one")
        ours.recv()
        time.sleep(federation.SILENT_S + federation.POLL_S + federation.TIMEOUT_S)
        found["one_stopped"] = shown(server.url)
        stranger = Members({urls[1]: HttpSettings(headers={"Authorization": "Bearer wrong"})})  # type: ignore[dict-item]
        stranger.ask(urls[1])
        found["wrong_token"] = stranger.all()[0].problem
    finally:
        members.stop()
        server.stop()
        stop.set()
        process.join(30.0)
        world.store.close()
    return found


def shown(url: str) -> dict[str, Any]:
    """What the API says: clusters by state, and the sums."""
    began_s = time.perf_counter()
    told = httpx.get(f"{url}/api/v1/clusters", headers=AUTHORISED).json()
    states: dict[str, int] = {}
    for cluster in told["clusters"]:
        states[cluster["state"]] = states.get(cluster["state"], 0) + 1
    return {"took_s": time.perf_counter() - began_s, "states": states, "total": told["total"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--gpus", type=int, default=125_000, help="of each agent")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    with tempfile.TemporaryDirectory() as folder:
        write("federation", {"commit": commit(), **measure(options.agents, options.gpus, Path(folder))})


if __name__ == "__main__":
    main()
