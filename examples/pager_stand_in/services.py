"""What PagerDuty and Opsgenie do with what they are sent, as their documentation says; `pages` has the alerts for
which a person would have been called.

PagerDuty: developer.pagerduty.com/docs/events-api-v2/trigger-events (fields, limits, deduplication),
.../send-change-events, and GET /incidents of its REST API. Opsgenie: docs.opsgenie.com/docs/alert-api.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import Any

Answer = tuple[int, dict[str, Any]]
SEVERITIES = ("critical", "error", "warning", "info")
ROUTING_KEY = "R" * 32
GENIE_KEY = "genie-1"
REST_TOKEN = "rest-1"


@dataclass
class Alert:
    """One alert of a service."""

    key: str
    summary: str
    level: str
    state: str = "triggered"
    count: int = 1
    by: str = ""
    at_s: float = field(default_factory=time.time)


class Pager:
    """A service with its alerts by key; a closed one is replaced by the next of its key."""

    def __init__(self) -> None:
        self.alerts: dict[str, Alert] = {}
        self.pages: list[str] = []
        self.shown: list[str] = []

    def open(self, key: str, summary: str, level: str, pages: bool = True) -> None:
        there = self.alerts.get(key)
        if there is not None and there.state != "closed":
            there.count += 1
            return
        self.alerts[key] = Alert(key, summary, level)
        (self.pages if pages else self.shown).append(key)

    def move(self, key: str, state: str, by: str = "") -> bool:
        there = self.alerts.get(key)
        if there is None or there.state == "closed":
            return False
        there.state, there.by = state, by
        return True


class PagerDuty(Pager):
    """The Events API v2 and what of the REST API is used."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[str] = []

    def enqueue(self, event: dict[str, Any]) -> Answer:
        errors = []
        if len(str(event.get("routing_key", ""))) != 32:
            errors.append("Length of 'routing_key' is incorrect (should be 32 characters)")
        action, key = event.get("event_action"), str(event.get("dedup_key") or uuid.uuid4().hex)
        if action not in ("trigger", "acknowledge", "resolve"):
            errors.append("'event_action' is invalid")
        if action in ("acknowledge", "resolve") and not event.get("dedup_key"):
            errors.append("'dedup_key' is missing")
        if len(key) > 255:
            errors.append("'dedup_key' is too long")
        payload = event.get("payload") or {}
        if action == "trigger":
            errors += [f"'payload.{name}' is missing" for name in ("summary", "source") if not payload.get(name)]
            if payload.get("severity") not in SEVERITIES:
                errors.append("'payload.severity' is invalid")
            if len(payload.get("summary", "")) > 1024:
                errors.append("'payload.summary' is too long")
        if errors:
            return 400, {"status": "invalid event", "message": "Event object is invalid", "errors": errors}
        if action == "trigger":
            self.open(key, payload["summary"], payload["severity"])
        else:  # of an alert that is not open: accepted, and nothing happens
            self.move(key, "acknowledged" if action == "acknowledge" else "closed")
        return 202, {"status": "success", "message": "Event processed", "dedup_key": key}

    def change(self, event: dict[str, Any]) -> Answer:
        payload = event.get("payload") or {}
        if len(str(event.get("routing_key", ""))) != 32 or not payload.get("summary"):
            return 400, {"status": "invalid event", "errors": ["'payload.summary' is missing"]}
        self.changes.append(str(payload["summary"]))
        return 202, {"status": "success", "message": "Change event processed"}

    def incidents(self, key: str) -> Answer:
        there = self.alerts.get(key)
        if there is None:
            return 200, {"incidents": []}
        given = []
        if there.state == "acknowledged" and there.by:
            given = [{"at": "2026-11-21T20:00:00Z", "acknowledger": {"id": "P1", "summary": there.by}}]
        status = "resolved" if there.state == "closed" else there.state
        item = {"id": "PT4KHLK", "incident_key": key, "status": status, "acknowledgements": given}
        return 200, {"incidents": [item]}


class Opsgenie(Pager):
    """The Alert API; alerts with the tag that the guide's notification policy suppresses call nobody."""

    def create(self, body: dict[str, Any]) -> Answer:
        message, alias = str(body.get("message", "")), str(body.get("alias", ""))
        wrong = not 1 <= len(message) <= 130 or len(alias) > 512 or len(body.get("description", "")) > 15_000
        if wrong or body.get("priority", "P3") not in ("P1", "P2", "P3", "P4", "P5"):
            return 422, {"message": "Request body is not processable"}
        self.open(alias, message, body.get("priority", "P3"), "nightshift-shown" not in body.get("tags", ()))
        return self._later()

    def act(self, alias: str, verb: str) -> Answer:
        self.move(alias, "closed" if verb == "close" else "acknowledged")  # a failure shows in the request's status
        return self._later()

    def get(self, alias: str) -> Answer:
        there = self.alerts.get(alias)
        if there is None:
            return 404, {"message": "Alert does not exist"}
        report = {"acknowledgedBy": there.by} if there.by else {}
        data = {"alias": alias, "status": "closed" if there.state == "closed" else "open", "report": report}
        return 200, {"data": data | {"acknowledged": there.state == "acknowledged", "count": there.count}}

    def _later(self) -> Answer:
        return 202, {"result": "Request will be processed", "took": 0.1, "requestId": str(uuid.uuid4())}
