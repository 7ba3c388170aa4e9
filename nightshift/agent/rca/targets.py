"""Where a plan may act: only where an open finding asks for that action.

An incident joins findings of several places, and some of them are over. The recovery that a plan carries out and
the place that it acts on come from the same finding, open, on the same subject. `controllers.action.KINDS` says
what a kind of action repairs, and how far up the ladder of hardware repairs it stands.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from nightshift.agent.correlation.kinship import (
    BEFORE_CRASH_S,
    STAGE,
    FindingPlaces,
    Kin,
    first_cause,
    kin_of,
)
from nightshift.agent.correlation.silent_faults import open_findings
from nightshift.agent.rca.rules import REMAP_FAILED, codes_of, fault_of, recovery_of
from nightshift.agent.store.incident import Cause, Incident, findings_of
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.controllers.action import KINDS, Action, ActionTraits, traits_of
from nightshift.detectors.base import Finding

_K = SubjectKind
_MACHINES = frozenset({_K.NODE, _K.GPU})


def at_issue(incident: Incident) -> list[Finding]:
    """The findings that diagnosis and plan are about.

    All of them, as long as the first cause is open, or nothing else that is open calls for work on a machine: a job
    may hang still though the crash that stopped it says nothing more. Where the first cause is over and another
    machine's fault is open, only what is open: a repair of the first would be aimed at a healthy machine. Where
    another machine failed since our action began, only what is open there: the first cause was acted on already.
    """
    found, open_ = findings_of(incident), open_findings(incident)
    if places := _failed_since_we_acted(incident, found, open_):
        return [finding for finding in open_ if finding.subject in places]
    if not open_ or first_cause(found) in open_ or not _is_of_a_machine(first_cause(open_)):
        return found
    return open_


def _failed_since_we_acted(incident: Incident, found: Iterable[Finding], open_: Iterable[Finding]) -> set[Subject]:
    """Machines that no finding named when the action that was carried out began, with an open fault of their own.

    The first stages alone: hardware and throttling follow from no other fault and from no action of ours. A hang or
    a lost source may still be the first cause's effect or the action's own, and waits for the confirmation.
    """
    intended_s, begun_s = math.inf, math.inf
    for step in incident.history:
        if step.cause == Cause.INTENT_STORED:
            intended_s = step.at_s
        elif step.cause == Cause.ACTION_DONE:
            begun_s = min(intended_s, step.at_s)
        elif step.cause == Cause.RELAPSED:
            begun_s = math.inf  # the fault is back: what was done the last time has no bearing on this one
    earlier = {finding.subject for finding in found if finding.since.t_s <= begun_s}
    return {f.subject for f in open_ if STAGE[kin_of(f)] <= STAGE[Kin.HOST] and f.subject not in earlier}


def _is_of_a_machine(finding: Finding) -> bool:
    fault = fault_of([finding])
    return any(fault in row.repairs and row.targets & _MACHINES for row in KINDS.values())


def objection(action: Action, open_: Sequence[Finding], inventory: Inventory, at_s: float) -> str:
    """Why no open finding asks for an action at its target; empty where one does."""
    traits, target = traits_of(action.kind), action.target
    # to notify an owner or advise more replicas needs no open fault there
    if traits.harmless and target.kind not in _MACHINES:
        return ""
    places = FindingPlaces(inventory)
    here = [f for f in open_ if _is_at(f, target, places, inventory, at_s)]
    if not here:
        return f"no finding is open on {target}"
    if target.kind not in _MACHINES:
        return ""
    # per subject: what one GPU of a node asks for says nothing of the next one
    by_subject = [[f for f in here if f.subject == subject] for subject in {f.subject for f in here}]
    asked = any(_asks(traits, found) for found in by_subject)
    return "" if asked else f"no open finding on {target} calls for it"


def _is_at(finding: Finding, target: Subject, places: FindingPlaces, inventory: Inventory, at_s: float) -> bool:
    subject = finding.subject
    if target == subject:
        return True
    # a board may have been swapped since: any of these places may be the right one to act on
    times = (at_s, finding.at.t_s, finding.since.t_s, finding.since.t_s - BEFORE_CRASH_S)
    if target.kind not in _MACHINES:
        instances = (mig for t_s in times for mig in inventory.children(subject, t_s, _K.MIG))
        holders = (above for mig in instances for t_s in times for above in inventory.ancestors(mig, t_s))
        return target in places.of(finding) or target in holders
    # a detector of a node with one GPU names the node
    only = subject.kind is _K.NODE and any(set(inventory.gpus(subject, t_s)) == {target} for t_s in times)
    return only or any(target in inventory.ancestors(subject, t_s) for t_s in times)


def _asks(traits: ActionTraits, found: Iterable[Finding]) -> bool:
    """Whether one place's open findings ask for a kind: by what they call for, or by a fault that it repairs."""
    found = list(found)
    rung, broken = _rung_called_for(found), REMAP_FAILED in codes_of(found)
    if traits.rung is not None:
        # what was tried in vain before leads further up the ladder, never down: a reboot may follow a reset
        return (rung is not None and rung <= traits.rung) or (broken and traits.rung == _LAST_RUNG)
    if traits.harmless:
        return True
    if traits.contains and _K.GPU in traits.targets and (rung is not None or broken):
        return True  # kept out of use until it is repaired or returned
    return any(fault_of([finding]) in traits.repairs for finding in found)


_LAST_RUNG = max(row.rung for row in KINDS.values() if row.rung is not None)


def _rung_called_for(found: Sequence[Finding]) -> int | None:
    """Where on the ladder the repair stands that the Xids call for; None where they call for none."""
    called = recovery_of(found)
    # NVIDIA also asks for what is no action of ours, for example to contact support
    return None if called is None else next((row.rung for kind, row in KINDS.items() if kind == called[0]), None)
