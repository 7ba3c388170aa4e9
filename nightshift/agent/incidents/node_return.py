"""Gives back a node that only our own cordon or drain keeps out of use, once its fault is gone: when, and what for.

Nothing is done by itself: a plan (`controllers.playbooks.return_node`) is proposed on the same incident and takes
the way of every other plan through gate, guard and audit. It is proposed only where every finding of the incident
has been clear for the quiet window, the node's GPUs are seen *now*, and no other open incident is on the node; all
of that is asked again right before acting, and once more when the probe has ended. Whose the cordon is, the
actuator reads from the world: the plan's precondition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from nightshift.agent.incidents.advisor import situation_of
from nightshift.agent.store.incident import Cause, Incident, IncidentState, last_cause
from nightshift.agent.store.incident_store import Store
from nightshift.agent.store.intents import standing_cordons
from nightshift.collectors.history import History
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.controllers.action import Action, ActionKind
from nightshift.controllers.playbooks.plan import Economy
from nightshift.controllers.playbooks.return_node import return_node
from nightshift.detectors.base import State

# A GPU that was not seen for so long is not seen: missing telemetry is never health.
FRESH_S = 120.0
LOOK_AGAIN_S = 60.0
"""What keeps a node from being given back is looked at again after this."""
_HAS_PLAN_AGAIN = (Cause.EXPIRED, Cause.WORLD_CHANGED)


class GivingBack:
    """Asked by the lifecycle and its stages. `offered`: whether an actuator here can probe and give back."""

    def __init__(
        self,
        store: Store,
        history: Callable[[], History],
        inventory: Inventory,
        now_s: Callable[[], float],
        offered: Callable[[], bool],
        economy: Callable[[], Economy] = Economy,
    ) -> None:
        self._store, self._history, self._inventory, self._now_s = store, history, inventory, now_s
        self.offered, self._economy = offered, economy

    def standing(self, number: int) -> list[Action]:
        """The cordons and drains of an incident that nothing of ours has taken back."""
        with self._store.database.read() as connection:
            return standing_cordons(connection, number)

    def is_due(self, incident: Incident) -> bool:
        """Whether a diagnosed incident is here to have its node given back, and not for a repair."""
        cause, kind = last_cause(incident), incident.action.kind if incident.action is not None else None
        # an expired proposal to give back is made again as such, not as a repair of what is clear
        return cause == Cause.RETURN_DUE or (kind is ActionKind.RETURN_NODE and cause in _HAS_PLAN_AGAIN)

    def plan(self, incident: Incident, cordons: Sequence[Action]) -> Action:
        """What to propose, for cordons and drains of this incident that still stand."""
        situation = situation_of(incident, self._inventory, self._now_s())
        return return_node(situation, cordons, self._economy())

    def hindrances(self, incident: Incident, node: Subject) -> list[str]:
        """Why a node may not be given back now, each as a sentence; empty where it may."""
        found = [
            f"{item.finding.summary}: {'alarms again' if item.state is State.FIRING else 'has no data'}"
            for item in incident.findings
            if item.state is not State.CLEAR
        ]
        found += [f"{other} is open on {node.name}" for other in self._others(incident, node)]
        unseen = self._unseen(node)
        return found + ([unseen] if unseen else [])

    def _others(self, incident: Incident, node: Subject) -> list[str]:
        now_s = self._now_s()
        open_ = [other for other in self._store.open_incidents() if other.id != incident.id]
        return [
            other.id
            for other in open_
            # where it is now, and where it was: a GPU may have been swapped since
            if any(self._is_on(f.subject, node, t_s) for f in other.findings for t_s in (now_s, f.since_s))
        ]

    def _is_on(self, subject: Subject, node: Subject, at_s: float) -> bool:
        return node == subject or node in self._inventory.ancestors(subject, at_s)

    def _unseen(self, node: Subject) -> str:
        """Which GPUs of a node have no telemetry now; empty where all have."""
        now_s = self._now_s()
        gpus = self._inventory.gpus(node, now_s)
        # a node without telemetry has no GPU in the inventory, and none of none is missing
        if not gpus:
            return f"no GPU of {node.name} is known: its telemetry is missing"
        missing = unseen_gpus(self._history(), gpus, now_s)
        return f"{len(missing)} of {len(gpus)} GPUs of {node.name} have no telemetry" if missing else ""


def unseen_gpus(history: History, gpus: Sequence[Subject], now_s: float) -> list[Subject]:
    """Those of these GPUs that have no telemetry now."""
    frame = history.latest(SubjectKind.GPU)
    if frame is None:
        return list(gpus)
    seen_s = np.broadcast_to(frame.observed_at_s, frame.values.shape)
    known = ~np.isnan(frame.values) & (seen_s >= now_s - FRESH_S)
    rows = frame.index.rows
    return [gpu for gpu in gpus if gpu not in rows or not known[rows[gpu]].any()]


def stays(cordons: Sequence[Action]) -> str:
    """What a person has to know of an incident that ends while something of ours may be out of use."""
    names = sorted({action.target.name for action in cordons})
    return f"; our cordon of {', '.join(names)} remains: uncordon manually" if names else ""


def may_be_proposed(row_state: str, moved_by: str, action_kind: str | None) -> bool:
    """Whether, of an incident whose signals are clear, a return may be proposed (again): not once a person has said
    no or it has failed."""
    if moved_by in (Cause.REJECTED, Cause.STAGE_FAILED):
        return False
    # a node whose return has failed is a person's: the probe would fail again
    failed = row_state == IncidentState.ESCALATED and moved_by != Cause.CONTAINMENT_KEPT
    return not (failed and action_kind == ActionKind.RETURN_NODE)
