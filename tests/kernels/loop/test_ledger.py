"""The ledger: on the disk before it is acted on, whole after a crash, one writer, every field checked."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.collectors.base import Permanent
from nightshift.kernels.candidate import Candidate
from nightshift.kernels.loop.ledger import HEAD, Ledger, LedgerError, Line, on_disk, read_candidate_of, read_run

LINE = Line(
    trial=1, at_s=1.5, seed=7, commit="c0ffee", gpu="NVIDIA H200", container="none", generator="softmax",
    problem="softmax", case={"params": {"m": 4, "n": 8}, "dtype": "float16", "layout": "contiguous"},
    config={"warps": 4, "load": ""}, hypothesis="first", candidate_sha256="0" * 64, rung=0, decision="keep",
    status="slower", reason="below_baseline", detail="a\tb\nc", seconds=1e-5, baselines={"eager": 9e-6},
    speedup=(0.8, 0.9, 1.0),
)  # fmt: skip
CANDIDATE = Candidate("def entry(x):\n    return x\n", "entry", "python", "own_kernel", "bitwise")


def test_a_reopened_run_holds_every_line_that_was_added(tmp_path: Path) -> None:
    """What was added is there again, NaN included, and the table has a row for each."""
    with Ledger(tmp_path, {"problem": "softmax"}) as ledger:
        ledger.add(LINE)
        ledger.add(replace(LINE, trial=2, decision="discard", seconds=float("nan"), speedup=(float("nan"),) * 3))
    asked, lines = read_run(tmp_path)
    assert asked == {"problem": "softmax"}
    assert lines[0] == LINE
    assert lines[1].seconds != lines[1].seconds
    with Ledger(tmp_path, {"problem": "softmax"}) as again:
        assert [line.trial for line in again.lines] == [1, 2]
    rows = (tmp_path / "results.tsv").read_text().splitlines()
    assert len(rows) == 3
    assert all(row.count("\t") == rows[0].count("\t") for row in rows)


@settings(max_examples=25, deadline=None)
@given(cut=st.integers(min_value=1, max_value=400))
def test_a_line_torn_by_a_crash_is_cut_off_and_the_run_goes_on(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    """However many bytes of the last line reached the disk, the whole lines before it survive."""
    folder = tmp_path_factory.mktemp("run")
    with Ledger(folder) as ledger:
        ledger.add(LINE)
        head = (folder / HEAD).read_bytes()
        ledger.add(replace(LINE, trial=2))
    (folder / HEAD).write_bytes(head)  # it is written behind the whole line
    path = folder / "ledger.jsonl"
    data = path.read_bytes()
    last = len(data) - data.rfind(b"\n", 0, -1) - 1
    path.write_bytes(data[: -min(cut, last)])
    with Ledger(folder) as again:
        assert [line.trial for line in again.lines] == [1]
        again.add(replace(LINE, trial=2))
    assert len(read_run(folder)[1]) == 2


def test_a_malformed_whole_line_is_refused_by_file_and_line_number(tmp_path: Path) -> None:
    """Corruption inside the file is never skipped over."""
    with Ledger(tmp_path) as ledger:
        ledger.add(LINE)
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(path.read_bytes() + json.dumps({**LINE.to_json(), "decision": "maybe"}).encode() + b"\n")
    with pytest.raises(LedgerError, match=r"ledger\.jsonl:2: decision: 'maybe'"):
        Ledger(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rung", "a"), ("secret", "zz"), ("secret", None), ("case", {}), ("case", [1]), ("speedup", [1]),
        ("baselines", [1]), ("config", None), ("detail", {"a": 1}), ("case", {**LINE.case, "params": 3}),
    ],
)  # fmt: skip
def test_a_line_whose_fields_are_of_another_kind_is_refused_when_it_is_read(
    tmp_path: Path, field: str, value: Any
) -> None:
    """Not when a replay or the report comes to use one of them."""
    (tmp_path / "ledger.jsonl").write_text(json.dumps({**LINE.to_json(), field: value}) + "\n")
    with pytest.raises(LedgerError, match=r"ledger\.jsonl:1: "):
        read_run(tmp_path)


def test_one_run_has_one_writer(tmp_path: Path) -> None:
    """A second search on the same folder is told so, and the first is not disturbed."""
    with Ledger(tmp_path) as ledger, pytest.raises(LedgerError, match="another search"):
        Ledger(tmp_path)
    with Ledger(tmp_path):
        assert ledger.lines == []


def test_a_run_that_was_asked_something_else_is_not_continued(tmp_path: Path) -> None:
    """Resuming with another question names what differs."""
    Ledger(tmp_path, {"problem": "softmax", "seed": 1}).__exit__()
    with pytest.raises(LedgerError, match="seed"):
        Ledger(tmp_path, {"problem": "softmax", "seed": 2})


def test_a_changed_candidate_is_not_given_out_under_its_old_name(tmp_path: Path) -> None:
    """The stored source is held against its hash."""
    with Ledger(tmp_path) as ledger:
        ledger.keep(CANDIDATE)
    assert read_candidate_of(tmp_path, CANDIDATE.sha256) == CANDIDATE
    path = tmp_path / "candidates" / f"{CANDIDATE.sha256}.json"
    path.write_text(path.read_text().replace("return x", "return y"))
    with pytest.raises(LedgerError, match="another hash"):
        read_candidate_of(tmp_path, CANDIDATE.sha256)


@pytest.mark.parametrize("text", ["", "{", "[]", "7"])
def test_a_damaged_account_of_what_was_asked_is_named(tmp_path: Path, text: str) -> None:
    with Ledger(tmp_path, {"task": "softmax"}) as ledger:
        assert ledger.lines == []
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(LedgerError, match=r"run\.json: "):
        Ledger(tmp_path, {"task": "softmax"})
    with pytest.raises(LedgerError, match=r"run\.json: "):
        read_run(tmp_path)


def test_a_full_disk_is_told_and_what_it_tore_is_no_trial(tmp_path: Path) -> None:
    """By the limit on a file's size, which fails a write as a full disk does: after a part of it."""
    code = """
import resource, sys
from pathlib import Path
from nightshift.kernels.loop.ledger import HEAD, Ledger, on_disk
from tests.kernels.loop.test_ledger import LINE, replace
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
with on_disk(Path(sys.argv[1])), Ledger(Path(sys.argv[1]), {}) as ledger:
    while True:
        ledger.add(replace(LINE, trial=len(ledger.lines) + 1))
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert f"{tmp_path}: File too large; run it again, and it goes on where it was" in done.stderr
    data = (tmp_path / "ledger.jsonl").read_bytes()
    assert len(data) == 2000
    with Ledger(tmp_path, {}) as ledger:
        count = len(ledger.lines)
        assert count == data.count(b"\n") > 0
        ledger.add(replace(LINE, trial=count + 1))
    assert len(read_run(tmp_path)[1]) == count + 1


@pytest.mark.parametrize(
    "change",
    [{"status": "great"}, {"at_s": None}, {"at_s": "now"}, {"full": "yes"}, {"trial": True}, {"at_s": True}],
)
def test_a_line_that_was_edited_to_nonsense_is_named_before_a_search_goes_on(
    tmp_path: Path, change: dict[str, object]
) -> None:
    """A report took it, and the search that was resumed from it ended in a traceback."""
    (tmp_path / "ledger.jsonl").write_text(json.dumps(LINE.to_json() | change) + "\n")
    with pytest.raises(LedgerError, match=rf"ledger\.jsonl:1: {next(iter(change))}: "):
        read_run(tmp_path)


def test_a_folder_in_a_files_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "ledger.jsonl").mkdir()
    with pytest.raises(Permanent, match=r"ledger\.jsonl: Is a directory"), on_disk(tmp_path):
        Ledger(tmp_path)
