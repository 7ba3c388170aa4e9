"""The judge on the CPU: the same path as on a GPU, processes, buffers and stages, but the judge's clock only."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterable
from dataclasses import replace

import pytest
import torch

from nightshift.kernels.candidate import Candidate, Domain
from nightshift.kernels.judge.host.process import Process, Role
from nightshift.kernels.judge.host.usage import state
from nightshift.kernels.judge.judge import Judge, Request
from nightshift.kernels.judge.probes.inputs import CPU, INTERPRETER
from nightshift.kernels.judge.probes.runners import HostRunner
from nightshift.kernels.judge.race.contest import Pace, Race
from nightshift.kernels.judge.race.contestants import Hosted
from nightshift.kernels.judge.race.track import Track, Truths
from nightshift.kernels.judge.verdict import Comparison, Interval, Reason, Refusal, Status
from nightshift.kernels.ops.problems import named
from nightshift.kernels.problem import Case, Problem
from tests.kernels.conftest import by_test

SOFTMAX = named("softmax")
TINY = replace(INTERPRETER, max_bytes=1 << 12, sweep_random=1, repeats=2)
KERNEL = """
import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x, out, n, x_row, x_column, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    v = tl.load(x + row * x_row + column * x_column, mask=column < n, other=-float("inf")).to(tl.float32)
    e = tl.exp(v - tl.max(v, 0))
    tl.store(out + row * n + column, (e / tl.sum(e, 0)).to(out.dtype.element_ty), mask=column < n)


def entry(x):
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        block = triton.next_power_of_2(x.shape[1])
        kernel[(x.shape[0],)](x, out, x.shape[1], x.stride(0), x.stride(1), BLOCK=block)
    return out
