"""Makes fresh runs of a tiny GPT with injected causes: `python -m benchmarks.loss_runs OUT --runs N --seed S`.

Real training, not drawn curves: a small GPT on a Markov source, AdamW, on one CPU core. Every run draws its cause,
onset, size, learning rate, β2, clipping, batch and data from the seed, so that a detector can be judged on runs
that nobody tuned it on. `--vary` also draws the model's size, the vocabulary, the sequence length, the schedule of
the learning rate, and adds causes: rewinds to a checkpoint, warm restarts, hard batches, batch and sequence length
changes, faults that grow slowly. Needs torch (the `kernels` extra).

Writes OUT.parquet (run, step, loss, grad_norm, lr; in the order of training, so a rewind's steps come twice) and
OUT.csv (columns as in `tests/recordings/loss_meta.csv`). `--kinds` and `--first` make a part of the same runs.
"""

from __future__ import annotations

import argparse
import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.loss_model import Shape, Source, TinyGpt

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
VARIED_KINDS = (
    "clean",
    "clean_highnoise",
    "benign_spike_batch",
    "benign_restart",
    "benign_lr_step",
    "benign_domain_shift",
    "benign_small_batchnoise",
    "benign_rewind",
    "benign_warm_restarts",
    "benign_hard_batches",
    "benign_batch_size",
    "benign_context_length",
    "div_lr_high",
    "div_lr_jump",
    "div_weight_flip",
    "div_grad_scale",
    "div_label_corrupt",
    "div_label_drift",
    "div_weight_drift",
    "div_slow_lr",
    "div_slow_lr",
    "nan_inject",
    "spike_not_recover",
    "plateau_frozen",
)
STEPS = 1200
SCHEDULES = ("cosine", "constant", "linear", "warmup-stable-decay", "steps")


@dataclass
class Run:
    """size: how large the cause is, in [0, 1]; what it scales depends on the kind."""

    kind: str
    onset: int
    lr: float
    beta2: float
    clip: float
    batch: int
    size: float
    seed: int
    shape: Shape = field(default_factory=Shape)
    schedule: str = "cosine"
    rows: list[tuple[int, float, float, float]] = field(default_factory=list)
    """(printed step, loss, gradient norm, learning rate)"""

    def train(self) -> None:
        rng = np.random.default_rng(self.seed)
        torch.manual_seed(self.seed)
        sharpness = float(rng.uniform(0.03, 0.08))
        source, other = Source(rng, sharpness, self.shape), Source(rng, sharpness, self.shape)
        other = source.mixed(other, rng.random(self.shape.vocabulary) >= self.size)
        hard = Source(rng, 4.0 * sharpness, self.shape) if self.kind == "benign_hard_batches" else source
        model: nn.Module = TinyGpt(self.shape)
        optimizer = torch.optim.AdamW(model.parameters(), lr=self.lr, betas=(0.9, self.beta2))
        saved: Any = None
        ascent, back = 0.0, 0
        keep_at = self.onset - (30 + int(120 * self.size))
        for trained in range(1, STEPS + 1):
            step = trained - back
            since = trained - self.onset
            data = other if self.kind == "benign_domain_shift" and since >= 0 else source
            data = hard if hard is not source and since >= 0 and rng.random() < 0.1 * self.size else data
            x = data.batch(rng, self._batch(since))
            if self.kind == "benign_context_length" and since < 0:
                x = x[:, : self.shape.length // 2 + 1]
            y = self._labels(x, since, rng)
            lr = self._rate(step, since)
            for group in optimizer.param_groups:
                group["lr"] = lr
            if self.kind == "benign_restart" and since == 0:
                optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, self.beta2))
            if self.kind == "benign_rewind" and trained == keep_at:
                saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
            if self.kind == "benign_rewind" and since == 0:
                model.load_state_dict(saved[0])
                optimizer.load_state_dict(saved[1])
                back = trained - keep_at
                step = keep_at
            self._harm(model, since, rng)
            loss = F.cross_entropy(model(x[:, :-1]).flatten(0, 1), y.reshape(-1))
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
            self.rows.append((step, loss.item(), norm.item(), lr))

    def _batch(self, since: int) -> int:
        if self.kind == "benign_small_batchnoise" and since >= 0 and since % 40 < 12:
            return max(1, self.batch // 4)
        if self.kind == "benign_batch_size" and since >= 0:
            return max(2, self.batch // 4) if self.size < 0.6 else 2 * self.batch
        return self.batch

    def _harm(self, model: nn.Module, since: int, rng: np.random.Generator) -> None:
        if self.kind == "div_weight_flip" and since == 0:
            _flip(model, rng)
        if self.kind == "nan_inject" and since == 0:
            with torch.no_grad():
                model.head.weight[0, 0] = float("nan")  # type: ignore[union-attr, index, operator]
        if self.kind == "div_weight_drift" and since >= 0:
            with torch.no_grad():
                for p in model.parameters():
                    if p.dim() == 2:
                        noise = torch.from_numpy(rng.standard_normal(p.shape).astype(np.float32))
                        p.add_(noise * (0.002 + 0.01 * self.size) * min(1.0, since / 200.0))

    def _labels(self, x: torch.Tensor, since: int, rng: np.random.Generator) -> torch.Tensor:
        y = x[:, 1:].clone()
        vocabulary, share = self.shape.vocabulary, 0.0
        if self.kind == "div_label_corrupt" and since >= 0:
            share = self.size
        if self.kind == "div_label_drift" and since >= 0:
            share = self.size * min(1.0, since / (100.0 + 300.0 * self.size))
        if share > 0:
            wrong = torch.from_numpy(rng.random(y.shape) < share)
            y[wrong] = torch.from_numpy(rng.integers(0, vocabulary, int(wrong.sum())))
        if (
            self.kind == "benign_spike_batch"
            and since >= 0
            and since % 97 < 1 + int(4 * self.size) % 4
            and since < 300
        ):
            y = torch.from_numpy(rng.integers(0, vocabulary, tuple(y.shape)))
        return y

    def _rate(self, step: int, since: int) -> float:
        base = self.lr * min(1.0, step / 100) * self._course(step / STEPS)
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

    def _course(self, done: float) -> float:
        """The schedule's factor at this share of the run, after warm-up."""
        if self.kind == "benign_warm_restarts":
            return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * ((3 + int(3 * self.size)) * done % 1.0)))
        courses = {
            "cosine": 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * done)),
            "constant": 1.0,
            "linear": 1.0 - 0.95 * done,
            "warmup-stable-decay": min(1.0, 0.05 + (1.0 - done) / 0.25),
            "steps": 0.2 ** int(3 * done),
        }
        return courses[self.schedule]


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
    if kind in ("div_label_corrupt", "div_label_drift"):
        size = float(rng.uniform(0.4, 0.9))
    if kind == "benign_domain_shift":
        size = float(rng.uniform(0.2, 0.4))  # the share of states whose successors are new
    return Run(
        kind, onset, lr, float(rng.choice([0.95, 0.99, 0.999])), float(rng.choice([0.0, 1.0])), batch, size, seed
    )


