"""The published KernelBench with the author of regions: what is attempted, accepted and faster, task by task.

    python -m benchmarks.kernels_any CHECKOUT --draw 1 --harness --until 380 --out FILE.json   # on a GPU; resumable
    python -m benchmarks.kernels_any CHECKOUT --draw 1 --tiny 12 --out FILE.json               # a CPU, shrunken
    python -m benchmarks.kernels_any CHECKOUT --even --attempt --out FILE.json                 # no judge, no GPU

CHECKOUT is a clone of ScalingIntelligence/KernelBench (or its folder with level1, level2, level3). `--even` takes
the tasks that choices may be made on: the MD5 of their file's name is even. `--draw SEED` takes 30, 20 and 10 of
them, `--tasks FILE` those listed by line (`level1/25_Swish.py`); without any, all of levels 1 to 3. What the result
file already holds is kept. Workers are processes of one task at a time: one that dies, or takes longer than
`--each`, costs that task alone.

`--attempt` writes the first candidates of every task at its published sizes and compiles their kernels for an H100,
without a GPU: nothing is computed or judged.

`--harness` asks the checkout's own `src/kernelbench/eval.py` as well, of the winner and of a candidate that the
judge refused as less precise than eager. What it accepts of the latter is a win of precision.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import faulthandler
import fcntl
import hashlib
import importlib.abc
import importlib.machinery
import json
import math
import os
import queue
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

LEVELS = ("level1", "level2", "level3")
FASTER = 1.02
"""A speed-up counts where the lower end of its interval is above this."""
LARGEST = 512
"""A shrunken task keeps its model's proportions at this bound, or at none."""
CORRECT = ("faster", "slower", "inconclusive", "correct")


def shrunken(text: str, most: int) -> str:
    """A task's file with every number halved until it is at most so large: sizes stay multiples of each other."""

    class Halve(ast.NodeTransformer):
        def visit_Constant(self, node: ast.Constant) -> ast.Constant:
            value = node.value
            if type(value) is not int:
                return node
            while value > most:
                value //= 2
            return ast.copy_location(ast.Constant(value), node)

    return ast.unparse(Halve().visit(ast.parse(text)))


WHOLE = 1 << 62
"""As much as there is."""


