"""KernelBench tasks out of the ordinary: judged rightly, right and wrong, or refused by file and reason."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from nightshift.kernels import interface
from nightshift.kernels.judge.judge import Judge
from nightshift.kernels.judge.probes.inputs import CPU
from nightshift.kernels.judge.verdict import Reason, Status, Verdict
from nightshift.kernels.problem import ProblemError
from nightshift.kernels.suites.kernelbench import arguments_of, candidate_of, load_task, names_of

TASK = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__(){made}

    def forward(self, {given}):
        return {result}


def get_inputs():
    return {inputs}


def get_init_inputs():
    return []
"""


def _task(made: str, given: str, result: str, inputs: str) -> str:
    return TASK.format(made=f"\n        {made}" if made else "", given=given, result=result, inputs=inputs)


ODD = {
    "scalar": (
        _task("", "p, t", "nn.functional.mse_loss(p, t)", "[torch.rand(4, 8), torch.rand(4, 8)]"),
        "mse_loss(p, t)", "mse_loss(p, t) * 1.5",
    ),
    "several_outputs": (
        _task("", "a, b, k, on", "((a * a).sum() * k, a @ b.T, a.argmax(1)) if on else a",
              "[torch.rand(4, 8), torch.rand(6, 8), 3, True]"),
        "a.argmax(1)", "a.argmin(1)",
    ),
    "integers_and_truths": (
        _task("self.e = nn.Embedding(10, 5)", "i, x", "(self.e(i), x > 0)",
              "[torch.randint(0, 10, (7,)), torch.randn(4, 8)]"),
        "x > 0", "x >= 0.5",
    ),
    "no_inputs": (
        _task("self.w = nn.Parameter(torch.ones(5, 3))", "", "self.w.softmax(0)", "[]"),
        "softmax(0)", "softmax(1)",
    ),
    "strided_outputs": (
        _task("", "x", "((x * 2).T, (x + 1)[:, ::2], x.expand(2, 4, 8))", "[torch.randn(4, 8)]"),
        "::2]", "1::2]",
    ),
    "strided_inputs": (
        _task("", "x, mask", "torch.where(mask, x, -x).cumsum(1)",
              "[torch.randn(16, 8).T, torch.randn(8, 16) > 0]"),
        "-x)", "x)",
    ),
    "writes_to_its_inputs": (
        _task("", "x", "x.mul_(2).relu_()", "[torch.randn(4, 8)]"),
        "x.mul_(2).relu_()", "x.mul(2).abs()",
    ),
    "keeps_a_tensor": (
        _task("self.h = torch.ones(4, 8)", "x", "(x + self.h).relu()", "[torch.randn(4, 8)]"),
        "+ self.h", "+ 1.01",
    ),
    "norms_and_dropout": (
        _task("self.n, self.d = nn.BatchNorm1d(8), nn.Dropout(0.5)", "x", "self.d(self.n(x)) / torch.norm(x)",
              "[torch.randn(16, 8)]"),
        "self.d(self.n(x))", "self.d(x)",
    ),
    "arguments_by_name": (
        _task("", "x, *, shift, by", "nn.functional.leaky_relu(x @ by, self.slope) + shift",
              "[[torch.randn(4, 8)], {'by': torch.randn(8, 6), 'shift': torch.randn(4, 6)}]")
        .replace("(self):", "(self, slope, much=1):").replace("super().__init__()", "super().__init__()\n        "
        "self.slope = slope * much").replace("return []", "return [[0.1], {'much': 2}]"),
        "self.slope)", "0.1)",
    ),
}  # fmt: skip
"""Each task; a piece of its text, and what a wrong contestant has there."""


def _judged(judge: Judge, path: Path, source: str) -> Verdict:
    task = load_task(path)
    made = source.replace("class Model(", "class ModelNew(")
    return interface.verify(judge, candidate_of(task, made, "python", "library"), task.problem, CPU)


