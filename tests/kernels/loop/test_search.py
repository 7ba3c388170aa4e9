"""The search: authors proposed to, the judge asked, the better kept; on a table, and on Triton's interpreter."""

from __future__ import annotations

import contextlib
import math
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.collectors.base import Temporary
from nightshift.kernels.candidate import Candidate
from nightshift.kernels.generate.base import GeneratorError, Outcome, Proposal, Spent, Task
from nightshift.kernels.generate.template import Template, candidate
from nightshift.kernels.judge.judge import Judge, Request
from nightshift.kernels.judge.probes.inputs import INTERPRETER
from nightshift.kernels.judge.race.contest import Pace
from nightshift.kernels.judge.verdict import STATUS_OF, Comparison, Interval, Reason, Verdict
from nightshift.kernels.loop.executor import Job, LocalExecutor
from nightshift.kernels.loop.ledger import Ledger, LedgerError, Provenance, read_run
from nightshift.kernels.loop.search import Ladder, Progress, Search, SearchBudget, convergence, replay
from nightshift.kernels.ops.problems import named
from nightshift.kernels.ops.products.hopper_family import MatmulHopper
from nightshift.kernels.ops.products.triton_family import Matmul
from nightshift.kernels.ops.softmax.triton_family import Softmax
from nightshift.kernels.problem import Case

TASK = Task(named("softmax"), Case.of("float16", m=4096, n=4096), floor_s=1e-6)
NOWHERE = Provenance("c0ffee", "none", "none")


class Told:
    """An executor whose verdicts are a function of the candidate's text, or one reason for all."""

    def __init__(self, dies_after: int = 10**9, reason: Reason | None = None) -> None:
        self.asked: list[str] = []
        self._dies_after = dies_after
        self._reason = reason

    def run(self, jobs: Iterable[Job]) -> Generator[tuple[Job, Verdict]]:
        for job in jobs:
            if len(self.asked) >= self._dies_after:
                raise KeyboardInterrupt
            self.asked.append(job.candidate.sha256)
            yield job, self.verdict(job)

    def verdict(self, job: Job) -> Verdict:
        number = int(job.candidate.source.split("=")[1])
        reason = self._reason or (Reason.rmse if number % 7 == 6 else Reason.below_baseline)
        seconds = 1e-6 * (20 + abs(number - 30))
        raced = Comparison(str(TASK.case), "eager", "A", seconds, 3e-5, Interval(0.9, 3e-5 / seconds, 1.2), 9)
        timed = reason is Reason.below_baseline
        return Verdict(
            job.candidate.sha256, "softmax", STATUS_OF[reason], reason, "", "timing",
            comparisons=(raced,) if timed else (), secret="00" * 16, took_s=0.1,
        )  # fmt: skip


class Counting:
    """An author that counts upwards, from what the history says it wrote."""

    name = "counting"

    def __init__(self, last: int = 1000) -> None:
        self._last = last

    def propose(self, task: Task, history: Sequence[Outcome], count: int) -> Sequence[Proposal]:
        first = len({o.proposal.candidate.sha256 for o in history if o.proposal.generator == self.name})
        numbers = range(first, min(self._last, first + count))
        return [
            Proposal(
                Candidate(f"x={n}", "entry", "python", "own_kernel", "bitwise"), self.name, {"n": n}, f"try {n}"
            )
            for n in numbers
        ]

    def spent(self) -> Spent:
        return Spent()


class Broken:
    """An author that cannot be reached."""

    name = "broken"

    def __init__(self, error: Exception) -> None:
        self._error = error

    def propose(self, task: Task, history: Sequence[Outcome], count: int) -> Sequence[Proposal]:
        raise self._error

    def spent(self) -> Spent:
        return Spent()


