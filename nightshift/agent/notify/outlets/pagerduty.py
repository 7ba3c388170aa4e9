"""PagerDuty, by its Events API v2; acknowledgements come back by its webhooks (v3) or are asked for.

developer.pagerduty.com/docs/events-api-v2/trigger-events: `trigger`, `acknowledge`, `resolve`; events of one
`dedup_key` are one alert, and a trigger of an open one notifies nobody again; 202 is an accepted event, 400 a wrong
one, 429 too many. An acknowledge or resolve of an alert that is not open is ignored.
developer.pagerduty.com/docs/events-api-v2/send-change-events: change events are shown on the service and never
notify. developer.pagerduty.com/docs/verifying-signatures: `X-PagerDuty-Signature: v1=HEX[,v1=HEX]`, the HMAC-SHA256
of the body.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from nightshift.agent.notify.outlets.base import Acknowledgement
from nightshift.agent.notify.outlets.letter import AlertPhase, Form, Letter
from nightshift.agent.notify.outlets.web import OutletWeb, secret_of
from nightshift.agent.rca.summary import plain
from nightshift.collectors.shared_settings import stated_once

_ACTIONS = {AlertPhase.TRIGGERED: "trigger", AlertPhase.ACKNOWLEDGED: "acknowledge", AlertPhase.CLOSED: "resolve"}
_TOOK_ON = {"incident.acknowledged": "", "incident.resolved": ", who resolved it there"}


class Settings(BaseModel):
    """PagerDuty."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    routing_key_file: Path = Field(description="File with the integration key of an Events API v2 integration")
    webhook_secret_file: Path | None = Field(
        None,
        description="File with the secret of a webhook subscription to /outlets/pagerduty; none: not taken",
    )
    api_token_file: Path | None = Field(
        None, description="File with a read-only REST API key, to ask who acknowledged; none: only by webhook"
    )
    url: str = Field("https://events.pagerduty.com", description="Events API; the EU's: events.eu.pagerduty.com")
    proxy: SkipJsonSchema[str] = stated_once("proxy", str)

    @property
    def rest_url(self) -> str:
        """The REST API of the same service region; a proxy in front of PagerDuty has both under one address."""
        return self.url.replace("://events.", "://api.", 1)


