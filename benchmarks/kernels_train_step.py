"""From a trace to applied kernels without a person choosing: a GPT-like training step before and after.

    python -m benchmarks.kernels_train_step            # one GPU, about ten minutes
    python -m benchmarks.kernels_train_step --tiny     # a CPU, only to see that every part works

The model is the one of `tests/recordings/h200_train_trace.json.gz`: 92 M parameters, bf16 autocast, batch 16 × 512.

1. The eager step is profiled; hotspots are ranked against peaks probed here; searches run; certificates are issued.
2. The file for the job is written; after a first race its canary decides which kernels the better mode keeps.
3. Contestants, timed in turns in one process: eager and torch.compile in its modes, all with fused AdamW, and the
   compiled ones with the kernels applied. A round times every contestant; the figures are medians over rounds, and
   the peer is the best of torch.compile's modes. Where the steps go, kernel by kernel, stands beside the figures.
4. Loss: six eager seeds and one run with the kernels, 300 steps, on the same batches. The yardstick is the sixth
   seed: how often a run without any kernel leaves the band of the other five. Beside it stands how far a run
   leaves the eager one of its own seed, with the kernels and with torch.compile alone.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.gpt_step import SIZE, TINY, Job, batches, seconds
from benchmarks.kernels_step_profile import measured

OUT = Path(os.environ.get("OUT", Path(__file__).parent / "results"))
STARTED = time.time()
EAGER, TUNED = "eager, fused AdamW", "compile max-autotune, fused AdamW"
DOUBTED = (("adamw_cast",), ("rmsnorm_cast_backward",), ("adamw_cast", "rmsnorm_cast_backward"))
"""What a contestant that fails is tried without: what rewrites a compiled graph. It is told."""
Contestant = tuple[str, tuple[str, ...] | None, bool]


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


def optimise(
    run: Path, path: Path, device: str, trials: int, wall_s: float, most: int, known: list[dict[str, Any]]
) -> dict[str, Any]:
    """Trace → hotspots → searches → certificates → the job's file. Nobody chooses anything.

    known: kernels that an earlier run on this kind of GPU certified; their problems are not searched again.
    """
    from collectors.seal import Signer
    from kernels import loop_cli
    from kernels import optimise as loop
    from kernels.apply.bundle import FILE, kernel_record, write_bundle
    from kernels.apply.job.problems import SPECS, UNTRAINED
    from kernels.executor import LocalExecutor
    from kernels.judge.contest import Pace
    from kernels.judge.inputs import QUICK_GPU
    from kernels.judge.judge import Judge, Request
    from kernels.ledger import Provenance
    from kernels.profile.hotspots import as_text
    from kernels.profile.hotspots import profile as read_profile
    from kernels.profile.roofline import probe
    from kernels.report import write_report
    from kernels.search import Budget, Ladder

    peaks = probe(device) if device == "cuda" else None
    found = read_profile(path, peaks)
    places = frozenset(SPECS)
    works, decisions = loop.from_profile(found, run, peaks, most, 0.002, problems=places, untrained=UNTRAINED)
    loop_cli._write(run / "profile.json", loop_cli._profile_json(found, decisions))
    print(as_text(found), flush=True)
    if device == "cpu":
        works = [loop_cli._tiny(work) for work in works]
    ladder = (
        Ladder(full=Request(QUICK_GPU, Pace(min_rounds=15, max_rounds=30))) if device == "cuda" else loop.ON_CPU
    )
    signer = Signer.generate()
    rows = []
    # searches race eager only: torch.compile's baselines cost half a minute each, and the step is what counts here
    with Judge(device, interpret=device == "cpu", compiled=False) as judge:
        executor = LocalExecutor([judge], 12 if device == "cuda" else 1)
        made = loop.Run(
            run, executor, Provenance("benchmark", judge.environment.gpu, "none"), signer,
            Budget(trials=trials, wall_s=wall_s, patience=24, batch=16), ladder, peaks, tell=lambda text: None,
        )  # fmt: skip
        records = list(known)
        for work in works:
            if work.task.problem.name in {record["problem"] for record in known}:
                rows.append({"task": work.task.name, "why": "certified in an earlier run", "trials": 0})
                continue
            (done,) = made.search([work])
            print(f"{work.slug}: {done.why}", flush=True)
            rows.append(
                {"task": work.task.name, "why": done.why, "trials": done.result.trials if done.result else 0}
            )
            if done.certified is not None:
                record = kernel_record(json.loads(done.certified.read_text()), {signer.key_id: signer.public})
                if record["status"] == "faster" or device == "cpu":
                    records.append(record)
    write_bundle(run / FILE, records)
    write_report(run)
    return {
        "peaks": peaks.to_json() if peaks else None,
        "decisions": [
            {"operation": h.name, "ms": h.total_s * 1e3, "gain": h.gain, "why": why} for h, why in decisions
        ],
        "searches": rows,
        "applied": [r["problem"] for r in records],
    }


class Race:
    """Contestants by name, each (mode of torch.compile, kernels used or None, launched by the compiler)."""

    def __init__(self, device: str, size: dict[str, int], data: list[torch.Tensor], kernels: Any) -> None:
        self.device, self.size, self.data, self.kernels = device, size, data, kernels
        self.jobs: dict[str, Job] = {}
        self.broken: dict[str, str] = {}

    def add(self, name: str, contestant: Contestant, seed: int = 1) -> None:
        """Warms up; one that fails is told of and left out: it must not cost the others."""
        mode, only, launches = contestant
        try:
            given = self.kernels if only is not None else None
            job = Job(self.size, self.device, seed, mode, given, only or (), launches)
            seconds(job, self.data, 4)
            job.leave()
            self.jobs[name] = job
        except Exception as error:  # noqa: BLE001
            self.broken[name] = f"{type(error).__name__}: {error}"[:2000]
            print(name, self.broken[name], flush=True)
            self.kernels.STATE.kernels.clear()
            self.kernels.give_functions_back()

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
    """Ours is the best of the contestants with kernels; over_compile: over the best mode of torch.compile."""
    medians = {name: statistics.median(values) for name, values in times.items()}
    mine = {name: value for name, value in medians.items() if "kernels" in name}
    ours = min(mine, key=lambda n: mine[n])
    compiled = {n: v for n, v in medians.items() if n.startswith("compile") and n not in mine}
    peer = min(compiled, key=lambda n: compiled[n])
    return {
        "step_s": times,
        "tokens_per_s": {name: tokens / value for name, value in medians.items()},
        "ours": ours,
        "peer": peer,
        "over_compile": {name: medians[peer] / value for name, value in mine.items()},
        "over_eager": {name: medians[EAGER] / value for name, value in mine.items()},
        "best_tokens_per_s": {"ours": tokens / medians[ours], "compile": tokens / medians[peer]},
        "best_over_best_compile": medians[peer] / medians[ours],
        "best_over_eager": medians[EAGER] / medians[ours],
    }


def losses(race: Race, contestant: Contestant, steps: int) -> dict[str, Any]:
    """Our curve against the band of five eager seeds; the yardstick is a sixth seed."""

    def curve(job: Job) -> list[float]:
        found: list[float] = torch.stack([job.step(race.data[n % len(race.data)]) for n in range(steps)]).tolist()
        return found

    torch._dynamo.reset()
    curves = {f"eager seed {s}": curve(Job(race.size, race.device, s, "")) for s in range(1, 7)}
    sixth = curves.pop("eager seed 6")
    mode, only, launches = contestant
    plain_curve = curve(Job(race.size, race.device, 1, mode))
    torch._dynamo.reset()
    mine = curve(Job(race.size, race.device, 1, mode, race.kernels, only or (), launches))
    band = [(min(column), max(column)) for column in zip(*curves.values(), strict=True)]
    slack = statistics.median(high - low for low, high in band)

    def outside(values: list[float], slack: float = 0.0) -> int:
        pairs = zip(values, band, strict=True)
        return sum(not low - slack <= value <= high + slack for value, (low, high) in pairs)

    def gap(values: list[float]) -> float:
        return max(abs(a - b) for a, b in zip(values, curves["eager seed 1"], strict=True))

    return {
        "steps": steps,
        "last": {**{name: values[-1] for name, values in curves.items()}, "ours": mine[-1]},
        "outside_band": outside(mine),
        "outside_band_of_a_sixth_seed": outside(sixth),
        "outside_band_expected_of_a_sixth_seed": steps * 2 / 6,  # of six alike, each is first or last so often
        "outside_band_and_its_median_width": outside(mine, slack),
        "outside_band_and_its_median_width_of_a_sixth_seed": outside(sixth, slack),
        "largest_gap_to_the_same_seed": gap(mine),
        "largest_gap_of_compile_to_the_same_seed": gap(plain_curve),
        "curve_every_10": {"ours": mine[::10], **{name: values[::10] for name, values in curves.items()}},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--search-s", type=float, default=10.0, help="most seconds of each search")
    parser.add_argument("--most", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--loss-steps", type=int, default=300)
    parser.add_argument("--until", type=float, default=1e9, help="begin no further part after so many seconds")
    parser.add_argument("--bundle", type=Path, help="the job's file of an earlier run instead of searches")
    parser.add_argument("--known", type=Path, help="a job's file whose kernels are not searched again")
    parser.add_argument("--autotune", action="store_true", help='last a peer more: mode="max-autotune"')
    given = parser.parse_args()
    device = "cpu" if given.tiny else "cuda"
    if given.tiny:
        os.environ["TRITON_INTERPRET"] = "1"
    size, count, loss_steps, rounds = SIZE, 20, given.loss_steps, given.rounds
    if given.tiny:
        size, count, loss_steps, rounds = TINY, 2, 3, 2
    run = OUT / "train_step_run"
    run.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {
        "environment": {
            "gpu": torch.cuda.get_device_name() if device == "cuda" else "none", "torch": str(torch.__version__),
        },
        "size": size,
    }  # fmt: skip
    data = batches(size, device, 8 if given.tiny else 24)
    tokens = size["batch"] * size["t"]
    bundle = given.bundle
    known = load(given.known).KERNELS if given.known else []
    if bundle is None:
        trace(Job(size, device, 1, ""), data, run / "trace.json")
        if device == "cuda":
            torch.cuda.empty_cache()  # the judge counts what is left
        save(result, "traced")
        result["loop"] = optimise(run, run / "trace.json", device, given.trials, given.search_s, given.most, known)
        (run / "trace.json").unlink()
        save(result, f"searched; to apply: {result['loop']['applied']}")
        bundle = run / "nightshift_kernels.py"

    kernels = load(bundle)
    every = tuple(sorted(record["problem"] for record in kernels.KERNELS))
    race = Race(device, size, data, kernels)
    contestants: dict[str, Contestant] = {EAGER: ("", None, False)}
    for mode in ("default", "reduce-overhead"):
        name = "compile" if mode == "default" else f"compile {mode}"
        contestants[f"{name}, fused AdamW"] = (mode, None, False)
        if every:
            contestants[f"{name} + all kernels"] = (mode, every, mode == "default")
    for name, contestant in list(contestants.items()):
        race.add(name, contestant)
        for fewer in DOUBTED if contestant[1] and name in race.broken else ():
            torch._dynamo.reset()
            used = tuple(problem for problem in every if problem not in fewer)
            contestants[name] = (contestant[0], used, contestant[2])
            race.add(name, contestants[name])
            if name in race.jobs:
                result.setdefault("left_out", {})[name] = [fewer, race.broken[name]]
                break
        save(result, f"warm: {name}")
    found = summary(race.run(rounds, count), tokens)
    result["reports"] = {name: job.report for name, job in race.jobs.items()}
    result["broken"] = race.broken
    result |= found
    save(result, told_of(result))
    if device == "cuda":
        result["profiles"] = race.profiles()
        save(result, "profiled")

    ours = found["ours"]
    mode = contestants[ours][0]
    if time.time() - STARTED < given.until and every:
        job = Job(size, device, 1, mode, kernels, contestants[ours][1])
        turn = itertools.cycle(data)
        result["canary"] = kernels.canary(lambda: job.step(next(turn)), steps=max(2, count // 2))
        kept, launches = tuple(sorted(kernels.STATE.kernels)), kernels.STATE.open
        kernels.unapply(job.model)
        del job
        result["kept"], result["launched_by_the_compiler"] = list(kept), launches
        save(result, f"canary in {mode}: {kept}")
        if kept:
            result["all_kernels"] = found
            last = Race(device, size, data, kernels)
            ours = ours.replace("all kernels", "kernels")
            contestants[ours] = (mode, kept, launches)
            for name in (EAGER, *(n for n in contestants if "kernels" not in n and n in race.jobs), ours):
                if name not in last.jobs:
                    last.add(name, contestants[name])
            race = last
            result |= summary(race.run(rounds, count), tokens)
            save(result, told_of(result))
    if time.time() - STARTED < given.until:
        result["loss"] = losses(race, contestants[ours], loss_steps)
        strictly, sixth = (result["loss"][f"outside_band{of}"] for of in ("", "_of_a_sixth_seed"))
        told = f"{strictly} of {loss_steps} steps outside the band of five eager seeds, of a sixth {sixth}"
        save(result, f"loss: {told}")
    result["log_line"] = kernels.log_line()
    save(result, "done")
    if given.autotune:
        torch._dynamo.reset()
        last = Race(device, size, data, kernels)
        contestants[TUNED] = ("max-autotune", None, False)
        for name in (EAGER, result["peer"], ours, TUNED):
            last.add(name, contestants[name])
        result["with_autotune"] = summary(last.run(rounds, count), tokens)
        save(result, "raced max-autotune: " + told_of(result["with_autotune"]))


def told_of(result: dict[str, Any]) -> str:
    best, peer = result["best_over_best_compile"], result["peer"]
    steps = {name: f"{1e3 * statistics.median(values):.3f} ms" for name, values in result["step_s"].items()}
    return f"{steps}\n{result['ours']}: {best:.3f}× {peer}, {result['best_over_eager']:.3f}× eager"


if __name__ == "__main__":
    main()
