"""A run's folder: whole files whenever the process dies, one process, one question."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nightshift.collectors.base import Permanent
from nightshift.kernels.cli import app
from nightshift.kernels.loop.run_folder import held, keep_question, peaks_of, question, signer_of
from nightshift.kernels.profile.problem_file import keep_problem, problem_path
from nightshift.kernels.suites import model_trace

SUITE = Path(__file__).parents[1] / "kernelbench"
RUNNER = CliRunner()


class Killed(BaseException):
    """In the place of signal 9: nothing that comes after it is done."""


def test_killed_at_any_write_a_folder_is_taken_up_with_the_key_that_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key of no bytes, or half of the question, and the folder could never be used again."""
    asked = question("problem", "softmax", case="", device="cpu")
    real, left = os.fsync, [0]

    def dying(descriptor: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        real(descriptor)

    def begin() -> str:
        with held(tmp_path, asked) as again:
            signer = signer_of(None, tmp_path)
            assert again == (tmp_path / "run.json").exists()
            keep_question(tmp_path, asked)
            return signer.key_id

    monkeypatch.setattr(os, "fsync", dying)
    for writes in (0, 1, 1):  # then at the private key, the public one, the question
        left[0] = writes
        with pytest.raises(Killed):
            begin()
    left[0] = 100
    first = begin()
    assert begin() == first
    assert (tmp_path / "signer.key").stat().st_mode & 0o777 == 0o600


def test_two_processes_do_not_share_a_folder(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from nightshift.kernels.loop.run_folder import held\n"
        "with held(Path(sys.argv[1]), {}): print('held', flush=True); time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "held\n"
            with pytest.raises(Permanent, match="another search has this run open"), held(tmp_path, {}):
                pass
        finally:
            other.kill()
    with held(tmp_path, {}) as again:
        assert not again


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (["--problem", "gelu"], r"asked something else \(problem\)"),
        (["--problem", "softmax", "--case", "float16 m=6 n=40"], r"asked something else \(case\)"),
        (["--kernelbench", str(SUITE)], r"asked something else \(kernelbench, problem\)"),
    ],
)
def test_a_folder_with_answers_to_one_question_is_asked_no_other(
    tmp_path: Path, other: list[str], told: str
) -> None:
    """Its report would tell of both, and its file for the job hold the kernels of one."""
    asked = question("problem", "softmax", case="", device="cpu")
    with held(tmp_path, asked):
        keep_question(tmp_path, asked)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(Permanent, match=told):
        RUNNER.invoke(app, ["optimize", *other, "--device", "cpu", "--run", str(tmp_path)], catch_exceptions=False)
    assert sorted(tmp_path.iterdir()) == before


def test_a_model_is_another_question_once_its_file_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("# one\n")
    first = question("model", f"{file}:Net")
    assert question("model", f"{file}:Net") == first
    file.write_text("# two\n")
    assert question("model", f"{file}:Net") != first
    with pytest.raises(Permanent, match=r"none\.py: No such file"):
        question("model", f"{tmp_path / 'none.py'}:Net")


def test_a_task_s_file_is_kept_byte_for_byte(tmp_path: Path) -> None:
    """Whatever encoding it names, and however its lines end."""
    source = tmp_path / "task.py"
    for text in (b"# coding: latin-1\r\nNAME = '\xe9'\r\n", b"\xef\xbb\xbfNAME = 1\n"):
        source.write_bytes(text)
        keep_problem(source, tmp_path / "run", f"task-{len(text)}")
        assert problem_path(tmp_path / "run", f"task-{len(text)}").read_bytes() == text


@pytest.mark.parametrize("step", ["signer_of", "peaks_of", "keep_question"])
def test_a_full_disk_is_told_wherever_a_run_meets_it(tmp_path: Path, step: str) -> None:
    code = f"""
import resource, sys
from pathlib import Path
from nightshift.kernels.profile.roofline import Peaks
from nightshift.kernels.loop.run_folder import held, keep_question, peaks_of, signer_of
run = Path(sys.argv[1])
steps = {{
    "signer_of": lambda: signer_of(None, run),
    "peaks_of": lambda: peaks_of(run, None, "cuda", lambda _: Peaks(1e12, {{}}, "probe")),
    "keep_question": lambda: keep_question(run, {{"problem": "softmax"}}),
}}
resource.setrlimit(resource.RLIMIT_FSIZE, (8, resource.RLIM_INFINITY))
with held(run, {{}}):
    steps[{step!r}]()
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert f"Permanent: {tmp_path}: File too large; run it again" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["run.lock"]
    assert peaks_of(tmp_path, None, "cpu", lambda _: pytest.fail("no GPU to probe")) is None


NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(32)

    def forward(self, x):
        return torch.softmax(self.norm(x), -1)

def get_inputs():
    return [torch.randn(4, 32)]
"""


@pytest.mark.full
def test_a_run_of_a_model_goes_on_with_the_trace_that_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another trace has other times, and ranks other operations first."""
    file, run = tmp_path / "model.py", tmp_path / "run"
    file.write_text(NET)
    command = ["optimize", "--model", f"{file}:Net", "--device", "cpu", "--run", str(run), "--trials", "1"]
    first = RUNNER.invoke(app, [*command, "--most", "1"], catch_exceptions=False)
    assert first.exit_code == 0, first.output
    before = {path: path.read_bytes() for path in run.rglob("*.json*")}

    def never(*_: Any) -> None:
        pytest.fail("traced anew")

    monkeypatch.setattr(model_trace, "trace_model", never)
    again = RUNNER.invoke(app, [*command, "--most", "1"], catch_exceptions=False)
    assert again.exit_code == 0, again.output
    assert {path: path.read_bytes() for path in run.rglob("*.json*")} == before


@pytest.mark.full
def test_a_suites_trial_is_judged_again_from_the_runs_own_copy_of_its_task(tmp_path: Path) -> None:
    suite, run = tmp_path / "suite", tmp_path / "run"
    suite.mkdir()
    text = (SUITE / "2_softmax.py").read_text()
    (suite / "2_softmax.py").write_text(text)
    (suite / "broken|.py").write_text("class Model(:\n")
    command = ["optimize", "--kernelbench", str(suite), "--device", "cpu", "--run", str(run), "--trials", "1"]
    done = RUNNER.invoke(app, command, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    told = (run / "report.md").read_text()
    assert "1 of 2 tasks have an author" in told
    assert "| [broken\\|.py](coverage.json) | [" in told
    (suite / "2_softmax.py").write_text(text + "# changed\n")
    with pytest.raises(Permanent, match="not what this run has searched so far"):
        RUNNER.invoke(app, command, catch_exceptions=False)
    shutil.rmtree(suite)
    done = RUNNER.invoke(app, ["replay", "1", "--device", "cpu", "--run", str(run)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
