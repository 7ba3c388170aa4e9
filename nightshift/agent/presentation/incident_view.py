"""What an incident's page shows, worked out from the stored incident: charts, claims, plan, history."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import orjson

from nightshift.agent.incidents.rollouts import VersionChange
from nightshift.agent.presentation.line_chart import Chart
from nightshift.agent.rca.summary import sentence_of
from nightshift.agent.store.diagnosis import FACTS, SERIES, Evidence
from nightshift.agent.store.incident import ASIDES, Incident, IncidentState, entered_s, taken_on
from nightshift.agent.units import clock_time, duration, gpu_hours, sentence
from nightshift.collectors.history import History
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.telemetry.metrics import BY_NAME
from nightshift.controllers.action import Action
from nightshift.detectors.alarms.budget import words as budget_words
from nightshift.detectors.base import SeriesExhibit, State

_LEAD_S = 600.0


@dataclass(frozen=True, slots=True)
class PlanView:
    """An action as a person decides on it."""

    action: Action
    reason: str
    sha256: str
    radius: tuple[tuple[str, str], ...]
    expires_in: str
    expired: bool
    waits: bool


def onset_s(incident: Incident) -> float:
    """The earliest onset among its findings."""
    return min((stored.finding.since.t_s for stored in incident.findings), default=incident.opened_s)


def charts(incident: Incident, history: History, now_s: float) -> dict[tuple[Subject, str], Chart]:
    """One chart per signal (its subject and metric) of the findings and the evidence: the kept exhibit, followed by
    what history has since, so that recovery is visible; the action's and the closing time are marked."""
    marks = _marks(incident)
    found: dict[tuple[Subject, str], Chart] = {}
    for stored in incident.findings:
        for exhibit in stored.finding.evidence:
            if not isinstance(exhibit, SeriesExhibit) or (exhibit.subject, exhibit.metric) in found:
                continue
            t_s, values = np.array(exhibit.t_s), np.array(exhibit.values)
            # Some minutes past the end: the line that stays low is what shows that it was over.
            until_s = now_s if incident.is_open else incident.updated_s + _LEAD_S
            start_s = stored.finding.since.t_s - _LEAD_S
            recent_s, recent = history.window(exhibit.subject, exhibit.metric, start_s, until_s)
            if recent_s.size:
                # The exhibit is thinned to what the finding needed; history has every point, for as long as it
                # reaches back.
                if not t_s.size or recent_s[0] <= t_s[0]:
                    t_s, values = recent_s, recent
                else:
                    later = recent_s > t_s[-1]
                    t_s = np.concatenate([t_s, recent_s[later]])
                    values = np.concatenate([values, recent[later]])
            found[exhibit.subject, exhibit.metric] = Chart(
                f"{name_of(exhibit.metric)} · {exhibit.subject.name}",
                exhibit.unit,
                t_s,
                values,
                stored.finding.since.t_s,
                exhibit.reference,
                marks,
                exhibit.note,
            )
    return found


_PEERS = 15
_TOGETHER = (SubjectKind.JOB, SubjectKind.NODE)
"""What makes things of one kind peers, the closest first."""


def peers(subject: Subject, inventory: Inventory, at_s: float) -> list[Subject]:
    """What should look like a subject: others of its kind in its job, else on its node; `_PEERS` at most."""
    for group in inventory.nearest(subject, _TOGETHER, at_s):
        others = [] if group is None else [s for s in inventory.below(group, subject.kind, at_s) if s != subject]
        if others:
            return others[:_PEERS]
    return []


def chart_marks(incident: Incident, changes: Iterable[VersionChange]) -> list[tuple[float, str]]:
    """What the charts of an incident are marked with: each step of its history, and versions that changed."""
    steps = [(step.at_s, sentence(step.heading).lower()) for step in incident.history]
    versions = [(change.at_s, f"{change.component} changed") for change in changes]
    return sorted([*steps, *versions], key=lambda mark: mark[0])


def evidence_chart(item: Evidence, onset: float) -> Chart | None:
    """The chart of an evidence item that is a series; None where it is text or not readable as one."""
    if item.media_type not in (SERIES, FACTS):
        return None
    try:
        body = orjson.loads(item.content)
        t_s = np.array(body["t_s"], dtype=np.float64)
        values = np.array([math.nan if v is None else v for v in body["values"]], dtype=np.float64)
        title = f"{name_of(str(body['metric']))} · {str(body['subject']).partition(':')[2]}"
        unit = str(body.get("unit", ""))
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return None
    # Evidence may come from a collector outside this house: its JSON has whatever shape it has.
    if t_s.ndim != 1 or t_s.shape != values.shape or not t_s.size:
        return None
    return Chart(title, unit, t_s, values, onset)


def name_of(metric: str) -> str:
    """What people call a canonical metric or a step column."""
    return BY_NAME[metric].help if metric in BY_NAME else sentence(metric)


def _marks(incident: Incident) -> tuple[tuple[float, str], ...]:
    words = {
        IncidentState.ACTING: "acted",
        IncidentState.RESOLVED: "resolved",
        IncidentState.UNDOING: "undone",
    }
    return tuple((at_s, word) for state, word in words.items() for at_s in entered_s(incident.history, state))


