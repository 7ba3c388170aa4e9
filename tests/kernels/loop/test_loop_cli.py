"""The loop's command line: what is wrong is told with its place, and nothing is written for it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from nightshift.collectors.base import Permanent
from nightshift.kernels.cli import app
from nightshift.kernels.loop.ledger import Line
from nightshift.kernels.loop.ledger_chain import Audit
from nightshift.kernels.loop.report import SearchSection, write_report

RUNNER = CliRunner()
SOFTMAX = ["optimize", "--problem", "softmax", "--device", "cpu", "--case"]


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["optimize", "--device", "cpu", "--trace", "{folder}/nope.json"], "nope.json: No such file"),
        (["optimize", "--device", "cpu", "--trace", "{folder}"], "{folder}: Is a directory"),
        ([*SOFTMAX, "float16 m=abc"], "--case 'float16 m=abc': invalid literal"),
        ([*SOFTMAX, "float16 m"], "--case 'float16 m': "),
        ([*SOFTMAX, "int3 m=4 n=4"], "--case 'int3 m=4 n=4': dtype"),
        ([*SOFTMAX, "int8 m=4 n=4"], "softmax, case 'm=4 n=4 int8': the problem has no dtype 'int8'"),
        ([*SOFTMAX, "float16 q=4"], "its sizes are m, n, not q"),
        ([*SOFTMAX, "float16"], "its sizes are m, n, not none"),
        ([*SOFTMAX, "float16 m=4 n=-4"], "outside the problem"),
        ([*SOFTMAX, "float16 m=4 n=0"], "outside the problem"),
        (
            ["optimize", "--problem", "softmax", "--device", "cpu", "--run", "{folder}/file"],
            "--run .*file: File exists",
        ),
        (["report", "{folder}/nope"], "nope: no run's folder"),
        (["report", "{folder}/file"], "file: no run's folder"),
        (["replay", "1", "--device", "cpu", "--run", "{folder}/nope"], "nope: holds no search"),
        (["profile", "{folder}/file"], "this is no trace of torch.profiler"),
        (["report", "{folder}/odd"], "odd/profile.json: no profile of a search .KeyError: 'steps'"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(command: list[str], told: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a trace\n")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "profile.json").write_text("{}")
    asked = [part.format(folder=tmp_path) for part in command]
    asked += ["--run", str(tmp_path / "run")] if command[0] == "optimize" and "--run" not in command else []
    with pytest.raises(Permanent, match=told.format(folder=tmp_path)):
        RUNNER.invoke(app, asked, catch_exceptions=False)
    assert not (tmp_path / "nope").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("command", ["optimize", "probe", "replay", "judge"])
def test_a_gpu_that_is_not_there_is_told_before_anything_is_made(command: str, tmp_path: Path) -> None:
    rest = {
        "optimize": ["--problem", "softmax", "--run", str(tmp_path / "run")],
        "probe": [str(tmp_path / "peaks.json")],
        "replay": ["1"],
        "judge": [str(Path(__file__).parents[1] / "good" / "adamw_cast_flat.py")],
    }[command]
    with pytest.raises(Permanent, match="--device cuda: torch sees no GPU here"):
        RUNNER.invoke(app, [command, *rest, "--device", "cuda"], catch_exceptions=False)
    assert list(tmp_path.iterdir()) == []


LINE = Line(
    1, 0.0, 0, "c", "g", "none", "t", "softmax", {"params": {"m": 6, "n": 40}, "dtype": "float16", "layout": ""},
    {}, "", "a" * 64, 1, "keep", "faster", "clears_best", "",
    seconds=1e-6, speedup=(2.0, 3.0, 4.0), baselines={"eager": 3e-6},
)  # fmt: skip


def test_a_report_calls_nothing_the_best_that_a_whole_verdict_refused(tmp_path: Path) -> None:
    """The next best stands in its place, with the whole verdict's own figures; or nothing does."""
    second = replace(LINE, trial=2, candidate_sha256="b" * 64, decision="revert", seconds=2e-6)
    refused = replace(LINE, trial=3, full=True, of=1, decision="discard", status="wrong", reason="wrong_values")
    stands = replace(second, trial=4, full=True, of=2, speedup=(1.1, 1.2, 1.3), seconds=2.1e-6)
    folder = tmp_path / "tasks" / "softmax"
    folder.mkdir(parents=True)
    for lines, best in (
        ((LINE, second), LINE), ((LINE, second, refused), None), ((LINE, second, refused, stands), stands)
    ):  # fmt: skip
        assert SearchSection("softmax", folder, {}, lines, Audit()).best is best
        (folder / "ledger.jsonl").write_text("".join(json.dumps(line.to_json()) + "\n" for line in lines))
        markdown = write_report(tmp_path).markdown
        text = markdown.read_text()
        assert ("3.00×" in text) == (best is LINE)
        assert ("1.20× [1.10, 1.30]](tasks/softmax/ledger.jsonl#L4)" in text.replace("\\", "")) == (best is stands)


def test_a_key_or_a_certificate_that_cannot_be_written_is_told_before_a_judge_begins(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("mine")
    done = RUNNER.invoke(app, ["keygen", str(taken), str(tmp_path / "p.pub")], catch_exceptions=False)
    assert (done.exit_code, taken.read_text()) == (2, "mine")
    assert "taken: File exists" in done.output
    key = tmp_path / "k"
    assert RUNNER.invoke(app, ["keygen", str(key), str(tmp_path / "k.pub")]).exit_code == 0
    candidate = Path(__file__).parents[1] / "good" / "adamw_flat.py"
    for where in (tmp_path / "nowhere" / "c.json", tmp_path):
        command = ["judge", str(candidate), "--device", "cpu", "--key", str(key), "--certificate", str(where)]
        done = RUNNER.invoke(app, command, catch_exceptions=False)
        assert done.exit_code == 2
        assert "cannot be written there" in done.output