class PagerDuty:
    """Pages by events; what it shows without paging are change events."""

    name = "pagerduty"
    forms = frozenset(Form)
    renew_s = math.inf

    def __init__(self, settings: Settings) -> None:
        self._routing_key = secret_of("outlets.pagerduty.routing_key_file", settings.routing_key_file)
        self._secret = ""
        if settings.webhook_secret_file is not None:
            self._secret = secret_of("outlets.pagerduty.webhook_secret_file", settings.webhook_secret_file)
        self._events = OutletWeb("PagerDuty", settings.url, settings.proxy)
        self._rest: OutletWeb | None = None
        if settings.api_token_file is not None:
            token = secret_of("outlets.pagerduty.api_token_file", settings.api_token_file)
            headers = {"Authorization": f"Token token={token}"}
            self._rest = OutletWeb("PagerDuty", settings.rest_url, settings.proxy, headers)

    @property
    def takes_webhooks(self) -> bool:
        return bool(self._secret)

    def send(self, letters: Sequence[Letter]) -> None:
        for letter in letters:
            if letter.form is Form.PAGE:
                self._events.call("POST", "/v2/enqueue", json=self._event(letter))
            # A change event cannot be acknowledged: it is a line in a list.
            elif letter.phase is not AlertPhase.ACKNOWLEDGED:
                self._events.call("POST", "/v2/change/enqueue", json=self._change(letter))

    def _event(self, letter: Letter) -> dict[str, Any]:
        event = {"routing_key": self._routing_key, "event_action": _ACTIONS[letter.phase], "dedup_key": letter.key}
        if letter.phase is not AlertPhase.TRIGGERED:
            return event
        payload = {
            "summary": plain(letter.summary, 1024),
            "source": letter.subjects[0] if letter.subjects else letter.cluster,
            "severity": str(letter.severity),
            "timestamp": _stamp(letter.since_s),
            "component": ", ".join(letter.subjects)[:500],
            "group": letter.cluster,
            "class": letter.cause,
            "custom_details": _details(letter),
        }
        more = {"client": "Nightshift", "client_url": letter.url} if letter.url else {"client": "Nightshift"}
        return {**event, **more, "payload": payload}

    def _change(self, letter: Letter) -> dict[str, Any]:
        ended = "ended: " if letter.phase is AlertPhase.CLOSED else ""
        payload = {
            "summary": plain(f"{ended}{letter.summary}", 1024),
            "source": letter.cluster,
            "timestamp": _stamp(letter.updated_s),
            "custom_details": _details(letter),
        }
        links = [{"href": letter.url, "text": letter.incident}] if letter.url else []
        return {"routing_key": self._routing_key, "payload": payload, "links": links}

    def acknowledged(self, keys: Sequence[str]) -> list[Acknowledgement]:
        """developer.pagerduty.com/api-reference: GET /incidents by `incident_key`, which is the `dedup_key`."""
        found: list[Acknowledgement] = []
        for key in keys if self._rest is not None else ():
            assert self._rest is not None
            answer = self._rest.call(
                "GET", "/incidents", params={"incident_key": key, "include[]": "acknowledgers"}
            )
            for item in (answer or {}).get("incidents") or ():
                for given in item.get("acknowledgements") or () if item.get("status") == "acknowledged" else ():
                    who = (given.get("acknowledger") or {}).get("summary") or "somebody"
                    found.append(Acknowledgement(key, plain(str(who), 100), _read(str(given.get("at", "")))))
        return found

    def heard(self, body: bytes, signatures: str) -> Acknowledgement | None:
        """What a webhook says, if somebody took a page on. Raises PermissionError for one that PagerDuty did not
        sign, ValueError for one that cannot be read."""
        wanted = "v1=" + hmac.new(self._secret.encode(), body, hashlib.sha256).hexdigest()
        # Several while a secret is rotated; ten, since the header is anybody's.
        given = [item.strip() for item in signatures.split(",")][:10]
        # All are compared: the time tells nothing of which one fitted.
        matches = [hmac.compare_digest(item.encode(), wanted.encode()) for item in given]
        if not self._secret or not any(matches):
            raise PermissionError("the signature does not hold")
        try:
            event = orjson.loads(body)["event"]
            kind, data = str(event["event_type"]), event["data"]
            if kind not in _TOOK_ON:
                return None
            agent = event.get("agent") or {}
            who = plain(str(agent.get("summary") or agent.get("id") or "somebody"), 100) + _TOOK_ON[kind]
            return Acknowledgement(str(data.get("incident_key") or ""), who, _read(str(event["occurred_at"])))
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not an event of PagerDuty's: {type(error).__name__}") from error

    def try_out(self) -> str:
        """The Events API has nothing that asks without telling; the REST API has."""
        if self._rest is None:
            return "the key's file can be read; a drill shows whether it pages"
        self._rest.call("GET", "/abilities")
        return "the REST key is accepted"

    def close(self) -> None:
        self._events.close()
        if self._rest is not None:
            self._rest.close()


def _details(letter: Letter) -> dict[str, Any]:
    return {
        "incident": letter.incident,
        "cluster": letter.cluster,
        "subjects": list(letter.subjects),
        "namespaces": list(letter.namespaces),
        "cause": letter.cause,
        "plan": letter.plan,
    }


def _stamp(t_s: float) -> str:
    return datetime.fromtimestamp(t_s, UTC).isoformat(timespec="milliseconds")


def _read(stamp: str) -> float:
    """Unix s of an RFC 3339 time; NaN where it is none."""
    try:
        return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return math.nan
