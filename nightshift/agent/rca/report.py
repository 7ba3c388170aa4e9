"""A post-mortem draft in Markdown: what happened, why, what was done, by whom, at what cost; people add the rest.

Everything in it comes from the store and the audit log. Text from outside is escaped; claims are those that still
resolve to stored evidence.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from nightshift.agent.rca.summary import (
    as_markdown,
    as_shown,
    headline_of,
    markdown,
    markdown_quote,
    reading_quotes,
    summarise,
)
from nightshift.agent.store.audit import AuditRecord
from nightshift.agent.store.incident import Incident


def post_mortem(incident: Incident, records: Iterable[AuditRecord], now_s: float) -> str:
    """The draft for an incident with its audit records, oldest first."""
    incident, records = as_shown(incident), list(records)
    parts = [
        f"# {markdown(incident.id)}: {markdown(headline_of(incident))}",
        f"Draft of {_time(now_s)}, from the store and the audit log. State: {incident.state.replace('_', ' ')}.",
        "## Summary",
        as_markdown(summarise(incident, now_s)),
        "## Timeline (UTC)",
        _timeline(incident, records),
        "## Cause and proof",
        _proof(incident),
        "## What was done",
        _done(records),
        "## Evidence",
        _evidence(incident),
        "## For people to add",
        "- Impact on users:\n- Why it was not prevented:\n- Follow-ups, each with an owner:",
    ]
    return "\n\n".join(parts) + "\n"


def _time(t_s: float) -> str:
    return datetime.fromtimestamp(t_s, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _timeline(incident: Incident, records: Iterable[AuditRecord]) -> str:
    entries = [
        (s.finding.since.t_s, f"{s.finding.detector}: {s.finding.summary} (onset)", "") for s in incident.findings
    ]
    for step in incident.history:
        if step.before is step.after:  # a remark, such as a judgement of the diagnosis
            what = f"{step.cause.replace('_', ' ')}: {step.note}"
        else:
            what = f"{step.before or 'new'} → {step.after}: {step.note or step.cause}"
        entries.append((step.at_s, what, step.by))
    entries += [
        (r.at_s, "approved" if r.kind == "approval" else r.kind, r.by)
        for r in records
        if r.kind in ("approval", "rejected", "refused")
    ]
    rows = [f"| {_time(at_s)} | {markdown(what)} | {markdown(by)} |" for at_s, what, by in sorted(entries)]
    return "\n".join(["| when | what | by |", "|---|---|---|", *rows])


def _proof(incident: Incident) -> str:
    diagnosis = incident.diagnosis
    if diagnosis is None:
        return "No diagnosis was made."
    lines = [f"Cause: {diagnosis.cause}, confidence {diagnosis.confidence}, by {markdown(diagnosis.author)}.", ""]
    for claim in diagnosis.claims:
        lines.append(f"- {markdown(claim.sentence)} ({claim.predicate}, {', '.join(claim.evidence_ids)})")
        lines += [f"  - {quote.evidence_id}: {markdown_quote(quote.text)}" for quote in claim.quotes]
    lines += [f"- Not sure: {markdown(caveat)}" for caveat in diagnosis.caveats]
    if diagnosis.hypothesis:
        lines.append(f"- Hypothesis, not proven: {markdown(diagnosis.hypothesis)}")
        lines += [f"  - {markdown_quote(quote)}" for _, quote in reading_quotes(incident)]
    if diagnosis.dropped:
        lines.append(f"- {diagnosis.dropped} drafted claims failed their check and are omitted.")
    return "\n".join(lines)


def _done(records: Iterable[AuditRecord]) -> str:
    """Plans, who decided, and what came of them, with the cost that was shown."""
    lines = []
    for record in records:
        body = record.body
        if record.kind == "plan":
            plan = body.get("plan", {})
            radius = plan.get("blast_radius", {})
            cost, waiting = (_hours(radius.get(n)) for n in ("cost_gpu_hours", "cost_of_waiting_gpu_hours"))
            what = markdown(f"{plan.get('kind')} {_name(plan.get('target'))}")
            jobs = markdown(", ".join(radius.get("jobs", ())) or "none")
            lines.append(
                f"- {_time(record.at_s)} proposed: {what}; cost {cost}, waiting {waiting}; jobs hit: {jobs}"
            )
            lines.append(
                f"  - plan {str(body.get('plan_sha256', ''))[:16]}…: {markdown(str(body.get('reason', '')))}"
            )
        elif record.kind in ("approval", "rejected", "refused"):
            lines.append(f"- {_time(record.at_s)} {record.kind} by {markdown(record.by)}")
        elif record.kind == "outcome":
            outcome = body.get("outcome", {})
            said = markdown(f"{outcome.get('status')}: {outcome.get('detail', '')}")
            lines.append(f"- {_time(record.at_s)} {body.get('phase', '')}: {said}")
    return "\n".join(lines) or "Nothing was done to the cluster."


def _name(target: Any) -> str:
    return str(target.get("name", "")) if isinstance(target, Mapping) else str(target)


def _hours(value: Any) -> str:
    known = isinstance(value, int | float) and math.isfinite(value)
    return f"{value:.1f} GPU-h" if known else "not known"


def _evidence(incident: Incident) -> str:
    if incident.diagnosis is None:
        return "None was gathered."
    rows = ["| id | what | source | from | to | SHA-256 |", "|---|---|---|---|---|---|"]
    for item in incident.diagnosis.evidence:
        span = f"{_time(item.start_s)} | {_time(item.end_s)}"
        rows.append(
            f"| {item.id} | {markdown(item.title)} | {markdown(item.source)} | {span} | `{item.sha256[:16]}…` |"
        )
    return "\n".join(rows)
