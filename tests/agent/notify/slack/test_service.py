"""Slack as a part of the daemon: its settings, what doctor says of it, and the whole chain in one App."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from examples.slack_stand_in.server import StandIn
from nightshift.agent.__main__ import app
from nightshift.agent.doctor import examine
from nightshift.agent.notify.outlets.web import secret_of
from nightshift.agent.notify.slack.settings import QuietHours, Settings
from nightshift.agent.settings import Settings as AllSettings
from nightshift.agent.store.incident_store import Store
from nightshift.collectors.base import Permanent
from tests.agent.incidents import ManualClock
from tests.agent.notify.slack.chat import CHANNEL, slack_settings

HOUR_S = 3600.0


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"enabled": True}, "bot_token_file, workspace, channel, app_token_file"),
        ({"enabled": True, "mode": "http", "bot_token_file": "b", "workspace": "T", "channel": "C"}, "signing_sec"),
        ({"quiet_hours": {"start": "22:00", "end": "07:00", "zone": "Mars/Olympus"}}, "Mars/Olympus"),
    ],
)  # fmt: skip
def test_settings_that_cannot_work_are_refused_by_name(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        Settings.model_validate(values)


@pytest.mark.parametrize(
    ("zone", "now_s", "end_s"),
    [
        ("UTC", 21 * HOUR_S, None),
        ("UTC", 22 * HOUR_S, 31 * HOUR_S),
        ("UTC", 26 * HOUR_S, 31 * HOUR_S),
        ("UTC", 31 * HOUR_S, None),
        ("Asia/Tokyo", 12 * HOUR_S, None),
        ("Asia/Tokyo", 14 * HOUR_S, 22 * HOUR_S),
    ],
)
def test_quiet_hours_end_when_the_clock_of_their_zone_says(zone: str, now_s: float, end_s: float | None) -> None:
    hours = QuietHours.model_validate({"start": "22:00", "end": "07:00", "zone": zone})
    assert hours.end_after(now_s) == end_s


def test_an_empty_or_missing_secret_names_its_setting(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for name in ("empty", "missing"):
        with pytest.raises(Permanent, match=r"slack\.bot_token_file"):
            secret_of("slack.bot_token_file", tmp_path / name)


@pytest.mark.parametrize(
    ("more", "ok", "said"),
    [
        ({}, True, "workspace T0NIGHT, 1 channels"),
        ({"workspace": "T9"}, False, "belongs to T0NIGHT, not to T9"),
        ({"channel": "C9"}, False, "channel_not_found"),
        ({"api_url": "http://127.0.0.1:9/"}, False, "did not answer"),
    ],
)
def test_doctor_says_whether_slack_works(tmp_path: Path, more: dict[str, Any], ok: bool, said: str) -> None:
    with StandIn() as stand_in:
        stand_in.workspace.channels[CHANNEL] = []
        settings = AllSettings(state_dir=tmp_path / "state", slack=slack_settings(tmp_path, stand_in, **more))
        (check,) = [check for check in examine(settings) if check.name == "slack"]
    assert check.ok is ok
    assert said in check.detail


def test_silences_from_the_command_line_are_added_listed_and_ended(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.sqlite"
    Store(url, ManualClock()).close()
    environment = {"NIGHTSHIFT_STORE__URL": url, "NIGHTSHIFT_STATE_DIR": str(tmp_path)}

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["silence", *arguments], env=environment)

    assert run("add", "node:n*", "--reason", "firmware", "--hours", "4").exit_code == 0
    (row,) = json.loads(run("list", "--json").stdout)
    assert (row["matcher"], row["reason"]) == ("node:n*", "firmware")
    assert run("end", str(row["number"])).exit_code == 0
    assert run("end", str(row["number"])).exit_code == 1
    assert json.loads(run("list", "--json").stdout) == []
    refused = run("add", "everything", "--reason", "x")
    assert isinstance(refused.exception, Permanent)
