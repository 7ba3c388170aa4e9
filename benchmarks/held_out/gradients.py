"""Local gradient norms of small runs that are trained here: is a rank named when its norms differ from its peers'?

No public set has gradient norms by rank, so these are of our own making: a small language model over the bytes of
Python's standard library, data-parallel in one process. Each rank has a batch of its own, its norm is taken before
gradients are averaged. `folder` is not read. Healthy runs: files dealt at random; files dealt by size, so that
ranks have unlike data; a learning rate that falls tenfold; one batch of noise for all ranks. A faulty run is a
healthy one in which one rank's gradients are 50 times as large from a step on, in each step or in every fifth.
"""

from __future__ import annotations

import random
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.held_out.leak import by_device
from nightshift.detectors.base import State
from nightshift.detectors.contract.testing import START_S, changes, inventory, rank, steps, tick
from nightshift.detectors.loss.gradient_witness import LocalGradients

STEPS, ONSET, FACTOR, FAULTY = 300, 200, 50.0, 1
CONTEXT, BATCH, WIDTH = 16, 32, 96
RANKS, SEEDS = (2, 4), range(3)
HEALTHY = ("dealt at random", "dealt by size", "learning rate falls", "a batch of noise for all")


def shards(ranks: int, by_size: bool, draw: random.Random) -> list[bytes]:
    """The bytes of each rank's files."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    files.sort(key=lambda file: file.stat().st_size) if by_size else draw.shuffle(files)
    size = len(files) // ranks
    return [b"".join(file.read_bytes() for file in files[r * size : (r + 1) * size]) for r in range(ranks)]


def norms(ranks: int, kind: str, seed: int, every: int = 0) -> np.ndarray:
    """[STEPS, ranks] local gradient norms of a run; `every`: in every so many steps from ONSET on, one rank's
    gradients are FACTOR times as large; 0 = never."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    data = [
        torch.frombuffer(bytearray(own), dtype=torch.uint8).long()
        for own in shards(ranks, kind == HEALTHY[1], random.Random(seed))
    ]
    model = nn.Sequential(
        nn.Embedding(256, 16), nn.Flatten(), nn.Linear(16 * CONTEXT, WIDTH), nn.GELU(), nn.Linear(WIDTH, 256)
    )
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    found = np.zeros((STEPS, ranks))
    for step in range(STEPS):
        if kind == HEALTHY[2] and step == ONSET:
            optimiser.param_groups[0]["lr"] *= 0.1
        total = [torch.zeros_like(p) for p in model.parameters()]
        for r in range(ranks):
            at = torch.randint(0, len(data[r]) - CONTEXT - 1, (BATCH,))
            text = data[r][at[:, None] + torch.arange(CONTEXT + 1)]
            if kind == HEALTHY[3] and step == ONSET:
                text = torch.randint(0, 256, text.shape)
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(text[:, :-1]), text[:, -1]).backward()
            far = bool(every) and r == FAULTY and step >= ONSET and step % every == 0
            own = [p.grad * (FACTOR if far else 1.0) for p in model.parameters() if p.grad is not None]
            found[step, r] = float(torch.sqrt(torch.stack([g.square().sum() for g in own]).sum()))
            total = [a + g / ranks for a, g in zip(total, own, strict=True)]
        for p, g in zip(model.parameters(), total, strict=True):
            p.grad = g
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    return found


def named(run: np.ndarray) -> list[tuple[int, str]]:
    """(step, rank) of each alarm; a look every ten steps, a second apart."""
    ticks, ranks = [], run.shape[1]
    for first in range(0, len(run), 10):
        times = [START_S + first + 0.1 * k for k in range(10)]
        series = [
            steps(rank(r), first, times, {"local_grad_norm": run[first : first + 10, r].tolist()})
            for r in range(ranks)
        ]
        ticks.append(tick(START_S + first + 1.0, series=series))
    said = changes(LocalGradients(), ticks, inventory(ranks))
    return [(round(f.at.t_s - START_S - 1.0) + 10, f.subject.name) for f in said if f.state is State.FIRING]


def measure(folder: Path) -> dict[str, Any]:
    """All of it; `folder` is not read."""
    found: dict[str, Any] = {}
    healthy = [
        (kind, ranks, named(norms(ranks, kind, seed))) for kind in HEALTHY for ranks in RANKS for seed in SEEDS
    ]
    for kind in HEALTHY:
        counts = [float(bool(said)) for of, _, said in healthy if of == kind]
        found[f"healthy, trained here: {kind}"] = {"runs_with_a_name": by_device(counts, [1.0] * len(counts))}
    for every in (1, 5):
        runs = [named(norms(ranks, HEALTHY[0], seed, every)) for ranks in RANKS for seed in SEEDS]
        delays = [min((at - ONSET for at, _ in said if at > ONSET), default=None) for said in runs]
        right = [{name for _, name in said} == {rank(FAULTY).name} for said in runs]
        in_time = [float(ok and d is not None and d <= 50) for ok, d in zip(right, delays, strict=True)]
        found[f"x{FACTOR:g} in every {every}. step, trained here"] = {
            "named_alone_within_50_steps": by_device(in_time, [1.0] * len(in_time)),
            "steps_to_the_name": delays,
        }
    return found
