"""How soon people are told in Slack, how soon a click acts, and what a storm of findings becomes.

    python -m benchmarks.chat [--storm 10000]

A store, the lifecycle, the simulated cluster and the Slack room of the daemon, against the stand-in for Slack over
real HTTP and WebSocket on loopback: what is measured is ours, the network and Slack itself come on top.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from benchmarks.report import write
from benchmarks.waiting_incidents import diagnose, end, finding, plan, reach, spread
from examples.slack_stand_in.server import StandIn
from examples.slack_stand_in.workspace import TEAM
from nightshift.agent.approvals.gate import Gate
from nightshift.agent.approvals.people import Directory
from nightshift.agent.approvals.people import Settings as PeopleSettings
from nightshift.agent.approvals.policy import ApprovalSettings, Role
from nightshift.agent.clock import WallClock
from nightshift.agent.incidents.lifecycle import Lifecycle
from nightshift.agent.incidents.stages import LifecycleSettings, StageParts
from nightshift.agent.notify.slack.settings import Settings
from nightshift.agent.setup.channels import build_slack
from nightshift.agent.store.incident import IncidentState
from nightshift.agent.store.incident_store import Store
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.controllers.actuators.simulated import SimulatedActuator

ANN, CHANNEL, INCIDENTS = "U1", "C1", 40


def wait(true: Callable[[], Any], timeout_s: float = 60.0) -> Any:
    deadline = time.perf_counter() + timeout_s
    while not (value := true()):
        if time.perf_counter() > deadline:
            raise TimeoutError
        time.sleep(0.002)
    return value


class Room:
    """A fresh store with everything that turns an incident into messages, and a click into an action."""

    def __init__(self, folder: Path, stand_in: StandIn, storm_after: int) -> None:
        clock = WallClock()
        folder.mkdir()
        self.stand_in = stand_in
        stand_in.workspace.channels[CHANNEL] = []
        self.store = Store(f"sqlite:///{folder}/store.sqlite", clock)
        self.gate = Gate(self.store, ApprovalSettings(), clock)
        actuator = SimulatedActuator(folder / "cluster.sqlite")
        actuator.cluster.add(Subject(SubjectKind.JOB, "team/job"))
        parts = StageParts(
            self.store, self.gate, clock, diagnose, plan, lambda _: actuator, LifecycleSettings(quiet_s=0.0)
        )
        self.lifecycle = Lifecycle(parts)
        (folder / "bot").write_text("xoxb-1")
        (folder / "app").write_text("xapp-1")
        settings = Settings(
            enabled=True,
            bot_token_file=folder / "bot",
            app_token_file=folder / "app",
            workspace=TEAM,
            channel=CHANNEL,
            api_url=stand_in.api_url,
            storm_after=storm_after,
        )
        self.slack = build_slack(
            settings,
            store=self.store,
            gate=self.gate,
            clock=clock,
            directory=Directory(PeopleSettings(roles={"ann@example.org": Role.APPROVER})),
            leads=lambda: self.lifecycle.leads,
            count=lambda what, outcome: None,
            wake=self.lifecycle.wake,
        )

    def __enter__(self) -> Room:
        self.lifecycle.start()
        self.slack.start()
        wait(lambda: self.stand_in.connected)
        return self

    def __exit__(self, *_: object) -> None:
        self.slack.stop()
        self.lifecycle.close()
        self.store.close()

    def card(self, name: str) -> dict[str, Any] | None:
        key = f"{name}/card"
        cards = self.stand_in.workspace.messages(CHANNEL)
        return next((m for m in cards if m["metadata"]["event_payload"]["key"] == key), None)


def latency(room: Room) -> dict[str, Any]:
    told, started = [], []
    for number in range(INCIDENTS):
        began = time.perf_counter()
        name = room.store.open_incident(f"leak {number}", [finding(number)])
        room.lifecycle.wake()
        room.slack.wake()
        wait(lambda name=name: room.card(name))
        told.append(time.perf_counter() - began)
        reach(room.store, name, IncidentState.AWAITING_APPROVAL)
        wait(lambda name=name: any(b["type"] == "actions" and b["elements"][0]["action_id"] == "approve"
                                   for b in (room.card(name) or {"blocks": []})["blocks"]))  # fmt: skip
        card = room.card(name)
        assert card is not None
        began = time.perf_counter()
        room.stand_in.click(ANN, CHANNEL, card["ts"], "approve")
        reach(room.store, name, IncidentState.CONFIRMING)
        started.append(time.perf_counter() - began)
        end(room.store, name)
        room.lifecycle.wake()
        reach(room.store, name, IncidentState.RESOLVED)
    return {"opened_to_first_message_s": spread(told), "click_to_action_done_s": spread(started)}


def storm(room: Room, count: int) -> dict[str, Any]:
    """`count` findings in under a minute, each an incident of its own: the worst that correlation can hand over."""
    began = time.perf_counter()
    names = []
    for number in range(count):
        one = replace(finding(number), summary=f"Xid 79 on GPU-{number}")
        names.append(room.store.open_incident(f"Xid 79 on GPU-{number}", [one]))
    opened_s = time.perf_counter() - began
    wait(lambda: not room.slack.courier._ledger.news("card", time.time()), 900)
    settled_s = time.perf_counter() - began
    time.sleep(6)
    return {
        "findings": count,
        "opened_in_s": round(opened_s, 1),
        "all_accounted_for_after_s": round(settled_s, 1),
        "messages": len(room.stand_in.workspace.channels[CHANNEL]),
        "incidents_open": len(room.store.open_incidents()),
        "lost": count - len(set(names) & {row.id for row in room.store.open_incidents()}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--storm", type=int, default=10_000)
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    logging.disable(logging.WARNING)
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, StandIn() as stand_in:
        stand_in.workspace.add_user(ANN, "ann@example.org")
        with Room(Path(folder) / "latency", stand_in, 50) as room:
            results |= latency(room)
        with Room(Path(folder) / "storm", stand_in, 3) as room:
            results["storm"] = storm(room, options.storm)
    write("chat", results)


if __name__ == "__main__":
    main()
