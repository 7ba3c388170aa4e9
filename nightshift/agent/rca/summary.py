"""An incident on one screen, for people: the decision first, evidence by number, cost on both sides, what would
undo it, and what we are not sure of. Nothing is shown that does not still resolve to stored evidence.

One content, three dresses: plain text, Markdown (for reports; what came from outside is escaped) and a terminal
(rich markup); `agent.notify.slack.card` dresses it for Slack. Text from logs, names and labels is data: it is cut
to one line, stripped of control characters and direction marks, and can neither open a link nor pose as our own
words.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from nightshift.agent.rca.grounding import reground
from nightshift.agent.rca.redact import followable
from nightshift.agent.store.diagnosis import (
    Claim,
    Confidence,
    Diagnosis,
    QuotedSentence,
    quoted_sentences,
    suggestion,
)
from nightshift.agent.store.incident import (
    ASIDES,
    Cause,
    Incident,
    IncidentState,
    StoredFinding,
    contest_of,
    entered_s,
    half_done,
    world_says,
)
from nightshift.agent.units import clock_time, duration
from nightshift.controllers.action import Action, traits_of
from nightshift.detectors.base import Fault, Severity, State

MAX_CLAIMS = 6
MAX_QUOTE = 110
MAX_CAVEATS = 3
_MARK = {Severity.CRITICAL: "🔴", Severity.WARNING: "🟠", Severity.INFO: "🟡"}
_DAMAGED = frozenset({Fault.LOSS_DIVERGED, Fault.LOSS_NONFINITE})


@dataclass(frozen=True)
class SummaryLine:
    """One line: `label` (such as `Why`), our own `text`, and quotes from outside that stand under it."""

    label: str
    text: str
    quotes: tuple[tuple[str, str], ...] = ()
    """(evidence id, text) pairs."""


def as_shown(incident: Incident) -> Incident:
    """The incident with only those claims that still resolve to its stored evidence: what any page may show."""
    return incident if incident.diagnosis is None else replace(incident, diagnosis=reground(incident.diagnosis))


def sentence_of(stored: StoredFinding) -> str:
    """A finding's own words; where its signal went away, since when (UTC). Silence takes no word back."""
    gone = f", no data since {clock_time(stored.changed_s)}" if stored.state is State.NO_DATA else ""
    return f"{stored.finding.summary}{gone}"


def headline_of(incident: Incident) -> str:
    """An incident in one sentence: the rules', or a model's where they name no cause. Where none of its findings is
    observed now, with the time of the last data."""
    diagnosis = as_shown(incident).diagnosis
    if diagnosis is not None and (said := _model_sentences(incident, diagnosis)):
        return f"{said[0].marked.rstrip('.')} (the model's word, not proven)"
    return _rules_headline(incident)


def _rules_headline(incident: Incident) -> str:
    what = incident.diagnosis.headline if incident.diagnosis else incident.title
    states = {stored.state: stored.changed_s for stored in sorted(incident.findings, key=lambda s: s.changed_s)}
    silent = State.NO_DATA in states and State.FIRING not in states
    return f"{what}, no data since {clock_time(states[State.NO_DATA])}" if silent else what


def summarise(incident: Incident, now_s: float) -> list[SummaryLine]:
    """The lines of an incident's summary, the headline first."""
    lines = [_head(incident), SummaryLine("In short", in_short(incident, now_s))]
    diagnosis = as_shown(incident).diagnosis
    if diagnosis is None:
        lines.append(SummaryLine("Why", f"{sentence_of(incident.findings[0])} (diagnosis running)"))
    else:
        lines += _runs(diagnosis)
        lines += _suspect(diagnosis)
        lines += _why(diagnosis)
        # the one mistake that cannot be undone: to resume from a damaged checkpoint, or delete the good ones
        if diagnosis.cause in _DAMAGED:
            lines += _warning(diagnosis)
        if diagnosis.hypothesis:
            lines.append(
                SummaryLine("Hypothesis", f"{diagnosis.hypothesis} (not proven)", reading_quotes(incident))
            )
        if incident.reading is not None and incident.reading.checks:
            lines.append(SummaryLine("Check next", "; ".join(incident.reading.checks)))
    lines += _plan(incident, now_s)
    if (contest := contest_of(incident)) is not None:
        said = f"by the language model: {contest.reason.rstrip('.')}. The approver must confirm"
        lines.append(SummaryLine("Contested", said, (("its quote", contest.quote.text),)))
    if diagnosis is not None:
        unsure = [*diagnosis.caveats[:MAX_CAVEATS]]
        if diagnosis.dropped:
            unsure.append(f"{diagnosis.dropped} drafted claims did not hold and are not shown")
        lines += [SummaryLine("Not sure", "; ".join(unsure))] if unsure else []
    lines.append(SummaryLine("State", _state(incident)))
    return lines


