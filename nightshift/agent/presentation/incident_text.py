"""An incident as text for a terminal: one screen, the decision first, evidence by number, cost on both sides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from nightshift.agent.incidents.suppression import Suppression
from nightshift.agent.presentation.incident_view import undo_words
from nightshift.agent.rca.summary import as_shown, headline_of, in_short, quotable, reading_quotes, sentence_of
from nightshift.agent.rca.summary import plain as one_line
from nightshift.agent.store.diagnosis import Diagnosis
from nightshift.agent.store.incident import Incident, IncidentState, IncidentSummary, contest_of, taken_on
from nightshift.agent.store.records import dump, load, plain
from nightshift.agent.units import clock_time, duration, full_time, gpu_hours, sentence
from nightshift.controllers.action import Action
from nightshift.detectors.alarms.budget import words as budget_words
from nightshift.detectors.base import Severity, State

MARKS = {
    Severity.CRITICAL: ("✕", "bold red"),
    Severity.WARNING: ("!", "bold yellow"),
    Severity.INFO: ("i", "bold blue"),
}
STYLES = {
    IncidentState.AWAITING_APPROVAL: "bold yellow",
    IncidentState.ESCALATED: "bold red",
    IncidentState.RESOLVED: "green",
}
_NOT_STORED = ("suppressed",)
_SIGNAL = {State.FIRING: ("firing", "red"), State.CLEAR: ("clear", "green"), State.NO_DATA: ("no data", "yellow")}


def halt_text(by: str, reason: str) -> Text:
    """That no action starts now, and why. by: empty where the reader may not see who."""
    return Text(
        f"Every action is halted{f' by {by}' if by else ''}{f': {one_line(reason)}' if reason else ''}",
        style="bold yellow",
    )


def incident_table(
    rows: Sequence[IncidentSummary], now_s: float, suppressed: Mapping[str, str] = MappingProxyType({})
) -> RenderableType:
    """The list, newest first. `suppressed`: by incident, why nobody is told of it now."""
    if not rows:
        return Text("No open incidents. Ended ones: --all", style="dim")
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("", "ID", "STATE", "OPENED", "WHAT", "PLAN"):
        table.add_column(heading, no_wrap=heading not in ("WHAT",))
    for row in rows:
        mark, style = MARKS[row.severity]
        state = Text(row.state.replace("_", " "), style=STYLES.get(row.state, ""))
        opened = f"{duration(now_s - row.opened_s)} ago"
        plan = (
            row.action_kind.replace("_", " ") if row.action_kind and row.state is not IncidentState.RESOLVED else ""
        )
        what = Text(row.title)
        if row.id in suppressed:
            what.append(f"  suppressed: {suppressed[row.id]}", style="dim")
        table.add_row(Text(mark, style=style), row.id, state, opened, what, plan)
    return table


def incident_text(incident: Incident, now_s: float, suppressed: str = "") -> RenderableType:
    """Everything that a person needs to decide; of the diagnosis, what still resolves to stored evidence."""
    incident = as_shown(incident)
    mark, style = MARKS[incident.severity]
    since_s = min((s.finding.since.t_s for s in incident.findings), default=incident.opened_s)
    head = Text.assemble(
        (f"{mark} {incident.id} ", style),
        (headline_of(incident), "bold"),
    )
    state = Text.assemble(
        (incident.state.replace("_", " "), STYLES.get(incident.state, "cyan")),
        (f" · since {full_time(since_s)}", "dim"),
    )
    parts: list[RenderableType] = [head, state, Text(one_line(in_short(incident, now_s), 1200))]
    taken = taken_on(incident.history)
    if taken is not None:
        parts.append(Text(f"taken on by {taken.by}", style="green"))
    if suppressed:
        parts.append(Text(f"muted: {suppressed}", style="yellow"))
    parts.append(Text(""))
    for stored in incident.findings:
        word, colour = _SIGNAL[stored.state]
        parts.append(Text.assemble((f"{word:>8}  ", colour), sentence_of(stored)))
        parts.append(Text(f"          {budget_words(stored.finding)}", style="dim"))
    if incident.diagnosis is not None:
        parts += _diagnosis(incident, incident.diagnosis)
    if incident.action is not None:
        parts += [Text(""), *_plan(incident, incident.action, now_s)]
    if (contest := contest_of(incident)) is not None:
        parts.append(Text(f"Contested by the language model: {one_line(contest.reason)}", style="bold yellow"))
        parts.append(Text(f'    "{one_line(contest.quote.text)}"', style="dim"))
    parts.append(Text(""))
    for step in incident.history:
        note = f" · {step.note}" if step.note else ""
        parts.append(
            Text(f"{clock_time(step.at_s)}  {step.heading.replace('_', ' ')} ({step.by}){note}", style="dim")
        )
    return Group(*parts)


def _diagnosis(incident: Incident, diagnosis: Diagnosis) -> list[RenderableType]:
    """Cause, claims with their quotes, caveats, and what the language model read beside."""
    parts: list[RenderableType] = [
        Text(""),
        Text(f"Why: {sentence(diagnosis.cause)}, confidence {diagnosis.confidence}", style="bold"),
    ]
    for claim in diagnosis.claims:
        parts.append(Text(f"  • {one_line(claim.sentence)} [{', '.join(claim.evidence_ids)}]"))
        parts += [
            Text(f'    [{quote.evidence_id}] "{one_line(quotable(quote.text))}"', style="dim")
            for quote in claim.quotes
        ]
    parts += [Text(f"  ⚠ {caveat}", style="yellow") for caveat in diagnosis.caveats]
    if diagnosis.hypothesis:
        parts.append(Text(f"  Hypothesis, not proven: {diagnosis.hypothesis}", style="italic"))
    parts += [Text(f'    "{one_line(quote)}"', style="dim") for _, quote in reading_quotes(incident)]
    for check in incident.reading.checks if incident.reading is not None else ():
        parts.append(Text(f"  Check next: {check}", style="italic"))
    return parts


def _plan(incident: Incident, action: Action, now_s: float) -> list[RenderableType]:
    radius = action.blast_radius
    reach = ((radius.jobs, "job"), (radius.nodes, "node"), (radius.gpus, "GPU"), (radius.pods, "pod"))
    touched = [f"{len(names)} {word}{'s' if len(names) > 1 else ''}" for names, word in reach if names]
    lines: list[RenderableType] = [
        Text(f"Plan: {action.kind.replace('_', ' ')} {action.target.name}", style="bold"),
        Text(f"  {action.why}"),
        Text(
            f"  Touches {', '.join(touched) or 'nothing'}. Cost {gpu_hours(radius.cost_gpu_hours)}; "
            f"waiting costs {gpu_hours(radius.cost_of_waiting_gpu_hours)}. Undo: {undo_words(action)}"
        ),
        Text(f"  sha256 {action.plan_sha256}", style="dim"),
    ]
    if incident.state is IncidentState.AWAITING_APPROVAL:
        left = duration(action.expires_at_s - now_s)
        lines.append(
            Text.from_markup(
                f"  [bold yellow]nightshift approve {escape(incident.id)}[/]  ·  "
                f"nightshift reject {escape(incident.id)} --reason …  ·  expires in {left}"
            )
        )
    return lines


def incident_json(incident: Incident | IncidentSummary, suppressed: Suppression | None = None) -> Any:
    """Plain JSON values of an incident; the plan's hash is beside the plan. `suppressed`: why nobody is told."""
    values = plain(incident) | {"suppressed": None if suppressed is None else plain(suppressed)}
    if isinstance(incident, Incident) and incident.action is not None:
        values["plan_sha256"] = incident.action.plan_sha256
    return values


def incident_of(values: Mapping[str, Any]) -> Incident:
    """An incident as it was before `incident_json`."""
    hidden = (*_NOT_STORED, "plan_sha256")
    return load(Incident, dump({name: value for name, value in values.items() if name not in hidden}))


def summary_of(values: Mapping[str, Any]) -> IncidentSummary:
    # Through the store's own records, so that both ends have one reading of a state or a time.
    return load(IncidentSummary, dump({name: value for name, value in values.items() if name not in _NOT_STORED}))
