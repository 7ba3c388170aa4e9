"""The zoo: public models' training steps, eager, torch.compile, Liger and our kernels in turns.

    python -m benchmarks.kernels_zoo --only llama3 --out FOLDER --until 270        # one GPU; call it again to go on
    python -m benchmarks.kernels_zoo --only llama3 --parts race liger --out FOLDER --until 270   # no search
    python -m benchmarks.kernels_zoo --tiny --device cpu --out FOLDER              # every part, tiny, on a CPU

Needs `transformers`; Liger takes part where `liger_kernel` is installed and knows the model. For each model, each
part in a process of its own, which ends at `--until` (seconds) and writes its file after every contestant:

1. search: the eager step is traced and `nightshift kernels optimize --trace` writes the job's file: the documented
   path, without a choice by hand. A search that was stopped continues in the next call.
2. race: eager, torch.compile's modes, ours, ours + compile: in turns, in one process.
3. liger: eager again, Liger, ours on top of Liger, Liger + compile. Liger patches modules of `transformers`; and
   what it breaks, a CUDA context, is its own process's.

Before a contestant is timed, its loss and every parameter's gradient are held against eager in float32, in the
mode in which it runs (`benchmarks.zoo_models.wrong`). One that is wrong, or does not run, leaves the race, and the
report says why. Ours keeps what the file's own canary keeps; where that is nothing, it is what it is without, and
is not raced. Peak memory is torch's, without what the others hold.

FOLDER/MODEL.search.json, MODEL.race.json, MODEL.liger.json are the parts; kernels_zoo.json is made of them.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import importlib.metadata
import importlib.util
import itertools
import json
import math
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpt_step import GRAPHS, seconds
from benchmarks.zoo_models import MODELS, Batch, Truth, ZooModel, truth_of, wrong

EAGER = "eager"
PARTS = ("search", "race", "liger")
WARM = 6
"""Steps before anything is measured: regions are compiled and CUDA graphs recorded in the first."""
ENDED = "the process ended in it"
_CODES = itertools.count()
BLOCK = 5
"""Steps between two synchronisations, as a training loop makes them."""


@dataclass(frozen=True)
class Way:
    """How a contestant computes: torch.compile's mode ("": eager), with our file, with Liger."""

    mode: str = ""
    ours: bool = False
    liger: bool = False


WAYS: dict[str, Way] = {
    EAGER: Way(),
    "compile": Way("default"),
    "compile reduce-overhead": Way("reduce-overhead"),
    "ours": Way(ours=True),
    "ours + compile": Way("default", ours=True),
    "ours + compile reduce-overhead": Way("reduce-overhead", ours=True),
    "liger": Way(liger=True),
    "ours + liger": Way(ours=True, liger=True),
    "liger + compile": Way("default", liger=True),
    "compile max-autotune-no-cudagraphs": Way("max-autotune-no-cudagraphs"),
}
"""In the order of their turn to warm up: what takes longest comes last."""


class Patches:
    """What Liger changes of a model's module and of torch's functions: in force between `enter` and `leave`."""

    def __init__(self, model: Any) -> None:
        names = [type(model).__module__, "torch.nn.functional"]
        self._modules = [sys.modules[name] for name in names]
        before = [dict(vars(module)) for module in self._modules]
        from liger_kernel.transformers.monkey_patch import (
            MODEL_TYPE_TO_APPLY_LIGER_FN,
            _apply_liger_kernel_to_instance,
        )

        if model.config.model_type not in MODEL_TYPE_TO_APPLY_LIGER_FN:
            raise NotImplementedError(f"Liger does not know {model.config.model_type}")
        _apply_liger_kernel_to_instance(model)
        self._changed = [
            {k: (old.get(k), v) for k, v in vars(module).items() if old.get(k) is not v}
            for old, module in zip(before, self._modules, strict=True)
        ]

    def enter(self) -> None:
        self._set(1)

    def leave(self) -> None:
        self._set(0)

    def _set(self, which: int) -> None:
        for module, changed in zip(self._modules, self._changed, strict=True):
            for name, pair in changed.items():
                setattr(module, name, pair[which])


