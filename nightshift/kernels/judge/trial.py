"""One candidate's way through the stages: compiled, examined, worn, sanitized, raced; the first fault ends it."""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from nightshift.kernels.candidate import Candidate
from nightshift.kernels.differentiate import input_count, training_step
from nightshift.kernels.judge import launch_plan, static
from nightshift.kernels.judge.declared_launches import DeclaredLaunches
from nightshift.kernels.judge.gaps import exactness
from nightshift.kernels.judge.probes import inputs
from nightshift.kernels.judge.probes.examine import Examiner
from nightshift.kernels.judge.probes.fingerprints import output_hashes
from nightshift.kernels.judge.probes.inputs import Probe
from nightshift.kernels.judge.probes.runners import HostRunner, PlanRunner, class_refusal, hold_to_footprint
from nightshift.kernels.judge.probes.sizes import Scope
from nightshift.kernels.judge.race.contest import FULL, Pace, Race, slot_count
from nightshift.kernels.judge.race.contestants import Baseline, Hosted, Replayed, Stir
from nightshift.kernels.judge.race.timing import decide
from nightshift.kernels.judge.race.track import Track, Truths
from nightshift.kernels.judge.recorded_launches import (
    Recording,
    exhibits,
    hold_to_launches,
    plan,
    replay,
    replay_some,
)
from nightshift.kernels.judge.sanitizer import sanitize
from nightshift.kernels.judge.static import misfit
from nightshift.kernels.judge.verdict import RESULTS, Comparison, JudgeBroken, LeftOut, Reason, Refusal
from nightshift.kernels.problem import Case, Inputs, Problem

if TYPE_CHECKING:
    from nightshift.kernels.judge.host.process import Process
    from nightshift.kernels.judge.judge import Judge

_ENDURANCE_CALLS = 2000
_ENDURANCE_S = 0.6
# What the examination of other candidates on the same GPU can bring about in a race.
_DISTURBED = frozenset({Reason.baseline_disturbed, Reason.clocks_disagree, Reason.rounds_disagree})


@dataclass(frozen=True)
class Request:
    """What to do with a candidate. pace None: correctness only. promote: run compute-sanitizer as well."""

    scope: Scope
    pace: Pace | None = FULL
    static: bool = True
    promote: bool = False
    cases: tuple[Case, ...] = ()  # timed cases; empty: all of the problem's that the candidate admits
    search: bool = False  # only the timed cases are examined, and values come from the judge's pool: no certificate
    gradients: bool = True  # race the training step too, where candidate and problem are differentiable
    libraries: bool = False  # race a library composition as well: to know its time, never to certify it


@dataclass
class _Records:
    """Which calls are recorded: recording takes time, and a candidate must not know which call it is.

    own: whether there is a class of its own kernels to hold it to. looked: dtypes and layouts that were recorded.
    """

    rng: random.Random
    own: bool
    looked: set[str] = field(default_factory=set)

    def chooses(self, probe: Probe) -> bool:
        new = {probe.case.dtype, probe.case.layout} - self.looked
        sweeping = probe.stage == "sweep" and (bool(new) or self.rng.random() < 0.5)
        large = probe.stage == "accuracy"  # where memory may be handed out again, if anywhere
        # of rows the judge compares a few only; two passes of which one is judged are no plan of one call
        odd = probe.rows or probe.overlapping or probe.twice or not all(probe.case.sizes.values())
        chosen = self.own and not odd and (probe.backward or sweeping or large)
        self.looked |= new if chosen else set()
        return chosen


