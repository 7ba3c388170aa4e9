"""Alertmanager's alerts and silences (API v2): what other rules hold to be wrong, and what people keep quiet.

An alert is told once when it begins and once when it ends as a line of its subject, so that a diagnosis can quote
it; what stands now is in `Tick.alerts` and `Tick.silences`. API: github.com/prometheus/alertmanager,
api/v2/openapi.yaml (gettableAlert, gettableSilence).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlencode

import orjson
from pydantic import BaseModel, ConfigDict, Field

from nightshift.collectors.frame import Instant, LogRecord, Reason, SourceStatus
from nightshift.collectors.http import (
    CONNECTION,
    BaseAddress,
    Connection,
    Fetcher,
    HttpRequest,
    HttpResponse,
    HttpSettings,
    SourceError,
)
from nightshift.collectors.prometheus.alert import AlertmanagerAlert, AlertmanagerSilence
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.telemetry.pages import source_subject
from nightshift.collectors.tick import Batch
from nightshift.collectors.training.workload import pod_subject

T = TypeVar("T")
_MAX_LABELS, _MAX_CHARS, _MAX_SUMMARY = 64, 200, 500
_GPU_LABELS = ("UUID", "uuid", "gpu_uuid", "gpu_id")
_NODE_LABELS = ("node", "kubernetes_node", "Hostname", "hostname", "nodename", "instance")


# Largest answer that is read; what MAX_ALERTS alerts with long annotations take.
MAX_BYTES = 16 * 2**20
# Most alerts, and most silences, that are kept: a person reads none of so many.
MAX_ALERTS = 5_000


class AlertmanagerCollector:
    """All alerts and the silences that are active or to come."""

    plugin: ClassVar[str] = "alertmanager"

    class Settings(BaseModel):
        """An Alertmanager's API."""

        model_config = ConfigDict(extra="forbid")

        url: BaseAddress = Field(description="Base address, e.g. http://alertmanager:9093")
        matchers: list[str] = Field(
            default_factory=list, description='Only alerts with these labels, e.g. team="gpu"; none: all'
        )
        connection: Connection = Field(default_factory=HttpSettings, description=CONNECTION)

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._timer = clock
        self._source = source_subject(self.plugin, settings.url)
        self._fetcher = Fetcher(settings.connection, max_bytes=MAX_BYTES, accept="application/json", timer=clock)
        asked = urlencode([("filter", matcher) for matcher in settings.matchers])
        api = f"{settings.url}/api/v2"
        self._requests = [
            HttpRequest(f"{api}/alerts?{asked}" if asked else f"{api}/alerts"),
            HttpRequest(f"{api}/silences"),
        ]
        self._firing: dict[str, AlertmanagerAlert] = {}

    @property
    def name(self) -> str:
        return self.plugin

    def collect(self, now_s: float, inventory: Inventory, timeout_s: float) -> Batch:
        started = self._timer()
        rejected: dict[Reason, int] = {}
        try:
            first, second = (
                _rows(answer, rejected, MAX_ALERTS) for answer in self._fetcher.fetch(self._requests, timeout_s)
            )
        except SourceError as error:
            took_s = self._timer() - started
            return Batch([SourceStatus(self._source, now_s, False, error.reason, error.detail, took_s=took_s)])
        alerts = [alert for row in first if (alert := _read(_alert, row, rejected)) is not None]
        silences = [s for row in second if (s := _read(_silence, row, rejected)) is not None and s.ends_s > now_s]
        logs = self._changes(alerts, now_s)
        status = SourceStatus(
            self._source,
            now_s,
            True,
            samples=len(alerts) + len(silences),
            rejected=rejected,
            took_s=self._timer() - started,
        )
        return Batch([status], logs=logs, alerts=alerts, silences=silences)

    def close(self) -> None:
        self._fetcher.close()

    def _changes(self, alerts: list[AlertmanagerAlert], now_s: float) -> list[LogRecord]:
        now = {alert.fingerprint: alert for alert in alerts}
        begun = [alert for key, alert in now.items() if key not in self._firing]
        ended = [alert for key, alert in self._firing.items() if key not in now]
        self._firing = now
        return [self._line(alert, "firing", alert.since_s) for alert in begun] + [
            self._line(alert, "resolved", now_s) for alert in ended
        ]

    def _line(self, alert: AlertmanagerAlert, state: str, at_s: float) -> LogRecord:
        quiet = " (silenced)" if alert.silenced_by else " (inhibited)" if alert.inhibited_by else ""
        text = f"alert {alert.name} {state}{quiet} severity={alert.severity or 'none'}: {alert.summary}"
        subject = alert.subject or self._source
        return LogRecord(Instant(at_s), self._source.name, subject, text, int(alert.since_s))


