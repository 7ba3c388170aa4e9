"""What can be configured about Slack."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic.json_schema import SkipJsonSchema

from nightshift.collectors.shared_settings import stated_once
from nightshift.detectors.base import Severity


class QuietHours(BaseModel):
    """Hours in which only critical incidents are posted; the others wait for the morning."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    start: time = Field(description="Local time of their start, e.g. 22:00")
    end: time = Field(description="Local time of their end, e.g. 07:00")
    zone: SkipJsonSchema[str] = stated_once("time_zone", lambda: "UTC")

    @field_validator("zone")
    @classmethod
    def _known(cls, zone: str) -> str:
        try:
            ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError) as error:
            raise ValueError(f"{zone!r} is not a time zone of the IANA database") from error
        return zone

    def end_after(self, now_s: float) -> float | None:
        """When the quiet hours that hold at `now_s` end (Unix s); None outside them."""
        local = datetime.fromtimestamp(now_s, UTC).astimezone(ZoneInfo(self.zone))
        # 22:00 to 07:00: the two halves lie on two days.
        over_midnight = self.start > self.end
        clock = local.time()
        quiet = (clock >= self.start or clock < self.end) if over_midnight else self.start <= clock < self.end
        if not quiet:
            return None
        day = local.date() + timedelta(days=1 if over_midnight and clock >= self.start else 0)
        # From local time: a night with a change of clocks is an hour longer or shorter.
        return datetime.combine(day, self.end, ZoneInfo(self.zone)).timestamp()


class Route(BaseModel):
    """A channel for incidents that fit all of the given conditions."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    channel: str = Field(min_length=1, description="Channel id (`C…`)")
    severities: frozenset[Severity] = Field(frozenset(), description="Severities that fit; none: all")
    namespaces: tuple[str, ...] = Field((), description="Namespaces that fit, with shell patterns; none: all")


# When a thread is reminded, as a share of the time until the first mention: once, half-way.
REMIND_SHARE = 0.5
# Grouping ends after so long without a new incident: the incidents of one cause come closer together.
STORM_CALM_S = 300.0
# New messages a minute and channel before they are grouped: Slack asks apps for one message a second and channel,
# and nobody reads more.
STORM_AFTER = 3
# What quiet hours do not keep back.
LOUD = Severity.CRITICAL
# How long the Snooze button keeps reminders away; its label says it.
SNOOZE_S = 3600.0
# A call without an answer is given up after this; the courier sends it again.
TIMEOUT_S = 10.0


class Settings(BaseModel):
    """Slack: Socket Mode by default, so that no port has to be opened to the internet."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = Field(False, description="Whether incidents are posted to Slack and clicks are taken from it")
    mode: Literal["socket", "http"] = Field(
        "socket",
        description="`socket`: Socket Mode, outbound only; `http`: Slack calls the console's /slack/events",
    )
    bot_token_file: Path | None = Field(None, description="File with the bot token (`xoxb-…`)")
    app_token_file: Path | None = Field(
        None, description="File with the app-level token (`xapp-…`), Socket Mode only"
    )
    signing_secret_file: Path | None = Field(None, description="File with the signing secret, HTTP mode only")
    workspace: str = Field("", description="Id of the workspace (`T…`); people of any other cannot click")
    channel: str = Field("", description="Id of the channel (`C…`) for what no route and no owner claims")
    routes: tuple[Route, ...] = Field(
        (), description="Channels by severity and namespace; the first that fits counts"
    )
    promotions: bool = Field(
        True, description="Whether kernels and policies that wait for approval have a message each"
    )
    promotions_channel: str = Field("", description="Id of the channel (`C…`) for promotions; empty: `channel`")
    quiet_hours: QuietHours | None = Field(None, description="When only grave incidents are posted")
    console_url: SkipJsonSchema[str] = stated_once("console.public_url", str)
    escalate_s: float = Field(
        1800.0, ge=60, description="Time without an answer before each mention (s); half of it before the reminder"
    )
    escalate_to: str | tuple[str, ...] = Field(
        "",
        description="Users (`U…`) and user groups (`S…`) to mention if a page is unanswered, in order; empty: none",
    )
    api_url: str = Field("https://slack.com/api/", description="Slack's Web API, or a proxy in front of it")
    proxy: SkipJsonSchema[str] = stated_once("proxy", str)

    @property
    def rungs(self) -> tuple[tuple[float, str], ...]:
        """(After how long without an answer in s, whom to mention, empty: no one) of an unanswered page."""
        people = (self.escalate_to,) if isinstance(self.escalate_to, str) else self.escalate_to
        mentions = ((number * self.escalate_s, whom) for number, whom in enumerate(people, 1))
        return ((REMIND_SHARE * self.escalate_s, ""), *mentions)

    @model_validator(mode="after")
    def _complete(self) -> Settings:
        if not self.enabled:
            return self
        needed = {"bot_token_file": self.bot_token_file, "workspace": self.workspace, "channel": self.channel}
        if self.mode == "socket":
            needed["app_token_file"] = self.app_token_file
        else:
            needed["signing_secret_file"] = self.signing_secret_file
        missing = [name for name, value in needed.items() if not value]
        if missing:
            raise ValueError(f"slack.enabled with mode {self.mode} needs {', '.join(missing)}")
        return self
