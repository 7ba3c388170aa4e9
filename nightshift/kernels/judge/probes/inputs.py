"""What a candidate will be asked: the staged plan of probes, as data.

A plan is drawn from a secret, so a candidate cannot know its shapes, values, order or count; what it asks is a
table of rules (`kernels.judge.probes.rules`). The rest is random inside the candidate's declared domain. Stages are
ordered by cost: the first failure ends the judging.

A probe's `seeds` are calls made one after the other in the same buffers, with fresh values each: a repeated seed
must give the same output again (determinism, no state kept), and every output is held against its own oracle. A
seed's twin (`kernels.draw.TWIN`) differs from it in one element of each tensor.
"""

from __future__ import annotations

import random

from nightshift.kernels.candidate import Candidate
from nightshift.kernels.judge.probes.probe import Ground, Probe, Stage
from nightshift.kernels.judge.probes.rules import RULES, calls_of
from nightshift.kernels.judge.probes.sizes import Scope, admits, sweep
from nightshift.kernels.problem import Problem

__all__ = ["CPU", "FULL_GPU", "INTERPRETER", "QUICK_GPU", "Probe", "Stage", "calls_of", "plan"]

INTERPRETER = Scope(1 << 16, 1 << 13, 96, 320, sweep_random=2, benchmark=False, huge=False, repeats=3)
CPU = Scope(1 << 21, 1 << 18, 1 << 20, 1 << 40, sweep_random=4, benchmark=False, huge=False, repeats=4)
QUICK_GPU = Scope(1 << 27, 1 << 22, 1 << 24, 1 << 40, sweep_random=4, benchmark=True, huge=False, repeats=4)
FULL_GPU = Scope(1 << 29, 1 << 22, 1 << 24, 1 << 40, sweep_random=12, benchmark=True, huge=True, repeats=16)


def plan(problem: Problem, candidate: Candidate, secret: bytes, scope: Scope) -> tuple[Probe, ...]:
    """The probes in the order in which they are to be run; empty where the declared domain admits no case."""
    rng = random.Random(secret + problem.name.encode())
    admitted = [case for case in sweep(problem, candidate.domain, rng, scope) if admits(problem, candidate, case)]
    if not admitted:
        return ()
    on = Ground(problem, candidate, rng, scope, admitted, secret)
    return tuple(probe for rule in RULES for probe in rule(on))
