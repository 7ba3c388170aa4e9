"""ServiceNow, by its Table API (docs.servicenow.com, "Table API"; states of the incident table: "Incident states").

A record is created by POST /api/now/table/TABLE and known by its sys_id; ours is its `correlation_id`. States of an
incident: 1 new, 2 in progress, 3 on hold, 6 resolved, 7 closed, 8 cancelled; to resolve needs `close_code` and
`close_notes` (a data policy answers 403 without). A query with a field that does not exist returns every record, so
what is found is compared. 404 is a deleted record or one that an access rule hides. 429 states its end in
`X-RateLimit-Reset`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from nightshift.agent.notify.delivery import DeliveryRefused
from nightshift.agent.notify.tickets.base import TicketState, TicketText, TicketWeb, answer_of, is_missing
from nightshift.agent.rca.summary import plain

_OPEN = frozenset({"1", "2", "3"})
_IN_PROGRESS = "2"
_URGENCY = {"critical": "1", "warning": "2", "info": "3"}
_TITLE_CHARS, _TEXT_CHARS = 160, 4000
_WHO = ("closed_by.email", "closed_by.user_name", "resolved_by.email", "resolved_by.user_name")


class ServiceNow:
    """Records of one table."""

    name, reads = "servicenow", True

    def __init__(
        self,
        url: str,
        token: Callable[[], str],
        user: str,
        table: str,
        close_fields: Mapping[str, Any],
        proxy: str = "",
    ) -> None:
        """With a `user` the token is their password, without one an OAuth token."""
        self.place = table or "incident"
        self._table = f"/api/now/table/{quote(self.place, safe='')}"
        self._close_fields = {"state": "6", "close_code": "Solution provided", **close_fields}

        def authorization() -> str:
            if not user:
                return f"Bearer {token()}"
            return "Basic " + base64.b64encode(f"{user}:{token()}".encode()).decode()

        self._web = TicketWeb("ServiceNow", url, proxy, authorization)

    def open(self, ticket: TicketText) -> str:
        body = {
            "urgency": _URGENCY.get(ticket.values["severity"], "3"),
            **ticket.fields,
            **self._words(ticket),
            "correlation_id": ticket.key,
            "correlation_display": "Nightshift",
        }
        answer = self._web.call("POST", self._table, json=body, params={"sysparm_fields": "sys_id"})
        return str(answer_of(answer, "ServiceNow", "result", "sys_id"))

    def update(self, name: str, ticket: TicketText) -> None:
        self._patch(name, self._words(ticket))

    def close(self, name: str, ticket: TicketText) -> None:
        state = self.state(name)
        if state is None or not state.is_open:
            return
        notes = {"close_notes": "Nightshift: the fault is over."}
        self._patch(name, {**self._words(ticket), **notes, **self._close_fields})

    def reopen(self, name: str, ticket: TicketText) -> bool:
        state = self.state(name)
        if state is None:
            return False
        # a closed record takes the request and stays closed
        if not state.is_open and str(self._patch(name, {"state": _IN_PROGRESS}).get("state")) not in _OPEN:
            return False
        self.update(name, ticket)
        return True

    def state(self, name: str) -> TicketState | None:
        fields = ",".join(("sys_id", "state", "active", *_WHO))
        try:
            answer = self._web.call(
                "GET", f"{self._table}/{quote(name, safe='')}", params={"sysparm_fields": fields}
            )
        except DeliveryRefused as refused:
            if not is_missing(refused):
                raise
            # an access rule hides a record by the same answer: that is no deletion
            self._readable()
            return None
        record = answer_of(answer, "ServiceNow", "result")
        who = next((str(record[field]) for field in _WHO if record.get(field)), "")
        is_open = str(record.get("active", "true")).lower() != "false" and str(record.get("state")) != str(
            self._close_fields["state"]
        )
        return TicketState(is_open, plain(who, 100))

    def find(self, channel: str, key: str, thread: str | None, oldest_s: float) -> list[str]:
        wanted = thread or key
        query = f"correlation_id={wanted}^ORDERBYsys_created_on"
        params = {"sysparm_query": query, "sysparm_fields": "sys_id,correlation_id", "sysparm_limit": "20"}
        found = answer_of(self._web.call("GET", self._table, params=params), "ServiceNow", "result")
        if found and all(record.get("correlation_id") != wanted for record in found):
            raise DeliveryRefused(
                f"403 table {self.place} has no field correlation_id that we may read", "ServiceNow"
            )
        return [str(record["sys_id"]) for record in found if record.get("correlation_id") == wanted]

    def delete(self, channel: str, ts: str) -> None:
        self._patch(ts, {**self._close_fields, "close_notes": "Nightshift: a second copy", "correlation_id": ""})

    def try_out(self) -> str:
        self._readable()
        return f"table {self.place} can be read"

    def end(self) -> None:
        self._web.close()

    def _readable(self) -> None:
        params = {"sysparm_limit": "1", "sysparm_fields": "sys_id"}
        if not answer_of(self._web.call("GET", self._table, params=params), "ServiceNow", "result"):
            raise DeliveryRefused(f"403 no record of table {self.place} may be read", "ServiceNow")

    def _patch(self, name: str, values: Mapping[str, Any]) -> Mapping[str, Any]:
        answer = self._web.call("PATCH", f"{self._table}/{quote(name, safe='')}", json=values)
        result: Mapping[str, Any] = answer_of(answer, "ServiceNow", "result")
        return result

    def _words(self, ticket: TicketText) -> dict[str, str]:
        return {
            "short_description": " ".join(ticket.title.split())[:_TITLE_CHARS],
            "description": ticket.text[:_TEXT_CHARS],
        }
