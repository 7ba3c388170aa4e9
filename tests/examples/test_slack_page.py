"""The demo's Slack: a page that shows what Slack would, whose buttons decide through the signed request URL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from playwright.sync_api import Page, expect

from nightshift.agent.console.server import Server
from nightshift.agent.store.incident import IncidentState
from tests.agent.incidents import a_finding
from tests.agent.notify.slack.chat import ANN, CHANNEL, Chat, a_chat, started, until


@pytest.fixture
def chat(tmp_path: Path) -> Iterator[Chat]:
    with a_chat(tmp_path, f"sqlite:///{tmp_path}/s.sqlite", mode="http") as made:
        site = FastAPI()
        made.slack.add_to(site)
        server = Server(site, "127.0.0.1", 0)
        server.start()
        made.stand_in.shown = (CHANNEL, ANN, f"{server.url}/slack/events")
        with started(made):
            yield made
        server.stop()


def test_a_reader_of_the_page_sees_the_message_and_approves_by_its_button(page: Page, chat: Chat) -> None:
    name = chat.opened()
    until(lambda: [m for m in chat.messages() if m["blocks"]], "a message")
    page.goto(chat.stand_in.url)
    expect(page.locator("article").first).to_contain_text("restart the job once: team/job")
    page.get_by_role("button", name="Approve").click()
    until(lambda: chat.store.incident(name).state is IncidentState.APPROVED, "approved")
    expect(page.locator("aside")).to_contain_text("Approved: restart_job")


def test_a_rejection_goes_through_the_dialog(page: Page, chat: Chat) -> None:
    name = chat.opened()
    until(lambda: [m for m in chat.messages() if m["blocks"]], "a message")
    page.goto(chat.stand_in.url)
    page.get_by_role("button", name="Reject").click()
    until(lambda: chat.store.incident(name).state is IncidentState.MONITORING, "rejected")
    assert "rejected on the stand-in's page" in chat.store.incident(name).history[-1].note


def test_text_from_outside_is_shown_and_a_form_from_elsewhere_presses_nothing(page: Page, chat: Chat) -> None:
    name = chat.store.open_incident("<script>document.title='owned'</script>", [a_finding()])
    until(chat.messages, "a message")
    page.goto(chat.stand_in.url)
    assert page.title() == "#gpu-oncall"
    assert page.locator("script").count() == 0
    ts = chat.card(name)["ts"]
    url = f"{chat.stand_in.url}/press/{CHANNEL}/{ts}/approve"
    assert httpx.post(url, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 404
    assert httpx.post(url).status_code == 404
