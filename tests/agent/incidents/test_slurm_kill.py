"""Killed with SIGKILL at arrows of an incident on a real Slurm, and before and after commands that change something
there: a daemon that starts afterwards ends it as if nothing had been, and nothing happens twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.killed_on_slurm import KilledScene, kill_and_go_on
from tests.slurm_lab import SlurmLab


@pytest.fixture
def killed(slurm: SlurmLab, tmp_path: Path, request: pytest.FixtureRequest) -> KilledScene:
    return KilledScene(slurm, tmp_path, request.param[0])


QUICK = [("drained, then given back", "after write 1")]
SOME = [
    ("drained, then given back", "before write 0"),
    ("drained, then given back", "within write 0"),
    ("drained, then given back", "after write 0"),
    ("drained, then given back", "after approved intent_stored"),
    ("drained, then given back", "after write 3"),
    ("drained, then given back", "after write 4"),
    ("drained, then given back", "before acting action_done"),
    ("rebooted", "after write 2"),
    ("restarted", "after write 0"),
    ("quarantined", "after write 0"),
]
"""benchmarks/slurm.py kills at every place."""


@pytest.mark.parametrize("killed", QUICK, indirect=True, ids=" · ".join)
def test_a_kill_on_slurm_loses_and_repeats_nothing(killed: KilledScene, request: pytest.FixtureRequest) -> None:
    kill_and_go_on(killed, request.node.callspec.params["killed"][1])


@pytest.mark.full
@pytest.mark.parametrize("killed", SOME, indirect=True, ids=" · ".join)
def test_kills_around_commands_lose_and_repeat_nothing(killed: KilledScene, request: pytest.FixtureRequest) -> None:
    kill_and_go_on(killed, request.node.callspec.params["killed"][1])