"""


def library(body: str, preamble: str = "import torch\n", kind: str = "library") -> Candidate:
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    source = f"{preamble}\ndef entry(x):\n{lines}\n"
    return Candidate(source, "entry", "python", kind, "bitwise", domain=Domain(("float32",)))  # type: ignore[arg-type]


@pytest.mark.parametrize(("kills", "reason"), [(1, Reason.passed), (2, Reason.host_died)])
def test_a_candidate_whose_process_somebody_kills_is_judged_once_more(
    cpu_judge: Judge, monkeypatch: pytest.MonkeyPatch, kills: int, reason: Reason
) -> None:
    """The kernel may be out of memory, or a person has ended the wrong process: that is not the candidate's death,
    unless it comes again."""
    start, killed = cpu_judge.start, list[int]()

    def doomed(role: Role, peers: bool = False) -> Process:
        process = start(role, peers)
        if len(killed) < kills:
            killed.append(process.pid)
            os.kill(process.pid, signal.SIGKILL)
        return process

    monkeypatch.setattr(cpu_judge, "start", doomed)
    candidate = library("return torch.softmax(x, -1)")
    verdict = cpu_judge.verdict(candidate, SOFTMAX, Request(TINY, None, static=False), b"one")
    assert verdict.reason is reason
    assert len(killed) == kills
    assert kills == 1 or "twice" in verdict.detail


@pytest.mark.parametrize("preamble", ["import torch\n", "import torch\n\nlen(3)\n"])
def test_what_a_candidate_raises_is_told_with_the_line_of_its_source(cpu_judge: Judge, preamble: str) -> None:
    """The innermost that is its own, where torch raised."""
    candidate = library("if x.numel():\n    x.view(-1, 0)\nreturn x", preamble)
    verdict = cpu_judge.verdict(candidate, SOFTMAX, Request(TINY, None), b"one")
    assert verdict.detail.endswith("(line 5)" if "len" not in preamble else "(line 3)"), verdict.detail


def test_an_own_kernel_passes_every_stage(interpreting_judge: Judge) -> None:
    candidate = Candidate(KERNEL, "entry", "triton", "own_kernel", "bitwise", domain=Domain(("float16",)))
    scope = replace(INTERPRETER, max_bytes=1 << 13, sweep_random=1)
    verdict = interpreting_judge.verdict(candidate, SOFTMAX, Request(scope, None), b"one")
    assert verdict.status is Status.correct
    assert verdict.stages[:3] == ("static", "compile", "smoke")
    assert verdict.stages[-1] == "integrity"
    assert verdict.errors["rmse_ratio"] <= 1


def test_a_kernel_that_forgets_the_mask_is_refused(interpreting_judge: Judge) -> None:
    source = KERNEL.replace('other=-float("inf")', "other=0.0")
    candidate = Candidate(source, "entry", "triton", "own_kernel", "bitwise", domain=Domain(("float32",)))
    verdict = interpreting_judge.verdict(candidate, SOFTMAX, Request(TINY, None), b"two")
    assert verdict.status is Status.wrong


@pytest.mark.parametrize(
    ("candidate", "reason"),
    [
        (library("return torch.softmax(x, -1)", kind="own_kernel"), Reason.library_call),
        (library("y = torch.softmax(x, -1)\nx.zero_()\nreturn y"), Reason.input_mutated),
        (library("y = torch.softmax(x, -1)\ny[-1:] = 0\nreturn y"), Reason.rmse),
        (library("return torch.softmax(x, -1).double()"), Reason.wrong_dtype),
        (library("return torch.softmax(x, -1).T"), Reason.wrong_shape),
        (library("return 'softmax'"), Reason.wrong_type),
        (library("return torch.softmax(x, -1) + 1e-3 * torch.rand_like(x)"), Reason.rmse),
        (library("raise ValueError('no')"), Reason.raised),
        (library("return C.setdefault(x.data_ptr(), x.softmax(-1))", "import torch\nC = {}\n"), Reason.state_kept),
        (library("return torch.empty_like(x).fill_(float('nan'))"), Reason.nan_placement),
        (library("return x", "import torch\nraise RuntimeError('at import')\n"), Reason.compile_failed),
        (replace(library("return x"), entry="missing"), Reason.entry_missing),
        (replace(library("return x"), source="def entry(x:\n"), Reason.syntax),
        (replace(library("return x"), domain=Domain(("int8",))), Reason.declaration),
    ],
)  # fmt: skip
def test_a_faulty_candidate_is_refused_for_its_fault_without_the_static_read(
    cpu_judge: Judge, candidate: Candidate, reason: Reason
) -> None:
    verdict = cpu_judge.verdict(candidate, SOFTMAX, Request(TINY, None, static=False), b"three")
    assert verdict.reason is reason, verdict.detail
    assert verdict.comparisons == ()


def test_the_same_secret_asks_the_same_and_another_secret_asks_otherwise(cpu_judge: Judge) -> None:
    wrong = library("return torch.softmax(x, -1) * 1.5")
    details = [
        cpu_judge.verdict(wrong, SOFTMAX, Request(TINY, None, static=False), secret).detail
        for secret in (b"a", b"a", b"b")
    ]
    assert details[0] == details[1] != details[2]


def test_a_library_composition_is_correct_and_never_raced(cpu_judge: Judge) -> None:
    request = Request(TINY, Pace(), cases=(Case.of("float32", m=8, n=8),))
    verdict = cpu_judge.verdict(library("return torch.softmax(x, -1)"), SOFTMAX, request, b"four")
    assert (verdict.status, verdict.comparisons) == (Status.correct, ())
    assert "never certified" in verdict.detail


def test_a_callable_is_raced_by_the_judges_clock_and_a_slow_one_loses(cpu_judge: Judge) -> None:
    slow = library("y = torch.softmax(x, -1)\nfor _ in range(20):\n    y = torch.softmax(x, -1)\nreturn y")
    case = Case.of("float32", m=64, n=512)
    problem = replace(SOFTMAX, cases=(case,))
    request = Request(TINY, Pace(min_rounds=9, max_rounds=9, round_s=0.01, max_slots=2))
    with pytest.MonkeyPatch.context() as patch:  # the race, not the class, is the claim here
        patch.setattr("nightshift.kernels.judge.trial.class_refusal", lambda *_: None)
        verdict = cpu_judge.verdict(
            replace(slow, kind="own_kernel"), problem, replace(request, static=False), b"five"
        )
    assert verdict.status is Status.slower, verdict.detail
    assert verdict.comparisons[0].tier == "B"
    assert verdict.comparisons[0].speedup.point < 0.5


def test_a_candidate_that_is_honest_for_a_few_hundred_calls_is_found(cpu_judge: Judge) -> None:
    body = "n.append(1)\nk = (x.shape, x.dtype)\nif len(n) < 200 or k not in last:\n"
    body += "    last[k] = x.softmax(-1)\nreturn last[k].clone()"
    candidate = library(body, "n, last = [], {}\n")
    verdict = cpu_judge.verdict(candidate, SOFTMAX, Request(TINY, None, static=False), b"six")
    assert verdict.reason is Reason.state_kept
    assert "calls on" in verdict.detail


def test_numbers_among_the_inputs_stay_the_same_over_a_race() -> None:
    problem = named("adamw")
    case = Case.of("float32", n=64)
    first, second = (Truths().inputs(problem, case, seed, "cpu") for seed in (11, 12))
    numbers = [[x for x in made if not isinstance(x, torch.Tensor)] for made in (first, second)]
    assert numbers[0] == numbers[1]
    assert numbers[0]
    assert not torch.equal(first[0], second[0])


def test_a_machine_fault_is_nobodys_verdict(cpu_judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_judge, "_machine_fault", lambda: "Xid 79: GPU has fallen off the bus")
    verdict = cpu_judge.verdict(library("import os\nos._exit(1)"), SOFTMAX, Request(TINY, None, static=False))
    assert verdict.status is Status.machine_fault
    assert not verdict.refused
    assert "Xid 79" in verdict.detail


def test_a_cuda_candidate_without_a_gpu_is_no_verdict_about_it(cpu_judge: Judge) -> None:
    from nightshift.kernels.candidate import Launch

    launch = Launch("k", ("1", "1", "1"), ("1", "1", "1"), ("in0", "out0"))
    candidate = Candidate(
        'extern "C" __global__ void k() {}', "k", "cuda", "own_kernel", "bitwise", launches=(launch,)
    )
    verdict = cpu_judge.verdict(candidate, SOFTMAX, Request(CPU, None))
    assert verdict.status is Status.machine_fault
    assert "needs a GPU" in verdict.detail


def test_a_callable_that_skips_the_runs_nobody_looks_at_is_found(cpu_judge: Judge) -> None:
    """Tier B looks into the outputs of a run that nobody can foresee, not of the last one only."""
    body = """
