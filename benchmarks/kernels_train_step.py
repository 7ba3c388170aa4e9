"""From a trace to applied kernels without a person choosing: a GPT-like training step before and after, in one run.

    python -m benchmarks.kernels_train_step                  # two GPUs: eight minutes; one: fifteen
    python -m benchmarks.kernels_train_step --tiny           # a CPU, only to see that every part works

The model is the one of `tests/recordings/h200_train_trace.json.gz`: 92 M parameters, bf16 autocast, batch 16 × 512.

1. The eager step is profiled; hotspots are ranked against peaks probed here; searches run on all GPUs, each with
   its own judge; certificates are issued and the file for the job is written. The last GPU joins once
   torch.compile's modes, max-autotune too, have been compiled there into the cache that the race reads; where that
   takes longer than the searches, it goes on while the canary runs.
2. The file's canary decides in the job's own step, on the first GPU, which kernels stay.
3. The race, in turns in one process on the first GPU, nothing else on it: eager and torch.compile in its modes, all
   with fused AdamW, and the compiled ones with the kernels kept. A round times every contestant; the figures are
   medians over rounds, and the peer is the best of torch.compile's modes. Where the steps go, kernel by kernel,
   stands beside the figures.
4. Meanwhile the loss, on the last GPU, once that is free (`benchmarks.kernels_train_loss`).

One GPU does the same, one part after the other.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.gpt_step import SIZE, TINY, Job, batches, seconds
from benchmarks.kernels_step_profile import measured
from benchmarks.part import Part

OUT = Path(os.environ.get("OUT", Path(__file__).parent / "results"))
STARTED = time.time()
EAGER = "eager, fused AdamW"
MODES = ("default", "reduce-overhead", "max-autotune")
DOUBTED: tuple[tuple[str, ...], ...] = ((), ("adamw_many", "adamw_cast", "rmsnorm_cast_backward"))
"""What a canary that fails is tried without, after nothing: what rewrites a compiled graph. It is told."""
Contestant = tuple[str, tuple[str, ...] | None, bool]
"""A mode of torch.compile, the kernels used or None, whether the compiler launches them."""


def save(result: dict[str, Any], what: str) -> None:
    result["elapsed_s"] = time.time() - STARTED
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "kernels_train_step.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"[{result['elapsed_s']:.0f} s] {what}", flush=True)


def load(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location("nightshift_kernels", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["nightshift_kernels"] = module
    spec.loader.exec_module(module)
    return module


def trace(job: Job, data: list[torch.Tensor], path: Path) -> None:
    for _ in range(3):
        job.step(data[0])
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if job.device == "cuda" else [])
    with profile(activities=activities, record_shapes=True) as session:
        for number in range(3):
            with record_function(f"ProfilerStep#{number}"):
                job.step(data[number])
                if job.device == "cuda":
                    torch.cuda.synchronize()
    session.export_chrome_trace(str(path))


def optimise(run: Path, path: Path, given: argparse.Namespace, peers: Part | None) -> dict[str, Any]:
    """Trace → hotspots → searches → certificates → the job's file. Nobody chooses anything."""
    from nightshift.collectors.seal import Signer
    from nightshift.kernels.apply.bundle import FILE, kernel_record, write_bundle
    from nightshift.kernels.apply.job.problems import SPECS, UNTRAINED
    from nightshift.kernels.judge.judge import Request
    from nightshift.kernels.judge.probes.inputs import QUICK_GPU
    from nightshift.kernels.judge.race.contest import Pace
    from nightshift.kernels.loop import cli
    from nightshift.kernels.loop import optimise as loop
    from nightshift.kernels.loop.fan_out import Means, as_it_is, search_all
    from nightshift.kernels.loop.report import write_report
    from nightshift.kernels.loop.run_folder import write_json
    from nightshift.kernels.loop.search import Ladder, SearchBudget
    from nightshift.kernels.profile.hotspots import as_text
    from nightshift.kernels.profile.hotspots import profile as read_profile
    from nightshift.kernels.profile.roofline import probe

    on_gpu = not given.tiny
    peaks = probe("cuda") if on_gpu else None
    found = read_profile(path, peaks)
    works, decisions = loop.from_profile(
        found, run, peaks, given.most, 0.002, problems=frozenset(SPECS), untrained=UNTRAINED
    )
    write_json(run / "profile.json", cli._profile_json(found, decisions))
    print(as_text(found), flush=True)
    if not on_gpu:
        works = [cli._tiny(work) for work in works][:2]
    signer = Signer.generate()
    # searches race eager only: torch.compile's baselines cost half a minute each, and the step is what counts here
    means = Means(
        run, signer.to_bytes(), given.commit, SearchBudget(given.trials, given.search_s, patience=24, batch=16),
        Ladder(full=Request(QUICK_GPU, Pace(min_rounds=15, max_rounds=30))) if on_gpu else loop.ON_CPU, peaks,
        device="cuda" if on_gpu else "cpu", gpus=tuple(range(given.gpus)), threads=12 if on_gpu else 1,
        compiled=False, finish=as_it_is if on_gpu else cli._tiny,
    )  # fmt: skip
    began = time.time()

    def ready(gpu: int) -> bool:
        """The last GPU is free again once its modes are compiled, or their time is over."""
        return peers is None or gpu != given.gpus - 1 or peers.over(STARTED + given.autotune_s)

    def enough() -> bool:
        return time.time() - STARTED > given.searches_until

    rows, records = [], []
    for done in search_all(
        works, means, lambda text: print(f"[{time.time() - STARTED:.0f} s] {text}"), ready, enough
    ):
        rows.append({"task": done.work.task.name, "why": done.why, "trials": done.trials})
        print(f"{done.work.slug}: {done.why}", flush=True)
        if done.certified is not None:
            record = kernel_record(json.loads(done.certified.read_text()), {signer.key_id: signer.public})
            if record["status"] == "faster" or not on_gpu:
                records.append(record)
    write_bundle(run / FILE, records)
    write_report(run)
    return {
        "peaks": peaks.to_json() if peaks else None,
        "decisions": [
            {"operation": h.name, "ms": h.total_s * 1e3, "gain": h.gain, "why": why} for h, why in decisions
        ],
        "searches": rows,
        "searches_s": time.time() - began,
        "applied": [r["problem"] for r in records],
    }


