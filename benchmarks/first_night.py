"""From a fresh clone to the first incident of `make demo`, and what the core installation weighs.

    python -m benchmarks.first_night

A clone of the commit with an empty environment: `make setup` with the wheels that pip finds on this machine, then
`make demo` until it prints its first incident. Wall times hold whatever else the machine does; `cpu_s` is what the
command and its children computed, so what it would take on one core that does nothing else. The demo also waits
between ticks, so that people can watch: its wall time is never less than that.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.report import write
from nightshift.version import ROOT, commit

FIRST = "INC-1 "


def environment() -> dict[str, str]:
    """A stranger's shell: nothing of an active environment, and no bytecode rules of ours."""
    ours = {"VIRTUAL_ENV", "MAKEFLAGS", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE"}
    return {name: value for name, value in os.environ.items() if name not in ours}


def cpu_s(group: int) -> float:
    """CPU time of a process group: of each process that lives, and of its children that ended."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        if int(fields[2]) == group:
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def until(words: str, command: list[str], folder: Path) -> dict[str, float]:
    """Times until a command prints these words, or ends where there are none; then it is interrupted. Raises
    RuntimeError with what it said where they never come."""
    began_s, before = time.monotonic(), os.times()
    process = subprocess.Popen(
        command, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    said, spent_s = "", 0.0
    for line in process.stdout:
        said += line
        if words and words in line:
            spent_s = cpu_s(process.pid)
            break
    wall_s = time.monotonic() - began_s
    if process.poll() is None and words:
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=300)
    code = process.wait()
    if not spent_s:
        after = os.times()
        spent_s = after.children_user + after.children_system - before.children_user - before.children_system
    if (words and words not in said) or (not words and code):
        raise RuntimeError(f"{command}: {said[-3000:]}")
    return {"wall_s": round(wall_s, 1), "cpu_s": round(spent_s, 1)}


def core(folder: Path) -> dict[str, Any]:
    """How many packages the core installs, and their bytes."""
    pip = [folder / ".venv/bin/python", "-m", "pip", "list", "--format=json", "--disable-pip-version-check"]
    listed = json.loads(subprocess.run(pip, capture_output=True, text=True, check=True).stdout)
    files = (f for f in (folder / ".venv/lib").rglob("*") if f.is_file() and not f.is_symlink())
    return {"packages": len(listed), "megabytes": round(sum(f.lstat().st_size for f in files) / 1e6, 1)}


def main() -> None:
    results: dict[str, Any] = {"commit": commit(), "load_average_at_start": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory() as place:
        clone = Path(place) / "clone"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
        results["setup"] = until("", ["make", "setup"], clone)
        results["first_incident"] = until(FIRST, ["make", "demo"], clone)
        results["core"] = core(clone)
    results["load_average_at_end"] = os.getloadavg()[0]
    write("first_night", results)


if __name__ == "__main__":
    main()
