"""Declared launches: CUDA C++ and CuTe, compiled in confined processes that have seen no values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from nightshift.kernels.candidate import CandidateError
from nightshift.kernels.cute import cute_types
from nightshift.kernels.differentiate import output_forms, smallest_inputs
from nightshift.kernels.judge.launch_plan import Fire, Plan, PlanError, cuda_plan, with_binaries
from nightshift.kernels.judge.verdict import Reason, Refusal
from nightshift.kernels.problem import Case

if TYPE_CHECKING:
    from nightshift.kernels.judge.trial import JudgeTrial

_Form = tuple[str, tuple[int, ...], tuple[str, ...]]
"""A kernel, its block and its parameters' types: what one binary is compiled for."""
_WHOLE: _Form = ("", (), ())
"""CUDA C++ has one binary for all."""


class DeclaredLaunches:
    """The binaries of a trial's candidate, each compiled once, and its plans."""

    def __init__(self, trial: JudgeTrial) -> None:
        self._trial = trial
        self._binaries: dict[_Form, tuple[str, bytes]] = {}
        self._dtypes: dict[str, Mapping[str, str]] = {}
        if trial.candidate.language == "cuda":
            self._compile([_WHOLE])

    def plan_of(self, case: Case, values: Sequence[Any]) -> Plan:
        """The plan of one case; values: the inputs, of which numbers count. Raises Refusal."""
        candidate = self._trial.candidate
        numbers = {i: float(x) for i, x in enumerate(values) if isinstance(x, int | float)}
        _, cubin = self._binaries.get(_WHOLE, ("", b""))
        try:
            made = cuda_plan(candidate, cubin, case.sizes, numbers)
            if candidate.language == "cuda":
                return made
            types = [cute_types(launch.args, self._dtype_of(case)) for launch in candidate.launches]
        except (PlanError, CandidateError) as error:
            raise Refusal(Reason.compile_failed, str(error), "compile") from error
        fires = [step for step in made.steps if isinstance(step, Fire)]
        forms = [(fire.name, fire.shape.block, kinds) for fire, kinds in zip(fires, types, strict=True)]
        self._compile(dict.fromkeys(form for form in forms if form not in self._binaries))
        return with_binaries(made, [self._binaries[form] for form in forms])

    def _compile(self, forms: Collection[_Form]) -> None:
        """In one process, which ends then. Raises Refusal."""
        if not forms:
            return
        judge, candidate = self._trial.judge, self._trial.candidate
        order = {"op": "compile", "language": candidate.language, "source": candidate.source, "arch": judge.arch}
        with judge.start("candidate", peers=candidate.calls_libraries) as host:
            for form in forms:
                asked = order | dict(zip(("kernel", "block", "types"), form, strict=True))
                answer = host.request(asked, judge.limits.import_s, stage="compile")
                self._binaries[form] = str(answer.body.get("name")), answer.blob

    def _dtype_of(self, case: Case) -> Callable[[str], str]:
        """What buffers hold in cases of its dtype, by the name that launches give them."""
        if case.dtype not in self._dtypes:
            given = smallest_inputs(self._trial.problem, case.dtype)
            held = {f"in{i}": x.dtype for i, x in enumerate(given) if isinstance(x, torch.Tensor)}
            held |= {f"out{i}": dtype for i, (_, dtype) in enumerate(output_forms(self._trial.problem, given))}
            self._dtypes[case.dtype] = {name: str(dtype).removeprefix("torch.") for name, dtype in held.items()}

        def dtype_of(name: str) -> str:
            held = "uint8" if name.startswith("tmp") else self._dtypes[case.dtype].get(name)
            if held is None:
                raise PlanError(f"plan: {name} is no buffer")
            return held

        return dtype_of
