"""What an incident's message and its thread say. Decides purely: the same incident gives the same content.

The message is the one-screen summary with its buttons. The thread holds what would make it longer: every claim with
its quotes, then each thing that happened, with the proof of recovery at its end.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from nightshift.agent.approvals.questions import Question
from nightshift.agent.notify.slack.blocks import (
    Block,
    ChatMessage,
    actions,
    button,
    fallback,
    line,
    link,
    mention,
    paragraph,
    text,
)
from nightshift.agent.rca.question import as_checked, spoken
from nightshift.agent.rca.summary import SummaryLine, as_shown, quotable, reading_quotes, summarise
from nightshift.agent.store.archive import NoSuchIncident, number_of
from nightshift.agent.store.incident import (
    CLOSABLE,
    Cause,
    HistoryStep,
    Incident,
    IncidentState,
    IncidentSummary,
    unanswered_since_s,
)
from nightshift.agent.units import clock_time, duration, sentence
from nightshift.detectors.alarms.lanes import Lane, widest
from nightshift.detectors.base import State

_S = IncidentState
# Lines of the summary that are for a terminal; here the buttons stand for them.
_DECIDED_ELSEWHERE = frozenset({"Decide"})
_MAX_ITEMS = 20
MAX_LISTED = 10
SNOOZABLE = (_S.AWAITING_APPROVAL, _S.ESCALATED)
TOLD = {
    Cause.APPROVED: "Approved",
    Cause.REJECTED: "Rejected",
    Cause.EXPIRED: "The plan expired; a new one is being made",
    Cause.WORLD_CHANGED: "The world changed, so the plan is made again",
    Cause.HALTED: "Halted",
    Cause.INTENT_STORED: "Started",
    Cause.ACTION_DONE: "Done; waiting for proof of recovery",
    Cause.ACTION_FAILED: "The action failed",
    Cause.OUTCOME_UNKNOWN: "Unknown whether the action happened: a person must check",
    Cause.WORLD_READ: "The cluster now says",
    Cause.EVIDENCE_COLLECTED: "Evidence for the vendor",
    Cause.TICKETED: "Ticket system",
    Cause.CONTEST_SHOWN: "Asked to confirm a contested plan",
    Cause.RESUMED: "Resumed",
    Cause.UNDO_REQUESTED: "Taking it back",
    Cause.CONFIRMED: "Recovered",
    Cause.NOT_CONFIRMED: "No recovery; taking the action back",
    Cause.CONTAINMENT_KEPT: "No recovery; what was taken out of use stays out",
    Cause.UNDONE: "Undone; a person must check",
    Cause.CLEARED_BY_ITSELF: "Cleared",
    Cause.RETURN_DUE: "The fault is gone; what is next is giving the node back",
    Cause.RELAPSED: "It is back",
    Cause.CLOSED_BY_PERSON: "Closed",
    Cause.NOT_A_FAULT: "Not a fault",
    Cause.ACKNOWLEDGED: "Taken on",
    Cause.PROPOSED: "Proposed by an agent, not checked",
    Cause.JUDGED_RIGHT: "The diagnosis was right",
    Cause.JUDGED_WRONG: "The diagnosis was wrong",
    Cause.UNDER_WAY: "Still under way",
    Cause.GUARD_REFUSED: "Denied by the guard: a person must check",
    Cause.STAGE_FAILED: "Nightshift could not continue: a person must check",
}
"""What the thread is told of; other moves show in the message alone."""
OUTCOMES = frozenset(TOLD) - {Cause.EXPIRED, Cause.WORLD_CHANGED}
"""What the thread is told of even during a storm."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a button carries: an incident and the exact plan that its reader saw. Never who they are."""

    incident: str
    plan_sha256: str

    def value(self) -> str:
        return json.dumps({"i": self.incident, "p": self.plan_sha256})

    @classmethod
    def of(cls, value: str) -> Ticket:
        """Raises ValueError for a value that no button of ours carries."""
        try:
            # Ours have some 100 characters; a forged one may have 2,000, all of them brackets.
            read = json.loads(value) if len(value) <= 300 else None
            if not isinstance(read, dict) or set(read) != {"i", "p"}:
                raise ValueError("another shape")
            incident, plan = read["i"], read["p"]
            # Raises for a name that no incident of ours has, before the store is asked with it.
            number_of(incident)
            if not isinstance(plan, str) or len(plan) > 64:
                raise ValueError("no hash")
        except (ValueError, RecursionError, AttributeError, NoSuchIncident) as error:
            raise ValueError("not a button of Nightshift") from error
        return cls(incident, plan)