def test_the_best_is_kept_and_every_trial_is_written_with_its_decision(tmp_path: Path) -> None:
    """Discards and reverts are lines like keeps, later rungs name the trial they repeat, and the best wins."""
    told: list[Progress] = []
    with Ledger(tmp_path) as ledger:
        search = Search(TASK, [Counting()], Told(), ledger, NOWHERE, SearchBudget(trials=48), tell=told.append)
        result = search.run()
    assert result.best is not None
    assert result.best.proposal.config == {"n": 30}
    assert result.trials == 48
    _, lines = read_run(tmp_path)
    assert {line.decision for line in lines} == {"keep", "revert", "discard"}
    assert sum(line.of == 0 for line in lines) == 48
    assert len(told) == sum(not line.full for line in lines)
    assert all(line.commit == "c0ffee" and line.hypothesis.startswith("try") for line in lines)
    assert all(line.rung == 1 for line in lines if line.decision == "keep")
    curve = [s for _, s in convergence(lines) if math.isfinite(s)]
    assert curve == sorted(curve, reverse=True)
    assert curve[-1] == result.best.seconds


@pytest.mark.parametrize("dies_after", [0, 1, 7, 8, 9, 10, 25, 40])
def test_a_search_killed_at_any_trial_goes_on_to_the_same_end(tmp_path: Path, dies_after: int) -> None:
    """The same candidates are judged and the same one is kept as without the interruption."""
    with Ledger(tmp_path / "whole") as ledger:
        whole = Search(TASK, [Counting()], Told(), ledger, NOWHERE, SearchBudget(trials=40)).run(certify=False)
    with Ledger(tmp_path / "cut") as ledger, contextlib.suppress(KeyboardInterrupt):
        Search(TASK, [Counting()], Told(dies_after), ledger, NOWHERE, SearchBudget(trials=40)).run(certify=False)
    with Ledger(tmp_path / "cut") as ledger:
        again = Search(TASK, [Counting()], Told(), ledger, NOWHERE, SearchBudget(trials=40)).run(certify=False)
    assert whole.best is not None
    assert again.best is not None
    assert again.best.proposal.candidate == whole.best.proposal.candidate
    assert again.trials == whole.trials


@settings(derandomize=True, max_examples=10, deadline=None)
@given(
    deaths=st.lists(st.integers(0, 12), min_size=1, max_size=4),
    batch=st.integers(1, 9),
    halving=st.integers(1, 5),
)
def test_a_search_killed_again_and_again_loses_nothing(deaths: list[int], batch: int, halving: int) -> None:
    """Wherever it dies: no candidate is judged twice on a rung, none is skipped, and the same one is kept."""
    budget = SearchBudget(trials=24, batch=batch, halving=halving)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Ledger(folder / "whole") as ledger:
            whole = Search(TASK, [Counting()], Told(), ledger, NOWHERE, budget).run(certify=False)
        for dies_after in (*deaths, 10**9):
            with Ledger(folder / "cut") as ledger, contextlib.suppress(KeyboardInterrupt):
                Search(TASK, [Counting()], Told(dies_after), ledger, NOWHERE, budget).run(certify=False)
        _, lines = read_run(folder / "cut")
        with Ledger(folder / "cut") as ledger:
            again = Search(TASK, [Counting()], Told(), ledger, NOWHERE, budget)
    firsts = [line.config["n"] for line in lines if line.of == 0]
    assert firsts == list(range(24))
    assert len({(line.candidate_sha256, line.rung) for line in lines}) == len(lines)
    assert again.best is not None
    assert whole.best is not None
    assert again.best.seconds == whole.best.seconds


class Slow(Told):
    """Each verdict takes three seconds of a clock that nobody waits for."""

    now_s = 0.0
    closed = 0

    def run(self, jobs: Iterable[Job]) -> Generator[tuple[Job, Verdict]]:
        try:
            for job in jobs:
                self.now_s += 3.0
                yield from super().run([job])
        finally:
            self.closed += 1