def _rows(answer: HttpResponse | SourceError, rejected: dict[Reason, int], most: int) -> list[Any]:
    """The list that an answer holds. Raises SourceError where it holds none."""
    if isinstance(answer, SourceError):
        raise answer
    try:
        rows = orjson.loads(answer.body)
    except orjson.JSONDecodeError as error:
        raise SourceError(Reason.MALFORMED, f"no JSON: {error}") from error
    if not isinstance(rows, list):
        raise SourceError(Reason.MALFORMED, "the answer is no list")
    if len(rows) > most:
        rejected[Reason.TOO_LARGE] = rejected.get(Reason.TOO_LARGE, 0) + len(rows) - most
    return rows[:most]


def _read(read: Callable[[Any], T], row: Any, rejected: dict[Reason, int]) -> T | None:
    try:
        return read(row)
    except (KeyError, TypeError, ValueError, AttributeError):
        rejected[Reason.MALFORMED] = rejected.get(Reason.MALFORMED, 0) + 1
        return None


def _alert(row: Any) -> AlertmanagerAlert:
    labels = {plain_text(k): plain_text(v) for k, v in list(row["labels"].items())[:_MAX_LABELS]}
    notes = row.get("annotations") or {}
    summary = notes.get("summary") or notes.get("message") or notes.get("description") or ""
    status = row.get("status") or {}
    return AlertmanagerAlert(
        labels.get("alertname", ""),
        plain_text(row["fingerprint"]),
        subject_of_labels(labels),
        unix_seconds(row["startsAt"]),
        unix_seconds(row["endsAt"]),
        labels.get("severity", ""),
        plain_text(summary, _MAX_SUMMARY),
        labels,
        tuple(plain_text(one) for one in status.get("silencedBy") or ()),
        tuple(plain_text(one) for one in status.get("inhibitedBy") or ()),
    )


def _silence(row: Any) -> AlertmanagerSilence:
    if row["status"]["state"] == "expired":
        # nothing of an expired silence is read: the caller drops it by its end, and it is no malformed row
        return AlertmanagerSilence("", (), 0.0, -math.inf, "", "")
    signs = {(True, False): "=", (False, False): "!=", (True, True): "=~", (False, True): "!~"}
    matchers = tuple(
        plain_text(m["name"])
        + signs[bool(m.get("isEqual", True)), bool(m["isRegex"])]
        + f'"{plain_text(m["value"])}"'
        for m in row["matchers"][:_MAX_LABELS]
    )
    starts_s, ends_s = unix_seconds(row["startsAt"]), unix_seconds(row["endsAt"])
    by, comment = plain_text(row.get("createdBy", "")), plain_text(row.get("comment", ""), _MAX_SUMMARY)
    return AlertmanagerSilence(plain_text(row["id"]), matchers, starts_s, ends_s, by, comment)


def subject_of_labels(labels: Mapping[str, str]) -> Subject | None:
    """The narrowest thing that the labels name."""
    uuid = next((labels[name] for name in _GPU_LABELS if labels.get(name, "").startswith(("GPU-", "MIG-"))), "")
    pod, namespace = labels.get("exported_pod") or labels.get("pod"), labels.get("exported_namespace")
    namespace = namespace or labels.get("namespace")
    if uuid:
        return Subject(SubjectKind.MIG if uuid.startswith("MIG-") else SubjectKind.GPU, uuid)
    if pod and namespace:
        return pod_subject(namespace, pod)
    node = next((labels[name] for name in _NODE_LABELS if labels.get(name)), "")
    host = node.rpartition(":")[0] or node
    return Subject(SubjectKind.NODE, host) if host else None


def plain_text(text: Any, limit: int = _MAX_CHARS) -> str:
    """At most so many characters, control characters shown as spaces. Raises TypeError where it is no text."""
    if not isinstance(text, str):
        raise TypeError(f"{type(text).__name__} instead of text")
    cut = text[:limit]
    return cut if cut.isprintable() else "".join(c if c.isprintable() else " " for c in cut)


def unix_seconds(stamp: Any) -> float:
    """Unix s of an RFC 3339 time. Raises ValueError or TypeError where it is none."""
    return datetime.fromisoformat(stamp).timestamp()
