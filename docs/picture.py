"""Takes the README's picture from the console: `python docs/picture.py` writes docs/images/incident.png.

The picture keeps the SHA-256 of the page and the style sheet that it shows. A test renders the page again and
compares (`tests/test_picture.py`), so a picture of an older console fails, whatever fonts a machine has.
"""

from __future__ import annotations

import hashlib
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from nightshift.agent.console.server import Server
from nightshift.agent.console.settings import Settings
from nightshift.agent.console.site import STATIC
from nightshift.agent.rca.evidence import gather
from nightshift.agent.rca.rules import diagnose
from nightshift.agent.setup.console import build_console
from tests.agent.story import NOW_S, TOKEN, Story

PICTURE = Path(__file__).resolve().parent / "images" / "incident.png"
SHOWS = "nightshift.page.sha256"
_CHANGES = re.compile(r'name="form" value="[^"]*"')
"""What is another at each start: the token of the forms."""


@contextmanager
def console() -> Iterator[tuple[str, str]]:
    """(address, path of the page): an incident that the rules diagnosed, with a plan that waits for approval."""
    with tempfile.TemporaryDirectory() as folder:
        story = Story(Path(folder))
        facts = {"growth_bytes": 2.1e9, "lasted_s": 900.0, "slope_bytes_per_h": 8.6e9, "peers": 7.0}
        facts |= {"peer_growth_bytes": 4.1e7, "eta_s": 7_900.0}
        summary = "Anonymous memory climbs: 1.96 GiB in 15 min, by now +8.01 GiB/h"
        found = replace(story.finding(), facts=facts, summary=summary)
        incident = story.store.open_incident("Host memory leak", [found])
        told = diagnose([found], gather([found], story.history, story.inventory, NOW_S), story.inventory)
        story.store.save_diagnosis(story.store.incident(incident), told, by="diagnose")
        why = "a pod restart ends the leak; the node is healthy"
        story.store.save_plan(story.store.incident(incident), story.action(id=f"{incident}-1"), why, by="plan")
        server = Server(build_console(story.parts, Settings()), "127.0.0.1", 0)
        server.start()
        try:
            yield server.url, f"/incidents/{incident}"
        finally:
            server.stop()
            story.store.close()


def fingerprint(url: str, path: str) -> str:
    """The SHA-256 of what the picture shows: the page to a signed-in person, and its style sheet."""
    with httpx.Client(base_url=url) as web:
        web.post("/sign-in", data={"token": TOKEN})
        page = _CHANGES.sub("", web.get(path).text)
    return hashlib.sha256(page.encode() + (STATIC / "console.css").read_bytes()).hexdigest()


def main() -> None:
    from PIL import Image, PngImagePlugin
    from playwright.sync_api import sync_playwright

    with console() as (url, path), sync_playwright() as play:
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme="light")
        page.goto(f"{url}/sign-in#token={TOKEN}")
        page.wait_for_url(f"{url}/")
        page.goto(url + path)
        page.screenshot(path=str(PICTURE), animations="disabled")
        browser.close()
        kept = PngImagePlugin.PngInfo()
        kept.add_text(SHOWS, fingerprint(url, path))
        Image.open(PICTURE).convert("P", palette=Image.Palette.ADAPTIVE, colors=128).save(
            PICTURE, optimize=True, pnginfo=kept
        )


if __name__ == "__main__":
    main()
