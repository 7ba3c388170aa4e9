"""How soon the console's front page is painted over a large fleet, and what it weighs on the wire.

    python -m benchmarks.console [--gpus 10000] [--incidents 5000]

The console's own server on loopback and a real Chromium: first paint by the Performance API
(first-contentful-paint, from the start of the navigation, so the server's work is in it), bytes as they were
transferred (compressed, with headers), of the page and of everything that it loads. A first visit has an empty
browser cache; a later one has the style sheet and scripts.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import structlog
from playwright.sync_api import Browser, sync_playwright

from benchmarks.console_fleet import LargeFleet
from benchmarks.report import write
from benchmarks.waiting_incidents import spread
from nightshift.agent.console.server import Server
from nightshift.agent.console.settings import Settings
from nightshift.agent.setup.console import build_console

_VISITS = 12
_WEIGHED = """() => performance.getEntriesByType("navigation").concat(performance.getEntriesByType("resource"))
  .map(entry => [entry.name, entry.transferSize])"""
_PAINTED = """() => new Promise(done => {
  const read = () => performance.getEntriesByName("first-contentful-paint")[0]?.startTime;
  if (read()) return done(read());
  new PerformanceObserver(() => done(read())).observe({type: "paint", buffered: true});
})"""


def visit(browser: Browser, url: str, *, again: bool = False) -> dict[str, float]:
    """One visit with an empty cache, or the second one with the first one's cache."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
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
            "transferred_bytes": float(weight),
        }
    finally:
        context.close()


def figures(visits: list[dict[str, float]]) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: spread([one[name] for one in visits]) for name in ("first_paint_ms", "first_byte_ms")
    }
    return found | {"transferred_bytes": max(one["transferred_bytes"] for one in visits)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=10_000)
    parser.add_argument("--incidents", type=int, default=5_000)
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    results: dict[str, Any] = {"gpus": options.gpus, "incidents": options.incidents}
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        world = LargeFleet(Path(folder), options.gpus, options.incidents)
        server = Server(build_console(world.parts(), Settings()), "127.0.0.1", 0)
        server.start()
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        try:
            visit(browser, f"{server.url}/healthz")  # the browser's own start
            time.sleep(12.0)  # nothing is kept any more: whoever comes first waits for all of it
            results["nothing_kept"] = visit(browser, server.url)
            results["first_visit"] = figures([visit(browser, server.url) for _ in range(_VISITS)])
            results["later_visit"] = figures([visit(browser, server.url, again=True) for _ in range(_VISITS)])
            rack = f"{server.url}/racks/r7"
            results["rack"] = figures([visit(browser, rack) for _ in range(_VISITS)])
            listed = f"{server.url}/incidents?state=open&q=leak"
            results["search"] = figures([visit(browser, listed) for _ in range(_VISITS)])
        finally:
            browser.close()
            server.stop()
            world.store.close()
    write("console", results)


if __name__ == "__main__":
    main()
