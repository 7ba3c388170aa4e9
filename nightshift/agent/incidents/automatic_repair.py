"""Whether an automatic repair makes a page needless, and for how long the page waits for it. Decides purely, from
what is stored: a process that starts again decides the same.

Only a repair counts that can end every alarm which would page. What only contains a fault leaves it to people.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import takewhile

from nightshift.agent.approvals.policy import ApprovalSettings, automatic_kinds, rule_for
from nightshift.agent.correlation.kinship import xids_of
from nightshift.agent.store.incident import POLICY, Cause, HistoryStep, Incident, IncidentState
from nightshift.collectors.subject import Subject
from nightshift.controllers.action import ActionKind, ApprovalRule, traits_of
from nightshift.detectors.alarms.lanes import Lane, lane_of
from nightshift.detectors.base import Fault, Finding, State

PLAN_S, REPAIR_S = 60.0, 540.0
"""From the alarm on: how long a page waits for a plan that policy approves, and for its fault to be gone (s). What
pages after all does so within ten minutes."""
CLEAR_S = 300.0
"""How long an incident that is clear may take to be confirmed."""
_S = IncidentState
_PLANNED = frozenset({_S.OPEN, _S.DIAGNOSED, _S.AWAITING_APPROVAL})
_BEGUN = frozenset({_S.APPROVED, _S.ACTING, _S.CONFIRMING})

Places = Callable[[Subject], Collection[Subject]]
"""A subject, and what it stands in."""


def page_waits_until_s(
    incident: Incident, policy: ApprovalSettings, halt: bool, surroundings: Places, now_s: float
) -> float | None:
    """Until when (Unix s) an incident's page waits; None where it is due: no automatic repair is planned or under
    way, or it failed, was refused, is late, or does not repair everything that pages."""
    turn = _turn(incident)
    if halt or any(step.after not in _PLANNED | _BEGUN for step in turn):
        return None
    begun = incident.state in _BEGUN
    if begun:
        approvals = [step.by for step in turn if step.cause == Cause.APPROVED]
        automatic = bool(approvals) and approvals[-1] == POLICY
    else:
        automatic = incident.action is None or rule_for(incident.action, policy) is ApprovalRule.AUTOMATIC
    if not automatic:
        return None
    kinds = automatic_kinds(policy) if incident.action is None else {incident.action.kind}
    if not any(_ends_all(kind, incident, turn, surroundings) for kind in kinds):
        return None
    until_s = turn[0].at_s + (REPAIR_S if begun else PLAN_S)
    if incident.clear_since_s is not None:
        until_s = max(until_s, incident.clear_since_s + CLEAR_S)
    return until_s if now_s < until_s else None


def _turn(incident: Incident) -> list[HistoryStep]:
    """The history since the fault came, or came again; its first step is that."""
    later = list(takewhile(lambda step: step.cause != Cause.RELAPSED, reversed(incident.history)))[::-1]
    first = incident.history[: len(incident.history) - len(later)][-1:]
    return [*first, *later]


def _ends_all(kind: ActionKind, incident: Incident, turn: list[HistoryStep], surroundings: Places) -> bool:
    """Whether an action of this kind can end every alarm that pages: it repairs it where it acts, or caused it."""
    action = incident.action
    acted_s = next((step.at_s for step in turn if step.cause == Cause.INTENT_STORED), None)
    alarms = [s.finding for s in incident.findings if s.state is not State.CLEAR]
    alarms = [finding for finding in alarms if lane_of(finding) is Lane.PAGE]
    here = [f for f in alarms if action is None or not action.named.isdisjoint(surroundings(f.subject))]
    ends = all(_repairs(kind, f) or (acted_s is not None and _caused(kind, f, acted_s)) for f in alarms)
    return ends and len(here) == len(alarms)


def _repairs(kind: ActionKind, finding: Finding) -> bool:
    traits = traits_of(kind)
    return finding.fault in traits.repairs and not traits.contains


def _caused(kind: ActionKind, finding: Finding, acted_s: float) -> bool:
    """Whether an action that began at `acted_s` leaves such an alarm behind: a process that it stopped."""
    codes = xids_of(finding)
    return finding.since.t_s >= acted_s and any(
        finding.fault is cause.fault and (finding.fault is not Fault.XID or (bool(codes) and codes <= cause.codes))
        for cause in traits_of(kind).causes
    )
