"""Benchmarks of serving: rows that resume, kinds in turn, and a history that becomes a folder."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import serving_rows
from benchmarks.serving_folder import Collection, write
from benchmarks.serving_solutions import RULES, refused_before
from nightshift.kernels.suites.definitions import definitions_in, solutions_in, workloads_of
from tests.serving_definitions import norm, topk


def test_kinds_come_in_turn() -> None:
    found = serving_rows.in_turn(["b1", "a1", "b2", "a2", "c1"], lambda name: name[0], ("b",))
    assert found == ["b1", "a1", "c1", "b2", "a2"]


def test_rows_are_read_again(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    assert serving_rows.rows_in(out) == {}
    serving_rows.save(out, "serving", "cpu", {"judged": 1}, rows={"b": {"x": 1}, "a": {"x": 2}})
    assert list(serving_rows.rows_in(out)) == ["a", "b"]
    assert not out.with_suffix(".part").exists()


@pytest.mark.parametrize(
    ("row", "again"),
    [
        ({"status": "wrong", "reason": "raised"}, True),
        ({"status": "wrong", "reason": "raised", "rules": RULES}, False),
        ({"status": "correct", "reason": "passed"}, False),
        ({"status": "compile_error", "reason": "compile_failed"}, False),
    ],
)
def test_what_earlier_rules_refused_is_judged_again(row: dict[str, Any], again: bool) -> None:
    assert refused_before(row) is again


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """Two commits: the second removes the solutions, and changes a definition."""
    root = tmp_path / "clone"
    spec = {"language": "python", "entry_point": "main.py::run"}
    source = [{"path": "main.py", "content": "def run(): pass"}]
    solution = {"name": "s", "author": "an author", "definition": "topk", "spec": spec, "sources": source}
    files = {
        "flashinfer_trace/definitions/topk/topk.json": topk(),
        "flashinfer_trace/definitions/rmsnorm/norm.json": {**norm(), "op_type": "older"},
        "results/one/solution.json": solution,
        "results/two/solution.json": {**solution, "name": "the same text"},
        "results/one/feedback_trace.json": {"evaluation": {"status": "PASSED"}},
    }
    for place, record in files.items():
        path = root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record))
    place = root / "flashinfer_trace/workloads/topk/topk.jsonl"
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps({"workload": {"axes": {"batch_size": 5}, "inputs": {}, "uuid": "u"}}) + "\n")
    git(root, "init", "-q")
    commit(root)
    (root / "flashinfer_trace/definitions/rmsnorm/norm.json").write_text(json.dumps(norm()))
    for name in ("one/solution.json", "two/solution.json"):
        (root / "results" / name).unlink()
    commit(root)
    return root


def git(root: Path, *words: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "-C", str(root), *who, *words], check=True, capture_output=True)


def commit(root: Path) -> None:
    git(root, "add", "-A")
    git(root, "commit", "-qm", "c")


def test_a_history_becomes_a_folder(tmp_path: Path, history: Path) -> None:
    folder = tmp_path / "folder"
    counts = write(Collection(history), folder)
    assert counts == {"definitions": 2, "workload_files": 1, "solutions": 1, "with_their_status": 1}
    definitions, refused = definitions_in(folder)
    assert not refused
    assert definitions["norm"].kind == "rmsnorm"
    assert len(workloads_of(folder, definitions["topk"])) == 1
    ((path, solution),) = solutions_in(folder)
    assert getattr(solution, "definition", None) == "topk"
    theirs = json.loads((folder / "theirs.json").read_text())
    assert theirs[str(path.relative_to(folder / "solutions"))]["theirs"] in ("PASSED", None)
