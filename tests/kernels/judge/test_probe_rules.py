"""Each rule of a plan asks something that no other rule asks, so a fault that shows there alone is found by it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from nightshift.kernels.candidate import Candidate
from nightshift.kernels.judge.probes.inputs import CPU, FULL_GPU, RULES, Ground, Probe, plan
from nightshift.kernels.judge.probes.sizes import Scope, sweep
from nightshift.kernels.ops.problems import named
from nightshift.kernels.problem import Problem

UNBOUND = Candidate("", "entry", "triton", "own_kernel", "bitwise", differentiable=True)
SECRET = b"rules"
PROBLEMS = [named(name) for name in ("rmsnorm_residual", "matmul", "softmax", "swiglu")]


def question(probe: Probe) -> tuple[Probe, int]:
    """A probe without its stage and the values of its seeds: what it asks, and of how many calls some repeat."""
    calls = len(probe.seeds)
    return replace(probe, stage="smoke", seeds=(calls,)), calls - len(set(probe.seeds))


def asked(problem: Problem, scope: Scope) -> dict[str, set[tuple[Probe, int]]]:
    """By rule, in the order in which a plan lets them use up its chance."""
    on = Ground(problem, UNBOUND, random.Random(SECRET + problem.name.encode()), scope, [], SECRET)
    on.admitted = [case for case in sweep(on) if on.admits(case)]
    return {rule.__name__: {question(probe) for probe in rule(on)} for rule in RULES}


ASKED = [asked(problem, scope) for problem in PROBLEMS for scope in (CPU, FULL_GPU)]


def test_the_rules_together_are_the_plan() -> None:
    for problem, by_rule in zip(PROBLEMS, ASKED[::2], strict=True):
        whole = {question(probe) for probe in plan(problem, UNBOUND, SECRET, CPU)}
        assert set().union(*by_rule.values()) == whole


@pytest.mark.parametrize("rule", [rule.__name__ for rule in RULES[1:]])
def test_without_a_rule_some_question_is_not_asked(rule: str) -> None:
    """A kernel that is wrong there alone passes every other rule. The first rule, smoke, is only the cheapest."""
    alone = [
        found[rule] - set().union(*(others for name, others in found.items() if name != rule)) for found in ASKED
    ]
    assert any(alone)
