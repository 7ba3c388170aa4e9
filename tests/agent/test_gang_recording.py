"""A real gang of four processes over gloo, recorded and cut (`tests/recordings/README.md`), through the daemon."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gang_replay import replayed, scored, stretch

RECORDINGS = Path(__file__).parents[1] / "recordings"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("gang")
    labels = json.loads((RECORDINGS / "gang_cpu4.json").read_text())
    factor = 8.0
    start_s = stretch(RECORDINGS / "gang_cpu4.nightshift.gz", folder / "made.gz", factor)
    found = replayed(folder / "made.gz", folder / "state", look_s=16.0, settle_every=1000)
    return scored(labels, found, start_s, factor)


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
