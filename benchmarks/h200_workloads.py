"""What runs while `benchmarks/record_h200.py` records: a trainer with faults on order, and loads to share with.

    python h200_workloads.py train DEVICE LOG    a vision transformer; orders and replies are JSON lines
    python h200_workloads.py load DEVICE         kernels of one kind at one duty, and what they achieved

It imports nothing of ours: what enters a training process stands alone.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES, PATCH, MAX_SIDE = 100, 8, 96
FAULTS = ("dataloader_stall", "co_tenant", "gpu_leak", "host_leak", "lr_spike", "hang")
SLICE_S = 0.02
"""Within this a load works for its duty and rests for the remainder."""


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Vit(nn.Module):
    """A vision transformer (Dosovitskiy et al. 2021, arXiv:2010.11929) with mean pooling."""

    def __init__(self, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, PATCH, PATCH)
        self.place = nn.Parameter(0.02 * torch.randn(1, (MAX_SIDE // PATCH) ** 2, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = self.blocks(x + self.place[:, : x.shape[1]])
        return self.head(self.norm(x.mean(1)))


class Trainer:
    """One process that trains; each phase is ordered by name and prints a line a step into the log."""

    def __init__(self, device: str, log: IO[str]) -> None:
        self.device, self.log = torch.device(device), log
        self.small = device == "cpu"
        torch.manual_seed(7)
        self.prototypes = torch.randn(CLASSES, 3, MAX_SIDE, MAX_SIDE, device=self.device)
        self.kept: list[Any] = []
        self.step = 0
        self.renew()

    def renew(self) -> None:
        """A fresh model and optimiser: a new run."""
        self.model = Vit(*((32, 1, 2) if self.small else (512, 8, 8))).to(self.device)
        self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=3e-4)
        self.step = 0
        self.say("starting training")

    def say(self, text: str) -> None:
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        self.log.write(f"{stamp} {text}\n")
        self.log.flush()

    def train_step(self, side: int, data_s: float, started: float) -> None:
        batch = 8 if self.small else 512
        labels = torch.randint(0, CLASSES, (batch,), device=self.device)
        images = self.prototypes[labels, :, :side, :side]
        images = images + 2.0 * torch.randn_like(images)
        with torch.autocast(self.device.type, torch.bfloat16):
            loss = F.cross_entropy(self.model(images).float(), labels)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        loss_value, norm_value = float(loss.detach()), float(norm.detach())
        took_s = time.perf_counter() - started
        rate = self.optimiser.param_groups[0]["lr"]
        self.say(
            f"step={self.step} loss={loss_value:.5f} grad_norm={norm_value:.5f} lr={rate:.6g} "
            f"step_time={took_s:.5f}s data_time={data_s:.5f}s samples_per_s={batch / took_s:.1f} rank=0"
        )
        self.step += 1

    def phase(self, name: str, seconds: float) -> dict[str, Any]:
        """Trains for a time with what the phase's name says. The onset is when the fault began."""
        if name == "hang":
            self.renew()
        start_s, began, first = time.time(), time.perf_counter(), self.step
        onset_s: float | None = None
        rate = self.optimiser.param_groups[0]["lr"]
        while (elapsed := time.perf_counter() - began) < seconds:
            started, data_s, side = time.perf_counter(), 0.0, 64
            is_on = elapsed >= 0.2 * seconds
            if is_on and onset_s is None and name in FAULTS:
                onset_s = time.time()
            nth = self.step - first
            if name == "dataloader_stall" and is_on and nth % 40 == 0:
                time.sleep(min(1.2, seconds / 8))
                data_s = time.perf_counter() - started
            elif name == "gpu_leak" and is_on:
                self.kept.append(torch.ones(24 * 2**18 if not self.small else 2**12, device=self.device))
            elif name == "host_leak" and is_on:
                self.kept.append(bytearray(os.urandom(1024) * (2 * 2**10 if not self.small else 64)))
            elif name == "lr_spike" and is_on:
                self.optimiser.param_groups[0]["lr"] = 0.1
            elif name == "resolution_benign":
                side = random.choice((48, 64, 80, 96))
            elif name == "eval_benign" and nth % 60 == 59:
                self.evaluate()
            elif name == "hang" and is_on:
                self.hang(seconds - elapsed)
                break
            self.train_step(side, data_s, started)
        self.kept.clear()
        self.optimiser.param_groups[0]["lr"] = rate
        end_s, steps = time.time(), self.step - first
        if name == "lr_spike":
            self.renew()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return {"phase": name, "start_s": start_s, "onset_s": onset_s, "end_s": end_s, "steps": steps}

    def evaluate(self) -> None:
        """Half a second without gradients, and a checkpoint: nothing is wrong."""
        until = time.perf_counter() + 0.5
        with torch.no_grad(), torch.autocast(self.device.type, torch.bfloat16):
            while time.perf_counter() < until:
                self.model(torch.randn(64, 3, 64, 64, device=self.device)).float().mean().item()
        self.say(f"saved checkpoint at step={self.step}")

    def hang(self, seconds: float) -> None:
        """As in a collective that waits for a lost peer: one kernel spins, the process waits for it."""
        until = time.perf_counter() + seconds
        while (left := until - time.perf_counter()) > 0:
            if self.small:
                time.sleep(left)
            else:
                torch.cuda._sleep(int(min(left, 1.0) * 1.7e9))
                torch.cuda.synchronize()


