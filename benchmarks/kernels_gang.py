"""One zoo model under FSDP2 on N ranks: our kernels + torch.compile against torch.compile.

    python -m benchmarks.kernels_gang --out FOLDER --until 480              N GPUs; without a file it searches first
    python -m benchmarks.kernels_gang --out FOLDER --file nightshift_kernels.py --until 300
    python -m benchmarks.kernels_gang --out FOLDER --tiny --device cpu --ranks 2    every part, tiny, over gloo

1. search (one GPU): the model's trace → the job's file, by `nightshift kernels optimize`, as in the zoo.
2. choose (one GPU): what the file's own canary keeps of ours + compile.
3. The gang, each contestant in processes of its own, in turns, twice: kernels applied, each layer compiled, then
   sharded with its parameters and gradients (`fully_shard`), as torchtitan does. Each rank has its own batches.

Step time: the median over blocks of five steps on rank 0, all ranks synchronised at a block's ends. Exposed
communication: by a profiler's trace of three steps of each rank, as `nightshift kernels profile` computes it: time
in which NCCL's kernels run and no other does. Loss: the mean over ranks, step by step.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks import kernels_zoo
from benchmarks.kernels_zoo import WAYS, Way, _loaded
from benchmarks.report import write
from benchmarks.zoo_models import MODELS, Batch

COMPARED = ("compile", "ours + compile")
TURNS, WARM, BLOCK, BLOCKS, LOSSES = 2, 8, 5, 10, 30
PEERS = {"start_s": 45.0, "choose_s": 60.0}
"""What a contestant's processes and the canary need at least (s)."""


def layers_of(model: nn.Module) -> nn.ModuleList:
    """The transformer's layers: the longest list of modules."""
    return max((m for m in model.modules() if isinstance(m, nn.ModuleList)), key=len)


class Member:
    """One rank of one contestant."""

    def __init__(self, given: argparse.Namespace, way: Way) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        self.device, self.entry = given.device, MODELS[given.model]
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.model: Any = self.entry.build(given.device, 1, given.tiny)
        self.applied, self.kernels = "", None
        if way.ours:
            chosen = json.loads((given.out / "chosen.json").read_text())
            self.kernels = _loaded(given.file)
            report = self.kernels.apply(
                self.model, shadow_every=0, log_every=0, only=tuple(chosen["kept"]),
                compiler_launches=chosen["launches"], weight_copies=self.entry.autocast,
            )  # fmt: skip
            self.kernels.STATE.passing = chosen["passing"]
            self.applied = str(report)
        mesh = init_device_mesh(given.device, (self.world,))
        layers = layers_of(self.model)
        how = {"mode": way.mode} if given.device == "cuda" else {"backend": "aot_eager"}
        for number, layer in enumerate(layers):
            layers[number] = fully_shard(torch.compile(layer, **how) if way.mode else layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimiser = torch.optim.AdamW(
            self.model.parameters(), lr=3e-4, betas=(0.9, 0.95), fused=given.device == "cuda" or None
        )
        every = self.entry.batches(given.device, 4 * self.world, given.tiny)
        self.turn = itertools.cycle(every[4 * self.rank : 4 * self.rank + 4])

    def step(self) -> torch.Tensor:
        batch: Batch = next(self.turn)
        with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.entry.autocast):
            loss = self.model(**batch).loss
        loss.backward()
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        return loss.detach()

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()
        dist.barrier()

    def losses(self, count: int) -> list[float]:
        """The mean over ranks of each step."""
        found = torch.stack([self.step().float() for _ in range(count)]) / self.world
        dist.all_reduce(found)
        return [float(value) for value in found]

    def blocks_s(self, count: int) -> list[float]:
        """Seconds of a step, for each block."""
        taken = []
        for _ in range(count):
            self.wait()
            began_s = time.perf_counter()
            for _ in range(BLOCK):
                self.step()
            self.wait()
            taken.append((time.perf_counter() - began_s) / BLOCK)
        return taken

    def traced(self, path: Path) -> dict[str, float]:
        """How three steps' time was spent, by a trace (s)."""
        from nightshift.kernels.profile.hotspots import profile as read_profile

        activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if self.device == "cuda" else [])
        with profile(activities=activities) as session:
            for number in range(3):
                with record_function(f"ProfilerStep#{number}"):
                    self.step()
                    if self.device == "cuda":
                        torch.cuda.synchronize()
        session.export_chrome_trace(str(path))
        if self.device == "cpu":
            return waits_of(path)
        found = read_profile(path)
        return {
            "step_s": found.step_s, "compute_s": found.compute_s, "exposed_communication_s": found.communication_s,
            "idle_s": found.idle_s,
        }  # fmt: skip


