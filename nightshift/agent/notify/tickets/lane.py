"""What should stand in the ticket system: one ticket for each incident of the lane "ticket", in step until the
incident is over; sent by the courier (`agent.notify.courier`).

The row of a ticket is written before it is created. One without an answer is looked for by its key, after a time in
which a search finds it: Jira indexes an issue seconds after it made it. What a person does to a ticket counts: one
that they close closes the incident where their role allows that, and a ticket that they closed or deleted is left
alone until the incident is back after its end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from nightshift.agent.approvals.gate import Gate
from nightshift.agent.approvals.people import Directory
from nightshift.agent.notify.courier import BROKEN_S, Courier, CourierParts
from nightshift.agent.notify.delivery import DeliveryRefused
from nightshift.agent.notify.ledger import TICKET, Delivery, ticket_key
from nightshift.agent.notify.outlets.letter import AlertPhase, Form, letter
from nightshift.agent.notify.tickets.base import (
    TicketState,
    TicketSystem,
    TicketText,
    is_missing,
    key_for,
    ticket_of,
)
from nightshift.agent.notify.tickets.settings import Settings
from nightshift.agent.store.archive import name_of, number_of
from nightshift.agent.store.incident import Cause, Incident
from nightshift.agent.store.incident_store import Conflict
from nightshift.agent.store.tenancy import namespaces_of
from nightshift.detectors.alarms.lanes import Lane, widest

# Ticket systems count calls by the hour: each ticket is asked once in this time, and so many in one comparison.
_ASK_S = 120.0
_ASKED_AT_ONCE = 10
# Statuses that are about one ticket: its fields, its workflow, a rule of its record.
_OF_A_TICKET = ("400", "403", "404", "409", "413", "422")
_OPEN, _CLOSED = "open", "closed"


@dataclass(frozen=True, kw_only=True)
class TicketParts(CourierParts):
    """What the tickets' courier works with; built once in `agent.setup.channels`."""

    system: TicketSystem
    settings: Settings
    cluster: str
    gate: Gate
    directory: Directory
    console_url: str = ""


