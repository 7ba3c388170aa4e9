"""Exhaustive measurements of the parametric kernels: every configuration of a space, timed on one GPU each.

    python -m benchmarks.kernels_tables [--only softmax …] [--where warps=4,8] [--limit 400] [--seconds 300]

These are quick looks, not verdicts: a configuration is checked once against the reference's own error, then timed
by CUDA events with L2 flushed (the median of a few calls), in one process of trust. They rank configurations, feed
warm starts and learned generators, and let a search be tested by replay without a GPU. What it finds is judged.
All CPU cores compile into one cache; each GPU times one table after the other. Writes a file per table.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import json
import math
import multiprocessing as mp
import os
import queue
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.kernels_compile import compile_all, load, own_arch, own_gpu
from nightshift.kernels.candidate import Candidate
from nightshift.kernels.generate.base import Config
from nightshift.kernels.generate.template import Family, candidate
from nightshift.kernels.judge import cuda, launch_plan
from nightshift.kernels.judge.host import recorder
from nightshift.kernels.judge.host.replay import timed
from nightshift.kernels.ops.families import families_of, family_named
from nightshift.kernels.ops.problems import ALL as PROBLEMS
from nightshift.kernels.ops.problems import named
from nightshift.kernels.problem import Case, Inputs, Problem, as_outputs

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "benchmarks" / "results" / "kernels_tables"
NEIGHBOURS = {
    "softmax": (Case.of("bfloat16", m=8192, n=8192),),
    "rmsnorm": (Case.of("bfloat16", m=8192, n=8192),),
    "layernorm": (Case.of("bfloat16", m=8192, n=8192),),
    "rotary_interleaved": (Case.of("bfloat16", b=1, h=32, s=4096, d=128),),
    "stencil_5x5": (Case.of("float32", c=8, h=4096, w=4096, k=5),),
}
"""Shapes beside the benchmarked ones, to measure what a configuration loses when it is carried over."""
FLUSH_BYTES = 128 << 20
LONG_S = 1e-4
"""Of the host, for one call: `timed` waits 150 µs of the GPU's time for each."""
CHUNK = 6
AGAIN = 8


def tasks(
    only: Sequence[str], without: Sequence[str] = (), cases: Sequence[str] = ()
) -> Iterator[tuple[Family, str, Case]]:
    """Every table, in the order of `only` where that names problems; `cases`: only those whose text holds one."""
    for wanted in only or [problem.name for problem in PROBLEMS]:
        for family in families_of(wanted):
            for case in (*named(wanted).cases, *NEIGHBOURS.get(wanted, ())):
                if family.name not in without and (not cases or any(text in str(case) for text in cases)):
                    yield family, wanted, case


def chosen(family: Family, name: str, case: Case, limit: int, where: Mapping[str, set[str]]) -> list[Config]:
    """The space's points that have one of the values in `where` in each dimension named there, or a fixed random
    part of them where they are more than `limit`."""
    space: list[Config] = [
        c for c in family.space(name, case) if all(str(c.get(k, "")) in v for k, v in where.items() if k in c)
    ]
    return space if len(space) <= limit else random.Random(name + str(case)).sample(space, limit)


