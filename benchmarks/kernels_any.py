"""The published KernelBench with the author of regions: what is attempted, accepted and faster, task by task.

    python -m benchmarks.kernels_any CHECKOUT --draw 1 --harness --until 470 --end 540 --out FILE.json   # on GPUs
    python -m benchmarks.kernels_any CHECKOUT --draw 1 --tiny 12 --out FILE.json               # a CPU, shrunken
    python -m benchmarks.kernels_any CHECKOUT --even --attempt --out FILE.json                 # no judge, no GPU

CHECKOUT is a clone of ScalingIntelligence/KernelBench (or its folder with level1, level2, level3). `--even` takes
the tasks that choices may be made on: the MD5 of their file's name is even. `--draw SEED` takes 30, 20 and 10 of
them, `--tasks FILE` those listed by line (`level1/25_Swish.py`); without any, all of levels 1 to 3. What the result
file already holds is kept. Workers are processes of one task at a time, `--workers` of them on each GPU: one that
dies, or takes longer than `--each`, costs that task alone. What is under way at `--end`, or when the run is killed,
has no row, and is done by the next run.

`--attempt` writes the first candidates of every task at its published sizes and compiles their kernels for an H100,
without a GPU: nothing is computed or judged.

`--harness` asks the checkout's own `src/kernelbench/eval.py` as well, of the winner and of a candidate that the
judge refused as less precise than eager. What it accepts of the latter is a win of precision.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import ctypes
import faulthandler
import fcntl
import gc
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
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from nightshift.version import commit

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


@dataclass(frozen=True)
class Need:
    """Bytes of a GPU's memory, at most: to load a task and call it, and to judge a candidate of it."""

    load: int = WHOLE
    judge: int = WHOLE

    def to_json(self) -> dict[str, Any]:
        told = {"load": self.load, "judge": self.judge}
        return {name: "all" if count == WHOLE else round(count / 2**30, 1) for name, count in told.items()}


def needed(path: Path) -> Need:
    """Counted on tensors without memory; all there is where that cannot be."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import FlopCounterMode

    from nightshift.kernels.problem import as_outputs
    from nightshift.kernels.suites.kernelbench import (
        _module,
        arguments_of,
        convolved,
        model_of,
        rows_compared,
    )

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
            model = model_of(module, init, named, "meta")
            given, by_name = arguments_of(model, module.get_inputs())
            with FlopCounterMode(display=False) as flops, Meter() as meter:  # type: ignore[no-untyped-call]
                outputs = as_outputs(model(*given, **by_name))
    except (Exception, SystemExit):  # noqa: BLE001  loading the task reports what its file raises
        return Need()
    held = [*given, *by_name.values(), *model.parameters(), *model.buffers()]
    taken = sum(x.nbytes for x in held if isinstance(x, torch.Tensor))
    made, work = sum(x.nbytes for x in outputs), meter.most + (_DEEP_BYTES if meter.deep else _WORK_BYTES)
    rows = min((len(x) if x.dim() else 0 for x in outputs), default=0)
    sampled = rows_compared(rows, 2 * (taken + made), convolved(flops.get_flop_counts().get("Global", {})))
    # the float64 truth of a call, and what compares two outputs with it by parts; both ends are among the rows
    share = (sampled + 2) / rows if sampled else 1.0
    oracle = int(share * (2 * taken + 3 * work + 3 * made + (2 << 30))) + (1 << 30)
    beside = taken + max(3 * made, min(32 * made, 5 << 30)) + work
    examined = 4 * taken + 3 * made + max(oracle, beside)
    raced = 6 * taken + min(taken, 1 << 30) + 4 * made + max(oracle, 2 * work)
    return Need(3 * taken + 2 * made + work + (1 << 30), max(examined, raced) + (1 << 30))


_WORK_BYTES, _DEEP_BYTES = 1 << 30, 12 << 30
"""What a library may take to work in; cuDNN's convolutions of three dimensions take more than others."""


def _found_no_memory(row: dict[str, Any]) -> bool:
    told = f"{row.get('reason')} {row.get('why')} {row.get('search')}"
    return any(word in told for word in ("vram_taken", "vram_limit", "out_of_memory", "OutOfMemoryError"))