_NO_CAUSE = frozenset({Fault.ANOMALY, Fault.SOURCE_LOST})
"""What is named where the rules know no cause."""


def in_short(incident: Incident, now_s: float) -> str:
    """One paragraph for a person at 3 a.m.: what, where, since when, why, what next. Where the rules know no cause,
    what a model reads of it stands first, as a model's word."""
    what, _, where = _rules_headline(incident).partition(" · ")
    since_s = min((s.finding.since.t_s for s in incident.findings), default=incident.opened_s)
    # a judgement or a note comes later than the end
    ended_s = [incident.updated_s, *entered_s(incident.history, IncidentState.RESOLVED)][-1]
    lasted = duration(max(0.0, (now_s if incident.is_open else ended_s) - since_s))
    when = f"since {clock_time(since_s)} UTC ({lasted} ago)" if incident.is_open else f"lasted {lasted}"
    parts = [f"{what}{f' on {where}' if where else ''}, {when}."]
    diagnosis = as_shown(incident).diagnosis
    if diagnosis is not None:
        if model := suggestion(_model_sentences(incident, diagnosis)):
            parts.insert(0, f"The rules name no cause. Not proven, {model}")
        job = diagnosis.facts.get("job")
        if job and str(job) not in parts[0]:
            parts.append(f"It hits job {job}.")
        parts += _because(diagnosis)
    return " ".join([*parts, f"Next: {_next(incident, now_s)}."])


def _model_sentences(incident: Incident, diagnosis: Diagnosis) -> tuple[QuotedSentence, ...]:
    """What a model reads of an incident of which the rules name no cause."""
    if incident.reading is None or not (
        diagnosis.cause in _NO_CAUSE or diagnosis.confidence is Confidence.UNKNOWN or not diagnosis.claims
    ):
        return ()
    return quoted_sentences(incident.reading)


def _because(diagnosis: Diagnosis) -> list[str]:
    """Why, by the first line of the cause's own that was quoted; what else was found in the incident is no
    reason."""
    if not diagnosis.claims:
        return ["The cause is unknown."]
    claims = _in_order(diagnosis.claims)
    first = claims[0]
    own = [claim for claim in claims if set(claim.evidence_ids) & set(first.evidence_ids)]
    chosen = next((claim for claim in own if claim.quotes), first)
    quote = plain(chosen.quotes[0].text, MAX_QUOTE) if chosen.quotes else ""
    if quote and not followable(chosen.quotes[0].text):
        return [f'The log says "{quote}".']
    return [f"Why: {chosen.sentence}."]


def _in_order(claims: Sequence[Claim]) -> list[Claim]:
    """How often something was seen says least, and comes last."""
    return sorted(claims, key=lambda claim: claim.arguments.get("path") == "facts.events")


def _next(incident: Incident, now_s: float) -> str:
    action, by_person = incident.action, incident.state is IncidentState.ESCALATED
    if not incident.is_open:
        return "nothing, it is resolved"
    if action is None:
        reason = (incident.plan_reason or _no_plan(incident)).rstrip(".")
        # which playbook did not fit, and why, stands under Plan
        reason = "no action fits, it is watched" if reason.startswith("watched only (") else reason
        return f"a person must act: {reason}" if by_person else reason
    deed = f"{traits_of(action.kind).does}: {action.target.name}"
    if half_done(incident):
        return f"decide whether to resume, {deed}"
    if incident.state is IncidentState.AWAITING_APPROVAL:
        return f"approve or reject, {deed}" if action.expires_at_s > now_s else f"the plan expired, {deed}"
    return f"by hand, {deed}" if by_person else deed


def reading_quotes(incident: Incident) -> tuple[tuple[str, str], ...]:
    """What the model's own sentences rest on, for display."""
    if incident.reading is None:
        return ()
    quotes = dict.fromkeys(sentence.quote.text for sentence in quoted_sentences(incident.reading))
    return tuple(("its quote", quotable(quote)) for quote in quotes)


