"""Opsgenie, by its Alert API (docs.opsgenie.com/docs/alert-api).

An alert is known by its `alias`: creating it again while it is open counts up and notifies nobody. Requests are
accepted with 202 and worked on later. Priorities are P1 (highest) to P5. What is only shown has priority P5 and the
tag `nightshift-shown`, which a notification policy of the team suppresses (docs/how-to/page.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from nightshift.agent.notify.delivery import DeliveryRefused
from nightshift.agent.notify.outlets.base import Acknowledgement
from nightshift.agent.notify.outlets.letter import AlertPhase, Form, Letter
from nightshift.agent.notify.outlets.web import OutletWeb, secret_of
from nightshift.agent.rca.summary import plain
from nightshift.collectors.shared_settings import stated_once
from nightshift.detectors.base import Severity

PRIORITIES = {Severity.CRITICAL: "P1", Severity.WARNING: "P3", Severity.INFO: "P5"}
SHOWN_TAG = "nightshift-shown"
_BY_ALIAS = {"identifierType": "alias"}


class Settings(BaseModel):
    """Opsgenie."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    api_key_file: Path = Field(description="File with the key of an API integration")
    show: bool = Field(
        False, description="Whether it shows what it does not page; needs the notification policy of the guide"
    )
    url: str = Field("https://api.opsgenie.com", description="The EU's: api.eu.opsgenie.com")
    proxy: SkipJsonSchema[str] = stated_once("proxy", str)


class Opsgenie:
    """Pages by alerts."""

    name = "opsgenie"
    renew_s = math.inf

    def __init__(self, settings: Settings) -> None:
        key = secret_of("outlets.opsgenie.api_key_file", settings.api_key_file)
        self.forms = frozenset(Form) if settings.show else frozenset({Form.PAGE})
        headers = {"Authorization": f"GenieKey {key}"}
        self._web = OutletWeb("Opsgenie", settings.url, settings.proxy, headers)

    def send(self, letters: Sequence[Letter]) -> None:
        for letter in letters:
            alias = _alias(letter)
            if letter.phase is AlertPhase.TRIGGERED:
                self._web.call("POST", "/v2/alerts", json=self._alert(letter, alias))
            else:
                verb = "close" if letter.phase is AlertPhase.CLOSED else "acknowledge"
                path = f"/v2/alerts/{quote(alias, safe='')}/{verb}"
                self._web.call("POST", path, json={"source": "Nightshift", "user": "Nightshift"}, params=_BY_ALIAS)

    def _alert(self, letter: Letter, alias: str) -> dict[str, Any]:
        """Field limits: message 130, alias 512, description 15,000, entity 512, source 100 characters."""
        shown = letter.form is Form.SHOWN
        lines = [letter.summary, letter.url, *letter.subjects]
        return {
            "message": plain(letter.summary, 130),
            "alias": alias,
            "description": "\n".join(part for part in lines if part)[:15_000],
            "entity": ", ".join(letter.subjects)[:512],
            "source": f"Nightshift {letter.cluster}"[:100],
            "tags": ["nightshift", *([SHOWN_TAG] if shown else [])],
            "priority": "P5" if shown else PRIORITIES.get(letter.severity, "P3"),
            "details": {
                "incident": letter.incident,
                "cluster": letter.cluster,
                "severity": str(letter.severity),
                "cause": letter.cause,
                "plan": letter.plan,
                "url": letter.url,
            },
        }

    def acknowledged(self, keys: Sequence[str]) -> list[Acknowledgement]:
        found = []
        for key in keys:
            try:
                answer = self._web.call("GET", f"/v2/alerts/{quote(key, safe='')}", params=_BY_ALIAS)
            except DeliveryRefused as refused:
                if not refused.reason.startswith("404"):
                    raise
                continue  # not worked on yet, or deleted there
            data = (answer or {}).get("data") or {}
            if data.get("acknowledged") is True:
                who = str((data.get("report") or {}).get("acknowledgedBy") or data.get("owner") or "somebody")
                found.append(Acknowledgement(key, plain(who, 100), math.nan))
        return found

    def try_out(self) -> str:
        self._web.call("GET", "/v2/alerts/count")
        return "the key is accepted"

    def close(self) -> None:
        self._web.close()


def _alias(letter: Letter) -> str:
    # Another alias for what is shown: one alert of both would page again when it is acknowledged as shown.
    return letter.key if letter.form is Form.PAGE else f"{letter.key}/shown"
