"""Which outlets there are, and which of them pages."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from nightshift.agent.notify.outlets.alertmanager import Alertmanager
from nightshift.agent.notify.outlets.alertmanager import Settings as AlertmanagerSettings
from nightshift.agent.notify.outlets.base import Outlet
from nightshift.agent.notify.outlets.opsgenie import Opsgenie
from nightshift.agent.notify.outlets.opsgenie import Settings as OpsgenieSettings
from nightshift.agent.notify.outlets.pagerduty import PagerDuty
from nightshift.agent.notify.outlets.pagerduty import Settings as PagerDutySettings
from nightshift.collectors.shared_settings import stated_once
from nightshift.detectors.base import Severity

Name = Literal["pagerduty", "opsgenie", "alertmanager"]
NOBODY: Literal["nobody"] = "nobody"
"""In the place of a name: such incidents page no one."""


class PageRule(BaseModel):
    """Who pages for incidents that fit all of the given conditions."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    outlet: Name | Literal["nobody"] = Field(
        description=f"Outlet that pages: pagerduty, opsgenie, alertmanager, or `{NOBODY}` for none"
    )
    severities: frozenset[Severity] = Field(frozenset(), description="Severities that fit; none: all")
    namespaces: tuple[str, ...] = Field((), description="Namespaces that fit, with shell patterns; none: all")


class Failover(BaseModel):
    """Who pages when the one that should cannot be reached."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    to: Name = Field(description="The outlet that takes the page over")
    after_s: float = Field(
        120.0, ge=5, description="Time without an answer before the next outlet (s); a refusal skips the wait"
    )


class Settings(BaseModel):
    """Outlets beside Slack. Each incident is paged by one of them at most; the others show it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pages: tuple[PageRule, ...] = Field(
        (), description="Paging rules; the first match decides; none: no page is sent"
    )
    failover: Failover | None = Field(None, description="Who takes a page over that the first cannot take")
    console_url: SkipJsonSchema[str] = stated_once("console.public_url", str)
    pagerduty: PagerDutySettings | None = Field(None, description="PagerDuty")
    opsgenie: OpsgenieSettings | None = Field(None, description="Opsgenie")
    alertmanager: AlertmanagerSettings | None = Field(None, description="Prometheus Alertmanager")

    @property
    def enabled(self) -> bool:
        return any(part is not None for part in (self.pagerduty, self.opsgenie, self.alertmanager))

    @model_validator(mode="after")
    def _named_ones_exist(self) -> Settings:
        named = [(f"pages[{number}].outlet", rule.outlet) for number, rule in enumerate(self.pages)]
        if self.failover is not None:
            named.append(("failover.to", self.failover.to))
        for place, name in named:
            if name != NOBODY and getattr(self, name) is None:
                raise ValueError(f"{place} is {name}, which is not configured")
        return self

    def pager(self, severity: Severity, namespaces: Sequence[str]) -> str:
        """Who pages for an incident; empty where nobody does."""
        for rule in self.pages:
            # An empty list is no condition, rather than one that nothing fits.
            severe = not rule.severities or severity in rule.severities
            fits = not rule.namespaces or any(fnmatchcase(n, p) for n in namespaces for p in rule.namespaces)
            if severe and fits:
                return "" if rule.outlet == NOBODY else rule.outlet
        return ""


def build(settings: Settings) -> list[Outlet]:
    """Every configured outlet. Raises Permanent where a secret's file cannot be read."""
    outlets: list[Outlet] = []
    if settings.pagerduty is not None:
        outlets.append(PagerDuty(settings.pagerduty))
    if settings.opsgenie is not None:
        outlets.append(Opsgenie(settings.opsgenie))
    if settings.alertmanager is not None:
        outlets.append(Alertmanager(settings.alertmanager))
    return outlets
