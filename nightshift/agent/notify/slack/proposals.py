"""Promotions in the chat: a kernel's certificate or a policy's step that waits at the gate is one message, with its
evidence, risk, undo and expiry, and the buttons that incidents have; kept in step by the same ledger.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nightshift.agent.approvals.gate import Gate
from nightshift.agent.approvals.kernel_gate import KernelGate, KernelProposal, ProposalState, not_promotable
from nightshift.agent.approvals.kernel_search import SHOWN, fleet_view
from nightshift.agent.approvals.policy import PEOPLE, Person, rule_for
from nightshift.agent.clock import Clock
from nightshift.agent.notify.ledger import PROPOSAL, Delivery, DeliveryLedger
from nightshift.agent.notify.slack.blocks import (
    Block,
    ChatMessage,
    actions,
    button,
    fallback,
    line,
    link,
    paragraph,
    text,
)
from nightshift.agent.notify.slack.settings import Settings
from nightshift.agent.store.incident_store import Store
from nightshift.agent.units import clock_time, full_time, sentence
from nightshift.kernels.certification.evidence import FleetView

FAMILIES = ("kernel", "policy")
_LISTED = 20
_FACTS = 14
_LONG = 700
_LOOK_S = 2.0


@dataclass(frozen=True, slots=True)
class PlanTicket:
    """What a button carries: a plan's name and the hash of what its reader saw."""

    plan: str
    plan_sha256: str

    def value(self) -> str:
        return json.dumps({"k": self.plan, "p": self.plan_sha256})

    @classmethod
    def of(cls, value: str) -> PlanTicket | None:
        """None for what is no promotion's button."""
        try:
            read = json.loads(value) if len(value) <= 600 else None
        except (ValueError, RecursionError):
            return None
        if not isinstance(read, dict) or set(read) != {"k", "p"}:
            return None
        plan, sha256 = read["k"], read["p"]
        if not isinstance(plan, str) or not isinstance(sha256, str) or len(sha256) > 64:
            return None
        return cls(plan, sha256)


class Promotions:
    """Every gate that promotions wait at, by the family that their plans' names begin with."""

    def __init__(self, gate: Gate, store: Store, clock: Clock) -> None:
        self._gates = {family: KernelGate(gate, store, clock, family=family) for family in FAMILIES}
        self._store = store

    def view(self, now_s: float) -> FleetView | None:
        """The machines and jobs as they are now."""
        return fleet_view(self._store, now_s)

    def all(self, of: Person | None = None) -> list[KernelProposal]:
        """All, or what a person may see; those that wait first."""
        found = [item for gate in self._gates.values() for item in gate.proposals(of)]
        return sorted(found, key=lambda item: (item.state is not ProposalState.WAITING, -item.at_s, item.id))

    def gate_of(self, plan: str) -> KernelGate | None:
        return self._gates.get(plan.partition("/")[0])


def card(
    proposal: KernelProposal, gate: Gate, now_s: float, console_url: str, view: FleetView | None = None
) -> ChatMessage:
    """A promotion's message: what, its evidence, risk, undo, who has approved, and until when. view: the machines
    of its jobs; where they or its evidence refuse it, the reason stands in place of the button."""
    action = proposal.action
    facts = action.params
    name = str(facts.get("problem") or facts.get("policy") or action.id)
    to = f" → {facts['to']}" if "to" in facts else ""
    head = f"{sentence(action.kind)}: {name}{to}"
    refused = not_promotable(proposal, view)
    lines = [line(text(head, bold=True)), line(text(action.why))]
    lines += [_fact("Refused", refused, _LONG)] if refused else []
    lines += _figures(facts)
    lines.append(_fact("Risk", action.blast_radius.note or "not stated"))
    lines.append(_fact("Undo", action.undo.how))
    lines.append(_fact("State", _state(proposal, max(1, PEOPLE[rule_for(action, gate.policy)]), now_s)))
    if console_url:
        page = "policies" if action.id.startswith("policy/") else "kernels"
        lines.append(line(link(f"{console_url.rstrip('/')}/{page}", "Console")))
    blocks: list[Block] = [paragraph(lines)]
    if proposal.state is ProposalState.WAITING and now_s < action.expires_at_s:
        value = PlanTicket(action.id, action.plan_sha256).value()
        # What is refused can still be rejected: that takes it off the list of what waits.
        approve = [] if refused else [button("Approve", "approve", value, "primary")]
        blocks.append(actions([*approve, button("Reject…", "reject", value, "danger")]))
    return ChatMessage(fallback(head), tuple(blocks))


