"""The command line over the JSON API: the same commands, as far as the token's owner may."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from nightshift.agent.__main__ import app
from nightshift.agent.cli.remote import Remote, remote
from nightshift.agent.console.server import Server
from nightshift.agent.console.settings import Settings
from nightshift.agent.setup.console import build_console
from nightshift.agent.store.incident import IncidentState
from nightshift.collectors.base import Permanent, Temporary
from tests.agent.tenants import Cluster, forbidden, token_of

RED = "red-approver@example.org"


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
