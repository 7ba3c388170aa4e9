"""Jira Cloud (REST v3) and Jira Data Center (REST v2).

developer.atlassian.com/cloud/jira/platform/rest/v3: basic authentication with an e-mail address and an API token;
`description` is a document (ADF); issues are searched by POST search/jql, which names the fields that it wants;
a status changes by a transition's id, and a transition may require fields; 404 says "does not exist or you do not
have permission to see it". docs.atlassian.com/software/jira/docs/api/REST: Data Center takes a personal access
token as bearer, text as description, and POST search. Neither has a key that makes creation idempotent, so a
ticket carries ours as a label.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from nightshift.agent.notify.delivery import DeliveryRefused
from nightshift.agent.notify.tickets.base import TicketState, TicketText, TicketWeb, answer_of, is_missing
from nightshift.agent.rca.summary import plain

_DONE = "done"
_SUMMARY_CHARS, _TEXT_CHARS = 255, 30_000
OURS = frozenset({"summary", "description"})
"""Fields that Nightshift keeps in step; a person's comments and other fields stay."""


class Jira:
    """Issues of one project."""

    reads = True

    def __init__(
        self,
        url: str,
        token: Callable[[], str],
        user: str,
        project: str,
        close_fields: Mapping[str, Any],
        proxy: str = "",
    ) -> None:
        """With a `user` it is Jira Cloud, without one Data Center."""
        self.name, self.place, self._cloud = "jira", project, bool(user)
        self._api = "/rest/api/3" if self._cloud else "/rest/api/2"
        self._close_fields = dict(close_fields)

        def authorization() -> str:
            if not user:
                return f"Bearer {token()}"
            return "Basic " + base64.b64encode(f"{user}:{token()}".encode()).decode()

        self._web = TicketWeb("Jira", url, proxy, authorization)

    def open(self, ticket: TicketText) -> str:
        given = dict(ticket.fields)
        labels = [ticket.key, "nightshift", *given.pop("labels", [])]
        fields = {
            "project": {"key": self.place},
            "issuetype": {"name": "Task"},
            **given,
            **self._words(ticket),
            "labels": labels,
        }
        answer = self._web.call("POST", f"{self._api}/issue", json={"fields": fields})
        return str(answer_of(answer, "Jira", "key"))

    def update(self, name: str, ticket: TicketText) -> None:
        self._web.call("PUT", self._issue(name), json={"fields": self._words(ticket)})

    def close(self, name: str, ticket: TicketText) -> None:
        state = self.state(name)
        if state is None or not state.is_open:
            return
        self.update(name, ticket)
        if not self._move(name, done=True):
            raise DeliveryRefused("400 no transition to a done status can be made from here by us", "Jira")

    def reopen(self, name: str, ticket: TicketText) -> bool:
        state = self.state(name)
        if state is None:
            return False
        if not state.is_open and not self._move(name, done=False):
            return False
        self.update(name, ticket)
        return True

    def state(self, name: str) -> TicketState | None:
        try:
            answer = self._web.call("GET", self._issue(name), params={"fields": "status", "expand": "changelog"})
        except DeliveryRefused as refused:
            if not is_missing(refused):
                raise
            # who may not see the project is told the same: that is no deletion
            self._web.call("GET", f"{self._api}/project/{quote(self.place, safe='')}")
            return None
        status = answer_of(answer, "Jira", "fields", "status", "statusCategory", "key")
        return TicketState(status != _DONE, _who_moved(answer))

    def find(self, channel: str, key: str, thread: str | None, oldest_s: float) -> list[str]:
        jql = f'project = "{self.place}" AND labels = "{thread or key}" ORDER BY created ASC'
        path = "search/jql" if self._cloud else "search"
        body = {"jql": jql, "fields": ["labels"], "maxResults": 20}
        answer = self._web.call("POST", f"{self._api}/{path}", json=body)
        return [str(issue["key"]) for issue in answer_of(answer, "Jira", "issues")]

    def delete(self, channel: str, ts: str) -> None:
        answer = self._web.call("GET", self._issue(ts), params={"fields": "labels"})
        ours = [one for one in answer_of(answer, "Jira", "fields", "labels") if str(one).startswith("nightshift-")]
        if self._is_open(ts):
            self._move(ts, done=True)
        self._web.call("PUT", self._issue(ts), json={"update": {"labels": [{"remove": one} for one in ours]}})

    def try_out(self) -> str:
        me = self._web.call("GET", f"{self._api}/myself")
        self._web.call("GET", f"{self._api}/project/{quote(self.place, safe='')}")
        return f"signed in as {plain(str(answer_of(me, 'Jira', 'displayName')), 80)}; project {self.place} is there"

    def end(self) -> None:
        self._web.close()

    def _issue(self, name: str) -> str:
        return f"{self._api}/issue/{quote(name, safe='')}"

    def _is_open(self, name: str) -> bool:
        state = self.state(name)
        return state is not None and state.is_open

    def _words(self, ticket: TicketText) -> dict[str, Any]:
        text = ticket.text[:_TEXT_CHARS]
        title = " ".join(ticket.title.split())[:_SUMMARY_CHARS]
        return {"summary": title, "description": _document(text) if self._cloud else text}

    def _move(self, name: str, *, done: bool) -> bool:
        """Makes the first transition into or out of a done status for which every required field is known."""
        path = f"{self._issue(name)}/transitions"
        answer = self._web.call("GET", path, params={"expand": "transitions.fields"})
        ways = [
            way
            for way in answer_of(answer, "Jira", "transitions")
            if (way["to"]["statusCategory"]["key"] == _DONE) is done
        ]
        wanted = str(self._close_fields.get("status", "")).lower()
        for way in sorted(ways, key=lambda way: str(way["to"].get("name", "")).lower() != wanted):
            asked = way.get("fields") or {}
            given = {n: v for n, v in self._close_fields.items() if n in asked} if done else {}
            lacking = [n for n, f in asked.items() if f.get("required") and not f.get("hasDefaultValue")]
            if set(lacking) <= set(given):
                self._web.call("POST", path, json={"transition": {"id": way["id"]}, "fields": given})
                return True
        return False


def _document(text: str) -> dict[str, Any]:
    """Text as an Atlassian document: a text node must not be empty, and has no line breaks."""
    lines = [line for line in text.splitlines() if line] or ["-"]
    content = [{"type": "paragraph", "content": [{"type": "text", "text": line}]} for line in lines]
    return {"version": 1, "type": "doc", "content": content}


def _who_moved(answer: Mapping[str, Any]) -> str:
    """Who changed the status last: Cloud lists the newest change first, Data Center last."""
    changes = [
        change
        for change in (answer.get("changelog") or {}).get("histories") or ()
        if any(item.get("field") == "status" for item in change.get("items") or ())
    ]
    last: Mapping[str, Any] = max(changes, key=lambda change: str(change.get("created", "")), default={})
    author = last.get("author") or {}
    named = author.get("emailAddress") or author.get("name") or author.get("displayName")
    return plain(str(named or ""), 100)
