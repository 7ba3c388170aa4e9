"""Tickets of a daemon that is killed with SIGKILL at each arrow: `python -m benchmarks.tickets`.

Per system (stand-ins that refuse what Jira Cloud, Jira Data Center, ServiceNow and a webhook's receiver refuse, our
own) and per way of a ticket (opened; updated; closed; opened again) every write of the ledger is an arrow, killed
before and after, and every request is one, killed before the system works on it, after it, and, with the request
still on its way, after its client is dead. Then a new process continues. Counted: tickets that are lost (the
incident has none, or one with other contents) and twice (the incident has two). The webhook's receiver honours
`Idempotency-Key`; a receiver that does not gets a second request.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.detect_held_out import commit
from benchmarks.report import write
from examples.ticket_stand_in.server import StandIn
from nightshift.agent.notify.ledger import DeliveryLedger, ticket_key
from nightshift.agent.notify.tickets.base import key_for
from nightshift.agent.store.incident import Cause
from nightshift.agent.store.incident_store import Store
from tests.agent.incidents import ManualClock, a_diagnosis
from tests.agent.notify.tickets.desk import SYSTEMS, Desk, a_courier, a_system, fresh_store, settings_for

WAYS = ("opened", "updated", "closed", "opened again")
WRITES = ("begin", "trying", "unsent", "told", "put", "change")
TURNS, APART_S, REACHED = 36, 3.0, 8
"""Comparisons of the second process, so far apart by its own clock (s): a lost ticket is looked for after 30 s, and
a second copy for a minute more. The first one dies within `REACHED`, or its place is not on the way."""


def prepare(folder: Path, way: str, desk: Desk) -> None:
    """Brings the incident to where the killed process finds it."""
    if way == "opened":
        desk.opened()
        return
    name = desk.opened()
    desk.once(2)
    if way == "updated":
        desk.clock.advance(1)
        desk.store.save_diagnosis(desk.store.incident(name), a_diagnosis(), by="rules")
        return
    desk.moved(name, Cause.STAGE_FAILED)
    desk.once(2)
    desk.moved(name, Cause.CLEARED_BY_ITSELF)
    if way == "opened again":
        desk.once(2)
        desk.relapsed(name)


def run(system: str, folder: str, url: str, wall_s: float, place: str, dies: bool) -> None:
    """One process of the tickets' courier; dies at `place` ("before told", ""), where it gets there."""
    clock, wall = ManualClock(5_000.0), [wall_s]
    store = Store(f"sqlite:///{folder}/store.sqlite", clock)
    courier = a_courier(store, clock, settings_for(system, Path(folder), url), wall)
    moment, _, name = place.partition(" ")
    if name in WRITES:
        real: Callable[..., Any] = getattr(courier._ledger, name)

        def fatal(*args: Any, **values: Any) -> Any:
            if moment == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            answer = real(*args, **values)
            os.kill(os.getpid(), signal.SIGKILL)
            return answer

        setattr(courier._ledger, name, fatal)
    for _ in range(REACHED if dies else TURNS):
        courier.once()
        wall[0] += APART_S
    courier.stop()
    store.close()


class Executioner:
    """Kills the process that sends a request: before the system works on it, after, or after the client's death."""

    def __init__(self) -> None:
        self.pid, self.moment, self.number, self._seen = 0, "", 0, 0

    def arm(self, moment: str, number: int) -> None:
        self.moment, self.number, self._seen = moment, number, 0

    def at(self, moment: str, line: str) -> None:
        if self.moment == "" or moment != ("after" if self.moment == "after" else "before"):
            return
        self._seen += 1
        if self._seen != self.number:
            return
        os.kill(self.pid, signal.SIGKILL)
        if self.moment == "before":
            # the request dies with its client: it is not worked on
            raise ConnectionAbortedError
        if self.moment == "late":
            time.sleep(0.05)  # the system works on it when its client no longer waits


def case(system: str, way: str, place: tuple[str, str]) -> dict[str, Any] | None:
    """One kill; None where the place is not reached."""
    executioner = Executioner()
    clock, wall = ManualClock(), [1_000_000.0]
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "store.sqlite").write_bytes(fresh_store())
        store = Store(f"sqlite:///{folder}/store.sqlite", clock)
        with StandIn(a_system(system), executioner.at) as stand_in:
            courier = a_courier(store, clock, settings_for(system, folder, stand_in.url), wall)
            prepare(folder, way, Desk(store, clock, courier, stand_in, wall))
            store.close()
            kind, what = place
            if kind == "request":
                moment, _, number = what.partition(" ")
                executioner.arm(moment, int(number))
            arguments = (system, name, stand_in.url, wall[0], what if kind == "write" else "", True)
            process = context.Process(target=run, args=arguments)
            process.start()
            executioner.pid = process.pid or 0
            process.join()
            executioner.arm("", 0)
            if process.exitcode != -signal.SIGKILL:
                return None
            again = context.Process(target=run, args=(system, name, stand_in.url, wall[0] + 2.0, "", False))
            again.start()
            again.join()
            assert again.exitcode == 0
            return judged(system, way, place, folder, stand_in)


def judged(system: str, way: str, place: tuple[str, str], folder: Path, stand_in: StandIn) -> dict[str, Any]:
    store = Store(f"sqlite:///{folder}/store.sqlite", ManualClock(9_000.0))
    (summary,) = store.incidents()
    incident, row = store.incident(summary.id), DeliveryLedger(store.database).row(ticket_key(summary.id))
    # a ticket that cannot be opened again has a successor, of the next turn
    standing = [name for turn in (1, 2) for name in stand_in.system.open_of(key_for("alpha", summary.id, turn))]
    store.close()
    wanted = int(incident.is_open)
    known = row is not None and row.ts in stand_in.system.issues and row.tried_s is None
    said = str(stand_in.system.issues[row.ts].fields) if known and row is not None and row.ts else ""
    right = known and (way != "updated" or "memory leak" in said.lower())
    return {
        "system": system, "way": way, "place": " ".join(place), "tickets": len(stand_in.system.issues),
        "standing": len(standing), "lost": int(not right or len(standing) < wanted),
        "twice": int(len(standing) > 1),
        "left_open": int(not incident.is_open and bool(standing)),
    }  # fmt: skip


def main() -> None:
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    at, found = commit(), []
    for system in SYSTEMS:
        for way in WAYS:
            places = [("write", f"{moment} {name}") for name in WRITES for moment in ("before", "after")]
            places += [("request", f"{m} {n}") for m in ("before", "after", "late") for n in range(1, 6)]
            here = [one for place in places if (one := case(system, way, place)) is not None]
            found += here
            print(
                system,
                way,
                len(here),
                sum(one["lost"] for one in here),
                sum(one["twice"] for one in here),
                flush=True,
            )
    sums = Counter({name: sum(one[name] for one in found) for name in ("lost", "twice", "left_open")})
    wrong = [one for one in found if one["lost"] or one["twice"] or one["left_open"]]
    by = {f"{s}, {w}": sum(o["system"] == s and o["way"] == w for o in found) for s in SYSTEMS for w in WAYS}
    results = {
        "commit": at, "kills": len(found), "lost": sums["lost"], "twice": sums["twice"],
        "left_open": sums["left_open"],
        "kills_by_system_and_way": by, "wrong": wrong, "stand_ins": "our own, of each system's documentation",
    }  # fmt: skip
    write("tickets", results)


if __name__ == "__main__":
    main()
