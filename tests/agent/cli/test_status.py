"""`nightshift status`: one screen, from the daemon's own answer."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest
import yaml
from textual.widgets import DataTable, Static
from typer.testing import CliRunner

from nightshift.agent.__main__ import app, main
from nightshift.agent.cli.remote import remote
from nightshift.agent.console.server import Server
from nightshift.agent.console.sessions import Doorkeeper, TokenAccount
from nightshift.agent.console.settings import Settings
from nightshift.agent.console.sign_in import operator_token
from nightshift.agent.console.site import DaemonHealth
from nightshift.agent.presentation.live_screen import LiveFleet
from nightshift.agent.setup.console import build_console
from nightshift.collectors.base import Permanent, Temporary
from nightshift.collectors.frame import Reason, SourceStatus
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.collectors.tick import Tick
from tests.agent.tenants import Cluster, token_of

DCGM, KERNEL_LOG = (Subject(SubjectKind.SOURCE, name) for name in ("dcgm", "kernel log"))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.store.close()


@pytest.fixture
def ask(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliRunner]:
    answers = [
        SourceStatus(DCGM, 5.0, True, samples=812),
        SourceStatus(KERNEL_LOG, 5.0, False, Reason.UNREACHABLE, "connection refused"),
    ]
    cluster.parts.history.add(Tick(5.0, {}, (), sources=tuple(answers)))
    server = Server(build_console(cluster.parts, Settings(host="0.0.0.0")), "127.0.0.1", 0)
    server.start()
    (tmp_path / "token").write_text(token_of("wide-viewer@example.org"))
    monkeypatch.setenv("NIGHTSHIFT_API", server.url)
    monkeypatch.setenv("NIGHTSHIFT_TOKEN_FILE", str(tmp_path / "token"))
    yield CliRunner()
    server.stop()


def test_the_screen_says_what_does_not_work_first(ask: CliRunner) -> None:
    shown = ask.invoke(app, ["status"])
    assert shown.exit_code == 1
    told = shown.stdout.splitlines()
    assert told[1] == "Does not work: walrus is away"
    assert "Sources: 1 of 2 work" in told
    assert told.index("  ✕ kernel log: unreachable (connection refused)") < told.index("  ✓ dcgm: 812 samples")
    found = json.loads(ask.invoke(app, ["status", "--json"]).stdout)
    listed = json.loads(ask.invoke(app, ["incidents", "--json"]).stdout)
    assert sum(found["open"].values()) == len(listed) > 0
    assert found["waiting"] == [row["id"] for row in listed if row["state"] == "awaiting_approval"]


def test_a_team_is_refused_what_is_the_clusters(
    ask: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text(token_of("red-approver@example.org"))
    refused = ask.invoke(app, ["status"])
    assert isinstance(refused.exception, Permanent)
    assert "walrus" not in str(refused.exception) + refused.output


def test_beside_the_daemon_no_address_and_no_token_are_needed(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NIGHTSHIFT_API", raising=False)
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    keeper = Doorkeeper(b"k" * 32, {operator_token(state, None): TokenAccount("root@example.org")}, 3600.0,
                        cluster.store.database)  # fmt: skip
    parts = replace(cluster.parts, doorkeeper=keeper, health=lambda: DaemonHealth(True, True))
    server = Server(build_console(parts, Settings(host="0.0.0.0")), "127.0.0.1", 0)
    server.start()
    (tmp_path / "n.yaml").write_text(f"state_dir: {state}\nconsole:\n  port: {server.port}\n  host: 0.0.0.0\n")
    shown = CliRunner().invoke(app, ["status", "--config", str(tmp_path / "n.yaml")])
    server.stop()
    assert shown.exit_code == 0, (shown.output, shown.exception)
    assert "Works." in shown.stdout


def test_a_daemon_that_does_not_run_is_said_with_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NIGHTSHIFT_API", raising=False)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "n.yaml").write_text(f"state_dir: {tmp_path}\nconsole:\n  port: {port}\n")
    away = CliRunner().invoke(app, ["status", "--config", str(tmp_path / "n.yaml")])
    assert isinstance(away.exception, Temporary)
    assert str(port) in str(away.exception)
    assert str(away.exception).startswith("no daemon")


@pytest.mark.parametrize("words", [["-h"], ["status", "-h"], ["kernels", "probe", "-h"]])
def test_short_help_is_help(words: list[str]) -> None:
    assert "Usage:" in CliRunner().invoke(app, words).stdout


def test_another_format_is_the_same_answer(ask: CliRunner) -> None:
    """`--output` as in the field; the exit code stays."""
    found = json.loads(ask.invoke(app, ["status", "--json"]).stdout)
    shown = ask.invoke(app, ["status", "--output", "yaml"])
    assert shown.exit_code == 1
    assert yaml.safe_load(shown.stdout) | {"now_s": 0} == found | {"now_s": 0}
    assert json.loads(ask.invoke(app, ["status", "--output", "json"]).stdout).keys() == found.keys()
    assert ask.invoke(app, ["status", "--output", "table"]).stdout == ask.invoke(app, ["status"]).stdout
    assert ask.invoke(app, ["status", "--output", "xml"]).exit_code == 2


async def _looked(cluster: Cluster) -> tuple[str, list[str], str]:
    """The head, the incidents' rows and the detail of one of them."""
    there = remote()
    assert there is not None
    live = LiveFleet(there, 60.0)
    async with live.run_test(size=(60, 30)) as pilot:
        await live.workers.wait_for_complete()
        await pilot.pause()
        table = live.query_one("#incidents", DataTable)
        rows = [str(table.get_row_at(n)[0]) for n in range(table.row_count)]
        await pilot.press("enter")
        await pilot.pause()
        detail = live.query_one("#detail", Static)
        return str(live.query_one("#head", Static).content), rows, str(detail.content)


def test_top_shows_the_fleet_and_what_is_open_on_a_terminal_of_60_columns(ask: CliRunner, cluster: Cluster) -> None:
    head, rows, detail = asyncio.run(_looked(cluster))
    assert "walrus is away" in head
    assert "1 of 2 sources fail" in head
    assert rows == [row["id"] for row in json.loads(ask.invoke(app, ["incidents", "--json"]).stdout)]
    assert detail


def test_without_textual_top_names_the_command_that_installs_it(
    ask: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nightshift.agent.presentation.live_screen", None)
    refused = ask.invoke(app, ["top"])
    assert "pip install 'nightshift-oncall[top]'" in str(refused.exception)


def test_a_locale_without_utf_8_loses_signs_and_no_answer(ask: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    told = BytesIO()
    with TextIOWrapper(told, encoding="ascii") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setattr(sys, "argv", ["nightshift", "status"])
        with pytest.raises(SystemExit):
            main()
        stream.flush()
        answer = told.getvalue().decode("ascii")
    assert "? cluster " in answer
    assert "Sources: 1 of 2 work" in answer


def test_completion_on_a_home_that_cannot_be_written_names_the_file_and_the_other_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".bashrc").mkdir()  # root may write where a mode forbids it
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    monkeypatch.setattr(sys, "argv", ["nightshift", "--install-completion", "bash"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert str(tmp_path / ".bashrc") in said
    assert "--show-completion" in said