@pytest.mark.parametrize(("batch", "rungs", "closed"), [(8, [0] * 7, 2), (2, [0, 0, 1, 0], 4)])
def test_the_time_is_over_in_the_middle_of_a_batch(
    tmp_path: Path, batch: int, rungs: list[int], closed: int
) -> None:
    """Of three-second verdicts a first batch of eight has twenty seconds, since the first brings the judges' start
    with it; a later batch ends after ten. The best is certified once, and what was not judged is judged when the
    search is taken up."""
    slow = Slow()
    budget = SearchBudget(trials=24, wall_s=10.0, batch=batch)
    with Ledger(tmp_path) as ledger:
        search = Search(TASK, [Counting()], slow, ledger, NOWHERE, budget, clock=lambda: slow.now_s)
        result = search.run()
    assert "10 s are over" in result.stopped
    assert result.verdict is not None
    _, lines = read_run(tmp_path)
    assert [line.rung for line in lines if not line.full] == rungs
    assert [line.full for line in lines].count(True) == 1
    assert slow.closed == closed
    with Ledger(tmp_path) as ledger:
        again = Search(TASK, [Counting()], Told(), ledger, NOWHERE, SearchBudget(trials=24)).run(certify=False)
    assert again.trials == 24
    assert sorted(line.config["n"] for line in read_run(tmp_path)[1] if line.of == 0 and not line.full) == [
        *range(24)
    ]


def test_an_executor_that_is_closed_begins_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a batch on one thread, what had not begun when the search had enough is never judged."""
    asked: list[str] = []
    released = threading.Event()
    shutdown = ThreadPoolExecutor.shutdown

    def told_of(pool: ThreadPoolExecutor, wait: bool = True, *, cancel_futures: bool = False) -> None:
        shutdown(pool, wait=wait, cancel_futures=cancel_futures)
        released.set()

    monkeypatch.setattr(ThreadPoolExecutor, "shutdown", told_of)

    class Stub:
        def verdict(self, made: Candidate, problem: object, request: object, alone: bool = False) -> Verdict:
            asked.append(made.source)
            if len(asked) > 1:
                assert released.wait(60)
            return Told().verdict(Job("", made, TASK.problem, Request(INTERPRETER, None)))

    jobs = [Job(str(n), p.candidate, TASK.problem, Request(INTERPRETER, None))
            for n, p in enumerate(Counting().propose(TASK, (), 6))]  # fmt: skip
    running = LocalExecutor([Stub()], 1).run(jobs)  # type: ignore[list-item]
    next(running)
    running.close()
    assert released.is_set()
    assert len(asked) <= 2


@pytest.mark.parametrize(
    ("budget", "why"),
    [
        (SearchBudget(trials=10), "10 trials"),
        (SearchBudget(target_s=40e-6), "target"),
        (SearchBudget(roof_share=1 / 45), "of the roofline"),
        (SearchBudget(patience=20, trials=500), "no better one"),
        (SearchBudget(wall_s=0.0), "are over"),
    ],
)
def test_a_search_says_why_it_stopped(tmp_path: Path, budget: SearchBudget, why: str) -> None:
    """Each limit ends it, in words."""
    with Ledger(tmp_path) as ledger:
        assert why in Search(TASK, [Counting()], Told(), ledger, NOWHERE, budget).run(certify=False).stopped


@pytest.mark.parametrize("error", [Temporary("busy"), GeneratorError("no such family")])
def test_an_author_that_fails_leaves_the_others_their_turn(tmp_path: Path, error: Exception) -> None:
    """One author's error ends only its own part."""
    with Ledger(tmp_path) as ledger:
        authors = [Broken(error), Counting(12)]
        result = Search(TASK, authors, Told(), ledger, NOWHERE, wait=lambda seconds: None).run(certify=False)
    assert result.trials == 12
    assert str(error) in result.stopped


