"""From a trace to applied kernels without a person choosing: a GPT-like training step before and after.

    python -m benchmarks.kernels_train_step            # one GPU, about ten minutes
    python -m benchmarks.kernels_train_step --tiny     # a CPU, only to see that every part works

The next GPU minutes (one H200, about seven): `--most 8 --trials 24 --search-s 10 --rounds 7`. New since the
committed run: AdamW has a place, and writes weights' copies; a norm's gradient has one without its forward, and
takes the residual's along; the compiler may launch the kernels itself, and the canary tries both.

The model is the one of `tests/recordings/h200_train_trace.json.gz`: 92 M parameters, bf16 autocast, batch 16 × 512.

1. The eager step is profiled; hotspots are ranked against peaks probed here; searches run; certificates are issued.
2. The file for the job is written, and its canary decides by itself which kernels this step uses.
3. Contestants, timed in turns in one process: eager and torch.compile, each with fused AdamW, and the same with the
   kernels applied. A round times every contestant; the figures are medians over rounds.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

OUT = Path(os.environ.get("OUT", Path(__file__).parent / "results"))
STARTED = time.time()


class Rms(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(d))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self.w


class Block(nn.Module):
    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.n1, self.n2, self.heads = Rms(d), Rms(d), heads
        self.qkv, self.o = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.u, self.dn = nn.Linear(d, 4 * d, bias=False), nn.Linear(4 * d, d, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, t, d))
        return x + self.dn(F.gelu(self.u(self.n2(x))))


class Lm(nn.Module):
    def __init__(self, v: int, d: int, layers: int, heads: int) -> None:
        super().__init__()
        self.e = nn.Embedding(v, d)
        self.b = nn.ModuleList(Block(d, heads) for _ in range(layers))
        self.n, self.h = Rms(d), nn.Linear(d, v, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        x = self.e(index)
        for block in self.b:
            x = block(x)
        return self.h(self.n(x))


class Job:
    """One contestant: a model, its optimiser and a step. `kernels`: the job's file, or None."""

    def __init__(
        self,
        size: dict[str, int],
        device: str,
        seed: int,
        compiled: bool,
        kernels: Any,
        only: Any,
        launches: bool = False,
    ) -> None:
        torch.manual_seed(seed)
        self.size, self.device = size, device
        self.model = Lm(size["v"], size["d"], size["layers"], size["heads"]).to(device)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=3e-4, betas=(0.9, 0.95), fused=device == "cuda" or None
        )
        self.kernels, self.report, self.launches = kernels, "", launches
        self.state: dict[str, Any] = {}
        if kernels is not None:
            told = kernels.apply(
                self.model,
                shadow_every=0,
                log_every=0,
                only=only,
                compiler_launches=launches,
                weight_copies=True,
            )
            self.report = str(told)
        self.forward: Callable[..., Any] = torch.compile(self._loss) if compiled else self._loss

    def _loss(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(self.device, dtype=torch.bfloat16):
            logits = self.model(x[:, :-1])
            return F.cross_entropy(logits.float().view(-1, self.size["v"]), x[:, 1:].reshape(-1))

    def leave(self) -> None:
        """Torch's own functions are back until `enter`: what this contestant uses is no other's."""
        if self.kernels is not None:
            self.state = dict(self.kernels.STATE.kernels)
            self.kernels.STATE.kernels.clear()
            self.kernels.give_functions_back()

    def enter(self) -> None:
        if self.kernels is not None:
            self.kernels.STATE.kernels.update(self.state)
            self.kernels.STATE.open = self.launches
            self.kernels.open_all()
            self.kernels.swap_functions(self.kernels.Report())
            self.kernels.swap_optimizer(self.kernels.Report())

    def step(self, x: torch.Tensor) -> torch.Tensor:
        loss = self.forward(x)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


def batches(size: dict[str, int], device: str, count: int) -> list[torch.Tensor]:
    """A permutation to be learned, with 15 % noise, as in the recording."""
    generator = torch.Generator().manual_seed(0)
    v, b, t = size["v"], size["batch"], size["t"]
    permutation = torch.randperm(v, generator=generator)
    made = []
    for _ in range(count):
        x = torch.empty(b, t + 1, dtype=torch.long)
        x[:, 0] = torch.randint(0, v, (b,), generator=generator)
        noise = torch.rand(b, t, generator=generator) < 0.15
        random = torch.randint(0, v, (b, t), generator=generator)
        for j in range(t):
            x[:, j + 1] = torch.where(noise[:, j], random[:, j], permutation[x[:, j]])
        made.append(x.to(device))
    return made


def save(result: dict[str, Any], what: str) -> None:
    result["elapsed_s"] = time.time() - STARTED
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "kernels_train_step.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"[{result['elapsed_s']:.0f} s] {what}", flush=True)


def seconds(job: Job, data: list[torch.Tensor], count: int) -> float:
    """Of one step, by the clock over `count` steps between two synchronisations."""
    if job.device == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    for number in range(count):
        job.step(data[number % len(data)])
    if job.device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - started) / count


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


