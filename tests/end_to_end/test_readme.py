"""The commands of README's "Run it on your cluster", pasted in their order beside a daemon that they started."""

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

README = (Path(__file__).parents[2] / "README.md").read_text()
NO = ("nightshift doctor", "nightshift reject")
"""Their answer may be no here: a source without telemetry yet, and a plan that the line before approved."""


def pasted(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README.split("## Run it on your cluster")[1], re.M | re.S)


@pytest.mark.full
def test_every_nightshift_command_of_the_readme_runs_as_printed(
    tmp_path: Path, prometheus_server: PrometheusFactory
) -> None:
    """README's file with this machine's addresses, README's commands unchanged: each ends, and says its answer."""
    nodes, prometheus = [NodeServer("gpu-n1"), NodeServer("gpu-n2")], prometheus_server("scrape_configs: []")
    (tmp_path / "training").mkdir()
    (text,) = pasted("yaml")
    for theirs, ours in (
        ("http://prometheus.monitoring:9090", prometheus.url),
        *((f"http://gpu-n{n}:9500{KERNEL_LOG}", node.url + KERNEL_LOG) for n, node in enumerate(nodes, 1)),
        ("/var/log/training", str(tmp_path / "training")),
    ):
        assert theirs in text
        text = text.replace(theirs, ours)
    (tmp_path / "nightshift.yaml").write_text(text)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "NIGHTSHIFT_STATE_DIR": str(tmp_path / "state"),
        "NIGHTSHIFT_CONSOLE__PORT": str(free_port()),
        "NIGHTSHIFT_LIFECYCLE__QUIET_S": "0",
    }
    lines = [line[2:] for block in pasted("console") for line in block.splitlines() if line.startswith("$ ")]
    lines = [line for line in lines if line.startswith("nightshift ")]
    assert len(lines) >= 11
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
