"""The commands of README's "Run it on your cluster" and of the first tutorial, pasted in their order beside the
daemon that they started."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from examples.demo.serving import KERNEL_LOG, NodeServer
from tests.conftest import PrometheusFactory
from tests.processes import free_port

ROOT = Path(__file__).parents[2]
PAGES = {
    "README": (ROOT / "README.md").read_text().split("## Run it on your cluster")[1],
    "first incident": (ROOT / "docs/how-to/first-incident.md").read_text(),
}
NO = ("nightshift doctor", "nightshift reject")
"""Their answer may be no here: a source without telemetry yet, and a plan that the line before approved."""


def pasted(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGES[page], re.M | re.S)


@pytest.mark.full
@pytest.mark.parametrize("page", PAGES)
def test_every_nightshift_command_of_a_page_runs_as_printed(
    page: str, tmp_path: Path, prometheus_server: PrometheusFactory
) -> None:
    """The page's file and commands with this machine's addresses, else unchanged: each ends and answers."""
    nodes, prometheus = [NodeServer("gpu-n1"), NodeServer("gpu-n2")], prometheus_server("scrape_configs: []")
    (tmp_path / "training").mkdir()
    (text,) = pasted(page, "yaml")
    places = {
        "http://prometheus.monitoring:9090": prometheus.url,
        **{f"http://gpu-n{n}:9500{KERNEL_LOG}": node.url + KERNEL_LOG for n, node in enumerate(nodes, 1)},
        "/var/log/training": str(tmp_path / "training"),
    }

    def here(words: str) -> str:
        for theirs, ours in places.items():
            words = words.replace(theirs, ours)
        return words

    text = here(text)
    assert prometheus.url in text
    (tmp_path / "nightshift.yaml").write_text(text)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "NIGHTSHIFT_STATE_DIR": str(tmp_path / "state"),
        "NIGHTSHIFT_CONSOLE__PORT": str(free_port()),
        "NIGHTSHIFT_LIFECYCLE__QUIET_S": "0",
    }
    printed = [line[2:] for block in pasted(page, "console") for line in block.splitlines() if line[:2] == "$ "]
    lines = [here(line) for line in printed if line.startswith("nightshift ")]
    assert len(lines) >= 9
    running: dict[str, subprocess.Popen[str]] = {}

    def start(line: str) -> None:
        running[line] = subprocess.Popen(
            ["bash", "-c", f"exec {line}"], cwd=tmp_path, env=environment, stdout=-1, stderr=-2, text=True
        )

    def run(line: str) -> tuple[int, str]:
        done = subprocess.run(
            ["bash", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
            timeout=120,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    def until(line: str, words: str) -> None:
        for _ in range(120):
            if words in run(line)[1]:
                return
            time.sleep(0.5)
        raise AssertionError(f"{line}: never {words!r}: {run(line)[1]}")

    try:
        (serves,) = [line for line in lines if line.startswith("nightshift run ")]
        (drills,) = [line for line in lines if line.startswith("nightshift drill ")]
        said = {line: run(line) for line in lines[: lines.index(serves)]}
        start(serves)
        until("nightshift status", "Works.")
        start(drills)
        until("nightshift show INC-1", "awaiting approval")
        for line in lines[lines.index(serves) + 1 :]:
            if line != drills:
                said[line] = run(line)
            if line.startswith("nightshift approve"):
                until("nightshift show INC-1", "confirming")
        told, _ = running[drills].communicate(timeout=120)
        assert "Drill finished" in told
    finally:
        for process in running.values():
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
        for node in nodes:
            node.close()
    assert running[serves].returncode == 0
    failed = {line: answer for line, answer in said.items() if answer[0] and not line.startswith(NO)}
    assert failed == {}
    assert all(code in (0, 1) and "Traceback" not in text for code, text in said.values())
