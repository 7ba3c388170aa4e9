"""An incident: its states, the one table of transitions between them, and what is stored of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from nightshift.agent.store.diagnosis import Contest, Diagnosis, Reading
from nightshift.collectors.frame import Instant
from nightshift.collectors.subject import Subject
from nightshift.controllers.action import Action, ActionKind
from nightshift.detectors.base import Fault, Finding, Severity, State

TEST_TITLE = "TEST: "
"""How the title of a drill's incident begins, in every list; no figure of real incidents counts it."""


class IncidentState(StrEnum):
    OPEN = "open"
    """A fault was found; its diagnosis is being made."""
    DIAGNOSED = "diagnosed"
    """The diagnosis is stored; a mitigation is being chosen."""
    AWAITING_APPROVAL = "awaiting_approval"
    APPROVED = "approved"
    ACTING = "acting"
    """The intent is stored; the action may be under way."""
    CONFIRMING = "confirming"
    UNDOING = "undoing"
    MONITORING = "monitoring"
    """Nothing to be done, or a person declined: watched until the detector is clear."""
    ESCALATED = "escalated"
    """A person has to act; says why."""
    RESOLVED = "resolved"
    """Confirmed: the detector that fired is clear, and stayed clear."""


class Cause(StrEnum):
    """Why an incident moves: the closed set that metrics and the audit log use."""

    DIAGNOSIS_STORED = "diagnosis_stored"
    PLAN_PROPOSED = "plan_proposed"
    NO_PLAN = "no_plan"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"
    WORLD_CHANGED = "world_changed"
    HALTED = "halted"
    INTENT_STORED = "intent_stored"
    ACTION_DONE = "action_done"
    ACTION_FAILED = "action_failed"
    OUTCOME_UNKNOWN = "outcome_unknown"
    CONTEST_SHOWN = "contest_shown"
    """A person who approves was shown what the language model says against the plan; its state stays."""
    EVIDENCE_COLLECTED = "evidence_collected"
    """What the vendor asks for was collected before an action, or why it was not; its state stays."""
    TICKETED = "ticketed"
    """A ticket of it was opened, closed or deleted in the ticket system; its state stays."""
    WORLD_READ = "world_read"
    """What the world says later of an action whose outcome was unknown; its state stays."""
    RESUMED = "resumed"
    """A person lets an action whose outcome was unknown be finished."""
    UNDO_REQUESTED = "undo_requested"
    """A person has what such an action left taken back."""
    CONFIRMED = "confirmed"
    NOT_CONFIRMED = "not_confirmed"
    UNDONE = "undone"
    CLEARED_BY_ITSELF = "cleared_by_itself"
    RELAPSED = "relapsed"
    CLOSED_BY_PERSON = "closed_by_person"
    NOT_A_FAULT = "not_a_fault"
    """A person says that nothing was wrong, and closes it: the alarm was false."""
    ACKNOWLEDGED = "acknowledged"
    """Somebody took it on where they were paged; its state stays."""
    PROPOSED = "proposed"
    """Somebody's agent proposes an action to the people; its state stays, and no plan changes."""
    JUDGED_RIGHT = "judged_right"
    """A person says that the diagnosis was right; its state stays."""
    JUDGED_WRONG = "judged_wrong"
    UNDER_WAY = "under_way"
    """A begun action takes long, and what it waits for; its state stays."""
    GUARD_REFUSED = "guard_refused"
    NEW_EVIDENCE = "new_evidence"
    """A fault was attached that the diagnosis has not seen; after an action: one that calls for another action."""
    CONTAINMENT_KEPT = "containment_kept"
    """Not confirmed, but taking the action back would put the fault back to work: a person decides."""
    RETURN_DUE = "return_due"
    """The fault is gone, and only our own cordon or drain keeps a node out of use: giving it back is planned."""
    STAGE_FAILED = "stage_failed"
    """A stage failed in a way that trying again does not help, or too often."""