def card(incident: Incident, now_s: float, console_url: str, snooze_s: float, waits: str = "") -> ChatMessage:
    """An incident's message. Its first line stands in notifications."""
    lines = summarise(incident, now_s)
    shown = [
        _shown(item, bold=not number) for number, item in enumerate(lines) if item.label not in _DECIDED_ELSEWHERE
    ]
    if incident.state is _S.AWAITING_APPROVAL and incident.action is not None:
        shown.append(line(text(f"Expires {clock_time(incident.action.expires_at_s)} UTC", bold=True)))
    found = [stored.finding for stored in incident.findings]
    if (lane := widest(found)) is not Lane.PAGE:
        shown.append(
            line(text(f"{lane.capitalize()}, no page: {found[0].facts.get('lane_reason', '')}", limit=200))
        )
    if waits:
        shown.append(line(text(waits)))
    if console_url:
        shown.append(line(link(f"{console_url.rstrip('/')}/incidents/{incident.id}", "Console")))
    blocks = [paragraph(shown)]
    buttons = list(_buttons(incident, snooze_s))
    if buttons:
        blocks.append(actions(buttons))
    return ChatMessage(fallback(lines[0].text), tuple(blocks))


def waiting_words(until_s: float) -> str:
    """Why an incident that would page does not yet."""
    return f"Ticket, no page: an automatic repair. Pages at {clock_time(until_s)} UTC if it has not recovered"


def _shown(item: SummaryLine, bold: bool) -> Block:
    parts = [text(f"{item.label}: " if len(item.label) > 1 else f"{item.label} ", bold=True)] if item.label else []
    parts.append(text(item.text, bold=bold))
    for name, said in item.quotes:
        parts += [text(f"  [{name}] ".replace("  ", " ")), text(said, code=True, limit=110)]
    return line(*parts)


def _buttons(incident: Incident, snooze_s: float) -> Iterator[Block]:
    plan = incident.action.plan_sha256 if incident.action is not None else ""
    value = Ticket(incident.id, plan).value()
    if incident.state is _S.AWAITING_APPROVAL and incident.action is not None:
        yield button("Approve", "approve", value, "primary")
        # The dots: it opens a dialog that asks why, and rejects nothing yet.
        yield button("Reject…", "reject", value, "danger")
    if incident.is_open and unanswered_since_s(incident.history) is not None:
        yield button("Acknowledge", "take", value)
    if incident.state in SNOOZABLE:
        yield button(f"Snooze {duration(snooze_s)}", "snooze", value)
    if incident.diagnosis is not None:
        yield button("Show evidence", "evidence", value)
    if incident.state in CLOSABLE:
        yield button("Not a fault", "not_a_fault", value)


def story(incident: Incident) -> ChatMessage | None:
    """The diagnosis at length, for the thread; None while there is none."""
    diagnosis = as_shown(incident).diagnosis
    if diagnosis is None:
        return None
    lines = [line(text(f"Why: {sentence(diagnosis.cause)}, {diagnosis.confidence} confidence", bold=True))]
    for claim in diagnosis.claims[:_MAX_ITEMS]:
        parts = [text(f"• {claim.sentence} [{', '.join(claim.evidence_ids)}]")]
        for quote in claim.quotes[:3]:
            parts += [text(f" [{quote.evidence_id}] "), text(quotable(quote.text), code=True, limit=200)]
        lines.append(line(*parts))
    if diagnosis.hypothesis:
        parts = [text("Hypothesis, not proven: ", bold=True), text(diagnosis.hypothesis)]
        parts += [text(f" {quote}", code=True, limit=200) for _, quote in reading_quotes(incident)]
        lines.append(line(*parts))
    if diagnosis.dropped:
        lines.append(line(text(f"{diagnosis.dropped} drafted claims did not hold and are not shown")))
    # a judgement is of the diagnosis, and binds no plan
    value = Ticket(incident.id, "").value()
    judged = actions([button("Diagnosis right", "right", value), button("Diagnosis wrong", "wrong", value)])
    return ChatMessage(fallback(f"{incident.id}: {diagnosis.headline}"), (paragraph(lines), judged))


def answer(question: Question) -> ChatMessage:
    """A question and its answer, for the thread."""
    lines = spoken(question.text, as_checked(question.answer))
    shown = [_shown(item, bold=not number) for number, item in enumerate(lines[:_MAX_ITEMS])]
    return ChatMessage(fallback(f"{question.incident}: {question.text}"), (paragraph(shown),))


def evidence(incident: Incident) -> ChatMessage:
    """Every evidence item, for the one who asked."""
    diagnosis = as_shown(incident).diagnosis
    if diagnosis is None:
        return said(f"{incident.id} has no diagnosis yet.")
    lines = []
    for item in diagnosis.evidence[:_MAX_ITEMS]:
        head = f"[{item.id}] {item.title or item.source}: {item.query}"
        when = f" {clock_time(item.start_s)}–{clock_time(item.end_s)} UTC, sha256 {item.sha256[:12]}… "
        excerpt = item.content[:400].decode(errors="replace")
        lines.append(line(text(head, bold=True, limit=200), text(when), text(excerpt, code=True, limit=300)))
    more = len(diagnosis.evidence) - _MAX_ITEMS
    if more > 0:
        lines.append(line(text(f"and {more} more: nightshift report {incident.id}")))
    return (
        ChatMessage(fallback(f"Evidence of {incident.id}"), (paragraph(lines),)) if lines else said("No evidence.")
    )


