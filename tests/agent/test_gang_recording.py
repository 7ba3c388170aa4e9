"""Real gangs of four ranks (`tests/recordings/README.md`) through the daemon: over gloo, and on four H200s."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gang_replay import replayed, scored, stretch

RECORDINGS = Path(__file__).parents[1] / "recordings"


def _run(name: str, factor: float, look_s: float, folder: Path) -> dict[str, Any]:
    labels = json.loads((RECORDINGS / f"{name}.json").read_text())
    start_s = stretch(RECORDINGS / f"{name}.nightshift.gz", folder / "made.gz", factor)
    found = replayed(folder / "made.gz", folder / "state", look_s=look_s, settle_every=1000)
    return scored(labels, found, start_s, factor)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return _run("gang_cpu4", 8.0, 16.0, tmp_path_factory.mktemp("gang"))


FAULTS = {
    "ddp": {
        "compute 30 %": "2",
        "compute 8 %": "0",
        "loader": "3",
        "compute 4 %": "1",
        "gradients": "2",
        "kill": "1",
    },
    "fsdp": {"hog": "1", "copies": "2", "leak": "3", "skip": "2"},
}
"""By part, the rank of each. `stall` is not among them: another rank's slow copies were over too lately."""


@pytest.mark.full
@pytest.mark.parametrize("part", FAULTS)
def test_four_gpus_in_a_gang_name_the_rank_at_fault_and_no_benign_phase(part: str, tmp_path: Path) -> None:
    run = _run(f"gang_h200x4/{part}", 6.0, 15.0, tmp_path)
    named = {row["fault"]: " ".join(row["named"]) for row in run["faults"] if row["found"]}
    assert named == FAULTS[part]
    assert run["benign_alarms"] == []
    assert (run["gpus"], run["accounts_off"] < 1e-9) == (4, True)
    hang = next((row for row in run["faults"] if row["fault"] == "skip"), None)
    if hang is not None:
        assert any("rank 2 called another operation in place of all_reduce" in text for text in hang["diagnosis"])


def test_a_collective_that_one_rank_skipped_is_found_with_rank_and_collective(run: dict[str, Any]) -> None:
    """The three that wait are no culprits; the flight recorder's rings say who called another operation."""
    (hang,) = run["faults"]
    assert (hang["fault"], hang["right_rank"], hang["named"]) == ("skip", True, ["2"])
    assert 180.0 <= hang["delay_s"] <= 260.0
    assert any("rank 2" in sentence and "all_reduce" in sentence for sentence in hang["diagnosis"])


def test_nothing_fires_before_the_fault(run: dict[str, Any]) -> None:
    assert run["benign_alarms"] == []


def test_the_accounts_of_the_run_sum_to_wall_time_times_ranks(run: dict[str, Any]) -> None:
    assert run["gpus"] == 4
    assert run["accounts_off"] < 1e-9
    assert run["gpu_s"]["hung"] > 4 * 180.0
