"""One rank of the gang that `benchmarks/gang_record.py` records: trains a small transformer, with faults on order.

    torchrun --nproc-per-node N benchmarks/gang_worker.py FOLDER ddp|fsdp cuda|cpu

It imports nothing of ours: what enters a training process is on its own. Orders lie in FOLDER/orders.json, a list
of {"from_step", "phase", "rank", ...}. Each holds from its step on, and is written well before it, so that all
ranks obey at one step. A rank prints into the log of its own pod; no line says what was ordered.

What a step prints. data_time: until the batch is on the device. compute_time: the forward passes of the blocks
alone, by CUDA events, because all else of a sharded step waits for others. comm_time: in DDP from the last bucket
to the end of backward, in FSDP2 the forward pass outside of blocks. local_grad_norm (DDP): of what the rank hands
to the all-reduce.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

NAMESPACE, JOB = "ml", "gang"
SIZES = {
    "cuda": {"v": 8192, "d": 1024, "layers": 10, "heads": 16, "batch": 48, "t": 512, "keys": 30_000},
    "cpu": {"v": 256, "d": 96, "layers": 2, "heads": 2, "batch": 12, "t": 64, "keys": 15_000},
}
"""keys: numbers that the loader sorts for each batch, its work on the CPU."""
GROWN, EVALUATE_EVERY, SAVE_EVERY = 1.5, 40, 60
STALL_EVERY, STALL_STEPS = 12, 2.0
LEAK_BYTES = 2**20
CORRUPTED, TIMES = 100, 256.0
"""One of so many elements of a bucket, as one lane of many computes them, is so many times as large."""

FEATURES = {"cuda": torch.bfloat16, "cpu": torch.float32}
SPIN = "while True: pass"
QUOTA = """
import os, signal, sys, time
while True:
    for number in (signal.SIGSTOP, signal.SIGCONT):
        os.kill(int(sys.argv[1]), number)
        time.sleep(0.01)
"""
"""Where ranks share their cores, no process can crowd out one of them: this one takes half of its time, as a hog
within its own quota does."""


class Block(nn.Module):
    """A pre-norm transformer block that notes when its own forward pass begins and ends."""

    def __init__(self, d: int, heads: int, timer: BlockTimer) -> None:
        super().__init__()
        self.heads, self.timer = heads, timer
        self.norm_1, self.norm_2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x: Tensor) -> Tensor:
        with self.timer.block():
            b, t, d = x.shape
            q, k, v = self.qkv(self.norm_1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(b, t, d))
            return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Lm(nn.Module):
    """Tokens and the features of their places → logits."""

    def __init__(self, size: dict[str, int], timer: BlockTimer) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size["v"], size["d"])
        self.blocks = nn.ModuleList(Block(size["d"], size["heads"], timer) for _ in range(size["layers"]))
        self.norm, self.head = nn.LayerNorm(size["d"]), nn.Linear(size["d"], size["v"], bias=False)

    def forward(self, index: Tensor, features: Tensor) -> Tensor:
        x = self.embedding(index) + 0.01 * features
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class BlockTimer:
    """Time within blocks' forward passes (s): by CUDA events, or the thread's own time on a CPU, which other ranks
    share. `extra`: on a CPU, work beside, as a share of a block's time."""

    def __init__(self, device: str) -> None:
        self.on_gpu, self.extra = device == "cuda", 0.0
        self.marks: list[tuple[Any, Any]] = []
        self._work = torch.ones(24, 24)

    def mark(self) -> Any:
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    @contextmanager
    def block(self) -> Iterator[None]:
        begin = self.mark() if self.on_gpu else time.thread_time()
        yield
        if self.extra > 0:
            until_s = begin + (1.0 + self.extra) * (time.thread_time() - begin)
            while time.thread_time() < until_s:
                self._work @ self._work
        self.marks.append((begin, self.mark() if self.on_gpu else time.thread_time()))

    def between_s(self, begin: Any, end: Any) -> float:
        """After the device has done both."""
        return float(begin.elapsed_time(end)) / 1e3 if self.on_gpu else float(end - begin)

    def taken_s(self) -> float:
        total = sum(self.between_s(*pair) for pair in self.marks)
        self.marks.clear()
        return total


