"""GPUs that left service for the vendor: each is followed until the unit in its place is qualified.

A case begins with a return, or with a quarantine for one. The GPU counts as replaced once another is seen in its
slot of the node; both serial numbers are kept. The unit is qualified, and the case over, once it has telemetry and
the API server says that the node takes work: after the probe of a `return_node`, or because a person uncordoned it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
import structlog
from sqlalchemy import Connection

from nightshift.agent.incidents.node_return import unseen_gpus
from nightshift.agent.incidents.vendor_evidence import serial_number, server_maker
from nightshift.agent.store.database import Database
from nightshift.agent.store.records import load
from nightshift.agent.store.tables import incidents, intents, plans, returns
from nightshift.collectors.base import Permanent, Temporary
from nightshift.collectors.history import History
from nightshift.collectors.subject import TAKES_WORK_SINCE, Inventory, Subject, SubjectKind
from nightshift.controllers.action import Action, ActionKind, ActionOutcome, OutcomeStatus
from nightshift.controllers.cordon import node_of

EVERY_S = 60.0
DAY_S = 86_400.0
NOT_KNOWN = "not known"
BY_PROBE, BY_PERSON = "probe", "person"
_DONE = (OutcomeStatus.DONE, OutcomeStatus.ALREADY_DONE)


@dataclass(frozen=True, slots=True)
class ReturnCase:
    """One GPU out of service. Times are Unix s; None: not yet."""

    incident: int
    gpu: str
    node: str
    slot: str
    vendor: str
    fault: str
    out_s: float
    replaced_by: str | None = None
    replaced_s: float | None = None
    back_s: float | None = None
    serial: str | None = None
    """Of the unit that left."""
    new_serial: str | None = None
    """Of another unit in its place."""
    qualified_by: str | None = None
    """`BY_PROBE` or `BY_PERSON`."""

    def days(self, now_s: float) -> float:
        """Out of service so far, or in all."""
        return max(0.0, (now_s if self.back_s is None else self.back_s) - self.out_s) / DAY_S


class Returns:
    """Followed by the replica that leads, once a minute."""

    def __init__(self, database: Database, inventory: Inventory, history: History) -> None:
        self._database, self._inventory, self._history = database, inventory, history
        self._next_s = float("-inf")
        self._log = structlog.get_logger("returns")

    def turn(self, now_s: float) -> None:
        """Does what is due. A failure is said, and tried again the next time."""
        # both bounds: a clock that was set back must not put the next turn off
        if self._next_s - EVERY_S <= now_s < self._next_s:
            return
        self._next_s = now_s + EVERY_S
        try:
            with self._database.write() as connection:
                self._begin(connection)
                for case in cases(connection, open_only=True):
                    if changed := self._now(connection, case, now_s):
                        mine = (returns.c.incident == case.incident) & (returns.c.gpu == case.gpu)
                        connection.execute(sa.update(returns).where(mine).values(changed))
        except (Temporary, Permanent) as error:
            self._log.warning("return cases not followed", error=str(error))

    def _begin(self, connection: Connection) -> None:
        """Opens a case for each action that took a GPU out for its vendor and has none."""
        query = (
            _acts('"for_return"', f'"{ActionKind.OPEN_RMA}"')
            .join(returns, returns.c.incident == intents.c.incident, isouter=True)
            .where(returns.c.incident.is_(None))
        )
        begun: set[int] = set()
        for row in connection.execute(query).all():
            if row.incident not in begun and load(ActionOutcome, row.outcome).status in _DONE:
                begun.add(row.incident)
                connection.execute(sa.insert(returns).values(self._first(connection, row)))

    def _first(self, connection: Connection, row: Any) -> dict[str, Any]:
        action = load(Action, row.body)
        slot = self._inventory.fact(action.target, "slot") or ""
        vendor, gpu = server_maker(connection, row.incident), action.target
        serial = self._inventory.fact(gpu, "serial") or serial_number(connection, row.incident, gpu.name)
        found = {"incident": row.incident, "gpu": gpu.name, "node": node_of(action), "slot": slot, "serial": serial}
        return {**found, "vendor": vendor, "fault": row.cause or NOT_KNOWN, "out_s": row.at_s}

    def _now(self, connection: Connection, case: ReturnCase, now_s: float) -> dict[str, Any]:
        """What has changed of a case."""
        node = Subject(SubjectKind.NODE, case.node)
        here = [g for g in self._inventory.gpus(node, now_s) if self._inventory.fact(g, "slot") == case.slot != ""]
        unseen = set(unseen_gpus(self._history, here, now_s))
        seen = [gpu for gpu in here if gpu not in unseen]
        others = [gpu.name for gpu in seen if gpu.name != case.gpu]
        changed: dict[str, Any] = {}
        if others and case.replaced_by is None:
            changed = {"replaced_by": others[0], "replaced_s": now_s}
        new = case.replaced_by or changed.get("replaced_by")
        if (
            new
            and case.new_serial is None
            and (serial := self._inventory.fact(Subject(SubjectKind.GPU, new), "serial"))
        ):
            changed["new_serial"] = serial
        since = self._inventory.fact(node, TAKES_WORK_SINCE)
        works = self._inventory.fact(node, "unschedulable") == "false" and since is not None
        if works and seen and float(since or 0) > case.out_s:
            changed |= {"back_s": now_s, "qualified_by": _qualified_by(connection, case)}
        return changed


def _acts(*words: str) -> sa.Select[Any]:
    """Actions that ended and hold one of these words in their plan, oldest first."""
    return (
        sa.select(intents.c.incident, intents.c.at_s, intents.c.outcome, plans.c.body, incidents.c.cause)
        .join(plans, (plans.c.incident == intents.c.incident) & (plans.c.plan_sha256 == intents.c.plan_sha256))
        .join(incidents, incidents.c.number == intents.c.incident)
        .where(intents.c.phase == "act", intents.c.outcome.is_not(None))
        .where(sa.or_(*(plans.c.body.contains(word) for word in words)))
        .order_by(intents.c.at_s)
    )


def _qualified_by(connection: Connection, case: ReturnCase) -> str:
    """Whether a probe of ours passed on the node since the unit left; else a person gave the node back."""
    query = _acts(f'"{ActionKind.RETURN_NODE}"').where(intents.c.at_s > case.out_s)
    for row in connection.execute(query):
        action, is_done = load(Action, row.body), load(ActionOutcome, row.outcome).status in _DONE
        if is_done and action.kind is ActionKind.RETURN_NODE and node_of(action) == case.node:
            return BY_PROBE
    return BY_PERSON


def cases(connection: Connection, *, open_only: bool = False) -> list[ReturnCase]:
    """Every case, those that last first, then the newest."""
    query = sa.select(returns).order_by(returns.c.back_s.is_not(None), returns.c.out_s.desc())
    rows = connection.execute(query.where(returns.c.back_s.is_(None)) if open_only else query).all()
    return [ReturnCase(**row._mapping) for row in rows]


def days_out(rows: Iterable[ReturnCase], now_s: float) -> dict[tuple[str, str], tuple[int, int, float]]:
    """By vendor and fault: cases, those that last, and days out of service of all together."""
    sums: dict[tuple[str, str], tuple[int, int, float]] = {}
    for case in rows:
        key = (case.vendor or NOT_KNOWN, case.fault)
        count, open_, days = sums.get(key, (0, 0, 0.0))
        sums[key] = count + 1, open_ + (case.back_s is None), days + case.days(now_s)
    return dict(sorted(sums.items()))