def test_an_author_that_is_busy_for_a_while_is_asked_again(tmp_path: Path) -> None:
    """A rate limit is no end of a search: it waits, longer each time, and goes on where the author does."""
    waited: list[float] = []

    class Limited(Counting):
        def propose(self, task: Task, history: Sequence[Outcome], count: int) -> Sequence[Proposal]:
            if len(waited) < 2 or (len(history) >= 4 and len(waited) < 3):
                raise Temporary("429")
            return super().propose(task, history, count)

    with Ledger(tmp_path) as ledger:
        search = Search(TASK, [Limited(12)], Told(), ledger, NOWHERE, SearchBudget(batch=4), wait=waited.append)
        result = search.run(certify=False)
    assert result.trials == 12
    assert waited == [15.0, 30.0, 15.0]
    assert "429" not in result.stopped


def test_a_machine_fault_is_nobodys_failure(tmp_path: Path) -> None:
    """A crash of the machine is written as such, and the candidate is not called refused."""
    with Ledger(tmp_path) as ledger:
        Search(TASK, [Counting(3)], Told(reason=Reason.device_lost), ledger, NOWHERE).run()
    assert {line.decision for line in read_run(tmp_path)[1]} == {"crash"}


def test_a_machine_fault_that_repeats_stops_the_search(tmp_path: Path) -> None:
    """Three in a row of one kind end it, with the machine's own words; called again, it tries three more."""
    for last in (3, 6):
        with Ledger(tmp_path) as ledger:
            told = Told(reason=Reason.vram_taken)
            result = Search(TASK, [Counting()], told, ledger, NOWHERE, SearchBudget(trials=48)).run()
            assert len(ledger.lines) == last
        assert result.stopped.startswith("stopped: 3 trials in a row met the machine's fault vram_taken")


def test_what_no_kernel_of_a_family_can_compute_costs_no_trial(tmp_path: Path) -> None:
    """A vocabulary of 50,257: the copy engine's kernels are left out, and a family of those alone says so once."""
    sizes = {"m": 16, "k": 32, "n": 50257}
    task = Task(named("linear"), Case.of("bfloat16", **sizes), floor_s=1e-6)
    some, none = Template(Matmul()), Template(MatmulHopper())
    proposed = some.propose(task, [], 4)
    assert {p.config["way"] for p in proposed} == {"pointers"}
    assert all(p.candidate.domain.admits(sizes, "bfloat16", "contiguous") for p in proposed)
    told = Told(reason=Reason.vram_taken)
    with Ledger(tmp_path) as ledger:
        search = Search(task, [none], told, ledger, NOWHERE, SearchBudget(trials=48))
        assert search.explore() == search.told[0]
    assert told.asked == []
    assert search.told[0].endswith("n = 50257, and it takes 8 up in steps of 8")


def test_another_tasks_ledger_is_refused(tmp_path: Path) -> None:
    """Trials of one case never count for another."""
    with Ledger(tmp_path) as ledger:
        Search(TASK, [Counting(3)], Told(), ledger, NOWHERE).run(certify=False)
    other = Task(TASK.problem, Case.of("float16", m=8, n=8))
    with Ledger(tmp_path) as ledger, pytest.raises(LedgerError, match="another task"):
        Search(other, [Counting(3)], Told(), ledger, NOWHERE)


CASE = Case.of("float16", m=6, n=40)
ONCE = Pace(min_rounds=2, max_rounds=2, round_s=1e-4, max_calls=3, max_slots=2)


