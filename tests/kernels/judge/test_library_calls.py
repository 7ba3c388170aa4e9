"""torch's own calls in a launch plan, races among several judges, and tasks of one size, on the CPU."""

from __future__ import annotations

import ctypes
import random
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nightshift.kernels.candidate import Candidate
from nightshift.kernels.judge import launch_plan
from nightshift.kernels.judge.host.recorder import Recorder
from nightshift.kernels.judge.launch_plan import Plan, PlanError, Pointer, check_reach, prepare
from nightshift.kernels.judge.probes import inputs
from nightshift.kernels.judge.probes.runners import class_refusal
from nightshift.kernels.judge.race.gpu_access import Quiet
from nightshift.kernels.judge.recorded_launches import replayed_probes
from nightshift.kernels.judge.verdict import Reason
from nightshift.kernels.problem import Problem
from nightshift.kernels.suites.kernelbench import SuiteTask, load_task

BIG = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)
def get_inputs():
    return [torch.rand(256, 4096)]
def get_init_inputs():
    return []
"""


def raw_memory(address: int, size_bytes: int) -> torch.Tensor:
    return torch.frombuffer((ctypes.c_uint8 * size_bytes).from_address(address), dtype=torch.uint8)


def recorded(x: torch.Tensor, w: torch.Tensor) -> Plan:
    resident = [(Pointer("in", i), t.data_ptr(), t.numel() * t.itemsize) for i, t in enumerate((x, w))]
    with Recorder(resident, [x, w]) as recorder:
        out = torch.cumsum(torch.bmm(x, w), 1)
    assert recorder.called
    return recorder.plan([out])


def test_a_recorded_call_replays_on_other_memory_as_torch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = torch.rand(2, 3, 9), torch.rand(2, 9, 5)
    plan = Plan.from_message(*recorded(x, w).to_message())
    assert [type(step).__name__ for step in plan.steps] == ["Call", "Call"]
    others = torch.rand(2, 3, 9), torch.rand(2, 9, 5)
    wanted = torch.cumsum(torch.bmm(*others), 1)
    out = torch.full_like(wanted, float("nan"))
    check_reach(plan, [t.numel() * 4 for t in others], [out.numel() * 4])
    scratch = [torch.zeros(n, dtype=torch.uint8) for n in plan.scratch_bytes]
    rooms = {"in": others, "out": (out,), "tmp": scratch}
    monkeypatch.setattr(launch_plan, "flat_cuda", raw_memory)
    for action in prepare(
        plan, lambda *_: ctypes.c_void_p(0), lambda p: rooms[p.room][p.index].data_ptr() + p.offset_bytes
    ):
        action(0)
    assert torch.equal(out, wanted)


def test_what_torch_makes_in_memory_of_its_own_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transposed convolution: a plan's other steps read it where torch has made it, call after call."""
    x, w = torch.rand(2, 3, 16, 16), torch.rand(3, 4, 3, 3)
    resident = [(Pointer("in", i), t.data_ptr(), t.numel() * t.itemsize) for i, t in enumerate((x, w))]
    rest = [None, [2, 2], [1, 1], [1, 1], True, [0, 0], 1]
    with Recorder(resident, [x, w]) as recorder:
        out = torch.ops.aten.cumsum.default(torch.ops.aten.convolution.default(x, w, *rest), 1)
    plan = Plan.from_message(*recorder.plan([out]).to_message())
    inputs = [torch.rand_like(x), torch.rand_like(w)]
    out = torch.empty_like(out)
    scratch = [torch.zeros(n, dtype=torch.uint8) for n in plan.scratch_bytes]
    rooms = {"in": inputs, "out": [out], "tmp": scratch}
    monkeypatch.setattr(launch_plan, "flat_cuda", raw_memory)

    def resolve(pointer: Pointer) -> int:
        return rooms[pointer.room][pointer.index].data_ptr() + pointer.offset_bytes

    def moved(index: int, made: torch.Tensor) -> None:
        scratch[index] = raw_memory(made.data_ptr(), made.untyped_storage().nbytes())

    placed = launch_plan.place_results(plan, resolve, moved)
    assert [*placed] == [0]
    first = placed[0].made
    monkeypatch.setattr(launch_plan.Placed, "call", lambda self, function: function())  # malloc is no pool
    actions = prepare(plan, lambda *_: ctypes.c_void_p(0), resolve, placed)
    for _ in range(3):
        for tensor in inputs:
            tensor.uniform_()
        out.fill_(float("nan"))
        for action in actions:
            action(0)
        wanted = torch.cumsum(torch.nn.functional.conv_transpose2d(inputs[0], inputs[1], stride=2, padding=1), 1)
        torch.testing.assert_close(out, wanted)
    assert first is not None


@pytest.mark.parametrize("name", ["from_file", "normal_", "rand", "set_"])
def test_a_plan_holds_no_operator_beyond_the_list(name: str) -> None:
    block = {"at": ["out", 0, 0], "dtype": "float32", "shape": [4], "strides": [1]}
    body = {"sizes": [], "steps": [["call", name, "default", [], {}, [block]]], "scratch": []}
    with pytest.raises(PlanError, match="none of torch's operators"):
        Plan.from_message(body, b"")


def test_a_call_that_reaches_beyond_its_buffer_is_refused() -> None:
    block = {"at": ["out", 0, 8], "dtype": "float32", "shape": [4], "strides": [1]}
    body = {"sizes": [], "steps": [["call", "cumsum", "default", [block, 0], {}, [block]]], "scratch": []}
    with pytest.raises(PlanError, match="points beyond out0"):
        check_reach(Plan.from_message(body, b""), [], [16])


def test_a_composition_needs_a_kernel_of_its_own_and_an_own_kernel_no_call(tmp_path: Path) -> None:
    problem = _task(tmp_path).problem
    told = {"opaque": ["mm"], "launches": 1}
    mixed = Candidate("x = 1", "entry", "triton", "composition", "bitwise")
    assert class_refusal(mixed, problem, told) is None
    alone = class_refusal(mixed, problem, {**told, "launches": 0})
    assert alone is not None
    assert alone.reason is Reason.library_call
    assert class_refusal(replace(mixed, kind="own_kernel"), problem, told) is not None


def test_a_racer_of_one_judge_waits_for_the_examiners_of_another(tmp_path: Path) -> None:
    one, other = Quiet(tmp_path / "quiet"), Quiet(tmp_path / "quiet")
    raced = threading.Event()

    def race() -> None:
        with other.alone():
            raced.set()

    with one.shared():
        thread = threading.Thread(target=race)
        thread.start()
        assert not raced.wait(0.2)
    thread.join(10)
    assert raced.is_set()


def test_a_task_of_one_size_is_asked_at_that_size_whatever_the_scope(tmp_path: Path) -> None:
    problem: Problem = _task(tmp_path).problem
    candidate = Candidate("x = 1", "entry", "triton", "own_kernel", "bitwise")
    scope = replace(inputs.QUICK_GPU, max_bytes=1 << 10)
    whole = inputs.plan(problem, candidate, b"0" * 16, scope)
    assert {probe.case.sizes["task"] for probe in whole} == {1}
    large = replace(problem, sampled_rows=64, row_inputs=(0,))
    replayed = replayed_probes(large, problem.cases[0], random.Random(0), True)
    assert {probe.rows for probe in (*inputs.plan(large, candidate, b"0" * 16, scope), *replayed)} == {64}


def _task(folder: Path) -> SuiteTask:
    (folder / "task.py").write_text(BIG)
    return load_task(folder / "task.py")