def waits_of(path: Path) -> dict[str, float]:
    """On a CPU there is no kernel to read: of gloo's operations the time of a step in which the main thread is in
    one, by the same trace (s)."""
    events = [e for e in json.loads(path.read_text())["traceEvents"] if e.get("ph") == "X"]
    steps = [e for e in events if str(e["name"]).startswith("ProfilerStep#")]
    spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if str(e["name"]).startswith(("gloo:", "c10d::")))
    waited, until = 0.0, 0.0
    for begin, end in spans:
        waited += max(0.0, end - max(begin, until))
        until = max(until, end)
    length = sum(e["dur"] for e in steps)
    return {"step_s": 1e-6 * length / len(steps), "exposed_communication_s": 1e-6 * waited / len(steps)}


def member(given: argparse.Namespace) -> None:
    on_gpu = given.device == "cuda"
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if on_gpu else "gloo")
    one = Member(given, WAYS[given.contestant])
    began_s = time.monotonic()
    losses = one.losses(2 if given.tiny else LOSSES)  # they compile, too
    warm_s = time.monotonic() - began_s
    one.blocks_s(1 if given.tiny else 2)
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    blocks_s = one.blocks_s(2 if given.tiny else BLOCKS)
    peak = torch.cuda.max_memory_allocated() if on_gpu else 0
    spent = one.traced(given.out / f"trace-{one.rank}.json")
    every: list[Any] = [None] * one.world
    dist.all_gather_object(every, spent)
    if one.rank == 0:
        fallbacks = dict(one.kernels.fallbacks()) if one.kernels is not None else {}
        told = {
            "blocks_s": blocks_s, "losses": losses, "warm_s": warm_s, "peak_bytes": peak, "ranks": every,
            "applied": one.applied, "fallbacks": fallbacks,
        }  # fmt: skip
        given.part_file.write_text(json.dumps(told) + "\n")
    dist.destroy_process_group()


# The parts ------------------------------------------------------------------------------------------------------


def zoo(given: argparse.Namespace, left_s: float) -> argparse.Namespace:
    words = ["--only", given.model, "--out", str(given.out), "--device", given.device, "--until", str(left_s)]
    return kernels_zoo.arguments([*words, *(["--tiny"] if given.tiny else [])])


def choose(given: argparse.Namespace) -> None:
    """What the canary keeps, in a process of its own."""
    one = kernels_zoo.Race(
        MODELS[given.model], zoo(given, given.until), given.out / "choose.json", {"contestants": {}},
        kernels=_loaded(given.file),
    )  # fmt: skip
    one.choose([COMPARED[1]])
    kept = one.kept[COMPARED[1]]
    if isinstance(kept, Exception):
        raise kept
    chosen = {"kept": list(kept.only), "launches": kept.launches, "passing": kept.passing}
    (given.out / "chosen.json").write_text(json.dumps(chosen))


