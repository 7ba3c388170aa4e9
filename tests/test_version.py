"""`nightshift --version`: which Nightshift answers."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nightshift.agent.__main__ import app
from nightshift.version import ROOT, commit, line

GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@example.org")


def test_the_command_prints_one_line_with_the_distributions_version() -> None:
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.output) == (0, f"{line()}\n")
    assert done.output.startswith(f"nightshift {version('nightshift-oncall')}")


def test_a_checkout_shows_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NIGHTSHIFT_COMMIT", raising=False)
    for words in (("init", "-q"), ("commit", "-q", "--allow-empty", "-m", "First")):
        subprocess.run([*GIT, *words], cwd=tmp_path, check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=tmp_path, capture_output=True, text=True, check=True)
    found = commit(tmp_path)
    assert found is not None
    assert len(found) >= 12
    assert head.stdout.startswith(found)


def test_an_environment_inside_another_repository_does_not_show_that_ones_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NIGHTSHIFT_COMMIT", raising=False)
    subprocess.run([*GIT, "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run([*GIT, "commit", "-q", "--allow-empty", "-m", "First"], cwd=tmp_path, check=True)
    installed = tmp_path / "venv/site-packages"
    installed.mkdir(parents=True)
    assert commit(installed) is None


def test_without_git_there_is_a_version_and_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NIGHTSHIFT_COMMIT", raising=False)
    (tmp_path / ".git").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit(tmp_path) is None


def test_an_image_states_its_commit_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTSHIFT_COMMIT", "0123456789ab")
    assert line().endswith("(0123456789ab)")


def test_the_version_loads_nothing_of_the_daemon() -> None:
    """What has to answer in a broken installation imports the standard library alone."""
    code = (
        "import sys; before = set(sys.modules); import nightshift.version\n"
        "print(sorted({n.partition('.')[0] for n in set(sys.modules) - before} - sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['nightshift']"