@dataclass(frozen=True)
class Kept:
    """What a canary keeps of the job's file. only: its certificates; launches: the compiler launches them; passing:
    its passes change compiled regions."""

    only: tuple[str, ...] = ()
    launches: bool = False
    passing: bool = True


class Job:
    """One contestant: the model, its optimiser and a step, with what is `kept` of the job's file `kernels`.
    chooses: its first steps say what is kept."""

    def __init__(
        self, entry: ZooModel, given: argparse.Namespace, way: Way, seed: int = 1, kernels: Any = None,
        kept: Kept = Kept(), chooses: bool = False,
    ) -> None:  # fmt: skip
        self.device, self.entry, self.way, self.kept = given.device, entry, way, kept
        self.graphs = way.mode in GRAPHS and given.device == "cuda"
        self.model: Any = entry.build(given.device, seed, given.tiny)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=3e-4, betas=(0.9, 0.95), fused=given.device == "cuda" or None
        )
        self.kernels, self.report, self.state = kernels if way.ours else None, None, {}
        self.patches = Patches(self.model) if way.liger else None
        if self.kernels is not None:
            self.report = self.kernels.apply(
                self.model, self.optimizer if chooses else None, shadow_every=0, log_every=0, only=kept.only,
                compiler_launches=kept.launches, weight_copies=entry.autocast,
            )  # fmt: skip
            self.kernels.STATE.passing = kept.passing
        self.forward: Callable[[Batch], torch.Tensor] = self._loss
        if way.mode:
            how = {"mode": way.mode} if given.device == "cuda" else {"backend": "aot_eager"}
            # Dynamo keeps what it compiled by code object: of one code, contestants would run each other's graphs
            code = Job._loss.__code__.replace(co_name=f"loss_{next(_CODES)}")
            own = types.FunctionType(code, Job._loss.__globals__)
            self.forward = torch.compile(types.MethodType(own, self), **how)

    def _loss(self, batch: Batch) -> torch.Tensor:
        with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.entry.autocast):
            return self.model(**batch).loss

    def enter(self) -> None:
        if self.patches is not None:
            self.patches.enter()
        if self.kernels is not None:
            self.kernels.STATE.kernels.update(self.state)
            self.kernels.STATE.open, self.kernels.STATE.passing = self.kept.launches, self.kept.passing
            self.kernels.open_all()
            self.kernels.swap_functions(self.kernels.Report())
            self.kernels.swap_optimizer(self.kernels.Report())

    def leave(self) -> None:
        """What this contestant uses is no other's until `enter`."""
        if self.kernels is not None:
            self.state = dict(self.kernels.STATE.kernels)
            self.kernels.STATE.kernels.clear()
            self.kernels.give_functions_back()  # Liger's, where ours took their place
        if self.patches is not None:
            self.patches.leave()

    def gradients(self, batch: Batch) -> float:
        """The loss; the gradients are the parameters'. Compiled: of a call that recorded and compiled nothing."""
        for _ in range(3 if self.way.mode else 1):
            self.optimizer.zero_grad(set_to_none=True)
            if self.graphs:
                torch.compiler.cudagraph_mark_step_begin()
            loss = self.forward(batch)
            loss.backward()
        return float(loss.detach())

    def step(self, batch: Batch) -> torch.Tensor:
        if self.graphs:
            torch.compiler.cudagraph_mark_step_begin()
        loss = self.forward(batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach().clone() if self.graphs else loss.detach()  # the next replay overwrites it


class OutOfTimeError(Exception):
    """A contestant that was still warming up when the race had to begin."""


class NothingKeptError(Exception):
    """The file's canary gives all places back to torch."""


@contextmanager
def at_most(limit_s: float) -> Iterator[None]:
    def over(*_: Any) -> None:
        raise OutOfTimeError(f"not warm within {limit_s:.0f} s")

    signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, max(1.0, limit_s))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@dataclass
