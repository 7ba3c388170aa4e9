"""The judge: one candidate and one problem in, one verdict out, whatever the candidate does.

Order: static read, compile, examination in stages, sanitizer where promotion asks for it, then the race. The first
fault ends it, and a candidate that failed is never timed. A library composition may be correct, and is told so; it
is never raced, because it can never be certified as a kernel. Faults of the machine are caught apart.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from kernels.candidate import Candidate, CandidateError
from kernels.draw import mix
from kernels.judge import cuda, inputs, static
from kernels.judge import plan as launch_plan
from kernels.judge.contest import FULL, Pace, Race, slot_count
from kernels.judge.contestants import Baseline, Hosted, Replayed, compile_modes
from kernels.judge.environment import Environment, Nvml, environment
from kernels.judge.examine import Examiner, HostRunner, PlanRunner, class_refusal
from kernels.judge.inputs import Probe, Scope
from kernels.judge.process import JudgeBroken, Limits, Process, Zygote
from kernels.judge.quiet import Quiet
from kernels.judge.sanitizer import Exhibit, sanitize
from kernels.judge.timing import Board, decide
from kernels.judge.track import Pool, Track, Truths
from kernels.judge.verdict import STATUS_OF, Comparison, Reason, Refusal, Verdict
from kernels.problem import Case, Inputs, Problem

_NEAR = 1.25
"""A baseline this much slower than the best one, run alone, is not raced again."""


_SANITIZED_BYTES = 4 << 20
_LANE_RACES = 64
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
class Solo:
    """A problem's baselines on one case: callables, made and warmed once, and their times alone."""

    functions: dict[str, Callable[..., Any]]
    seconds: dict[str, float]
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def near(self) -> dict[str, Callable[..., Any]]:
        """The baselines worth racing: eager, and whatever is close to the best."""
        best = min(self.seconds.values())
        return {n: f for n, f in self.functions.items() if n == "eager" or self.seconds[n] <= _NEAR * best}