_S, _C = IncidentState, Cause
ASIDES = frozenset({_C.PROPOSED, _C.JUDGED_RIGHT, _C.JUDGED_WRONG})
"""Remarks that say nothing of where the incident stands."""
REMARKS = ASIDES | {
    *(_C.ACKNOWLEDGED, _C.UNDER_WAY, _C.WORLD_READ, _C.CONTEST_SHOWN, _C.EVIDENCE_COLLECTED, _C.TICKETED)
}
"""What stands in the history and moves nothing."""

CLOSABLE = (_S.OPEN, _S.DIAGNOSED, _S.AWAITING_APPROVAL, _S.MONITORING, _S.ESCALATED)
"""Not while something is being done to the world: its outcome has to be stored first."""
TRANSITIONS: dict[tuple[IncidentState, Cause], IncidentState] = {
    (_S.OPEN, _C.DIAGNOSIS_STORED): _S.DIAGNOSED,
    (_S.OPEN, _C.STAGE_FAILED): _S.ESCALATED,
    (_S.DIAGNOSED, _C.PLAN_PROPOSED): _S.AWAITING_APPROVAL,
    (_S.DIAGNOSED, _C.NO_PLAN): _S.MONITORING,
    (_S.DIAGNOSED, _C.GUARD_REFUSED): _S.ESCALATED,
    (_S.DIAGNOSED, _C.STAGE_FAILED): _S.ESCALATED,
    (_S.DIAGNOSED, _C.NEW_EVIDENCE): _S.OPEN,
    (_S.DIAGNOSED, _C.CLEARED_BY_ITSELF): _S.RESOLVED,
    (_S.DIAGNOSED, _C.CONTAINMENT_KEPT): _S.ESCALATED,
    (_S.AWAITING_APPROVAL, _C.APPROVED): _S.APPROVED,
    (_S.AWAITING_APPROVAL, _C.REJECTED): _S.MONITORING,
    (_S.AWAITING_APPROVAL, _C.EXPIRED): _S.DIAGNOSED,
    (_S.AWAITING_APPROVAL, _C.WORLD_CHANGED): _S.DIAGNOSED,
    (_S.AWAITING_APPROVAL, _C.NEW_EVIDENCE): _S.OPEN,
    (_S.AWAITING_APPROVAL, _C.CLEARED_BY_ITSELF): _S.RESOLVED,
    (_S.AWAITING_APPROVAL, _C.RETURN_DUE): _S.DIAGNOSED,
    (_S.APPROVED, _C.INTENT_STORED): _S.ACTING,
    (_S.APPROVED, _C.REJECTED): _S.MONITORING,
    (_S.APPROVED, _C.STAGE_FAILED): _S.ESCALATED,
    (_S.APPROVED, _C.WORLD_CHANGED): _S.DIAGNOSED,
    (_S.APPROVED, _C.EXPIRED): _S.DIAGNOSED,
    (_S.APPROVED, _C.GUARD_REFUSED): _S.ESCALATED,
    (_S.ACTING, _C.ACTION_DONE): _S.CONFIRMING,
    (_S.ACTING, _C.ACTION_FAILED): _S.ESCALATED,
    (_S.ACTING, _C.OUTCOME_UNKNOWN): _S.ESCALATED,
    (_S.ACTING, _C.CONTAINMENT_KEPT): _S.ESCALATED,
    # after a crash between intent and act: nothing was done, and the plan is no longer right
    (_S.ACTING, _C.EXPIRED): _S.DIAGNOSED,
    (_S.ACTING, _C.WORLD_CHANGED): _S.DIAGNOSED,
    (_S.CONFIRMING, _C.CONFIRMED): _S.RESOLVED,
    (_S.CONFIRMING, _C.RETURN_DUE): _S.DIAGNOSED,
    (_S.CONFIRMING, _C.NOT_CONFIRMED): _S.UNDOING,
    (_S.CONFIRMING, _C.CONTAINMENT_KEPT): _S.ESCALATED,
    (_S.CONFIRMING, _C.NEW_EVIDENCE): _S.OPEN,
    (_S.CONFIRMING, _C.STAGE_FAILED): _S.ESCALATED,
    (_S.UNDOING, _C.UNDONE): _S.ESCALATED,
    (_S.UNDOING, _C.ACTION_FAILED): _S.ESCALATED,
    (_S.UNDOING, _C.OUTCOME_UNKNOWN): _S.ESCALATED,
    (_S.MONITORING, _C.CLEARED_BY_ITSELF): _S.RESOLVED,
    (_S.MONITORING, _C.RETURN_DUE): _S.DIAGNOSED,
    (_S.MONITORING, _C.NEW_EVIDENCE): _S.OPEN,
    (_S.ESCALATED, _C.CLEARED_BY_ITSELF): _S.RESOLVED,
    (_S.ESCALATED, _C.RETURN_DUE): _S.DIAGNOSED,
    (_S.ESCALATED, _C.RESUMED): _S.ACTING,
    (_S.ESCALATED, _C.UNDO_REQUESTED): _S.UNDOING,
    (_S.RESOLVED, _C.RELAPSED): _S.OPEN,
    **{(state, cause): _S.RESOLVED for cause in (_C.CLOSED_BY_PERSON, _C.NOT_A_FAULT) for state in CLOSABLE},
}


