"""Intents: what is about to be done to the world, stored before it is done, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from nightshift.agent.store import audit
from nightshift.agent.store.database import Database
from nightshift.agent.store.incident import Cause, IncidentState
from nightshift.agent.store.records import dump, load, plain
from nightshift.agent.store.tables import audit_head, incidents, intents, plans, steps
from nightshift.collectors.base import Permanent
from nightshift.controllers.action import Action, ActionKind, ActionOutcome, OutcomeStatus, node_steps, traits_of
from nightshift.controllers.cordon import TAKES_OUT, node_of
from nightshift.controllers.guard import Commitment, Deed

# An unknown outcome counts as happened: the guard must not spend capacity that may be gone.
_UNDER_WAY = (IncidentState.ACTING, IncidentState.UNDOING)
_HAPPENED = (OutcomeStatus.DONE, OutcomeStatus.ALREADY_DONE, OutcomeStatus.UNKNOWN)


def store_intent(
    connection: Connection, incident: int, action: Action, phase: str, now_s: float, runner: str
) -> None:
    """Stores the intent to carry out (`act`) or take back (`undo`) an action, once per action id.

    Raises Permanent where the id was used for another plan: an idempotency key must name one thing.
    """
    mine = (intents.c.action_id == action.id) & (intents.c.phase == phase)
    known = connection.execute(sa.select(intents.c.plan_sha256, intents.c.incident).where(mine)).one_or_none()
    if known is not None:
        # actuators tell by the id whether an action was done: a second plan under it would pass for done
        if (known.plan_sha256, known.incident) != (action.plan_sha256, incident):
            raise Permanent(f"action id {action.id} was used for another plan; every plan needs its own id")
        return
    row = {"action_id": action.id, "phase": phase, "incident": incident, "plan_sha256": action.plan_sha256}
    connection.execute(sa.insert(intents).values(**row, at_s=now_s, runner=runner))
    audit.append(connection, at_s=now_s, kind="intent", by=runner, incident=incident, body=row)


def end_intent(connection: Connection, incident: int, action: Action, phase: str, outcome: ActionOutcome) -> None:
    """Stores what became of an intent."""
    mine = (intents.c.action_id == action.id) & (intents.c.phase == phase)
    connection.execute(sa.update(intents).where(mine).values(ended_s=outcome.at_s, outcome=dump(outcome)))
    body = {"action_id": action.id, "phase": phase, "outcome": plain(outcome)}
    audit.append(connection, at_s=outcome.at_s, kind="outcome", by=phase, incident=incident, body=body)


def reopen_intent(connection: Connection, action: Action, phase: str) -> None:
    """Takes up again an intent whose outcome was unknown: from now on it is under way."""
    mine = (intents.c.action_id == action.id) & (intents.c.phase == phase)
    connection.execute(sa.update(intents).where(mine).values(ended_s=None, outcome=None))


def begun(connection: Connection, incident: int) -> list[Commitment]:
    """Every action of an incident that was begun, oldest first; those that failed, too: half of one has effects."""
    query = (
        sa.select(intents.c.at_s, intents.c.ended_s, plans.c.body)
        .join(plans, (plans.c.incident == intents.c.incident) & (plans.c.plan_sha256 == intents.c.plan_sha256))
        .where(intents.c.incident == incident, intents.c.phase == "act")
        .order_by(intents.c.at_s)
    )
    return [Commitment(load(Action, row.body), row.at_s, row.ended_s) for row in connection.execute(query)]


def has_intent(database: Database, action: Action, phase: str) -> bool:
    """Whether an earlier run has stored this intent."""
    mine = (intents.c.action_id == action.id) & (intents.c.phase == phase)
    with database.read() as connection:
        return connection.execute(sa.select(intents.c.action_id).where(mine)).one_or_none() is not None


def deeds(connection: Connection, since_s: float) -> list[Deed]:
    """Every action that was begun since a time, oldest first, and whether its recovery was confirmed."""
    begun_since = (
        sa.select(intents.c.incident, intents.c.at_s, intents.c.ended_s, intents.c.outcome, plans.c.body)
        .join(plans, (plans.c.incident == intents.c.incident) & (plans.c.plan_sha256 == intents.c.plan_sha256))
        .where(intents.c.phase == "act", intents.c.at_s >= since_s)
        .order_by(intents.c.at_s)
    )
    rows = connection.execute(begun_since).all()
    ended = (
        sa.select(steps.c.incident, steps.c.at_s, steps.c.cause)
        .where(steps.c.at_s >= since_s, steps.c.before == str(IncidentState.CONFIRMING))
        .where(steps.c.after != str(IncidentState.CONFIRMING))
        .order_by(steps.c.incident, steps.c.number)
    )
    ends = connection.execute(ended).all()
    found = []
    for row in rows:
        after = (e.cause for e in ends if e.incident == row.incident and e.at_s >= (row.ended_s or math.inf))
        outcome = None if row.outcome is None else load(ActionOutcome, row.outcome)
        action = load(Action, row.body)
        found.append(Deed(action, row.at_s, _recovered(action, outcome, next(after, None))))
    return found


def _recovered(action: Action, outcome: ActionOutcome | None, cause: str | None) -> bool | None:
    """Whether an action's recovery was confirmed, by its outcome and by how its confirmation ended."""
    if outcome is not None and outcome.status in (OutcomeStatus.FAILED, OutcomeStatus.UNKNOWN):
        return False
    if cause is None or outcome is None or outcome.status not in _HAPPENED:
        return None
    if cause in (Cause.CONFIRMED, Cause.RETURN_DUE):
        return True
    # what contains a fault does not repair it: the fault goes on there
    return None if traits_of(action.kind).contains else False


