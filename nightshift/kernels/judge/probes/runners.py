"""How a probe's call reaches a candidate: its own process calls the entry, or the judge's replays a launch plan.

Also what a recorded call says about the class that the candidate declares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from nightshift.kernels.candidate import Candidate
from nightshift.kernels.judge import launch_plan
from nightshift.kernels.judge.host.process import Process, order_inputs
from nightshift.kernels.judge.host.usage import state
from nightshift.kernels.judge.probes.buffers import View
from nightshift.kernels.judge.probes.inputs import Probe
from nightshift.kernels.judge.verdict import Reason, Refusal
from nightshift.kernels.problem import Case, Inputs, Problem

# Moving data is no computation: an own kernel may ask torch for it, though no launch plan then holds it.
_HELPERS = {"clone", "copy_", "_to_copy", "fill_", "full", "full_like", "new_full", "ones", "ones_like", "new_ones"}
_MOVES = {"clone", "copy_", "_to_copy", "_reshape_copy"}  # the whole work of an operation that only moves data
_HELPERS |= {"arange", "scalar_tensor", "lift_fresh", "lift_fresh_copy", "resize_", "set_"}
_HELPERS |= {"record_stream", "_reshape_copy"}

_DRAWS = ("state of torch's generator", "torch's generator")
"""What a candidate for a problem with a random answer may change."""
_DRAWN = {"rand", "randint", "random_", "uniform_"}
"""What it may ask torch for: numbers, of which its own kernel makes the answer."""


class Runner(Protocol):
    """Runs a candidate once on buffers that were already filled. aliases: outputs that lay in an input's memory;
    strided: outputs that were not contiguous."""

    process: Process
    aliases: list[int]
    strided: list[int]

    def run(
        self, case: Case, inputs: Sequence[Any], outputs: Sequence[View], probe: Probe, seeds: Sequence[View]
    ) -> None:
        """Raises Refusal. `inputs`: a View, or a Python number."""


@dataclass
class HostRunner:
    """A Triton or Python candidate, called in its own process."""

    process: Process
    candidate: Candidate
    problem: Problem
    record: bool = False  # ask for a launch plan with the next call
    loaded: Mapping[str, Any] = field(default_factory=dict)  # the order that loaded it
    compiled: bytes = b""  # its kernels, where they were compiled ahead
    last: Mapping[str, Any] = field(default_factory=dict)
    last_blob: bytes = b""
    aliases: list[int] = field(default_factory=list)
    strided: list[int] = field(default_factory=list)

    @classmethod
    def load(
        cls,
        process: Process,
        candidate: Candidate,
        problem: Problem,
        step: tuple[tuple[int, ...], int] | None = None,
        seed: int = 0,
        compiled: bytes = b"",
    ) -> HostRunner:
        """`step`: make the entry a training step: gradients at these positions of so many inputs. `seed`: of
        torch's own generator there. `compiled`: its kernels, from `rehearsed`."""
        order = {
            "step": step,
            "seed": seed,
            "op": "load",
            "source": candidate.source,
            "entry": candidate.entry,
            "language": candidate.language,
            "vram_bytes": process.limits.vram_bytes,
        }
        answer = process.request(order, process.limits.import_s, compiled, stage="compile")
        hold_to_footprint(candidate, answer.body, "compile", "at import")
        _hold_to_processes(candidate, process, "compile", "at import")
        return cls(process, candidate, problem, loaded=order, compiled=compiled)

    def rehearsed(self, forms: Inputs) -> bytes:
        """The kernels of a call on inputs of these forms, compiled without one: this process has seen no values,
        so that what it says tells later ones nothing."""
        named = [[list(x.shape), str(x.dtype).removeprefix("torch.")] if isinstance(x, torch.Tensor) else x
                 for x in forms]  # fmt: skip
        order = {"op": "rehearse", "forms": named}
        return self.process.request(order, self.process.limits.rehearse_s, stage="compile").blob

    def move(self, process: Process, seed: int) -> None:
        """Leave its process, which ends, for a fresh one."""
        self.process.close()
        self.loaded = {**self.loaded, "seed": seed}
        process.request(self.loaded, process.limits.import_s, self.compiled, stage="compile")
        self.process = process

    def run(
        self,
        case: Case,
        inputs: Sequence[Any],
        outputs: Sequence[View],
        probe: Probe,
        seeds: Sequence[View],
    ) -> None:
        order = {
            "op": "call",
            "inputs": order_inputs(inputs),
            "outputs": [view.to_json() for view in outputs],
            "mutates": list(self.candidate.mutates),
            "gradients": list(probe.gradients(self.problem)) if probe.backward else [],
            "required": list(self.problem.gradients) if probe.required else [],
            "seeds": [view.to_json() for view in seeds],
            "only": probe.only,
            "twice": probe.twice,
            "load": probe.under_load,
            "stream": probe.on_stream,
            "overlap": "floats" if probe.overlapping and self.problem.probes is not None else probe.overlapping,
            "record": self.record,
        }
        answer = self.process.request(order, self.process.limits.call_s, stage=probe.stage)
        hold_to_footprint(self.candidate, answer.body, probe.stage, str(case), self.problem.random)
        _hold_to_processes(self.candidate, self.process, probe.stage, str(case))
        self.last, self.last_blob = answer.body, answer.blob
        self.aliases, self.strided = (_numbers(answer.body.get(name)) for name in ("aliases", "strided"))


