"""Any system that takes JSON by POST: the body is a template of the settings, or every value that a ticket has.

Each change is one request with the header `Idempotency-Key` (draft-ietf-httpapi-idempotency-key-header): the key,
the event and a hash of what the ticket says. A request without an answer is sent again under the same key, which
the receiver takes for the same. The receiver closes an incident by the JSON API of the console.
"""

from __future__ import annotations

from collections.abc import Callable

from nightshift.agent.notify.tickets.base import TicketState, TicketText, TicketWeb, filled


class Webhook:
    """One address."""

    name, place, reads = "webhook", "webhook", False

    def __init__(self, url: str, token: Callable[[], str], proxy: str = "") -> None:
        self._web = TicketWeb("The webhook", url, proxy, lambda: f"Bearer {token()}")

    def open(self, ticket: TicketText) -> str:
        self._send(ticket, "opened")
        return ticket.key

    def update(self, name: str, ticket: TicketText) -> None:
        self._send(ticket, "updated")

    def close(self, name: str, ticket: TicketText) -> None:
        self._send(ticket, "closed")

    def reopen(self, name: str, ticket: TicketText) -> bool:
        return False

    def state(self, name: str) -> TicketState | None:
        raise NotImplementedError

    def find(self, channel: str, key: str, thread: str | None, oldest_s: float) -> list[str]:
        raise NotImplementedError

    def delete(self, channel: str, ts: str) -> None:
        raise NotImplementedError

    def try_out(self) -> str:
        return "not called: it has nothing to ask without an effect"

    def end(self) -> None:
        self._web.close()

    def _send(self, ticket: TicketText, event: str) -> None:
        values = {**ticket.values, "event": event}
        body = filled(ticket.fields, values) or values
        # a ticket is opened once, whatever has changed since the first try
        key = f"{ticket.key}/{event}" + ("" if event == "opened" else f"/{ticket.sha256[:16]}")
        self._web.call("POST", "", json=body, headers={"Idempotency-Key": key})
