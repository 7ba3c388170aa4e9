"""How soon each page of the console is painted over a large fleet, and what it weighs on the wire.

    python -m benchmarks.console [--gpus 10000] [--incidents 10000]

The console's own server on loopback and a real Chromium: first paint by the Performance API
(first-contentful-paint, from the start of the navigation, so the server's work is in it), bytes as they were
transferred (compressed, with headers), of the page and of everything that it loads. A first visit has an empty
browser cache; a later one has the style sheet and scripts. Each visit begins where the browser has come to rest:
what it does to make an empty profile and to clear the one before is no part of a page. The interpreter's garbage
collector is set as the daemon sets it.

Wall times hold whatever else the machine does. `cpu_ms` is what the server and a plain client of one process
compute for the page alone; `browser_cpu_ms` what all processes of the browser compute for one visit, from an empty
profile to the paint and everything loaded. Their sum bounds the time of a page on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import structlog
from playwright.sync_api import Browser, sync_playwright

from benchmarks.console_fleet import LargeFleet
from benchmarks.report import write
from benchmarks.waiting_incidents import spread
from nightshift.agent.console.server import Server
from nightshift.agent.console.settings import Settings
from nightshift.agent.daemon import collect_garbage_rarely
from nightshift.agent.setup.console import build_console
from nightshift.version import commit

_VISITS = 12
_REST_MS = 300
_PAGES = {
    "fleet": "/",
    "rack": "/racks/r7",
    "gpu": "/gpus/{gpu}",
    "incidents": "/incidents",
    "search": "/incidents?state=open&q=leak",
    "incident": "/incidents/INC-77",
    **{name: f"/{name}" for name in ("waiting", "goodput", "policies", "kernels", "sources", "audit")},
    **{name: f"/{name}" for name in ("returns", "versions", "jobs", "power", "scheduling")},
}
_WEIGHED = """() => performance.getEntriesByType("navigation").concat(performance.getEntriesByType("resource"))
  .map(entry => [entry.name, entry.transferSize])"""
_PAINTED = """() => new Promise(done => {
  const read = () => performance.getEntriesByName("first-contentful-paint")[0]?.startTime;
  const tell = () => read() && done(read());
  new PerformanceObserver(tell).observe({type: "paint", buffered: true});
  tell();
})"""


def visit(browser: Browser, url: str, *, again: bool = False) -> dict[str, float]:
    """One visit with an empty cache, or the second one with the first one's cache."""
    began_s = browser_cpu_s()
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    page.wait_for_timeout(_REST_MS)
    try:
        if again:
            page.goto(url)
            page.wait_for_timeout(100)
        page.goto(url)
        painted_ms = float(page.evaluate(_PAINTED))
        weight = sum(size for _, size in page.evaluate(_WEIGHED))
        timing = page.evaluate("() => performance.getEntriesByType('navigation')[0].toJSON()")
        return {
            "first_paint_ms": painted_ms,
            "first_byte_ms": float(timing["responseStart"]),
            "browser_cpu_ms": round(1e3 * (browser_cpu_s() - began_s), 1),
            "transferred_bytes": float(weight),
        }
    finally:
        context.close()


def cpu_ms(url: str) -> list[float]:
    """Of one request each: what preempts it is not in it, nor what the client takes to get ready."""
    spent = []
    with httpx.Client(timeout=60.0) as client:
        for _ in range(_VISITS):
            began_s = time.process_time()
            client.get(url)
            spent.append(round(1e3 * (time.process_time() - began_s), 1))
    return spent


def browser_cpu_s() -> float:
    """CPU time so far of this process's children, theirs, and those that ended; without Playwright's own driver."""
    ticks: dict[int, tuple[int, str, int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            name, _, rest = path.read_text().partition("(")[2].rpartition(")")
            fields = rest.split()
            ticks[int(path.parent.name)] = int(fields[1]), name, sum(map(int, fields[11:15]))

    def ours(pid: int) -> bool:
        parent = ticks[pid][0] if pid in ticks else 0
        return parent == os.getpid() or (parent > 1 and ours(parent))

    total = sum(spent for pid, (_, name, spent) in ticks.items() if name != "node" and ours(pid))
    return total / os.sysconf("SC_CLK_TCK")


def figures(visits: list[dict[str, float]]) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: spread([one[name] for one in visits])
        for name in ("first_paint_ms", "first_byte_ms", "browser_cpu_ms")
    }
    return found | {"transferred_bytes": max(one["transferred_bytes"] for one in visits)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=10_000)
    parser.add_argument("--incidents", type=int, default=10_000)
    options = parser.parse_args()
    collect_garbage_rarely()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    painted: list[float] = []
    computed: list[float] = []
    results: dict[str, Any] = {"commit": commit(), "gpus": options.gpus, "open_incidents": options.incidents}
    results["load_average_at_start"] = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        world = LargeFleet(Path(folder), options.gpus, options.incidents)
        server = Server(build_console(world.parts(), Settings()), "127.0.0.1", 0)
        server.start()
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        try:
            visit(browser, f"{server.url}/healthz")  # the browser's own start
            # what this browser takes on this machine for one line of text without style: no page is sooner
            results["a line of text"] = figures([visit(browser, f"{server.url}/healthz") for _ in range(_VISITS)])
            # whoever comes first waits for all of it
            results["nothing_kept"] = visit(browser, server.url)
            for name, path in _PAGES.items():
                url = server.url + path.format(gpu=world.gpus[77].name)
                visits = [visit(browser, url) for _ in range(_VISITS)]
                painted += [one["first_paint_ms"] for one in visits]
                alone = cpu_ms(url)
                computed += [a + one["browser_cpu_ms"] for a, one in zip(alone, visits, strict=True)]
                results[name] = figures(visits) | {"cpu_ms": spread(alone)}
            again = [visit(browser, server.url, again=True) for _ in range(_VISITS)]
            results["fleet, later visit"] = figures(again)
            results["first visits of all pages"] = {
                "first_paint_ms": spread(painted),
                "cpu_ms, server and browser": spread(computed),
            }
            results["load_average_at_end"] = os.getloadavg()[0]
        finally:
            browser.close()
            server.stop()
            world.store.close()
    write("console", results)


if __name__ == "__main__":
    main()