@dataclass
class JudgeTrial:
    """One candidate's way through the stages; its fields are what the verdict will say."""

    judge: Judge
    candidate: Candidate
    problem: Problem
    request: Request
    secret: bytes
    stages: list[str] = field(default_factory=list)
    errors: dict[str, float] = field(default_factory=dict)
    comparisons: list[Comparison] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    probed: list[Case] = field(default_factory=list)  # every case that was put to it and passed
    launched: set[str] = field(default_factory=set)  # names of the kernels that recorded calls launched
    layers: Mapping[str, str] = field(default_factory=dict)
    timed: tuple[Case, ...] = ()
    binaries: tuple[str, ...] = ()
    work: dict[str, dict[str, int]] = field(default_factory=dict)
    """By raced case what any implementation must move (moved_bytes) and calculate (flops) and, where the candidate
    has a launch plan, its memory beside inputs and outputs (scratch_bytes) and the most that one of its kernels
    takes of a multiprocessor (registers and stack_bytes of a thread, shared_bytes of a block)."""
    exact: Mapping[str, Any] = field(default_factory=dict)
    outputs: tuple[Mapping[str, str], ...] = ()
    hosts: int = 0  # candidate's processes so far
    smoke: tuple[Probe, ...] = ()  # the first probe, once it has passed

    def run(self) -> tuple[Reason, str, str]:
        if told := misfit(self.candidate, self.problem):
            raise Refusal(Reason.declaration, told, "declaration")
        if self.request.static:
            for observation in static.read(self.candidate, self.problem.random):
                raise Refusal(observation.reason, str(observation), "static")
            self.stages.append("static")
        racing = self.racing
        self.timed = tuple(case for case in self.request.cases or self.problem.cases if self._admits(case))
        for case in self.timed if racing else ():
            self.judge.solo(self.problem, case)
        with contextlib.ExitStack() as stack:
            runner = self.compile(stack)
            self.layers = dict(runner.process.layers)
            self.stages.append("compile")
            self._examine(runner)
            replay_some(self, runner)
            if self.request.promote:
                if self.candidate.kind == "composition":
                    text = "compute-sanitizer answers for kernels alone, and torch's are among its launches"
                    raise Refusal(Reason.no_plan, text, "sanitizer")
                sanitize(exhibits(self, runner))
                self.stages.append("sanitizer")
            if not racing or not self.timed:
                return Reason.passed, self._why_not_raced(), "integrity"
            self._time(self.problem, runner, stack)
        self._time_training()
        self.stages.append("timing")
        return self._decide()

    @property
    def racing(self) -> bool:
        return self.request.pace is not None and (self.request.libraries or self.candidate.kind != "library")

    def _why_not_raced(self) -> str:
        if self.request.pace is None:
            return "timing was not asked for"
        library = self.candidate.kind == "library"
        return "a library composition is never certified as a kernel" if library else "no timed case"

    def _decide(self) -> tuple[Reason, str, str]:
        """The word, and over which baselines it is said. "Faster" for promotion needs every baseline that the
        problem names: where a peer could not run, it is only told, and promotes nobody."""
        reason, text = decide(self.comparisons)
        raced = sorted({c.baseline for c in self.comparisons})
        text += f"; raced: {', '.join(raced)}"
        absent = sorted({f"{x.baseline} ({x.why.splitlines()[0][:80]})" for x in self.left_out if x.missing})
        if absent:
            text += f"; NOT raced: {', '.join(absent)}"
            if reason is Reason.clears_best and self.request.promote:
                reason = Reason.peer_missing
        return reason, text, "timing"

    def _time_training(self) -> None:
        """Race forward and backward pass together, in a process of their own, where there is a backward pass."""
        asked = self.request.gradients and not self.request.search
        differentiable = self.candidate.differentiable and self.problem.gradients and not self.candidate.mutates
        if not asked or not differentiable:
            return
        with contextlib.ExitStack() as stack:
            host = stack.enter_context(self.judge.start("candidate"))
            step = training_step(self.problem)
            order = (self.problem.gradients, input_count(self.problem))
            runner = HostRunner.load(host, self.candidate, self.problem, order, self._host_seed())
            self._time(step, replace(runner, problem=step), stack)

    def _time(self, problem: Problem, runner: HostRunner | PlanRunner, stack: contextlib.ExitStack) -> None:
        """Race every timed case; where all have launch plans, `stack` (with the candidate's process) ends first."""
        plans = [plan(self, runner, case, problem) for case in self.timed]
        self.binaries = tuple(dict.fromkeys((*self.binaries, *(b for p in plans if p for b in p.binary_sha256))))
        for case, made in zip(self.timed, plans, strict=True) if problem is self.problem else ():
            least = {"moved_bytes": problem.compulsory_bytes(case), "flops": problem.flops(case)}
            used = {"scratch_bytes": sum(made.scratch_bytes), **made.usage()} if made else {}
            self.work[str(case)] = least | used
        if all(made is not None for made in plans):
            stack.close()  # from here on no candidate code runs anywhere
        if not self.request.search:
            replay(self, problem, [(c, p) for c, p in zip(self.timed, plans, strict=True) if p], whole=True)
            self.stages += ["replay"] * (any(plans) and "replay" not in self.stages)
        for case, made in zip(self.timed, plans, strict=True):
            self.comparisons += self._race(problem, runner, case, made, stack)

    def _admits(self, case: Case) -> bool:
        return self.problem.constraint(case) and self.candidate.domain.admits(case.sizes, case.dtype, case.layout)

    def _host_seed(self) -> int:
        """Of torch's generator in the next host: another one in each, and nothing that tells the secret."""
        self.hosts += 1
        return int.from_bytes(hashlib.sha256(self.secret + b"host%d" % self.hosts).digest()[:7], "little")

    def compile(self, stack: contextlib.ExitStack) -> HostRunner | PlanRunner:
        if not self.candidate.brings_launches:
            host = stack.enter_context(self.judge.start("candidate", peers=self.candidate.calls_libraries))
            made = self.judge.compiled(self.candidate)
            return HostRunner.load(host, self.candidate, self.problem, seed=self._host_seed(), compiled=made)
        if self.judge.device != "cuda":
            raise JudgeBroken(f"a candidate in {self.candidate.language!r} needs a GPU to be judged on")
        declared = DeclaredLaunches(self)
        return PlanRunner(stack.enter_context(self.judge.start("replay")), declared.plan_of)

    def _examine(self, runner: HostRunner | PlanRunner) -> None:
        probes = self.probes()
        if not probes:
            raise Refusal(Reason.empty_domain, "the declared domain admits no case of the problem", "compile")
        examiner = Examiner(self.problem, self.candidate, self.judge.device, runner)
        if self.request.search:
            examiner.truths = self.judge.pool
        records = _Records(random.Random(self.secret + b"recorded"), self.candidate.kind != "library")
        try:
            for number, probe in enumerate(probes):
                if number and self.stages[-1] != probe.stage:
                    self.stages.append(probes[number - 1].stage)
                self._put(examiner, probe, records.chooses(probe))
                if number == 0 and isinstance(runner, HostRunner):
                    self._hold_to_class(runner, examiner, probe)
        finally:
            self.errors.update(examiner.found.worst)
            self.exact = exactness(self.candidate, self.problem, examiner.found)
        with self.judge.quiet.shared():
            if isinstance(runner, HostRunner) and not self.request.search:
                self._endure(runner, probes[0].case.with_(layout="contiguous"))
            if self.candidate.determinism == "bitwise" and not self.request.search:
                self.outputs = output_hashes(examiner)
        self.stages.append(probes[-1].stage)
        self.stages[:] = list(dict.fromkeys(self.stages))

    def call_once(self, runner: HostRunner | PlanRunner) -> None:
        """Put the first probe to it, without a second one's questions. Raises Refusal."""
        probes = self.probes()
        if not probes:
            raise Refusal(Reason.empty_domain, "the declared domain admits no case of the problem", "compile")
        Examiner(self.problem, self.candidate, self.judge.device, runner).probe(probes[0])

    def _put(self, examiner: Examiner, probe: Probe, record: bool) -> None:
        """Put one probe to the candidate; where its call is recorded, hold what it launched to the class."""
        host = examiner.runner if isinstance(examiner.runner, HostRunner) else None
        if host is not None:
            host.record = record
        try:
            if probe.rows and not self.problem.sampled_rows:
                self._ask_huge(examiner, probe)
            else:
                with self.judge.quiet.shared():
                    examiner.probe(probe)
            self.probed.append(probe.case)
        except Refusal as refusal:
            self._ask_afresh(examiner, probe, refusal)
            if refusal.reason is Reason.illegal_access:  # the driver names no case
                told = f"{refusal.detail.partition(chr(10))[0]} ({probe.case}, {probe.distribution})"
                raise Refusal(refusal.reason, told, probe.stage) from refusal
            raise
        finally:
            if host is not None:
                host.record = False
        if record and host is not None:
            refused = class_refusal(self.candidate, self.problem, host.last)
            if refused is not None:
                raise Refusal(refused.reason, f"{refused.detail} ({probe.case})", probe.stage)

    def probes(self) -> tuple[Probe, ...]:
        if not self.request.search:
            return inputs.plan(self.problem, self.candidate, self.secret, self.request.scope)
        rng = random.Random(self.secret)
        made = []
        for case in self.timed:
            first, second = (self.judge.pool.seed(rng) for _ in range(2))
            rows = self.problem.sampled_rows
            made.append(Probe("smoke", case, "normal", (first,), rows=rows))
            made.append(Probe("integrity", case, "normal", (second, first), rows=rows))
        return tuple(made)

    def _endure(self, runner: HostRunner, case: Case) -> None:
        """Call the entry hundreds of times more, then look again: some are honest only for as long as a test lasts.

        No number of calls excludes a later change of mind; what was raced under tier A are the binaries that the
        verdict names, whatever the Python around them does one day.
        """
        if not self._admits(case):
            self._look_back(runner, "after all calls")
            return
        track = self._track(runner.process, self.problem, case, 2)
        rng = random.Random(self.secret + b"endurance")
        calls, size, deadline = 0, 2, self.judge.clock() + _ENDURANCE_S
        try:
            entrant = Hosted(track, self.judge.clock)
            while calls < _ENDURANCE_CALLS and (not calls or self.judge.clock() < deadline):
                for slot in (0, 1):
                    track.refresh(slot, rng.getrandbits(63))
                batch = [rng.randrange(2) for _ in range(size)]
                start = self.judge.clock()
                entrant.run(batch)
                each = (self.judge.clock() - start) / size
                size = max(1, min(20, int(_ENDURANCE_S / 6 / max(each, 1e-6))))  # no slow one meets a limit
                calls += len(batch)
            for _ in range(3):
                track.refresh(0, rng.getrandbits(63))
                entrant.run([0])
                track.check(0)
            self._look_back(runner, f"after {calls} calls on {case}")
        except Refusal as refusal:
            if refusal.reason not in RESULTS | {Reason.timed_output_wrong}:
                raise
            text = f"after {calls} calls on {case}: {refusal.detail}"
            raise Refusal(Reason.state_kept, text, "integrity") from refusal

    def _look_back(self, runner: HostRunner, where: str) -> None:
        left = runner.process.request({"op": "left"}, self.judge.limits.call_s, stage="integrity")
        hold_to_footprint(self.candidate, left.body, "integrity", where, self.problem.random)

    def _ask_huge(self, examiner: Examiner, probe: Probe) -> None:
        """Of a process of its own, which ends right after, and one such at a time: many GiB are lent for it."""
        with self.judge.large_lock, contextlib.ExitStack() as stack:
            one = Examiner(self.problem, self.candidate, self.judge.device, self.compile(stack))
            one.found = examiner.found
            try:
                with self.judge.quiet.shared():
                    one.probe(probe)
            finally:
                examiner.seed, examiner.fill = one.seed, one.fill
                stack.close()
                del one
                self.judge.give_back()

    def _ask_afresh(self, examiner: Examiner, probe: Probe, refusal: Refusal) -> None:
        """A wrong answer that a fresh process gives right comes of something remembered: say so."""
        luck = self.problem.random or probe.on_stream or probe.rows
        if refusal.reason not in RESULTS or examiner.found.calls <= 1 or luck:
            return  # and while a fresh process compiles, late inputs arrive
        alone = replace(probe, seeds=(examiner.seed,), under_load=False)
        with contextlib.ExitStack() as stack:
            try:
                runner = self.compile(stack)
                again = Examiner(self.problem, self.candidate, self.judge.device, runner)
                again.fill_always = examiner.fill
                again.probe(alone)
            except Refusal:
                return
        text = f"a fresh process answers rightly, this one after {examiner.found.calls} calls not: {refusal.detail}"
        raise Refusal(Reason.state_kept, text, probe.stage) from refusal

    def _hold_to_class(self, runner: HostRunner, examiner: Examiner, probe: Probe) -> None:
        self.smoke = (probe,)
        Recording(runner, examiner).call(probe)
        refusal = class_refusal(self.candidate, self.problem, runner.last)
        if refusal is not None:
            raise refusal

    def _race(
        self,
        problem: Problem,
        runner: HostRunner | PlanRunner,
        case: Case,
        made: launch_plan.Plan | None,
        stack: contextlib.ExitStack,
    ) -> list[Comparison]:
        """Race; where a baseline was slow beside the candidate, or anything was odd beside other candidates of a
        search, once more. Between the two nobody of it lives and the baselines are measured alone again; the second
        race has the GPU to itself, and only who disturbs that one is accused."""
        search = self.request.search and not self.judge.quiet.across
        try:
            return self._contest(problem, runner, case, made, shared=search)
        except Refusal as refusal:
            if refusal.reason is not Reason.baseline_disturbed and not (search and refusal.reason in _DISTURBED):
                raise
        if made is None and isinstance(runner, HostRunner):
            runner.process.close()
        self.judge.solo_again(problem, case)
        if made is None and isinstance(runner, HostRunner):
            peers = self.candidate.calls_libraries
            runner.move(stack.enter_context(self.judge.start("candidate", peers=peers)), self._host_seed())
        return self._contest(problem, runner, case, made, shared=False)

    def _contest(
        self,
        problem: Problem,
        runner: HostRunner | PlanRunner,
        case: Case,
        made: launch_plan.Plan | None,
        shared: bool,
    ) -> list[Comparison]:
        """One race; `shared`: others are examined on the GPU meanwhile."""
        judge, pace = self.judge, self.request.pace
        assert pace is not None
        solo = judge.solo(problem, case)
        label = str(case) if problem is self.problem else f"{case}, training step"
        self.left_out += [entry for entry in solo.left_out(label) if entry not in self.left_out]
        if made is None:  # tier B uses a slot once a run
            pace = replace(pace, max_slots=32)
        count = slot_count(problem, case, judge.board.l2_bytes, pace, single_use=made is None) // 2 * 2
        rng = random.Random(self.secret + label.encode())
        with contextlib.ExitStack() as stack:
            entrant: Hosted | Replayed
            if made is None:
                entrant, flush = self._hosted(problem, runner, case, count, rng, shared), None
            else:
                entrant, flush = self._replayed(problem, case, made, count, rng, stack), judge.flush()
            empty: Inputs = ()
            stir = Stir(entrant.blends) if isinstance(entrant, Replayed) else None
            baselines = [
                Baseline(name, function, [empty] * count, flush, judge.clock, stir, solo.seconds[name])
                for name, function in solo.near.items()
            ]
            alone = solo.seconds if flush is not None else {}
            race = Race(entrant, baselines, entrant.track, judge.board, pace, rng, judge.nvml, alone, label)
            try:
                with self._clock(shared):
                    return race.run()
            except Refusal as refusal:
                if made is not None and refusal.reason is Reason.timed_output_wrong and not race.rounds_done:
                    text = f"its launches, replayed, do not make its outputs: {refusal.detail}"
                    raise Refusal(Reason.library_call, text, "timing") from refusal
                raise

    @contextlib.contextmanager
    def _clock(self, shared: bool) -> Iterator[None]:
        """While something is timed: one race of this judge, and the GPU to itself unless it is shared."""
        with self.judge.timing_lock, contextlib.nullcontext() if shared else self.judge.quiet.alone():
            yield

    def _hosted(
        self,
        problem: Problem,
        runner: HostRunner | PlanRunner,
        case: Case,
        count: int,
        rng: random.Random,
        shared: bool,
    ) -> Hosted:
        """The callable in the candidate's own process (tier B)."""
        if runner.process.descendants():
            raise Refusal(Reason.process_limit, "other processes of the candidate are alive", "timing")
        track = self._track(runner.process, problem, case, count)
        entrant = Hosted(track, self.judge.clock, rng)
        entrant.profile(rng, self._clock(shared))
        hold_to_launches(self, entrant)
        return entrant

    def _replayed(
        self,
        problem: Problem,
        case: Case,
        made: launch_plan.Plan,
        count: int,
        rng: random.Random,
        stack: contextlib.ExitStack,
    ) -> Replayed:
        """The launch plan in a process of the judge's (tier A)."""
        judge = self.judge
        if self.request.search:
            track = stack.enter_context(judge.lane(problem, case, self.candidate.mutates, count))
        else:
            track = self._track(stack.enter_context(judge.start("replay")), problem, case, count)
        return Replayed(track, made, judge.flush_bytes, judge.clock, not self.request.search, rng)

    def _track(self, process: Process, problem: Problem, case: Case, count: int) -> Track:
        return Track(process, problem, case, self.candidate.mutates, count, self.judge.device, Truths())
