"""The command line over the JSON API: the same commands, as far as the token's owner may."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from nightshift.agent.__main__ import app
from nightshift.agent.approvals.policy import Person, Role
from nightshift.agent.approvals.questions import Questions
from nightshift.agent.cli.remote import Remote, remote
from nightshift.agent.cli.terminal import operator
from nightshift.agent.console.api import FORM_HEADER, PREFIX
from nightshift.agent.console.server import Server
from nightshift.agent.console.settings import Settings
from nightshift.agent.setup.console import build_console
from nightshift.agent.store.diagnosis import Answer, ReadingState
from nightshift.agent.store.incident import Cause, IncidentState
from nightshift.agent.store.tables import sessions
from nightshift.collectors.base import Permanent, Temporary
from nightshift.controllers.action import Action, ActionKind, BlastRadius, Undo
from tests.agent.tenants import SPARE, Cluster, forbidden, token_of

RED, WIDE = "red-approver@example.org", "wide-approver@example.org"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.store.close()


@pytest.fixture
def as_red(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliRunner]:
    server = Server(build_console(cluster.parts, Settings(host="0.0.0.0")), "127.0.0.1", 0)
    server.start()
    (tmp_path / "token").write_text(token_of(RED) + "\n")
    monkeypatch.setenv("NIGHTSHIFT_API", server.url)
    monkeypatch.setenv("NIGHTSHIFT_TOKEN_FILE", str(tmp_path / "token"))
    yield CliRunner()
    server.stop()


def test_a_team_sees_its_own_from_the_command_line(as_red: CliRunner, cluster: Cluster) -> None:
    """Lists and pages, as text and as JSON, have no word of another team's; what is not theirs does not exist."""
    rows = json.loads(as_red.invoke(app, ["incidents", "--json"]).stdout)
    assert {row["id"] for row in rows} == {cluster.ids["red"], cluster.ids["both"]}
    for which in ("red", "both"):
        for arguments in (["show", cluster.ids[which]], ["show", cluster.ids[which], "--json"], ["incidents"]):
            told = as_red.invoke(app, arguments)
            assert told.exit_code == 0, told.output
            assert not [word for word in forbidden(RED) if word in told.output]
    for which in ("blue", "nobody"):
        refused = as_red.invoke(app, ["show", cluster.ids[which]])
        assert str(refused.exception) == f"there is no {cluster.ids[which]}"


def test_a_team_decides_from_the_command_line_what_is_its_own(as_red: CliRunner, cluster: Cluster) -> None:
    """Approving is the gate's answer with its exit code; the cluster's stop is not theirs."""
    stop = as_red.invoke(app, ["halt", "--json"])
    assert (stop.exit_code, json.loads(stop.stdout)["ok"]) == (1, False)
    wrong = as_red.invoke(app, ["approve", cluster.ids["red"], "--plan", "ffff"])
    assert "decide on its current plan" in str(wrong.exception)
    assert as_red.invoke(app, ["approve", cluster.ids["both"]]).exit_code != 0
    done = as_red.invoke(app, ["approve", cluster.ids["red"], "--json"])
    assert (done.exit_code, json.loads(done.stdout)["changed"]) == (0, True)
    (approval,) = cluster.gate.approvals(cluster.ids["red"])
    assert (approval.person, approval.channel) == (RED, "api")
    assert as_red.invoke(app, ["reject", cluster.ids["red"], "--reason", "no"]).exit_code == 0
    assert cluster.store.incident(cluster.ids["red"]).state is IncidentState.MONITORING


def test_a_reboot_needs_a_fresh_sign_in_by_whatever_way_it_is_decided(
    as_red: CliRunner, cluster: Cluster, tmp_path: Path
) -> None:
    """Command line on the store and by token, API by token and by session: only a session whose owner has just
    signed in approves it, or resumes it once its outcome is unknown. The refusal is the same everywhere."""
    (tmp_path / "token").write_text(token_of(WIDE))
    name = a_reboot(cluster)
    url, sha256 = f"{os.environ['NIGHTSHIFT_API']}{PREFIX}/incidents/{name}", cluster.store.incident(name).action
    assert sha256 is not None
    for verb, body, after in (
        ("approve", {"plan_sha256": sha256.plan_sha256}, IncidentState.APPROVED),
        ("resume", {}, IncidentState.ACTING),
    ):
        before = cluster.store.incident(name).version
        gate = cluster.gate
        here = gate.approve(name, sha256.plan_sha256, operator()) if body else gate.carry_on(name, operator())
        by_token = as_red.invoke(app, [verb, name, "--json"])
        by_api = httpx.post(f"{url}/{verb}", json=body, headers={"Authorization": f"Bearer {token_of(WIDE)}"})
        answers = [here.message, json.loads(by_token.stdout)["message"], by_api.json()["message"]]
        assert answers == [answers[0]] * 3
        assert "needs a sign-in of the last 300 s, which only the console shows" in answers[0]
        assert (here.ok, by_token.exit_code, by_api.status_code) == (False, 1, 409)
        with httpx.Client() as web:
            form = signed_in(web, url)
            with cluster.store.database.write() as connection:
                connection.execute(sa.update(sessions).values(proved_s=sessions.c.proved_s - 301.0))
            stale = web.post(f"{url}/{verb}", json=body, headers=form)
            assert (stale.status_code, "sign in again" in stale.json()["message"]) == (409, True)
            assert cluster.store.incident(name).version == before
            fresh = web.post(f"{url}/{verb}", json=body, headers=signed_in(web, url))
        assert fresh.json()["changed"], fresh.text
        assert cluster.store.incident(name).state is after
        if verb == "approve":
            for cause in (Cause.INTENT_STORED, Cause.OUTCOME_UNKNOWN):
                cluster.store.move(name, cause, "act", "", cluster.store.incident(name).version)


