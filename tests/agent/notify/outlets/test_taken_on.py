"""Who takes a page on in the pager is shown in the incident, and nobody else is called for it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from examples.pager_stand_in.server import Fault
from nightshift.agent.console.server import Server
from nightshift.agent.notify.outlets.pagerduty import Settings as PagerDutySettings
from nightshift.agent.notify.outlets.service import MAX_BODY_BYTES, PATH
from nightshift.agent.store.incident import Cause, taken_on
from nightshift.detectors.base import Severity
from tests.agent.incidents import a_finding
from tests.agent.notify.outlets.ward import Ward, a_ward


@pytest.fixture
def ward(tmp_path: Path) -> Iterator[Ward]:
    with a_ward(tmp_path) as made:
        yield made


@pytest.fixture
def hook(ward: Ward) -> Iterator[str]:
    """The address that PagerDuty calls."""
    app = FastAPI()
    ward.outlets.add_to(app)
    server = Server(app, "127.0.0.1", 0)
    server.start()
    yield server.url + PATH
    server.stop()


def by_whom(ward: Ward, name: str) -> str:
    step = taken_on(ward.store.incident(name).history)
    return "" if step is None else step.by


def test_an_acknowledgement_by_webhook_is_shown_and_kept_once(ward: Ward, hook: str) -> None:
    name = ward.opened()
    ward.once()
    key = f"nightshift/alpha/{name}/1"
    state = ward.store.incident(name).state
    for _ in range(3):  # it is delivered at least once
        assert ward.services.webhook(hook, key, "Earline Greenholt") == 202
    incident = ward.store.incident(name)
    assert by_whom(ward, name) == "Earline Greenholt (pagerduty)"
    assert [step.cause for step in incident.history].count(Cause.ACKNOWLEDGED) == 1
    assert incident.state is state
    assert any(r.kind == "acknowledged" for r in ward.store.audit.records(limit=5, newest_first=True))
    ward.once()
    before = len(ward.services.calls)
    ward.once(3)
    assert len(ward.services.calls) == before, "everybody knows"


def test_a_page_that_was_resolved_there_is_not_sent_again_and_says_so(ward: Ward, hook: str) -> None:
    name = ward.opened()
    ward.once()
    key = f"nightshift/alpha/{name}/1"
    ward.services.pagerduty.move(key, "closed")
    assert ward.services.webhook(hook, key, "Earline", kind="incident.resolved") == 202
    ward.once(3, 40.0)
    assert by_whom(ward, name) == "Earline, who resolved it there (pagerduty)"
    assert ward.services.pages() == [key]


def test_a_webhook_that_pagerduty_did_not_sign_changes_nothing(ward: Ward, hook: str) -> None:
    name = ward.opened()
    ward.once()
    key = f"nightshift/alpha/{name}/1"
    assert ward.services.webhook(hook, key, "Mallory", secret="guess") == 401
    assert ward.services.webhook(hook, key, "Mallory", at_s=time.time() - 86_400) == 202  # signed, and a day old
    assert ward.services.webhook(hook, f"nightshift/alpha/{name}/2", "Mallory") == 202
    assert ward.services.webhook(hook, f"nightshift/beta/{name}/1", "Mallory") == 202
    assert ward.services.webhook(hook, key, "Mallory", kind="incident.triggered") == 202
    assert by_whom(ward, name) == ""


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"{",
        b"null",
        b'{"event": 1}',
        b'{"event": {"event_type": "incident.acknowledged"}}',
        b"[" * 20_000,
        json.dumps({"event": {"event_type": "incident.acknowledged", "data": 7}}).encode(),
    ],
)
def test_a_signed_body_that_is_no_event_is_refused(ward: Ward, hook: str, body: bytes) -> None:
    assert ward.services.webhook(hook, "", "", body=body) == 400


def test_a_body_without_end_is_not_read(ward: Ward, hook: str) -> None:
    assert ward.services.webhook(hook, "", "", body=b" " * (MAX_BODY_BYTES + 1)) == 413


def test_without_a_secret_no_webhook_is_taken(tmp_path: Path) -> None:
    (tmp_path / "pd").write_text("R" * 32)
    more: dict[str, Any] = {"pagerduty": {"routing_key_file": tmp_path / "pd"}}
    with a_ward(tmp_path, **more) as ward:
        app = FastAPI()
        routes = len(app.routes)
        ward.outlets.add_to(app)
        assert len(app.routes) == routes


def test_opsgenie_is_asked_who_took_a_page_on(ward: Ward) -> None:
    name = ward.opened(a_finding(severity=Severity.WARNING))
    ward.once()
    ward.services.opsgenie.move(f"nightshift/alpha/{name}/1", "acknowledged", "bo@example.org")
    ward.once(2, 20.0)
    assert by_whom(ward, name) == "bo@example.org (opsgenie)"


@pytest.mark.parametrize(
    ("url", "rest"),
    [
        ("https://events.pagerduty.com", "https://api.pagerduty.com"),
        ("https://events.eu.pagerduty.com", "https://api.eu.pagerduty.com"),
        ("https://relay.example/pagerduty", "https://relay.example/pagerduty"),
    ],
)
def test_pagerdutys_rest_api_is_that_of_the_service_region(tmp_path: Path, url: str, rest: str) -> None:
    assert PagerDutySettings(routing_key_file=tmp_path / "pd", url=url).rest_url == rest


def test_pagerduty_is_asked_where_a_rest_key_is_given(tmp_path: Path) -> None:
    with a_ward(tmp_path) as first:
        url = first.services.url
        pagerduty = {"routing_key_file": tmp_path / "pd", "api_token_file": tmp_path / "rest"}
        folder = tmp_path / "second"
        folder.mkdir()
        pages = [{"outlet": "pagerduty"}]
        with a_ward(folder, pagerduty=pagerduty | {"url": url}, pages=pages) as ward:
            name = ward.opened()
            ward.once()
            first.services.pagerduty.move(f"nightshift/alpha/{name}/1", "acknowledged", "Earline")
            ward.once(2, 20.0)
            assert by_whom(ward, name) == "Earline (pagerduty)"


def test_an_alert_that_somebody_deleted_there_is_not_taken_for_a_failure(ward: Ward) -> None:
    name = ward.opened(a_finding(severity=Severity.WARNING))
    ward.once()
    del ward.services.opsgenie.alerts[f"nightshift/alpha/{name}/1"]
    ward.once(3, 20.0)
    assert ward.outlets.courier.problem == ""


def test_an_escalation_after_it_was_taken_on_calls_anew(ward: Ward, hook: str) -> None:
    name = ward.opened()
    ward.once()
    assert ward.services.webhook(hook, f"nightshift/alpha/{name}/1", "Earline") == 202
    ward.moved(name, Cause.WORLD_CHANGED)
    ward.moved(name, Cause.GUARD_REFUSED)
    assert by_whom(ward, name) == ""
    ward.once(2, 5.0)
    assert ward.services.pages() == [f"nightshift/alpha/{name}/{turn}" for turn in (1, 2)]


def test_a_failing_question_is_asked_again(ward: Ward) -> None:
    name = ward.opened(a_finding(severity=Severity.WARNING))
    ward.once()
    ward.services.opsgenie.move(f"nightshift/alpha/{name}/1", "acknowledged", "bo@example.org")
    ward.services.faults["opsgenie"].extend([Fault("broken"), Fault("limited")])
    ward.once(8, 20.0)
    assert by_whom(ward, name) == "bo@example.org (opsgenie)"