class Race:
    """Contestants by name."""

    def __init__(self, device: str, size: dict[str, int], data: list[torch.Tensor], kernels: Any = None) -> None:
        self.device, self.size, self.data, self.kernels = device, size, data, kernels
        self.jobs: dict[str, Job] = {}
        self.broken: dict[str, str] = {}
        self.warm_s: dict[str, float] = {}

    def add(self, name: str, contestant: Contestant, seed: int = 1) -> None:
        """Warms up; one that fails is told of and left out: it must not cost the others."""
        mode, only, launches = contestant
        began = time.time()
        try:
            given = self.kernels if only is not None else None
            job = Job(self.size, self.device, seed, mode, given, only or (), launches)
            seconds(job, self.data, 4)
            job.leave()
            self.jobs[name] = job
        except Exception as error:  # noqa: BLE001
            self.broken[name] = f"{type(error).__name__}: {error}"[:2000]
            print(name, self.broken[name], flush=True)
            if self.kernels is not None:
                self.kernels.STATE.kernels.clear()
                self.kernels.give_functions_back()
        self.warm_s[name] = time.time() - began

    def run(self, rounds: int, count: int) -> dict[str, list[float]]:
        """Seconds a step, of each round; every contestant in each round. The first round only warms up.

        Each round begins with another contestant, and each contestant with a few steps that are not timed: how fast
        a GPU at its power limit runs depends on what ran before.
        """
        times: dict[str, list[float]] = {name: [] for name in self.jobs}
        names = list(self.jobs)
        for turn in range(rounds + 1):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                job = self.jobs[name]
                job.enter()
                seconds(job, self.data, max(1, count // 4))
                taken = seconds(job, self.data, count)
                job.leave()
                if turn:
                    times[name].append(taken)
        return times

    def profiles(self) -> dict[str, Any]:
        """Where each step goes, kernel by kernel."""
        found = {}
        for name, job in self.jobs.items():
            job.enter()
            found[name] = measured(job, self.data, 3)
            found[name]["kernels"] = found[name]["kernels"][:45]
            job.leave()
        return found


def summary(times: dict[str, list[float]], tokens: int) -> dict[str, Any]:
    """Ours is the best of the contestants with kernels; over_compile: over the best mode of torch.compile, and each
    mode with kernels over the same without."""
    medians = {name: statistics.median(values) for name, values in times.items()}
    mine = {name: value for name, value in medians.items() if "kernels" in name}
    compiled = {n: v for n, v in medians.items() if n.startswith("compile") and n not in mine}
    peer = min(compiled, key=lambda n: compiled[n])
    ours = min(mine or compiled, key=lambda n: medians[n])
    return {
        "step_s": times,
        "tokens_per_s": {name: tokens / value for name, value in medians.items()},
        "ours": ours,
        "peer": peer,
        "over_compile": {name: medians[peer] / value for name, value in mine.items()},
        "over_own_mode": {n: medians[n.replace(" + kernels", "")] / v for n, v in mine.items()},
        "over_eager": {name: medians[EAGER] / value for name, value in mine.items()},
        "best_tokens_per_s": {"ours": tokens / medians[ours], "compile": tokens / medians[peer]},
        "best_over_best_compile": medians[peer] / medians[ours],
        "best_over_eager": medians[EAGER] / medians[ours],
    }


def told_of(result: dict[str, Any]) -> str:
    best, peer = result["best_over_best_compile"], result["peer"]
    steps = {name: f"{1e3 * statistics.median(values):.3f} ms" for name, values in result["step_s"].items()}
    return f"{steps}\n{result['ours']}: {best:.3f}× {peer}, {result['best_over_eager']:.3f}× eager"


def judged_by_the_step(race: Race, mode: str, count: int, limit_s: float, result: dict[str, Any]) -> Contestant:
    """What the job's own canary keeps in this mode."""
    kernels = race.kernels
    every = tuple(sorted(record["problem"] for record in kernels.KERNELS))
    kept: tuple[str, ...] = ()
    launches, failed = False, True
    for left_out in DOUBTED if every else ():
        job = Job(race.size, race.device, 1, mode, kernels, [name for name in every if name not in left_out])
        turn = itertools.cycle(race.data)
        try:
            step = lambda job=job, turn=turn: job.step(next(turn))  # noqa: E731
            result["canary"] = kernels.canary(step, steps=count, turns=3, limit_s=limit_s)
            kept, launches, failed = tuple(sorted(kernels.STATE.kernels)), kernels.STATE.open, False
            result["calls"] = {name: kernel.calls for name, kernel in sorted(kernels.STATE.kernels.items())}
            result["fallbacks"] = dict(kernels.fallbacks())
        except Exception as error:  # noqa: BLE001
            result.setdefault("broken", {})[f"canary without {left_out}"] = f"{type(error).__name__}: {error}"[
                :2000
            ]
        kernels.unapply(job.model)
        torch._dynamo.reset()
        if not failed:
            break
    result["kept"], result["launched_by_the_compiler"] = list(kept), launches
    return mode, kept, launches


def loss_after(peers: Part, limit_s: float, parts: tuple[Any, ...], loss: list[Part]) -> None:
    """The loss begins once the peers' modes are compiled, or their time is over: the last GPU is free then."""
    while not peers.over(STARTED + limit_s):
        time.sleep(0.2)
    loss.append(Part(OUT, *parts))


def compile_peers(device: str, size: dict[str, int], data: list[torch.Tensor], run: Path) -> None:
    """Fills the compiler's cache with every mode of the peers, so that the race need not wait for them."""
    race = Race(device, size, data)
    for mode in MODES:
        race.add(mode, (mode, None, False))
        (run / "peers.json").write_text(json.dumps({"warm_s": race.warm_s, "broken": race.broken}))
        print(mode, race.warm_s[mode], flush=True)
        race.jobs.clear()
        torch._dynamo.reset()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--compile-peers", action="store_true", help="only this part")
    parser.add_argument("--gpus", type=int, default=0, help="how many; 0: all that are visible")
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--search-s", type=float, default=10.0, help="most seconds of each search")
    parser.add_argument("--most", type=int, default=12, help="operations; a linear layer's products are of them")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--loss-steps", type=int, default=300)
    parser.add_argument("--autotune-s", type=float, default=320.0, help="the peers' modes compile until then")
    parser.add_argument("--searches-until", type=float, default=230.0, help="no search is begun after so many s")
    parser.add_argument("--canary-s", type=float, default=110.0, help="most seconds of the canary")
    parser.add_argument("--until", type=float, default=1e9, help="after so many seconds the loss is not waited for")
    parser.add_argument("--bundle", type=Path, help="the job's file of an earlier run instead of searches")
    parser.add_argument("--commit", default="benchmark")
    given = parser.parse_args()
    device = "cpu" if given.tiny else "cuda"
    if given.tiny:
        os.environ["TRITON_INTERPRET"] = "1"
    given.gpus = given.gpus or (1 if given.tiny else torch.cuda.device_count())
    size, count, rounds = (TINY, 2, 2) if given.tiny else (SIZE, 20, given.rounds)
    tiny = ("--tiny", "--loss-steps", "3") if given.tiny else ("--loss-steps", str(given.loss_steps))
    run = OUT / "train_step_run"
    run.mkdir(parents=True, exist_ok=True)
    data = batches(size, device, 8 if given.tiny else 24)
    if given.compile_peers:
        return compile_peers(device, size, data, run)
    peers = Part(OUT, "kernels_train_step", given.gpus - 1, "--compile-peers") if given.gpus > 1 else None
    tokens = size["batch"] * size["t"]
    result: dict[str, Any] = {
        "environment": {
            "gpu": torch.cuda.get_device_name() if device == "cuda" else "none", "gpus": given.gpus,
            "torch": str(torch.__version__), "commit": given.commit,
        },
        "size": size,
    }  # fmt: skip
    bundle = given.bundle
    if bundle is None:
        trace(Job(size, device, 1, ""), data, run / "trace.json")
        if device == "cuda":
            torch.cuda.empty_cache()  # the judge counts what is left
        save(result, "traced")
        result["loop"] = optimise(run, run / "trace.json", given, peers)
        (run / "trace.json").unlink()
        save(result, f"searched; to apply: {result['loop']['applied']}")
        bundle = run / "nightshift_kernels.py"
    kept = run / "kept.json"
    kept.unlink(missing_ok=True)
    parts = ("kernels_train_loss", given.gpus - 1, str(bundle), str(kept), *tiny)
    loss: list[Part] = []
    freed = threading.Thread(target=loss_after, args=(peers, given.autotune_s, parts, loss))
    if peers is not None:
        freed.start()

    race = Race(device, size, data, load(bundle))
    ours = judged_by_the_step(race, "reduce-overhead", max(2, count // 2), given.canary_s, result)
    kept.write_text(json.dumps({"mode": ours[0], "only": ours[1], "launches": ours[2]}))
    save(result, f"canary: {result['kept']}")
    if peers is not None:
        freed.join()
        result["peers_compiled"] = json.loads((run / "peers.json").read_text())
    contestants: dict[str, Contestant] = {EAGER: ("", None, False)}
    for mode in MODES:
        if mode == "max-autotune" and device == "cpu":
            continue
        if mode == "max-autotune" and peers is not None and mode not in result["peers_compiled"]["warm_s"]:
            race.broken[mode] = f"did not compile within {given.autotune_s:.0f} s of the run"
            continue
        name = "compile" if mode == "default" else f"compile {mode}"
        contestants[name] = (mode, None, False)
        if ours[1] and mode != "max-autotune":
            # graphs launch without the host; without them a closed operator costs it more than a kernel gains
            contestants[f"{name} + kernels"] = (mode, ours[1], ours[2] or mode == "default")
    for name, contestant in contestants.items():
        race.add(name, contestant)
        save(result, f"warm: {name} ({race.warm_s[name]:.0f} s)")
    result["reports"] = {name: job.report for name, job in race.jobs.items()}
    result["broken"] = {**result.get("broken", {}), **race.broken}
    result |= summary(race.run(rounds, count), tokens)
    save(result, told_of(result))
    if device == "cuda":
        result["profiles"] = race.profiles()
        save(result, "profiled")
    result["log_line"] = race.kernels.log_line()
    race.jobs.clear()
    whole = (loss[0] if loss else Part(OUT, *parts)).wait(given.until - (time.time() - STARTED))
    if (OUT / "kernels_train_loss.json").exists():
        result["loss"] = {**json.loads((OUT / "kernels_train_loss.json").read_text()), "whole": whole}
        (OUT / "kernels_train_loss.json").unlink()
    save(result, f"loss: {result.get('loss', {}).get('told', 'none')}")


if __name__ == "__main__":
    main()
