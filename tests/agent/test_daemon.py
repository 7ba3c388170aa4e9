"""`nightshift` as a process: starts quickly, answers its signals, and the command line reaches it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from tests.agent.fleet import Exporter, values
from tests.agent.forks import nightshift

ROOT = Path(__file__).resolve().parents[2]
START_LIMIT_S = 240.0
"""Here only that it starts; the 3 s of an idle machine are measured in benchmarks/idle_daemon.py."""


class Daemon:
    """A running `nightshift run`."""

    def __init__(self, config: Path) -> None:
        self.config = config
        self.log = config.with_suffix(".log")
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "nightshift.agent", "run", "--config", str(config)],
                cwd=ROOT,
                stderr=log,
                stdout=log,
            )

    def url(self) -> str:
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline:
            found = re.findall(r"console=(http://\S+?)(?:\x1b|\s)", self.log.read_text()[self._log_start :])
            if found:
                return str(found[-1])
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.02)
        raise AssertionError(self.log.read_text())

    def ready(self) -> str:
        url = self.url()
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline:
            if httpx.get(f"{url}/readyz").status_code == 200:
                return url
            time.sleep(0.05)
        raise AssertionError(httpx.get(f"{url}/readyz").text)

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=240)


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    exporter = Exporter()
    yield exporter
    exporter.close()


@pytest.fixture
def daemon(tmp_path: Path, exporter: Exporter) -> Iterator[Daemon]:
    config = tmp_path / "nightshift.yaml"
    config.write_text(yaml.safe_dump(values(tmp_path / "state", exporter, tick_s=0.5)))
    daemon = Daemon(config)
    yield daemon
    if daemon.process.poll() is None:
        daemon.process.kill()
        daemon.process.wait()


def test_it_serves_health_and_metrics_and_drains_on_sigterm(daemon: Daemon) -> None:
    """Ready after its first look; SIGTERM ends it with 0 and says so; its lease is given back."""
    url = daemon.ready()
    assert httpx.get(f"{url}/healthz").json() == {"alive": True, "reasons": []}
    page = httpx.get(f"{url}/metrics").text
    assert 'nightshift_subjects{kind="gpu"} 2.0' in page
    assert re.search(r"nightshift_ticks_total [1-9]", page)
    assert daemon.end() == 0
    assert "stopped" in daemon.log.read_text()
    again = Daemon(daemon.config)
    again.ready()
    assert again.end(signal.SIGINT) == 0


def test_sighup_takes_a_good_configuration_up_and_refuses_a_bad_one(daemon: Daemon, exporter: Exporter) -> None:
    """A typo is named in the log and counted while the old configuration goes on; the mended file is taken up."""
    url = daemon.ready()
    good = daemon.config.read_text()
    daemon.config.write_text(good + "tik_s: 1\n")
    daemon.process.send_signal(signal.SIGHUP)
    _until(lambda: "nightshift_config_last_reload_successful 0.0" in httpx.get(f"{url}/metrics").text)
    assert "did you mean 'tick_s'" in daemon.log.read_text()
    other = Exporter(gpus=3)
    state = daemon.config.parent / "state"
    daemon.config.write_text(yaml.safe_dump(values(state, exporter, other, tick_s=0.5)))
    daemon.process.send_signal(signal.SIGHUP)
    _until(lambda: 'nightshift_sources{state="up"} 2.0' in httpx.get(f"{url}/metrics").text)
    assert "nightshift_config_last_reload_successful 1.0" in httpx.get(f"{url}/metrics").text
    assert daemon.end() == 0
    other.close()


def test_the_command_line_reaches_the_daemons_store(daemon: Daemon) -> None:
    """Halt from a second process is seen by the daemon's console, resume lifts it, and the audit chain holds."""
    url = daemon.ready()
    done = nightshift("halt", "--reason", "drill", "--json", config=daemon.config)
    assert (done.returncode, json.loads(done.stdout)["ok"]) == (0, True), done.stderr
    assert "Emergency stop: no action" in httpx.get(url).text
    assert nightshift("resume", config=daemon.config).stdout.startswith("Resumed")
    report = json.loads(nightshift("audit", "verify", "--json", config=daemon.config).stdout)
    assert report["ok"]
    assert report["records"] >= 2
    assert nightshift("audit", "verify", "--anchor", report["head"], config=daemon.config).returncode == 0
    assert json.loads(nightshift("incidents", "--json", config=daemon.config).stdout) == []
    token = nightshift("token", config=daemon.config).stdout.strip()
    assert httpx.post(f"{url}/sign-in", data={"token": token}).status_code == 303


def test_a_second_daemon_is_told_about_the_first(daemon: Daemon) -> None:
    """On SQLite there is one daemon; another ends with a sentence and leaves the first alone."""
    url = daemon.ready()
    second = nightshift("run", config=daemon.config)
    assert second.returncode in (2, 75)
    assert "nightshift: " in second.stderr
    assert "Traceback" not in second.stderr
    assert httpx.get(f"{url}/healthz").status_code == 200


def test_the_doctor_says_what_works_and_what_does_not(tmp_path: Path, exporter: Exporter) -> None:
    """A live exporter works; a dead one, a public secret and a taken port are named with what to do."""
    dead = Exporter()
    dead.close()
    config = tmp_path / "n.yaml"
    config.write_text(yaml.safe_dump(values(tmp_path / "state", exporter, dead)))
    done = nightshift("doctor", "--json", config=config)
    checks = {check["name"]: check for check in json.loads(done.stdout)}
    assert done.returncode == 1
    assert checks["store"]["ok"]
    assert checks["state_dir"]["ok"]
    sources = [check for name, check in checks.items() if name.startswith("sources[")]
    assert [check["ok"] for check in sources] == [True, False]
    assert "samples" in sources[0]["detail"]
    assert "unreachable" in sources[1]["detail"]
    text = nightshift("doctor", config=config).stdout
    assert "✓ store" in text
    assert "✕ sources[1]" in text


def test_mistakes_are_sentences_and_exit_codes(tmp_path: Path, exporter: Exporter) -> None:
    """No command answers a mistake with a traceback."""
    config = tmp_path / "n.yaml"
    config.write_text("tick_s: fast\n")
    for arguments in (["config", "check", str(config)], ["run", "--config", str(config)]):
        done = nightshift(*arguments)
        assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
        assert f"{config}:1: tick_s" in done.stderr
    config.write_text(yaml.safe_dump(values(tmp_path / "state", exporter)))
    assert nightshift("config", "check", str(config)).returncode == 0
    done = nightshift("show", "INC-1", config=config)
    assert (done.returncode, "has the daemon run" in done.stderr) == (2, True)


def test_help_is_quick_and_loads_no_heavy_library() -> None:
    """`nightshift --help` imports neither NumPy nor torch, SQLAlchemy nor FastAPI."""
    code = (
        "import sys, nightshift.agent.__main__\n"
        "print([n for n in ('numpy', 'torch', 'sqlalchemy', 'fastapi', 'dbos', 'kubernetes') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def _until(condition: Callable[[], bool], limit_s: float = 240.0) -> None:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("it did not happen in time")
