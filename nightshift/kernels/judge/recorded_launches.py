"""Recorded launches: taken from a candidate's host, replayed where none of its code runs, held to its class."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from nightshift.kernels.draw import TWIN, mix
from nightshift.kernels.judge import launch_plan
from nightshift.kernels.judge.probes import inputs
from nightshift.kernels.judge.probes.examine import Examiner
from nightshift.kernels.judge.probes.inputs import Probe
from nightshift.kernels.judge.probes.runners import HostRunner, PlanRunner, class_refusal
from nightshift.kernels.judge.race.contestants import Hosted
from nightshift.kernels.judge.race.track import Truths
from nightshift.kernels.judge.sanitizer import Exhibit
from nightshift.kernels.judge.verdict import RESULTS, Reason, Refusal
from nightshift.kernels.problem import Case, Inputs, Problem

if TYPE_CHECKING:
    from nightshift.kernels.judge.trial import JudgeTrial

_SANITIZED_BYTES = 4 << 20
_HELPER = re.compile(r"memcpy|memset|copy|fill|arange", re.IGNORECASE)
"""GPU work of the helpers that an own kernel may ask torch for (see `kernels.judge.probes.runners`)."""
_DRAW = re.compile(r"distribution", re.IGNORECASE)
"""And of torch's generator, where the right answer is random."""


def plan(
    trial: JudgeTrial, runner: HostRunner | PlanRunner, case: Case, problem: Problem | None = None
) -> launch_plan.Plan | None:
    """The launch plan of one case, or None where only the callable can be timed (tier B)."""
    problem = problem or trial.problem
    if isinstance(runner, PlanRunner):
        values = problem.inputs(case, "normal", 1, trial.judge.device)
        return runner.plan_of(case, values)
    if trial.judge.device != "cuda" or trial.candidate.kind == "library":
        return None
    examiner = Examiner(problem, trial.candidate, trial.judge.device, runner)
    probe = Probe("accuracy", case, "normal", (mix(int.from_bytes(trial.secret, "little"), 3),))
    sample = Truths().inputs(problem, case, probe.seeds[0], trial.judge.device)
    examiner.call(probe, probe.seeds[0], sample)  # autotuning and compiling happen here
    Recording(runner, examiner).call(probe)
    told = runner.last.get("launched")
    trial.launched |= {str(name)[:200] for name in told} if isinstance(told, list) else set()
    refusal = class_refusal(trial.candidate, problem, runner.last)
    if refusal is not None:
        smoke = trial.smoke if problem is trial.problem else ()
        for passed in smoke:  # the case that passed: does it still?
            Recording(runner, examiner).call(passed)
        if smoke and class_refusal(trial.candidate, problem, runner.last) is not None:
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


def replay_some(trial: JudgeTrial, runner: HostRunner | PlanRunner) -> None:
    """Replay the launches of a few secret cases, one a dtype, in a process without candidate code: what a
    host's Python computed by other means than its launches is missing there."""
    own = isinstance(runner, HostRunner) and trial.candidate.kind != "library"
    if not own or trial.judge.device != "cuda" or trial.request.search:
        return
    rng = random.Random(trial.secret + b"replay")
    probes = [p for p in trial.probes() if p.stage == "sweep" and p.case.layout == "contiguous"]
    rng.shuffle(probes)
    by_dtype = {p.case.dtype: p.case for p in probes if all(p.case.sizes.values())}
    if trial.racing and set(by_dtype.values()) <= set(trial.timed):
        return  # before the race they are replayed with every distribution
    made = [(case, plan(trial, runner, case, trial.problem)) for case in by_dtype.values()]
    replay(trial, trial.problem, [(case, plan) for case, plan in made if plan is not None], whole=False)
    trial.stages.append("replay")