def run(given: argparse.Namespace, part: str, ranks: int, left_s: float) -> str:
    """A part in processes of its own; what went wrong, or nothing."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "benchmarks.kernels_gang", *sys.argv[1:], "--file", str(given.file)]
    words += ["--part", part, "--until", str(left_s), "--ranks", str(ranks)]
    base = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NCCL_NVLS_ENABLE": "0",
            "WORLD_SIZE": str(ranks)}  # fmt: skip
    log = given.out / f"{part.replace(' ', '')}.log"
    with log.open("a") as lines:
        processes = [
            subprocess.Popen(
                words, env={**base, "RANK": str(r), "LOCAL_RANK": str(r)}, stdout=lines, stderr=subprocess.STDOUT
            )
            for r in range(ranks)
        ]
        until_s = time.monotonic() + left_s
        try:
            codes = [process.wait(max(1.0, until_s - time.monotonic())) for process in processes]
        except subprocess.TimeoutExpired:
            codes = [-1]
        finally:
            for process in processes:
                process.kill()
    return "" if not any(codes) else f"{part}: {codes}: {log.read_text()[-600:]}"


def summary(parts: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Both turns of each contestant together; a step's exposed communication is the mean and the most of ranks."""
    found: dict[str, Any] = {}
    for name, turns in parts.items():
        blocks = [value for turn in turns for value in turn["blocks_s"]]
        exposed = [rank["exposed_communication_s"] for turn in turns for rank in turn["ranks"]]
        found[name] = {
            "step_s": statistics.median(blocks),
            "step_s_by_turn": [statistics.median(turn["blocks_s"]) for turn in turns],
            "exposed_communication_s": statistics.fmean(exposed), "exposed_communication_most_s": max(exposed),
            "ranks": turns[-1]["ranks"], "losses": turns[-1]["losses"], "peak_bytes": turns[-1]["peak_bytes"],
            "applied": turns[-1]["applied"], "fallbacks": turns[-1]["fallbacks"],
        }  # fmt: skip
    if all(name in found for name in COMPARED):
        theirs, ours = (found[name] for name in COMPARED)
        pairs = list(zip(ours["losses"], theirs["losses"], strict=True))
        found["step_time_ours_over_compile"] = ours["step_s"] / theirs["step_s"]
        found["largest_loss_difference"] = max(abs(a - b) / max(abs(b), 1e-9) for a, b in pairs)
        found["last_loss_difference"] = (pairs[-1][0] - pairs[-1][1]) / pairs[-1][1]
    return found


def whole(given: argparse.Namespace) -> dict[str, Any]:
    began_s = time.monotonic()

    def left_s() -> float:
        return given.until - (time.monotonic() - began_s)

    figures: dict[str, Any] = {"environment": kernels_zoo.environment(zoo(given, left_s())), "model": given.model,
                               "ranks": given.ranks, "failed": []}  # fmt: skip
    if not given.file.exists():
        spare_s = 2 * TURNS * PEERS["start_s"] + PEERS["choose_s"] if not given.tiny else 60.0
        kernels_zoo.search(given.model, zoo(given, max(5.0, left_s() - spare_s)))
        figures["search_s"] = time.monotonic() - began_s
    if given.file.exists() and (why := run(given, "choose", 1, max(5.0, left_s()))):
        figures["failed"].append(why)
    has_ours = (given.out / "chosen.json").exists()
    parts: dict[str, list[dict[str, Any]]] = {}
    for turn in range(TURNS):
        for name in COMPARED if turn % 2 == 0 else COMPARED[::-1]:
            if (WAYS[name].ours and not has_ours) or left_s() < 10.0:
                figures["failed"].append(f"{name}: {'no file' if left_s() >= 10.0 else 'no time was left'}")
                continue
            given.part_file.unlink(missing_ok=True)
            why = run(given, name, given.ranks, left_s())
            if why or not given.part_file.exists():
                figures["failed"].append(why or f"{name}: no answer")
            else:
                parts.setdefault(name, []).append(json.loads(given.part_file.read_text()))
            print(f"[{time.monotonic() - began_s:.0f} s] {name}, turn {turn}: {why or 'done'}", flush=True)
    return figures | summary(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", choices=MODELS, default="llama3")
    parser.add_argument("--file", type=Path, help="The job's file; default: the one of the search in --out")
    parser.add_argument("--until", type=float, default=480.0, help="seconds")
    parser.add_argument("--ranks", type=int, default=0, help="0: one for each GPU")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--part", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    given.out.mkdir(parents=True, exist_ok=True)
    given.file = given.file or given.out / f"{given.model}.run" / "nightshift_kernels.py"
    given.part_file, given.contestant = given.out / "part.json", given.part
    given.ranks = given.ranks or torch.cuda.device_count()
    if given.part == "choose":
        choose(given)
    elif given.part:
        member(given)
    else:
        write("kernels_gang" if given.device == "cuda" else "kernels_gang_cpu", whole(given))


if __name__ == "__main__":
    main()
