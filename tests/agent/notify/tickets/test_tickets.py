"""One ticket for each incident of the lane "ticket": opened, updated, closed both ways, never twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from examples.ticket_stand_in.systems import JiraStandIn, ServiceNowStandIn
from nightshift.agent.notify.ledger import ticket_key
from nightshift.agent.notify.tickets.base import key_for
from nightshift.agent.notify.tickets.settings import build
from nightshift.agent.store.incident import Cause, IncidentState
from nightshift.collectors.base import Permanent
from tests.agent.incidents import JOB, a_diagnosis, a_finding
from tests.agent.notify.tickets.desk import PEOPLE, SYSTEMS, TICKET, Desk, a_desk, settings_for

# Data Center differs from Cloud in a few lines: the quick run takes it through one test
_DATA_CENTER = pytest.param("jira_data_center", marks=pytest.mark.full)
READING = ("jira_cloud", _DATA_CENTER, "servicenow")


@pytest.fixture(params=(*READING, "webhook"))
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    with a_desk(request.param, tmp_path) as made:
        yield made


@pytest.fixture(params=READING)
def reading(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    with a_desk(request.param, tmp_path) as made:
        yield made


@pytest.fixture
def jira(tmp_path: Path) -> Iterator[Desk]:
    with a_desk("jira_cloud", tmp_path) as made:
        yield made


def _issues(desk: Desk) -> dict[str, Any]:
    return dict(desk.stand_in.system.issues)


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_ticket_is_opened_updated_and_closed_with_its_incident(tmp_path: Path, system: str) -> None:
    with a_desk(system, tmp_path) as desk:
        _live(desk)


def _live(desk: Desk) -> None:
    name = desk.opened()
    desk.once(3)
    (issue,) = _issues(desk).values()
    assert desk.stand_in.system.open_of(key_for("alpha", name, 1)) == list(_issues(desk))
    assert desk.courier.problem == ""
    before = issue.updates
    desk.clock.advance(1)
    desk.store.save_diagnosis(desk.store.incident(name), a_diagnosis(), by="rules")
    desk.once(3)
    assert issue.updates == before + 1 or desk.courier._system.name == "webhook"
    assert "memory leak" in str(_issues(desk)).lower()
    desk.moved(name, Cause.CLEARED_BY_ITSELF)
    desk.once(3)
    key = key_for("alpha", name, 1)
    assert desk.stand_in.system.open_of(key) == []
    assert len(_issues(desk)) == 1


def test_pages_and_digests_open_no_ticket_until_they_become_one(desk: Desk) -> None:
    desk.opened(a_finding())
    desk.once(2)
    assert _issues(desk) == {}


def test_nothing_is_called_while_nothing_changes(desk: Desk) -> None:
    desk.opened()
    desk.once(3)
    calls = len(desk.stand_in.calls)
    desk.once(20)
    assert len(desk.stand_in.calls) == calls


def test_an_answer_that_is_lost_makes_no_second_ticket(desk: Desk) -> None:
    desk.stand_in.faults.append("lost_answer")
    name = desk.opened()
    desk.once(60, 2.0)
    assert len(_issues(desk)) == 1
    row = desk.courier._ledger.row(ticket_key(name))
    assert row is not None
    assert row.ts in _issues(desk)
    assert row.tried_s is None


@pytest.mark.parametrize("fault", ["lost_request", "limited", "broken", "html"])
def test_a_fault_of_the_network_costs_a_delay(desk: Desk, fault: str) -> None:
    desk.stand_in.faults.append(fault)
    desk.opened()
    desk.once(80, 3.0)
    if fault == "html" and not desk.courier._system.reads:
        return  # a webhook's answer has no form: whatever is a 200 is its word
    assert len(_issues(desk)) == 1


def test_a_late_copy_is_closed_and_loses_the_key(reading: Desk) -> None:
    """A request that was given up and arrives later makes a second ticket; one stands, the other says why."""
    reading.stand_in.faults.append("lost_request")
    name = reading.opened()
    reading.once(1)
    reading.once(20, 2.0)
    key = key_for("alpha", name, 1)
    (first,) = reading.stand_in.system.open_of(key)
    system = reading.courier._system
    late = _further(reading, name)
    reading.once(12, 11.0)
    assert reading.stand_in.system.open_of(key) == [first]
    state = system.state(late)
    assert state is not None
    assert not state.is_open


def test_a_ticket_that_an_admin_closes_closes_the_incident(reading: Desk) -> None:
    name = reading.opened()
    reading.once(2)
    (ticket,) = _issues(reading)
    reading.stand_in.system.person(ticket, _done(reading), "ann@example.org")
    reading.once(2, 130.0)
    incident = reading.store.incident(name)
    assert incident.state is IncidentState.RESOLVED
    assert incident.history[-1].by == "ann@example.org"
    assert ticket in incident.history[-1].note


def test_a_ticket_that_a_stranger_closes_stays_theirs_and_the_incident_says_so(reading: Desk) -> None:
    name = reading.opened()
    reading.once(2)
    (ticket,) = _issues(reading)
    reading.stand_in.system.person(ticket, _done(reading), "eve@example.org")
    reading.once(2, 130.0)
    assert reading.store.incident(name).is_open
    assert "eve@example.org" in reading.notes(name)[-1]
    updates = _issues(reading)[ticket].updates
    reading.clock.advance(1)
    reading.store.save_diagnosis(reading.store.incident(name), a_diagnosis(), by="rules")
    reading.once(4, 130.0)
    assert _issues(reading)[ticket].updates == updates
    assert len(_issues(reading)) == 1


def test_a_deleted_ticket_is_not_made_again(reading: Desk) -> None:
    name = reading.opened()
    reading.once(2)
    (ticket,) = _issues(reading)
    if isinstance(reading.stand_in.system, ServiceNowStandIn):
        _further(reading, name)
    others = len(_issues(reading)) - 1
    del reading.stand_in.system.issues[ticket]
    reading.once(3, 130.0)
    assert "deleted" in reading.notes(name)[-1]
    reading.clock.advance(1)
    reading.store.save_diagnosis(reading.store.incident(name), a_diagnosis(), by="rules")
    reading.once(3, 130.0)
    assert len(_issues(reading)) == others
    assert reading.store.incident(name).is_open


def test_a_project_that_is_hidden_from_us_deletes_no_ticket(reading: Desk) -> None:
    """Jira and ServiceNow answer 404 for what a token may not see: the tickets stay ours, and health says so."""
    name = reading.opened()
    reading.once(2)
    system = reading.stand_in.system
    if isinstance(system, JiraStandIn):
        system.browsable = False
    elif isinstance(system, ServiceNowStandIn):
        system.readable = False
    reading.once(3, 130.0)
    assert reading.courier.problem
    row = reading.courier._ledger.row(ticket_key(name))
    assert row is not None
    assert not row.withdrawn


def test_an_expired_token_is_replaced_in_its_file(desk: Desk, tmp_path: Path) -> None:
    desk.stand_in.system.token = "token-2"
    desk.opened()
    desk.once(2, 61.0)
    assert "401" in desk.courier.problem
    assert _issues(desk) == {}
    (tmp_path / "token").write_text("token-2")
    desk.once(3, 61.0)
    assert len(_issues(desk)) == 1
    assert desk.courier.problem == ""


def test_a_required_field_is_named_and_can_be_given(tmp_path: Path) -> None:
    with a_desk("jira_cloud", tmp_path) as desk:
        assert isinstance(desk.stand_in.system, JiraStandIn)
        desk.stand_in.system.required = {"customfield_10010"}
        name = desk.opened()
        desk.once(2)
        assert name in desk.courier.problem
        assert "customfield_10010 is required" in desk.courier.problem
    fields = {"*": {"customfield_10010": "{severity}", "labels": ["gpu"]}, "ml": {"components": [{"name": "ML"}]}}
    with a_desk("jira_cloud", tmp_path, fields=fields) as desk:
        assert isinstance(desk.stand_in.system, JiraStandIn)
        desk.stand_in.system.required = {"customfield_10010"}
        desk.once(2)
        (issue,) = _issues(desk).values()
        assert issue.fields["customfield_10010"] == "warning"
        assert "gpu" in issue.fields["labels"]


def test_a_wrong_project_is_refused_and_said(tmp_path: Path) -> None:
    with a_desk("jira_data_center", tmp_path, project="WRONG") as desk:
        desk.opened()
        desk.once(2)
        assert "valid project is required" in desk.courier.problem
        with pytest.raises(Permanent, match="404"):
            desk.courier._system.try_out()


def test_the_team_of_the_job_decides_the_fields(tmp_path: Path) -> None:
    fields = {"ml": {"assignment_group": "8a4d"}}
    with a_desk("servicenow", tmp_path, fields=fields) as desk:
        assert PEOPLE.owners[0].team == "ml"
        desk.opened(TICKET, _of(JOB))
        desk.once(2)
        (issue,) = _issues(desk).values()
        assert issue.fields["assignment_group"] == "8a4d"


def test_a_fault_that_is_back_opens_its_ticket_again(jira: Desk) -> None:
    name = jira.opened()
    jira.once(2)
    jira.ended(name)
    jira.once(2)
    jira.relapsed(name)
    jira.once(3)
    assert jira.stand_in.system.open_of(key_for("alpha", name, 1))
    assert len(_issues(jira)) == 1


def test_a_ticket_that_is_closed_for_good_gets_a_successor(jira: Desk) -> None:
    assert isinstance(jira.stand_in.system, JiraStandIn)
    jira.stand_in.system.can_reopen = False
    name = jira.opened()
    jira.once(2)
    jira.ended(name)
    jira.once(2)
    jira.relapsed(name)
    jira.once(4)
    assert len(_issues(jira)) == 2
    assert jira.stand_in.system.open_of(key_for("alpha", name, 2))


def test_closing_gives_the_fields_that_a_workflow_requires(tmp_path: Path) -> None:
    with a_desk("jira_cloud", tmp_path, close_fields={"resolution": {"name": "Done"}}) as desk:
        assert isinstance(desk.stand_in.system, JiraStandIn)
        desk.stand_in.system.resolution_required = True
        name = desk.opened()
        desk.once(2)
        desk.ended(name)
        desk.once(2)
        assert desk.stand_in.system.open_of(key_for("alpha", name, 1)) == []


def test_a_workflow_without_a_way_to_close_is_said(jira: Desk) -> None:
    assert isinstance(jira.stand_in.system, JiraStandIn)
    jira.stand_in.system.resolution_required = True
    name = jira.opened()
    jira.once(2)
    jira.ended(name)
    jira.once(2)
    assert "no transition to a done status" in jira.courier.problem


def test_a_webhook_s_body_is_the_template(tmp_path: Path) -> None:
    body = {"*": {"id": "{key}", "event": "{event}", "summary": "[{severity}] {title}"}}
    with a_desk("webhook", tmp_path, fields=body) as desk:
        name = desk.opened()
        desk.once(2)
        (issue,) = _issues(desk).values()
        assert set(issue.fields) == {"id", "event", "summary"}
        assert issue.fields["summary"].startswith(f"[warning] {name}:")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"project": ""}, "needs the key of a project"),
        ({"user": ""}, "needs the e-mail address"),
        ({"fields": {"*": {"customfield_1": "{severty}"}}}, r"\*\.customfield_1: no value is named 'severty'"),
        ({"fields": {"*": {"summary": "mine"}}}, "Nightshift writes this field itself"),
        ({"url": "example.atlassian.net"}, "expected http"),
    ],
)
def test_settings_that_cannot_work_are_refused(tmp_path: Path, values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        settings_for("jira_cloud", tmp_path, **{"url": "https://example.atlassian.net", **values})


def test_a_token_file_that_is_missing_is_named(tmp_path: Path) -> None:
    settings = settings_for("webhook", tmp_path, "https://example.org/hook")
    (tmp_path / "token").unlink()
    with pytest.raises(Permanent, match=r"ticketing\.token_file"):
        build(settings)


def test_two_clusters_share_no_key() -> None:
    keys = {key_for(cluster, "INC-1", 1) for cluster in ("a b", "a-b", "a/b", "a" * 60, "a" * 61)}
    assert len(keys) == 5
    assert all(len(key) <= 100 and " " not in key for key in keys)


def test_doctor_asks_without_an_effect(reading: Desk) -> None:
    if isinstance(reading.stand_in.system, ServiceNowStandIn):
        with pytest.raises(Permanent, match="may be read"):
            reading.courier._system.try_out()
        return
    assert "signed in" in reading.courier._system.try_out()


def _done(desk: Desk) -> str:
    return "6" if isinstance(desk.stand_in.system, ServiceNowStandIn) else "done"


def _of(subject: Any) -> Any:
    return replace(TICKET, subject=subject)


def _further(desk: Desk, name: str) -> str:
    """A second ticket of an incident, as a request that comes late makes it."""
    row = desk.courier._ledger.row(ticket_key(name))
    assert row is not None
    return desk.courier._system.open(desk.courier._ticket(desk.store.incident(name), row))