def _head(incident: Incident) -> SummaryLine:
    since_s = min((s.finding.since.t_s for s in incident.findings), default=incident.opened_s)
    what = f"{incident.id} {headline_of(incident)} · since {clock_time(since_s)} UTC"
    return SummaryLine("", f"{_MARK[incident.severity]} {what}")


def _runs(diagnosis: Diagnosis) -> list[SummaryLine]:
    facts = diagnosis.facts
    said = []
    if "job" in facts:
        said.append(f"{facts['job']}")
        if facts.get("job_gpus"):
            said.append(f"{float(facts['job_gpus']):.0f} GPUs")
    if "gpu" in facts:
        said.append(str(facts["gpu"]))
    if "node" in facts:
        said.append(f"node {facts['node']}")
    said.append(f"owner {facts['owner']}" if "owner" in facts else "owner not known")
    return [SummaryLine("Runs", " · ".join(said))]


def _suspect(diagnosis: Diagnosis) -> list[SummaryLine]:
    """The rank whose own values left first: named, and said to be no more than a suspect."""
    if "suspect_rank" not in diagnosis.facts:
        return []
    gpu = f" on {diagnosis.facts['suspect_gpu']}" if "suspect_gpu" in diagnosis.facts else ""
    said = (
        f"rank {diagnosis.facts['suspect_rank']}{gpu}: it left its peers first, which suggests its hardware or data"
    )
    return [SummaryLine("Suspect", said)]


def _why(diagnosis: Diagnosis) -> list[SummaryLine]:
    if not diagnosis.claims:
        return [SummaryLine("Why", "cause unknown: no claim passed its check")]
    lines: list[SummaryLine] = []
    for claim in _in_order(diagnosis.claims)[:MAX_CLAIMS]:
        cited = " ".join(f"[{name}]" for name in claim.evidence_ids)
        label = "" if lines else f"Why ({_how_sure(diagnosis)})"
        lines.append(SummaryLine(label, f"{claim.sentence} {cited}", _quotes(claim)))
    more = len(diagnosis.claims) - MAX_CLAIMS
    return lines + ([SummaryLine("", f"and {more} more claims")] if more > 0 else [])


def _how_sure(diagnosis: Diagnosis) -> str:
    """The level, and how often it was right where that was measured."""
    right = diagnosis.facts.get("confidence_right")
    measured = f", right in {100 * right:.0f} % of benchmark incidents" if isinstance(right, float) else ""
    return f"{diagnosis.confidence} confidence{measured}"


def _quotes(claim: Claim) -> tuple[tuple[str, str], ...]:
    return tuple((quote.evidence_id, quotable(quote.text)) for quote in claim.quotes[:2])


def quotable(text: str) -> str:
    """A quote as it may be shown beside Approve: nothing from outside there can be followed or pasted."""
    return "(not shown here: it holds an address or a command)" if followable(text) else text


def _warning(diagnosis: Diagnosis) -> list[SummaryLine]:
    onset = diagnosis.facts.get("damaged_step", diagnosis.facts.get("onset_step"))
    if isinstance(onset, int | float):
        since = f"step {onset:.0f}"
    else:
        since = clock_time(float(diagnosis.facts["since_s"]))
    return [SummaryLine("⚠", f"Do NOT resume from checkpoints after {since}; keep them all")]


def _plan(incident: Incident, now_s: float) -> list[SummaryLine]:
    action = incident.action
    if action is None:
        return [SummaryLine("Plan", incident.plan_reason or _no_plan(incident))]
    radius, does = action.blast_radius, traits_of(action.kind).does
    hit = [
        f"{len(names)} {word}{'s' if len(names) > 1 else ''}"
        for word, names in (
            ("job", radius.jobs),
            ("pod", radius.pods),
            ("node", radius.nodes),
            ("GPU", radius.gpus),
        )
        if names
    ]
    lines = [
        SummaryLine(
            "Plan",
            f"{does}: {action.target.name}{_details(action)}. {_sentence(action.why)}",
        ),
        SummaryLine("Cost", f"{_hours(radius)}. Hit: {', '.join(hit) or 'nobody'}"),
    ]
    if radius.note:
        lines.append(SummaryLine("", radius.note))
    lines.append(
        SummaryLine("Undo", action.undo.how if action.undo.possible else f"not possible: {action.undo.how}")
    )
    if half_done(incident):
        lines.append(SummaryLine("World", what_became(incident)))
        back = f" · nightshift resume {incident.id} --give-back" if action.undo.possible else ""
        lines.append(SummaryLine("Decide", f"nightshift resume {incident.id}{back}"))
    if incident.state is IncidentState.AWAITING_APPROVAL:
        left_s = action.expires_at_s - now_s
        until = clock_time(action.expires_at_s)
        said = f"nightshift approve {incident.id} · nightshift reject {incident.id} · expires {until}"
        lines.append(SummaryLine("Decide", said if left_s > 0 else f"expired at {until}"))
    return lines


