"""The console for everybody: axe-core finds nothing on any page in dark and light, keys alone do, a phone does."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from benchmarks.console_fleet import LargeFleet
from nightshift.agent.approvals.gate import NIGHTSHIFT
from nightshift.agent.approvals.kernel_gate import KernelGate, promotion
from nightshift.agent.approvals.policy_gate import PolicyGate
from nightshift.agent.console.server import Server
from nightshift.agent.console.settings import Settings
from nightshift.agent.incidents.suppression import Suppressor
from nightshift.agent.setup.console import build_console
from nightshift.agent.store.incident import IncidentState
from nightshift.agent.store.receipts import Receipts
from nightshift.controllers.guard import MaintenanceWindow
from tests.agent.killed_policy import a_receipt
from tests.agent.story import NOW_S, TOKEN, Story
from tests.kernel_certificates import RECORD

RULES = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}}
ARTEFACTS = os.environ.get("NIGHTSHIFT_ARTEFACTS", "")
"""A folder that screenshots are kept in; empty: none are."""
PAGES = ("/", "/incidents?q=leak&severity=warning", "/incidents/INC-1", "/gpus/{gpu}", "/policies",
         "/policies/decisions/0000000000000001", "/kernels", "/waiting", "/returns", "/sources",
         "/versions", "/audit", "/sign-in", "/incidents/INC-99")  # fmt: skip
FEW = ("/", "/incidents/INC-1")
PHONE = {"width": 375, "height": 740}


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    story = Story(tmp_path_factory.mktemp("story"))
    story.tell()
    story.store.open_incident("another", [story.finding(subject=story.gpus[9])])
    story.waiting.append((story.finding(), "the false pages of this week are spent"))
    story.store.acknowledge("INC-1", "Earline (pagerduty)", "taken on in pagerduty")
    evidence: dict[str, str | float] = {"verdict": "faster", "speed-up": "1.31 (1.27 to 1.35)", "device": "H200"}
    plan = promotion("prod-1", "c" * 64, "rmsnorm_4096", "canary", evidence, NOW_S)
    KernelGate(story.gate, story.store, story.clock).propose(plan, NIGHTSHIFT, RECORD)
    policies = PolicyGate(story.gate, story.store, story.clock, "prod-1")
    policies.stand("power", "descent@4f2a", "4f" * 32)
    policies.look("power", [], 0.0)
    Receipts(story.store.database).keep(a_receipt(1, NOW_S, "power"), chance=0.5, treated=True)
    yield story
    story.store.close()


@pytest.fixture(scope="module")
def url(story: Story) -> Iterator[str]:
    covers = MaintenanceWindow(subjects=("gpu:*",), start_s=0.0, end_s=NOW_S + 3600, owner="ops", reason="cooling")
    suppressor = Suppressor(story.store, story.clock, lambda: (covers,), story.inventory)
    server = Server(build_console(replace(story.parts, suppressor=suppressor), Settings()), "127.0.0.1", 0)
    server.start()
    yield server.url
    server.stop()


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A console over 1,024 GPUs: what is drawn by rack."""
    world = LargeFleet(tmp_path_factory.mktemp("large"), 1024, 30)
    server = Server(build_console(world.parts(), Settings()), "127.0.0.1", 0)
    server.start()
    yield server.url
    server.stop()
    world.store.close()


def problems(page: Page) -> list[str]:
    """What axe-core finds: rule, and the first element that breaks it."""
    found: list[dict[str, Any]] = Axe().run(page, options=RULES).response["violations"]
    return [f"{v['id']}: {v['nodes'][0]['html'][:160]} {v['nodes'][0]['failureSummary'][:300]}" for v in found]


def keep(page: Page, name: str) -> None:
    if ARTEFACTS:
        Path(ARTEFACTS).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(ARTEFACTS) / f"{name}.png", full_page=True)


def look(
    browser: Browser, url: str, story: Story, paths: tuple[str, ...], scheme: str, size: dict[str, int]
) -> list[str]:
    context = browser.new_context(color_scheme=scheme, viewport=size, reduced_motion="reduce")  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(f"{url}/sign-in#token={TOKEN}")
    page.wait_for_url(f"{url}/")
    found = []
    for path in paths:
        page.goto(url + path.replace("{gpu}", story.gpus[4].name))
        name = re.sub(r"\W+", "-", path.partition("?")[0]).strip("-") or "fleet"
        keep(page, f"{name}-{scheme}-{size['width']}")
        found += [f"{path} {scheme}: {problem}" for problem in problems(page)]
        if size is PHONE and page.evaluate("document.documentElement.scrollWidth > window.innerWidth"):
            found.append(f"{path}: wider than the phone")
    context.close()
    return found


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_the_pages_of_a_night_have_no_barrier(chromium: Browser, url: str, story: Story, scheme: str) -> None:
    assert look(chromium, url, story, FEW, scheme, {"width": 1280, "height": 900}) == []