class Race:
    """Contestants of one process, in turns. `result` is what its file holds."""

    entry: ZooModel
    given: argparse.Namespace
    path: Path
    result: dict[str, Any]
    jobs: dict[str, Job] = field(default_factory=dict)
    kernels: Any = None
    kept: dict[str, Kept | Exception] = field(default_factory=dict)
    notes: dict[str, dict[str, Any]] = field(default_factory=dict)
    tries: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.data = self.entry.batches(self.given.device, 4, self.given.tiny)
        self.truth: Truth = truth_of(self.entry, self.given.device, self.data[0], self.given.tiny)
        _emptied()

    def save(self, what: str) -> None:
        self.result["elapsed_s"] = self.given.left.spent()
        _write(self.path, self.result)
        print(f"[{self.result['elapsed_s']:.0f} s] {self.path.stem}: {what}", flush=True)

    def reserve_s(self) -> float:
        """What the race itself will take, of all contestants so far and one more."""
        each = self.result["contestants"].get(EAGER, {}).get("warm_step_s", 0.1)
        return each * (len(self.jobs) + 1) * (self.given.rounds + 1) * BLOCK * 1.4 + 10.0

    def add(self, name: str) -> None:
        """Warms up and checks; one that fails or is wrong is reported and omitted: it must not cost the others."""
        told: dict[str, Any] = self.notes.pop(name, {})
        self.result["contestants"][name] = told
        left_s = self.given.left() - self.reserve_s()
        if left_s < 5.0 and self.jobs:
            told["left_out"] = "no time was left: call again"
            return self.save(f"{name}: {told['left_out']}")
        self._begin(name, told)
        began = time.time()
        try:
            with at_most(left_s):
                job = self._ready(name, told)
            del told["left_out"], told["tries"]
            if why := told["check"]["wrong"]:
                told["left_out"] = f"wrong: {why}"
            else:
                self.jobs[name] = job
        except Exception as error:  # noqa: BLE001
            told["left_out"] = f"{type(error).__name__}: {error}"[:1500]
            if self.kernels is not None:
                self.kernels.STATE.kernels.clear()
                self.kernels.give_functions_back()
        told["warm_s"] = time.time() - began
        job = None  # one that is left out must not keep its memory
        _emptied()
        self.save(f"{name}: {told.get('left_out') or 'right; ' + str(round(told['warm_step_s'] * 1e3, 2)) + ' ms'}")
        return None

    def _ready(self, name: str, told: dict[str, Any]) -> Job:
        way, kept = WAYS[name], self.kept.get(name, Kept())
        if isinstance(kept, Exception):
            raise kept
        held = _allocated()
        job = Job(self.entry, self.given, way, kernels=self.kernels, kept=kept)
        if way.ours:
            told["applied"] = str(job.report)
        try:
            loss = job.gradients(self.data[0])
            why, figures = wrong(self.truth, loss, job.model)
            told["check"] = {"wrong": why, **figures}
            job.optimizer.zero_grad(set_to_none=True)
            losses = [float(job.step(batch)) for batch in itertools.islice(itertools.cycle(self.data), WARM)]
            told["first_losses"] = losses
            if self.given.device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            told["warm_step_s"] = seconds(job, self.data, 3)
            told["peak_bytes"] = _allocated(peak=True) - held
            if way.ours:
                told["rewritten"] = dict(self.kernels.STATE.rewritten)
        finally:
            job.leave()
        return job

    def _begin(self, name: str, told: dict[str, Any]) -> None:
        """Killed in here, as a lost context kills, a second call tries it again, and a third one no more: it would
        lose all others with it."""
        told |= {"tries": self.tries.get(name, 0) + 1, "left_out": ENDED}
        self.result["contestants"][name] = told
        self.save(f"{name} begins")

    def choose(self, names: Sequence[str]) -> None:
        """What the file's own canary keeps of each way; before all else: a canary forgets what is compiled."""
        for name in names:
            told: dict[str, Any] = {}
            self._begin(name, told)
            try:
                with at_most(self.given.left() - 30.0):
                    self.kept[name] = self._kept(WAYS[name], told)
            except Exception as error:  # noqa: BLE001
                self.kept[name] = error
                self.kernels.STATE.kernels.clear()
                self.kernels.give_functions_back()
            del told["left_out"]
            self.notes[name] = told
            _emptied()
            self.save(f"{name}: canary keeps {told.get('kept', self.kept[name])}")

    def _kept(self, way: Way, told: dict[str, Any]) -> Kept:
        """What the file's own canary keeps, in a job of its own."""
        first, turn = self.given.first_steps, itertools.cycle(self.data)
        job = Job(self.entry, self.given, way, kernels=self.kernels, chooses=first)
        began, cpu = time.time(), self.given.device == "cpu"
        try:
            if first:
                while self.kernels.STATE.first_steps.running:
                    job.step(next(turn))
                told["canary"] = job.report.canary
            else:
                told["canary"] = self.kernels.canary(
                    lambda: job.step(next(turn)), steps=1 if cpu else 6, rounds=1 if cpu else 3,
                    turns=2 if cpu else 4, settle_s=0.0 if cpu else 0.2, limit_s=self.given.canary_s,
                )  # fmt: skip
            held = dict(self.kernels.STATE.kernels)
            told["kept"] = sorted(held)
            kept = tuple(kernel.certificate for kernel in held.values())
            if cpu and not kept:  # the interpreter's times mean nothing: that they are used is what a CPU can show
                kept = tuple(record["certificate"] for record in self.kernels.KERNELS)
            opened, passing = bool(self.kernels.STATE.open), cpu or bool(self.kernels.STATE.passing)
            told |= {
                "kept": list(kept),
                "passing": passing,
                "canary_s": time.time() - began,
                "fallbacks": dict(self.kernels.fallbacks()),
            }
        finally:
            self.kernels.unapply(job.model)
            if job.patches is not None:
                job.patches.leave()
            torch._dynamo.reset()
        if not kept and not (way.mode and passing):
            raise NothingKeptError("the canary keeps nothing: as without the file")
        # `only` of nothing would be all of them
        return Kept(kept or ("no kernel",), opened, passing)

    def run(self) -> None:
        """Rounds of a block of each contestant, each round beginning with another one; the first only warms up."""
        times: dict[str, list[float]] = {name: [] for name in self.jobs}
        names = list(self.jobs)
        for turn in range(self.given.rounds + 1):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                job = self.jobs[name]
                job.enter()
                seconds(job, self.data, 1)  # how fast a GPU at its power limit runs depends on what ran before
                taken = seconds(job, self.data, BLOCK)
                job.leave()
                if turn:
                    times[name].append(taken)
            if turn >= 5 and turn % 5 == 0:
                self._told(times)
                self.save(f"round {turn}")
            if self.given.left() < 5.0:
                break
        self._told(times)
        self._losses()
        told = self.result["contestants"]
        enough = min(map(len, times.values()), default=0) * BLOCK >= (1 if self.given.tiny else 25)
        self.result["done"] = enough and not any("no time" in str(c.get("left_out")) for c in told.values())
        self.save("; ".join(f"{n} {c['step_s'][1] * 1e3:.2f} ms" for n, c in told.items() if "step_s" in c))

    def _told(self, times: dict[str, list[float]]) -> None:
        tokens = self.entry.tokens(self.given.tiny)
        for name, values in times.items():
            if values:
                told = self.result["contestants"][name]
                told |= {"blocks_s": values, "steps": len(values) * BLOCK, "step_s": interval(values)}
                told["tokens_per_s"] = tokens / statistics.median(values)
                told["eager_over_it"] = interval([e / v for e, v in zip(times[EAGER], values, strict=False)])

    def _losses(self) -> None:
        """Mean loss over the four batches after the race: all have made as many steps; eager from two other seeds
        says how far that is chance."""
        steps = WARM + 3 + (self.given.rounds + 1) * (BLOCK + 1)
        for name, job in self.jobs.items():
            job.enter()
            self.result["contestants"][name]["last_loss"] = statistics.fmean(float(job.step(b)) for b in self.data)
            job.leave()
        eager_s = statistics.median(self.result["contestants"].get(EAGER, {}).get("blocks_s") or [math.inf])
        found = []
        for seed in (2, 3):
            if self.given.left() < 1.5 * steps * eager_s + 3.0:
                break
            job = Job(self.entry, self.given, WAYS[EAGER], seed)
            for batch in itertools.islice(itertools.cycle(self.data), steps):
                job.step(batch)
            found.append(statistics.fmean(float(job.step(b)) for b in self.data))
            del job
        self.result["eager_seeds_last_loss"] = found


