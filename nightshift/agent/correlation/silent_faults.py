"""Faults that fall silent without being over: an event says nothing more, and nothing was repaired.

A GPU that has to be reset, or its node rebooted, logs its Xid once; then nobody uses it, and its log is quiet. That
the detector calls the episode over says that no further line came, not that the GPU may be trusted. So an incident
with such a line stays open, and its plan may be approved, until something was done: by us, by a person who says so
(reject, close), or by a driver that began anew: while the episode lasts its detector says so, and later
`agent.incidents.manual_repairs` does.
"""

from __future__ import annotations

import sqlalchemy as sa

from nightshift.agent.store.incident import Cause, Incident, findings_of, last_cause
from nightshift.agent.store.tables import findings, incidents, steps
from nightshift.detectors.base import Fault, Finding, Severity, State


def is_unrepaired(incident: Incident) -> bool:
    """Whether silence alone is what speaks for an incident."""
    return any(_outlasts_silence(incident, stored.finding) for stored in incident.findings)


def open_findings(incident: Incident) -> list[Finding]:
    """The findings that a plan may rest on: those that fire, those whose signal went away while they did, and those
    whose silence says nothing."""
    return [f for f in findings_of(incident) if f.state is not State.CLEAR or _outlasts_silence(incident, f)]


def _outlasts_silence(incident: Incident, finding: Finding) -> bool:
    # a repair at most from that time on can have mended what began before it; what came later it did not
    done_s = max((step.at_s for step in incident.history if step.cause == Cause.ACTION_DONE), default=-float("inf"))
    return last_cause(incident) != Cause.REJECTED and is_grave(finding) and finding.since.t_s > done_s


def is_grave(finding: Finding) -> bool:
    """Whether what it tells of lasts until something is done."""
    # other detectors watch a level that comes back when the fault does; an Xid is a line, and lines end
    return finding.fault is Fault.XID and finding.severity is Severity.CRITICAL


def unrepaired() -> sa.ColumnElement[bool]:
    """The same of a row of `incidents`."""
    done = sa.exists().where(
        steps.c.incident == findings.c.incident,
        steps.c.cause == str(Cause.ACTION_DONE),
        steps.c.at_s >= findings.c.since_s,
    )
    grave = sa.exists().where(
        findings.c.incident == incidents.c.number,
        findings.c.fault == str(Fault.XID),
        findings.c.severity == str(Severity.CRITICAL),
        ~done,
    )
    return grave & (incidents.c.moved_by != str(Cause.REJECTED))
