"""Processes of their own that have the daemon's imports already: a fresh interpreter takes a second and more."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "tests.agent.killed",
        "tests.agent.killed_on_slurm",
        "nightshift.agent.__main__",
        "nightshift.agent.settings",
        "nightshift.agent.store.audit",
        "nightshift.agent.doctor",
        "nightshift.agent.daemon",
        "tests.frozen",
    ]
)
LIMIT_S = 500.0


def run_in_process(target: Callable[..., None], *arguments: object) -> int:
    """The exit code of a process of its own; negative: the signal that ended it."""
    process = FORKS.Process(target=target, args=arguments)
    process.start()
    process.join(LIMIT_S)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise AssertionError(f"{arguments}: still running after {LIMIT_S} s")
    return process.exitcode


def nightshift(*arguments: str, config: Path | None = None) -> subprocess.CompletedProcess[str]:
    """One command of the command line."""
    environment = {**os.environ, **({"NIGHTSHIFT_CONFIG": str(config)} if config else {})}
    with tempfile.TemporaryDirectory() as folder:
        code = run_in_process(_command, arguments, environment, folder)
        out, err = (Path(folder, name).read_text() for name in ("out", "err"))
    return subprocess.CompletedProcess(arguments, code, out, err)


def _command(arguments: tuple[str, ...], environment: Mapping[str, str], folder: str) -> None:
    os.environ.clear()
    os.environ.update(environment)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT), number)
    sys.argv = ["nightshift", *arguments]
    from nightshift.agent.__main__ import main

    main()