def varied(kind: str, seed: int) -> Run:
    """`draw` with another model, schedule, noise and size of shift."""
    run, rng = draw(kind, seed), np.random.default_rng([seed, 2])
    run.shape = Shape(
        width=int(rng.choice([32, 48, 64])),
        layers=int(rng.choice([1, 2, 3])),
        vocabulary=int(rng.choice([64, 128, 256])),
        length=int(rng.choice([16, 24, 32])),
    )
    run.schedule = str(rng.choice(SCHEDULES))
    run.batch = int(rng.choice([2, 3, 4])) if kind == "clean_highnoise" else int(rng.choice([4, 6, 8, 12]))
    run.onset = 1 if kind == "div_lr_high" else int(rng.integers(300, 900))
    if kind == "benign_domain_shift":
        run.size = float(rng.uniform(0.1, 0.5))
    return run


def runs(count: int, seed: int, vary: bool = False, kinds: str = "", first: int = 0) -> Iterator[tuple[int, Run]]:
    """(number, trained run) of numbers first … first + count - 1 whose kind begins with one of `kinds`."""
    names = VARIED_KINDS if vary else KINDS
    for number in range(first, first + count):
        kind = names[number % len(names)]
        if kinds and not kind.startswith(tuple(kinds.split(","))):
            continue
        run = (varied if vary else draw)(kind, seed * 100_003 + number)
        run.train()
        yield number, run


def about(number: int, run: Run, loss: np.ndarray) -> dict[str, Any]:
    """One line of OUT.csv."""
    bad = int((~np.isfinite(loss)).sum())
    return {
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
        "schedule": run.schedule,
        "size": run.size,
        "batch": run.batch,
        "width": run.shape.width,
        "layers": run.shape.layers,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--runs", type=int, default=64)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--first", type=int, default=0, help="number of the first run")
    parser.add_argument("--kinds", default="", help="only kinds that begin with one of these, comma-separated")
    parser.add_argument("--vary", action="store_true", help="vary the model, the schedule and the noise too")
    a = parser.parse_args()
    torch.set_num_threads(1)
    curves: list[pd.DataFrame] = []
    meta: list[dict[str, Any]] = []
    for number, run in runs(a.runs, a.seed, a.vary, a.kinds, a.first):
        table = pd.DataFrame(run.rows, columns=["step", "loss", "grad_norm", "lr"]).astype("float32")
        table["step"] = table.step.astype(np.int16)
        table.insert(0, "run", np.int16(number))
        curves.append(table)
        meta.append(about(number, run, table.loss.to_numpy(float)))
        print(meta[-1], flush=True)
        # After every run: a stopped job keeps what it trained.
        pd.concat(curves).to_parquet(a.out.with_suffix(".parquet"), index=False, compression="zstd")
        pd.DataFrame(meta).to_csv(a.out.with_suffix(".csv"), index=False)


if __name__ == "__main__":
    main()