@pytest.mark.full
@pytest.mark.parametrize("name", ODD)
def test_an_odd_task_takes_a_right_contestant_and_refuses_a_wrong_one(
    cpu_judge: Judge, tmp_path: Path, name: str
) -> None:
    text, piece, wrong = ODD[name]
    path = tmp_path / f"{name}.py"
    path.write_text(text)
    right = text.replace("x.mul_(2).relu_()", "x.mul(2).relu()")
    verdict = _judged(cpu_judge, path, right)
    assert verdict.reason is Reason.passed, verdict.detail
    assert text.count(piece) == 1
    verdict = _judged(cpu_judge, path, text.replace(piece, wrong))
    assert verdict.status is Status.wrong, (verdict.status, verdict.detail)


@pytest.mark.full
def test_a_contestant_that_writes_to_its_inputs_is_refused_though_its_model_does(
    cpu_judge: Judge, tmp_path: Path
) -> None:
    path = tmp_path / "inplace.py"
    path.write_text(ODD["writes_to_its_inputs"][0])
    assert _judged(cpu_judge, path, path.read_text()).reason is Reason.input_mutated


class Layers(torch.nn.Module):
    def __init__(self, sizes: list[int], options: dict[str, float]) -> None: ...


@pytest.mark.parametrize(
    ("what", "given", "first", "by_name"),
    [
        (torch.nn.LayerNorm, [[8], {"eps": 0.1}], (8,), {"eps": 0.1}),
        (torch.nn.LayerNorm(8), ([], {"input": 1}), (), {"input": 1}),
        (Layers, [[8, 4], {"p": 0.1}], ([8, 4], {"p": 0.1}), {}),
        (Layers, [[[8, 4]], {"options": {}}], ([8, 4],), {"options": {}}),
        (torch.nn.LayerNorm, {"normalized_shape": 8}, (), {"normalized_shape": 8}),
        (torch.nn.LayerNorm, [8, 0.1], (8, 0.1), {}),
    ],
)
def test_arguments_are_a_list_a_mapping_or_both_and_two_of_those_kinds_are_themselves(
    what: Any, given: Any, first: tuple[Any, ...], by_name: dict[str, Any]
) -> None:
    """Generated suites write [[…], {…}]; a model that takes a list and a mapping gets them as it did."""
    assert arguments_of(what, given) == (first, by_name)


@pytest.mark.parametrize(
    ("result", "inputs", "word"),
    [
        ("torch.fft.rfft(x)", "[torch.randn(4, 8)]", "output 0 is complex"),
        ("x.abs()", "[torch.randn(4, 8) + 1j]", "item 0 is complex"),
        ("x[0] + x[1]", "[[torch.ones(3), torch.ones(3)]]", "item 0 is list"),
        ("x + torch.rand_like(x)", "[torch.randn(4, 8)]", "random model"),
        ("x + 1e-9 * torch.rand_like(x)", "[torch.randn(4, 8)]", "random model"),
        ("x[x > 0]", "[torch.randn(16, 8)]", "shapes depend"),
        ("(x, (x, x))", "[torch.randn(4, 8)]", "found tuple"),
        ("{'y': x}", "[torch.randn(4, 8)]", "found dict"),
        ("float(x.sum())", "[torch.randn(4, 8)]", "found float"),
    ],
)
def test_a_task_that_has_no_oracle_is_refused_when_it_is_loaded(
    tmp_path: Path, result: str, inputs: str, word: str
) -> None:
    """Else its contestants would be accused of what the task does, or half of a complex number would do."""
    path = tmp_path / "odd.py"
    path.write_text(_task("", "x", result, inputs))
    with pytest.raises(ProblemError, match=r"odd\.py") as caught:
        load_task(path)
    assert word in str(caught.value)


def test_a_tensor_that_a_model_keeps_and_changes_is_state_of_each_call(tmp_path: Path) -> None:
    path = tmp_path / "stateful.py"
    path.write_text(_task("self.h = torch.zeros(4, 8)", "x", "self.h.add_(x) * 2", "[torch.randn(4, 8)]"))
    task = load_task(path)
    x, h = task.problem.inputs(task.problem.cases[0], "normal", 1, "cpu")
    assert task.state == ("h",)
    for _ in range(2):
        assert torch.equal(task.problem.reference(x, h), (h + x) * 2)


