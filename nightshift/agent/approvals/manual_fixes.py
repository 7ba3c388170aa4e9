"""What people did themselves about an incident, against what was proposed for it: the scoreboard counts both.

Where nobody clicked, people may have decided all the same: they cordoned the node, or rebooted it. The API server
says so and by whom (`collectors.kubernetes.events`), and so does Slurm of a drain. Each such fix of an open
incident's node is written to the audit log, once, with the plan that stood then and whether it was the same. What
controllers do is no decision of a person, and what leaves no trace of its author (a deleted pod) is not counted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
import structlog

from nightshift.agent.store import audit
from nightshift.agent.store.archive import number_of
from nightshift.agent.store.incident import Incident, IncidentState
from nightshift.agent.store.incident_store import Store
from nightshift.agent.store.tables import audit as audit_log
from nightshift.collectors.base import Permanent, Temporary
from nightshift.collectors.frame import LogRecord
from nightshift.collectors.kubernetes.events import CHANGES, EVENTS
from nightshift.collectors.slurm import CHANGES as SLURM_CHANGES
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.controllers.action import Action, ActionKind, traits_of

_A = ActionKind
KIND = "by_hand"
_CORDON = re.compile(r"unschedulable: (no -> yes|yes -> no)(?:, by (?P<who>.+))?$")
# Field managers that are programs.
MACHINES = re.compile(
    r"nightshift|slurm|kube-.*|kubelet.*|system:.*|node-problem-detector.*|cluster-autoscaler.*|karpenter.*|cloud-.*"
)
_OPEN = frozenset(
    {
        IncidentState.DIAGNOSED,
        IncidentState.AWAITING_APPROVAL,
        IncidentState.MONITORING,
        IncidentState.ESCALATED,
    }
)


@dataclass(frozen=True, slots=True)
class Fix:
    """One change that a person made."""

    kind: ActionKind
    node: Subject
    by: str
    at_s: float


def read(line: LogRecord) -> Fix | None:
    """The fix that a line tells of; None where it tells of none, or not of a person's."""
    if line.subject.kind is not SubjectKind.NODE:
        return None
    if line.source.startswith((CHANGES, SLURM_CHANGES)) and (found := _CORDON.search(line.text)):
        who = found["who"] or ""
        # Without a field manager it may have been anybody, the cluster autoscaler too.
        if not who or MACHINES.fullmatch(who):
            return None
        kind = _A.CORDON if found[1] == "no -> yes" else _A.UNCORDON
        return Fix(kind, line.subject, who, line.at.t_s)
    # The kubelet's event for a new boot id; it does not know who pressed the button.
    if line.source.startswith(EVENTS) and " Rebooted Node " in line.text:
        return Fix(_A.REBOOT_NODE, line.subject, "unknown", line.at.t_s)
    return None


def is_same(fix: Fix, plan: Action) -> bool:
    """Whether a person did what the plan says, or began it: a drain and a reboot begin with a cordon."""
    plans = traits_of(plan.kind)
    begins = fix.kind is _A.CORDON and plans.cordons and SubjectKind.NODE in plans.targets
    return fix.kind is plan.kind or begins or (fix.kind is _A.UNCORDON and plans.gives_back)


class ByHand:
    """Writes down the fixes that people made; asked after each look, by the replica that leads."""

    def __init__(self, store: Store, inventory: Inventory) -> None:
        self._store, self._inventory = store, inventory
        self._log = structlog.get_logger("by_hand")

    def look(self, lines: Iterable[LogRecord]) -> list[Incident]:
        """The incidents on which a person did what was proposed: they were real, whoever acted. A store that is
        away costs these lines, never a look."""
        fixes = [fix for line in lines if (fix := read(line)) is not None]
        if not fixes:
            return []
        try:
            waiting = [self._store.incident(i.id) for i in self._store.incidents() if i.state in _OPEN]
            return [incident for fix in fixes for incident in waiting if self._agrees(fix, incident)]
        except (Temporary, Permanent) as error:
            self._log.warning("manual fix write failed", error=str(error))
            return []

    def _agrees(self, fix: Fix, incident: Incident) -> bool:
        """Writes down a fix of this incident's node; whether it is what was proposed."""
        plan = incident.action
        # A cordon from before the incident is what its author knew then, not an answer to this plan.
        if plan is None or fix.at_s < incident.opened_s or self._node_of(plan, fix.at_s) != fix.node:
            return False
        number = number_of(incident.id)
        body = {
            "attempt": incident.attempt,
            "did": str(fix.kind),
            "node": fix.node.name,
            "proposed": str(plan.kind),
            "same": is_same(fix, plan),
        }
        with self._store.database.write() as connection:
            # The API server lists a change again after a reconnect; it must not count as a second agreement.
            is_known = any(known["body"] == body for known in noted(connection, [number]))
            if not is_known:
                audit.append(connection, at_s=fix.at_s, kind=KIND, by=fix.by, incident=number, body=body)
        if not is_known:
            self._log.info(
                "manual fix recorded", incident=incident.id, did=str(fix.kind), by=fix.by, same=body["same"]
            )
        return is_same(fix, plan)

    def _node_of(self, plan: Action, at_s: float) -> Subject | None:
        if plan.target.kind is SubjectKind.NODE:
            return plan.target
        if (name := plan.params.get("node")) is not None:
            return Subject(SubjectKind.NODE, str(name))
        # At that time: the pod may run elsewhere by now.
        return self._inventory.above(plan.target, SubjectKind.NODE, at_s)


def noted(connection: sa.Connection, incidents: list[int]) -> list[dict[str, Any]]:
    """The audit records of fixes by hand of these incidents, in their order."""
    ours = audit_log.c.record.contains(f'"kind":"{KIND}"', autoescape=True)
    chosen = sa.select(audit_log.c.record).where(audit_log.c.incident.in_(incidents), ours)
    query = chosen.order_by(audit_log.c.number)
    return [json.loads(text) for text in connection.execute(query).scalars()]
