"""What a person or an Alertmanager reports, as findings: the correlator places them like a detector's.

A report names a subject and no fault, so it is an anomaly: it gets evidence, a diagnosis, a reading and questions,
and no plan. A fault that a detector finds there joins it, and is planned for. An alert's finding ends with the
alert, a person's when a person closes the incident. Webhook: prometheus.io/docs/alerting/latest/configuration
(`webhook_config`, version 4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from nightshift.agent.store.reports import REPORTED_BY
from nightshift.collectors.base import Permanent
from nightshift.collectors.frame import Instant, LogRecord
from nightshift.collectors.prometheus.alert import AlertmanagerAlert
from nightshift.collectors.prometheus.alertmanager import plain_text, subject_of_labels, unix_seconds
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.detectors.alarms.lanes import Lane, in_lane
from nightshift.detectors.base import Fault, Finding, LogExhibit, Severity, State

GROUP = "report_group"
OUR_ALERT = "NightshiftIncident"
"""The alert that our own outlet sends: heard back, it would be an incident of an incident."""
MAX_ALERTS = 500
MAX_NOTE = 500
ALERT = "alert"
KINDS = ("pod", "job", "node", "gpu", ALERT)
_SEVERITIES = {"critical": Severity.CRITICAL, "page": Severity.CRITICAL, "warning": Severity.WARNING}


class _Alert(BaseModel):
    model_config = ConfigDict(extra="ignore")

    status: Literal["firing", "resolved"]
    labels: dict[str, str] = Field(max_length=64)
    annotations: dict[str, str] = Field(default_factory=dict, max_length=64)
    startsAt: str
    fingerprint: str = Field(min_length=1, max_length=64, pattern="^[0-9A-Za-z_-]+$")

    @field_validator("startsAt")
    @classmethod
    def _is_time(cls, stamp: str) -> str:
        if not 0 < unix_seconds(stamp) < 1e11:
            raise ValueError("no time of an alert")
        return stamp


class _Webhook(BaseModel):
    model_config = ConfigDict(extra="ignore")

    version: Literal["4"]
    groupKey: str = Field(default="", max_length=20_000)
    alerts: list[_Alert] = Field(max_length=MAX_ALERTS)


def alerts_of(payload: Any, cluster: str, now_s: float) -> tuple[list[Finding], int]:
    """The findings of a webhook's alerts, and how many alerts are our own. Raises Permanent, naming each place that
    is wrong; then none of them counts."""
    try:
        told = _Webhook.model_validate(payload)
    except ValidationError as error:
        places = (f"{'.'.join(str(p)[:40] for p in e['loc'])}: {e['msg'][:120]}" for e in error.errors()[:10])
        raise Permanent(f"no webhook of Alertmanager, version 4: {'; '.join(places)}") from error
    # one alert twice in a payload: the later word counts
    mine = {(a.fingerprint, a.startsAt): a for a in told.alerts if a.labels.get("alertname") != OUR_ALERT}
    ours = sum(a.labels.get("alertname") == OUR_ALERT for a in told.alerts)
    return [_finding(alert, told.groupKey, cluster, now_s) for alert in mine.values()], ours


def _finding(alert: _Alert, group: str, cluster: str, now_s: float) -> Finding:
    labels = {plain_text(key): plain_text(value) for key, value in alert.labels.items()}
    notes = alert.annotations
    said = plain_text(notes.get("summary") or notes.get("message") or notes.get("description") or "", MAX_NOTE)
    name = labels.get("alertname", "without a name")
    return _reported(
        subject_of_labels(labels) or Subject(SubjectKind.CLUSTER, cluster),
        f"alert {name}{f': {said}' if said else ''}",
        "Alertmanager",
        f"alert {alert.fingerprint}",
        unix_seconds(alert.startsAt),
        now_s,
        _SEVERITIES.get(labels.get("severity", ""), Severity.INFO),
        State.FIRING if alert.status == "firing" else State.CLEAR,
        {GROUP: plain_text(group)} if group else {},
    )


def opened_by(subject: Subject, by: str, note: str, now_s: float) -> Finding:
    """A case that a person opens."""
    said = plain_text(note, MAX_NOTE).strip()
    text = f"{subject.kind} {subject.name}: opened by {by}{f': {said}' if said else ''}"
    return _reported(subject, text, by, f"person {by}", now_s, now_s, Severity.WARNING, State.FIRING, {})


def asked_for_alert(name: str, by: str, note: str, cluster: str, now_s: float) -> Finding:
    """A case about alerts of a name; which these are is known at the next look (`with_alerts`)."""
    finding = opened_by(Subject(SubjectKind.CLUSTER, cluster), by, note, now_s)
    return replace(finding, facts={**finding.facts, ALERT: plain_text(name)})


def _reported(
    subject: Subject, text: str, by: str, detector: str, since_s: float, now_s: float, severity: Severity,
    state: State, facts: dict[str, str],
) -> Finding:  # fmt: skip
    line = LogRecord(Instant(since_s), f"report of {by}", subject, text, 0)
    finding = Finding(
        detector, Fault.ANOMALY, subject, state, Instant(since_s), Instant(max(now_s, since_s)), severity, text,
        1.0, 0.0, evidence=(LogExhibit(line),), facts={REPORTED_BY: by, "meaning": text, **facts},
    )  # fmt: skip
    # the person who reports it knows of it: no second page
    return in_lane(finding, Lane.TICKET, None, f"reported by {by}")


def with_alerts(reports: Iterable[Finding], alerts: Sequence[AlertmanagerAlert]) -> list[Finding]:
    """The reports, those about an alert's name placed on what the firing alerts of that name are about. One that
    fires nowhere stays a case of the cluster, and says so."""
    placed: list[Finding] = []
    for finding in reports:
        name = finding.facts.get(ALERT)
        if name is None:
            placed.append(finding)
            continue
        by, at_s = str(finding.facts[REPORTED_BY]), finding.since.t_s
        firing = [alert for alert in alerts if alert.name == name and alert.subject is not None][:20]
        for alert in firing:
            assert alert.subject is not None
            placed.append(opened_by(alert.subject, by, f"alert {name}: {alert.summary}", at_s))
        if not firing:
            placed.append(opened_by(finding.subject, by, f"alert {name}, which no source reports as firing", at_s))
    return placed


def subject_named(
    kind: str, name: str, inventory: Inventory, may_name: Callable[[Subject], bool] = lambda subject: True
) -> Subject:
    """The subject that a person names. Raises Permanent, with what is like it, where none is known that they
    may know of."""
    if kind not in KINDS[:-1]:
        raise Permanent(f"{kind[:40]!r} is not one of {', '.join(KINDS)}")
    wanted = SubjectKind(kind)
    told = {s for m in inventory.memberships() for s in (m.child, m.parent) if s.kind is wanted}
    known = {subject.name for subject in told if may_name(subject)}
    if name in known:
        return Subject(wanted, name)
    # without its namespace, where that is enough to tell which
    short = [full for full in known if full.partition("/")[2] == name]
    if len(short) == 1:
        return Subject(wanted, short[0])
    like = get_close_matches(name, [*known, *(full.partition("/")[2] for full in known)], 3) or sorted(short)[:3]
    hint = f"; like it: {', '.join(like)}" if like else ""
    raise Permanent(f"no {kind} {name[:100]!r} is known{hint}")
