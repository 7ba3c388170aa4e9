"""An upgrade from the first release keeps everything, by that release's own code, and can be taken back.

The figures of both databases: `python -m benchmarks.upgrade`. Here SQLite, and a shorter night.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks.upgrade import COMMIT, SCHEMA, journey, old_tree
from nightshift.agent.store.database import schemas

ROOT = Path(__file__).parents[3]


@pytest.mark.full
def test_an_upgrade_from_617389f_keeps_everything_and_can_be_taken_back(tmp_path: Path) -> None:
    """Incidents, a plan that waits, the halt, a silence, a policy, receipts, files and each setting."""
    known = subprocess.run(["git", "cat-file", "-e", COMMIT], cwd=ROOT, check=False, capture_output=True)
    if known.returncode:
        pytest.skip(f"this clone has no commit {COMMIT[:7]}: fetch the whole history")
    with old_tree() as tree:
        found = journey(tree, tmp_path, f"sqlite:///{tmp_path}/store.sqlite", 1)
    taken = found["taken over"]
    assert (found["schema of the old program"], found["schema of this program"]) == (SCHEMA, schemas()[-1])
    assert taken["incidents"] == found["its incidents"] >= 2
    assert taken["incidents changed"] == []
    assert taken["diagnoses with claims that are read"] == taken["incidents"]
    assert taken["halt kept"]
    assert taken["silences"] == ["node:gpu-r02-n02"]
    assert (taken["policy"], taken["receipts"]) == ("canary", 20)
    assert taken["waiting plans carried out"] == taken["plans that wait"] == 1
    assert found["rolled back"]["incidents lost"] == []
    assert found["rolled back"]["audit log holds"]
    assert found["rolled back"]["receipts"] == 20
    assert found["settings"]["refused"] == []
    assert found["files"] == {
        "calibrated detectors": ["memory_leak"],
        "policy": "ppo",
        "certificate": ["canary", "softmax", True],
        "ledger lines": 3,
    }
