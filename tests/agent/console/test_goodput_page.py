"""The goodput page: a waterfall and tables that balance; a team sees its own jobs; CSV is safe to open."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from nightshift.agent.__main__ import app as cli
from nightshift.agent.approvals.people import Directory, Owner
from nightshift.agent.approvals.people import Settings as PeopleSettings
from nightshift.agent.cli.remote import Remote
from nightshift.agent.console.server import Server
from nightshift.agent.console.sessions import Doorkeeper, TokenAccount
from nightshift.agent.console.settings import Settings
from nightshift.agent.goodput.accounts import Account
from nightshift.agent.goodput.records import judged
from nightshift.agent.setup.console import build_console
from nightshift.agent.store.process_clock import tell_time
from nightshift.agent.store.tables import goodput
from tests.agent.story import NOW_S, TOKEN, Story

HOUR_S = 3600.0
ROWS = (
    (Account.UNATTRIBUTED, "ml/llm", "n1", "", "", 50_000.0),
    (Account.HUNG, "ml/llm", "n1", "xid", "INC-1", 10_000.0),
    (Account.NO_STEPS, "sft/notebook", "n2", "", "", 20_000.0),
    (Account.RECOMPUTED, "sft/=cmd|x", "n2", "xid", "INC-1", 5_000.0),
    (Account.FREE, "", "n2", "", "", 15_000.0),
    (Account.QUEUED, "ml/next", "", "", "", 7_000.0),
)


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    made = Story(tmp_path)
    made.tell()
    names = ("account", "job", "node", "cause", "incident", "gpu_s")
    at_s = NOW_S // HOUR_S * HOUR_S - HOUR_S
    with made.store.database.write() as connection:
        for row in ROWS:
            team = row[1].partition("/")[0]
            values = dict(zip(names, row, strict=True), start_s=at_s, span_s=HOUR_S, team=team)
            connection.execute(sa.insert(goodput).values(values))
    made.parts = replace(made.parts, gpu_hour_price=lambda: 3.0, utilisation=lambda: {"ml/llm": judged(0.41, 0.5)})
    yield made
    made.store.close()


def served(story: Story) -> Iterator[httpx.Client]:
    server = Server(build_console(story.parts, Settings()), "127.0.0.1", 0)
    server.start()
    with httpx.Client(base_url=server.url, follow_redirects=False) as client:
        yield client
    server.stop()


@pytest.fixture
def web(story: Story) -> Iterator[httpx.Client]:
    yield from served(story)


def test_the_page_shows_the_waterfall_and_both_ettr(web: httpx.Client) -> None:
    page = web.get("/goodput?by=job").text
    for words in ("Wall time × GPUs", "ETTR without queueing", "ETTR with queueing", "41.0 %", "reports no steps"):
        assert words in page
    assert (
        "ETTR without queueing</th><td>76.9 % (58.8 % to 82.4 %" in page
    )  # 50 of 65 that report steps; of 85 held
    assert 'href="/incidents/INC-1"' in web.get("/goodput?by=incident").text
    assert web.get("/goodput?by=x").status_code == 422


def test_the_api_and_the_command_line_tell_the_same(
    web: httpx.Client, story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = Remote(str(web.base_url), TOKEN, web)
    found = remote.goodput_json(7, "cause")
    assert found["whole"]
    assert found["ettr"]["value"] == pytest.approx(50 / 65)
    assert {row["name"] for row in found["rows"]} == {"xid"}
    assert found["unattributed"] == 1.0
    tell_time(story.store, NOW_S)
    monkeypatch.setenv("NIGHTSHIFT_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("NIGHTSHIFT_STORE__URL", str(story.store.database.engine.url))
    run = CliRunner().invoke
    shown = run(cli, ["goodput"], catch_exceptions=False).output
    for words in ("ETTR without queueing", "76.9 % (58.8 % to 82.4 %, n = 1)", "ml/llm", "100.0 %"):
        assert words in shown
    told = json.loads(run(cli, ["goodput", "--json", "--by", "team"]).output)
    assert sum(row["gpu_s"] for row in told["accounts"]) == pytest.approx(sum(row[-1] for row in ROWS))
    run(cli, ["goodput", "--csv", str(tmp_path / "g.csv")])
    assert sum(float(row["gpu_seconds"]) for row in csv.DictReader((tmp_path / "g.csv").open())) == pytest.approx(
        sum(row[-1] for row in ROWS)
    )


def test_csv_has_every_entry_and_no_formula(web: httpx.Client) -> None:
    rows = list(csv.DictReader(io.StringIO(web.get("/goodput.csv").text)))
    assert sum(float(row["gpu_seconds"]) for row in rows) == pytest.approx(sum(row[-1] for row in ROWS))
    assert not any(value[:1] == "=" for row in rows for value in row.values())
    assert {row["cost"] for row in rows if row["account"] == "free"} == {"12.50"}


def test_a_team_sees_its_own_jobs_alone(story: Story) -> None:
    owners = (Owner(team="ml", namespaces=("ml",), members=("mia",)),)
    keeper = Doorkeeper(b"k" * 32, {TOKEN: TokenAccount("mia", ())}, 3600.0, story.store.database)
    story.parts = replace(story.parts, directory=Directory(PeopleSettings(owners=owners)), doorkeeper=keeper)
    for web in served(story):
        rows = web.get("/goodput.csv", headers={"Authorization": f"Bearer {TOKEN}"}).text
        assert "ml/llm" in rows
        assert "sft" not in rows
        assert "free" not in rows