def plan(incident: Incident, now_s: float) -> PlanView | None:
    """The current plan; None where there is none."""
    action = incident.action
    if action is None:
        return None
    radius = action.blast_radius
    rows = [
        ("Jobs", ", ".join(radius.jobs)),
        ("Nodes", ", ".join(radius.nodes)),
        ("GPUs", _many(radius.gpus)),
        ("Pods", _many(radius.pods)),
        ("Cost of acting", gpu_hours(radius.cost_gpu_hours)),
        ("Cost of waiting", gpu_hours(radius.cost_of_waiting_gpu_hours)),
        ("Undo", undo_words(action)),
        ("Holds while", "; ".join(f"{p.subject.name} {p.fact} = {p.expected}" for p in action.preconditions)),
        ("Note", radius.note),
    ]
    left_s = action.expires_at_s - now_s
    return PlanView(
        action,
        # Playbooks begin the reason with the plan's own why, which stands right above it.
        incident.plan_reason.removeprefix(action.why).strip(" .()"),
        action.plan_sha256,
        tuple((name, text) for name, text in rows if text),
        duration(left_s),
        left_s <= 0,
        incident.state is IncidentState.AWAITING_APPROVAL,
    )


@dataclass(frozen=True, slots=True)
class GlanceRow:
    """A question of the night and its answer, in a few words."""

    question: str
    answer: str
    detail: str = ""


def at_a_glance(incident: Incident, price: float | None) -> list[GlanceRow]:
    """What a person asks first at night: what is broken, how sure, its cost by the hour, what is proposed, what
    happened since, who has it. `price`: of a GPU-hour, where it is configured."""
    return [
        GlanceRow("Broken", *_broken(incident)),
        GlanceRow("How sure", *_sure(incident)),
        GlanceRow("Cost by the hour", *_hourly(incident, price)),
        GlanceRow("Proposed", *_proposed(incident)),
        GlanceRow("Since then", *_since(incident)),
        GlanceRow("Who has it", *_holder(incident)),
    ]


def _broken(incident: Incident) -> tuple[str, str]:
    diagnosis = incident.diagnosis
    if diagnosis is None:
        return incident.title, "diagnosis running"
    places = [str(diagnosis.facts[name]) for name in ("job", "node", "gpu") if name in diagnosis.facts]
    return sentence(diagnosis.cause), " · ".join(places[:2]) or incident.subjects[0].name


def _sure(incident: Incident) -> tuple[str, str]:
    diagnosis = incident.diagnosis
    if diagnosis is None:
        return "not diagnosed yet", ""
    right = diagnosis.facts.get("confidence_right")
    measured = f"right in {100 * right:.0f} % of benchmark incidents" if isinstance(right, float) else ""
    return f"{diagnosis.confidence}, {len(diagnosis.claims)} claims proven", measured


def _hourly(incident: Incident, price: float | None) -> tuple[str, str]:
    """What a stopped or damaged job of so many GPUs loses in an hour, at most."""
    facts = incident.diagnosis.facts if incident.diagnosis is not None else {}
    gpus = float(facts.get("job_gpus", 0.0)) or float("gpu" in facts)
    if not incident.is_open:
        return "none, it is over", ""
    if not gpus:
        waiting = (
            incident.action.blast_radius.cost_of_waiting_gpu_hours if incident.action is not None else math.nan
        )
        known = math.isfinite(waiting)
        return "unknown", f"waiting costs {gpu_hours(waiting)}" if known else "no job is known here"
    money = f", {gpus * price:,.0f} by the price of a GPU-hour" if price is not None else ""
    return f"up to {gpu_hours(gpus)}", f"{gpus:.0f} GPU{'' if gpus == 1 else 's'}{money}"


def _proposed(incident: Incident) -> tuple[str, str]:
    action = incident.action
    if action is None:
        return "no action", incident.plan_reason.partition(" (")[0]
    radius = action.blast_radius
    named = (("job", radius.jobs), ("pod", radius.pods), ("node", radius.nodes), ("GPU", radius.gpus))
    touched = [f"{len(names)} {word}{'' if len(names) == 1 else 's'}" for word, names in named if names]
    return f"{sentence(action.kind)} {action.target.name}", f"touches {', '.join(touched)}" if touched else ""


def _since(incident: Incident) -> tuple[str, str]:
    last = next((step for step in reversed(incident.history) if step.cause not in ASIDES), None)
    if last is None:
        return sentence(incident.state), ""
    return f"{sentence(last.after)}, {clock_time(last.at_s)}", sentence(last.cause)


def _holder(incident: Incident) -> tuple[str, str]:
    taken = taken_on(incident.history)
    if taken is not None:
        return taken.by, f"since {clock_time(taken.at_s)}"
    waits = incident.state is IncidentState.AWAITING_APPROVAL
    return "no one yet", "the plan waits for approval" if waits else ""


_CANNOT = ("cannot be undone", "taken back")  # the latter in plans of earlier versions


def undo_words(action: Action) -> str:
    """How the action is taken back, or that it cannot be."""
    how = action.undo.how
    return how if action.undo.possible or any(words in how for words in _CANNOT) else f"cannot be undone: {how}"


def _many(names: Iterable[str]) -> str:
    named = list(names)
    return ", ".join(named) if len(named) <= 4 else f"{', '.join(named[:3])} and {len(named) - 3} more"


def signals(incident: Incident) -> list[tuple[str, str, str, str, str]]:
    """(state, summary, subject, since when, what it cost of the alarm budget) of each finding."""
    words = {State.FIRING: "firing", State.CLEAR: "clear", State.NO_DATA: "no data"}
    return [
        (
            words[stored.state],
            sentence_of(stored),
            str(stored.finding.subject.name),
            clock_time(stored.finding.since.t_s),
            budget_words(stored.finding),
        )
        for stored in incident.findings
    ]
