"""Nights on which policy approves what repairs: `python -m benchmarks.repaired_nights`.

The demo's world and daemon, with PagerDuty and Slack as stand-ins on loopback. The policy approves automatically
each kind of action that may be; a person approves the others. Both couriers
compare at every tick, so that simulated time cannot outrun a page.

Counted: incidents in the page lane that an action of policy repaired (bar: none pages, and the ticket of each says
why); the others, of which an action only contained the fault or a person approved it (bar: each pages); and faults
of the script that were missed.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from itertools import count, islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.detect_held_out import commit
from benchmarks.report import write
from examples.demo.run import Demo
from examples.demo.scenario import FaultKind, draw
from examples.demo.score import lane_of_incident
from examples.pager_stand_in.server import StandIn
from examples.pager_stand_in.services import ROUTING_KEY
from nightshift.agent.approvals.policy import ApprovalSettings, automatic_kinds
from nightshift.agent.notify.courier import Courier
from nightshift.agent.notify.slack.card import waiting_words
from nightshift.agent.store.incident import POLICY, Cause, Incident
from nightshift.controllers.action import ActionKind, ApprovalRule, traits_of
from nightshift.detectors.alarms.lanes import Lane

FIRST_SEED, NIGHTS, GPUS = 4401, 2, 8
"""The first nights from this seed on in which the loss of a job of so many GPUs diverges: that would page."""
WORDS = waiting_words(0.0).partition(".")[0]


def seeds() -> list[int]:
    def pages(seed: int) -> bool:
        script = draw(seed)
        diverging = [fault for fault in script.faults if fault.kind is FaultKind.DIVERGENCE]
        return any(len(script.jobs[fault.job].gpus) >= GPUS for fault in diverging)

    return list(islice(filter(pages, count(FIRST_SEED)), NIGHTS))


def policy() -> dict[str, Any]:
    """Settings under which every kind that may be automatic is."""
    every = dict.fromkeys(ActionKind, ApprovalRule.AUTOMATIC)
    kinds = automatic_kinds(ApprovalSettings(kinds=every))
    return {
        "approval": {"kinds": {str(kind): "automatic" for kind in sorted(kinds)}},
        "autonomy": {"required": False},
    }


def night(seed: int, folder: Path) -> dict[str, Any]:
    """One night: each incident in the page lane, and what became of the script's faults."""
    said: set[str] = set()
    paged_s: dict[str, float] = {}

    with StandIn() as pager, patch.object(Courier, "start"):

        def compare(demo: Demo) -> None:
            """Both couriers look; what the pager got and what Slack shows is read."""
            outlets, slack, chat = demo.app.doors.outlets, demo.app.doors.slack, demo.stand_in
            if outlets is None or slack is None or chat is None or not outlets.courier.leads():
                return
            outlets.courier.once()
            slack.courier.once()
            for key in pager.pages():
                paged_s.setdefault(key.split("/")[2], demo.world.now_s)
            channel = chat.shown[0] if chat.shown else ""
            cards = [json.dumps(card) for card in chat.workspace.messages(channel)]
            waiting = [card for card in cards if WORDS in card]
            names = [incident.id for incident in demo.app.store.open_incidents()]
            said.update(name for name in names if any(re.search(rf"\b{name}\b", card) for card in waiting))

        (folder / "pd").write_text(ROUTING_KEY)
        outlet = {"routing_key_file": str(folder / "pd"), "url": pager.url}
        pages = [{"outlet": "pagerduty", "severities": ["critical", "warning"]}]
        settings = policy() | {"outlets": {"pages": pages, "pagerduty": outlet}}
        demo = Demo(seed, folder, approve=True, slack=True, watch=compare, settings=settings)
        try:
            report = demo.run()
        finally:
            demo.close()
        due = [incident for incident in demo.incidents() if lane_of_incident(incident) is Lane.PAGE]
        return {
            "seed": seed,
            "faults": len(report.rows),
            "missed": sum(row.incident is None for row in report.rows),
            "problems": [*report.problems, *(p for row in report.rows for p in row.problems)],
            "page_lane": [line(incident, said, paged_s) for incident in due],
            "tickets_paged": len(paged_s.keys() - {incident.id for incident in due}),
        }


def line(incident: Incident, said: set[str], paged_s: dict[str, float]) -> dict[str, Any]:
    """What became of one incident; times in seconds after it was opened."""
    approvals = [step.by for step in incident.history if step.cause == Cause.APPROVED]
    confirmed_s = next((step.at_s for step in incident.history if step.cause == Cause.CONFIRMED), None)
    repairs = incident.action is not None and not traits_of(incident.action.kind).contains
    return {
        "faults": sorted({str(stored.finding.fault) for stored in incident.findings}),
        "action": str(incident.action.kind) if incident.action else None,
        "repaired_by_policy": repairs and confirmed_s is not None and set(approvals) == {POLICY},
        "confirmed_after_s": None if confirmed_s is None else confirmed_s - incident.opened_s,
        "ticket_gave_the_reason": incident.id in said,
        "paged_after_s": paged_s[incident.id] - incident.opened_s if incident.id in paged_s else None,
    }


def main() -> None:
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    at, nights = commit(), []
    for seed in seeds():
        with tempfile.TemporaryDirectory() as folder:
            nights.append(night(seed, Path(folder)))
    write("repaired_nights", {"commit": at, "nights": nights})


if __name__ == "__main__":
    main()
