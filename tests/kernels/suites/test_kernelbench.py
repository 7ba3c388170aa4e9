"""KernelBench's format, its score, and the field's verbs, through the real judge."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nightshift.kernels import interface
from nightshift.kernels.candidate import Candidate
from nightshift.kernels.judge.judge import Judge
from nightshift.kernels.judge.probes import oracle
from nightshift.kernels.judge.probes.inputs import CPU, Probe
from nightshift.kernels.judge.verdict import STATUS_OF, Comparison, Interval, Reason, Verdict
from nightshift.kernels.ops.problems import named
from nightshift.kernels.problem import ProblemError
from nightshift.kernels.suites import kernelbench
from nightshift.kernels.suites.kernelbench import candidate_of, fast_p, load_suite, load_task, scores

SUITE = Path(__file__).parents[1] / "kernelbench"
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


FEW_ROWS = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.unused = torch.nn.Embedding(50, 4), torch.nn.Linear(4, 4)
    def forward(self, x, mask, index):
        return (x[:, :16] * mask).mean(1) + self.table(index).sum(1)
def get_inputs():
    return [torch.rand(8, 32), torch.rand(8, 16) > 0.5, torch.randint(0, 50, (8,))]
def get_init_inputs():
    return []
"""


def test_a_large_task_of_few_rows_is_compared_on_some_of_them(
    judge: Judge, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its outputs are few, and eager's error on them is luck: further draws tell it, of rows as well."""
    (tmp_path / "few.py").write_text(FEW_ROWS)
    assert load_task(tmp_path / "few.py").problem.sampled_rows == 0
    monkeypatch.setattr(kernelbench, "WHOLE_BYTES", 2000)
    task = load_task(tmp_path / "few.py")
    assert (task.problem.sampled_rows, task.problem.row_inputs) == (3, (0, 1, 2))
    drawn = list[str]()
    inputs = task.problem.make_inputs
    counted = replace(task.problem, make_inputs=lambda c, d: (drawn.append(d.distribution), inputs(c, d))[1])
    case, probe = counted.cases[0], Probe("accuracy", counted.cases[0], "normal", (1,), rows=3)
    found = oracle.expected(counted, probe, 1, counted.inputs(case, "normal", 1, "cpu"))
    assert [x.shape[0] for x in found.truth] == [found.rows.numel()] if found.rows is not None else []
    assert len(drawn) == oracle.POOL_DRAWS
    source = FEW_ROWS.replace("class Model(", "class ModelNew(")
    for wrong, refused in (("", False), (" + (torch.arange(8) == 5) * 1e-3", True)):
        text = source.replace("self.table(index).sum(1)", f"self.table(index).sum(1){wrong}")
        made = candidate_of(task, text.partition("def get_inputs")[0], "python", "library")
        assert interface.verify(judge, made, task.problem, CPU).refused is refused


@pytest.mark.parametrize(
    ("count", "size", "flops", "rows"),
    [(8, 1 << 33, 0, 0), (8, 1 << 34, 0, 4), (16, 1 << 36, 0, 2), (1 << 15, 1 << 35, 0, 64), (3, 1 << 40, 0, 0),
     (16, 0, 1 << 37, 0), (16, 0, 1 << 39, 4), (64, 1 << 34, 1 << 40, 8)],
)  # fmt: skip
def test_as_many_rows_are_compared_as_keep_within_both_bounds(count: int, size: int, flops: int, rows: int) -> None:
    assert kernelbench.rows_compared(count, size, flops) == rows


def test_what_a_call_reads_is_counted_in_its_own_bytes_and_once(tmp_path: Path) -> None:
    """No kernel is too fast for a floor of parameters that nothing uses, tables of which it reads a few rows, parts
    that are sliced off, or booleans counted as four bytes each."""
    (tmp_path / "few.py").write_text(FEW_ROWS)
    problem = load_task(tmp_path / "few.py").problem
    read, mask, index, written = 4 * 8 * 16, 8 * 16, 8 * 8, 4 * 8
    assert problem.compulsory_bytes(problem.cases[0]) == read + mask + index + written
    whole = torch.ones(10, 4)
    with kernelbench._Reading([whole[:6], whole[6:]]) as reading:
        (whole[:6].sum() + whole[6:, :2] * whole[6:, :2]).sum()
    assert reading.told() == (24 + 8, 0), "of tensors that share their memory, too"
    on_meta = load_task(tmp_path / "few.py", device="meta").problem
    assert on_meta.compulsory_bytes(problem.cases[0]) == problem.compulsory_bytes(problem.cases[0])
