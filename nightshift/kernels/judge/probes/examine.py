"""Carries the staged plan out: puts probes to a confined candidate, looks into the judge's buffers, finds fault.

Cheapest first; the first fault ends it. What the candidate's process says counts only against it. After every call
the judge compares with its own pristine copies: outputs (prefilled so that an unwritten element shows), every byte
of every input, and the guards round each buffer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from nightshift.kernels.candidate import Candidate
from nightshift.kernels.draw import mix
from nightshift.kernels.judge.probes.buffers import View, give_back
from nightshift.kernels.judge.probes.correctness import RATIOS, Expected, ProbeFinding, compare, repeats_agree
from nightshift.kernels.judge.probes.inputs import Probe
from nightshift.kernels.judge.probes.layouts import laid_out, layout_at, made_one, place, write
from nightshift.kernels.judge.probes.oracle import eager_is_deterministic, expected, gradient_seeds
from nightshift.kernels.judge.probes.runners import Runner
from nightshift.kernels.judge.verdict import Reason, Refusal
from nightshift.kernels.problem import Case, Inputs, Outputs, Problem

_KEPT_BYTES = 1 << 28
"""Of larger outputs, and what they are held against, only those are kept that a later call of a probe repeats."""
OUTPUTS, SEEDS = 10_000, 20_000  # buffer numbers: inputs from 0; a model's parameters are inputs


class Source(Protocol):
    """Where normal values and their oracle come from (see `kernels.judge.race.contest.Truths`)."""

    def inputs(self, problem: Problem, case: Case, seed: int, device: str) -> Inputs: ...

    def expected(self, problem: Problem, case: Case, seed: int, values: Inputs) -> Expected: ...


@dataclass
class Examination:
    """What has been found so far; `worst` keeps the largest figure of each kind over all calls. By rule and dtype:
    bits, how many questions were answered exactly (or within a mantissa probe's bound); doubts, why some were
    judged by their error instead. unplaced, by distribution and dtype: elements of whose being finite, NaN or
    infinite nothing was required, as the references differ."""

    calls: int = 0
    worst: dict[str, float] = field(default_factory=dict)
    bits: dict[str, int] = field(default_factory=dict)
    doubts: dict[str, str] = field(default_factory=dict)
    unplaced: dict[str, int] = field(default_factory=dict)

    def note_bits(self, probe: Probe, want: Expected) -> None:
        """Of a probe of a problem's own rule, which has passed, how its outputs were compared."""
        name = f"{probe.distribution} {probe.case.dtype}"
        name += f" (output {', '.join(map(str, want.bits))})" if want.bits else ""
        if want.doubt:
            self.doubts.setdefault(name, f"{probe.case}: {want.doubt}")
        else:
            self.bits[name] = self.bits.get(name, 0) + 1

    def note(self, probe: Probe, finding: ProbeFinding) -> None:
        if finding.unplaced:
            name = f"{probe.distribution} {probe.case.dtype}"
            self.unplaced[name] = self.unplaced.get(name, 0) + finding.unplaced
        for name in RATIOS:
            self.worst[name] = max(self.worst.get(name, 0.0), float(getattr(finding, name)))


@dataclass
class _Laid:
    """Where everything of one call lies. inputs: views, and numbers as they are. upstream: the outputs' gradients.

    sizes: bytes by buffer number. pristine: by buffer number what must be there after the call, too.
    """

    inputs: list[Any]
    outputs: list[View]
    upstream: list[View]
    sizes: dict[int, int]
    pristine: dict[int, torch.Tensor] = field(default_factory=dict)


class Examiner:
    """Puts probes of one problem to one candidate."""

    def __init__(self, problem: Problem, candidate: Candidate, device: str, runner: Runner) -> None:
        self.problem = problem
        self.candidate = candidate
        self.device = device
        self.runner = runner
        self.found = Examination()
        self.seed = 0  # of the latest call
        self.fill = 0xFF  # what the latest call's outputs held before it
        self.fill_always: int | None = None  # None: drawn for each call
        self.truths: Source | None = None  # None: made here, anew for each call
        self._forms: dict[tuple[Case, bool], list[tuple[tuple[int, ...], torch.dtype]]] = {}

    def probe(self, probe: Probe) -> None:
        """Make a probe's calls and hold each against the oracle. Raises Refusal."""
        seen: dict[int, Outputs] = {}
        wants: dict[int, Expected] = {}
        deterministic: bool | None = None
        previous: Outputs = ()
        answers: list[tuple[Inputs, Outputs]] = []
        for number, seed in enumerate(probe.seeds):
            if self.truths is None:
                inputs = self.problem.inputs(probe.case, probe.distribution, seed, self.device)
            else:
                inputs = self.truths.inputs(self.problem, probe.case, seed, self.device)
            if probe.same:
                given, inputs = inputs, made_one(inputs)
                if all(a is b for a, b in zip(given, inputs, strict=True)):
                    return
            self.seed = seed
            outputs = self.call(probe, seed, inputs)
            if self.problem.accepts is not None:
                answers.append((inputs, outputs))
                if wrong := self.problem.accepts(answers):
                    where = _place(probe, number)
                    raise Refusal(Reason.not_exact, f"{wrong} ({where})", probe.stage)
                continue
            if seed in seen:
                if deterministic is None:
                    upstream = self._upstream(probe, seed, inputs)
                    placed = laid_out(inputs, probe.case.layout)
                    deterministic = eager_is_deterministic(self.problem, placed, upstream)
                if not repeats_agree(seen[seed], outputs) and (
                    deterministic or self.candidate.determinism != "none"
                ):
                    why = "eager repeats itself" if deterministic else f"declared {self.candidate.determinism!r}"
                    text = f"call {number} differs from an earlier call on the same inputs, but {why}"
                    raise Refusal(Reason.determinism, text, probe.stage)
            if self.truths is not None:
                wants[seed] = self.truths.expected(self.problem, probe.case, seed, inputs)
            elif seed not in wants:
                wants[seed] = expected(self.problem, probe, seed, laid_out(inputs, probe.case.layout))
            finding = self._judge(probe, number, wants[seed], outputs, previous, seen)
            self.found.note(probe, finding)
            if probe.stage == "exact":
                self.found.note_bits(probe, wants[seed])
            seen.setdefault(seed, outputs)
            previous = outputs
            if sum(x.nbytes for x in outputs) > _KEPT_BYTES:
                left = probe.seeds[number + 1 :]
                seen = {s: x for s, x in seen.items() if s in left}
                wants = {s: x for s, x in wants.items() if s in left}

    def _judge(
        self,
        probe: Probe,
        number: int,
        want: Expected,
        outputs: Outputs,
        previous: Outputs,
        seen: Mapping[int, Outputs],
    ) -> ProbeFinding:
        finding = compare(want, outputs)
        if finding.reason is None:
            return finding
        where = _place(probe, number)
        stale = any(repeats_agree(outputs, old) for old in seen.values())
        if number and (stale or probe.stage == "integrity"):
            told = "the outputs of an earlier call" if stale else finding.detail
            raise Refusal(
                Reason.state_kept, f"{told} for fresh values under the same pointers ({where})", probe.stage
            )
        empty = _unwritten(want, outputs, self.fill)
        if empty:
            told = "still hold what was there before the call: never written, or read where no input lies"
            raise Refusal(Reason.unwritten, f"{empty} elements {told} ({where})", probe.stage)
        raise Refusal(finding.reason, f"{finding.detail} ({where})", probe.stage)

    def call(self, probe: Probe, seed: int, inputs: Inputs) -> Outputs:
        """One call: fill the buffers, run, compare inputs and guards, return copies of the outputs."""
        laid = self._lay(probe, seed, inputs)
        self._settle()
        give_back()
        self.found.calls += 1
        self.runner.run(probe.case, laid.inputs, laid.outputs, probe, laid.upstream)
        outputs = self._collect(probe, laid)
        if not probe.backward:
            self._hold_to_eagers_memory(probe, inputs)
        return outputs

    def _lay(self, probe: Probe, seed: int, inputs: Inputs) -> _Laid:
        """Lend buffers for a call and fill them."""
        process, layout = self.runner.process, probe.case.layout
        tensors = {index: x for index, x in enumerate(inputs) if isinstance(x, torch.Tensor)}
        places = {index: place(x.shape, layout_at(layout, index)) for index, x in tensors.items()}
        stored, grads = self._stored(probe, inputs), self._upstream(probe, seed, inputs)
        upstream = [_upstream_view(SEEDS + k, grad, probe.upstream) for k, grad in enumerate(grads)]
        sizes = {index: where.elements * tensors[index].itemsize for index, where in places.items()}
        sizes |= {view.index: size for view, size in stored}
        sizes |= {v.index: _reach(v) * grad.itemsize for v, grad in zip(upstream, grads, strict=True)}
        process.lend(sizes)
        laid = _Laid(list(inputs), [view for view, _ in stored], upstream, sizes)
        for index, x in tensors.items():
            where = places[index]
            view = View(index, _word(x.dtype), where.shape, where.strides, where.offset)
            # what lies between its elements is NaN in every float format: reading there shows
            process.lender.payload(index)[: sizes[index]].fill_(0xFF)
            self._write(laid, view, x)
            laid.inputs[index] = view
            if probe.same:
                laid.inputs[index] = laid.inputs[_first_of(inputs, x)]
        self.fill = _prefill(probe.seeds[0], self.found.calls) if self.fill_always is None else self.fill_always
        for view in laid.outputs:
            process.lender.payload(view.index).fill_(self.fill)
        for view, grad in zip(upstream, grads, strict=True):
            self._write(laid, view, grad)
        return laid

    def _stored(self, probe: Probe, inputs: Inputs) -> list[tuple[View, int]]:
        """Of each output or gradient its view and bytes; none of a candidate that changes its inputs instead."""
        if self.candidate.mutates and not probe.backward:
            return []
        forms = self.output_forms(probe.case, inputs, probe.gradients(self.problem) if probe.backward else ())
        return [
            (contiguous(OUTPUTS + k, shape, dtype), math.prod(shape) * dtype.itemsize)
            for k, (shape, dtype) in enumerate(forms)
        ]

    def _write(self, laid: _Laid, view: View, values: torch.Tensor) -> None:
        payload = self.runner.process.lender.payload(view.index)
        write(view.of(payload), values)
        laid.pristine[view.index] = payload[: laid.sizes[view.index]].clone()

    def _hold_to_eagers_memory(self, probe: Probe, inputs: Inputs) -> None:
        """An output may lie in an input's memory, or not be dense, only where eager's does."""
        case = probe.case
        if self.runner.aliases and not self._eager_aliases(case, inputs):
            text = f"output {self.runner.aliases[0]} lies in an input's memory ({case}); eager's does not"
            raise Refusal(Reason.output_aliases, text, probe.stage)
        dense = case.layout in ("contiguous", "offset")  # of other inputs an output may take the layout
        for number in self.runner.strided if dense else ():
            if self._eager_is_dense(case, inputs, number):
                text = f"output {number} is not contiguous ({case}); eager's is, and its readers may ask for a view"
                raise Refusal(Reason.wrong_strides, text, probe.stage)

    def _collect(self, probe: Probe, laid: _Laid) -> Outputs:
        lender = self.runner.process.lender
        chosen = laid.outputs or [laid.inputs[position] for position in self.candidate.mutates]
        outputs = tuple(view.of(lender.payload(view.index)).clone() for view in chosen)
        self._settle()
        for index, before in laid.pristine.items():
            allowed = self.candidate.mutates if not probe.backward else ()
            now = lender.payload(index)[: laid.sizes[index]]
            if index not in allowed and not torch.equal(now, before):
                raise Refusal(Reason.input_mutated, f"input {index} was changed ({probe.case})", probe.stage)
            if index in allowed and not _gaps_intact(laid.inputs[index], now, before):
                text = f"memory between the elements of input {index} was changed ({probe.case})"
                raise Refusal(Reason.input_mutated, text, probe.stage)
        for index in laid.sizes:
            if not lender.guards_intact(index):
                kind = f"input {index}" if index < OUTPUTS else f"output {index - OUTPUTS}"
                text = f"memory beside {kind} was written ({probe.case})"
                raise Refusal(Reason.guard_overwritten, text, probe.stage)
        return outputs

    def output_forms(
        self, case: Case, inputs: Inputs, gradients: Sequence[int] = ()
    ) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """(shape, dtype) of each output, or of the gradients in the inputs at these positions; found without
        computing them where torch's meta device can."""
        if gradients:
            chosen = [inputs[position] for position in gradients]
            return [(tuple(x.shape), x.dtype) for x in chosen if isinstance(x, torch.Tensor)]
        return [(tuple(x.shape), x.dtype) for x in self._like(case, inputs)]

    def _like(self, case: Case, inputs: Inputs) -> Outputs:
        """Tensors of the outputs' form on the judge's device; their values mean nothing."""
        key = (case, False)
        if key not in self._forms:
            try:
                meta = tuple(x.to("meta") if isinstance(x, torch.Tensor) else x for x in inputs)
                made = self.problem.eager(meta)
            except (NotImplementedError, RuntimeError):
                made = self.problem.eager(inputs)
            self._forms[key] = [(tuple(x.shape), x.dtype) for x in made]
        return tuple(torch.empty(shape, dtype=dtype, device=self.device) for shape, dtype in self._forms[key])

    def _upstream(self, probe: Probe, seed: int, inputs: Inputs) -> Outputs:
        """The outputs' gradients of a backward probe; none for another."""
        return gradient_seeds(self._like(probe.case, inputs), seed, probe.upstream) if probe.backward else ()

    def _eager_aliases(self, case: Case, inputs: Inputs) -> bool:
        """Whether eager's own outputs lie in its inputs' memory, for inputs in the case's layout."""
        placed = laid_out(inputs, case.layout)
        return _aliases(self.problem.eager(placed), placed)

    def _eager_is_dense(self, case: Case, inputs: Inputs, number: int) -> bool:
        """Whether eager's own output is contiguous, for inputs in the case's layout."""
        made = self.problem.eager(laid_out(inputs, case.layout))
        return number < len(made) and made[number].is_contiguous()

    def _settle(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def _place(probe: Probe, number: int) -> str:
    """A call of a probe in words."""
    how = {
        "on a stream of its own": probe.on_stream,
        "among other calls": probe.overlapping,
        "beside other work": probe.under_load,
    }
    words = [str(probe.case), probe.distribution, *(name for name, so in how.items() if so)]
    return ", ".join([*words, f"call {number + 1} of {len(probe.seeds)}"])


def _first_of(inputs: Inputs, tensor: torch.Tensor) -> int:
    return next(n for n, x in enumerate(inputs) if x is tensor)


def _upstream_view(index: int, gradient: torch.Tensor, upstream: str) -> View:
    """Where an output's gradient lies in its buffer."""
    shape = tuple(gradient.shape)
    if upstream == "expanded":
        return View(index, _word(gradient.dtype), shape, (0, *contiguous(index, shape[1:], gradient.dtype).stride))
    where = place(shape, upstream)
    return View(index, _word(gradient.dtype), where.shape, where.strides, where.offset)


def _reach(view: View) -> int:
    """Elements from a buffer's start to the last that a view touches, at least one."""
    return max(1, view.offset + sum((n - 1) * s for n, s in zip(view.shape, view.stride, strict=True)) + 1)


def contiguous(index: int, shape: tuple[int, ...], dtype: torch.dtype) -> View:
    """A dense view at a buffer's start."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(1, size)
    return View(index, _word(dtype), shape, tuple(reversed(strides)))


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _gaps_intact(view: View, now: torch.Tensor, before: torch.Tensor) -> bool:
    """Whether only the view's own elements changed."""
    patched = before.clone()
    view.of(patched).copy_(view.of(now))
    return torch.equal(patched, now)


def _prefill(seed: int, turn: int = 0) -> int:
    """A byte for the outputs before a call: NaN every second turn, from a start that nobody can foresee, else a
    finite value, so that an element which should be NaN cannot be left alone."""
    return 0xFF if mix(seed, 0xF1) + turn & 1 else 1 + mix(seed, 0xF2) % 0x7A


def _aliases(outputs: Outputs, inputs: Inputs) -> bool:
    """Whether some output lies in an input's memory."""
    places = {x.untyped_storage().data_ptr() for x in inputs if isinstance(x, torch.Tensor) and x.numel()}
    return any(x.numel() and x.untyped_storage().data_ptr() in places for x in outputs)


def _unwritten(want: Expected, outputs: Outputs, prefill: int) -> int:
    """Elements that still hold the prefill where the oracle has another value."""
    count = 0
    for output, eager in zip(outputs, want.eager, strict=True):
        if want.rows is not None:
            output = output.index_select(0, want.rows)  # noqa: PLW2901
        if output.shape != eager.shape or output.dtype != eager.dtype or not output.numel():
            continue
        fill = torch.full((output.itemsize,), prefill, dtype=torch.uint8, device=output.device)
        same = (output.contiguous().view(-1).view(torch.uint8).reshape(-1, output.itemsize) == fill).all(dim=1)
        other = (eager.contiguous().view(-1).view(torch.uint8).reshape(-1, output.itemsize) != fill).any(dim=1)
        if output.is_floating_point() and prefill == 0xFF:
            other &= ~torch.isnan(eager).reshape(-1)
        found = int((same & other).sum())
        if prefill == 0xFF or found * 256 > output.numel():  # a few wrong values may equal a finite prefill
            count += found
    return count
