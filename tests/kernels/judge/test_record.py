"""The recorder tells memory that a call made from memory that outlives calls, and calls are made among others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from nightshift.kernels.judge.gallery import read_gallery, read_mutant, show
from nightshift.kernels.judge.host.interference import amid_others, calls_beside
from nightshift.kernels.judge.host.recorder import Recorder, unseen
from nightshift.kernels.judge.judge import Judge
from nightshift.kernels.judge.probes.inputs import CPU, INTERPRETER, QUICK_GPU, plan
from nightshift.kernels.judge.verdict import Reason
from nightshift.kernels.ops.problems import named

KEPT = torch.ones(64)
MUTANTS = Path(__file__).parents[1] / "mutants"


def _kept(given: Callable[[torch.Tensor], Any]) -> int:
    lent = torch.ones(8)
    with Recorder([], [lent]) as recorder:
        recorder.given([given(lent), 7, None, 0.5])
    return sum(recorder.kept.values())


@pytest.mark.parametrize(
    "given",
    [
        lambda x: x,
        lambda x: x[2:],
        lambda x: x.detach().view(2, 4),
        torch.empty_like,
        lambda x: torch.zeros(4)[1:],
        lambda x: torch.tensor([1.0, 2.0]),
        lambda x: x.to(torch.float64),
        lambda x: x.expand(3, 8).contiguous(),
        lambda x: (x, x.clone()),
        lambda x: torch.empty(0),
    ],
)
def test_inputs_and_what_the_call_itself_made_are_no_kept_memory(given: Callable[[torch.Tensor], Any]) -> None:
    assert _kept(given) == 0


@pytest.mark.parametrize(
    "given",
    [
        lambda x: KEPT,
        lambda x: KEPT[3:5],
        lambda x: KEPT.detach(),
        lambda x: KEPT.zero_(),
        lambda x: (x, [KEPT.view(8, 8)]),
        lambda x: KEPT.copy_(torch.ones(64)),
    ],
)
def test_memory_from_before_the_call_is_seen_through_views_and_writes(given: Callable[[torch.Tensor], Any]) -> None:
    assert _kept(given) == 256


def test_what_the_host_itself_computes_is_not_the_candidates() -> None:
    with Recorder([]) as recorder:
        with unseen():
            assert torch.equal(KEPT, KEPT.clone())
        torch.empty(3)
    assert recorder.opaque == []


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
@pytest.mark.parametrize(("device", "opaque"), [("cpu", []), ("cuda", ["lift_fresh"])])
def test_numbers_of_the_host_are_in_no_plan_of_a_gpu(device: str, opaque: list[str]) -> None:
    """A replay had read a buffer that only the host's copy fills, and an honest candidate was refused for that."""
    with FakeTensorMode():
        made = torch.empty(2, device=device)
    with Recorder([]) as recorder:
        torch.ops.aten.lift_fresh.default(made)
    assert recorder.opaque == opaque


def test_one_scratch_for_all_callers_is_refused_for_just_that(interpreting_judge: Judge) -> None:
    """For every secret, without the static read: two streams would share the buffer."""
    (piece,) = [p for p in read_gallery(MUTANTS, "cpu") if p.name == "reduce_sum_with_one_scratch"]
    shown = show(interpreting_judge, piece, INTERPRETER, static=False, pace=None)
    assert shown.verdict.reason is Reason.state_kept, shown.verdict.detail
    assert "two streams" in shown.verdict.detail


def test_every_plan_calls_a_candidate_amid_other_calls() -> None:
    candidate = read_mutant(MUTANTS / "attention_floor_of_scores.patch")[0].candidate
    for scope in (INTERPRETER, CPU, QUICK_GPU):
        for secret in range(20):
            probes = plan(named("reduce_sum"), candidate, bytes([secret]), scope)
            assert any(p.overlapping for p in probes)


@pytest.mark.parametrize(("gib", "calls"), [(0.01, 24), (1.03, 3), (6.0, 3), (0.5, 8)])
def test_calls_beside_each_other_do_not_fill_a_gpu(gib: float, calls: int) -> None:
    """Thirty-two outputs of 1.03 GiB had been a candidate's "out of memory"."""
    made = torch.empty(int(gib * 2**28), device="meta")
    assert calls_beside((made,)) == calls_beside(made) == calls


def test_other_calls_bring_other_values_and_do_not_change_the_outputs() -> None:
    x = torch.arange(12.0).view(3, 4).t()
    seen: list[torch.Tensor] = []

    def run(values: Any) -> torch.Tensor:
        seen.append(values[0].clone())
        return values[0] * values[1]

    assert torch.equal(amid_others(run, [x, 2.0], "cpu"), x * 2.0)
    assert [torch.equal(y, x) for y in seen] == [False, True, False]
    assert all(y.stride() == x.stride() for y in seen)
