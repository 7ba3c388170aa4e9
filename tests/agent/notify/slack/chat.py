"""A store, a gate and a Slack on loopback for the tests of the chat."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from examples.slack_stand_in.server import StandIn
from examples.slack_stand_in.workspace import TEAM, Answer
from nightshift.agent.approvals.gate import Gate
from nightshift.agent.approvals.people import Directory
from nightshift.agent.approvals.people import Settings as PeopleSettings
from nightshift.agent.approvals.policy import ApprovalSettings, Role
from nightshift.agent.incidents.suppression import Suppressor
from nightshift.agent.notify.slack import service
from nightshift.agent.notify.slack.service import Slack
from nightshift.agent.notify.slack.settings import Settings
from nightshift.agent.setup.channels import build_slack
from nightshift.agent.store.incident import Cause
from nightshift.agent.store.incident_store import Store
from nightshift.controllers.action import Action
from nightshift.detectors.base import Finding, State
from tests.agent.incidents import ManualClock, a_diagnosis, a_finding, an_action

CHANNEL = "C1"
ANN, VIC, BOB = "U1ANN", "U2VIC", "U3BOB"
PATIENCE_S = 60.0


def until(true: Callable[[], Any], what: str) -> Any:
    """Waits for something to become true, and returns it."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        value = true()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"never: {what}")


@dataclass
class Chat:
    """One daemon's part of the chat, with the Slack that it talks to."""

    store: Store
    gate: Gate
    clock: ManualClock
    slack: Slack
    stand_in: StandIn

    def opened(self, *found: Finding) -> str:
        """An incident that waits for approval of its plan."""
        name = self.store.open_incident("leak", found or [a_finding()])
        self.store.save_diagnosis(self.store.incident(name), a_diagnosis(), by="rules")
        self.store.save_plan(self.store.incident(name), self.plan(name), "least disruptive", by="mitigate")
        return name

    def plan(self, name: str, attempt: int = 1) -> Action:
        return an_action(f"{name}-{attempt}")

    def recovered(self, name: str) -> None:
        """The approved action is carried out and the signal clears."""
        for cause in (Cause.INTENT_STORED, Cause.ACTION_DONE):
            self.store.move(name, cause, "lifecycle", "", self.store.incident(name).version)
        self.clock.advance(60)
        finding = self.store.incident(name).findings[0].finding
        self.store.update_finding(name, replace(finding, state=State.CLEAR))
        self.store.move(name, Cause.CONFIRMED, "lifecycle", "clear for 120 s", self.store.incident(name).version)

    def messages(self, channel: str = CHANNEL) -> list[Answer]:
        return self.stand_in.workspace.messages(channel)

    def card(self, name: str, channel: str = CHANNEL) -> Answer:
        """The incident's message."""
        key = f"{name}/card"
        (found,) = [m for m in self.messages(channel) if m["metadata"]["event_payload"]["key"] == key]
        return found

    def thread(self, name: str, channel: str = CHANNEL) -> list[str]:
        """What the incident's thread says, as text."""
        return [text_of(m) for m in self.stand_in.workspace.thread(channel, self.card(name, channel)["ts"])]

    def whispers(self) -> list[str]:
        """What single people were told, as text."""
        return [text_of(m) for m in self.stand_in.workspace.whispers]

    def once(self) -> None:
        """One comparison of the chat with the incidents."""
        self.slack.courier.once()


def text_of(message: Answer) -> str:
    """Everything that a person reads in a message."""
    parts: list[str] = []

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            said = value.get("text")
            if isinstance(said, str):
                parts.append(said)
            elif value.get("type") in ("user", "usergroup"):
                parts.append(f"@{value.get('user_id') or value.get('usergroup_id')}")
            for key, item in value.items():
                if key != "text" or isinstance(item, dict):
                    walk(item)
        elif isinstance(value, list):
            for item in value:
                walk(item)

    walk(message["blocks"])
    return "".join(parts) or str(message["text"])


def buttons_of(message: Answer) -> list[str]:
    return [e["action_id"] for b in message["blocks"] if b["type"] == "actions" for e in b["elements"]]


def slack_settings(folder: Path, stand_in: StandIn, **more: Any) -> Settings:
    """Settings of a Slack that is the stand-in; secrets in files of `folder`."""
    for name, text in (("bot", "xoxb-1"), ("app", "xapp-1"), ("signing", stand_in.signing_secret)):
        (folder / name).write_text(text)
    values = {
        "enabled": True,
        "bot_token_file": folder / "bot",
        "app_token_file": folder / "app",
        "signing_secret_file": folder / "signing",
        "workspace": TEAM,
        "channel": CHANNEL,
        "api_url": stand_in.api_url,
    }
    return Settings.model_validate(values | more)


@contextmanager
def a_chat(folder: Path, url: str, **more: Any) -> Iterator[Chat]:
    """A chat whose threads are not running: `once` compares, `started` runs it."""
    people = PeopleSettings(
        roles={"ann@example.org": Role.APPROVER, "bob@example.org": Role.APPROVER},
        **{name: more.pop(name) for name in ("owners",) if name in more},
    )
    clock = ManualClock()
    store = Store(url, clock)
    gate = Gate(store, more.pop("policy", ApprovalSettings()), clock)
    suppressor = Suppressor(store, clock, more.pop("windows", lambda: ()), more.pop("inventory", None), gate)
    patient = patch.object(service, "TIMEOUT_S", 30.0)  # a busy machine is no silent Slack
    with StandIn() as stand_in, patient:
        for channel in (CHANNEL, "C2", "C3"):
            stand_in.workspace.channels[channel] = []
        stand_in.workspace.add_user(ANN, "ann@example.org")
        stand_in.workspace.add_user(BOB, "Bob@Example.org")
        stand_in.workspace.add_user(VIC, "vic@example.org")
        counted: list[tuple[str, str]] = []
        pager = more.pop("pager", lambda incident_id: "")
        slack = build_slack(
            slack_settings(folder, stand_in, **more),
            store=store,
            gate=gate,
            clock=clock,
            directory=Directory(people),
            leads=lambda: True,
            suppressor=suppressor,
            pager=pager,
            count=lambda what, outcome: counted.append((what, outcome)),
        )
        try:
            yield Chat(store, gate, clock, slack, stand_in)
        finally:
            store.close()


@contextmanager
def started(chat: Chat) -> Iterator[Chat]:
    """The chat with its threads, connected to the stand-in."""
    chat.slack.start()
    try:
        until(lambda: not chat.slack.problem, "connected")
        yield chat
    finally:
        chat.slack.stop()
