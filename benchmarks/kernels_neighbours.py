"""What a fast call leaves to whoever comes next: is time that L2 policies win (evict_last) won, or moved elsewhere?

    python -m benchmarks.kernels_neighbours [--only softmax …] [--commit COMMIT] [--out FILE]

For each problem's largest case: the fastest measured configuration of every family, those that ask L2 to hold what
they read apart from those that do not, and torch.compile's kernel. Microseconds, medians:

again: on one set of buffers, L2 flushed before each call, as in a sweep. fresh: on sets of buffers in turn, no set
touched since several times L2's bytes have passed. next: a copy of other bytes right after the call. both: the call
and that copy, from one event to one event. back_to_back: calls on sets in turn and nothing between them. A policy
that wins in "again" alone found its own lines again; one that wins in "fresh" and loses in "both" moved its cost
to its neighbour. Needs a CUDA GPU. Writes benchmarks/results/kernels_neighbours.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.kernels_best import best, read
from benchmarks.kernels_compile import own_arch
from benchmarks.kernels_tables import Bench
from nightshift.kernels.candidate import Candidate
from nightshift.kernels.generate.template import candidate
from nightshift.kernels.judge import cuda
from nightshift.kernels.judge.environment import environment
from nightshift.kernels.judge.host.replay import timed
from nightshift.kernels.ops.families import family_named
from nightshift.kernels.ops.problems import named
from nightshift.kernels.problem import Case, Inputs

OUT = Path(__file__).resolve().parent / "results" / "kernels_neighbours.json"
PROBLEMS = ("rmsnorm", "layernorm", "softmax", "softmax_backward")
SETS, ROUNDS, TURNS = 6, 7, 18
COPIED_BYTES = 64 << 20
HELD = "evict_last"
Call = Callable[[], Any]


def chosen(problem: str, case: Case) -> Iterator[tuple[str, Candidate]]:
    """Of each measured family the fastest configuration, without and with lines that L2 is asked to hold."""
    for table in read():
        found = Case.of(table["case"]["dtype"], table["case"]["layout"], **table["case"]["params"])
        if table["problem"] != problem or found != case:
            continue
        seen = set()
        for item in best(table, len(table["configs"])):
            holds = HELD in item.config.values()
            if holds not in seen:
                seen.add(holds)
                family = family_named(item.family)
                yield item.family + f" {HELD}" * holds, candidate(family, problem, case, item.config)


def measured(calls: list[Call], bench: Bench) -> dict[str, float]:
    """`calls`: one call on sets of buffers of its own each."""
    source = torch.empty(COPIED_BYTES // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)

    def with_copy(call: Call) -> None:
        call()
        target.copy_(source)

    def after(call: Call) -> float:
        """Of a copy alone, behind the flush and the call."""
        return _median(timed([lambda: target.copy_(source)] * TURNS, _Then(bench.flush, call)))  # type: ignore[arg-type]

    for call in calls:
        call()
    turns = [calls[n % SETS] for n in range(TURNS)]
    return {
        "again": _median(timed([calls[0]] * TURNS, bench.flush)),
        "fresh": _median(timed(turns, bench.flush)),
        "next": after(calls[0]),
        "both": _median(timed([lambda c=c: with_copy(c) for c in turns], bench.flush)),
        "back_to_back": _median(timed([lambda: [c() for c in turns]] * 3, bench.flush)) / TURNS,
    }


def _median(times: tuple[list[float], bool]) -> float:
    return statistics.median(times[0])


class _Then:
    """A flush that is followed by a call, where `timed` flushes."""

    def __init__(self, flush: torch.Tensor, call: Call) -> None:
        self._flush, self._call = flush, call

    def zero_(self) -> None:
        self._flush.zero_()
        self._call()


def contenders(bench: Bench, problem: str, case: Case, folder: str) -> Iterator[tuple[str, list[Call]]]:
    """Each with a call for each of several sets of inputs."""
    sets: list[Inputs] = [named(problem).inputs(case, "normal", n, "cuda") for n in range(SETS)]
    arch = own_arch()
    compiled = torch.compile(named(problem).reference)
    yield "compile", [lambda v=v: compiled(*v) for v in sets]
    for label, written in chosen(problem, case):
        cubin = ""
        if written.language == "cuda":
            cubin = str(Path(folder) / f"{written.source_sha256[:24]}.cubin")
            Path(cubin).write_bytes(cuda.compile_source(written.source, arch))
        yield label, [bench.call_of(written, cubin, folder, values) for values in sets]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(PROBLEMS), choices=PROBLEMS)
    parser.add_argument("--commit", default="")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    torch.empty(1, device="cuda")
    cuda.enter()
    record: dict[str, Any] = {"commit": options.commit, "environment": environment("cuda").to_json(), "rows": []}
    with tempfile.TemporaryDirectory() as folder:
        for problem in options.only:
            case = max(named(problem).cases, key=named(problem).compulsory_bytes)
            bench = Bench(named(problem), case)
            found: dict[str, list[dict[str, float]]] = {}
            entered = list(contenders(bench, problem, case, folder))
            for _ in range(ROUNDS):  # in turn, so that all see the same clocks
                for label, calls in entered:
                    found.setdefault(label, []).append(measured(calls, bench))
            for label, rounds in found.items():
                micro = {k: round(statistics.median(r[k] for r in rounds) * 1e6, 2) for k in rounds[0]}
                spread = max(r["both"] for r in rounds) / min(r["both"] for r in rounds)
                row = {"problem": problem, "case": str(case), "contender": label, "us": micro}
                record["rows"].append({**row, "spread_of_both": round(spread, 3)})
                print(problem, label, micro, flush=True)
            options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
