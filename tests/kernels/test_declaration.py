"""A declaration that does not speak of its problem is told by its field, before anything runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernels.candidate import Bound, Candidate, Domain
from kernels.judge.declaration import misfit
from kernels.judge.inputs import CPU
from kernels.judge.judge import Judge, Request
from kernels.judge.verdict import Reason, Status
from kernels.problems import ALL, named

PLAIN = Candidate("def f(x): return x", "f", "python", "library", "bitwise")
IN_PLACE = replace(PLAIN, kind="in_place", mutates=(0,))


@pytest.mark.parametrize(
    ("candidate", "told"),
    [
        (replace(PLAIN, domain=Domain(("float99",))), "dtypes: 'float99' is none of softmax's: float16"),
        (replace(PLAIN, domain=Domain((), ("sliced",))), "layouts: 'sliced' is none of softmax's"),
        (replace(PLAIN, domain=Domain(bounds=(Bound("z", 1),))), "bounds: 'z' is none of softmax's: m, n"),
        (
            replace(PLAIN, domain=Domain(bounds=(Bound("n", 1), Bound("n", 2)))),
            "bounds: 'n' is given a second time",
        ),
        (replace(IN_PLACE, mutates=(7,)), "mutates: 7 is none of softmax's tensors: 0"),
        (IN_PLACE, ""),
        (PLAIN, ""),
    ],
)
def test_what_does_not_fit_is_told_by_its_field(candidate: Candidate, told: str) -> None:
    said = misfit(candidate, named("softmax"))
    assert said.startswith(told)
    assert bool(said) == bool(told)


def test_a_number_among_the_inputs_is_nothing_to_write() -> None:
    assert (
        misfit(replace(IN_PLACE, mutates=(2,)), named("rmsnorm")) == "mutates: 2 is none of rmsnorm's tensors: 0, 1"
    )


def test_whoever_declares_nothing_fits_every_problem() -> None:
    assert [misfit(PLAIN, problem) for problem in ALL] == [""] * len(ALL)


def test_the_verdict_is_that_of_a_source_that_does_not_compile(cpu_judge: Judge) -> None:
    verdict = cpu_judge.verdict(replace(IN_PLACE, mutates=(7,)), named("softmax"), Request(CPU, None))
    assert (verdict.status, verdict.reason) == (Status.compile_error, Reason.declaration)
    assert verdict.took_s < 10.0