class Bench:
    """One problem's inputs, its truth and its clock, on this process's GPU."""

    def __init__(self, problem: Problem, case: Case) -> None:
        self.problem, self.case = problem, case
        self.values = problem.inputs(case, "normal", 1, "cuda")
        self.flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
        self.eager = problem.eager(self.values)
        self.truth = tuple(x.double() for x in problem.truth(self.values))
        self.error = [self._rms(e, t) for e, t in zip(self.eager, self.truth, strict=True)]
        self._own: list[torch.Tensor] = []  # outputs and scratch of the call that was made last

    @staticmethod
    def _rms(a: torch.Tensor, b: torch.Tensor) -> float:
        return float((a.double() - b).square().mean().sqrt())

    def look(self, call: Callable[[], Any], written: Candidate, work: Inputs) -> tuple[float, float]:
        """(microseconds, RMSE over eager's own)."""
        for source, target in zip(self.values, work, strict=True):
            if isinstance(target, torch.Tensor) and written.mutates:
                target.copy_(source)
        made = call()
        outputs = tuple(work[i] for i in written.mutates) if written.mutates else as_outputs(made)
        worst = max(
            self._rms(o, t) / max(e, 1e-12 * float(t.abs().max()) + 1e-30)
            for o, t, e in zip(outputs, self.truth, self.error, strict=True)
        )
        if not worst < 4.0:
            return math.nan, worst
        call = queued(call)
        first = self.seconds(call, 4, work)
        return self.seconds(call, max(5, min(15, int(4e-3 / max(first, 1e-5)))), work) * 1e6, worst

    def seconds(self, call: Callable[[], Any], count: int, work: Inputs) -> float:
        """The median of so many calls. Before each, L2's lines that the one before asked to hold are given back: a
        call that found its own again would be told as faster than it is on other buffers."""
        held = [x for x in (*work, *self._own) if isinstance(x, torch.Tensor)]
        lines = torch.tensor(cuda.lines_of((x.data_ptr(), x.numel() * x.itemsize) for x in held)).cuda()

        def give_back() -> None:
            _spoiler().give_back(lines, torch.cuda.current_stream().cuda_stream)

        return statistics.median(timed([call] * count, self.flush, [give_back] * count))

    def call_of(self, written: Candidate, cubin: str, folder: str, work: Inputs) -> Callable[[], Any]:
        self._own = []
        if written.language != "cuda":
            entry = load(written, folder)
            return lambda: entry(*work)
        numbers = {i: float(x) for i, x in enumerate(work) if isinstance(x, int | float)}
        data = Path(cubin).read_bytes()
        made = launch_plan.cuda_plan(written, data, self.case.sizes, numbers)
        outputs = tuple(torch.empty_like(x) for x in self.eager)
        scratch = [torch.empty(max(1, n), dtype=torch.uint8, device="cuda") for n in made.scratch_bytes]
        self._own = [*outputs, *scratch]
        rooms: dict[str, Any] = {"in": work, "out": outputs, "tmp": scratch}
        module = cuda.Module(data)
        actions = launch_plan.prepare(
            made, lambda _, name, shared: module.function(name, shared), lambda p: rooms[p.room][p.index].data_ptr()
        )

        def call() -> Any:
            for action in actions:
                action(torch.cuda.current_stream().cuda_stream)
            return outputs

        return call


@functools.cache
def _spoiler() -> cuda.Spoiler:
    """One for the process: it is compiled and loaded once."""
    return cuda.Spoiler(cuda.spoiler(own_arch()))