def interval(values: list[float]) -> tuple[float, float, float]:
    """(low, median, high): the 90 % interval of the median by order statistics; of few values their range."""
    ordered, count = sorted(values), len(values)
    # the largest k with P(fewer than k of count fair coins) <= 5 %
    below, k = 0.0, 0
    while (below := below + math.comb(count, k) * 0.5**count) <= 0.05:
        k += 1
    low = max(0, k - 1)
    return ordered[low], statistics.median(ordered), ordered[count - 1 - low]


def _emptied() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _allocated(peak: bool = False) -> int:
    if not torch.cuda.is_available():
        return 0
    return torch.cuda.max_memory_allocated() if peak else torch.cuda.memory_allocated()


def _write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}")
    partial.write_text(json.dumps(value, indent=1) + "\n")
    partial.replace(path)


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError):
        return {}


# The parts -------------------------------------------------------------------------------------------------------


def search(name: str, given: argparse.Namespace) -> None:
    """Trace → the job's file by `nightshift kernels optimize`, as a user types it."""
    from benchmarks.kernels_train_step import trace

    path, run = given.out / f"{name}.search.json", given.out / f"{name}.run"
    result = _read(path) or {"search_s": 0.0, "calls": 0}
    began, before_s = time.time(), float(result["search_s"])
    run.mkdir(parents=True, exist_ok=True)
    recorded = given.out / f"{name}.trace.json"
    if not recorded.exists():
        entry = MODELS[name]
        job = Job(entry, given, WAYS[EAGER])
        trace(job, entry.batches(given.device, 4, given.tiny), recorded)  # type: ignore[arg-type]
        del job
        _emptied()
        result["trace_s"] = time.time() - began
    words = [sys.executable, "-m", "nightshift.agent", "kernels"]
    told = subprocess.run([*words, "profile", str(recorded)], capture_output=True, text=True, check=False)
    result["profile"] = (told.stdout + told.stderr).splitlines()[:24]
    _write(path, result)
    asked = [*words, "optimize", "--trace", str(recorded), "--run", str(run), "--device", given.device]
    asked += (
        ["--most", "2", "--trials", "2"] if given.tiny else ["--most", "12", "--trials", "32", "--minutes", "0.3"]
    )
    log = given.out / f"{name}.search.log"
    with log.open("a") as lines:
        process = subprocess.Popen(asked, stdout=lines, stderr=subprocess.STDOUT)
    while (code := process.poll()) is None and given.left() > 2.0:
        time.sleep(0.5)
        result |= {"search_s": before_s + time.time() - began, "ended_with": None}
        _write(path, result)
    if code is None:
        process.terminate()
        try:
            process.wait(10.0)
        except subprocess.TimeoutExpired:
            process.kill()
    file = run / "nightshift_kernels.py"
    result |= {
        "search_s": before_s + time.time() - began, "ended_with": code, "calls": result["calls"] + 1,
        "file": file.exists(), "done": code is not None, "log": log.read_text().splitlines()[-60:],
    }  # fmt: skip
    _write(path, result)
    print(f"{name}: search {result['search_s']:.0f} s, ended with {code}, a file: {file.exists()}", flush=True)


