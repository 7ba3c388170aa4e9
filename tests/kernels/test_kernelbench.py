"""KernelBench's format, its score, and the field's verbs, through the real judge."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from nightshift.kernels import interface
from nightshift.kernels.candidate import Candidate
from nightshift.kernels.judge.judge import Judge
from nightshift.kernels.judge.probes.inputs import CPU
from nightshift.kernels.judge.verdict import STATUS_OF, Comparison, Interval, Reason, Verdict
from nightshift.kernels.ops.problems import named
from nightshift.kernels.problem import ProblemError
from nightshift.kernels.suites.kernelbench import candidate_of, fast_p, load_suite, load_task, scores

SUITE = Path(__file__).parent / "kernelbench"
MODEL_NEW = """
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features, out):
        super().__init__()
        self.linear = nn.Linear(features, out)

    def forward(self, x):
        return nn.functional.gelu(x @ self.linear.weight.T + self.linear.bias{extra})
"""


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge("cpu") as made:
        yield made


def test_a_suite_loads_with_parameters_as_inputs() -> None:
    suite = load_suite(SUITE)
    assert list(suite) == ["1_gelu_linear.py", "2_softmax.py"]
    task = suite["1_gelu_linear.py"]
    assert task.state == ("linear.weight", "linear.bias")
    case = task.problem.cases[0]
    inputs = task.problem.inputs(case, "normal", 3, "cpu")
    assert [tuple(x.shape) for x in inputs if isinstance(x, torch.Tensor)] == [(8, 32), (16, 32), (16,)]
    again = task.problem.inputs(case, "normal", 3, "cpu")
    other = task.problem.inputs(case, "normal", 4, "cpu")
    assert all(torch.equal(a, b) for a, b in zip(inputs, again, strict=True))  # type: ignore[arg-type]
    assert not any(torch.equal(a, b) for a, b in zip(inputs, other, strict=True))  # type: ignore[arg-type]
    assert task.problem.compulsory_bytes(case) == 4 * (8 * 32 + 16 * 32 + 16 + 8 * 16)
    assert task.problem.flops(case) == 2 * 8 * 32 * 16


def test_a_model_new_is_judged_like_any_candidate(judge: Judge) -> None:
    """A right ModelNew passes; one that forgets the bias, or falls back on its own weights, does not."""
    task = load_task(SUITE / "1_gelu_linear.py")

    def verdict(source: str) -> Verdict:
        candidate = candidate_of(task, source, "python", "library")
        return interface.verify(judge, candidate, task.problem, CPU)

    assert verdict(MODEL_NEW.replace("{extra}", "")).reason is Reason.passed
    assert verdict(MODEL_NEW.replace("{extra}", " * 0")).refused
    assert verdict(MODEL_NEW.replace("{extra}", "").replace("self.linear.weight.T", "torch.ones(32, 16)")).refused


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("x = (", "does not load"),
        ("class Model: pass", "no get_inputs"),
        ("def Model(): 1 / 0\ndef get_inputs(): return []\ndef get_init_inputs(): return []", "fail"),
    ],
)
def test_a_broken_task_is_told_by_file(text: str, word: str, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(text)
    with pytest.raises(ProblemError, match=r"bad\.py") as caught:
        load_suite(tmp_path)
    assert word in str(caught.value)
    with pytest.raises(ProblemError, match="nothing: no folder of tasks"):
        load_suite(tmp_path / "nothing")


def _verdict(reason: Reason, low: float = 1.0, point: float = 1.0) -> Verdict:
    speed = Interval(low, point, 2 * point)
    comparisons = (Comparison("c", "eager", "A", 1e-3, point * 1e-3, speed, 20),) if point else ()
    return Verdict("0" * 64, "p", STATUS_OF[reason], reason, "", "timing", comparisons=comparisons)


def test_fast_p_counts_correct_and_faster_tasks() -> None:
    """Four tasks: 2× (surely), 1.2× (perhaps 0.9), correct but never timed, wrong."""
    verdicts = {
        "a": _verdict(Reason.clears_best, 1.9, 2.0),
        "b": _verdict(Reason.straddles, 0.9, 1.2),
        "c": _verdict(Reason.passed, 0.0, 0.0),
        "d": _verdict(Reason.rmse, 5.0, 5.0),
    }
    assert scores(verdicts) == {"fast_0": 0.75, "fast_1": 0.25, "fast_1.5": 0.25, "fast_2": 0.0}
    assert fast_p(verdicts.values(), 1.0, bound="point") == 0.5
    assert math.isnan(fast_p([], 1.0))


def _trial(source: str, point: float, reason: Reason = Reason.clears_best) -> interface.Trial:
    candidate = Candidate(source, "entry", "triton", "own_kernel", "bitwise")
    return interface.Trial(candidate, _verdict(reason, point, point))


def test_contrasts_are_alike_in_text_and_apart_in_speed() -> None:
    """Two that differ in one number tell more than two that share nothing, at the same ratio."""
    base = "kernel body with BLOCK={} and a long common text that both of them share"
    fast, slow = _trial(base.format(1024), 3.0), _trial(base.format(64), 1.0)
    strange = _trial("zzzz", 1.0, Reason.below_baseline)
    wrong = _trial(base.format(32), 9.0, Reason.rmse)
    first, second = interface.contrastive_select([slow, strange, wrong, fast, fast], 5)
    assert (first.fast, first.slow) == (fast, slow)
    assert first.ratio == pytest.approx(3.0)
    assert second.slow == strange
    assert second.likeness < first.likeness
    assert interface.contrastive_select([fast], 3) == []


def test_the_verbs_reach_the_judge(judge: Judge) -> None:
    class Writer:
        def write(self, problem: object, history: object) -> Candidate:
            return Candidate("def entry(x):\n    return x.softmax(-1)\n", "entry", "python", "library", "bitwise")

    problem = named("softmax")
    made = interface.generate_kernel(Writer(), problem)
    assert "compile" in interface.compile(judge, made, problem).stages
    broken = Candidate(
        "import torch\n1 / 0\n\n\ndef entry(x):\n    return x\n", "entry", "python", "library", "bitwise"
    )
    assert "compile" not in interface.compile(judge, broken, problem).stages
    timed = interface.benchmark(judge, made, problem, interface._SMOKE)
    assert timed.reason is Reason.passed
    assert timed.comparisons == ()