def queued(call: Callable[[], Any]) -> Callable[[], Any]:
    """The same call, recorded in a CUDA graph where Python takes longer to queue it than the clock waits for."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    call()
    host_s = time.perf_counter() - began
    torch.cuda.synchronize()
    if host_s < LONG_S:
        return call
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def measure(gpu: int, todo: Any, told: Any, folder: str) -> None:
    """A timing process: takes tables from a queue until it gets None, and tells every figure as it comes."""
    own_gpu(gpu)
    torch.cuda.init()  # type: ignore[no-untyped-call]
    torch.empty(1, device="cuda")
    recorder.replace_launcher()
    cuda.enter()
    while (item := todo.get()) is not None:
        number, family, name, case, configs, cubins, start = item
        told.put((gpu, number, "begin", start, None))
        found = family_named(family)
        bench = Bench(named(name), case)
        best: dict[int, float] = {}
        for position in range(start, len(configs)):
            told.put((gpu, number, "begin", position, None))
            micro, worst, why = math.nan, math.nan, ""
            try:
                written = candidate(found, name, case, configs[position])
                if written.language == "cuda" and not cubins[position]:
                    raise RuntimeError("nvrtc refused it")
                work = tuple(
                    x.clone() if isinstance(x, torch.Tensor) and written.mutates else x for x in bench.values
                )
                call = bench.call_of(written, cubins[position], folder, work)
                micro, worst = bench.look(call, written, work)
                why = "wrong" if math.isnan(micro) else ""
            except Exception as error:  # noqa: BLE001  a table keeps what failed, with its reason
                why = f"{type(error).__name__}: {error}"[:200]
            told.put((gpu, number, "figure", position, (micro, worst, why)))
            if not why:
                best[position] = micro
            if any(word in why for word in ("illegal", "misaligned", "LAUNCH_FAILED", "unspecified launch")):
                os._exit(1)  # this context is lost; another process goes on with the next configuration
        for position in sorted(best, key=lambda p: best[p])[:AGAIN]:  # the front runners, longer, for their order
            written = candidate(found, name, case, configs[position])
            work = tuple(x.clone() if isinstance(x, torch.Tensor) and written.mutates else x for x in bench.values)
            call = bench.call_of(written, cubins[position], folder, work)
            call()
            call = queued(call)
            times = [bench.seconds(call, 15, work) for _ in range(4)]
            told.put((gpu, number, "figure", position, (statistics.median(times) * 1e6, 0.0, "")))
        del bench
        torch.cuda.empty_cache()
        told.put((gpu, number, "end", 0, None))


def table_json(family: Family, name: str, case: Case, configs: Sequence[Config], found: dict[int, Any]) -> Any:
    """Compact: dimensions once, a row of value positions for each configuration, microseconds beside them."""
    space = family.space(name, case)
    rows = [[d.values.index(c[d.name]) for d in space.dimensions] for c in configs]
    problem = named(name)
    return {
        "problem": name,
        "family": family.name,
        "case": case.to_json(),
        "compulsory_bytes": problem.compulsory_bytes(case),
        "flops": problem.flops(case),
        "space": len(space),
        "dimensions": {d.name: list(d.values) for d in space.dimensions},
        "configs": rows,
        "microseconds": [
            round(found[i][0], 3) if i in found and math.isfinite(found[i][0]) else None for i in range(len(rows))
        ],
        "failures": {str(i): found[i][2] for i in found if found[i][2]},
    }


class Sweep:
    """All tables of one run: who compiles and times what, and what came of it."""

    def __init__(
        self,
        work: Sequence[tuple[Family, str, Case]],
        limit: int,
        single: bool,
        out: Path,
        where: Mapping[str, set[str]],
    ) -> None:
        self.began_s = time.time()
        self.out, self.single = out, single
        out.mkdir(parents=True, exist_ok=True)
        self.folder = tempfile.mkdtemp(prefix="tables-")
        os.environ["TRITON_CACHE_DIR"] = str(Path(self.folder) / "cache")
        self._context = mp.get_context("spawn")
        major, minor = torch.cuda.get_device_capability(0)
        self._capability = 10 * major + minor
        self.gpus = torch.cuda.device_count()
        self.environment = {
            "gpu": torch.cuda.get_device_name(0),
            "torch": torch.__version__,
            "triton": importlib.import_module("triton").__version__,
        }
        found = [(item, chosen(*item, limit, where)) for item in work]
        self.work = [item for item, configs in found if configs]
        self.configs = [configs for _, configs in found if configs]
        self.cubins = [[""] * len(c) for c in self.configs]
        self.found: list[dict[int, Any]] = [{} for _ in self.work]
        self.uncompiled = [set(range(0, len(c), CHUNK)) for c in self.configs]
        self.sent: set[int] = set()
        self.finished: set[int] = set()
        self._parts, self._compiled, self._tables, self._told = (self._context.Queue() for _ in range(4))
        self._compilers: dict[int, Any] = {}
        self._timers: dict[int, Any] = {}
        self._compiling: dict[int, tuple[int, int]] = {}
        self._timing: dict[int, tuple[int, int]] = {}

    def run(self, limit_s: float) -> None:
        """Until every table is done or the time is over; what there is by then is written."""
        for gpu in range(self.gpus):
            self._start_timer(gpu)
        for number in range(max(2, len(os.sched_getaffinity(0)) - self.gpus - 1)):
            self._start_compiler(number)
        for number, ((family, name, case), configs) in enumerate(zip(self.work, self.configs, strict=True)):
            for place in range(0, len(configs), CHUNK):
                self._parts.put((number, place, family.name, name, case, configs[place : place + CHUNK]))
        while len(self.finished) < len(self.work) and time.time() - self.began_s < limit_s:
            self._hear_compilers()
            self._hear_timers()
        for number in range(len(self.work)):
            if number not in self.finished and self.found[number]:
                self.write(number)
        for process in (*self._compilers.values(), *self._timers.values()):
            process.kill()
        print(f"{time.time() - self.began_s:.1f} s, {len(self.finished)} of {len(self.work)} tables", flush=True)

    def _start_compiler(self, me: int) -> None:
        arguments = (self._capability, self.folder, self._parts, self._compiled, me)
        self._compilers[me] = self._context.Process(target=compile_all, args=arguments, daemon=True)
        self._compilers[me].start()

    def _start_timer(self, gpu: int) -> None:
        arguments = (gpu, self._tables, self._told, self.folder)
        self._timers[gpu] = self._context.Process(target=measure, args=arguments, daemon=True)
        self._timers[gpu].start()

    def _hear_compilers(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                me, word, number, place, made = self._compiled.get_nowait()
                if word == "begin":
                    self._compiling[me] = (number, place)
                    continue
                self._compiling.pop(me, None)
                self.cubins[number][place : place + len(made)] = made
                self._part_done(number, place)
        for me, process in list(self._compilers.items()):
            if not process.is_alive():  # a compiler that aborts takes its process along
                if me in self._compiling:
                    self._part_done(*self._compiling.pop(me))
                self._start_compiler(me)

    def _part_done(self, number: int, place: int) -> None:
        self.uncompiled[number].discard(place)
        if not self.uncompiled[number] and number not in self.sent:
            self.sent.add(number)
            self._send(number, 0)

    def _send(self, number: int, start: int) -> None:
        family, name, case = self.work[number]
        self._tables.put((number, family.name, name, case, self.configs[number], self.cubins[number], start))

    def _hear_timers(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                gpu, number, word, position, value = self._told.get(timeout=0.02)
                if word == "begin":
                    self._timing[gpu] = (number, position)
                elif word == "figure":
                    self.found[number][position] = value
                else:
                    self._timing.pop(gpu, None)
                    self.finished.add(number)
                    self.write(number)
        for gpu, process in list(self._timers.items()):
            if not process.is_alive():
                if gpu in self._timing:
                    number, position = self._timing.pop(gpu)
                    self.found[number].setdefault(position, (math.nan, math.nan, "ended its process"))
                    self._send(number, position + 1)
                self._start_timer(gpu)

    def write(self, number: int) -> None:
        family, name, case = self.work[number]
        figures = self.found[number]
        made = {**table_json(family, name, case, self.configs[number], figures), "environment": self.environment}
        label = "-".join([family.name, name, *(f"{k}{v}" for k, v in case.params), case.dtype])
        if self.single:
            with (self.out / "tables.jsonl").open("a") as file:
                file.write(json.dumps({"label": label, **made}, separators=(",", ":")) + "\n")
        else:
            (self.out / f"{label}.json").write_text(json.dumps(made, separators=(",", ":")) + "\n")
        ran = [x[0] for x in figures.values() if math.isfinite(x[0])]
        best = min(ran, default=math.nan)
        rate = named(name).compulsory_bytes(case) / best / 1e3
        config = next((self.configs[number][i] for i, x in figures.items() if x[0] == best), {})
        failed = sorted({x[2][:50] for x in figures.values() if x[2]})[:2]
        told = " ".join(f"{k}={v}" for k, v in config.items())
        since = time.time() - self.began_s
        print(
            f"{since:5.0f} {label} {len(ran)}/{len(figures)}: {best:.2f} us {rate:.0f} GB/s {told} {failed}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], help="problems; default: all")
    parser.add_argument("--without", nargs="*", default=[], help="families to leave out")
    parser.add_argument("--cases", nargs="*", default=[], metavar="TEXT", help='only cases like "k=2048"')
    parser.add_argument(
        "--where",
        nargs="*",
        default=[],
        metavar="NAME=VALUE,…",
        help="only these values, where a space has that name",
    )
    parser.add_argument("--limit", type=int, default=1000, help="largest table; larger spaces are sampled")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--single", action="store_true", help="one file of lines instead of one file a table")
    options = parser.parse_args()
    where = {name: set(values.split(",")) for name, _, values in (w.partition("=") for w in options.where)}
    work = list(tasks(options.only, options.without, options.cases))
    Sweep(work, options.limit, options.single, options.out, where).run(options.seconds)


if __name__ == "__main__":
    main()