def race(name: str, given: argparse.Namespace, part: str) -> None:
    path, file = given.out / f"{name}.{part}.json", given.out / f"{name}.run" / "nightshift_kernels.py"
    liger = part == "liger"
    kernels = _loaded(file) if file.exists() else None
    before = _read(path).get("contestants", {})
    result: dict[str, Any] = {"environment": environment(given), "contestants": {}, "done": False}
    if kernels is None and not liger:
        result["ours"] = "no job file: search has not written one"
    elif kernels is not None:
        result["file"] = {"sha256": kernels.kernels_sha256(), "kernels": [r["problem"] for r in kernels.KERNELS]}
    one = Race(MODELS[name], given, path, result, kernels=kernels)
    asked = [
        n for n, way in WAYS.items() if n == EAGER or (way.liger == liger and n in (given.contestants or WAYS))
    ]
    asked = [n for n in asked if kernels is not None or not WAYS[n].ours]
    lost = [n for n in asked if before.get(n, {}).get("tries", 0) >= 2 and before[n].get("left_out") == ENDED]
    one.tries = {n: int(before.get(n, {}).get("tries", 0)) for n in asked}
    result["contestants"] |= {n: before[n] for n in lost}
    asked = [n for n in asked if n not in lost]
    one.choose([n for n in asked if WAYS[n].ours])
    for contestant in asked:
        one.add(contestant)
    if EAGER in one.jobs:
        one.run()