class TicketCourier(Courier):
    """Keeps one ticket system in step."""

    kind = TICKET
    at_once = 50
    lost_s = 30.0
    _p: TicketParts

    def __init__(self, parts: TicketParts) -> None:
        super().__init__(parts.system.name, parts, 11.0, lookup=parts.system if parts.system.reads else None)
        self._system = parts.system

    def stop(self) -> None:
        super().stop()
        self._system.end()

    # One incident -----------------------------------------------------------------------------------------------

    def _tell(self, incident_id: str, now_s: float) -> None:
        incident = self._p.store.incident(incident_id)
        row = self._ledger.row(ticket_key(incident_id))
        if row is None or (row.ts is None and row.tried_s is None):
            self._first(incident, row, now_s)
        elif row.ts is None and self._system.reads:
            return  # it is being looked for
        else:
            self._attempt(self._name, row.channel, row.key, partial(self._bring, incident, row))

    def _first(self, incident: Incident, row: Delivery | None, now_s: float) -> None:
        """An incident without a ticket: leave it, hold it, or open its ticket."""
        if not incident.is_open:
            if row is not None:  # it ended before its ticket was opened
                self._seen(row, incident)
            return
        turn = 1 if row is None else row.turn
        blank = Delivery(
            ticket_key(incident.id),
            self._name,
            TICKET,
            number_of(incident.id),
            self._system.place,
            key_for(self._p.cluster, incident.id, turn),
            turn=turn,
            seen_s=incident.updated_s,
            seen_version=incident.version,
            watch_until_s=None if row is None else row.watch_until_s,
        )
        held = self._standing.of(incident)
        if widest(stored.finding for stored in incident.findings) is not Lane.TICKET:
            self._ledger.put(blank)  # a finding that makes it a ticket is news
        elif held is not None:
            self._ledger.put(replace(blank, held_until_s=held.until_s))
        else:
            self._attempt(self._name, blank.channel, blank.key, partial(self._open, incident, blank))

    def _open(self, incident: Incident, row: Delivery) -> None:
        ticket = self._ticket(incident, row)
        if not self._system.reads:  # with a look-up, `begin` writes it, and `_reconcile` takes up what was lost
            self._ledger.put(replace(row, seen_s=None))
        # one that was tried may be there and say what held then: it is updated next
        shows = _OPEN if row.tried_s is not None else f"{_OPEN} {ticket.sha256}"
        if self._deliver([row], shows, "open", lambda: self._system.open(ticket)):
            there = self._ledger.row(row.key)
            self._note(incident.id, f"ticket {there.ts if there else ''} opened")

    def _bring(self, incident: Incident, row: Delivery) -> None:
        """Brings a ticket to where its incident stands."""
        if row.ts is None:  # a webhook's: sent again under the same key
            self._open(incident, row)
            return
        ticket = self._ticket(incident, row)
        phase, was = _OPEN if incident.is_open else _CLOSED, (row.shows or _OPEN).partition(" ")[0]
        wanted = f"{phase} {ticket.sha256}"
        if row.shows == wanted or (phase == was == _CLOSED) or (row.withdrawn and phase == was):
            pass
        elif row.withdrawn and phase == _CLOSED:
            self._ledger.change(row.key, shows=wanted)
        elif not self._send(row, ticket, phase, was):
            return
        else:
            self._ledger.change(row.key, shows=wanted, withdrawn=0, told_s=self._p.wall_s())
            if phase != was:
                self._note(incident.id, f"ticket {row.ts} {'closed' if phase == _CLOSED else 'opened again'}")
        self._seen(row, incident)

    def _send(self, row: Delivery, ticket: TicketText, phase: str, was: str) -> bool:
        """Makes a change; False where the ticket cannot follow, and another one, or none, stands for it."""
        name, system = str(row.ts), self._system
        try:
            if phase == _CLOSED:
                self._call(self._name, "close", lambda: system.close(name, ticket))
            elif was == _OPEN:
                self._call(self._name, "update", lambda: system.update(name, ticket))
            elif not self._call(self._name, "reopen", lambda: system.reopen(name, ticket)):
                # closed for good, and the fault is back: a further ticket, under a key of its own
                self._ledger.change(
                    row.key, ts=None, shows=None, turn=row.turn + 1, withdrawn=0, seen_s=None, watch_until_s=None
                )
                return False
        except DeliveryRefused as refused:
            if not (is_missing(refused) and system.reads) or self._state(name) is not None:
                raise
            self._gone(row)
            return False
        return True

    def _ticket(self, incident: Incident, row: Delivery) -> TicketText:
        (summary,) = self._p.store.summaries([incident.id])
        names = list(dict.fromkeys([*namespaces_of(incident.subjects), *incident.namespaces]))
        owner = self._p.directory.owner(names)
        said = letter(
            summary,
            self._p.cluster,
            row.turn,
            AlertPhase.TRIGGERED,
            Form.SHOWN,
            incident.severity,
            self._p.console_url,
        )
        return ticket_of(
            str(row.thread), said, str(incident.state), owner.team if owner else "", self._p.settings.fields
        )

    def _seen(self, row: Delivery, incident: Incident) -> None:
        self._ledger.change(row.key, held_until_s=None, seen_s=incident.updated_s, seen_version=incident.version)

    def _note(self, incident_id: str, note: str) -> None:
        """Into the history, once: the ticket itself is the record, and a note that is lost costs nothing."""
        incident = self._p.store.incident(incident_id)
        try:
            self._p.store.remark(incident, Cause.TICKETED, self._name, note)
        except Conflict:
            self._log.info("ticket not noted", incident=incident_id, note=note)

    # What people do to tickets ----------------------------------------------------------------------------------

    def _keep_up(self, now_s: float) -> None:
        if not self._system.reads:
            return
        wall_s = self._p.wall_s()
        for row in self._ledger.tickets(self._name, wall_s - _ASK_S, _ASKED_AT_ONCE):
            if not self._attempt(self._name, row.channel, f"{row.key}/ask", partial(self._ask, row)):
                return

    def _ask(self, row: Delivery) -> None:
        state = self._state(str(row.ts))
        if state is None:
            self._gone(row)
        elif not state.is_open:
            self._closed_there(row, state)
        else:
            self._ledger.change(row.key, told_s=self._p.wall_s())

    def _state(self, name: str) -> TicketState | None:
        return self._call(self._name, "ask", lambda: self._system.state(name))

    def _closed_there(self, row: Delivery, state: TicketState) -> None:
        """A person closed the ticket: that closes the incident, where their role allows it and nothing is being
        done for it. We may have closed it ourselves, and ended before that was written down: then it is over."""
        incident_id = _incident(row)
        if self._p.store.incident(incident_id).is_open:
            who = state.by or "a person without a name"
            person = self._p.directory.person(who, self._name)
            answer = self._p.gate.close(incident_id, person, f"ticket {row.ts} closed")
            self._log.info("ticket closed", incident=incident_id, ticket=row.ts, by=who, closed=answer.ok)
            if not answer.ok:
                self._note(incident_id, f"ticket {row.ts} closed there by {who}; still open here: {answer.message}")
        self._ledger.change(row.key, withdrawn=1, told_s=self._p.wall_s())

    def _gone(self, row: Delivery) -> None:
        """A person deleted the ticket: it is not made again."""
        self._log.warning("ticket deleted", incident=_incident(row), ticket=row.ts)
        self._ledger.change(row.key, withdrawn=1, told_s=self._p.wall_s())
        self._note(_incident(row), f"ticket {row.ts} is deleted there; no other is opened")

    def _refused(self, outlet: str, place: str, key: str, error: DeliveryRefused) -> None:
        """Each ticket is tried once a minute, and where the credentials are refused, one for all of them."""
        held = key if error.reason.startswith(_OF_A_TICKET) else place
        why = f"ticketing: {key.partition('/')[0]}: {error}"
        self._paces[outlet].leave(held, self._p.wall_s(), BROKEN_S, why)


def _incident(row: Delivery) -> str:
    assert row.incident is not None
    return name_of(row.incident)