def what_became(incident: Incident) -> str:
    """What the world says, in one sentence, of an action whose outcome was unknown."""
    said = world_says(incident)
    return f"{_sentence(said)}" if said else "No answer yet; Nightshift keeps asking"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _details(action: Action) -> str:
    if "checkpoint_step" in action.params:
        return f" from checkpoint {action.params['checkpoint_step']}"
    return " after its job's next checkpoint" if action.params.get("after_checkpoint") else ""


def _hours(radius: object) -> str:
    def figure(value: float) -> str:
        return "not known" if math.isnan(value) else f"≈{value:.1f} GPU-h"

    cost, waiting = (getattr(radius, n) for n in ("cost_gpu_hours", "cost_of_waiting_gpu_hours"))
    return f"{figure(cost)}; waiting: {figure(waiting)}"


def _no_plan(incident: Incident) -> str:
    if incident.state in (IncidentState.OPEN, IncidentState.DIAGNOSED):
        return "being made"
    # why there is no plan stands in the step that decided so
    return next((s.note for s in reversed(incident.history) if s.note and s.cause not in ASIDES), "none")


def _state(incident: Incident) -> str:
    besides = {Cause.WORLD_READ, *ASIDES}
    last = next((step for step in reversed(incident.history) if step.cause not in besides), None)
    said = incident.state.value.replace("_", " ")
    # the plan says why already
    known = f"{incident.plan_reason} {incident.action.why if incident.action is not None else ''}"
    if last is None or not last.note or last.note in known or known.strip() in last.note:
        return said
    return f"{said} ({last.note})"


# Dresses --------------------------------------------------------------------------------------------------------

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]")
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+!|<>~])")


def plain(text: str, limit: int = 600) -> str:
    """Text from anywhere as one harmless line: no control, zero-width, tag or direction characters; cut with an
    ellipsis."""
    # cut before it is normalised: text from outside may be megabytes
    text = _CONTROL.sub("�", unicodedata.normalize("NFC", text[: 4 * limit]))
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def as_text(lines: list[SummaryLine]) -> str:
    """Plain text."""
    return _dress(lines, plain, lambda label: f"{label}: ", lambda quote: f'"{plain(quote, MAX_QUOTE)}"')


def markdown(text: str) -> str:
    """Text from anywhere as Markdown that shows it and does nothing else: no markup, link, mention or image."""
    # a word joiner is invisible, and neither mentions nor links are recognised across it
    return _MARKDOWN.sub(r"\\\1", plain(text)).replace("@", "@\u2060").replace("://", ":\u2060//")


def markdown_quote(text: str) -> str:
    """A quote as a code span that it cannot leave."""
    return "`" + plain(text, MAX_QUOTE).replace("`", "'").replace("://", ":\u2060//") + "`"


def as_markdown(lines: list[SummaryLine]) -> str:
    """Markdown in which nothing from outside is markup, a link, a mention or an image."""

    first, *rest = _dress(lines, markdown, lambda label: f"**{markdown(label)}:** ", markdown_quote).split("\n")
    return "\n".join([f"**{first}**", *(f"{line}  " for line in rest)])


def _dress(
    lines: list[SummaryLine], text: Callable[[str], str], label: Callable[[str], str], quote: Callable[[str], str]
) -> str:
    out = []
    for line in lines:
        out.append((label(line.label) if line.label else "") + text(line.text))
        out += [f"  {text(f'[{name}]')} {quote(said)}" for name, said in line.quotes]
    return "\n".join(out)
