"""What a ticket says, and what a ticket system can do. Each system is one file and one line in
`agent.notify.tickets.settings`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from nightshift.agent.notify.delivery import DeliveryRefused
from nightshift.agent.notify.outlets.letter import Letter
from nightshift.agent.notify.outlets.web import OutletWeb
from nightshift.agent.units import sentence
from nightshift.collectors.base import Permanent
from nightshift.collectors.seal import sha256_hex

_NAME = re.compile(r"\{(\w+)\}")
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")
NAMES = (
    *("key", "event", "incident", "cluster", "severity", "state", "title", "text", "cause", "plan", "url", "team"),
    *("subjects", "namespaces"),
)
"""What a template may name in braces."""
MISSING = "404"


@dataclass(frozen=True, slots=True)
class TicketText:
    """What a ticket should say. `fields`: further fields that the settings give it, with their templates filled."""

    key: str
    title: str
    text: str
    values: Mapping[str, str]
    fields: Mapping[str, Any]

    @property
    def sha256(self) -> str:
        return sha256_hex(f"{self.title}\n{self.text}".encode())


@dataclass(frozen=True, slots=True)
class TicketState:
    """How a ticket stands in its system: `by` is who closed it, as their e-mail address or login."""

    is_open: bool
    by: str = ""


class TicketSystem(Protocol):
    """Raises RateLimited, NoAnswer or DeliveryRefused. Every call but `open` may be made again."""

    name: str
    place: str
    """Project or table."""
    reads: bool
    """Whether it can be asked how a ticket stands, and which tickets carry a key."""

    def open(self, ticket: TicketText) -> str:
        """Creates a ticket; returns the system's name of it."""

    def update(self, name: str, ticket: TicketText) -> None:
        """Makes an open ticket say this."""

    def close(self, name: str, ticket: TicketText) -> None:
        """Closes a ticket; one that is closed stays as it is."""

    def reopen(self, name: str, ticket: TicketText) -> bool:
        """Opens a closed ticket again; False where the system has no way back."""

    def state(self, name: str) -> TicketState | None:
        """How a ticket stands; None where it is deleted."""

    def find(self, channel: str, key: str, thread: str | None, oldest_s: float) -> list[str]:
        """Tickets that carry a key, the oldest first; `thread` is the key."""

    def delete(self, channel: str, ts: str) -> None:
        """Closes a second copy and takes the key off it: history is not deleted."""

    def try_out(self) -> str:
        """What the system says of our credentials and of the project."""

    def end(self) -> None:
        """Closes connections."""


def key_for(cluster: str, incident: str, turn: int) -> str:
    """What a ticket is found by: a Jira label has no spaces, a ServiceNow correlation id at most 100 characters.

    >>> key_for("alpha", "INC-7", 1)
    'nightshift-alpha-INC-7-1'
    """
    safe = _UNSAFE.sub("-", cluster)[:40]
    if safe != cluster:  # two clusters never share a key
        safe = f"{safe}-{sha256_hex(cluster.encode())[:8]}"
    return f"nightshift-{safe}-{incident}-{turn}"


def ticket_of(
    key: str, letter: Letter, state: str, team: str, fields: Mapping[str, Mapping[str, Any]]
) -> TicketText:
    """The ticket of an incident. `fields`: by team, `*` for all."""
    rows = {
        "Severity": str(letter.severity),
        "State": sentence(state),
        "Cause": letter.cause,
        "Plan": letter.plan,
        "Where": ", ".join(letter.subjects),
        "Jobs of": ", ".join(letter.namespaces),
        "Team": team,
        "Cluster": letter.cluster,
        "Details": letter.url,
    }
    text = "\n".join(f"{name}: {value}" for name, value in rows.items() if value)
    values = {
        "key": key,
        "incident": letter.incident,
        "cluster": letter.cluster,
        "severity": str(letter.severity),
        "state": state,
        "title": letter.summary,
        "text": text,
        "cause": letter.cause,
        "plan": letter.plan,
        "url": letter.url,
        "team": team,
        "subjects": rows["Where"],
        "namespaces": rows["Jobs of"],
    }
    given = {**fields.get("*", {}), **fields.get(team, {})}
    return TicketText(key, letter.summary, text, values, filled(given, values))


def filled(template: Any, values: Mapping[str, str]) -> Any:
    """A template with every `{name}` replaced, at any depth. A name without a value stays as it is.

    >>> filled({"a": ["{key}!", 3]}, {"key": "k"})
    {'a': ['k!', 3]}
    """
    if isinstance(template, str):
        return _NAME.sub(lambda match: values.get(match[1], match[0]), template)
    if isinstance(template, Mapping):
        return {name: filled(value, values) for name, value in template.items()}
    if isinstance(template, list | tuple):
        return [filled(value, values) for value in template]
    return template


def unknown_names(template: Any) -> list[str]:
    """Names in braces that no ticket has a value for."""
    if isinstance(template, str):
        return [name for name in _NAME.findall(template) if name not in NAMES]
    parts = template.values() if isinstance(template, Mapping) else template
    if isinstance(parts, str | bytes) or not hasattr(parts, "__iter__"):
        return []
    return [name for part in parts for name in unknown_names(part)]


def is_missing(refused: DeliveryRefused) -> bool:
    return refused.reason.startswith(MISSING)


class TicketWeb(OutletWeb):
    """HTTP to a ticket system. Its credential is read for each call: an expired token is replaced in its file."""

    def __init__(self, service: str, url: str, proxy: str, authorization: Callable[[], str]) -> None:
        super().__init__(service, url, proxy, {"Accept": "application/json"})
        self._authorization = authorization

    def call(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        params: dict[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        try:
            signed = {"Authorization": self._authorization()}
        except Permanent as error:
            raise DeliveryRefused(f"401 {error}", self._service) from error
        return super().call(method, path, json=json, params=params, headers={**signed, **(headers or {})})


def answer_of(answer: Any, service: str, *path: str) -> Any:
    """A value of a JSON answer. Raises DeliveryRefused for an answer that is none: a proxy's page, for one."""
    for name in path:
        if not isinstance(answer, Mapping) or name not in answer:
            raise DeliveryRefused(f"its answer has no {'.'.join(path)}: is the address its API?", service)
        answer = answer[name]
    return answer