# Escalated for one of these, an incident stays open although its signals are clear: what was done to the world
# has to be looked at.
NEEDS_A_PERSON = frozenset({Cause.OUTCOME_UNKNOWN, Cause.CONTAINMENT_KEPT, Cause.UNDONE})


class IllegalTransition(ValueError):
    """The table has no such move; the incident stays where it is."""


def next_state(state: IncidentState, cause: Cause) -> IncidentState:
    """Where an incident goes from a state for a cause. Raises IllegalTransition."""
    try:
        return TRANSITIONS[state, cause]
    except KeyError:
        raise IllegalTransition(f"an incident that is {state} cannot move because {cause}") from None


@dataclass(frozen=True, slots=True)
class HistoryStep:
    """One entry of an incident's history."""

    at_s: float
    before: IncidentState | None
    after: IncidentState
    cause: str
    by: str
    note: str = ""

    @property
    def heading(self) -> str:
        """The state that it led to; of a remark, which moves nothing, what it remarks."""
        return self.cause if self.cause in REMARKS else self.after


@dataclass(frozen=True, slots=True)
class StoredFinding:
    """A finding of an incident: its newest firing form with exhibits, and how it stands now."""

    finding: Finding
    state: State
    last_seen_s: float
    changed_s: float

    @property
    def episode(self) -> str:
        return self.finding.episode


@dataclass(frozen=True, slots=True)
class Incident:
    """Everything that is stored of one fault. `version` rises with every change of state.

    `attempt` counts plans. `clear_since_s` is when the last finding became clear, None while one fires or has no
    data. `action` is the current plan with `plan_reason`, whether or not it was carried out.
    """

    id: str
    state: IncidentState
    title: str
    severity: Severity
    opened_s: float
    updated_s: float
    entered_s: float
    findings: tuple[StoredFinding, ...]
    diagnosis: Diagnosis | None
    action: Action | None
    plan_reason: str
    attempt: int
    clear_since_s: float | None
    history: tuple[HistoryStep, ...]
    version: int
    namespaces: tuple[str, ...] = ()
    """Whose jobs it touches, as was known when its findings and its plan were stored; empty: nobody's."""
    news: bool = False
    """A finding fires that the diagnosis has not seen, or that says more than it did then."""
    reading: Reading | None = None
    """What a language model made of it; its claims are in `diagnosis` already."""

    @property
    def subjects(self) -> tuple[Subject, ...]:
        return tuple(dict.fromkeys(stored.finding.subject for stored in self.findings))

    @property
    def is_open(self) -> bool:
        return self.state is not IncidentState.RESOLVED


def plan_name(action: Action) -> str:
    """A plan by what it does and where: what a contest is about, though the plan is proposed again later."""
    return f"{action.kind} {action.target}"


def contest_of(incident: Incident) -> Contest | None:
    """What a language model says against the present plan; None where it says nothing."""
    reading, action = incident.reading, incident.action
    if reading is None or reading.contest is None or action is None:
        return None
    return reading.contest if reading.contest.plan == plan_name(action) else None