class Judge:
    """Judges many candidates, one after the other or from several threads; only the race itself is exclusive."""

    def __init__(
        self,
        device: str,
        interpret: bool = False,
        limits: Limits = Limits(),  # noqa: B008  frozen
        entropy: Callable[[int], bytes] = os.urandom,
        machine_fault: Callable[[], str | None] = lambda: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`machine_fault`: asked after a death, answers with the Xid or loss that explains it, if one does."""
        self.device = device
        self.limits = limits
        self.environment: Environment = environment(device)
        self._entropy = entropy
        self._machine_fault = machine_fault
        self._clock = clock
        self._zygote = Zygote(device, interpret)
        self._nvml = Nvml() if device == "cuda" else None
        self.board = self._nvml.board() if self._nvml else Board(0.0, 1 << 20, {})
        self._solo: dict[tuple[str, Case], Solo] = {}
        self.timing_lock = threading.RLock()
        self.pool = Pool([int.from_bytes(entropy(7), "little") for _ in range(4)])
        self.quiet = Quiet()
        self.arch = "sm_" + self.environment.capability.replace(".", "")
        self._spoiler = cuda.spoiler(self.arch) if device == "cuda" else b""
        self._lanes: dict[tuple[str, Case, tuple[int, ...], int], Track] = {}
        self._threads = torch.get_num_threads()
        if device == "cpu":  # hosts have one thread each, so a race needs baselines with one
            torch.set_num_threads(1)

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *details: object) -> None:
        for track in self._lanes.values():
            track.process.close()
        self._zygote.close()
        torch.set_num_threads(self._threads)
        if self._nvml is not None:
            self._nvml.__exit__()

    def verdict(
        self, candidate: Candidate, problem: Problem, request: Request, secret: bytes | None = None
    ) -> Verdict:
        """Judge once. `secret` decides every probe, seed and order; drawn fresh where None."""
        secret = self._entropy(16) if secret is None else secret
        trial = _Trial(self, candidate, problem, request, secret)
        start = self._clock()
        try:
            reason, detail, stage = trial.run()
        except Refusal as refusal:
            reason, detail, stage = refusal.reason, refusal.detail, refusal.stage
            fault = self._machine_fault()
            if fault is not None:
                reason, detail, stage = Reason.xid, fault, "machine"
        except JudgeBroken as error:
            reason, detail, stage = Reason.judge_broken, str(error), "machine"
        except (cuda.CudaError, torch.AcceleratorError) as error:
            reason, detail, stage = Reason.device_lost, str(error)[:500], "machine"
        return Verdict(
            candidate_sha256=candidate.sha256,
            problem=problem.name,
            status=STATUS_OF[reason],
            reason=reason,
            detail=detail,
            stage=stage,
            stages=tuple(trial.stages),
            errors=trial.errors,
            comparisons=tuple(trial.comparisons),
            domain=_domain(candidate, trial.timed, self.environment),
            isolation=trial.layers,
            environment=self.environment.to_json(),
            secret=secret.hex(),
            took_s=self._clock() - start,
        )

    def record(self, candidate: Candidate, problem: Problem, case: Case) -> launch_plan.Plan:
        """The launch plan of one case, for profiling and for timing apart from a verdict. Raises Refusal."""
        trial = _Trial(self, candidate, problem, Request(inputs.QUICK_GPU), self._entropy(16))
        with contextlib.ExitStack() as stack:
            made = trial._plan(trial._compile(stack), case)
        if made is None:
            raise Refusal(Reason.no_plan, "only the callable can be timed", "timing")
        return made

    def start(self, role: Any) -> Process:
        """A fresh confined process under this judge's limits."""
        process = self._zygote.start(role, self.limits)
        if self._nvml is not None:
            process.watch_vram(self._nvml.used_bytes, self._nvml.free_bytes)
        if role == "replay":
            process.request({"op": "spoiler"}, self.limits.call_s, self._spoiler)
        return process

    @contextlib.contextmanager
    def lane(self, problem: Problem, case: Case, mutates: tuple[int, ...], count: int) -> Iterator[Track]:
        """A search's standing replay process and its slots, for one race; given up when anything goes wrong in it.

        Binaries of several candidates meet in it, one after the other: good enough to rank, never to certify.
        """
        key = (problem.name, case, mutates, count)
        with self.timing_lock:
            for other in [k for k, t in self._lanes.items() if k != key or t.races >= _LANE_RACES]:
                self._lanes.pop(other).process.close()
            if key not in self._lanes:
                process = self.start("replay")
                self._lanes[key] = Track(process, problem, case, mutates, count, self.device, self.pool)
            track = self._lanes[key]
            track.races += 1
            try:
                yield track
            except BaseException:
                self._lanes.pop(key).process.close()
                raise

    def solo(self, problem: Problem, case: Case) -> Solo:
        """The baselines of one case, compiled, warmed and timed with no candidate alive; kept for good."""
        key = (problem.name, case)
        with self.timing_lock:
            if key not in self._solo:
                with self.quiet.alone():
                    self._solo[key] = self._measure_solo(problem, case)
            return self._solo[key]

    def _measure_solo(self, problem: Problem, case: Case) -> Solo:
        values = [problem.inputs(case, "normal", mix(7, n), self.device) for n in range(2)]
        functions: dict[str, Callable[..., Any]] = {}
        seconds: dict[str, float] = {}
        left_out: dict[str, str] = {}
        modes = compile_modes(problem) if self.device == "cuda" else {"eager": problem.reference}
        for name, function in modes.items():
            baseline = Baseline(name, function, list(values), self.flush(), self._clock)
            try:
                for n in (0, 1, 0):
                    baseline.call(n)
                times = sorted(baseline.seconds([0, 1, 0, 1, 0, 1, 1, 0, 0, 1]) for _ in range(5))
            except (ImportError, RuntimeError, TypeError, NotImplementedError) as error:
                left_out[name] = f"{type(error).__name__}: {error}"[:200]
                continue
            functions[name], seconds[name] = function, times[2]
        if "eager" not in functions:
            raise JudgeBroken(f"baselines: eager does not run on {problem.name}, {case}: {left_out['eager']}")
        return Solo(functions, seconds, left_out)

    def flush(self) -> torch.Tensor | None:
        """Memory that fills L2 twice over; None where there is no GPU."""
        if self.device != "cuda":
            return None
        return torch.empty(self.flush_bytes, dtype=torch.uint8, device="cuda")

    @property
    def flush_bytes(self) -> int:
        return max(2 * self.board.l2_bytes, 128 << 20)

    @property
    def nvml(self) -> Nvml | None:
        return self._nvml

    @property
    def clock(self) -> Callable[[], float]:
        return self._clock


def _domain(candidate: Candidate, timed: Sequence[Case], where: Environment) -> dict[str, Any]:
    """What a certificate of this verdict answers for."""
    declared = candidate.to_json()["domain"]
    return {**declared, "architecture": where.capability, "timed": [case.to_json() for case in timed]}


@dataclass
class _Trial:
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
            runner = self._compile(stack)
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
            plans = [self._plan(runner, case) for case in self.timed]
            if all(made is not None for made in plans):
                stack.close()  # from here on no candidate code runs anywhere
            for case, made in zip(self.timed, plans, strict=True):
                self.comparisons += self._race(runner, case, made)
        self.stages.append("timing")
        reason, text = decide(self.comparisons)
        return reason, text, "timing"

    def _admits(self, case: Case) -> bool:
        return self.problem.constraint(case) and self.candidate.domain.admits(case.sizes, case.dtype, case.layout)

    def _compile(self, stack: contextlib.ExitStack) -> HostRunner | PlanRunner:
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

    def _ask_afresh(self, examiner: Examiner, probe: Probe, refusal: Refusal) -> None:
        """A wrong answer that a fresh process gives right comes of something remembered: say so."""
        if refusal.reason not in _RESULTS or examiner.found.calls <= 1:
            return
        alone = replace(probe, seeds=(examiner.seed,), under_load=False)
        with contextlib.ExitStack() as stack:
            try:
                runner = self._compile(stack)
                Examiner(self.problem, self.candidate, self.judge.device, runner).probe(alone)
            except Refusal:
                return
        text = f"a fresh process answers rightly, this one after {examiner.found.calls} calls not: {refusal.detail}"
        raise Refusal(Reason.state_kept, text, probe.stage) from refusal

    def _hold_to_class(self, runner: HostRunner, examiner: Examiner, probe: Probe) -> None:
        _Recording(runner, examiner).call(probe)
        refusal = class_refusal(self.candidate, self.problem, runner.last)
        if refusal is not None:
            raise refusal

    def _plan(self, runner: HostRunner | PlanRunner, case: Case) -> launch_plan.Plan | None:
        """The launch plan of one case, or None where only the callable can be timed (tier B)."""
        if isinstance(runner, PlanRunner):
            values = self.problem.inputs(case, "normal", 1, self.judge.device)
            return runner.plan_of(case, values)
        if self.judge.device != "cuda":
            return None
        examiner = Examiner(self.problem, self.candidate, self.judge.device, runner)
        probe = Probe("accuracy", case, "normal", (mix(int.from_bytes(self.secret, "little"), 3),))
        sample = self.problem.inputs(case, "normal", probe.seeds[0], self.judge.device)
        examiner.call(probe, probe.seeds[0], sample)  # autotuning and compiling happen here
        _Recording(runner, examiner).call(probe)
        refusal = class_refusal(self.candidate, self.problem, runner.last)
        if refusal is not None:
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
            found = self._plan(runner, case)
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
        values = self._examiner.problem.inputs(probe.case, probe.distribution, seed, self._examiner.device)
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