class Competitor:
    """A load on this rank's own GPU, beside the training: products that the GPU prefers for a share of the time, or
    copies from the host without a pause."""

    def __init__(self, device: int) -> None:
        self.device, self.share, self.copies = device, 0.0, False
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def set(self, share: float, copies: bool) -> None:
        if (share, copies) == (self.share, self.copies):
            return
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None
        self.share, self.copies = share, copies
        if share > 0 or copies:
            self._stop.clear()
            self._thread = threading.Thread(target=self._compete, daemon=True)
            self._thread.start()

    def _compete(self) -> None:
        torch.cuda.set_device(self.device)  # a thread of its own begins on the first
        if self.copies:
            self._copy()
        else:
            self._multiply()

    def _multiply(self) -> None:
        a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
        c = torch.empty_like(a)
        stream = torch.cuda.Stream(priority=-1)
        with torch.cuda.stream(stream):
            taken = []
            for _ in range(9):
                began_s = time.perf_counter()
                torch.mm(a, a, out=c)
                stream.synchronize()
                taken.append(time.perf_counter() - began_s)
            burst_s, began_s, count = min(taken), time.perf_counter(), 0
            # slower by a share: of 1 + share seconds the competitor has share
            held = self.share / (1.0 + self.share)
            while not self._stop.is_set():
                torch.mm(a, a, out=c)
                stream.synchronize()
                count += 1
                time.sleep(max(0.0, count * burst_s / held - (time.perf_counter() - began_s)))

    def _copy(self) -> None:
        host = torch.empty(2**28, dtype=torch.uint8, pin_memory=True)
        there = torch.empty(2**28, dtype=torch.uint8, device="cuda")
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            while not self._stop.is_set():
                for _ in range(4):
                    there.copy_(host, non_blocking=True)
                stream.synchronize()


class Orders:
    """What is ordered for a step. The file is read when it changes."""

    def __init__(self, path: Path) -> None:
        self.path, self.changed = path, 0
        self.rows: list[dict[str, Any]] = []

    def at(self, step: int) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            changed = self.path.stat().st_mtime_ns
            if changed != self.changed:
                self.rows, self.changed = json.loads(self.path.read_text()), changed
        return next((row for row in reversed(self.rows) if row["from_step"] <= step), {"phase": "healthy"})


