"""Every plan asks shapes that kernels take another path for: square ones, and those without a tail."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nightshift.kernels.candidate import Bound, Candidate, Domain
from nightshift.kernels.judge.probes.inputs import CPU, INTERPRETER, QUICK_GPU, plan
from nightshift.kernels.judge.probes.sizes import Scope
from nightshift.kernels.ops.problems import ALL, named
from nightshift.kernels.problem import Problem

SECRETS = [bytes([number]) for number in range(10)]
UNBOUND = Candidate("", "entry", "triton", "own_kernel", "bitwise", differentiable=True)


@pytest.mark.parametrize("scope", [INTERPRETER, CPU, QUICK_GPU], ids=["interpreter", "cpu", "gpu"])
@pytest.mark.parametrize("name", ["softmax", "rmsnorm", "matmul", "linear", "copy"])
def test_every_plan_asks_for_squares_in_both_orders_of_memory(name: str, scope: Scope) -> None:
    problem = named(name)
    for secret in SECRETS:
        square = {
            p.case.layout for p in plan(problem, UNBOUND, secret, scope) if len(set(p.case.sizes.values())) == 1
        }
        assert square >= {"contiguous", "transposed"}


@pytest.mark.parametrize("name", ["softmax", "rmsnorm", "swiglu", "max", "reduce_sum", "cross_entropy"])
def test_every_plan_asks_for_an_odd_number_of_blocks_without_a_tail(name: str) -> None:
    problem = named(name)
    last = problem.axes[-1].name
    for secret in SECRETS:
        asked = {p.case[last] for p in plan(problem, UNBOUND, secret, INTERPRETER)}
        assert asked >= {256, 512, 768, 1024, 1536, 2048}


@pytest.mark.parametrize("name", ["matmul", "linear", "softmax", "layernorm", "quantise"])
def test_every_plan_for_a_gpu_asks_for_whole_tiles_on_all_axes(name: str) -> None:
    problem = named(name)
    names = [axis.name for axis in problem.axes]
    for secret in SECRETS:
        cases = [p.case for p in plan(problem, UNBOUND, secret, QUICK_GPU)]
        assert len({c.params for c in cases if all(c[n] and c[n] % 128 == 0 for n in names)}) >= 3


@pytest.mark.parametrize("problem", ALL, ids=lambda problem: problem.name)
def test_a_narrow_domain_is_never_left(problem: Problem) -> None:
    bounds = tuple(Bound(axis.name, high=max(axis.low, 48)) for axis in problem.axes)
    narrow = replace(UNBOUND, domain=Domain(layouts=("contiguous",), bounds=bounds))
    for probe in plan(problem, narrow, b"1", QUICK_GPU):
        assert narrow.domain.admits(probe.case.sizes, probe.case.dtype, probe.case.layout)


def test_every_differentiable_plan_asks_for_two_layers_of_one_form_and_for_values_in_training() -> None:
    for problem in (p for p in ALL if p.gradients):
        for secret in SECRETS[:3]:
            probes = plan(problem, UNBOUND, secret, CPU)
            assert any(p.backward and p.overlapping and not p.twice for p in probes)
            assert {p.case.dtype for p in probes if p.required and not p.backward} == set(problem.dtypes)