def needed_bytes(path: Path) -> int:
    """Of a GPU's memory, to load and judge a task at most: the slots of a race and their copies, and one call in
    each of five processes or precisions. Counted on tensors without memory; all there is where that cannot be."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    from nightshift.kernels.suites.kernelbench import _module, arguments_of

    class Meter(TorchDispatchMode):  # type: ignore[no-untyped-call]
        """Bytes of the tensors that live at a time, and whether there are convolutions of three dimensions."""

        live = most = 0
        deep = False

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = function(*args, **(kwargs or {}))
            self.deep |= "convolution" in str(function) and args[0].dim() == 5
            views = function._schema.returns and function._schema.returns[0].alias_info is not None
            for x in () if views else made if isinstance(made, tuple | list) else [made]:
                if isinstance(x, torch.Tensor):
                    self.live += x.nbytes
                    weakref.finalize(x, self._gone, x.nbytes)
            self.most = max(self.most, self.live)
            return made

        def _gone(self, count: int) -> None:
            self.live -= count

    try:
        module = _module(path)
        with torch.device("meta"), torch.no_grad():
            init, named = arguments_of(module.Model, module.get_init_inputs())
            model = module.Model(*init, **named).eval()
            given, by_name = arguments_of(model, module.get_inputs())
            with Meter() as meter:  # type: ignore[no-untyped-call]
                model(*given, **by_name)
    except (Exception, SystemExit):  # noqa: BLE001  loading the task reports what its file raises
        return WHOLE
    held = [*given, *by_name.values(), *model.parameters(), *model.buffers()]
    inputs = sum(x.nbytes for x in held if isinstance(x, torch.Tensor))
    if meter.deep:  # cuDNN may take tens of GiB to work in
        return WHOLE
    return int((5 << 30) + 8 * inputs + 5 * meter.most)


def _found_no_memory(row: dict[str, Any]) -> bool:
    told = f"{row.get('reason')} {row.get('why')} {row.get('search')}"
    return any(word in told for word in ("vram_taken", "vram_limit", "out_of_memory", "OutOfMemoryError"))


class Room:
    """One GPU's memory, shared out among the workers as locks on files, which end with whoever holds them."""

    PARTS = 16

    def __init__(self, given: argparse.Namespace) -> None:
        """given.card: bytes of a GPU that is none, for a trial of the locks on a CPU."""
        self.folder = Path(given.lock).parent if given.lock else None
        self.workers, self.card = given.workers, given.card << 30

    @contextlib.contextmanager
    def of(self, wanted: int) -> Iterator[None]:
        import torch

        if self.folder is None or not (self.card or torch.cuda.is_available()):
            yield
            return
        total = self.card or torch.cuda.get_device_properties(0).total_memory
        total -= (2 << 30) * self.workers  # contexts
        count, held = min(self.PARTS, -(-wanted * self.PARTS // total)), list[Any]()
        with contextlib.ExitStack() as stack:
            places = [stack.enter_context((self.folder / f"part{n}").open("a")) for n in range(self.PARTS)]
            with (self.folder / "turn").open("a") as turn:  # who wants much waits no longer than who wants little
                fcntl.flock(turn, fcntl.LOCK_EX)
                while len(held) < count:
                    for place in places:
                        if len(held) < count and place not in held and _locked(place):
                            held.append(place)
                    time.sleep(0.02)
            yield


def _locked(place: Any) -> bool:
    try:
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# A worker: one task after the other ------------------------------------------------------------------------------


class Bench:
    """One judge and what is asked of it."""

    def __init__(self, given: argparse.Namespace, judge: Any) -> None:
        self.given, self.judge = given, judge
        self.room = Room(given)
        self.device = "cuda" if judge is not None and judge.device == "cuda" else "cpu"

    def task(self, name: str) -> dict[str, Any]:
        """The row of one task; where others left it no memory, of a second turn with the whole GPU."""
        path = checkout(self.given.checkout) / name
        with self._watched():
            need = needed_bytes(path) if self.device == "cuda" or self.given.card else 0
        row = self._turn(name, need)
        return self._turn(name, WHOLE) if _found_no_memory(row) else row

    def _turn(self, name: str, need: int) -> dict[str, Any]:
        """All that a task needs of the GPU is taken once, before anything loads: its time begins then."""
        row, started = dict[str, Any](attempted=False), time.time()
        row["need_gib"] = "all" if need == WHOLE else round(need / 2**30, 1)
        tell({**row, "next_s": _LONGEST_WAIT_S})
        with self.room.of(need), self._watched():
            row["waited_s"] = round(time.time() - started, 1)
            tell({**row, "next_s": self.given.each})
            return {**row, **self._row(name, need)}

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """A task that is lost says where it was."""
        faulthandler.dump_traceback_later(max(1.0, self.given.each - 5))
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _row(self, name: str, need: int) -> dict[str, Any]:
        from nightshift.kernels.generate.base import GeneratorError
        from nightshift.kernels.problem import ProblemError
        from nightshift.kernels.regions.author import attempted, region_author

        started, row = time.time(), dict[str, Any]()
        try:
            with tempfile.TemporaryDirectory() as folder:
                task, row["tiny"] = self._loaded(name, Path(folder))
                row["load_s"] = round(time.time() - started, 2)
                author = region_author(task.problem, task.forms, self.device)
                made = attempted(author, task.problem.cases[0])
                row |= {"attempted": True, "kind": made.candidate.kind, "kernels": made.kernels,
                        "left_to_torch": dict(made.calls), "sampled_rows": task.problem.sampled_rows}  # fmt: skip
                row["author_s"] = round(time.time() - started - row["load_s"], 2)
                if self.given.attempt:
                    row |= compiled(author, task)
                if self.judge is not None:
                    row |= self._judged(name, task, author)
                    self._for_the_harness(task, row, need)
        except (GeneratorError, ProblemError) as error:
            row["why"] = str(error)[:600]
        except Exception as error:  # noqa: BLE001  a row of its own, whatever it is: the others go on
            row["why"] = f"{type(error).__name__}: {error}"[:600]
            row["broken"] = True
        self._drop()
        return {**row, "took_s": round(time.time() - started, 1)}

    def _loaded(self, name: str, folder: Path) -> tuple[Any, int]:
        """The task; on a CPU at the smallest sizes at which its model still runs, and the bound of them."""
        from nightshift.kernels.problem import ProblemError
        from nightshift.kernels.suites.kernelbench import load_task

        path, most = checkout(self.given.checkout) / name, self.given.tiny
        if self.given.attempt:
            return load_task(path, device="meta"), 0
        while most:
            target = folder / path.name
            target.write_text(shrunken(path.read_text(), most))
            try:
                return load_task(target, device=self.device), most
            except ProblemError as error:
                if "Model or its inputs fail" not in str(error) or most > LARGEST:
                    raise
            most *= 2
        return load_task(path, device=self.device), 0

    def _judged(self, name: str, task: Any, author: Any) -> dict[str, Any]:
        import torch

        from nightshift.kernels.generate.base import Task
        from nightshift.kernels.judge.judge import Request
        from nightshift.kernels.judge.probes.inputs import INTERPRETER, QUICK_GPU
        from nightshift.kernels.judge.race.contest import QUICK, Pace
        from nightshift.kernels.loop.executor import LocalExecutor
        from nightshift.kernels.loop.ledger import Ledger, Provenance
        from nightshift.kernels.loop.search import Ladder, Search, SearchBudget

        pace = Pace(15, 25, check_every=5)  # a check is an oracle in float64, while all others wait
        problem, case = task.problem, task.problem.cases[0]
        scope = replace(QUICK_GPU, sweep_random=0, repeats=3) if self.device == "cuda" else INTERPRETER
        if self.device == "cuda" and self.given.compile and not name.startswith("level3"):
            problem = replace(problem, libraries={"inductor": torch.compile(problem.reference, dynamic=False)})
            with contextlib.suppress(Exception), torch.no_grad():  # it compiles here, and not while others wait
                problem.libraries["inductor"](*problem.inputs(case, "normal", 1, self.device))
        author.family.problem = problem
        configs = author.warm.configs
        first = next(
            (c for c in configs if author.family.composed(case, c).candidate.kind != "library"), configs[0]
        )
        first = author.family.composed(case, first)
        found: dict[str, Any] = {}
        if first.candidate.kind != "library" and (self.given.trials == 1 or self.device == "cpu"):
            request = Request(scope, None if self.device == "cpu" else pace)
            found = self._verdict(self.judge.verdict(first.candidate, problem, request), first.candidate)
            found["_refused"] = first.candidate if found["status"] == "wrong" else None
        elif first.candidate.kind != "library":
            ladder, trials = Ladder((QUICK,), scope, Request(scope, pace)), self.given.trials
            budget = SearchBudget(trials, self.given.each / 2, trials, batch=trials)
            provenance = Provenance("benchmark", self.judge.environment.gpu, "none")
            with tempfile.TemporaryDirectory() as folder, Ledger(Path(folder) / "task") as ledger:
                search = Search(
                    Task(problem, case),
                    (author,),
                    LocalExecutor([self.judge], 2),
                    ledger,
                    provenance,
                    budget,
                    ladder,
                )
                begun = time.time()
                result = search.run()
                found["search_s"] = round(time.time() - begun, 1)
                refused = [o.proposal.candidate for o in search.history if o.status == "wrong"]
                found["_refused"] = refused[0] if refused else None
                found["trials"] = [
                    {
                        "config": dict(o.proposal.config),
                        "status": str(o.status),
                        "reason": str(o.reason),
                        "detail": o.detail[:300],
                        "us": _us(o.seconds),
                    }
                    for o in search.history
                ]
            if result.verdict is not None:
                best = result.winner.proposal.candidate if result.winner else first.candidate
                found |= self._verdict(result.verdict, best)
        if found.get("status") not in CORRECT:
            found |= self._plain(problem, case, author, scope, found)
        return found

    def _for_the_harness(self, task: Any, row: dict[str, Any], need: int) -> None:
        """What its process is sent: the task and each candidate that it is asked about, as files."""
        from nightshift.kernels.suites.kernelbench import model_new_of, reference_of

        asked = {"winner": row.pop("_candidate", None), "refused": row.pop("_refused", None)}
        if row.get("status") not in CORRECT or row.get("kind") == "library":
            asked["winner"] = None
        if self.given.harness:
            row["by_mode"] = task.by_mode
            row["harness"] = {k: [reference_of(task), model_new_of(task, c), need] for k, c in asked.items() if c}

    def _plain(self, problem: Any, case: Any, author: Any, scope: Any, before: dict[str, Any]) -> dict[str, Any]:
        """Where nothing of the search stood: torch's calls alone, which are accepted and never faster."""
        from nightshift.kernels.judge.judge import Request

        usual = next(c for c in author.warm.configs if c["product"] == c["convolution"] == "torch")
        made = author.family.composed(case, usual).candidate
        verdict = self.judge.verdict(made, problem, Request(scope, None))
        return {
            "search": {k: before[k] for k in ("status", "reason", "detail") if k in before},
            **self._verdict(verdict, made),
        }

    def _verdict(self, verdict: Any, candidate: Any) -> dict[str, Any]:
        speed = {
            c.baseline: {
                "low": c.speedup.low,
                "point": c.speedup.point,
                "us": _us(c.candidate_s),
                "baseline_us": _us(c.baseline_s),
                "tier": c.tier,
            }
            for c in verdict.comparisons
        }
        left = {x.baseline: x.why[:160] for x in verdict.left_out}
        return {"_candidate": candidate, "status": str(verdict.status), "reason": str(verdict.reason),
                "detail": verdict.detail[:500], "kind": candidate.kind, "speed": speed, "left_out": left,
                "errors": dict(verdict.errors), "judge_s": round(verdict.took_s, 1)}  # fmt: skip

    def _drop(self) -> None:
        """A task's tensors and baselines, before the next one's."""
        import torch

        if self.judge is not None:
            self.judge._solo.clear()
            self.judge.pool._kept.clear()
            for key in list(self.judge._lanes):
                self.judge._lanes.pop(key).process.close()
        torch.compiler.reset()
        if self.device == "cuda":
            torch.cuda.empty_cache()


CAPABILITY = 90
"""An H100's."""


def compiled(author: Any, task: Any) -> dict[str, Any]:
    """How many kernels of a task's first candidates compile for an H100, and which do not."""
    import torch
    from triton.runtime.driver import driver
    from triton.runtime.jit import JITFunction

    from benchmarks.kernels_compile import _NoDevice, load

    driver.set_active(_NoDevice(CAPABILITY))
    run, found, refused = JITFunction.run, dict[str, int](), list[str]()

    def warm(self: Any, *args: Any, grid: Any = None, warmup: bool = False, **named: Any) -> None:
        try:
            made = run(self, *args, grid=grid, warmup=True, **named)
            found[made.hash] = made.metadata.shared
        except Exception as error:  # noqa: BLE001  whatever a compiler raises
            refused.append(f"{self.fn.__name__}: {type(error).__name__}: {error}"[:300])

    JITFunction.run = warm
    try:
        for config in author.warm.configs[:3]:
            made = author.family.composed(task.problem.cases[0], config)
            with tempfile.TemporaryDirectory() as folder, torch.no_grad():
                load(made.candidate, folder)(*task.forms)
    finally:
        JITFunction.run = run
    return {"compiled": len(found), "refused": refused, "shared_bytes": max(found.values(), default=0)}


def _us(seconds: float) -> float | None:
    return round(seconds * 1e6, 2) if math.isfinite(seconds) else None


def work(given: argparse.Namespace) -> None:
    """Answer each line of the input with one line of JSON, behind a mark: what libraries print is no answer."""
    if given.tiny:
        os.environ["TRITON_INTERPRET"] = "1"
    if given.attempt:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch

    from nightshift.kernels.judge.judge import Judge

    cpu = bool(given.tiny) or not torch.cuda.is_available()
    made = (
        contextlib.nullcontext() if given.attempt
        else Judge("cpu" if cpu else "cuda", compiled=False, interpret=cpu, tf32_products=given.high,
                   quiet=Path(given.lock) if given.lock else None)
    )  # fmt: skip
    with made as judge:
        bench = Bench(given, judge)
        tell({"environment": judge.environment.to_json() if judge else {}})
        for line in sys.stdin:
            tell(bench.task(line.strip()))


MARK, _LONGEST_WAIT_S = "@row ", 600.0
"""Before each answer; and how long a task may wait for a GPU's memory."""


def tell(answer: dict[str, Any]) -> None:
    print(MARK + json.dumps(answer, default=str), flush=True)


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands for clients of language models, which KernelBench imports beside its harness, where there are none."""

    NAMES = ("dotenv", "openai", "litellm", "tqdm", "requests", "pydra")

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        mine = name.partition(".")[0] in self.NAMES
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if mine else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        made = types.ModuleType(spec.name)
        made.__getattr__ = lambda name: lambda *_, **__: None  # type: ignore[method-assign]
        return made

    def exec_module(self, module: types.ModuleType) -> None:
        return None


def work_harness(given: argparse.Namespace) -> None:
    """Answer each line, the source of a task and of a ModelNew, with what KernelBench's own evaluation says."""
    sys.path.insert(0, str(given.checkout / "src"))
    sys.meta_path.append(_Absent())  # asked last: what is installed is taken
    import torch

    torch.backends.cuda.matmul.allow_tf32 = given.high
    from kernelbench.eval import eval_kernel_against_ref  # type: ignore[import-not-found]

    from nightshift.kernels.judge.race.gpu_access import Quiet

    quiet, room = Quiet(Path(given.lock)), Room(given)
    tell({"environment": {}})
    for line in sys.stdin:
        reference, new, need = json.loads(line)
        tell({"next_s": _LONGEST_WAIT_S})
        try:
            with (
                room.of(need),
                quiet.alone(),
                torch.device("cuda:0"),
            ):  # inputs of many GiB are drawn where they are used
                told = eval_kernel_against_ref(reference, new, num_correct_trials=5, num_perf_trials=50,
                                               measure_performance=True, backend="triton",
                                               device=torch.device("cuda:0"))  # fmt: skip
            torch.cuda.empty_cache()
            row = {"compiled": told.compiled, "correct": told.correctness, "ms": told.runtime,
                   "eager_ms": told.ref_runtime, "said": str(told.metadata)[:400]}  # fmt: skip
        except Exception as error:  # noqa: BLE001  the harness is another project's
            row = {"correct": False, "said": f"{type(error).__name__}: {error}"[:400]}
        tell(row)


# The driver ------------------------------------------------------------------------------------------------------


def checkout(folder: Path) -> Path:
    """Where the levels lie. Raises SystemExit where they do not."""
    for place in (folder, folder / "KernelBench"):
        if (place / LEVELS[0]).is_dir():
            return place
    raise SystemExit(f"{folder}: holds no folder level1: clone ScalingIntelligence/KernelBench there")


DRAWN = (30, 20, 10)
"""Of each level."""


def is_even(name: str) -> bool:
    return hashlib.md5(name.rpartition("/")[2].encode()).digest()[-1] % 2 == 0


def names(given: argparse.Namespace) -> list[str]:
    if given.tasks:
        return [str(name) for name in given.tasks.read_text().split()]
    root = checkout(given.checkout)
    found = {level: [f"{level}/{path.name}" for path in sorted((root / level).glob("*.py"))] for level in LEVELS}
    if given.even or given.draw is not None:
        found = {level: [name for name in mine if is_even(name)] for level, mine in found.items()}
    if given.draw is not None:
        drawn = random.Random(given.draw)
        found = {
            level: sorted(drawn.sample(mine, min(count, len(mine))))
            for (level, mine), count in zip(found.items(), DRAWN, strict=True)
        }
    # levels in turn, so that a run that ends early has some of each
    placed = [((i + 0.5) / len(mine), name) for mine in found.values() for i, name in enumerate(mine)]
    return [name for _, name in sorted(placed)]


class Worker:
    """A process that is given tasks; started again where it ended."""

    def __init__(self, given: argparse.Namespace, command: Sequence[str]) -> None:
        self.given, self.command = given, command
        self.process: subprocess.Popen[str] | None = None
        self.rows: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.environment: dict[str, Any] = {}

    def ask(self, line: str) -> dict[str, Any]:
        if self.process is None or self.process.poll() is not None:
            self._start()
            told = self._next(180.0)
            if told is None:
                self.end()
                return {"attempted": False, "why": "no worker starts", "broken": True}
            self.environment = told["environment"]
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        row, begun = self._next(self.given.each), dict[str, Any]()
        while row is not None and "next_s" in row:  # not the answer yet: how long until the next word
            begun = row
            row = self._next(begun.pop("next_s"))
        if row is None:
            ended = self.process.poll()
            self.end()
            why = f"its worker ended ({ended})" if ended is not None else f"no answer in {self.given.each:g} s"
            return {"attempted": False, **begun, "why": why, "broken": True}
        return row

    def _start(self) -> None:
        self.rows = queue.SimpleQueue()
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        start_new_session=True)  # fmt: skip
        threading.Thread(target=self._read, args=(self.process, self.rows), daemon=True).start()

    @staticmethod
    def _read(process: subprocess.Popen[str], rows: queue.SimpleQueue[dict[str, Any] | None]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(MARK):
                rows.put(json.loads(line[len(MARK) :]))
        rows.put(None)

    def _next(self, seconds: float) -> dict[str, Any] | None:
        with contextlib.suppress(queue.Empty):
            return self.rows.get(timeout=seconds)
        return None

    def end(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


def share(rows: Sequence[dict[str, Any]], baseline: str, p: float) -> float | None:
    """fast_p of these tasks. A call of torch's alone is never faster."""
    return sum(_speed(row, baseline) > p for row in rows) / len(rows) if rows else None


def _speed(row: dict[str, Any], baseline: str) -> float:
    if row.get("status") not in CORRECT or row.get("kind") == "library":
        return 0.0
    found = row.get("speed", {})
    if baseline in found:
        return float(found[baseline]["low"])
    # not raced, because it was at least a quarter slower than eager alone
    slow = "times the best" in row.get("left_out", {}).get(baseline, "")
    return 1.25 * float(found["eager"]["low"]) if slow and "eager" in found else 0.0


def _harness_speed(row: dict[str, Any], which: str = "winner") -> float:
    """KernelBench's own speed-up, of what it calls correct."""
    told = row.get("harness", {}).get(which, {})
    ours, eager = told.get("ms") or 0.0, told.get("eager_ms") or 0.0
    return eager / ours if told.get("correct") and ours > 0 else 0.0


def summary(tasks: Sequence[str], rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for level in LEVELS:
        mine = [name for name in tasks if name.startswith(level)]
        done = [rows[name] for name in mine if name in rows]
        told[level] = {
            "tasks": len(mine), "done": len(done), "attempted": sum(r.get("attempted", False) for r in done),
            "accepted": sum(r.get("status") in CORRECT for r in done),
            "kernels_compiled": sum(r.get("compiled", 0) for r in done),
            "kernels_refused": sum(len(r.get("refused", ())) for r in done),
            "refused_for_size": sum("GiB" in r.get("why", "") for r in done),
            "fast_1_eager": share(done, "eager", FASTER),
            "fast_1_inductor": share(done, "inductor", FASTER),
            "harness_asked": sum("winner" in r.get("harness", {}) for r in done),
            "harness_correct": sum(bool(r.get("harness", {}).get("winner", {}).get("correct")) for r in done),
            "harness_fast_1": sum(_harness_speed(r) > 1 for r in done) / len(done) if done else None,
            "harness_wins_of_precision": sum(_harness_speed(r, "refused") > 1 for r in done),
        }  # fmt: skip
    return told


def run(given: argparse.Namespace) -> None:
    started, tasks = time.time(), names(given)
    result: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {"rows": {}}
    rows = result["rows"]
    left = queue.SimpleQueue[str]()
    for name in tasks:
        if name not in rows or (given.again and rows[name].get("broken")):
            left.put(name)
    writing = threading.Lock()
    flags = [f"--{name}" for name in ("attempt", "high", "harness") if getattr(given, name)]
    command = [sys.executable, "-m", "benchmarks.kernels_any", str(given.checkout), "--trials", str(given.trials),
               "--each", str(given.each), "--tiny", str(given.tiny), "--workers", str(given.workers),
               "--card", str(given.card), *flags,
               *([] if given.compile else ["--no-compile"])]  # fmt: skip

    def save() -> None:
        result.update(
            tasks=len(tasks), summary=summary(tasks, rows), given={"trials": given.trials, "tiny": given.tiny},
            decided_by=decided_by(given), matmul_precision="high" if given.high else "highest", commit=commit(),
        )  # fmt: skip
        half = given.out.with_suffix(".half")
        half.write_text(json.dumps(result, indent=1, default=str) + "\n")
        half.replace(given.out)

    def serve(number: int, lock: str) -> None:
        worker = Worker(given, [*command, "--worker", "judge", "--lock", lock])
        harness = Worker(given, [*command, "--worker", "harness", "--lock", lock])
        try:
            for name in _until(left, lambda: time.time() - started < given.until):
                row = worker.ask(name)
                row["harness"] = {k: harness.ask(json.dumps(x)) for k, x in row.get("harness", {}).items()}
                with writing:
                    rows[name] = row
                    if worker.environment:
                        result["environment"] = worker.environment
                    save()
                print(f"{time.time() - started:5.0f} s  {name}: {told(row)}", flush=True)
        finally:
            worker.end()
            harness.end()

    with tempfile.TemporaryDirectory() as folder:
        threads = [threading.Thread(target=serve, args=(n, f"{folder}/quiet")) for n in range(given.workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    save()
    print(json.dumps(result["summary"], indent=1))


def decided_by(given: argparse.Namespace) -> str:
    if given.attempt:
        return "nothing: candidates were written at published sizes and compiled for an H100, none was judged"
    return "the judge on Triton's interpreter, shrunken tasks; no speed" if given.tiny else "the judge on a GPU"


def commit() -> str:
    """Empty where the tree has no history, as on a machine that was given a copy."""
    with contextlib.suppress(OSError):
        told = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
        return told.stdout.strip()
    return ""


def _until(left: queue.SimpleQueue[str], more: Any) -> Iterator[str]:
    with contextlib.suppress(queue.Empty):
        while more():
            yield left.get_nowait()


def told(row: dict[str, Any]) -> str:
    speed = ", ".join(f"{k} {v['low']:.2f}-{v['point']:.2f}" for k, v in row.get("speed", {}).items())
    parts = (row.get("kind"), row.get("status"), row.get("reason"), speed, row.get("why"))
    return " | ".join(str(x)[:200] for x in parts if x) + f" | {row.get('took_s', 0)} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path, help="a clone of KernelBench")
    parser.add_argument("--tasks", type=Path, help="a file that lists tasks; all of them without")
    parser.add_argument("--even", action="store_true", help="the tasks that choices may be made on")
    parser.add_argument("--draw", type=int, metavar="SEED", help="60 of the even tasks")
    parser.add_argument("--out", type=Path, default=Path("kernels_any.json"), help="the result, kept and added to")
    parser.add_argument("--until", type=float, default=math.inf, help="begin no task after so many seconds")
    parser.add_argument("--each", type=float, default=120.0, help="seconds that one task may take")
    parser.add_argument("--workers", type=int, default=6, help="processes on the GPU at a time")
    parser.add_argument("--trials", type=int, default=3, help="candidates of a task that are raced")
    parser.add_argument("--tiny", type=int, default=0, help="a dry run on a CPU: halve numbers to at most this")
    parser.add_argument("--attempt", action="store_true", help="write and compile candidates, judge none")
    parser.add_argument("--again", action="store_true", help="run tasks again that broke")
    parser.add_argument("--no-compile", dest="compile", action="store_false", help="race eager alone")
    parser.add_argument(
        "--high", action="store_true", help="matrix products in TF32, for eager and candidate alike"
    )
    parser.add_argument("--harness", action="store_true", help="ask KernelBench's own evaluation beside the judge")
    parser.add_argument("--worker", choices=("judge", "harness"), help=argparse.SUPPRESS)
    parser.add_argument("--card", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--lock", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    {"judge": work, "harness": work_harness, None: run}[given.worker](given)


if __name__ == "__main__":
    main()
