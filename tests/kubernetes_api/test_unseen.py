"""The cluster tests against a server that only a kubeconfig names: what they need of ours, they say by skipping."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubernetes_api.cluster import VARIABLE, eventually

ROOT = Path(__file__).parents[2]
FILES = (
    "tests/controllers/actuators/test_kubernetes_actuator.py",
    "tests/controllers/actuators/test_kube_repair.py",
    "tests/kubernetes_api/test_answers.py",
    "tests/kubernetes_api/test_leaving.py",
)


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[Path]:
    """A server in a process of its own, with late controllers and caches, slow answers and objects of others."""
    path = tmp_path / "kubeconfig"
    command = [sys.executable, "-m", "tests.kubernetes_api", str(path), "--lag", "0.1", "--latency", "0.005"]
    with subprocess.Popen(command, cwd=ROOT) as process:
        try:
            eventually(lambda: path.exists() and path.stat().st_size > 0, "the server's kubeconfig")
            yield path
        finally:
            process.terminate()


@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_cluster_tests_pass_on_a_server_that_they_cannot_look_into(kubeconfig: Path) -> None:
    """As on a real cluster: none assumes controllers at once, fresh caches or an empty cluster."""
    done = _run(kubeconfig)
    assert done.returncode == 0, done.stdout[-4000:]
    found = re.search(r"(\d+) passed(?:, (\d+) skipped)?", done.stdout)
    assert found is not None
    assert int(found[1]) > 55
    assert int(found[2] or 0) <= 9, "what only our own server can do: two of them say what a pod printed"


def _run(kubeconfig: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not full", "--timeout=240", *FILES],
        cwd=ROOT,
        env={**os.environ, VARIABLE: str(kubeconfig)},
        capture_output=True,
        text=True,
        check=False,
    )
