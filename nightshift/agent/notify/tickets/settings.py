"""Which ticket system there is, and what its tickets have beyond our own words."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic.json_schema import SkipJsonSchema

from nightshift.agent.notify.outlets.web import secret_of
from nightshift.agent.notify.tickets.base import NAMES, TicketSystem, unknown_names
from nightshift.agent.notify.tickets.jira import OURS, Jira
from nightshift.agent.notify.tickets.servicenow import ServiceNow
from nightshift.agent.notify.tickets.webhook import Webhook
from nightshift.collectors.base import Permanent
from nightshift.collectors.http import checked_url
from nightshift.collectors.shared_settings import stated_once


class Settings(BaseModel):
    """Where tickets are kept."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    system: Literal["jira_cloud", "jira_data_center", "servicenow", "webhook"] = Field(
        description="TicketText system: jira_cloud, jira_data_center, servicenow or webhook"
    )
    url: str = Field(description="Its address, e.g. https://example.atlassian.net; of a webhook the whole address")
    token_file: Path = Field(description="File with its API token, read for each call")
    user: str = Field(
        "", description="Jira Cloud: the token's e-mail address. ServiceNow: user name, with the password as token"
    )
    project: str = Field("", description="Jira: project key. ServiceNow: table; none: incident")
    fields: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="Further fields of a ticket, by team of `people.owners`; `*`: every ticket. Texts may use "
        "{severity} and the like. Of a webhook: its body",
    )
    close_fields: dict[str, Any] = Field(
        default_factory=dict,
        description="Fields that closing needs; Jira: `status` names the status to close with",
    )
    proxy: SkipJsonSchema[str] = stated_once("proxy", str)

    @field_validator("url")
    @classmethod
    def _is_address(cls, url: str) -> str:
        try:
            return checked_url(url)
        except Permanent as error:
            raise ValueError(str(error)) from error

    @field_validator("fields")
    @classmethod
    def _can_be_filled(cls, fields: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for team, given in fields.items():
            for field, template in given.items():
                if unknown := unknown_names(template):
                    raise ValueError(
                        f"{team}.{field}: no value is named {unknown[0]!r}; there are {', '.join(NAMES)}"
                    )
        return fields

    @model_validator(mode="after")
    def _belong_together(self) -> Settings:
        if self.system.startswith("jira") and not self.project:
            raise ValueError("project: Jira needs the key of a project")
        if self.system == "jira_cloud" and not self.user:
            raise ValueError("user: Jira Cloud needs the e-mail address of the token")
        if self.system == "jira_data_center" and self.user:
            raise ValueError("user: Jira Data Center takes a personal access token alone")
        if self.system.startswith("jira"):
            for team, given in self.fields.items():
                if ours := sorted(OURS & set(given)):
                    raise ValueError(f"fields.{team}.{ours[0]}: Nightshift writes this field itself")
        return self


def build(settings: Settings) -> TicketSystem:
    """The configured system. Raises Permanent where the token's file cannot be read."""

    def token() -> str:
        return secret_of("ticketing.token_file", settings.token_file)

    token()
    url, proxy, close_fields = settings.url, settings.proxy, settings.close_fields
    match settings.system:
        case "servicenow":
            return ServiceNow(url, token, settings.user, settings.project, close_fields, proxy)
        case "webhook":
            return Webhook(url, token, proxy)
    return Jira(url, token, settings.user, settings.project, close_fields, proxy)
