"""Every page at the three widths that people use, in both themes: nothing overflows, nothing is unreadable."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page
from starlette.routing import Route

from examples.demo import recorded
from nightshift.agent.console.settings import Settings
from nightshift.agent.presentation.tour import STEPS
from nightshift.agent.setup.console import build_console
from nightshift.agent.store.receipts import Receipts
from tests.agent.story import NOW_S, ONSET_S, TOKEN, Story

WIDTHS = ((390, 844), (1280, 800), (1920, 1080))
PATHS = (
    *("/", "/incidents", "/waiting", "/goodput", "/policies", "/kernels"),
    *("/sources", "/audit", "/returns", "/versions", "/jobs", "/jobs/sft/sft-12"),
)
BESIDE = ("/sign-in", "/incidents/INC-999")
"""A form, and a page of an error."""
CUT = """[...document.querySelectorAll("main *")].filter((e) =>
    !e.closest("svg, pre, .hidden, .title, .scroll") && getComputedStyle(e).overflowX !== "visible"
    && e.scrollWidth > e.clientWidth + 1).map((e) => e.outerHTML.slice(0, 80))"""
"""Elements of which a part lies outside their box; tables that scroll, and titles with an ellipsis, may."""


def signed_in(page: Page, url: str) -> None:
    page.goto(f"{url}/sign-in#token={TOKEN}")
    page.wait_for_url(f"{url}/")


def full_story(story: Story) -> list[str]:
    """Paths of every page, of a story in which each has something to show."""
    story.waiting.append((story.finding(), "an alarm as strong as this comes by chance each day, and more"))
    recorded.tell(story.store, NOW_S)
    (decision,) = (one.id for one in Receipts(story.store.database).newest("scheduling", 1))
    return [
        *PATHS,
        *("/power", "/scheduling", "/clusters", "/racks/gpu-n1 to gpu-n2", f"/policies/decisions/{decision}"),
        f"/kernels/runs/{recorded.SEARCH}",
        "/?tour",
        "/kernels/runs?tour",
        f"/incidents/{story.tell()}",
        f"/gpus/{story.gpus[4].name}",
    ]


NO_PAGE = re.compile(r"\.(csv|json|md)$|/evidence/|^/(healthz|readyz|metrics|static|api/v1|mcp)")
"""Answers that no browser shows as a page."""


def test_the_list_of_pages_has_every_route_of_the_console(story: Story) -> None:
    """A page that is added is checked too, or this fails."""
    routes = [
        route
        for route in build_console(story.parts, Settings()).routes
        if isinstance(route, Route) and "GET" in (route.methods or ()) and not NO_PAGE.search(route.path)
    ]
    paths = [path.partition("?")[0] for path in [*full_story(story), *BESIDE]]
    missed = [route.path for route in routes if not any(route.path_regex.match(path) for path in paths)]
    assert len(routes) >= 22
    assert missed == []


def test_the_six_questions_of_a_night_are_answered_on_a_laptop_without_scrolling(
    page: Page, url: str, story: Story
) -> None:
    """What is broken, how sure, its cost by the hour, what is proposed, what happened since, who has it, and the
    button: all within 1280 by 800."""
    path = f"/incidents/{story.tell()}"
    signed_in(page, url)
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto(url + path)
    asked = ("Broken", "How sure", "Cost by the hour", "Proposed", "Since then", "Who has it")
    assert page.locator(".glance dt").all_text_contents() == list(asked)
    places = [*page.locator(".glance dd").all(), page.get_by_role("button", name="Approve"), page.locator("h1")]
    for place in places:
        box = place.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= 800, place
    answers = page.locator(".glance dd b").all_text_contents()
    assert answers[:1] == ["Host memory leak"]
    assert answers[3:4] == ["Restart pod sft/sft-12-4"]
    assert answers[5:] == ["no one yet"]


def test_the_reason_of_an_alarm_without_a_page_is_within_its_box_on_a_phone(
    page: Page, url: str, story: Story
) -> None:
    full_story(story)
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{url}/waiting")
    box = page.get_by_text("an alarm as strong as this").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390


def test_a_post_mortem_is_one_click_away(page: Page, url: str, story: Story) -> None:
    incident = story.tell()
    signed_in(page, url)
    page.goto(f"{url}/incidents/{incident}")
    with page.expect_download() as download:
        page.get_by_role("link", name="Post-mortem draft").click()
    text = Path(download.value.path()).read_text()
    assert text.startswith("# INC")
    assert "## Timeline (UTC)" in text


def test_the_tour_leads_through_pages_that_are_there_and_ends_anywhere(url: str, story: Story) -> None:
    assert story.tell() == "INC-1"
    recorded.tell(story.store, NOW_S)
    path, seen = "/?tour", list[str]()
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=url, headers=headers, follow_redirects=True) as web:
        while path:
            answer = web.get(path)
            assert answer.status_code == 200, path
            (text,) = re.findall(r'<section class="tour".*?</section>', answer.text, re.S)
            assert f'<a href="{answer.url.path}">End the tour</a>' in text
            assert f"{len(seen) + 1} of {len(STEPS)} · " in text
            seen.append(path)
            path = next(iter(re.findall(r'href="([^"]*\?tour)"', text)), "")
        assert seen == [f"{place}?tour" for place, _, _ in STEPS]
        assert 'class="tour"' not in web.get("/").text


@pytest.mark.full
@pytest.mark.parametrize("theme", ["dark", "light"])
def test_no_page_overflows_breaks_a_rule_of_axe_or_logs_an_error(
    page: Page, url: str, story: Story, theme: str
) -> None:
    paths, said = full_story(story), list[str]()
    # a browser logs that the page of an error answers 404
    page.on("console", lambda m: None if m.location["url"].endswith(BESIDE[1]) else said.append(m.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
    signed_in(page, url)
    for path in [*paths, *BESIDE]:
        for width, height in WIDTHS:
            page.set_viewport_size({"width": width, "height": height})
            answer = page.goto(url + path)
            assert answer is not None
            assert (answer.status == 200) == (path != BESIDE[1]), path
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (path, width)
            assert page.evaluate(CUT) == [], (path, width)
            found = Axe().run(page).response["violations"]
            assert [(v["id"], v["nodes"][0]["html"]) for v in found] == [], (path, width)
    assert said == []


def test_charts_show_onset_reference_peers_and_annotations_and_zoom_together(
    page: Page, url: str, story: Story
) -> None:
    """uPlot under the page's own policy: a drag over one chart zooms all; the drawn charts stay for print."""
    incident, said = story.tell(), list[str]()
    page.on("console", lambda message: said.append(message.text))
    with httpx.Client(base_url=url) as web:
        (plot,) = web.get(f"/incidents/{incident}/signals.json").json()["charts"]
        gpu = web.get(f"/gpus/{story.gpus[4].name}/signals.json").json()["charts"]
    assert plot["onset"] == ONSET_S
    assert plot["reference"] == 18e9
    assert [word for _, word in plot["marks"]] == ["open", "diagnosed", "awaiting approval"]
    power = next(chart for chart in gpu if chart["unit"] == "W")
    assert power["peers"]["count"] == 7
    low, median, high = (np.array(power["peers"][name]) for name in ("low", "median", "high"))
    assert ((low <= median) & (median <= high)).all()
    page.goto(f"{url}/gpus/{story.gpus[4].name}")
    page.wait_for_selector(".plotted canvas")
    spans = "document.querySelector('[data-signals]').plots.map((one) => one.scales.x.max - one.scales.x.min)"
    before = page.evaluate(spans)
    box = page.locator(".u-over").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 40, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 120, box["y"] + 60, steps=4)
    page.mouse.up()
    after = page.evaluate(spans)
    assert len(after) == len(gpu) > 1
    assert all(0 < now < 0.5 * then for now, then in zip(after, before, strict=True))
    page.get_by_role("button", name="All").click()
    assert page.evaluate(spans) == before
    page.emulate_media(media="print")
    assert page.locator("figure svg").first.is_visible()
    assert not page.locator(".plot").first.is_visible()
    assert said == []
