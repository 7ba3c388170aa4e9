"""Whether a candidate's declaration speaks of its problem at all: a word that means nothing narrows nothing."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from nightshift.kernels.candidate import Candidate, CandidateError
from nightshift.kernels.differentiate import smallest_inputs
from nightshift.kernels.judge.launch_plan import Fire, PlanError, Pointer, cuda_plan
from nightshift.kernels.problem import Problem


def misfit(candidate: Candidate, problem: Problem) -> str:
    """What in it does not fit, by field; empty where all does."""
    domain, sizes = candidate.domain, sorted(problem.cases[0].sizes)
    for field, said, known in (
        ("dtypes", domain.dtypes, problem.dtypes),
        ("layouts", domain.layouts, problem.layouts),
        ("bounds", [bound.name for bound in domain.bounds], sizes),
    ):
        for word in said:
            if word not in known:
                return f"{field}: {word!r} is none of {problem.name}'s: {', '.join(known)}"
        if twice := _twice(said):
            return f"{field}: {twice!r} is given a second time"
    given = smallest_inputs(problem) if candidate.mutates else ()
    tensors = [position for position, x in enumerate(given) if isinstance(x, torch.Tensor)]
    for position in candidate.mutates:
        if position not in tensors:
            return f"mutates: {position} is none of {problem.name}'s tensors: {', '.join(map(str, tensors))}"
    return _launched(candidate, problem) if candidate.launches else ""


def _launched(candidate: Candidate, problem: Problem) -> str:
    """What in a declared plan has no meaning on the first timed case that the candidate admits."""
    admitted = (c for c in problem.cases if candidate.domain.admits(c.sizes, c.dtype, c.layout))
    case = next(admitted, None)
    if case is None:
        return ""
    given = smallest_inputs(problem)
    numbers = {i: float(x) for i, x in enumerate(given) if isinstance(x, int | float)}
    try:
        made = cuda_plan(candidate, b"", case.sizes, numbers)
    except (PlanError, CandidateError) as error:
        return f"launch: {error} ({case})"
    there = {"in": len(given), "out": len(problem.eager(given)), "tmp": len(made.scratch_bytes)}
    for step in [step for step in made.steps if isinstance(step, Fire)]:
        for x in step.arguments:
            if isinstance(x, Pointer) and x.index >= there[x.room]:
                return f"launch: {x.room}{x.index} of {step.name!r}: there are {there[x.room]} of that kind"
    return ""


def _twice(words: Sequence[str]) -> str:
    return next((word for number, word in enumerate(words) if word in words[:number]), "")
