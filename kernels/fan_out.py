"""A run's searches side by side: one process for each GPU of this machine, each with a judge of its own.

Whole searches are dealt out, not candidates: baselines are measured once for each problem, and a search's times
come from one GPU. A process takes the next search when it is done with one. Problems hold functions and do not
travel, so each process makes its works again from their sources. Killed with its parent, a search is resumed like
any other.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing import connection
from pathlib import Path
from typing import Any

from collectors.seal import Signer
from kernels.executor import LocalExecutor
from kernels.judge.judge import Judge
from kernels.ledger import Provenance
from kernels.optimise import Done, Run, Work, work_of
from kernels.problem import Case
from kernels.problems import named
from kernels.profile.problem_file import load_problem
from kernels.profile.roofline import Peaks
from kernels.search import Budget, Ladder
from kernels.suite import task_again

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
    budget: Budget
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


def search_all(
    works: Sequence[Work],
    means: Means,
    tell: Callable[[str], None] = print,
    ready: Callable[[int], bool] = lambda gpu: True,
    enough: Callable[[], bool] = lambda: False,
) -> list[Done]:
    """Searches every work; `Done.result` of another process is None. ready: whether a GPU may be begun with now.
    enough: whether the time is over: works that were not begun then are left, and come back as not certified.

    A process that dies takes its search with it (the ledger keeps what was tried) and is not replaced; what no
    process is left for comes back as not certified.
    """
    context = multiprocessing.get_context("spawn")
    asked: Any = context.Queue()
    told: Any = context.Queue()
    for number, work in enumerate(works):
        asked.put((number, work.source, work.task.case, work.origin, work.for_jobs, work.slug))
    for _ in means.gpus:
        asked.put(None)
    running: dict[int, Any] = {}
    found: dict[int, tuple[str, int]] = {}
    over = False
    try:
        while len(found) < len(works):
            for gpu in means.gpus:
                if gpu not in running and not over and ready(gpu):
                    running[gpu] = _start(context, gpu, means, asked, told)
            if not over and enough():
                over = True
                _leave_the_rest(asked, len(means.gpus), found)
            alive = any(process.is_alive() for process in running.values()) or (
                len(running) < len(means.gpus) and not over
            )
            try:
                kind, number, item = told.get(timeout=_LOOK_S)
            except queue.Empty:
                if not alive:
                    break
                continue
            if kind == "line":
                tell(item)
            else:
                found[number] = item
    finally:
        for process in running.values():
            process.terminate() if len(found) < len(works) else process.join(30.0)
    return [_done(work, means.folder, found.get(number)) for number, work in enumerate(works)]


def _leave_the_rest(asked: Any, processes: int, found: dict[int, tuple[str, int]]) -> None:
    """Takes the works that no process has begun out of the queue; the processes end with what they have."""
    with contextlib.suppress(queue.Empty):
        while True:
            item = asked.get(timeout=_LOOK_S)
            if item is not None:
                found[item[0]] = (NOT_BEGUN, 0)
    for _ in range(processes):
        asked.put(None)


def _done(work: Work, folder: Path, found: tuple[str, int] | None) -> Done:
    path = folder / "tasks" / work.slug / "certificate.json"
    why, trials = found or ("its process ended; run it again to go on", 0)
    return Done(work, None, path if path.exists() else None, why, trials)


def _start(context: Any, gpu: int, means: Means, asked: Any, told: Any) -> Any:
    process = context.Process(target=_work_off, args=(gpu, means, asked, told))
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    if means.device == "cuda":  # before torch is imported there
        os.environ["CUDA_VISIBLE_DEVICES"] = visible(gpu, before)
    try:
        process.start()
    finally:
        if before is None:
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = before
    return process


def visible(gpu: int, allowed: str | None) -> str:
    """The `gpu`-th of the GPUs that CUDA_VISIBLE_DEVICES allows."""
    return allowed.split(",")[gpu].strip() if allowed else str(gpu)


def _work_off(gpu: int, means: Means, asked: Any, told: Any) -> None:
    """A process: searches until there is nothing left. It ends with its parent."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    signer = Signer.from_bytes(means.signer)
    judge = Judge(means.device, means.device == "cpu", compiled=means.compiled, shelf=means.shelf)
    with judge:
        run = Run(
            means.folder,
            LocalExecutor([judge], means.threads),
            Provenance(means.commit, judge.environment.gpu, judge.environment.container),
            signer,
            means.budget,
            means.ladder,
            means.peaks,
            means.seed,
            tell=lambda text: told.put(("line", -1, f"[{gpu}] {text}")),
            git=means.git,
        )
        while (item := asked.get()) is not None:
            number, source, case, origin, for_jobs, slug = item
            try:
                work = work_again(source, case, origin, means.peaks, means.seed, for_jobs)
                (done,) = run.search([means.finish(replace(work, slug=slug))])
                told.put(("done", number, (done.why, done.trials)))
            except Exception as error:  # noqa: BLE001  one search's fault must not cost the others
                told.put(("done", number, (f"{type(error).__name__}: {error}"[:500], 0)))


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
    os._exit(1)
