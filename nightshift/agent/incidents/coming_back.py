"""What Nightshift keeps out of use, and when it comes back, for those who queue for it.

A reset or a reboot ends within its usual time. A GPU that is with its vendor comes back after as many days as
others with its fault took (median). Of the rest nothing is known, and that is said.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Connection

from nightshift.agent.incidents.returns import DAY_S, ReturnCase, cases
from nightshift.agent.store.intents import commitments
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.controllers.action import ActionKind, node_steps, traits_of
from nightshift.controllers.cordon import node_of
from nightshift.controllers.guard import Commitment
from nightshift.controllers.playbooks.plan import REBOOT_S, RESET_S

MOST_NODES = 12
"""So many are named in one message; the rest is counted."""


@dataclass(frozen=True, slots=True, order=True)
class ComingBack:
    """A node that takes no work through Nightshift. at_s: when it is expected back (Unix s); None: not known."""

    node: str
    gpus: int
    kind: ActionKind
    at_s: float | None


def coming_back(connection: Connection, inventory: Inventory, now_s: float) -> list[ComingBack]:
    """By node, each once, in order of their names."""
    known = cases(connection)
    found: dict[str, ComingBack] = {}
    for item in commitments(connection):
        for node in _nodes(item):
            subject = Subject(SubjectKind.NODE, node)
            if item.ended_s is not None and inventory.fact(subject, "unschedulable") == "false":
                continue  # a person gave it back
            gpus = len(inventory.gpus(subject, now_s))
            found[node] = ComingBack(node, gpus, item.action.kind, _expected_s(item, node, known, now_s))
    return sorted(found.values())


def words_of(coming: Iterable[ComingBack]) -> str:
    """One sentence for an Event; empty where nothing is out of use.

    >>> words_of([ComingBack("n1", 8, ActionKind.REBOOT_NODE, 1.79e9), ComingBack("n2", 4, ActionKind.DRAIN, None)])
    '12 GPUs are out of use: n1 (8 GPUs, reboot node, back 2026-09-21T14:13Z), n2 (4 GPUs, drain, time unknown)'
    """
    every = list(coming)
    named = ", ".join(
        f"{each.node} ({each.gpus} GPUs, {each.kind.replace('_', ' ')}, {_when(each.at_s)})"
        for each in every[:MOST_NODES]
    )
    more = f", and {len(every) - MOST_NODES} more nodes" if len(every) > MOST_NODES else ""
    return f"{sum(each.gpus for each in every)} GPUs are out of use: {named}{more}" if every else ""


def _when(at_s: float | None) -> str:
    return "time unknown" if at_s is None else f"back {datetime.fromtimestamp(at_s, UTC):%Y-%m-%dT%H:%MZ}"


def _nodes(item: Commitment) -> Iterator[str]:
    if item.released_s is None and traits_of(item.action.kind).takes_capacity:
        yield from (node_of(step) for step in node_steps(item.action))


def _expected_s(item: Commitment, node: str, known: Iterable[ReturnCase], now_s: float) -> float | None:
    if item.action.kind is ActionKind.RESET_GPU and item.ended_s is None:
        return max(now_s, item.begun_s + RESET_S)
    if item.action.kind is ActionKind.REBOOT_NODE and item.ended_s is None:
        return max(now_s, item.begun_s + REBOOT_S)
    mine = next((case for case in known if case.node == node and case.back_s is None), None)
    days = [case.days(now_s) for case in known if mine and case.back_s is not None and case.fault == mine.fault]
    if mine is None or not days:
        return None
    return max(now_s, mine.out_s + statistics.median(days) * DAY_S)
