"""A run's searches side by side: one process for each GPU of this machine, each with a judge of its own.

Whole searches are dealt out, not candidates: baselines are measured once for each problem, and a search's times
come from one GPU. A process takes the next search when it is done with one. Problems hold functions and do not
travel, so each process makes its works again from their sources. Within one, a search's whole verdict is under way
while the next is searched (as in `kernels.loop.optimise.Run.search`). Killed with its parent, a search is resumed
like any other.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from multiprocessing import connection
from pathlib import Path
from typing import Any

from nightshift.collectors.seal import Signer
from nightshift.kernels.judge.judge import Judge
from nightshift.kernels.loop.executor import Executor, LocalExecutor
from nightshift.kernels.loop.ledger import Provenance
from nightshift.kernels.loop.optimise import FinishedWork, Run, Work, work_of
from nightshift.kernels.loop.search import Ladder, SearchBudget
from nightshift.kernels.ops.problems import named
from nightshift.kernels.problem import Case
from nightshift.kernels.profile.problem_file import load_problem
from nightshift.kernels.profile.roofline import Peaks
from nightshift.kernels.suites.suite import task_again

_LOOK_S = 0.2
NOT_BEGUN = "not begun: the time for searches was over"
Finish = Callable[[Work], Work]


def as_it_is(work: Work) -> Work:
    return work


@dataclass(frozen=True)
class Means:
    """What each process makes its judge and its `Run` of; see there.

    gpus: those of `CUDA_VISIBLE_DEVICES`, by their place in it, one process each; device "cpu": only as many
    processes. compiled: race torch.compile too. finish: a module's function that changes a work (another author).
    """

    folder: Path
    signer: bytes
    commit: str
    budget: SearchBudget
    ladder: Ladder
    peaks: Peaks | None
    seed: int = 0
    git: bool = False
    device: str = "cuda"
    gpus: tuple[int, ...] = (0,)
    threads: int = 8
    compiled: bool = True
    shelf: Path | None = None
    finish: Finish = as_it_is


def run_of(means: Means, executor: Executor, judge: Judge, tell: Callable[[str], None]) -> Run:
    """A run by these means, on the judge's machine."""
    provenance = Provenance(means.commit, judge.environment.gpu, judge.environment.container)
    signer = Signer.from_bytes(means.signer)
    return Run(
        means.folder, executor, provenance, signer, means.budget, means.ladder, means.peaks, means.seed, tell=tell,
        git=means.git,
    )  # fmt: skip


def search_all(
    works: Sequence[Work],
    means: Means,
    tell: Callable[[str], None] = print,
    ready: Callable[[int], bool] = lambda gpu: True,
    enough: Callable[[], bool] = lambda: False,
) -> list[FinishedWork]:
    """Searches every work; `Done.result` of another process is None. ready: whether a GPU may be begun with now.
    enough: whether the time is over: works that were not begun then are left, and come back as not certified.

    A process that dies takes its searches with it (the ledgers keep what was tried) and is not replaced; what no
    process is left for comes back as not certified. Each process has a pipe of its own, so one that is killed in
    the middle of a message leaves no lock behind that another would wait for.
    """
    # CUDA does not survive a fork
    context = multiprocessing.get_context("spawn")
    waiting = deque(enumerate(works))
    workers: dict[int, _Worker] = {}
    found: dict[int, tuple[str, int]] = {}
    over = False
    try:
        while len(found) < len(works):
            if not over:
                workers |= _begin(context, means, workers, ready)
                over = enough()
            while over and waiting:
                found[waiting.popleft()[0]] = (NOT_BEGUN, 0)
            alive = [worker for worker in workers.values() if not worker.line.closed]
            if not alive and (over or len(workers) == len(means.gpus)):
                break
            _listen(alive, waiting, found, tell)
    finally:
        # with all verdicts here they only have to close their judges; broken off, nobody waits for theirs
        patience_s = 30.0 if len(found) == len(works) else 0.0
        for worker in workers.values():
            worker.end(patience_s)
    return [_done(work, means.folder, found.get(number)) for number, work in enumerate(works)]


@dataclass
class _Worker:
    """line: closed once the process is gone, and all that it had said was read. given: what it was sent last, until
    it says that it has it."""

    process: Any
    line: Any
    given: tuple[int, Work] | None = None

    def end(self, patience_s: float) -> None:
        self.process.join(patience_s)
        for signal in (self.process.terminate, self.process.kill):
            if self.process.is_alive():
                signal()
                self.process.join(5.0)
        self.line.close()