def event(incident: Incident, step: HistoryStep) -> ChatMessage:
    """One thing that happened, for the thread. Recovery is told with what proves it."""
    told = TOLD[Cause(step.cause)]
    lines = [line(text(f"{told}", bold=True), text(f" · {step.by} · {clock_time(step.at_s)} UTC"))]
    if step.note:
        lines.append(line(text(step.note)))
    if step.after is _S.RESOLVED:
        lines += [line(text(f"✓ {proof}")) for proof in recovery(incident)]
    return ChatMessage(fallback(f"{incident.id}: {told}"), (paragraph(lines),))


def recovery(incident: Incident) -> list[str]:
    """What proves that it is over: each signal that fired, and since when it is clear."""
    words = {State.CLEAR: "clear since", State.NO_DATA: "no data since", State.FIRING: "still firing since"}
    return [
        f"{item.finding.summary}: {words[item.state]} {clock_time(item.changed_s)} UTC"
        for item in incident.findings[:_MAX_ITEMS]
    ]


def reminder(incident: Incident, waited_s: float, escalate_to: str) -> ChatMessage:
    """Says in the thread that no one has answered; mentions whom it escalates to."""
    waits = duration(waited_s)
    what = {_S.AWAITING_APPROVAL: "no decision yet", _S.ESCALATED: "a person must act"}.get(
        incident.state, "not acknowledged"
    )
    parts = [text(f"{incident.id}: {what} for {waits}.")]
    if incident.state is _S.AWAITING_APPROVAL and incident.action is not None:
        parts.append(text(f" The plan expires {clock_time(incident.action.expires_at_s)} UTC."))
    if escalate_to:
        parts += [text(" "), mention(escalate_to)]
    return ChatMessage(fallback(f"{incident.id}: {what} for {waits}"), (paragraph([line(*parts)]),))


def storm(rows: Sequence[IncidentSummary], since_s: float, console_url: str, what: str = "Storm") -> ChatMessage:
    """Many incidents as one message: how many, of what, in which state, and the newest by name."""
    # Named are those that are open: a list of what is over would push them out of sight.
    still = [row for row in rows if row.state is not _S.RESOLVED]
    head = f"{what}: {len(rows)} incidents since {clock_time(since_s)} UTC, {len(still)} still open"
    states = ", ".join(
        f"{n} {state.replace('_', ' ')}" for state, n in Counter(r.state for r in still).most_common()
    )
    causes = Counter(_fault(row) for row in still).most_common(5)
    lines = [line(text(head, bold=True))]
    if states:
        lines.append(line(text("State: ", bold=True), text(states)))
        lines.append(line(text("What: ", bold=True), text(", ".join(f"{n} {sentence(c)}" for c, n in causes))))
    lines += [line(text(f"{row.id} {row.title}", limit=160)) for row in still[:MAX_LISTED]]
    lines.append(line(text("Decide: /nightshift incidents, /nightshift approve INC-…")))
    if console_url:
        lines.append(line(link(f"{console_url.rstrip('/')}/incidents?state=open", "Console")))
    return ChatMessage(fallback(head), (paragraph(lines),))


def _fault(row: IncidentSummary) -> str:
    return str(row.cause or (row.findings[0].fault if row.findings else "not known"))


def listing(
    rows: Sequence[IncidentSummary], now_s: float, suppressed: Mapping[str, str] = MappingProxyType({})
) -> ChatMessage:
    """Open incidents, for the one who asked. `suppressed`: by incident, why nobody is told of it now."""
    if not rows:
        return said("No open incidents.")
    lines = [
        line(text(f"{row.id} ", bold=True), text(f"{row.state.replace('_', ' ')} · {row.title} · "),
             text(f"{duration(now_s - row.opened_s)} ago"),
             *([text(f" · suppressed: {suppressed[row.id]}")] if row.id in suppressed else []))
        for row in rows[:_MAX_ITEMS]
    ]  # fmt: skip
    more = len(rows) - _MAX_ITEMS
    if more > 0:
        lines.append(line(text(f"and {more} more")))
    return ChatMessage(fallback(f"{len(rows)} open incidents"), (paragraph(lines),))


def elsewhere(sentence_: str, console_url: str, incident_id: str) -> ChatMessage:
    """One sentence, and where to go instead."""
    lines = [line(text(sentence_))]
    if console_url:
        lines.append(line(link(f"{console_url.rstrip('/')}/incidents/{incident_id}", "Approve it in the console")))
    return ChatMessage(fallback(sentence_), (paragraph(lines),))


def said(sentence_: str) -> ChatMessage:
    """One sentence."""
    return ChatMessage(fallback(sentence_), (paragraph([line(text(sentence_))]),))
