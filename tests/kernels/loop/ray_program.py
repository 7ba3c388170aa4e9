"""A search whose jobs go over Ray to two judges, as `nightshift kernels optimize --ray` sends them, to be killed.

`python -m tests.kernels.loop.ray_program FOLDER`; a judge that does not start or answer ends in minutes, and where
each thread stands is written to stderr before."""

from __future__ import annotations

import faulthandler
import sys
from pathlib import Path

from nightshift.collectors.seal import Signer
from nightshift.kernels.loop.ledger import Provenance
from nightshift.kernels.loop.optimise import ON_CPU, FinishedWork, Run, from_problem
from nightshift.kernels.loop.ray_executor import RayExecutor
from nightshift.kernels.loop.search import SearchBudget
from nightshift.kernels.problem import Case
from tests.kernels.loop.fan_out_program import TRIALS, by_plain


def main(folder: Path) -> list[FinishedWork]:
    case = Case.of("float16", "contiguous", m=6, n=24)
    works = [by_plain(work) for work in from_problem("copy", case=case)]
    with RayExecutor("local", judges=2, device="cpu", interpret=True, hang_s=120.0, start_s=120.0) as executor:
        run = Run(
            folder, executor, Provenance("c0ffee", "none", "none"), Signer.from_bytes(bytes(range(32))),
            SearchBudget(trials=TRIALS, batch=TRIALS), ON_CPU, tell=lambda text: print(text, flush=True),
        )  # fmt: skip
        return run.search(works)


if __name__ == "__main__":
    faulthandler.dump_traceback_later(150.0, repeat=True)
    for one in main(Path(sys.argv[1])):
        print(f"done: {one.trials} trials; {one.why}", flush=True)