class Room:
    """One GPU's memory, shared out among the workers as locks on files, which end with whoever holds them."""

    PARTS, PATIENCE_S = 64, 60.0

    def __init__(self, given: argparse.Namespace) -> None:
        """given.card: bytes of a GPU that is none, for a trial of the locks on a CPU."""
        self.lock = Path(given.lock) if given.lock else None
        self.workers, self.card = given.workers, given.card << 30

    @contextlib.contextmanager
    def of(self, wanted: int) -> Iterator[None]:
        import torch

        if self.lock is None or not (self.card or torch.cuda.is_available()):
            yield
            return
        total = self.card or torch.cuda.get_device_properties(0).total_memory
        total -= (3 << 30) * self.workers  # contexts, the harness's with them
        count = min(self.PARTS, -(-wanted * self.PARTS // total))
        with contextlib.ExitStack() as stack:
            names = [*(f".part{n}" for n in range(self.PARTS)), ".first"]
            *places, first = [stack.enter_context(self.lock.with_suffix(name).open("a")) for name in names]
            since, next_one = time.time(), False
            while not self._taken(places, count, first, next_one):
                time.sleep(0.05)
                # what needs much would wait for as long as small ones come; then all wait for it
                next_one = next_one or (time.time() - since > self.PATIENCE_S and _locked(first))
            fcntl.flock(first, fcntl.LOCK_UN)
            yield

    def _taken(self, places: Sequence[Any], count: int, first: Any, next_one: bool) -> bool:
        """All parts together or none: a task that waits holds up no other. The next one keeps what it gets."""
        assert self.lock is not None
        with self.lock.with_suffix(".turn").open("a") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            if not next_one and not _locked(first):
                return False
            held = [place for place in places if _locked(place)]
            enough = len(held) >= count
            for place in held[count if enough else len(held) if next_one else 0 :]:
                fcntl.flock(place, fcntl.LOCK_UN)
            if not next_one:
                fcntl.flock(first, fcntl.LOCK_UN)
        return enough


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
        self._told, self._ends, self.waited_s = dict[str, Any](), 0.0, 0.0
        self.each = given.each
        if judge is not None:
            judge.quiet.waiting = self._waiting
        self.device = "cuda" if judge is not None and judge.device == "cuda" else "cpu"

    def task(self, name: str, need: Need) -> dict[str, Any]:
        """The row of one task; where others left it no memory, of a second turn with the whole GPU."""
        import torch

        self.each = self.given.each * (2 if name.startswith(LEVELS[2]) else 1)  # a whole network
        self._tell({"attempted": False}, 2 * self.each)
        author = self._prepared(name) if self.device == "cuda" else None
        row = self._turn(name, need, author)
        if _found_no_memory(row):
            row = self._turn(name, Need(), author)
        if self.judge is not None:
            self.judge._ahead.clear()
        torch.compiler.reset()
        give_back()
        return row

    def _turn(self, name: str, need: Need, author: Any) -> dict[str, Any]:
        row: dict[str, Any] = {"attempted": False, "need_gib": need.to_json()}
        started, self.waited_s = time.time(), 0.0
        try:
            with tempfile.TemporaryDirectory() as folder:
                with self._share(need.load, row):
                    task = self._loaded(name, Path(folder), row)
                    author = self._written(task, author, row)
                    libraries = self._compiled(name, task) if self.judge is not None else {}
                if self.judge is not None:
                    with self._share(need.judge, row):
                        try:
                            row |= self._judged(task, author, libraries, row, need.judge < WHOLE)
                            self._for_the_harness(task, row, need.load)
                        finally:
                            self._drop()
        except _refusals() as error:
            row["why"] = str(error)[:600]
        except Exception as error:  # noqa: BLE001  a row of its own, whatever it is: the others go on
            row["why"] = f"{type(error).__name__}: {error}"[:600]
            row["broken"] = True
        faulthandler.cancel_dump_traceback_later()
        return {**row, "waited_s": round(self.waited_s, 1), "took_s": round(self._worked(started), 1)}

    def _tell(self, row: dict[str, Any], seconds: float) -> None:
        """How far a task is, and how many seconds until the next word. One that is lost says where it was."""
        self._told, self._ends = _words(row), time.time() + seconds
        tell({**self._told, "waited_s": round(self.waited_s, 1), "next_s": seconds})
        faulthandler.dump_traceback_later(max(1.0, seconds - 5))

    def _worked(self, started: float) -> float:
        """Seconds since then that this turn did not wait."""
        return time.time() - started - self.waited_s

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        """Others have the GPU, or its memory. A task's time is what it does not wait."""
        told, started, left = self._told, time.time(), self._ends - time.time()
        self._tell(told, _LONGEST_WAIT_S)
        yield
        self.waited_s += time.time() - started
        self._tell(told, max(1.0, left))

    @contextlib.contextmanager
    def _share(self, wanted: int, row: dict[str, Any]) -> Iterator[None]:
        """A share of the GPU's memory. What is done with it has its time from then on."""
        self._told = _words(row)
        give_back()  # what an error of the turn before had held
        with contextlib.ExitStack() as stack:
            with self._waiting():
                stack.enter_context(self.room.of(wanted))
            self._tell(row, self.each)
            try:
                yield
            finally:
                give_back()

    def _compile(self, problem: Any, forms: Any, made: Sequence[Any]) -> None:
        with ThreadPoolExecutor(max(1, len(made))) as pool:
            for one in made if self.judge is not None else ():
                pool.submit(self.judge.compile_ahead, one.candidate, problem, forms)

    def _prepared(self, name: str) -> Any:
        """What needs no memory of a GPU: the graph, the first candidates and their kernels. None where a task
        cannot be loaded without memory; then it is done later."""
        from nightshift.kernels.regions.author import contestants, region_author
        from nightshift.kernels.suites.kernelbench import load_task

        with contextlib.suppress(Exception):
            task = load_task(checkout(self.given.checkout) / name, device="meta")
            author = region_author(task.problem, task.forms, self.device)
            self._compile(task.problem, task.forms, [*islice(contestants(author, task.problem.cases[0]), 1)])
            return author
        return None

    def _loaded(self, name: str, folder: Path, row: dict[str, Any]) -> Any:
        """The task; on a CPU at the smallest sizes at which its model still runs, and the bound of them."""
        from nightshift.kernels.problem import ProblemError
        from nightshift.kernels.suites.kernelbench import load_task

        path, most, started = checkout(self.given.checkout) / name, self.given.tiny, time.time()
        if self.given.attempt:
            return load_task(path, device="meta")
        while most:
            target = folder / path.name
            target.write_text(shrunken(path.read_text(), most))
            try:
                row["tiny"] = most
                return load_task(target, device=self.device)
            except ProblemError as error:
                if "Model or its inputs fail" not in str(error) or most > LARGEST:
                    raise
            most *= 2
        row["tiny"] = 0
        made = load_task(path, device=self.device)
        row["load_s"] = round(time.time() - started, 2)
        return made

    def _written(self, task: Any, author: Any, row: dict[str, Any]) -> Any:
        """The author of a loaded task, and what its first candidate is."""
        from nightshift.kernels.regions.author import attempted, region_author

        started = time.time()
        author = author or region_author(task.problem, task.forms, self.device)
        author.family.problem = task.problem
        made = attempted(author, task.problem.cases[0])
        row |= {"attempted": True, "kind": made.candidate.kind, "kernels": made.kernels,
                "left_to_torch": dict(made.calls), "sampled_rows": task.problem.sampled_rows,
                "author_s": round(time.time() - started, 2)}  # fmt: skip
        return row.update(compiled(author, task)) or author if self.given.attempt else author

    def _compiled(self, name: str, task: Any) -> dict[str, Any]:
        """torch.compile's own, which compiles here and not while others wait. Levels 1 and 2: a network's takes a
        minute, and the bars over it are of these."""
        import torch

        if self.device != "cuda" or not self.given.compile or name.startswith("level3"):
            return {}
        problem = task.problem
        made: Any = torch.compile(problem.reference, dynamic=False)
        with contextlib.suppress(Exception), torch.no_grad():
            made(*problem.inputs(problem.cases[0], "normal", 1, self.device))
        torch.cuda.empty_cache()
        return {"inductor": made}

    def _judged(
        self, task: Any, author: Any, libraries: dict[str, Any], row: dict[str, Any], shared: bool
    ) -> dict[str, Any]:
        """A whole verdict of the first candidate, told at once. Where it is neither faster than every baseline nor
        at the roofline, the others are ranked by quick races, and one that is faster than it gets a whole verdict
        too. What is slower than eager is no answer: torch's own calls are."""
        from nightshift.kernels.judge.judge import Request
        from nightshift.kernels.judge.probes.inputs import INTERPRETER, QUICK_GPU
        from nightshift.kernels.judge.race.contest import Pace
        from nightshift.kernels.regions.author import contestants

        pace = Pace(15, 25, check_every=5)  # a check is an oracle in float64, while all others wait
        problem = replace(task.problem, libraries=libraries)
        author.family.problem = problem
        case = problem.cases[0]
        scope = replace(QUICK_GPU, sweep_random=0, repeats=3) if self.device == "cuda" else INTERPRETER
        request = Request(scope, None if self.device == "cpu" else pace)
        made = contestants(author, case)
        first, found, started, before = next(made, None), dict[str, Any](), time.time(), self.waited_s
        if first is not None:
            found = self._verdict(self.judge.verdict(first.candidate, problem, request), first.candidate)
            found["_refused"] = first.candidate if found["status"] == "wrong" else None
            if shared and _found_no_memory(found):
                return found  # its turn with the whole GPU is next
            floor = self.judge.board.floor_s(problem.compulsory_bytes(case), problem.flops(case), case.dtype)
            self._tell({**row, **found}, self.each)
            quick = self._worked(started) + before < self.each / 3
            searching = quick and self.device == "cuda" and not _is_enough(found, floor * 1e6)
            if others := [*islice(made, max(0, self.given.trials - 1))] if searching else []:
                self._compile(problem, task.forms, others)
                found = self._searched(found, problem, author, others, request)
        eager = found.get("speed", {}).get("eager", {"point": 1.0})
        if found.get("status") not in CORRECT or eager["point"] < 1 / FASTER:
            plain = self._plain(problem, case, author, scope, found)
            found |= plain if plain["status"] in CORRECT or found.get("status") not in CORRECT else {}
        return found

    def _searched(
        self, found: dict[str, Any], problem: Any, author: Any, others: Sequence[Any], request: Any
    ) -> dict[str, Any]:
        """Of the other candidates, the best by quick races, where it is better than what was found."""
        from nightshift.kernels.generate.base import Task
        from nightshift.kernels.judge.race.contest import QUICK
        from nightshift.kernels.loop.executor import LocalExecutor
        from nightshift.kernels.loop.ledger import Ledger, Provenance
        from nightshift.kernels.loop.search import Ladder, Search, SearchBudget

        author = replace(author, warm=replace(author.warm, configs=tuple(made.config for made in others)))
        budget = SearchBudget(len(others), self.each / 2, len(others), batch=len(others))
        provenance = Provenance("benchmark", self.judge.environment.gpu, "none")
        ladder = Ladder((QUICK,), request.scope, request)
        with tempfile.TemporaryDirectory() as folder, Ledger(Path(folder) / "task") as ledger:
            search = Search(Task(problem, problem.cases[0]), (author,), LocalExecutor([self.judge], 1), ledger,
                            provenance, budget, ladder)  # fmt: skip
            begun = time.time()
            stopped = search.explore()
            self._drop_lanes()
            known = min((x["us"] for x in found["speed"].values()), default=math.inf)
            better = search.best is not None and search.best.seconds * 1e6 < 0.99 * known
            result = search.conclude(stopped) if better or found["status"] not in CORRECT else None
        refused = [o.proposal.candidate for o in search.history if o.status == "wrong"]
        tried = {
            "search_s": round(time.time() - begun, 1),
            "trials": [{"config": dict(o.proposal.config), "status": str(o.status), "reason": str(o.reason),
                        "detail": o.detail[:300], "us": _us(o.seconds)} for o in search.history],
        }  # fmt: skip
        kept = {"_refused": found["_refused"] or (refused[0] if refused else None)}
        if result is None or result.verdict is None or result.winner is None:
            return {**found, **tried, **kept}
        won = self._verdict(result.verdict, result.winner.proposal.candidate)
        best = won if won["status"] in CORRECT or found["status"] not in CORRECT else found
        return {**best, **tried, **kept, "first": {k: found[k] for k in ("status", "reason", "detail")}}

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
            "search": {k: before[k] for k in ("status", "reason", "detail", "speed") if k in before},
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

    def _drop_lanes(self) -> None:
        """What a search's races stand on; a whole verdict needs the memory."""
        self.judge.pool._kept.clear()
        for key in list(self.judge._lanes):
            self.judge._lanes.pop(key).process.close()

    def _drop(self) -> None:
        """A task's tensors and baselines, before others get its share."""
        self.judge._solo.clear()
        self._drop_lanes()


def give_back() -> None:
    """Frees the GPU memory that torch only caches, for the other processes: a task that waits keeps none."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _refusals() -> tuple[type[Exception], ...]:
    from nightshift.kernels.generate.base import GeneratorError
    from nightshift.kernels.problem import ProblemError

    return GeneratorError, ProblemError


def _words(row: dict[str, Any]) -> dict[str, Any]:
    """What of a row is no candidate."""
    return {key: value for key, value in row.items() if not key.startswith("_")}


_ROOF_SHARE = 0.85


def _is_enough(found: dict[str, Any], floor_us: float) -> bool:
    """Whether a candidate is certainly faster than each baseline, or as fast as its memory traffic allows."""
    speed = found["speed"].values()
    if found["status"] not in CORRECT or not speed:
        return False
    return bool(min(x["low"] for x in speed) > FASTER) or floor_us >= _ROOF_SHARE * min(x["us"] for x in speed)


CAPABILITY, SHARED_BYTES = 90, 227 << 10
"""An H100's; the shared memory of a block."""


def compiled(author: Any, task: Any) -> dict[str, Any]:
    """How many kernels of a task's first candidates compile for an H100, and which do not."""
    import torch

    from benchmarks.kernels_compile import compile_only, load

    found, refused = dict[str, int](), list[str]()

    def told(name: str, made: Any) -> None:
        if isinstance(made, Exception):
            refused.append(f"{name}: {type(made).__name__}: {made}"[:300])
        elif made.metadata.shared > SHARED_BYTES:
            refused.append(f"{name}: {made.metadata.shared} bytes of shared memory, of {SHARED_BYTES}")
        else:
            found[made.hash] = made.metadata.shared

    run_again = compile_only(CAPABILITY, told)
    try:
        for config in author.warm.configs[:3]:
            made = author.family.composed(task.problem.cases[0], config)
            with tempfile.TemporaryDirectory() as folder, torch.no_grad():
                load(made.candidate, folder)(*task.forms)
    finally:
        run_again()
    return {"compiled": len(found), "refused": refused, "shared_bytes": max(found.values(), default=0)}


def _us(seconds: float) -> float | None:
    return round(seconds * 1e6, 2) if math.isfinite(seconds) else None


def end_with_driver() -> None:
    """A worker has a session of its own, which would outlive a driver that is killed, on its GPU."""
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0)


def work(given: argparse.Namespace) -> None:
    """Answer each line of the input with one line of JSON, behind a mark: what libraries print is no answer."""
    if given.tiny:
        os.environ["TRITON_INTERPRET"] = "1"
    if given.attempt:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    end_with_driver()
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
        total = given.card << 30 if cpu else torch.cuda.get_device_properties(0).total_memory
        tell({"environment": judge.environment.to_json() if judge else {}, "total": total})
        for line in sys.stdin:
            name, *need = json.loads(line)
            with where() as seconds:
                row = bench.task(name, Need(*need))
            tell({**row, "where_s": seconds()})


@contextlib.contextmanager
def where() -> Iterator[Any]:
    """What the main thread is in, asked twenty times a second: the seconds of each function of the judge or of this
    file, those it calls included. Those above 2 % of the whole."""
    found, main, ended, started = Counter[str](), threading.get_ident(), threading.Event(), time.time()

    def look() -> None:
        while not ended.wait(0.05):
            frame, names = sys._current_frames().get(main), set[str]()
            while frame is not None:
                place = Path(frame.f_code.co_filename)
                if "nightshift" in place.parts or place.stem == "kernels_any":
                    names.add(f"{place.stem}.{frame.f_code.co_name}")
                frame = frame.f_back
            found.update(names)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()

    def told() -> dict[str, float]:
        whole = time.time() - started
        return {name: round(n / 20, 1) for name, n in found.most_common(12) if n / 20 > 0.02 * whole}

    try:
        yield told
    finally:
        ended.set()
        thread.join()


MARK, _LONGEST_WAIT_S = "@row ", 600.0
"""Before each answer; and how long a task may wait for a GPU's memory."""


def tell(answer: dict[str, Any]) -> None:
    print(MARK + json.dumps(answer, default=str), flush=True)


class Told:
    """Stands for pydantic's BaseModel, of which the harness uses fields with defaults."""

    def __init__(self, **given: Any) -> None:
        self.metadata: dict[str, Any] = {}
        vars(self).update(given)


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands for what KernelBench imports beside its harness (clients of language models), where it is missing."""

    NAMES = ("dotenv", "openai", "litellm", "tqdm", "requests", "pydra", "pydantic")

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        mine = name.partition(".")[0] in self.NAMES
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if mine else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        made = types.ModuleType(spec.name)
        made.__getattr__ = lambda name: lambda *_, **__: None  # type: ignore[method-assign]
        made.BaseModel = Told  # type: ignore[attr-defined]
        return made

    def exec_module(self, module: types.ModuleType) -> None:
        return None


def work_harness(given: argparse.Namespace) -> None:
    """Answer each line, the source of a task and of a ModelNew, with what KernelBench's own evaluation says."""
    end_with_driver()
    sys.path.insert(0, str(given.checkout / "src"))
    sys.meta_path.append(_Absent())  # asked last: what is installed is taken
    import torch

    torch.backends.cuda.matmul.allow_tf32 = given.high
    from kernelbench.eval import eval_kernel_against_ref  # type: ignore[import-not-found]

    from nightshift.kernels.judge.race.gpu_access import Quiet

    quiet, room = Quiet(Path(given.lock)), Room(given)
    tell({"environment": {}, "total": 0})
    for line in sys.stdin:
        reference, new, need = json.loads(line)
        tell({"next_s": _LONGEST_WAIT_S})
        how = {"backend": "triton", "device": torch.device("cuda:0")}
        with room.of(need):
            try:
                row = _harness_row(partial(eval_kernel_against_ref, reference, new, **how), quiet)
            except Exception as error:  # noqa: BLE001  the harness is another project's
                row = {"correct": False, "said": f"{type(error).__name__}: {error}"[:400]}
            give_back()  # what an error held too
        tell(row)


def _harness_row(evaluated: Callable[..., Any], quiet: Any) -> dict[str, Any]:
    import torch

    with torch.device("cuda:0"):  # inputs of many GiB are drawn where they are used
        with quiet.shared():  # its kernels compile
            told = evaluated(num_correct_trials=5)
        if told.correctness:
            with quiet.alone():
                told = evaluated(num_correct_trials=1, num_perf_trials=30, measure_performance=True)
    return {"compiled": told.compiled, "correct": told.correctness, "ms": told.runtime,
            "eager_ms": told.ref_runtime, "said": str(told.metadata)[:400]}  # fmt: skip


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
    """A process that is given tasks, on one GPU of this machine; started again where it ended."""

    def __init__(self, given: argparse.Namespace, command: Sequence[str], gpu: int, threads: int) -> None:
        from nightshift.kernels.loop.fan_out import visible

        self.given, self.command = given, command
        self.settings = {"TORCHINDUCTOR_COMPILE_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
        self.settings["CUDA_VISIBLE_DEVICES"] = visible(gpu, os.environ.get("CUDA_VISIBLE_DEVICES"))
        self.process: subprocess.Popen[str] | None = None
        self.rows: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.environment: dict[str, Any] | None = None
        self.total = 0
        """Bytes of its GPU."""

    def ready(self) -> bool:
        """Whether it listens; started where it does not run."""
        self.start()
        if self.environment is None:
            told = self._next(180.0)
            if told is None:
                self.end()
                return False
            self.environment, self.total = told["environment"], told["total"]
        return True

    def ask(self, line: str) -> dict[str, Any]:
        if not self.ready():
            return {"attempted": False, "why": "no worker starts", "broken": True}
        process = self.process
        assert process is not None
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it ended since: there is no answer
            process.stdin.write(line + "\n")
            process.stdin.flush()
        allowed, begun = self.given.each, dict[str, Any]()
        row = self._next(allowed)
        while row is not None and "next_s" in row:  # not the answer yet: how long until the next word
            begun, allowed = row, row.pop("next_s")
            row = self._next(allowed)
        if row is None:
            ended = process.poll()
            self.end()
            why = f"its worker ended ({ended})" if ended is not None else f"no answer in {allowed:g} s"
            judged = begun.get("status") not in (None, "machine_fault")
            return {"attempted": False, **begun, "why": why, **({} if judged else {"broken": True})}
        return row

    def start(self) -> None:
        if self.process is not None and self.process.poll() is None:
            return
        self.rows, self.environment = queue.SimpleQueue(), None
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env={**os.environ, **self.settings}, start_new_session=True)  # fmt: skip
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


_CLASSES = (20, 40, 70)
"""GiB."""


class Waiting:
    """Tasks that no worker has yet, each from when its need is counted. Those that need much memory come last, and
    those of one class of memory in the order of their names; one worker of each GPU begins at the other end, for
    a large one runs best beside small ones."""

    def __init__(self, names: Sequence[str]) -> None:
        self._place = {name: place for place, name in enumerate(names)}
        self._uncounted = set(names)
        self._ready: dict[str, Need] = {}
        self._condition = threading.Condition()

    def add(self, name: str, need: Need) -> None:
        with self._condition:
            self._uncounted.discard(name)
            self._ready[name] = need
            self._condition.notify_all()

    def take(self, most: float | None = None) -> tuple[str, Need] | None:
        """The next task, or None where all are taken. most: of those that need no more bytes, the largest class."""
        with self._condition:
            self._condition.wait_for(lambda: self._ready or not self._uncounted)
            if not self._ready:
                return None
            name = min(self._ready, key=lambda name: (self._turn(self._ready[name], most), self._place[name]))
            return name, self._ready.pop(name)

    @staticmethod
    def _turn(need: Need, most: float | None) -> int:
        size = sum(need.judge > gib << 30 for gib in _CLASSES)
        return -size if most is not None and need.judge <= most else size


def count(waiting: Waiting, names: Sequence[str], given: argparse.Namespace) -> None:
    """What each task needs; a recurrent one takes half a minute, while others run."""
    if given.attempt or (given.tiny and not given.card):
        for name in names:
            waiting.add(name, Need(0, 0))
        return
    with ProcessPoolExecutor(max(2, (os.cpu_count() or 8) // 4), get_context("spawn")) as pool:
        made = {pool.submit(needed, checkout(given.checkout) / name): name for name in names}
        for future in as_completed(made):  # one that ended with its process: all there is
            waiting.add(made[future], Need() if future.exception() else future.result())


def cards(given: argparse.Namespace) -> int:
    """GPUs that workers are put on."""
    if given.cards or given.tiny or given.attempt:
        return int(given.cards or 1)
    import torch

    return max(1, torch.cuda.device_count())


_LARGE_SHARE = 0.75
"""Of a GPU's memory. A task that needs more waits until it has the GPU alone, so no worker begins with it."""


class Driver:
    """A run: its workers, and the result file, which is written after every task."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.started, self.tasks = given, time.time(), names(given)
        self.commit = commit() or ""
        self.result: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {"rows": {}}
        self.rows: dict[str, dict[str, Any]] = self.result["rows"]
        self.missing = [n for n in self.tasks if n not in self.rows or (given.again and self.rows[n].get("broken"))]
        self.waiting = Waiting(self.missing)
        self.cards = cards(given)
        self.writing, self.over = threading.Lock(), False

    def stop(self, *signalled: Any) -> None:
        self.over = True

    def run(self) -> None:
        given = self.given
        with tempfile.TemporaryDirectory() as folder:
            threads = [
                threading.Thread(target=self._serve, args=(n, folder), daemon=True)
                for n in range(self.cards * given.workers)
            ]
            threads.append(threading.Thread(target=count, args=(self.waiting, self.missing, given), daemon=True))
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads[:-1]) and not self.over:
                time.sleep(0.2)
                self.over |= time.time() - self.started > given.end
            with self.writing:
                self._save()
        print(json.dumps(self.result["summary"], indent=1), flush=True)

    def _serve(self, number: int, folder: str) -> None:
        """Tasks one after the other, on one GPU. Neighbours in number are on different ones, so that a run's first
        tasks are spread over all."""
        given, gpu = self.given, number % self.cards
        threads = max(1, (os.cpu_count() or 1) // (self.cards * given.workers))
        command = self._command(f"{folder}/gpu{gpu}")
        worker = Worker(given, [*command, "--worker", "judge"], gpu, threads)
        harness = Worker(given, [*command, "--worker", "harness"], gpu, threads)
        later, ended = ThreadPoolExecutor(1), list[Future[None]]()
        try:
            if given.harness:
                harness.start()
            worker.ready()
            while time.time() - self.started < given.until:
                one = self.waiting.take(_LARGE_SHARE * worker.total if number < self.cards else None)
                if one is None:
                    break
                print(f"{time.time() - self.started:5.0f} s  {one[0]} begins", flush=True)
                row = worker.ask(json.dumps([one[0], one[1].load, one[1].judge]))
                row["gpu"] = gpu
                ended.append(later.submit(self._finish, one[0], row, harness, worker.environment))
        finally:
            worker.end()
            later.shutdown()
            harness.end()
        for one_row in ended:
            one_row.result()  # what it raised

    def _finish(self, name: str, row: dict[str, Any], harness: Worker, environment: dict[str, Any] | None) -> None:
        """The row with what the harness says, while the worker is at its next task."""
        row["harness"] = {k: harness.ask(json.dumps(x)) for k, x in row.get("harness", {}).items()}
        self._keep(name, row, environment)

    def _command(self, lock: str) -> list[str]:
        given = self.given
        flags = [f"--{name}" for name in ("attempt", "high", "harness") if getattr(given, name)]
        return [sys.executable, "-m", "benchmarks.kernels_any", str(given.checkout), "--trials", str(given.trials),
                "--each", str(given.each), "--tiny", str(given.tiny), "--workers", str(given.workers),
                "--card", str(given.card), "--lock", lock, *flags,
                *([] if given.compile else ["--no-compile"])]  # fmt: skip

    def _keep(self, name: str, row: dict[str, Any], environment: dict[str, Any] | None) -> None:
        with self.writing:
            if self.over:
                return
            self.rows[name] = {**row, "commit": self.commit}
            if environment:
                self.result["environment"] = environment
            self._save()
        print(f"{time.time() - self.started:5.0f} s  {name}: {told(row)}", flush=True)

    def _save(self) -> None:
        given = self.given
        self.result.update(
            tasks=len(self.tasks), summary=summary(self.tasks, self.rows),
            given={"trials": given.trials, "tiny": given.tiny, "cards": self.cards, "workers": given.workers},
            decided_by=decided_by(given), matmul_precision="high" if given.high else "highest",
        )  # fmt: skip
        half = given.out.with_suffix(".half")
        half.write_text(json.dumps(self.result, indent=1, default=str) + "\n")
        half.replace(given.out)


def run(given: argparse.Namespace) -> None:
    driver = Driver(given)
    signal.signal(signal.SIGTERM, driver.stop)
    driver.run()
    if driver.over:
        os._exit(0)  # and its workers with it, whatever they are at


def decided_by(given: argparse.Namespace) -> str:
    if given.attempt:
        return "nothing: candidates were written at published sizes and compiled for an H100, none was judged"
    return "the judge on Triton's interpreter, shrunken tasks; no speed" if given.tiny else "the judge on a GPU"


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
    parser.add_argument("--end", type=float, default=math.inf, help="end what is under way after so many seconds")
    parser.add_argument("--each", type=float, default=120.0, help="seconds of a task; at level 3 twice as many")
    parser.add_argument("--workers", type=int, default=6, help="processes on a GPU at a time")
    parser.add_argument("--cards", type=int, default=0, help="GPUs to use; all of them without")
    parser.add_argument("--trials", type=int, default=4, help="candidates of a task that are raced")
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
