"""What a job and the registry tell each other through the registry's folder: demotions, and what checks found."""

from __future__ import annotations

import json
import os
from pathlib import Path

from nightshift.kernels.apply.job.state import KERNELS, STATE, Kernel, disable

DEMOTED_ENV = "NIGHTSHIFT_KERNEL_REGISTRY"
"""Folder whose `demoted.json` lists certificates that must not be used any more; read at start and at step ends."""


def demotions() -> set[str]:
    """Certificates that are demoted; all of this file's where the list cannot be read."""
    folder = os.environ.get(DEMOTED_ENV)
    if not folder:
        return set()
    try:
        listed = json.loads((Path(folder) / "demoted.json").read_text())
        return {str(item["certificate"]) for item in listed}
    # no list is the usual case: nothing was demoted yet
    except FileNotFoundError:
        return set()
    except (OSError, ValueError, TypeError, KeyError):
        return {str(k["certificate"]) for k in KERNELS}  # not readable: no kernel is known to be good


def out_of_reach() -> str:
    """Why no demotion can reach this job; empty where one can, or where none was asked for."""
    folder = os.environ.get(DEMOTED_ENV)
    lost = bool(folder) and not os.path.isdir(str(folder))
    return f"{folder} is no folder here: no demotion will reach this job" if lost else ""


def read_demotions() -> None:
    """Disables what was demoted since the last look; costs one `stat` where nothing changed."""
    folder = os.environ.get(DEMOTED_ENV)
    if not folder:
        return
    try:
        status = (Path(folder) / "demoted.json").stat()
        mark = (status.st_mtime_ns, status.st_size)
    except OSError:
        # the folder may go while a job runs: another mark than that of a missing list, so that it is told once
        mark = (0, -1) if out_of_reach() else (0, 0)
    if mark == STATE.registry_mark:
        return
    STATE.registry_mark = mark
    if lost := out_of_reach():
        STATE.log(f"nightshift kernels: {lost}")
    gone = demotions()
    # what a canary has taken out for these steps may come back
    running = STATE.first_steps.whole if STATE.first_steps is not None and STATE.first_steps.running else {}
    for kernel in {**running, **STATE.kernels}.values():
        if kernel.certificate in gone and not kernel.disabled:
            disable(kernel, "demoted in the registry")


def ask_demotion(kernel: Kernel) -> None:
    """Leaves a note in the registry's folder, which Nightshift reads; the job goes on either way."""
    folder = os.environ.get(DEMOTED_ENV)
    if not folder:
        return
    rank = os.environ.get("RANK", "")
    note = {"certificate": kernel.certificate, "why": kernel.disabled, "rank": rank}
    target = Path(folder) / "mismatches"
    path = target / f"{kernel.certificate[:16]}-{rank or '0'}-{os.getpid()}.json"
    partial = path.with_suffix(".partial")
    try:
        target.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(note) + "\n")
        # whole or not at all: Nightshift may read the folder at any time
        partial.replace(path)
    except OSError as error:
        STATE.log(f"nightshift kernels: the registry cannot be written ({error})")
