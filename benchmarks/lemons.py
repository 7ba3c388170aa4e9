"""Lemons in drawn fleets: `python -m benchmarks.lemons`.

Fleets of 1,000 nodes of 8 GPUs over 26 weeks. Healthy nodes fail 6.5 times per 1,000 node-days on average, as in
RSC-1 (Kokolis et al., arXiv 2410.21680). Made up: 1.2 % of the nodes are lemons, healthy rates are of a gamma
distribution (shape 2), six in ten failures are of one GPU, and a node is used on 60 to 100 % of days. A
lemon, or one GPU of it, fails 10 to 40 times as often as a healthy node (log-uniform). Every day the daemon's
own count (`agent.incidents.lemons`) judges the last 28 days. A lemon is found where it is named once in the 26
weeks. A healthy node that is named is false.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from benchmarks.detect_held_out import commit
from benchmarks.report import write
from nightshift.agent.incidents.lemons import DAYS, lemons

NODES, GPUS, SPAN, SEEDS = 1000, 8, 182, range(6)
RATE, SHARE, OF_A_GPU, SHAPE = 6.5e-3, 0.012, 0.6, 2.0
TIMES = (10.0, 40.0)
SPLIT_AT = 20.0


def fleet(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Per node its multiple (1: healthy); per node and day whether it was used, and which GPU failed (-1: none)."""
    lemon = rng.random(NODES) < SHARE
    times = np.where(lemon, np.exp(rng.uniform(*np.log(TIMES), NODES)), 1.0)
    rate = np.where(lemon, RATE * times, rng.gamma(SHAPE, RATE / SHAPE, NODES))
    used = rng.random((NODES, SPAN)) < rng.uniform(0.6, 1.0, NODES)[:, None]
    fails = used & (rng.random((NODES, SPAN)) < -np.expm1(-rate)[:, None])
    own = rng.integers(0, GPUS, NODES)
    gpu = np.where(lemon[:, None], own[:, None], rng.integers(0, GPUS, (NODES, SPAN)))
    is_gpu_lemon = rng.random(NODES) < OF_A_GPU
    of_gpu = np.where(lemon[:, None], is_gpu_lemon[:, None], rng.random((NODES, SPAN)) < OF_A_GPU)
    where = np.where(fails, np.where(of_gpu, gpu, GPUS), -1)
    return times, used, where


def judged(used: np.ndarray, where: np.ndarray) -> set[int]:
    """The nodes that are named for these days, by themselves or by a GPU; slots count as their GPUs do."""
    days, failures = used.sum(1), (where >= 0).sum(1)
    named = set(map(int, lemons({str(n): (int(days[n]), int(failures[n])) for n in range(NODES)})))
    by_gpu = [(where == g).sum(1) for g in range(GPUS)]
    counts = {f"{n} {g}": (int(days[n]), int(by_gpu[g][n])) for n in range(NODES) for g in range(GPUS)}
    return named | {int(name.split()[0]) for name in lemons(counts)}


def draw(seed: int) -> dict[str, Any]:
    times, used, where = fleet(np.random.default_rng(seed))
    first: dict[int, int] = {}
    for day in range(DAYS, SPAN + 1):
        for node in judged(used[:, day - DAYS : day], where[:, day - DAYS : day]):
            first.setdefault(node, day)
    bad = [int(n) for n in np.flatnonzero(times > 1.0)]
    return {
        "seed": seed,
        "lemons": len(bad),
        "found": sum(n in first for n in bad),
        "milder": sum(times[n] < SPLIT_AT for n in bad),
        "milder_found": sum(times[n] < SPLIT_AT and n in first for n in bad),
        "false": sum(times[n] == 1.0 for n in first),
        "days_to_find": sorted(first[n] for n in bad if n in first),
    }


def main() -> None:
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    at, draws = commit(), []
    for seed in SEEDS:
        draws.append(draw(seed))
        print(draws[-1], flush=True)
    total = {
        name: int(sum(one[name] for one in draws))
        for name in ("lemons", "found", "milder", "milder_found", "false")
    }
    months = len(draws) * (SPAN - DAYS) / 30.0
    graver, graver_found = total["lemons"] - total["milder"], total["found"] - total["milder_found"]
    results = {
        "commit": at, **total, "found_share": total["found"] / total["lemons"],
        "milder_found_share": total["milder_found"] / total["milder"], "graver_found_share": graver_found / graver,
        "false_per_month": total["false"] / months,
        "median_days": float(np.median([day for one in draws for day in one["days_to_find"]])), "draws": draws,
    }  # fmt: skip
    write("lemons", results)


if __name__ == "__main__":
    main()
