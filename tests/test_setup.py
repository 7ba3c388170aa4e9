"""What a stranger's first command does, in a fresh clone."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 120.0
"""Of CPU time: how long it takes depends on the network and on who else uses the machine."""
HEAVY = ("torch", "triton", "ray", "pandas", "pytest", "langchain")


@pytest.mark.full
def test_core_setup_is_quick_and_light(tmp_path: Path) -> None:
    """`make setup` in a fresh clone takes under two CPU minutes, installs no heavy extra and does nothing twice."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    plain = {name: value for name, value in os.environ.items() if name not in {"VIRTUAL_ENV", "MAKEFLAGS"}}

    def cpu_s() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    def setup() -> float:
        before_s = cpu_s()
        done = subprocess.run(["make", "setup"], cwd=clone, env=plain, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return cpu_s() - before_s

    assert setup() < LIMIT_S
    assert setup() < 2.0
    names = ",".join(HEAVY)
    probe = f"import importlib.util as u; print([n for n in '{names}'.split(',') if u.find_spec(n)])"
    found = subprocess.run([clone / ".venv/bin/python", "-c", probe], cwd=tmp_path, capture_output=True, text=True,
                           check=True)  # fmt: skip
    assert found.stdout.strip() == "[]"


def test_nothing_of_a_daemon_or_a_node_s_agent_needs_what_the_core_does_not_install() -> None:
    """Each would refuse to start from a plain `make setup`, and cost seconds at every start with the extras."""
    program = f"""
import sys
sys.modules.update(dict.fromkeys({(*HEAVY, "matplotlib", "stable_baselines3")!r}))  # an import of None is an error
import nightshift.agent.__main__, nightshift.agent.daemon, nightshift.agent.node_agent, nightshift.agent.replay
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