if x.shape != (64, 512):
    return x.softmax(-1)
lately.append(x.data_ptr())
del lately[:-18]
if len(set(lately)) < 3:
    turn[0] = 0
    return x.softmax(-1)
turn[0] = (turn[0] + 1) % 18
if turn[0] < 12 and kept:
    return kept[-1]
kept.append(x.softmax(-1))
return kept[-1]""".strip()
    candidate = library(body, "lately, turn, kept = [], [0], []\n")
    case = Case.of("float32", m=64, n=512)
    problem = replace(SOFTMAX, name="softmax runs", cases=(case,))
    pace = Pace(min_rounds=9, max_rounds=9, round_s=0.01, slot_bytes=4 * problem.compulsory_bytes(case))
    with pytest.MonkeyPatch.context() as patch:  # the race, not the class, is the claim here
        patch.setattr("nightshift.kernels.judge.trial.class_refusal", lambda *_: None)
        verdict = cpu_judge.verdict(
            replace(candidate, kind="own_kernel"), problem, Request(TINY, pace, static=False), b"runs"
        )
    assert verdict.reason is Reason.timed_output_wrong, verdict.detail


@pytest.mark.parametrize("odd", [1, 2], ids=["once", "again"])
def test_who_is_accused_of_slowing_a_baseline_is_raced_again_in_a_fresh_process(cpu_judge: Judge, odd: int) -> None:
    """Between the two races the baselines are measured alone; only a second disturbance speaks against it."""
    case = Case.of("float32", m=64, n=512)
    problem = replace(SOFTMAX, name=f"softmax odd {odd}", cases=(case,))
    raced: list[int] = []
    alone: list[bool] = []
    again = Judge.solo_again

    def disturbed(self: Race) -> list[Comparison]:
        raced.append(self.track.process.pid)
        if len(raced) <= odd:
            raise Refusal(Reason.baseline_disturbed, "eager takes 9 µs beside the candidate, 5 alone", "timing")
        return [Comparison(self.label, "eager", "B", 1e-4, 2e-4, Interval(1.9, 2.0, 2.1), 9)]

    def measured(self: Judge, problem: Problem, case: Case) -> None:
        alone.append(state(raced[0]) in ("Z", ""))
        again(self, problem, case)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nightshift.kernels.judge.trial.class_refusal", lambda *_: None)
        patch.setattr(Race, "run", disturbed)
        patch.setattr(Judge, "solo_again", measured)
        candidate = replace(library("return torch.softmax(x, -1)"), kind="own_kernel")
        pace = Pace(min_rounds=9, max_rounds=9, round_s=0.01, max_slots=2)
        verdict = cpu_judge.verdict(candidate, problem, Request(TINY, pace, static=False), b"odd")
    assert (len(set(raced)), alone) == (2, [True])
    assert (verdict.reason is Reason.baseline_disturbed) is (odd == 2)
    assert (verdict.status is Status.faster) is (odd == 1)


def test_a_callable_is_stopped_while_the_values_of_its_timed_calls_are_made(cpu_judge: Judge) -> None:
    """Else a thread of its own could compute the answers before the clock runs."""
    case = Case.of("float32", m=8, n=64)
    states: list[str] = []
    blend = Track.blend

    def watched(self: Track, numbers: Iterable[int], rng: random.Random) -> None:
        states.append(state(self.process.pid))
        blend(self, numbers, rng)

    with cpu_judge.start("candidate") as process, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Track, "blend", watched)
        HostRunner.load(process, library("return torch.softmax(x, -1)"), SOFTMAX)
        track = Track(process, SOFTMAX, case, (), 4, "cpu", Truths())
        entrant = Hosted(track)
        for slot in range(4):
            track.refresh(slot, slot + 1)
        assert entrant.seconds([0, 1]) > 0
        assert state(process.pid) != "T"
    assert states == ["T"] * 6


def test_a_slot_is_held_against_the_values_that_its_call_was_given(cpu_judge: Judge) -> None:
    """Its blend holds another slot's values. Once those are replaced, the slot has its own again; an innocent
    candidate had been refused, held against a blend with values that came later."""
    case = Case.of("float32", m=8, n=64)
    with cpu_judge.start("candidate") as process:
        HostRunner.load(process, library("return torch.softmax(x, -1)"), SOFTMAX)
        track = Track(process, SOFTMAX, case, (), 2, "cpu", Truths())
        entrant = Hosted(track)
        for slot in range(2):
            track.refresh(slot, slot + 1)
        track.blend(range(2), random.Random(1))
        track.refresh(0, 7)
        entrant.run([1, 0])
        for slot in range(2):
            track.check(slot)


def test_a_fault_in_the_judges_own_machinery_is_nobodys_verdict_and_the_judge_goes_on(cpu_judge: Judge) -> None:
    broken = replace(SOFTMAX, compulsory_bytes=lambda case: 1 // 0)
    verdict = cpu_judge.verdict(library("return torch.softmax(x, -1)"), broken, Request(TINY, None), b"broken")
    assert (verdict.status, verdict.reason) == (Status.machine_fault, Reason.judge_broken)
    assert "ZeroDivisionError" in verdict.detail
    verdict = cpu_judge.verdict(library("return torch.softmax(x, -1)"), SOFTMAX, Request(TINY, None), b"broken")
    assert verdict.status is Status.correct


def test_a_verdict_names_the_sizes_dtypes_and_layouts_that_were_probed(cpu_judge: Judge) -> None:
    """A declared domain without bounds is no proof beyond them."""
    verdict = cpu_judge.verdict(library("return torch.softmax(x, -1)"), SOFTMAX, Request(TINY, None), b"domain")
    probed = verdict.domain["probed"]
    assert probed["dtypes"] == ["float32"]
    assert set(probed["sizes"]) == {"m", "n"}
    assert 0 <= probed["sizes"]["n"][0] < probed["sizes"]["n"][1] <= 16384


def test_a_verdict_without_a_secret_draws_one_that_follows_from_the_tests_name(cpu_judge: Judge) -> None:
    """Here; the product draws from the system. A random candidate is then refused in the same words each time."""
    noisy = library("return torch.softmax(x, -1) + 1e-3 * torch.rand_like(x)")
    first, again = (cpu_judge.verdict(noisy, SOFTMAX, Request(TINY, None, static=False)) for _ in range(2))
    assert first.secret == again.secret == by_test(16).hex()
    assert first.detail == again.detail
    assert first.reason is Reason.rmse
