"""What a stranger's first command does, in a fresh clone."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 120.0
"""Of CPU time: how long it takes depends on the network and on who else uses the machine."""
MOST_PACKAGES, MOST_BYTES = 60, 350 * 10**6
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
    a_wheel_of_it_works_alone(clone, tmp_path)


def a_wheel_of_it_works_alone(clone: Path, elsewhere: Path) -> None:
    """The sdist is whole: a wheel made of it has every file of the package, and looks back without the clone."""

    def python(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = [clone / ".venv/bin/python", *words]
        return subprocess.run(command, cwd=elsewhere, capture_output=True, text=True, check=check)

    pip = ("-m", "pip", "--quiet", "--disable-pip-version-check")
    listed = python(*pip, "list", "--format=freeze").stdout.split()
    assert len(listed) <= MOST_PACKAGES
    size = sum(f.lstat().st_size for f in (clone / ".venv/lib").rglob("*") if f.is_file() and not f.is_symlink())
    assert size <= MOST_BYTES
    python(*pip, "install", "setuptools>=77")
    make_sdist = f"import os, setuptools.build_meta as b; os.chdir({str(clone)!r}); print(b.build_sdist('dist'))"
    sdist = clone / "dist" / python("-c", make_sdist).stdout.splitlines()[-1]
    python(*pip, "uninstall", "--yes", "nightshift-oncall")
    python(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(elsewhere), str(sdist))
    (wheel,) = elsewhere.glob("nightshift_oncall-*.whl")
    python(*pip, "install", "--no-deps", str(wheel))
    tracked = subprocess.run(
        ["git", "ls-files", "nightshift"], cwd=clone, capture_output=True, text=True, check=True
    )
    with zipfile.ZipFile(wheel) as archive:
        assert set(tracked.stdout.split()) - set(archive.namelist()) == set()
    refused = python("-m", "nightshift.agent", "lookback", "--prometheus", "http://127.0.0.1:9", check=False)
    assert refused.returncode == 2
    assert "unreachable" in refused.stderr


def test_nothing_of_a_daemon_or_a_node_s_agent_needs_what_the_core_does_not_install() -> None:
    """Each would refuse to start from a plain `make setup`, and cost seconds at every start with the extras."""
    program = f"""
import sys
sys.modules.update(dict.fromkeys({(*HEAVY, "matplotlib", "stable_baselines3")!r}))  # an import of None is an error
import nightshift.agent.__main__, nightshift.agent.daemon, nightshift.agent.node_agent, nightshift.agent.replay
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
