"""One candidate's way through the stages: compiled, examined, worn, sanitized, raced; the first fault ends it."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from kernels.candidate import Candidate, CandidateError
from kernels.draw import mix
from kernels.judge import inputs, static
from kernels.judge import plan as launch_plan
from kernels.judge.contest import FULL, Pace, Race, slot_count
from kernels.judge.contestants import Baseline, Hosted, Replayed
from kernels.judge.examine import Examiner, HostRunner, PlanRunner, class_refusal
from kernels.judge.inputs import Probe, Scope
from kernels.judge.process import JudgeBroken
from kernels.judge.sanitizer import Exhibit, sanitize
from kernels.judge.timing import decide
from kernels.judge.track import Track, Truths
from kernels.judge.verdict import Comparison, Reason, Refusal
from kernels.problem import Case, Inputs, Problem

if TYPE_CHECKING:
    from kernels.judge.judge import Judge

_SANITIZED_BYTES = 4 << 20
_ENDURANCE_CALLS = 2000
_ENDURANCE_S = 0.6
_RESULTS = frozenset(
    {
        Reason.raised,
        Reason.wrong_shape,
        Reason.wrong_dtype,
        Reason.unwritten,
        Reason.not_exact,
        Reason.rmse,
        Reason.worst_row,
        Reason.max_ulp,
        Reason.nan_placement,
    }
)


@dataclass(frozen=True)
class Request:
    """What to do with a candidate. pace None: correctness only. promote: run compute-sanitizer as well."""

    scope: Scope
    pace: Pace | None = FULL
    static: bool = True
    promote: bool = False
    cases: tuple[Case, ...] = ()  # timed cases; empty: all of the problem's that the candidate admits
    search: bool = False  # only the timed cases are examined, and values come from the judge's pool: no certificate


@dataclass
class Trial:
    """One candidate's way through the stages; its fields are what the verdict will say."""

    judge: Judge
    candidate: Candidate
    problem: Problem
    request: Request
    secret: bytes
    stages: list[str] = field(default_factory=list)
    errors: dict[str, float] = field(default_factory=dict)
    comparisons: list[Comparison] = field(default_factory=list)
    layers: Mapping[str, str] = field(default_factory=dict)
    timed: tuple[Case, ...] = ()
    binaries: tuple[str, ...] = ()
    smoke: tuple[Probe, ...] = ()  # the first probe, once it has passed

    def run(self) -> tuple[Reason, str, str]:
        if self.request.static:
            for observation in static.read(self.candidate):
                raise Refusal(observation.reason, str(observation), "static")
            self.stages.append("static")
        racing = self.request.pace is not None and self.candidate.kind != "library"
        self.timed = tuple(case for case in self.request.cases or self.problem.cases if self._admits(case))
        if racing:
            for case in self.timed:
                self.judge.solo(self.problem, case)
        with contextlib.ExitStack() as stack:
            runner = self.compile(stack)
            self.layers = dict(runner.process.layers)
            self.stages.append("compile")
            self._examine(runner)
            if self.request.promote:
                sanitize(self._exhibits(runner))
                self.stages.append("sanitizer")
            if not racing or not self.timed:
                why = "a library composition is never certified as a kernel" if not racing else "no timed case"
                if self.request.pace is None:
                    why = "timing was not asked for"
                return Reason.passed, why, "integrity"
            plans = [self.plan(runner, case) for case in self.timed]
            self.binaries = tuple(dict.fromkeys(b for made in plans if made for b in made.binary_sha256))
            if all(made is not None for made in plans):
                stack.close()  # from here on no candidate code runs anywhere
            for case, made in zip(self.timed, plans, strict=True):
                self.comparisons += self._race(runner, case, made)
        self.stages.append("timing")
        reason, text = decide(self.comparisons)
        return reason, text, "timing"

    def _admits(self, case: Case) -> bool:
        return self.problem.constraint(case) and self.candidate.domain.admits(case.sizes, case.dtype, case.layout)

    def compile(self, stack: contextlib.ExitStack) -> HostRunner | PlanRunner:
        host = stack.enter_context(self.judge.start("candidate"))
        if self.candidate.language != "cuda":
            return HostRunner.load(host, self.candidate, self.problem)
        if self.judge.device != "cuda":
            raise JudgeBroken("a CUDA C++ candidate needs a GPU to be judged on")
        order = {"op": "compile", "source": self.candidate.source, "arch": self.judge.arch}
        cubin = host.request(order, self.judge.limits.import_s, stage="compile").blob
        host.close()

        def plan_of(case: Case, values: Sequence[Any]) -> launch_plan.Plan:
            numbers = {i: float(x) for i, x in enumerate(values) if isinstance(x, int | float)}
            try:
                return launch_plan.cuda_plan(self.candidate, cubin, case.sizes, numbers)
            except (launch_plan.PlanError, CandidateError) as error:
                raise Refusal(Reason.compile_failed, str(error), "compile") from error

        return PlanRunner(stack.enter_context(self.judge.start("replay")), plan_of)

    def _examine(self, runner: HostRunner | PlanRunner) -> None:
        probes = self._probes()
        if not probes:
            raise Refusal(Reason.empty_domain, "the declared domain admits no case of the problem", "compile")
        examiner = Examiner(self.problem, self.candidate, self.judge.device, runner)
        if self.request.search:
            examiner.truths = self.judge.pool
        try:
            for number, probe in enumerate(probes):
                if number and self.stages[-1] != probe.stage:
                    self.stages.append(probes[number - 1].stage)
                try:
                    with self.judge.quiet.shared():
                        examiner.probe(probe)
                except Refusal as refusal:
                    self._ask_afresh(examiner, probe, refusal)
                    raise
                if number == 0 and isinstance(runner, HostRunner):
                    self._hold_to_class(runner, examiner, probe)
        finally:
            self.errors.update(examiner.found.worst)
        if isinstance(runner, HostRunner) and not self.request.search:
            with self.judge.quiet.shared():
                self._endure(runner, probes[0].case.with_(layout="contiguous"))
        self.stages.append(probes[-1].stage)
        self.stages[:] = list(dict.fromkeys(self.stages))

    def _probes(self) -> tuple[Probe, ...]:
        if not self.request.search:
            return inputs.plan(self.problem, self.candidate, self.secret, self.request.scope)
        rng = random.Random(self.secret)
        made = []
        for case in self.timed:
            first, second = (self.judge.pool.seed(rng) for _ in range(2))
            made.append(Probe("smoke", case, "normal", (first,)))
            made.append(Probe("integrity", case, "normal", (second, first)))
        return tuple(made)

    def _endure(self, runner: HostRunner, case: Case) -> None:
        """Call the entry hundreds of times more, then look again: some are honest only for as long as a test lasts.

        No number of calls excludes a later change of mind; what was raced under tier A are the binaries that the
        verdict names, whatever the Python around them does one day.
        """
        if not self._admits(case):
            return
        track = Track(runner.process, self.problem, case, self.candidate.mutates, 2, self.judge.device, Truths())
        rng = random.Random(self.secret + b"endurance")
        calls, deadline = 0, self.judge.clock() + _ENDURANCE_S
        try:
            entrant = Hosted(track, self.judge.clock)
            while calls < _ENDURANCE_CALLS and (not calls or self.judge.clock() < deadline):
                for slot in (0, 1):
                    track.refresh(slot, rng.getrandbits(63))
                batch = [rng.randrange(2) for _ in range(20)]
                entrant.run(batch)
                calls += len(batch)
            for _ in range(3):
                track.refresh(0, rng.getrandbits(63))
                entrant.run([0])
                track.check(0)
        except Refusal as refusal:
            if refusal.reason not in _RESULTS | {Reason.timed_output_wrong}:
                raise
            text = f"after {calls} calls on {case}: {refusal.detail}"
            raise Refusal(Reason.state_kept, text, "integrity") from refusal

    def _ask_afresh(self, examiner: Examiner, probe: Probe, refusal: Refusal) -> None:
        """A wrong answer that a fresh process gives right comes of something remembered: say so."""
        if refusal.reason not in _RESULTS or examiner.found.calls <= 1:
            return
        alone = replace(probe, seeds=(examiner.seed,), under_load=False)
        with contextlib.ExitStack() as stack:
            try:
                runner = self.compile(stack)
                Examiner(self.problem, self.candidate, self.judge.device, runner).probe(alone)
            except Refusal:
                return
        text = f"a fresh process answers rightly, this one after {examiner.found.calls} calls not: {refusal.detail}"
        raise Refusal(Reason.state_kept, text, probe.stage) from refusal

    def _hold_to_class(self, runner: HostRunner, examiner: Examiner, probe: Probe) -> None:
        self.smoke = (probe,)
        _Recording(runner, examiner).call(probe)
        refusal = class_refusal(self.candidate, self.problem, runner.last)
        if refusal is not None:
            raise refusal

    def plan(self, runner: HostRunner | PlanRunner, case: Case) -> launch_plan.Plan | None:
        """The launch plan of one case, or None where only the callable can be timed (tier B)."""
        if isinstance(runner, PlanRunner):
            values = self.problem.inputs(case, "normal", 1, self.judge.device)
            return runner.plan_of(case, values)
        if self.judge.device != "cuda":
            return None
        examiner = Examiner(self.problem, self.candidate, self.judge.device, runner)
        probe = Probe("accuracy", case, "normal", (mix(int.from_bytes(self.secret, "little"), 3),))
        sample = Truths().inputs(self.problem, case, probe.seeds[0], self.judge.device)
        examiner.call(probe, probe.seeds[0], sample)  # autotuning and compiling happen here
        _Recording(runner, examiner).call(probe)
        refusal = class_refusal(self.candidate, self.problem, runner.last)
        if refusal is not None:
            for passed in self.smoke:  # the case that passed: does it still?
                _Recording(runner, examiner).call(passed)
            if self.smoke and class_refusal(self.candidate, self.problem, runner.last) is not None:
                text = f"it passed for its class at first, and now: {refusal.detail}"
                raise Refusal(Reason.state_kept, text, "timing") from refusal
            raise refusal
        if "plan" not in runner.last:
            return None
        try:
            made = launch_plan.Plan.from_message(runner.last["plan"], runner.last_blob)
            launch_plan.check_reach(made, _sizes(sample), list(_output_sizes(examiner, case, sample)))
        except launch_plan.PlanError as error:
            raise Refusal(Reason.channel_forged, str(error), "timing") from error
        return made

    def _exhibits(self, runner: HostRunner | PlanRunner) -> list[Exhibit]:
        """Small cases for compute-sanitizer: one of each dtype, with sizes off the powers of two where allowed."""
        probes = inputs.plan(self.problem, self.candidate, self.secret, self.request.scope)
        made: dict[str, Exhibit] = {}
        for probe in probes:
            case = probe.case
            if probe.stage != "sweep" or case.layout != "contiguous" or case.dtype in made:
                continue
            if not 0 < self.problem.compulsory_bytes(case) <= _SANITIZED_BYTES:
                continue
            found = self.plan(runner, case)
            if found is None:
                raise Refusal(
                    Reason.no_plan, "promotion needs a launch plan to run compute-sanitizer on", "sanitizer"
                )
            values = self.problem.inputs(case, "normal", probe.seeds[0], self.judge.device)
            examiner = Examiner(self.problem, self.candidate, self.judge.device, runner)
            outputs = () if self.candidate.mutates else tuple(_output_sizes(examiner, case, values))
            made[case.dtype] = Exhibit(found, values, outputs, str(case))
        if not made:
            raise Refusal(
                Reason.empty_domain, "no small case of the domain to run compute-sanitizer on", "sanitizer"
            )
        return list(made.values())

    def _race(self, runner: HostRunner | PlanRunner, case: Case, made: launch_plan.Plan | None) -> list[Comparison]:
        judge, pace = self.judge, self.request.pace
        assert pace is not None
        solo = judge.solo(self.problem, case)
        if made is None:  # tier B uses a slot once a run
            pace = replace(pace, max_slots=32)
        count = slot_count(self.problem, case, judge.board.l2_bytes, pace) // 2 * 2
        rng = random.Random(self.secret + str(case).encode())
        mutates = self.candidate.mutates
        with contextlib.ExitStack() as stack:
            entrant: Replayed | Hosted
            if made is None:
                process = runner.process
                if process.descendants():
                    raise Refusal(Reason.process_limit, "other processes of the candidate are alive", "timing")
                track = Track(process, self.problem, case, mutates, count, judge.device, Truths())
                entrant, flush = Hosted(track, judge.clock), None
                entrant.profile(rng)
            else:
                if self.request.search:
                    track = stack.enter_context(judge.lane(self.problem, case, mutates, count))
                else:
                    process = stack.enter_context(judge.start("replay"))
                    track = Track(process, self.problem, case, mutates, count, judge.device, Truths())
                entrant, flush = Replayed(track, made, judge.flush_bytes, judge.clock), judge.flush()
            empty: Inputs = ()
            baselines = [
                Baseline(name, function, [empty] * count, flush, judge.clock)
                for name, function in solo.near.items()
            ]
            alone = solo.seconds if flush is not None else {}
            race = Race(entrant, baselines, track, judge.board, pace, rng, judge.nvml, alone)
            try:
                with judge.timing_lock, contextlib.nullcontext() if self.request.search else judge.quiet.alone():
                    return race.run()
            except Refusal as refusal:
                if made is not None and refusal.reason is Reason.timed_output_wrong and not race.rounds_done:
                    text = f"its launches, replayed, do not make its outputs: {refusal.detail}"
                    raise Refusal(Reason.library_call, text, "timing") from refusal
                raise


class _Recording:
    """One more call of a probe through the examiner, with the recorder on."""

    def __init__(self, runner: HostRunner, examiner: Examiner) -> None:
        self._runner = runner
        self._examiner = examiner

    def call(self, probe: Probe) -> None:
        runner = self._runner
        seed = probe.seeds[0]
        values = Truths().inputs(self._examiner.problem, probe.case, seed, self._examiner.device)
        runner.record = True
        try:
            self._examiner.call(probe, seed, values)
        finally:
            runner.record = False


def _sizes(values: Inputs) -> list[int]:
    return [x.numel() * x.itemsize if isinstance(x, torch.Tensor) else 0 for x in values]


def _output_sizes(examiner: Examiner, case: Case, values: Inputs) -> Iterator[int]:
    for shape, dtype in examiner.output_forms(case, values, backward=False):
        count = 1
        for size in shape:
            count *= size
        yield count * dtype.itemsize
