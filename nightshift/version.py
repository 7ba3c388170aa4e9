"""Which Nightshift this is: the distribution's version and, in a checkout, the commit. Imports nothing heavy."""

from __future__ import annotations

import os
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def program_version() -> str:
    try:
        return version("nightshift-oncall")
    except PackageNotFoundError:
        return "source"


def commit(root: Path = ROOT) -> str | None:
    """The commit of the checkout at `root`, or what NIGHTSHIFT_COMMIT says (for images, which have no .git)."""
    given = os.environ.get("NIGHTSHIFT_COMMIT")
    # git itself would search upwards: an environment inside another repository would show that one's commit
    if given or not (root / ".git").exists():
        return given or None
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "--short=12", "HEAD"],
            capture_output=True,
            text=True,
            check=False,
            timeout=5,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def line() -> str:
    found = commit()
    return f"nightshift {program_version()}" + (f" ({found})" if found else "")
