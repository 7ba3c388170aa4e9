"""Prometheus Alertmanager, as one more client beside Prometheus: POST /api/v2/alerts
(github.com/prometheus/alertmanager, api/v2/openapi.yaml).

An alert is known by its labels, so these never change while it stands. It is sent again before its `endsAt` comes,
and ends by an `endsAt` that has passed; should we die, it ends by itself after `LASTS_S`. The label `page` says
whether routes may page for it: `yes` for the outlet that pages, `no` for what is shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from nightshift.agent.notify.outlets.base import Acknowledgement
from nightshift.agent.notify.outlets.letter import AlertPhase, Form, Letter
from nightshift.agent.notify.outlets.web import OutletWeb, secret_of
from nightshift.collectors.base import Permanent, Temporary

ALERT = "NightshiftIncident"


# A standing alert is sent again after so long, as Prometheus does (--rules.alert.resend-delay).
RENEW_S = 60.0
# An alert expires this long after it was last sent: Prometheus gives four resends, and we one more.
LASTS_S = 300.0


class Settings(BaseModel):
    """Alertmanager."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    urls: tuple[str, ...] = Field(
        min_length=1, description="Every member of the Alertmanager cluster; alerts go to all of them"
    )
    labels: dict[str, str] = Field(default_factory=dict, description="Further labels for every alert")
    bearer_token_file: Path | None = Field(None, description="File with a token for a proxy in front of it")


class Alertmanager:
    """Alerts that are kept alive by sending them again."""

    name = "alertmanager"
    forms = frozenset(Form)

    def __init__(self, settings: Settings, wall_s: Callable[[], float] = time.time) -> None:
        headers = {}
        if settings.bearer_token_file is not None:
            token = secret_of("outlets.alertmanager.bearer_token_file", settings.bearer_token_file)
            headers = {"Authorization": f"Bearer {token}"}
        self.renew_s = RENEW_S
        self._settings = settings
        self._wall_s = wall_s
        self._webs = [OutletWeb("Alertmanager", url, "", headers) for url in settings.urls]

    def send(self, letters: Sequence[Letter]) -> None:
        """To every member, as Prometheus does: they agree among themselves who notifies. One that is away is told
        with the next renewal; only where none answers have the letters not arrived."""
        alerts = [self._alert(letter) for letter in letters]
        failures: list[Temporary | Permanent] = []
        for web in self._webs:
            try:
                web.call("POST", "/api/v2/alerts", json=alerts)
            except (Temporary, Permanent) as failure:
                failures.append(failure)
        # Members tell one another (gossip), so one that took it is enough.
        if len(failures) == len(self._webs):
            raise failures[0]

    def _alert(self, letter: Letter) -> dict[str, Any]:
        wall_s = self._wall_s()
        ends_s = wall_s if letter.phase is AlertPhase.CLOSED else wall_s + LASTS_S
        labels = {
            **self._settings.labels,
            "alertname": ALERT,
            "cluster": letter.cluster,
            "incident": letter.incident,
            "turn": str(letter.turn),
            "severity": str(letter.severity),
            "page": "yes" if letter.form is Form.PAGE else "no",
        }
        annotations = {
            "summary": letter.summary,
            "subjects": ", ".join(letter.subjects),
            "cause": letter.cause,
            "plan": letter.plan,
            "acknowledged": "yes" if letter.phase is AlertPhase.ACKNOWLEDGED else "",
        }
        alert = {
            "labels": labels,
            "annotations": {name: text for name, text in annotations.items() if text},
            # Alertmanager refuses an alert that ends before it starts, as one would that was closed by a clock
            # behind ours.
            "startsAt": _stamp(min(letter.since_s, wall_s - 1.0)),
            "endsAt": _stamp(ends_s),
        }
        return alert | ({"generatorURL": letter.url} if letter.url else {})

    def acknowledged(self, keys: Sequence[str]) -> list[Acknowledgement]:
        """It has no acknowledgements: a silence there only keeps its own notifications away."""
        return []

    def try_out(self) -> str:
        versions = []
        for web in self._webs:
            answer = web.call("GET", "/api/v2/status") or {}
            versions.append(str((answer.get("versionInfo") or {}).get("version", "unknown version"))[:40])
        return f"Alertmanager {', '.join(versions)}"

    def close(self) -> None:
        for web in self._webs:
            web.close()


def _stamp(t_s: float) -> str:
    return datetime.fromtimestamp(t_s, UTC).isoformat(timespec="milliseconds")