def test_what_one_file_sets_for_the_process_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next file's task was drawn in its dtype, and a relative --run went where it had gone."""
    monkeypatch.chdir(tmp_path)
    sets = (
        "import os, torch\nos.chdir('/')\ntorch.set_default_dtype(torch.float64)\ntorch.set_grad_enabled(False)\n"
        "torch.set_default_device('meta')\ntorch.use_deterministic_algorithms(True)\n"
    )
    (tmp_path / "a.py").write_text(sets + _task("", "x", "x.softmax(-1)", "[torch.rand(4, 8)]"))
    (tmp_path / "b.py").write_text(sets + "raise ValueError\n")
    (tmp_path / "loop.py").symlink_to("loop.py")
    load_task(tmp_path / "a.py")
    for name in ("b.py", "loop.py"):
        with pytest.raises(ProblemError, match=name):
            load_task(tmp_path / name)
    assert Path.cwd() == tmp_path
    assert torch.rand(1).dtype is torch.float32
    assert torch.rand(1).device.type == "cpu"
    assert torch.is_grad_enabled()
    assert not torch.are_deterministic_algorithms_enabled()


NEWER = "torch.backends.cuda.matmul.fp32_precision = 'tf32'"
OLDER = "torch.set_float32_matmul_precision('medium')"


@pytest.mark.parametrize("precision", [OLDER, NEWER, "torch.backends.fp32_precision = 'tf32'"])
@pytest.mark.parametrize("place", ["module", "Model", "get_inputs"])
def test_wherever_a_file_sets_it_the_judge_computes_as_before(tmp_path: Path, place: str, precision: str) -> None:
    """A default dtype that `get_inputs` set held for every later draw, and for the oracle; a precision that was set
    in torch's newer way ended the command, for the older way cannot be read then."""
    sets = (
        "import random; torch.set_default_dtype(torch.bfloat16); torch.set_num_threads(3); torch.manual_seed(3); "
        f"random.seed(3); torch.backends.cudnn.deterministic = True; {precision}"
    )
    at = {name: sets if name == place else "pass" for name in ("module", "Model", "get_inputs")}
    (tmp_path / "a.py").write_text(
        f"import torch\n{at['module']}\n\nclass Model(torch.nn.Module):\n    def __init__(self):\n"
        f"        super().__init__()\n        {at['Model']}\n\n    def forward(self, x):\n"
        f"        return x.softmax(-1)\n\ndef get_inputs():\n    {at['get_inputs']}\n"
        "    return [torch.rand(4, 8)]\n\ndef get_init_inputs():\n    return []\n"
    )

    def settings() -> tuple[object, ...]:
        return (
            torch.get_default_dtype(), torch.get_num_threads(), torch.initial_seed(), random.getstate(),
            torch.backends.cudnn.deterministic, torch.get_float32_matmul_precision(), torch.backends.fp32_precision,
        )  # fmt: skip

    before = settings()
    task = load_task(tmp_path / "a.py")
    assert settings() == before
    task.problem.inputs(task.problem.cases[0], "normal", 1, "cpu")
    assert settings() == before


def test_a_suite_is_a_folder_and_its_tasks_are_files(tmp_path: Path) -> None:
    """A task's file, or nothing, was called a folder without tasks, a folder of a task's name a broken task."""
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(ProblemError, match=r"holds no \.py files"):
        names_of(tmp_path)
    task = tmp_path / "task.py"
    task.write_text(_task("", "x", "x.softmax(-1)", "[torch.rand(4, 8)]"))
    assert names_of(tmp_path) == ["task.py"]
    for path in (task, tmp_path / "none"):
        with pytest.raises(ProblemError, match=f"{path.name}: no folder of tasks"):
            names_of(path)