@pytest.mark.full
def test_the_whole_loop_runs_on_triton_s_interpreter(tmp_path: Path, interpreting_judge: Judge) -> None:
    """Template → judge → ledger → whole verdict on a tiny shape, and a trial of it can be judged again."""
    task = Task(named("softmax"), CASE)
    ladder = Ladder((ONCE,), INTERPRETER, Request(INTERPRETER, None))
    with Ledger(tmp_path) as ledger:
        search = Search(
            task, [Template(Softmax(), seed=1)], LocalExecutor([interpreting_judge], 1), ledger, NOWHERE,
            SearchBudget(trials=3, batch=3), ladder,
        )  # fmt: skip
        result = search.run()
    assert result.best is not None
    assert result.verdict is not None
    assert result.verdict.status == "correct"
    _, lines = read_run(tmp_path)
    assert [line.status for line in lines if line.decision == "discard"] == []
    again = replay(interpreting_judge, tmp_path, lines[0], task, ladder)
    assert again.candidate_sha256 == lines[0].candidate_sha256
    assert again.secret == lines[0].secret


def test_a_family_s_candidate_is_the_same_for_the_same_configuration() -> None:
    """A configuration names one text."""
    space = Softmax().space("softmax", TASK.case)
    first, second = (candidate(Softmax(), "softmax", TASK.case, space.configs[3]) for _ in range(2))
    assert first.sha256 == second.sha256


class Refusing(Told):
    """Refuses at every whole verdict what stood in the races; dies when asked for more of them than `most`."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.whole: list[str] = []
        self._most = most

    def verdict(self, job: Job) -> Verdict:
        if job.key != "full":
            return super().verdict(job)
        if len(self.whole) == self._most:
            raise KeyboardInterrupt
        self.whole.append(job.candidate.source)
        return replace(super().verdict(job), status=STATUS_OF[Reason.rmse], reason=Reason.rmse)


def test_what_a_whole_verdict_refused_is_not_asked_for_again_when_the_search_is_taken_up(tmp_path: Path) -> None:
    """Starting again is no second chance: the next best is asked for, as without the kill, and then nothing."""
    asked: dict[str, list[list[str]]] = {}
    for name, most in (("whole", (9, 9)), ("cut", (0, 1, 1, 9, 9))):
        for more in most:
            executor = Refusing(more)
            with Ledger(tmp_path / name) as ledger, contextlib.suppress(KeyboardInterrupt):
                Search(TASK, [Counting()], executor, ledger, NOWHERE, SearchBudget(trials=24)).run()
            asked.setdefault(name, []).append(executor.whole)
    (first, second, third), nothing = asked["whole"]
    assert not nothing
    assert asked["cut"] == [[], [first], [second], [third], []]


KILLED = """
import sys, time
from pathlib import Path
from tests.kernels.loop.test_search import *
class Slow(Told):
    def verdict(self, job):
        time.sleep(0.01)
        return super().verdict(job)
with Ledger(Path(sys.argv[1])) as ledger:
    Search(TASK, [Counting()], Slow(), ledger, NOWHERE, SearchBudget(trials=40)).run(certify=False)
"""


@pytest.mark.parametrize("after", [pytest.param(1, marks=pytest.mark.full), 11])
def test_a_search_killed_with_signal_9_is_taken_up_by_another_process(tmp_path: Path, after: int) -> None:
    """Nothing but the folder is left of the first process, and the end is the same."""
    with Ledger(tmp_path / "whole") as ledger:
        whole = Search(TASK, [Counting()], Told(), ledger, NOWHERE, SearchBudget(trials=40)).run(certify=False)
    root = Path(__file__).parents[3]
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path / "cut")], cwd=root)
    path = tmp_path / "cut" / "ledger.jsonl"
    while process.poll() is None and (not path.exists() or path.read_bytes().count(b"\n") < after):
        time.sleep(0.005)
    process.kill()
    process.wait()
    assert len(read_run(tmp_path / "cut")[1]) >= after
    with Ledger(tmp_path / "cut") as ledger:
        again = Search(TASK, [Counting()], Told(), ledger, NOWHERE, SearchBudget(trials=40)).run(certify=False)
    assert again.best is not None
    assert whole.best is not None
    assert again.best.proposal.candidate == whole.best.proposal.candidate
    assert again.trials == whole.trials