class Trainer:
    """This rank."""

    def __init__(self, folder: Path, mode: str, device: str) -> None:
        self.folder, self.mode, self.device = folder, mode, device
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.size, self.orders = SIZES[device], Orders(folder / "orders.json")
        self.timer, self.competitor = BlockTimer(device), Competitor(int(os.environ["LOCAL_RANK"]))
        self.hogs: list[subprocess.Popen[bytes]] = []
        self.kept: list[Any] = []
        self.norms: list[Tensor] = []
        self.last_bucket: Any = None
        self.order: dict[str, Any] = {"phase": "healthy"}
        self.usual_s, self.step = 0.0, 0
        self.rng = np.random.default_rng(1000 + self.rank)
        self.host: dict[int, Tensor] = {}
        torch.manual_seed(7)
        self.model = self._parallel(Lm(self.size, self.timer).to(device))
        self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=3e-4, fused=device == "cuda" or None)

    def _parallel(self, model: Lm) -> Any:
        if self.mode == "ddp":
            made = nn.parallel.DistributedDataParallel(
                model, device_ids=[torch.cuda.current_device()] if self.device == "cuda" else None,
                bucket_cap_mb=25 if self.device == "cuda" else 1, gradient_as_bucket_view=True,
            )  # fmt: skip
            made.register_comm_hook(None, self._reduce)
            return made
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        mesh = init_device_mesh(self.device, (self.world,))
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if self.device == "cuda" else None
        more = {"mp_policy": policy} if policy is not None else {}
        for block in model.blocks:
            fully_shard(block, mesh=mesh, **more)
        return fully_shard(model, mesh=mesh, **more)

    def _reduce(self, _, bucket):  # type: ignore[no-untyped-def]  # DDP reads annotations, and these are text
        """DDP's hook: the bucket as this rank computed it, its norm, then the mean over ranks."""
        data = bucket.buffer()
        if self._mine("gradients"):
            data[int(self.rng.integers(CORRUPTED)) :: CORRUPTED].mul_(TIMES)
        self.norms.append(torch.linalg.vector_norm(data))
        if bucket.is_last():
            self.last_bucket = self.timer.mark()
        data.div_(self.world)
        return dist.all_reduce(data, async_op=True).get_future().then(lambda done: done.value()[0])

    def _mine(self, phase: str) -> bool:
        return self.order["phase"] == phase and self.order.get("rank") == self.rank

    def say(self, text: str) -> None:
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        os.write(1, f"{stamp} {text}\n".encode())

    # A step --------------------------------------------------------------------------------------------------

    def obey(self) -> None:
        """What begins or ends at this step."""
        self.order = self.orders.at(self.step)
        share = float(self.order.get("share", 0.0)) if self._mine("compute") else 0.0
        if self.device == "cuda":
            self.competitor.set(share, self._mine("copies"))
        else:
            self.timer.extra = share
        if self._mine("hog") and not self.hogs:
            program, count = SPIN, 2 * min(len(os.sched_getaffinity(0)), 32)
            if self.device == "cpu":
                program, count = QUOTA, 1
            self.hogs = [subprocess.Popen([sys.executable, "-c", program, str(os.getpid())]) for _ in range(count)]
        elif not self._mine("hog"):
            for hog in self.hogs:
                hog.kill()
                hog.wait()
            self.hogs = []
        if self.order["phase"] != "leak":
            self.kept.clear()

    def load(self) -> tuple[Tensor, Tensor, float]:
        """(tokens, features, time taken in s)."""
        began_s = time.perf_counter()
        batch = self.size["batch"]
        batch = int(GROWN * batch) if self.order["phase"] == "batch" else batch
        keys = self.rng.random(self.size["keys"])
        keys.sort()
        if self._mine("loader"):
            time.sleep(0.25 * self.usual_s)
        if self._mine("stall") and self.step % STALL_EVERY == 0:
            time.sleep(STALL_STEPS * self.usual_s)
        shape = (batch, self.size["t"])
        ranks = np.exp(self.rng.random(shape) * np.log(self.size["v"])).astype(np.int64) - 1
        if batch not in self.host:
            made = torch.randn((*shape, self.size["d"]), dtype=FEATURES[self.device])
            self.host[batch] = made.pin_memory() if self.device == "cuda" else made
        features = self.host[batch]
        index = torch.from_numpy(ranks.clip(0, self.size["v"] - 1)).to(self.device)
        there = torch.empty_like(features, device=self.device)
        parts = 8 if self._mine("copies") and self.device == "cpu" else 1
        for source, target in zip(features.chunk(parts), there.chunk(parts), strict=True):
            target.copy_(source, non_blocking=True)
            if parts > 1:  # there is no link to compete for: the copy itself is held to a rate
                time.sleep(0.25 * self.usual_s / parts)
        if self.device == "cuda":
            torch.cuda.current_stream().synchronize()
        return index, there, time.perf_counter() - began_s

    def loss_of(self, index: Tensor, features: Tensor) -> Tensor:
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda" and self.mode == "ddp"):
            logits = self.model(index, features)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), index[:, 1:].flatten())

    def train_step(self) -> None:
        began_s = time.perf_counter()
        index, features, data_s = self.load()
        if self._mine("leak"):
            self.kept.append(torch.ones(LEAK_BYTES // 4, device=self.device))
        begin = self.timer.mark()
        loss = self.loss_of(index, features)
        forward = self.timer.mark()
        loss.backward()
        backward = self.timer.mark()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=self.mode != "ddp")
        mean = loss.detach() / self.world
        if not self._mine("skip"):
            self.report_mean(mean)
        loss_value, norm_value = float(mean), float(norm.detach())
        compute_s = self.timer.taken_s()
        if self.mode == "ddp":
            comm_s = self.timer.between_s(self.last_bucket, backward)
            own = f" local_grad_norm={float(torch.stack(self.norms).norm()):.5g}"
            self.norms.clear()
        else:
            comm_s, own = max(0.0, self.timer.between_s(begin, forward) - compute_s), ""
        took_s = time.perf_counter() - began_s
        if self.order["phase"] == "healthy":
            usual_s = self.usual_s or took_s
            self.usual_s = usual_s + 0.05 * (min(took_s, 2 * usual_s) - usual_s)
        self.say(
            f"step={self.step} loss={loss_value:.5g} grad_norm={norm_value:.5g}{own} step_time={took_s:.5f}s "
            f"data_time={data_s:.5f}s compute_time={compute_s:.5f}s comm_time={comm_s:.5f}s rank={self.rank}"
        )

    def report_mean(self, mean: Tensor) -> None:
        """The loss over all ranks, which is what is printed."""
        dist.all_reduce(mean)

    def evaluate(self) -> None:
        with torch.no_grad():
            losses = []
            for _ in range(12):
                index, features, _ = self.load()
                losses.append(float(self.loss_of(index, features)))
        self.timer.marks.clear()
        self.say(f"step {self.step} eval: loss={np.mean(losses):.5g} rank={self.rank}")

    def save(self) -> None:
        """Rank 0 writes the model; of a sharded one each rank its part."""
        self.say(f"saving checkpoint at step {self.step}")
        if self.mode == "ddp" and self.rank:
            return
        state = {
            name: value.to_local() if hasattr(value, "to_local") else value
            for name, value in self.model.state_dict().items()
        }
        path = self.folder / f"checkpoint-{self.rank}.pt"
        torch.save(state, path)
        path.unlink()
        self.say(f"saved checkpoint at step {self.step}")

    def run(self) -> None:
        self.say("starting training")
        while True:
            self.obey()
            phase = self.order["phase"]
            if phase == "end":
                break
            self.train_step()
            if phase == "evaluation" and self.step % EVALUATE_EVERY == 0:
                self.evaluate()
            if phase == "checkpoint" and self.step % SAVE_EVERY == 0:
                self.save()
            self.step += 1
            if self.rank == 0:
                (self.folder / "step").write_text(str(self.step))


def pin(local: int, world: int, device: str) -> None:
    """Each rank its own cores, where there are two or more for each, as a kubelet's static policy gives them."""
    cores = sorted(os.sched_getaffinity(0))[2:]  # two are for what records
    each = len(cores) // world
    if each >= 2 and device == "cuda":
        os.sched_setaffinity(0, cores[local * each : (local + 1) * each])
    torch.set_num_threads(1 if device == "cpu" else max(1, min(8, each)))


def on_request(folder: Path, rank: int) -> None:
    """Waits for FOLDER/dump, then leaves the flight recorder's ring where `nightshift` reads it."""
    from torch._C import _distributed_c10d as c10d

    dump: Callable[[], bytes] | None = getattr(c10d, "_dump_nccl_trace", None)
    if dist.get_backend() == "gloo" or dump is None:
        dump = c10d._dump_fr_trace
    while not (folder / "dump").exists():
        time.sleep(0.5)
    made = folder / f"trace-{rank}"
    made.write_bytes(dump())
    made.replace(folder / "logs" / f"{NAMESPACE}_{JOB}-worker-{rank}_nccl_trace_rank_{rank}")


def main() -> None:
    folder, mode, device = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    rank, local, world = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    path = folder / "logs" / f"{NAMESPACE}_{JOB}-worker-{rank}_trainer.log"
    log = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    stack = (folder / f"stack-{rank}").open("w")
    faulthandler.register(signal.SIGUSR1, file=stack, all_threads=True)
    pin(local, world, device)
    if device == "cuda":
        torch.cuda.set_device(local)
    limit = timedelta(seconds=float(os.environ.get("GANG_TIMEOUT_S", "60")))
    dist.init_process_group("nccl" if device == "cuda" else "gloo", timeout=limit)
    uuid = str(torch.cuda.get_device_properties(local).uuid) if device == "cuda" else ""
    (folder / f"rank-{rank}.json").write_text(json.dumps({"pid": os.getpid(), "uuid": uuid}))
    threading.Thread(target=on_request, args=(folder, rank), daemon=True).start()
    Trainer(folder, mode, device).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