def commitments(
    connection: Connection, *, before_an_intent: bool = False, incident: int | None = None
) -> list[Commitment]:
    """Every action that has begun and not failed, oldest first, for the guard; or those of one incident.

    `before_an_intent`: the transaction will store one. It then queues behind every other intent (on the audit
    log's head), so that two actions that fit alone and not together cannot both begin. A reader holds nobody up.
    """
    if before_an_intent:
        connection.execute(sa.select(audit_head.c.id).where(audit_head.c.id == 1).with_for_update())
    query = (
        sa.select(intents, plans.c.body, incidents.c.state, incidents.c.entered_s)
        .join(plans, (plans.c.incident == intents.c.incident) & (plans.c.plan_sha256 == intents.c.plan_sha256))
        .join(incidents, incidents.c.number == intents.c.incident)
        .order_by(intents.c.at_s)
    )
    rows = connection.execute(query if incident is None else query.where(intents.c.incident == incident)).all()
    ends = {(r.action_id, r.phase): load(ActionOutcome, r.outcome) for r in rows if r.outcome is not None}
    acts = [_commitment(row, ends) for row in rows if row.phase == "act"]
    found = [item for item in acts if item is not None]
    back = _given_back(found, ends)
    return [_released(item, back) for item in found if item.action.kind is not ActionKind.UNCORDON]


def _given_back(found: Iterable[Commitment], ends: Mapping[tuple[str, str], ActionOutcome]) -> list[Commitment]:
    """The actions that gave a node back. One whose outcome is unknown gave nothing back as far as is known, and
    the guard counts the node as out of use."""
    known = {action_id for (action_id, _), end in ends.items() if end.status is not OutcomeStatus.UNKNOWN}
    return [item for item in found if traits_of(item.action.kind).gives_back and item.action.id in known]


def _commitment(row: Any, ends: Mapping[tuple[str, str], ActionOutcome]) -> Commitment | None:
    """What an intent to act comes to; None where it failed and left nothing behind."""
    action, end = load(Action, row.body), ends.get((row.action_id, "act"))
    traits = traits_of(action.kind)
    # a drain that failed half-way still keeps its node out of use
    if end is not None and end.status not in _HAPPENED and not (traits.cordons and end.left_cordoned):
        return None
    undone = ends.get((row.action_id, "undo"))
    released_s = None
    if undone is not None and undone.status in _HAPPENED[:2]:
        released_s = undone.at_s
    elif end is not None and end.status in _HAPPENED[:2] and traits.gives_back_itself:
        released_s = end.at_s
    ended_s = None if end is None else end.at_s
    if ended_s is None and row.state not in _UNDER_WAY:
        ended_s = row.entered_s  # nobody carries it on any more: it must not keep its node busy for ever
    return Commitment(action, row.at_s, ended_s, released_s)


def standing_cordons(connection: Connection, incident: int) -> list[Action]:
    """The cordons and drains of an incident that nothing of ours has taken back, oldest first: no uncordon, no
    return, no later reset or reboot, which gives its node back itself. Whether they stand, only the world says."""
    found = [
        replace(item, action=part)
        for item in commitments(connection, incident=incident)
        for part in node_steps(item.action)
    ]
    given_back = {
        (node_of(item.action), item.begun_s)
        for item in found
        if traits_of(item.action.kind).gives_back and item.ended_s is not None
    }
    repaired = {
        node_of(item.action): item.begun_s
        for item in found
        if traits_of(item.action.kind).gives_back_itself and item.released_s is not None
    }
    return [
        item.action
        for item in found
        if item.action.kind in TAKES_OUT
        and item.released_s is None
        and not any(node == node_of(item.action) and at_s >= item.begun_s for node, at_s in given_back)
        # a reset or reboot after the cordon gave the node back itself when it ended
        and repaired.get(node_of(item.action), item.begun_s) <= item.begun_s
    ]


def _released(item: Commitment, back: list[Commitment]) -> Commitment:
    """What a later uncordon or return of the same node took back."""
    later = [
        other.ended_s
        for other in back
        if traits_of(item.action.kind).cordons
        and node_of(other.action) == node_of(item.action)
        and other.begun_s >= item.begun_s
        # what has not ended has given nothing back yet
        and other.ended_s is not None
    ]
    if item.released_s is not None or not later:
        return item
    return replace(item, released_s=min(later))
