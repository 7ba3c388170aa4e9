"""What a stranger's first command does, in a fresh clone."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 120.0
HEAVY = ("torch", "triton", "ray", "pandas", "pytest", "langchain")


@pytest.mark.full
def test_core_setup_is_quick_and_light(tmp_path: Path) -> None:
    """`make setup` in a fresh clone takes under two minutes, installs no heavy extra, and does nothing twice."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    plain = {name: value for name, value in os.environ.items() if name not in {"VIRTUAL_ENV", "MAKEFLAGS"}}

    def setup() -> float:
        began_s = time.monotonic()
        done = subprocess.run(["make", "setup"], cwd=clone, env=plain, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return time.monotonic() - began_s

    assert setup() < LIMIT_S
    assert setup() < 2.0
    names = ",".join(HEAVY)
    probe = f"import importlib.util as u; print([n for n in '{names}'.split(',') if u.find_spec(n)])"
    found = subprocess.run([clone / ".venv/bin/python", "-c", probe], cwd=tmp_path, capture_output=True, text=True,
                           check=True)  # fmt: skip
    assert found.stdout.strip() == "[]"
