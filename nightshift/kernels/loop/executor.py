"""Where a search gets its verdicts: a protocol, and the executor for GPUs of this machine.

A job that met a machine fault is nobody's verdict: it is tried again, on another judge where there is one, and only
given back as a machine fault when every try met one. Where it met too little memory on the GPU it has its next
judge to itself: candidates that eat it together cannot excuse each other for ever.
"""

from __future__ import annotations

import queue
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Protocol

from nightshift.kernels.candidate import Candidate
from nightshift.kernels.judge.judge import Judge, Request
from nightshift.kernels.judge.verdict import Reason, Status, Verdict
from nightshift.kernels.problem import Problem


@dataclass(frozen=True)
class Job:
    """One candidate to be judged; `key` is the caller's own."""

    key: str
    candidate: Candidate
    problem: Problem
    request: Request


class Executor(Protocol):
    """Judges jobs somewhere and yields each verdict as it comes, in any order.

    Closed before its end, it begins no further job and waits for those under way, whose verdicts are lost.
    """

    def run(self, jobs: Iterable[Job]) -> Generator[tuple[Job, Verdict]]: ...


class LocalExecutor:
    """Judges of this machine, one per GPU; candidates compile and are examined in parallel, races are exclusive."""

    def __init__(self, judges: Sequence[Judge], threads_per_judge: int = 8, tries: int = 3) -> None:
        if not judges:
            raise ValueError("executor: at least one judge")
        self._judges = list(judges)
        self._threads = threads_per_judge * len(self._judges)
        self._tries = tries

    def run(self, jobs: Iterable[Job]) -> Generator[tuple[Job, Verdict]]:
        turns: queue.SimpleQueue[int] = queue.SimpleQueue()
        # numbers in rounds, so that the first jobs go to different judges
        for _ in range(self._threads):
            for number in range(len(self._judges)):
                turns.put(number)

        def one(job: Job) -> tuple[Job, Verdict]:
            number = turns.get()
            try:
                taken = False
                for attempt in range(self._tries):
                    judge = self._judges[(number + attempt) % len(self._judges)]
                    verdict = judge.verdict(job.candidate, job.problem, job.request, alone=taken)
                    taken = verdict.reason is Reason.vram_taken
                    if verdict.status is not Status.machine_fault:
                        break
                return job, verdict
            finally:
                turns.put(number)

        with ThreadPoolExecutor(self._threads) as pool:
            futures: list[Future[tuple[Job, Verdict]]] = [pool.submit(one, job) for job in jobs]
            try:
                for future in as_completed(futures):
                    yield future.result()
            finally:
                # the caller has what it wanted: jobs that were not begun would cost GPU time for nothing
                pool.shutdown(wait=False, cancel_futures=True)