@dataclass
class PlanRunner:
    """A launch plan replayed in a judge-owned process; for CUDA C++ and CuTe it follows from the declaration."""

    process: Process
    plan_of: Callable[[Case, Sequence[Any]], launch_plan.Plan]
    sent: launch_plan.Plan | None = None
    aliases: list[int] = field(default_factory=list)  # a plan's outputs are the judge's buffers
    strided: list[int] = field(default_factory=list)

    def run(
        self, case: Case, inputs: Sequence[Any], outputs: Sequence[View], probe: Probe, seeds: Sequence[View]
    ) -> None:
        wanted = self.plan_of(case, inputs)
        if wanted != self.sent:
            body, blob = wanted.to_message()
            self.process.request({"op": "plan", "plan": body}, self.process.limits.call_s, blob, probe.stage)
            self.sent = wanted
        slot = {"in": order_inputs(inputs), "out": [view.to_json() for view in outputs]}
        self.process.request({"op": "slots", "slots": [slot]}, self.process.limits.call_s, stage=probe.stage)
        body = {"op": "run", "order": [0], "spoil": True, "load": probe.under_load}
        self.process.request(body, self.process.limits.call_s, stage=probe.stage)


def hold_to_footprint(
    candidate: Candidate, answer: Mapping[str, Any], stage: str, where: str, random: bool = False
) -> None:
    """Refuse a candidate that has changed its process, keeps its outputs, attaches something to tensors, writes to
    its outputs later or, unless a library does it for it, runs threads (`kernels.judge.host.footprint`)."""
    told, kept, threads, attached = (answer.get(name) for name in ("changed", "outlived", "threads", "attached"))
    if later := _numbers(answer.get("later")):
        text = f"output {later[0]} changed after it was handed over, once the inputs were let go of ({where})"
        raise Refusal(Reason.work_deferred, text, stage)
    if isinstance(attached, list) and attached:
        names = ", ".join(str(name)[:100] for name in attached[:4])
        text = f"the candidate attached something to tensors that outlives the call: {names} ({where})"
        raise Refusal(Reason.state_kept, text, stage)
    if isinstance(threads, int) and threads > 0 and not candidate.calls_libraries:
        raise Refusal(
            Reason.work_deferred, f"{threads} threads of the candidate run on after it returned ({where})", stage
        )
    if random and isinstance(told, list):
        told = [name for name in told if name not in _DRAWS]
    if isinstance(told, list) and told:
        changed = ", ".join(str(name)[:100] for name in told[:4])
        text = f"the candidate changed what the rest of its process goes by: {changed} ({where})"
        raise Refusal(Reason.process_changed, text, stage)
    if isinstance(kept, int) and kept > 0:
        text = f"{kept} tensors of earlier calls are kept alive: memory that is never given back ({where})"
        raise Refusal(Reason.state_kept, text, stage)


def _hold_to_processes(candidate: Candidate, process: Process, stage: str, where: str) -> None:
    """Refuse a candidate whose processes run on after it returned; a library may keep some that compile for it."""
    left = [pid for pid in process.descendants() if state(pid) not in ("Z", "")]
    if left and not candidate.calls_libraries:
        text = f"{len(left)} processes of the candidate run on after it returned ({where})"
        raise Refusal(Reason.work_deferred, text, stage)


def _numbers(told: object) -> list[int]:
    return [k for k in told if isinstance(k, int)] if isinstance(told, list) else []


def class_refusal(candidate: Candidate, problem: Problem, answer: Mapping[str, Any]) -> Refusal | None:
    """Whether a recorded call contradicts the declared class: an own kernel launches kernels and computes nothing
    through torch."""
    if candidate.kind == "library" or candidate.brings_launches:
        return None
    told = answer.get("opaque")
    opaque = [str(name)[:100] for name in told] if isinstance(told, list) else []
    moves_only = all(problem.flops(case) == 0 for case in problem.cases)
    helpers = _HELPERS - (_MOVES if moves_only else set()) | (_DRAWN if problem.random else set())
    computed = sorted(set(opaque) - helpers)
    if computed and not candidate.calls_libraries:
        text = f"declared {candidate.kind!r}, but computes with torch's {', '.join(computed[:5])}"
        return Refusal(Reason.library_call, text, "smoke")
    if not answer.get("launches"):
        return Refusal(
            Reason.library_call, f"declared {candidate.kind!r}, but launches no kernel of its own", "smoke"
        )
    kept = answer.get("kept_bytes")
    if isinstance(kept, int) and kept > 0:
        text = f"a kernel was given {kept} bytes that were there before the call: calls on two streams share them"
        return Refusal(Reason.state_kept, text, "smoke")
    return None