class Loads:
    """Kernels by kind: compute-bound, bandwidth-bound, or as an inference server's decode."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        small = device == "cpu"
        n, m = (64, 2**14) if small else (4096, 2**27)
        dtype = torch.float32 if small else torch.bfloat16
        make = lambda *shape: torch.randn(*shape, device=self.device, dtype=dtype)  # noqa: E731
        self.a, self.b = make(n, n), make(n, n)
        self.source, self.target = make(m), make(m)
        self.layers = [make(n, n) for _ in range(2 if small else 12)]
        self.token = make(8, n)
        self.q, self.k, self.v = (make(4, 8, 16 if small else 2048, 64) for _ in range(3))

    def work(self, kind: str) -> None:
        """One unit of the kind."""
        if kind == "gemm":
            torch.mm(self.a, self.b)
        elif kind == "copy":
            self.target.copy_(self.source)
        elif kind == "decode":
            x = self.token
            for layer in self.layers:
                x = torch.mm(x, layer) * 0.01
        elif kind == "attention":
            F.scaled_dot_product_attention(self.q, self.k, self.v, is_causal=True)
        elif kind == "small":
            torch.add(self.token, self.token)
        else:
            raise ValueError(f"unknown kind {kind!r}")

    def run(self, kind: str, duty: float, seconds: float) -> dict[str, Any]:
        """Units done per second at a duty (1: without rest)."""
        per_look = {"small": 64, "copy": 2, "gemm": 4, "decode": 4, "attention": 4}[kind]
        self._sync()
        units, busy_s, began = 0, 0.0, time.perf_counter()
        while (now := time.perf_counter()) - began < seconds:
            until = now + duty * SLICE_S
            while time.perf_counter() < until:
                for _ in range(per_look):
                    self.work(kind)
                units += per_look
                self._sync()
            busy_s += time.perf_counter() - now
            if duty < 1:
                time.sleep(max(0.0, now + SLICE_S - time.perf_counter()))
        took_s = time.perf_counter() - began
        return {"kind": kind, "duty": duty, "units_per_s": units / took_s, "busy_share": busy_s / took_s}

    def _sync(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def main() -> None:
    role, device = sys.argv[1:3]
    if device == "cpu":
        torch.set_num_threads(1)
    if role == "train":
        with Path(sys.argv[3]).open("w") as log:
            trainer = Trainer(device, log)
            trainer.train_step(64, 0.0, time.perf_counter())
            _obey(lambda order: trainer.phase(order["phase"], order["seconds"]))
    else:
        loads = Loads(device)
        for kind in ("gemm", "copy", "decode", "attention", "small"):
            loads.run(kind, 1.0, 0.05)
        _obey(lambda order: loads.run(order["kind"], order["duty"], order["seconds"]))


def _obey(do: Any) -> None:
    print(json.dumps({"ready": True, "pid": os.getpid()}), flush=True)
    for line in sys.stdin:
        print(json.dumps(do(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
