"""A host is refused for the GPU memory that was its own, never for what another program took."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nightshift.kernels.judge.cuda import CudaError
from nightshift.kernels.judge.host.process import Limits, Process
from nightshift.kernels.judge.host.vram import RESERVE_BYTES, Vram, VramBudget
from nightshift.kernels.judge.judge import Judge, Request
from nightshift.kernels.judge.race.track import Pool
from nightshift.kernels.judge.trial import JudgeTrial
from nightshift.kernels.judge.verdict import JudgeBroken, Reason, Refusal, Status, Verdict
from nightshift.kernels.loop.executor import Job, LocalExecutor
from nightshift.kernels.ops.problems import named
from nightshift.kernels.problem import Case
from tests.kernels.conftest import LIMITS
from tests.kernels.judge.test_judge import TINY, library

GIB = 1 << 30
TOTAL, LIMIT = 139 * GIB, 64 * GIB


@dataclass
class Host:
    """A host that holds some memory until it is ended."""

    gpu: Gpu
    holds: int
    stopped: int = 0
    lent: int = 0

    def pids(self) -> list[int]:
        return [id(self)]

    def lent_bytes(self) -> int:
        return self.lent

    def pause(self) -> None:
        self.stopped += 1

    def resume(self) -> None:
        self.stopped -= 1

    def end(self, timeout_s: float) -> bool:
        assert self.gpu.tells or all(host.stopped for host in self.gpu.hosts)
        self.holds = 0
        return True


@dataclass
class Gpu:
    """Who holds how much; time passes by sleeping, and `meanwhile` happens then."""

    judge: int = 0
    others: int = 0
    tells: bool = False
    miscounts: int = 0
    hosts: list[Host] = field(default_factory=list)
    meanwhile: Callable[[], None] = lambda: None
    now: float = 0.0

    def free(self) -> int:
        return TOTAL - self.judge - self.others - sum(host.holds for host in self.hosts)

    def used(self, pids: Sequence[int]) -> int:
        if not self.tells:
            return 0
        return sum(host.holds + host.lent + self.miscounts for host in self.hosts if id(host) in pids)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.meanwhile()

    def watched(self, *holds: int) -> Vram:
        vram = Vram(self.free, self.used, lambda: self.judge, self.sleep, lambda: self.now)
        for amount in holds:
            self.hosts.append(Host(self, amount))
            vram.enter(self.hosts[-1])
        return vram


@pytest.mark.parametrize("tells", [False, True], ids=["silent driver", "driver tells"])
@given(data=st.data())
def test_a_host_is_refused_only_if_with_what_was_free_it_had_its_limit(tells: bool, data: st.DataObject) -> None:
    """Whatever the judge, its other hosts and other programs hold beside it."""
    parts = sorted(data.draw(st.lists(st.integers(0, TOTAL - GIB), min_size=3, max_size=3)))
    cuts = [0, *parts, TOTAL - GIB]
    judge, others, sibling, mine = (b - a for a, b in itertools.pairwise(cuts))
    gpu = Gpu(judge, others, tells)
    vram = gpu.watched(mine, sibling)
    found = vram.settle(gpu.hosts[0], LIMIT)
    assert isinstance(found, Refusal if mine + GIB >= LIMIT else JudgeBroken)
    assert found.reason is (Reason.vram_limit if mine + GIB >= LIMIT else Reason.vram_taken)
    assert [host.stopped for host in gpu.hosts[1:]] == [0]
    assert gpu.hosts[0].holds == 0


def test_what_the_judge_lends_is_not_its_borrowers_though_the_driver_counts_it_there() -> None:
    gpu = Gpu(judge=40 * GIB, tells=True)
    vram = gpu.watched(30 * GIB)
    gpu.hosts[0].lent = 40 * GIB
    assert vram.used(gpu.hosts[0]) == 30 * GIB


@pytest.mark.parametrize(
    ("holds", "miscounts", "reason"),
    [(70 * GIB, 0, Reason.vram_limit), (8 * GIB, 60 * GIB, Reason.vram_taken)],
    ids=["it had that much", "the driver counted others' for it"],
)
def test_who_is_beyond_its_limit_by_the_drivers_word_is_refused_only_if_that_much_comes_back(
    holds: int, miscounts: int, reason: Reason
) -> None:
    gpu = Gpu(tells=True, miscounts=miscounts)
    vram = gpu.watched(holds, GIB)
    assert vram.used(gpu.hosts[0]) > LIMIT
    found = vram.beyond(gpu.hosts[0], LIMIT)
    assert found.reason is reason
    assert f"{holds} came back" in str(found)
    assert [host.stopped for host in gpu.hosts[1:]] == [0]


def test_a_shortage_that_is_over_ends_nobody() -> None:
    gpu = Gpu(others=10 * GIB)
    vram = gpu.watched(60 * GIB)
    assert vram.settle(gpu.hosts[0], LIMIT) is None
    assert gpu.hosts[0].holds == 60 * GIB


def test_what_another_program_gives_back_at_that_moment_is_not_the_hosts() -> None:
    gpu = Gpu(others=TOTAL - 2 * GIB)
    vram = gpu.watched(GIB)
    gpu.meanwhile = lambda: setattr(gpu, "others", max(0, gpu.others - 80 * GIB))
    found = vram.settle(gpu.hosts[0], LIMIT)
    assert isinstance(found, JudgeBroken)
    assert "came back meanwhile" in str(found)


def test_what_the_judge_takes_and_gives_back_meanwhile_does_not_count() -> None:
    gpu = Gpu(judge=50 * GIB, others=87 * GIB)
    vram = gpu.watched(GIB)
    gpu.meanwhile = lambda: setattr(gpu, "judge", 0)
    assert isinstance(vram.settle(gpu.hosts[0], LIMIT), JudgeBroken)


REFUSED = Refusal(Reason.out_of_memory, "torch.OutOfMemoryError: no memory", "smoke")


def test_a_candidate_that_met_no_memory_where_there_was_its_limit_is_refused_by_its_word() -> None:
    gpu = Gpu(others=60 * GIB)
    vram = gpu.watched(GIB)
    assert vram.found_none(gpu.hosts[0], LIMIT, REFUSED, 0.0) is REFUSED


def test_a_candidate_that_met_no_memory_because_others_had_it_is_nobodys_verdict() -> None:
    gpu = Gpu(others=130 * GIB)
    vram = gpu.watched(GIB)
    found = vram.found_none(gpu.hosts[0], LIMIT, REFUSED, 0.0)
    assert isinstance(found, JudgeBroken)
    assert found.reason is Reason.vram_taken


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside another host"])
def test_who_eats_and_gives_back_before_it_complains_is_refused_once_it_is_alone(beside: bool) -> None:
    """Beside another host of ours that one may have been the eater."""
    gpu = Gpu()
    vram = gpu.watched(137 * GIB, *([GIB] if beside else []))
    vram.short()
    gpu.hosts[0].holds = GIB // 2
    found = vram.found_none(gpu.hosts[0], LIMIT, REFUSED, 0.0)
    assert isinstance(found, JudgeBroken if beside else Refusal)


@pytest.mark.parametrize(
    ("others", "status"), [(0, Status.oom), (100 * GIB, Status.machine_fault)], ids=["it", "others"]
)
def test_a_real_host_in_a_real_verdict_is_ended_when_memory_is_short(
    cpu_judge: object, monkeypatch: pytest.MonkeyPatch, others: int, status: Status
) -> None:
    """The GPU's figures are made up; the host, its end and the verdict are real."""
    from nightshift.kernels.judge.judge import Judge

    assert isinstance(cpu_judge, Judge)
    hosts: list[Process] = []

    def free() -> int:
        alive = any(host.pid and (host.pids() and _lives(host.pid)) for host in hosts)
        return TOTAL - others - (TOTAL - others - GIB if alive else 0)

    vram = Vram(free, lambda pids: 0, lambda: 0)
    start = Judge.start

    def started(self: Judge, *arguments: object, **named_: object) -> Process:
        process = start(self, *arguments, **named_)  # type: ignore[arg-type]
        hosts.append(process)
        process.watch_vram(vram)
        return process

    monkeypatch.setattr(Judge, "start", started)
    verdict = cpu_judge.verdict(
        library("import time\ntime.sleep(30)\nreturn x"), named("softmax"), Request(TINY, None, static=False)
    )
    assert verdict.status is status, verdict.detail


