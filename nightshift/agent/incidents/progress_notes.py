"""Tells people, in the incident's own history, what an action that takes long waits for.

A drain that a disruption budget holds up is no failure and nothing is tried harder for it; but whoever approved it
should not first hear of it when `act_timeout_s` is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType

from nightshift.agent.store.incident import Cause, Incident
from nightshift.agent.store.incident_store import Store
from nightshift.collectors.base import Permanent, Temporary
from nightshift.controllers.action import Action, Actuator, Outcome, OutcomeStatus

FIRST_S = 300.0
"""What has taken so long (s) is told, and again each time that it has taken twice as long."""


def tell(store: Store, incident: Incident, why: str, now_s: float, by: str) -> None:
    """Notes what a begun action waits for, where that is due."""
    waited_s = now_s - incident.entered_s
    told = sum(step.cause == Cause.UNDER_WAY and step.at_s >= incident.entered_s for step in incident.history)
    if waited_s >= FIRST_S * 2**told:
        store.remark(incident, Cause.UNDER_WAY, by, f"under way for {waited_s:.0f} s: {why}")


def cut_off(
    action: Action,
    actuator: Actuator,
    why: str,
    now_s: float,
    known: Mapping[OutcomeStatus, OutcomeStatus] = MappingProxyType({}),
    otherwise: OutcomeStatus = OutcomeStatus.UNKNOWN,
) -> Outcome:
    """What becomes of an action that is given up: where it reads back as begun and not done, a person has to look
    at what it leaves; else what `known` makes of what was read, or `otherwise`."""
    with suppress(Temporary, Permanent):
        found = actuator.read(action)
        if found.status is OutcomeStatus.UNDER_WAY:
            if found.observed.get("cordoned") == "true" and "stays cordoned" not in why:
                why += "; the node stays cordoned"
            return Outcome(OutcomeStatus.UNKNOWN, f"left half-way: {found.detail}; {why}", now_s)
        otherwise = known.get(found.status, otherwise)
    return Outcome(otherwise, why, now_s)
