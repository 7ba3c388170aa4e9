"""Temporary files lie in memory where it has room: tests commit thousands of times, and a disk takes milliseconds
for each. A run that failed leaves its files there; whoever sets TMPDIR has them where that says."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

import pytest

MEMORY, ROOM = Path("/dev/shm"), 6 << 30
FOLDER = ""
"""Of this run; empty in a worker, and where it was not made."""


def _has_room() -> bool:
    """Compiled kernels are loaded from there, so it must allow that as well."""
    try:
        place = os.statvfs(MEMORY)
        known = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        available = 1024 * int(known["MemAvailable"].split()[0])
    except (OSError, KeyError):
        return False
    is_open = os.access(MEMORY, os.W_OK) and not place.f_flag & os.ST_NOEXEC
    return is_open and place.f_bavail * place.f_frsize > ROOM and available > 2 * ROOM


def _remove() -> None:
    if _passed:
        shutil.rmtree(FOLDER, ignore_errors=True)


_passed: list[bool] = []
if "TMPDIR" not in os.environ and _has_room():
    FOLDER = tempfile.mkdtemp(prefix="ns-", dir=MEMORY)  # short: a socket's path holds 107 characters
    Path(FOLDER).chmod(0o755)  # PostgreSQL runs as another user
    os.environ["TMPDIR"], tempfile.tempdir = FOLDER, None
    atexit.register(_remove)  # first here, so last of all: others remove theirs in it as the process ends


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if exitstatus == 0:
        _passed.append(True)
