"""Tells people, in the incident's own history, what an action that takes long waits for.

A drain that a disruption budget holds up is no failure and nothing is tried harder for it; but whoever approved it
should not first hear of it when `act_timeout_s` is over.
"""

from __future__ import annotations

from agent.incident import Cause, Incident
from agent.store import Store
from controllers.action import Outcome

FIRST_S = 300.0
"""What has taken so long (s) is told, and again each time that it has taken twice as long."""


def tell(store: Store, incident: Incident, why: str, now_s: float, by: str) -> None:
    """Notes what a begun action waits for, where that is due."""
    waited_s = now_s - incident.entered_s
    told = sum(step.cause == Cause.UNDER_WAY and step.at_s >= incident.entered_s for step in incident.history)
    if waited_s >= FIRST_S * 2**told:
        store.remark(incident, Cause.UNDER_WAY, by, f"under way for {waited_s:.0f} s: {why}")


def left_half_way(found: Outcome, why: str) -> str:
    """What is said of an action that is given up between its beginning and its end, as it was read back."""
    kept = "; the node stays cordoned" if found.observed.get("cordoned") == "true" else ""
    return f"left half-way: {found.detail}; {why}{kept}"