@pytest.mark.full
@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_no_page_has_a_barrier(chromium: Browser, url: str, story: Story, scheme: str) -> None:
    assert look(chromium, url, story, PAGES, scheme, {"width": 1280, "height": 900}) == []


@pytest.mark.full
@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_no_page_has_a_barrier_on_a_phone(chromium: Browser, url: str, story: Story, scheme: str) -> None:
    assert look(chromium, url, story, PAGES, scheme, PHONE) == []


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_a_fleet_by_rack_has_no_barrier(chromium: Browser, large: str, scheme: str) -> None:
    context = chromium.new_context(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
    page = context.new_page()
    for path in ("/", "/racks/r3"):
        page.goto(large + path)
        keep(page, f"{'racks' if path == '/' else 'rack'}-{scheme}")
        assert problems(page) == []
    context.close()


def test_a_large_fleet_is_told_by_rack_and_leads_to_the_gpu(page: Page, large: str) -> None:
    """Down from the cluster to a GPU by links that have names, and back."""
    page.goto(large)
    expect(page.locator(".tiles")).to_contain_text("1024GPUs on 128 nodes")
    racks = page.get_by_role("link", name=re.compile(r"^r\d+ 64 GPUs on 8 nodes"))
    expect(racks).to_have_count(16)
    assert page.locator(".rack path").count() < 100, "a rack is a few paths, however many cells it has"
    page.get_by_role("link", name=re.compile(r"^r3 64 GPUs on 8 nodes")).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("r3")
    expect(page.locator(".node")).to_have_count(8)
    page.locator("a.cell.ok").first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("GPU-")


def test_the_list_is_searched_filtered_and_paged(page: Page, large: str) -> None:
    page.goto(f"{large}/incidents")
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("inc-7")
    page.keyboard.press("Enter")
    expect(page.locator("a.incident")).to_have_count(1)
    page.goto(f"{large}/incidents?state=open&severity=critical")
    expect(page.locator("a.incident")).to_have_count(10)
    page.goto(f"{large}/incidents?q=memory+leak")
    assert page.locator("a.incident").count() == 8
    page.goto(f"{large}/incidents?q=%25")
    expect(page.locator("a.incident")).to_have_count(0)


def test_a_person_decides_with_keys_alone(page: Page, url: str, story: Story) -> None:
    """From the front page to a rejected plan by Tab and Enter; what has the focus can be seen."""
    name = story.tell()
    page.goto(f"{url}/sign-in#token={TOKEN}")
    page.wait_for_url(f"{url}/")
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    for _ in range(40):
        page.keyboard.press("Tab")
        if name in (page.evaluate("document.activeElement.textContent") or ""):
            break
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    page.keyboard.press("Enter")
    page.wait_for_url(f"{url}/incidents/{name}")
    page.keyboard.press("a")
    expect(page.get_by_role("button", name="Approve")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.type("the owner will fix it")
    page.keyboard.press("Enter")
    expect(page.locator("#said")).to_contain_text("Rejected")
    assert story.store.incident(name).state is IncidentState.MONITORING


def test_the_focus_stays_when_the_page_renews_itself(page: Page, url: str) -> None:
    page.goto(f"{url}/incidents")
    page.locator("#row-INC-2").focus()
    page.evaluate("document.querySelector('#row-INC-2').dataset.old = 'yes'")
    expect(page.locator("#row-INC-2[data-old]")).to_have_count(0, timeout=120_000)
    expect(page.locator("#row-INC-2")).to_be_focused()


def test_a_screen_reader_hears_what_colours_say(page: Page, url: str, story: Story) -> None:
    """Severity, state, suppression and each chart have words; landmarks and headings make an outline."""
    page.goto(f"{url}/incidents")
    row = page.get_by_role("link", name=re.compile("INC-2"))
    expect(row).to_have_accessible_name(re.compile("warning .*suppressed ?: maintenance: cooling"))
    page.goto(f"{url}/incidents/INC-1")
    expect(page.locator(".glance").get_by_text("Earline (pagerduty)", exact=True)).to_be_visible()
    assert page.get_by_role("main").count() == 1
    assert page.get_by_role("heading", level=1).count() == 1
    for heading in ("Signals", "Why", "Evidence", "Timeline"):
        expect(page.get_by_role("region", name=heading)).to_be_visible()
    for chart in page.locator("svg.chart").all():
        assert chart.get_attribute("role") == "img"
        assert chart.get_attribute("aria-label")