def optimise(run: Path, path: Path, device: str, trials: int, wall_s: float, most: int) -> dict[str, Any]:
    """Trace → hotspots → searches → certificates → the job's file. Nobody chooses anything."""
    from collectors.seal import Signer
    from kernels import loop_cli
    from kernels import optimise as loop
    from kernels.apply.bundle import FILE, kernel_record, write_bundle
    from kernels.apply.job.problems import SPECS
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
    works, decisions = loop.from_profile(found, run, peaks, most, 0.002, problems=places)
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
        records = []
        for work in works:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--search-s", type=float, default=10.0, help="most seconds of each search")
    parser.add_argument("--most", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--loss-steps", type=int, default=300)
    given = parser.parse_args()
    device = "cpu" if given.tiny else "cuda"
    if given.tiny:
        os.environ["TRITON_INTERPRET"] = "1"
    size = {"v": 8192, "d": 1024, "layers": 6, "heads": 16, "batch": 16, "t": 512}
    count, loss_steps, rounds = 20, given.loss_steps, given.rounds
    if given.tiny:
        size = {"v": 48, "d": 32, "layers": 1, "heads": 2, "batch": 2, "t": 3}
        count, loss_steps, rounds = 2, 3, 2
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
    eager = Job(size, device, 1, False, None, ())
    trace(eager, data, run / "trace.json")
    save(result, "traced")
    result["loop"] = optimise(run, run / "trace.json", device, given.trials, given.search_s, given.most)
    (run / "trace.json").unlink()
    save(result, f"searched; to apply: {result['loop']['applied']}")

    kernels = load(run / "nightshift_kernels.py")
    problems = sorted(result["loop"]["applied"])
    result["canary"] = {}
    kept: dict[str, tuple[str, ...]] = {"eager": (), "compile": ()}
    launches = {"eager": False, "compile": False}  # whether the compiler launches them, as the canary chose
    for how in kept if problems else ():
        job = Job(size, device, 1, how == "compile" and not given.tiny, kernels, ())
        turn = itertools.cycle(data)
        result["canary"][how] = kernels.canary(
            lambda job=job, turn=turn: job.step(next(turn)), steps=max(2, count // 2)
        )
        kept[how], launches[how] = tuple(sorted(kernels.STATE.kernels)), kernels.STATE.open
        kernels.unapply(job.model)
        del job
        save(result, f"canary, {how}: {kept[how]}")

    result["kept"] = {how: list(names) for how, names in kept.items()}
    result["launched_by_the_compiler"] = launches
    contestants = {
        "eager, fused AdamW": (False, ()),
        "compile, fused AdamW": (True, ()),
        "eager + kernels": (False, kept["eager"]),
        "compile + kernels": (True, kept["compile"]),
    }
    times: dict[str, list[float]] = {name: [] for name in contestants}
    jobs = {}
    torch._dynamo.reset()
    for name, (compiled, only) in contestants.items():
        how = "compile" if compiled else "eager"
        job = Job(size, device, 1, compiled and not given.tiny, kernels if only else None, only, launches[how])
        seconds(job, data, 4)
        job.leave()
        jobs[name] = job
    for turn in range(rounds + 1):
        for name, job in jobs.items():
            job.enter()
            taken = seconds(job, data, count)
            job.leave()
            if turn:  # the first round only warms up
                times[name].append(taken)
    medians = {name: statistics.median(values) for name, values in times.items()}
    ours = min((n for n in medians if "kernels" in n), key=lambda n: medians[n])
    result["step_s"] = times
    result["tokens_per_s"] = {name: tokens / value for name, value in medians.items()}
    result["ours"] = ours
    for name in ("compile", "eager"):
        plain = medians[f"{name}, fused AdamW"]
        result[f"over_{name}"] = {n: plain / value for n, value in medians.items() if "kernels" in n}
    result["reports"] = {name: job.report for name, job in jobs.items()}
    save(result, f"{ours}: {result['over_compile'][ours]:.3f}× compile, {result['over_eager'][ours]:.3f}× eager")
    jobs.clear()

    curves: dict[str, list[float]] = {}

    def curve(job: Job) -> list[float]:
        steps = [job.step(data[n % len(data)]) for n in range(loss_steps)]
        found: list[float] = torch.stack(steps).tolist()
        return found

    torch._dynamo.reset()
    for seed in range(1, 7):
        curves[f"eager seed {seed}"] = curve(Job(size, device, seed, False, None, ()))
    sixth = curves.pop("eager seed 6")
    plain_curve = curve(Job(size, device, 1, not given.tiny, None, ()))
    torch._dynamo.reset()
    compiled, only = contestants[ours]
    how = "compile" if compiled else "eager"
    mine = curve(Job(size, device, 1, compiled and not given.tiny, kernels if only else None, only, launches[how]))
    band = [(min(column), max(column)) for column in zip(*curves.values(), strict=True)]
    width = [high - low for low, high in band]
    slack = statistics.median(width)

    def outside(values: list[float], slack: float = 0.0) -> int:
        pairs = zip(values, band, strict=True)
        return sum(not low - slack <= value <= high + slack for value, (low, high) in pairs)

    def gap(values: list[float]) -> float:
        return max(abs(a - b) for a, b in zip(values, curves["eager seed 1"], strict=True))

    strictly = outside(mine)
    result["loss"] = {
        "steps": loss_steps,
        "last": {**{name: curve[-1] for name, curve in curves.items()}, "ours": mine[-1]},
        "outside_band": strictly,
        "outside_band_of_a_sixth_seed": outside(sixth),
        "outside_band_expected_of_a_sixth_seed": loss_steps * 2 / 6,  # of six alike, each is first or last so often
        "outside_band_and_its_median_width": outside(mine, slack),
        "outside_band_and_its_median_width_of_a_sixth_seed": outside(sixth, slack),
        "largest_gap_to_the_same_seed": gap(mine),
        "largest_gap_of_compile_to_the_same_seed": gap(plain_curve),
        "curve_every_10": {"ours": mine[::10], **{name: curve[::10] for name, curve in curves.items()}},
    }
    result["log_line"] = kernels.log_line()
    told = f"{strictly} of {loss_steps} steps outside the band of five eager seeds, of a sixth {outside(sixth)}"
    save(result, f"loss: {told}; done")


if __name__ == "__main__":
    main()