def a_reboot(cluster: Cluster) -> str:
    """An incident whose plan reboots a node and waits for approval."""
    found = [item.finding for item in cluster.store.incident(cluster.ids["nobody"]).findings]
    name = cluster.store.open_incident("hot", [replace(item, subject=SPARE) for item in found])
    diagnosis = cluster.store.incident(cluster.ids["nobody"]).diagnosis
    assert diagnosis is not None
    cluster.store.save_diagnosis(cluster.store.incident(name), diagnosis, by="rules")
    expires_s = cluster.clock.now_s() + 3600.0
    plan = Action(f"{name}-1", ActionKind.REBOOT_NODE, SPARE, "hot", BlastRadius(), Undo(False, "-"), expires_s)
    cluster.store.save_plan(cluster.store.incident(name), plan, "hot", by="plan")
    return name


def signed_in(web: httpx.Client, url: str) -> dict[str, str]:
    """Signs in to the console; returns the header with the form's token."""
    base = url.partition("/api/")[0]
    assert web.post(f"{base}/sign-in", data={"token": token_of(WIDE)}).status_code == 303
    found = re.search(r'name="form" value="([0-9a-f]+)"', web.get(f"{base}/").text)
    assert found is not None
    return {FORM_HEADER: found[1]}


@pytest.mark.parametrize("body", [b"<html>Sign in</html>", b"[]", b"null", b"{}"])
def test_an_answer_that_is_no_consoles_is_said_and_is_no_decision(body: bytes) -> None:
    """A proxy's sign-in page, or another service at that address."""
    proxy = httpx.Client(transport=httpx.MockTransport(lambda request: httpx.Response(200, content=body)))
    there = Remote("http://console.example", "token", proxy)
    with pytest.raises(
        Permanent, match=r"NIGHTSHIFT_API: http://console.example/api/v1 (answers 200|is no console)"
    ):
        there.halt("why")


def test_what_is_wrong_with_the_environment_is_said(tmp_path: Path) -> None:
    """Each mistake names the variable; a console that is away is worth another try."""
    assert remote({}) is None
    with pytest.raises(Permanent, match="NIGHTSHIFT_TOKEN_FILE must name"):
        remote({"NIGHTSHIFT_API": "http://127.0.0.1:1"})
    with pytest.raises(Permanent, match="No such file"):
        remote({"NIGHTSHIFT_API": "http://127.0.0.1:1", "NIGHTSHIFT_TOKEN_FILE": str(tmp_path / "none")})
    (tmp_path / "t").write_text("x")
    there = remote({"NIGHTSHIFT_API": "http://127.0.0.1:1", "NIGHTSHIFT_TOKEN_FILE": str(tmp_path / "t")})
    assert there is not None
    with pytest.raises(Temporary, match="does not answer"):
        there.incidents_json(False, 10)
    with pytest.raises(Permanent, match="is not an incident"):
        there.incident_json("../halt")


def test_a_decision_at_the_command_line_does_not_wait_for_scipy() -> None:
    """Settings name every detector and control loop; what those compute with is imported where it is used."""
    read = "import sys, nightshift.agent.settings, nightshift.agent.cli.remote; print('scipy' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", read], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "False"


def test_a_team_asks_about_its_own_from_the_command_line(as_red: CliRunner, cluster: Cluster) -> None:
    """Its question is stored under its name; of another team's incident and question it learns nothing."""
    questions = Questions(cluster.store.database, cluster.clock)
    incident = cluster.store.incident(cluster.ids["red"])
    first = questions.ask(incident, "was it the blue job?", Person("root", frozenset({Role.ADMIN}), "cli"))
    answers = threading.Thread(target=_answer_next, args=(questions, first.number))
    answers.start()
    told = as_red.invoke(app, ["ask", incident.id, "did the switch fail first?", "--json"])
    answers.join()
    assert told.exit_code == 0, told.output
    body = json.loads(told.stdout)
    assert (body["by"], body["done"], body["lines"][1]["text"]) == (RED, True, "nothing was found")
    asked = httpx.get(
        f"{os.environ['NIGHTSHIFT_API']}{PREFIX}/incidents/{incident.id}/questions",
        headers={"Authorization": f"Bearer {token_of(RED)}"},
    ).json()
    assert [row["question"] for row in asked] == ["did the switch fail first?"]
    for which in ("both", "blue"):
        assert as_red.invoke(app, ["ask", cluster.ids[which], "why?"]).exit_code != 0
        assert questions.of(cluster.ids[which]) == []


def _answer_next(questions: Questions, after: int) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for asked in questions.due():
            if asked.number > after:
                questions.answered(asked, Answer(ReadingState.DONE, note="nothing was found"), 0, 0.0)
                return
        time.sleep(0.02)
