"""Makes fresh runs of a tiny GPT with injected causes: `python -m benchmarks.loss_runs OUT --runs N --seed S`.

Real training, not drawn curves: a two-layer GPT on a Markov source, AdamW with warm-up and cosine decay, on one CPU
core. Every run draws its cause, onset, size, learning rate, β2, clipping, batch and data from the seed, so that a
detector can be judged on runs that nobody tuned it on. Needs torch (the `kernels` extra).

Writes OUT.parquet (run, step, loss, grad_norm, lr) and OUT.csv (columns as in `tests/recordings/loss_meta.csv`).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.nn import functional as F

KINDS = (
    "clean",
    "clean_highnoise",
    "benign_spike_batch",
    "benign_restart",
    "benign_lr_step",
    "benign_domain_shift",
    "benign_small_batchnoise",
    "div_lr_high",
    "div_lr_jump",
    "div_weight_flip",
    "div_grad_scale",
    "div_label_corrupt",
    "nan_inject",
    "div_slow_lr",
    "plateau_frozen",
    "spike_not_recover",
)
STEPS, VOCABULARY, LENGTH, WIDTH = 1200, 128, 32, 48


class Block(nn.Module):
    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.out(attended)
        result: torch.Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return result


class TinyGpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(Block(4), Block(4))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.token(x) + self.place(torch.arange(x.shape[1]))
        result: torch.Tensor = self.head(self.norm(self.blocks(h)))
        return result


class Source:
    """A Markov chain over the vocabulary; each state has a few likely successors."""

    def __init__(self, rng: np.random.Generator, sharpness: float) -> None:
        weights = rng.dirichlet(np.full(VOCABULARY, sharpness), size=VOCABULARY)
        self.cumulative = weights.cumsum(axis=1)

    def batch(self, rng: np.random.Generator, size: int) -> torch.Tensor:
        x = np.empty((size, LENGTH + 1), dtype=np.int64)
        x[:, 0] = rng.integers(0, VOCABULARY, size)
        for t in range(LENGTH):
            draws = rng.random(size)
            x[:, t + 1] = (self.cumulative[x[:, t]] < draws[:, None]).sum(axis=1).clip(0, VOCABULARY - 1)
        return torch.from_numpy(x)


@dataclass
class Run:
    kind: str
    onset: int
    lr: float
    beta2: float
    clip: float
    batch: int
    size: float
    seed: int
    rows: list[tuple[float, float, float]] = field(default_factory=list)

    def train(self) -> None:
        rng = np.random.default_rng(self.seed)
        torch.manual_seed(self.seed)
        sharpness = float(rng.uniform(0.03, 0.08))
        source, other = Source(rng, sharpness), Source(rng, sharpness)
        kept = rng.random(VOCABULARY) >= self.size
        other.cumulative[kept] = source.cumulative[kept]
        model = TinyGpt()
        optimizer = torch.optim.AdamW(model.parameters(), lr=self.lr, betas=(0.9, self.beta2))
        ascent = 0.0
        for step in range(1, STEPS + 1):
            since = step - self.onset
            data = other if self.kind == "benign_domain_shift" and since >= 0 else source
            size = self.batch
            if self.kind == "benign_small_batchnoise" and since >= 0 and since % 40 < 12:
                size = max(1, self.batch // 4)
            x = data.batch(rng, size)
            y = self._labels(x, since, rng)
            lr = self._rate(step, since)
            for group in optimizer.param_groups:
                group["lr"] = lr
            if self.kind == "benign_restart" and since == 0:
                optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, self.beta2))
            if self.kind == "div_weight_flip" and since == 0:
                _flip(model, rng)
            if self.kind == "nan_inject" and since == 0:
                with torch.no_grad():
                    model.head.weight[0, 0] = float("nan")
            loss = F.cross_entropy(model(x[:, :-1]).view(-1, VOCABULARY), y.reshape(-1))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            if self.kind == "div_grad_scale" and since >= 0:
                ascent = min(1.0, ascent + 0.1)
                for p in model.parameters():
                    if p.grad is not None:
                        p.grad.mul_(-ascent * self.size)
            norm = nn.utils.clip_grad_norm_(model.parameters(), self.clip if self.clip > 0 else 1e9)
            if not (self.kind == "plateau_frozen" and since >= 0):
                optimizer.step()
            self.rows.append((loss.item(), norm.item(), lr))

    def _labels(self, x: torch.Tensor, since: int, rng: np.random.Generator) -> torch.Tensor:
        y = x[:, 1:].clone()
        if self.kind == "div_label_corrupt" and since >= 0:
            wrong = torch.from_numpy(rng.random(y.shape) < self.size)
            y[wrong] = torch.from_numpy(rng.integers(0, VOCABULARY, int(wrong.sum())))
        if (
            self.kind == "benign_spike_batch"
            and since >= 0
            and since % 97 < 1 + int(4 * self.size) % 4
            and since < 300
        ):
            y = torch.from_numpy(rng.integers(0, VOCABULARY, tuple(y.shape)))
        return y

    def _rate(self, step: int, since: int) -> float:
        base = self.lr * min(1.0, step / 100) * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * step / STEPS)))
        if self.kind == "div_lr_high":
            return base * (30.0 + 100.0 * self.size)
        if self.kind == "benign_lr_step" and since >= 0:
            return base * (0.2 if self.size < 0.5 else 2.0)
        if self.kind == "div_lr_jump" and since >= 0:
            return 0.1 + 0.4 * self.size
        if self.kind == "spike_not_recover" and 0 <= since < 25:
            return 0.3
        if self.kind == "div_slow_lr" and since >= 0:
            return float(min(base * math.exp(since / (40.0 + 60.0 * self.size)), 1.0))
        return base


def _flip(model: nn.Module, rng: np.random.Generator) -> None:
    """Flips the highest exponent bit of one weight of a random matrix, as a memory error would."""
    matrices = [p for p in model.parameters() if p.dim() == 2]
    weight = matrices[int(rng.integers(len(matrices)))].data.view(torch.int32)
    row, column = int(rng.integers(weight.shape[0])), int(rng.integers(weight.shape[1]))
    weight[row, column] ^= 1 << 30


def draw(kind: str, seed: int) -> Run:
    rng = np.random.default_rng([seed, 1])
    onset = 1 if kind == "div_lr_high" else int(rng.integers(430, 900))
    batch = 4 if kind == "clean_highnoise" else int(rng.choice([8, 12, 16]))
    lr = float(10 ** rng.uniform(-3.2, -2.4))
    size = float(rng.uniform(0.05, 1.0))
    if kind == "div_label_corrupt":
        size = float(rng.uniform(0.4, 0.9))
    if kind == "benign_domain_shift":
        size = float(rng.uniform(0.2, 0.4))  # the share of states whose successors are new
    return Run(
        kind, onset, lr, float(rng.choice([0.95, 0.99, 0.999])), float(rng.choice([0.0, 1.0])), batch, size, seed
    )


def runs(count: int, seed: int) -> Iterator[Run]:
    for number in range(count):
        run = draw(KINDS[number % len(KINDS)], seed * 100_003 + number)
        run.train()
        yield run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--runs", type=int, default=64)
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    curves, meta = [], []
    for number, run in enumerate(runs(arguments.runs, arguments.seed)):
        table = pd.DataFrame(run.rows, columns=["loss", "grad_norm", "lr"]).astype("float32")
        table.insert(0, "step", np.arange(1, STEPS + 1, dtype=np.int16))
        table.insert(0, "run", np.int16(number))
        curves.append(table)
        loss = table.loss.to_numpy(float)
        bad = int((~np.isfinite(loss)).sum())
        meta.append(
            {
                "run": number,
                "kind": run.kind,
                "onset_step": run.onset,
                "base_lr": run.lr,
                "beta2": run.beta2,
                "clip": run.clip,
                "seed": run.seed,
                "loss_pre": loss[max(0, run.onset - 61) : max(run.onset - 1, 60)].mean(),
                "loss_final": 99.0 if bad else loss[-60:].mean(),
                "n_nonfinite": bad,
            }
        )
        print(meta[-1], flush=True)
    pd.concat(curves).to_parquet(arguments.out.with_suffix(".parquet"), index=False, compression="zstd")
    pd.DataFrame(meta).to_csv(arguments.out.with_suffix(".csv"), index=False)


if __name__ == "__main__":
    main()
