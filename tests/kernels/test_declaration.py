"""A declaration that does not speak of its problem is told by its field, before anything runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nightshift.kernels.candidate import Bound, Candidate, Domain, Launch
from nightshift.kernels.judge.judge import Judge, Request
from nightshift.kernels.judge.probes.inputs import CPU
from nightshift.kernels.judge.static import misfit
from nightshift.kernels.judge.verdict import Reason, Status
from nightshift.kernels.ops.problems import ALL, named

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


@pytest.mark.parametrize(
    ("arguments", "grid", "told"),
    [
        (("in0", "out0", "tmp0", "i64:m * n"), "cdiv(m, 4)", ""),
        (("in1", "out0"), "m", "launch: in1 of 'k': there are 1 of that kind"),
        (("in0", "out1"), "m", "launch: out1 of 'k': there are 1 of that kind"),
        (("in0", "tmp1"), "m", "launch: tmp1 of 'k': there are 1 of that kind"),
        (("in0", "x"), "m", "launch: plan: argument 'x' is none of in0"),
        (("in0", "i32:rows"), "m", "launch: plan: argument 'i32:rows': expression: 'rows' is not allowed"),
        (("in0",), "m //", "launch: expression 'm //'"),
        (("scalar:in0",), "m", "launch: plan: argument 'scalar:in0'"),
    ],
)
def test_a_declared_launch_is_looked_at_before_a_gpu_is_asked(
    arguments: tuple[str, ...], grid: str, told: str
) -> None:
    launch = Launch("k", (grid, "1", "1"), ("32", "1", "1"), arguments)
    cuda = replace(PLAIN, language="cuda", kind="own_kernel", launches=(launch,), scratch_bytes=("4 * m",))
    said = misfit(cuda, named("softmax"))
    assert said.startswith(told), said
    assert bool(said) == bool(told)
