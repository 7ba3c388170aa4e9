"""What an outlet is told of an incident, and in which phase. Decides purely."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from nightshift.agent.rca.summary import plain
from nightshift.agent.store.incident import POLICY, Cause, HistoryStep, IncidentState, IncidentSummary
from nightshift.agent.store.tenancy import namespaces_of
from nightshift.agent.units import sentence
from nightshift.detectors.base import Severity

_PEOPLE_ACTED = frozenset({Cause.APPROVED, Cause.REJECTED, Cause.CLOSED_BY_PERSON, Cause.NOT_A_FAULT})
_MAX_SUBJECTS = 20


class AlertPhase(StrEnum):
    """How an alert stands, in the words that the vendors share."""

    TRIGGERED = "triggered"
    ACKNOWLEDGED = "acknowledged"
    CLOSED = "closed"


class Form(StrEnum):
    """Whether an alert calls a person, or is only shown."""

    PAGE = "page"
    SHOWN = "shown"


@dataclass(frozen=True, slots=True)
class Need:
    """`turn` counts the times that an incident newly needs a person: each turn is one page, never more."""

    turn: int
    phase: AlertPhase


@dataclass(frozen=True, slots=True)
class Letter:
    """One alert as it should stand outside. `key` is what the vendor knows it by: sent twice, it stands once."""

    key: str
    incident: str
    turn: int
    phase: AlertPhase
    form: Form
    severity: Severity
    summary: str
    cluster: str
    since_s: float
    updated_s: float
    subjects: tuple[str, ...]
    namespaces: tuple[str, ...]
    cause: str
    plan: str
    url: str


def need(history: Sequence[HistoryStep]) -> Need:
    """A relapse, and an escalation after somebody had taken it on, call a person anew; whoever acknowledged,
    approved or rejected has taken it on."""
    turn, taken, state = 1, False, IncidentState.OPEN
    for step in history:
        escalated = step.after is IncidentState.ESCALATED and step.before is not IncidentState.ESCALATED
        if step.cause == Cause.RELAPSED or (escalated and taken):
            turn, taken = turn + 1, False
        elif step.cause == Cause.ACKNOWLEDGED or (step.cause in _PEOPLE_ACTED and step.by != POLICY):
            taken = True
        state = step.after
    if state is IncidentState.RESOLVED:
        return Need(turn, AlertPhase.CLOSED)
    return Need(turn, AlertPhase.ACKNOWLEDGED if taken else AlertPhase.TRIGGERED)


def key_of(cluster: str, incident: str, turn: int) -> str:
    """The vendor's name for a turn of an incident; at most 255 characters (PagerDuty), 512 (Opsgenie)."""
    return f"nightshift/{cluster[:200]}/{incident}/{turn}"


def read_key(key: str) -> tuple[str, int]:
    """(incident, turn) of a key. Raises ValueError for one that is not ours."""
    prefix, _, rest = key.partition("/")
    # From the right: a cluster's name may have slashes, as an ARN has.
    parts = rest.rsplit("/", 2)
    if prefix != "nightshift" or len(parts) != 3 or not parts[2].isdecimal() or len(parts[2]) > 6:
        raise ValueError("not an alert of Nightshift")
    return parts[1], int(parts[2])


def letter(
    incident: IncidentSummary,
    cluster: str,
    turn: int,
    phase: AlertPhase,
    form: Form,
    severity: Severity,
    console_url: str = "",
) -> Letter:
    """The text of an alert, from what the store's lists know of an incident."""
    subjects = tuple(dict.fromkeys(finding.subject for finding in incident.findings))
    return Letter(
        key_of(cluster, incident.id, turn),
        incident.id,
        turn,
        phase,
        form,
        severity,
        plain(f"{incident.id}: {incident.title}", 1000),
        cluster,
        min((finding.since_s for finding in incident.findings), default=incident.opened_s),
        incident.updated_s,
        tuple(plain(str(subject), 200) for subject in subjects[:_MAX_SUBJECTS]),
        tuple(namespaces_of(subjects)),
        "" if incident.cause is None else sentence(incident.cause),
        "" if incident.action_kind is None else sentence(incident.action_kind),
        f"{console_url.rstrip('/')}/incidents/{incident.id}" if console_url else "",
    )