def _loaded(file: Path) -> Any:
    from benchmarks.kernels_train_step import load

    return load(file)


def environment(given: argparse.Namespace) -> dict[str, Any]:
    from nightshift.version import commit

    versions = {}
    for package in ("torch", "triton", "transformers", "liger-kernel"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "none"
    gpu = torch.cuda.get_device_name() if given.device == "cuda" else "none"
    return {
        "gpu": gpu,
        "python": platform.python_version(),
        **versions,
        "commit": given.commit or commit() or "unknown",
    }


# The whole -------------------------------------------------------------------------------------------------------


def whole(given: argparse.Namespace) -> None:
    """Each part of each model that is not done, until the time is over; kernels_zoo.json of all that is there."""
    for name in given.only:
        for part in given.parts:
            if _done(name, part, given):
                continue
            if part == "liger" and importlib.util.find_spec("liger_kernel") is None:
                print(f"{name}: Liger is not installed: left out", flush=True)
                continue
            if given.left() < (1.0 if given.tiny else 25.0):
                print(f"{name}: {part} is left for the next call", flush=True)
                continue
            _in_a_process(name, part, given)
            _write(given.out / "kernels_zoo.json", summary(given.out))
    _write(given.out / "kernels_zoo.json", summary(given.out))
    for name, told in summary(given.out)["models"].items():
        print(name, json.dumps({k: v for k, v in told.items() if k != "contestants"}), flush=True)


def _done(name: str, part: str, given: argparse.Namespace) -> bool:
    told = _read(given.out / f"{name}.{part}.json")
    if not told.get("done"):
        return False
    # a race without the file that a search has written since is not done
    return part == "search" or "file" in told or not (given.out / f"{name}.run" / "nightshift_kernels.py").exists()


def _in_a_process(name: str, part: str, given: argparse.Namespace) -> None:
    words = ["--part", part, "--only", name, "--out", str(given.out), "--device", given.device]
    words += ["--until", f"{given.left():.1f}", "--rounds", str(given.rounds), "--commit", given.commit]
    words += ["--canary-s", str(given.canary_s), *(["--tiny"] if given.tiny else [])]
    words += ["--first-steps"] if given.first_steps else []
    if given.contestants is not None:
        words += ["--contestants", *given.contestants]
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.kernels_zoo", *words])
    try:
        # its own clock ends it before; this is for one that hangs in a compiler
        code: int | str = process.wait(given.left() + 8.0)
    except subprocess.TimeoutExpired:
        process.kill()
        code = "killed at its time"
    if code:
        print(f"{name}: {part} ended with {code}; what it wrote stands", flush=True)


def summary(out: Path) -> dict[str, Any]:
    models = {}
    for name in MODELS:
        parts = {part: _read(out / f"{name}.{part}.json") for part in PARTS}
        if any(parts.values()):
            models[name] = _of_model(MODELS[name], parts)
    return {"models": models, "told": "step_s, eager_over_it: (low, median, high), 90 % interval of the median"}


def _of_model(entry: ZooModel, parts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Contestants of both processes; Liger's times over its own process's eager, times the race's."""
    raced, patched = (parts[p].get("contestants", {}) for p in ("race", "liger"))
    contestants = {**raced, **{n: c for n, c in patched.items() if n != EAGER}}
    timed = {n: c["eager_over_it"][1] for n, c in contestants.items() if "eager_over_it" in c}
    ours = {n: v for n, v in timed.items() if WAYS[n].ours}
    others = {n: v for n, v in timed.items() if not WAYS[n].ours}
    told: dict[str, Any] = {
        "note": entry.note, "environment": parts["race"].get("environment") or parts["liger"].get("environment"),
        "search": {k: v for k, v in parts["search"].items() if k not in ("log",)},
        "over_eager": timed,
        "left_out": {n: c["left_out"] for n, c in contestants.items() if "left_out" in c},
        "peak_gib": {n: c["peak_bytes"] / 2**30 for n, c in contestants.items() if "peak_bytes" in c},
    }  # fmt: skip
    if others:
        best = max(others, key=lambda n: others[n])
        told["best_without"] = best
        # nothing applied counts as 1: who has our file is free not to use it
        told["best_with_over_best_without"] = max([*ours.values(), others[best]]) / others[best]
        told["ours_over_same_mode"] = {
            n: v / others[same] for n, v in ours.items() if (same := _without(n)) in others
        }  # fmt: skip
        if ours:
            told["best_ours"] = max(ours, key=lambda n: ours[n])
            told["best_ours_over_best_without"] = ours[told["best_ours"]] / others[best]
    return {**told, "contestants": contestants}


def _without(name: str) -> str:
    return next(n for n, way in WAYS.items() if way == replace(WAYS[name], ours=False))


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=MODELS, default=list(MODELS), help="Models, in this order")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "artefacts")) / "kernels_zoo")
    parser.add_argument("--until", type=float, default=1e9, help="Seconds after which it ends; call again to go on")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--contestants", nargs="+", choices=WAYS, default=None, help="Only these, and eager")
    parser.add_argument("--rounds", type=int, default=0, help="Of five steps each; default: 12, tiny 1")
    parser.add_argument("--canary-s", type=float, default=40.0, help="Most seconds of each canary")
    parser.add_argument("--first-steps", action="store_true", help="The first steps of a job choose, as for users")
    parser.add_argument("--tiny", action="store_true", help="Tiny sizes, to see that every part works")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--commit", default="", help="Where the checkout has no .git")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    given.rounds = given.rounds or (1 if given.tiny else 12)
    given.left = Left(given.until)
    return given


class Left:
    """Seconds left of `--until`, by the process's own clock."""

    def __init__(self, until_s: float) -> None:
        self._until_s, self._began = until_s, time.monotonic()

    def spent(self) -> float:
        return time.monotonic() - self._began

    def __call__(self) -> float:
        return self._until_s - self.spent()


def main() -> None:
    given = arguments()
    if given.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    if not given.part:
        return whole(given)
    # contestants share the step's code object: each is one more entry of its cache
    torch._dynamo.config.recompile_limit = 64
    if given.part == "search":
        return search(given.only[0], given)
    return race(given.only[0], given, given.part)


if __name__ == "__main__":
    main()