def _figures(facts: Mapping[str, Any]) -> list[Block]:
    """The plan's figures, the telling ones first; the rest are in the console."""
    shown = [
        (key, value) for key, value in facts.items() if key not in ("problem", "policy", "to", "not promotable")
    ]
    shown.sort(key=lambda fact: SHOWN.index(fact[0]) if fact[0] in SHOWN else len(SHOWN))
    # What nobody checked is never cut short: an approver takes silence for a check that passed.
    lines = [
        _fact(sentence(key), str(value), _LONG if key == "not checked" else 300) for key, value in shown[:_FACTS]
    ]
    if len(shown) > _FACTS:
        lines.append(line(text(f"and {len(shown) - _FACTS} more figures in the console")))
    return lines


def _fact(label: str, value: str, limit: int = 600) -> Block:
    return line(text(f"{label}: ", bold=True), text(value, limit=limit))


def _state(proposal: KernelProposal, needed: int, now_s: float) -> str:
    action = proposal.action
    names = ", ".join(given.person for given in proposal.approvals)
    if proposal.state is ProposalState.WAITING and now_s >= action.expires_at_s:
        return "expired; propose it again"
    if proposal.state is ProposalState.WAITING:
        given = f"{len(proposal.approvals)} of {needed} approved ({names}); " if names else ""
        return f"{given}waits until {full_time(action.expires_at_s)}"
    by = f" by {names}" if names and proposal.state is not ProposalState.REJECTED else ""
    return f"{proposal.state}{by}{f': {proposal.note}' if proposal.note else ''}"


def listing(proposals: Sequence[KernelProposal], now_s: float) -> ChatMessage:
    """What waits, for the one who asked."""
    waiting = [
        item for item in proposals if item.state is ProposalState.WAITING and now_s < item.action.expires_at_s
    ]
    lines = [
        line(
            text(f"{item.id} ", bold=True),
            text(f"{item.action.why} · until {clock_time(item.action.expires_at_s)} UTC"),
        )
        for item in waiting[:_LISTED]
    ]
    if len(waiting) > _LISTED:
        lines.append(line(text(f"and {len(waiting) - _LISTED} more")))
    head = f"{len(waiting)} promotions wait" if waiting else "No promotion waits."
    lines.append(line(text("Decide: /nightshift show PLAN" if waiting else head)))
    return ChatMessage(fallback(head), (paragraph(lines),))


class Teller:
    """Compares the promotions with their messages. Sending is the courier's."""

    def __init__(self, promotions: Promotions, gate: Gate, ledger: DeliveryLedger, settings: Settings) -> None:
        self._promotions = promotions
        self._gate = gate
        self._ledger = ledger
        self._settings = settings
        self._looked_s = 0.0

    def due(self, now_s: float, wall_s: float) -> Iterator[tuple[Delivery, ChatMessage, bool]]:
        """(row, what it should show, whether it is there) of each message that is missing or out of date. One that
        was decided before the chat knew of it is left alone."""
        if not self._settings.promotions or wall_s < self._looked_s + _LOOK_S:
            return
        self._looked_s = wall_s
        channel = self._settings.promotions_channel or self._settings.channel
        view = self._promotions.view(now_s)
        for proposal in self._promotions.all():
            content = card(proposal, self._gate, now_s, self._settings.console_url, view)
            row = self._ledger.row(proposal.id)
            decidable = proposal.state is ProposalState.WAITING and now_s < proposal.action.expires_at_s
            if row is None or (row.ts is None and row.tried_s is None):
                if decidable:
                    yield Delivery(proposal.id, "slack", PROPOSAL, None, channel, posted_s=now_s), content, False
            elif row.ts is not None and row.shows != content.sha256:
                yield row, content, True


__all__: Sequence[str] = ("PlanTicket", "Promotions", "Teller", "card", "listing")