def last_cause(incident: Incident) -> str:
    """Why an incident is in its present state; a remark moves nothing."""
    return next((step.cause for step in reversed(incident.history) if step.cause not in REMARKS), "")


def half_done(incident: Incident) -> str:
    """What of an escalated incident nobody knows the outcome of: `act`, `undo`, or nothing (empty)."""
    move = next((step for step in reversed(incident.history) if step.cause not in REMARKS), None)
    if incident.state is not IncidentState.ESCALATED or move is None or move.cause != Cause.OUTCOME_UNKNOWN:
        return ""
    return "undo" if move.before is IncidentState.UNDOING else "act"


def world_says(incident: Incident) -> str:
    """What the world said last of an action whose outcome was unknown; empty where it has not answered since."""
    last = next((step for step in reversed(incident.history) if step.cause not in ASIDES), None)
    return last.note if last is not None and last.cause == Cause.WORLD_READ else ""


def entered_s(history: Sequence[HistoryStep], state: IncidentState) -> list[float]:
    """When an incident came into a state (Unix s), each time; remarks that it got there do not count."""
    return [step.at_s for step in history if step.after is state and step.cause not in REMARKS]


def taken_on(history: Sequence[HistoryStep]) -> HistoryStep | None:
    """The acknowledgement that holds: a relapse and an escalation after it call for people anew."""
    found: HistoryStep | None = None
    for step in history:
        # a remark inside ESCALATED has both, and calls for nobody
        escalated = step.after is IncidentState.ESCALATED and step.before is not IncidentState.ESCALATED
        if step.cause == Cause.ACKNOWLEDGED:
            # the first person who took it on keeps it
            found = found or step
        elif step.cause == Cause.RELAPSED or escalated:
            found = None
    return found


POLICY = "policy"
"""Recorded as the approver of a plan whose rule is automatic."""
_ANSWERS = frozenset({Cause.APPROVED, Cause.REJECTED, Cause.ACKNOWLEDGED})


def unanswered_since_s(history: Sequence[HistoryStep]) -> float | None:
    """Since when people are called and no one has answered (Unix s); None where someone has, or it is over.

    A relapse and an escalation call again. So does a new plan, unless the one who answered has taken it on.
    """
    since_s: float | None = None
    taken = False
    for number, step in enumerate(history):
        escalated = step.after is IncidentState.ESCALATED and step.before is not IncidentState.ESCALATED
        again = number == 0 or step.cause == Cause.RELAPSED or escalated
        if again or (step.cause == Cause.PLAN_PROPOSED and not taken):
            since_s, taken = (step.at_s if since_s is None else since_s), False
        elif step.after is IncidentState.RESOLVED or (step.cause in _ANSWERS and step.by != POLICY):
            since_s, taken = None, step.cause == Cause.ACKNOWLEDGED
    return since_s


@dataclass(frozen=True, slots=True)
class FindingSummary:
    """A finding without its exhibits."""

    episode: str
    detector: str
    fault: Fault
    subject: Subject
    severity: Severity
    state: State
    since_s: float
    last_seen_s: float


@dataclass(frozen=True, slots=True)
class IncidentSummary:
    """An incident without diagnosis text, evidence and history: for lists and for correlation."""

    id: str
    state: IncidentState
    title: str
    severity: Severity
    opened_s: float
    updated_s: float
    clear_since_s: float | None
    attempt: int
    version: int
    cause: Fault | None
    action_kind: ActionKind | None
    plan_sha256: str | None
    expires_s: float | None
    findings: tuple[FindingSummary, ...]
    namespaces: tuple[str, ...] = ()


def findings_of(incident: Incident) -> list[Finding]:
    """An incident's findings, each in its newest firing form but with the state that it has now."""
    return [
        replace(
            # the stored form is the last firing one: its exhibits show the fault, not that it ended
            s.finding,
            state=s.state,
            at=Instant(max(s.last_seen_s, s.finding.at.t_s), clock=s.finding.at.clock),
        )
        for s in incident.findings
    ]
