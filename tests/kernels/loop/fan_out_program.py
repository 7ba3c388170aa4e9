"""Searches dealt out over two processes, as `nightshift kernels optimize` deals them out over GPUs, to be killed.

`python -m tests.kernels.loop.fan_out_program FOLDER`"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

from nightshift.kernels.candidate import Candidate
from nightshift.kernels.generate.base import Outcome, Proposal, Spent, Task
from nightshift.kernels.loop.fan_out import Means, search_all
from nightshift.kernels.loop.optimise import ON_CPU, FinishedWork, Work, from_problem
from nightshift.kernels.loop.search import SearchBudget
from nightshift.kernels.problem import Case

TRIALS = 6
COLUMNS = (24, 40)


class Plain:
    """Writes torch's own call, differently commented each time: judged in earnest, soon, and never raced."""

    name = "plain"

    def propose(self, task: Task, history: Sequence[Outcome], count: int) -> list[Proposal]:
        judged = {outcome.proposal.candidate.sha256 for outcome in history}
        made = [candidate(number) for number in range(TRIALS)]
        return [Proposal(c, self.name) for c in made if c.sha256 not in judged][:count]

    def spent(self) -> Spent:
        return Spent()


def candidate(number: int) -> Candidate:
    text = f"import torch\n\n\ndef entry(x):\n    return x.clone()  # {number}\n"
    return Candidate(text, "entry", "python", "library", "none")


def by_plain(work: Work) -> Work:
    return replace(work, generators=(Plain(),))


def by_dying(work: Work, when: str) -> Work:
    """The process of the first work is killed in its next message (it sent half of it), or in its next wait."""
    if work.task.case.sizes["n"] != COLUMNS[0]:
        return by_plain(work)
    whole = Connection._send  # type: ignore[attr-defined]

    def _send(self: Connection, data: bytes, *rest: object) -> None:
        whole(self, data[: len(data) // 2], *rest)
        os.kill(os.getpid(), signal.SIGKILL)

    def _recv(self: Connection, *rest: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    dying = {"send": _send, "receive": _recv}[when]
    setattr(Connection, dying.__name__, dying)
    return by_plain(work)


def main(
    folder: Path,
    enough: Callable[[], bool] = lambda: False,
    processes: int = 0,
    finish: Callable[[Work], Work] = by_plain,
    trials: int = TRIALS,
) -> list[FinishedWork]:
    cases = [Case.of("float16", "contiguous", m=6, n=n) for n in COLUMNS]
    works = [work for case in cases for work in from_problem("copy", case=case)]
    means = Means(
        folder, bytes(range(32)), "c0ffee", SearchBudget(trials=trials, batch=1), ON_CPU, None, device="cpu",
        gpus=tuple(range(processes or len(works))), threads=1, compiled=False, finish=finish,
    )  # fmt: skip
    return search_all(works, means, lambda text: print(text, flush=True), enough=enough)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