def replay(
    trial: JudgeTrial, problem: Problem, plans: Sequence[tuple[Case, launch_plan.Plan]], whole: bool
) -> None:
    """Examine launch plans like a candidate. `whole`: with every distribution of values, because what was
    examined in the host need not be what it launched for the recorder."""
    if not plans:
        return
    rng = random.Random(trial.secret + b"replays")
    with trial.judge.start("replay") as process:
        current: list[launch_plan.Plan] = []
        runner = PlanRunner(process, lambda case, values: current[0])
        examiner = Examiner(problem, trial.candidate, trial.judge.device, runner)
        for case, made in plans:
            current[:] = [made]
            for number, probe in enumerate(replayed_probes(problem, case, rng, whole)):
                try:
                    with trial.judge.quiet.shared():
                        examiner.probe(probe)
                except Refusal as refusal:
                    first = number == 0 and examiner.found.calls == 1
                    raise _replay_refusal(refusal, first) from refusal
            examiner.found.calls = 0
        trial.errors.update({k: max(v, trial.errors.get(k, 0.0)) for k, v in examiner.found.worst.items()})


def replayed_probes(problem: Problem, case: Case, rng: random.Random, whole: bool) -> list[Probe]:
    """What a plan is asked, on as many rows as a host is: all of a large output in float64 would fill a GPU."""

    def seeds(count: int) -> tuple[int, ...]:
        return tuple(mix(rng.getrandbits(64)) for _ in range(count))

    a, b = seeds(2)
    made = [Probe("integrity", case, "normal", (a, b, a, a + TWIN) if whole else (a,))]
    if whole:
        others = (name for name in problem.distributions if name != "normal")
        made += [Probe("values", case, name, seeds(inputs.calls_of(name))) for name in others]
        made.append(Probe("determinism", case, "normal", (b,) * 4, under_load=True))
    return [replace(probe, rows=problem.sampled_rows) for probe in made]


def _replay_refusal(refusal: Refusal, first: bool) -> Refusal:
    """first: of the first call, whose outputs the host made rightly: then something beside the launches did."""
    if first and refusal.reason in RESULTS | {Reason.state_kept}:
        text = f"its launches, replayed, do not make its outputs: {refusal.detail}"
        return Refusal(Reason.library_call, text, "replay")
    return Refusal(refusal.reason, f"the recorded launches, replayed: {refusal.detail}", "replay")


def exhibits(trial: JudgeTrial, runner: HostRunner | PlanRunner) -> list[Exhibit]:
    """Small cases for compute-sanitizer: one of each dtype, with sizes off the powers of two where allowed."""
    probes = inputs.plan(trial.problem, trial.candidate, trial.secret, trial.request.scope)
    made: dict[str, Exhibit] = {}
    for probe in probes:
        case = probe.case
        if probe.stage != "sweep" or case.layout != "contiguous" or case.dtype in made:
            continue
        if not 0 < trial.problem.compulsory_bytes(case) <= _SANITIZED_BYTES:
            continue
        found = plan(trial, runner, case)
        if found is None:
            raise Refusal(Reason.no_plan, "promotion needs a launch plan to run compute-sanitizer on", "sanitizer")
        values = trial.problem.inputs(case, "normal", probe.seeds[0], trial.judge.device)
        examiner = Examiner(trial.problem, trial.candidate, trial.judge.device, runner)
        outputs = () if trial.candidate.mutates else tuple(_output_sizes(examiner, case, values))
        made[case.dtype] = Exhibit(found, values, outputs, str(case))
    if not made:
        raise Refusal(Reason.empty_domain, "no small case of the domain to run compute-sanitizer on", "sanitizer")
    return list(made.values())


def hold_to_launches(trial: JudgeTrial, entrant: Hosted) -> None:
    """Tier B's kernels, as the profiler names them, are those that recorded calls launched, and copies."""
    strange = [name for name in entrant.kernels if name not in trial.launched and not _HELPER.search(name)]
    if trial.problem.random:
        strange = [name for name in strange if not _DRAW.search(name)]
    if strange and not trial.candidate.calls_libraries:
        text = f"the profiler sees {strange[0][:120]!r}, which is no launch of its own"
        raise Refusal(Reason.library_call, text, "timing")


class Recording:
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
    for shape, dtype in examiner.output_forms(case, values):
        count = 1
        for size in shape:
            count *= size
        yield count * dtype.itemsize