def _listen(
    alive: Sequence[_Worker],
    waiting: deque[tuple[int, Work]],
    found: dict[int, tuple[str, int]],
    tell: Callable[[str], None],
) -> None:
    """Takes one message of each process that has one, for at most `_LOOK_S`, and deals out the next works."""
    ends = [end for worker in alive for end in (worker.line, worker.process.sentinel)]
    heard = connection.wait(ends, _LOOK_S)
    for worker in alive:
        if worker.line in heard or worker.process.sentinel in heard:
            try:
                # its sentinel alone: all that it had said was read in earlier turns
                if not worker.line.poll():
                    raise EOFError
                kind, number, item = worker.line.recv()
            except (EOFError, OSError):
                worker.line.close()
                if worker.given is not None:  # it died before it had that
                    waiting.appendleft(worker.given)
                continue
            match kind:
                case "line":
                    tell(item)
                case "done":
                    found[number] = item
                case "begun":
                    worker.given = None
                case _:
                    _deal(worker, waiting)


def _deal(worker: _Worker, waiting: deque[tuple[int, Work]]) -> None:
    """Gives the next work to a process, or None: there is no more."""
    item = None
    if waiting:
        number, work = waiting[0]
        item = (number, work.source, work.task.case, work.origin, work.for_jobs, work.slug)
    with contextlib.suppress(OSError):  # it died since: the work is another's
        worker.line.send(item)
        if waiting:
            worker.given = waiting.popleft()


def _done(work: Work, folder: Path, found: tuple[str, int] | None) -> FinishedWork:
    path = folder / "tasks" / work.slug / "certificate.json"
    why, trials = found or ("its process ended; run it again to go on", 0)
    return FinishedWork(work, None, path if path.exists() else None, why, trials)


def _begin(
    context: Any, means: Means, workers: Mapping[int, _Worker], ready: Callable[[int], bool]
) -> dict[int, _Worker]:
    """A process for each GPU that has none yet and may be begun with now."""
    begun = [gpu for gpu in means.gpus if gpu not in workers and ready(gpu)]
    return {gpu: _start(context, gpu, means) for gpu in begun}


def _start(context: Any, gpu: int, means: Means) -> _Worker:
    mine, its = context.Pipe()
    process = context.Process(target=_work_off, args=(gpu, means, its))
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    if means.device == "cuda":  # before torch is imported there
        os.environ["CUDA_VISIBLE_DEVICES"] = visible(gpu, before)
    try:
        process.start()
    finally:
        its.close()  # or its end would not be seen here
        if before is None:
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = before
    return _Worker(process, mine)


def visible(gpu: int, allowed: str | None) -> str:
    """The `gpu`-th of the GPUs that CUDA_VISIBLE_DEVICES allows."""
    return allowed.split(",")[gpu].strip() if allowed else str(gpu)


def _work_off(gpu: int, means: Means, line: Any) -> None:
    """A process: searches until there is nothing left. It ends with its parent."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        # killed by SIGKILL, a parent tells nobody: its searches would hold the GPUs
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    os.set_inheritable(line.fileno(), False)  # judges' processes must not keep it open
    one_at_a_time = threading.Lock()

    def say(kind: str, number: int, item: Any) -> None:
        with one_at_a_time:
            line.send((kind, number, item))

    judge = Judge(means.device, means.device == "cpu", compiled=means.compiled, shelf=means.shelf)
    with judge:
        executor = LocalExecutor([judge], means.threads)
        run = run_of(means, executor, judge, lambda text: say("line", -1, f"[{gpu}] {text}"))

        def failed(number: int, error: Exception) -> None:
            say("done", number, (f"{type(error).__name__}: {error}"[:500], 0))

        def report(number: int, conclude: Callable[[], FinishedWork]) -> None:
            try:
                done = conclude()
                say("done", number, (done.why, done.trials))
            except Exception as error:  # noqa: BLE001  one search's fault must not cost the others
                failed(number, error)

        def next_one() -> Any:
            say("idle", -1, None)
            return line.recv()

        with ThreadPoolExecutor(1) as judged:  # as `Run.search` does, with works as they are dealt out
            under_way: list[Future[None]] = []
            while (item := next_one()) is not None:
                number, source, case, origin, for_jobs, slug = item
                say("begun", number, None)
                try:
                    work = work_again(source, case, origin, means.peaks, means.seed, for_jobs)
                    conclude = run.explore(means.finish(replace(work, slug=slug)))
                except Exception as error:  # noqa: BLE001  the same
                    failed(number, error)
                    continue
                # one whole verdict at a time: two would wait for each other's races
                wait(under_way)
                under_way = [judged.submit(report, number, conclude)]


def work_again(
    source: str, case: Case, origin: str, peaks: Peaks | None = None, seed: int = 0, for_jobs: bool = False
) -> Work:
    """The work that `source` stands for (a reference problem's name, a problem file, a task of a suite)."""
    if origin.startswith("suite "):
        return task_again(Path(source), case.dtype, origin)
    problem = load_problem(Path(source)) if source.endswith(".py") else named(source)
    return work_of(replace(problem, cases=(case,)), case, origin, peaks, seed, for_jobs, source)


def _end_with(sentinel: int) -> None:
    connection.wait([sentinel])
    # at once: whoever would read what an orderly end leaves is gone
    os._exit(1)