def _lives(pid: int) -> bool:
    from nightshift.kernels.judge.host.usage import state

    return state(pid) not in ("Z", "")


def test_who_met_too_little_memory_is_judged_alone_the_next_time(cpu_judge: object) -> None:
    asked: list[bool] = []

    class Crowded:
        def verdict(self, candidate: object, problem: object, request: object, alone: bool) -> Verdict:
            asked.append(alone)
            return Verdict("0", "softmax", Status.machine_fault, Reason.vram_taken, "", "machine")

    job = Job("0", library("return x"), named("softmax"), Request(TINY, None))
    ((_, verdict),) = LocalExecutor([Crowded()], 1).run([job])  # type: ignore[list-item]
    assert asked == [False, True, True]
    assert verdict.status is Status.machine_fault


assert RESERVE_BYTES > GIB
assert LIMITS.vram_bytes == Limits().vram_bytes == LIMIT


def test_verdicts_share_the_judges_part_of_the_memory() -> None:
    """Two fit, the third waits for one to end; what is larger than all of it runs alone."""
    room, order = VramBudget(10), []
    inside, go = threading.Barrier(3), threading.Event()

    def small(name: str) -> None:
        with room.of(5):
            order.append(name)
            inside.wait(10)
            go.wait(10)

    def large() -> None:
        with room.of(50):
            order.append("large")

    threads = [threading.Thread(target=small, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    inside.wait(10)
    last = threading.Thread(target=large)
    last.start()
    assert "large" not in order
    go.set()
    for thread in (*threads, last):
        thread.join(10)
    assert order[-1] == "large"


def test_a_search_keeps_the_oracles_of_one_case_within_its_bytes() -> None:
    """The latest stay; another case drops them all; what was dropped comes out the same again."""
    problem, case = named("softmax"), Case.of("float32", m=4, n=8)
    pool = Pool([1, 2], most_bytes=300)
    first = pool.inputs(problem, case, 1, "cpu")
    assert pool.inputs(problem, case, 1, "cpu") is first
    for seed in (2, 3):
        pool.inputs(problem, case, seed, "cpu")
    again = pool.inputs(problem, case, 1, "cpu")
    assert again is not first
    assert torch.equal(again[0], first[0])
    kept = pool.expected(problem, case, 1, again)
    assert pool.expected(problem, case, 1, again) is kept
    pool.inputs(problem, Case.of("float32", m=4, n=9), 1, "cpu")
    assert pool.expected(problem, case, 1, again) is not kept


@pytest.mark.parametrize(
    ("code", "name", "reason"),
    [(2, "CUDA_ERROR_OUT_OF_MEMORY", Reason.vram_taken), (700, "CUDA_ERROR_ILLEGAL_ADDRESS", Reason.device_lost)],
)
def test_a_driver_that_has_no_memory_for_the_judge_is_no_lost_device(
    cpu_judge: Judge, monkeypatch: pytest.MonkeyPatch, code: int, name: str, reason: Reason
) -> None:
    def run(self: JudgeTrial) -> None:
        raise CudaError("cuMemAlloc_v2", code, name)

    monkeypatch.setattr(JudgeTrial, "run", run)
    found = cpu_judge.verdict(library("return torch.softmax(x, -1)"), named("softmax"), Request(TINY))
    assert (found.status, found.reason) == (Status.machine_fault, reason)
    assert name in found.detail
