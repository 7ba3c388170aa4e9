"""A learned order beside the rule: `NIGHTSHIFT_DATA=… python -m benchmarks.scheduling_learned [--steps 100000]`.

Trains MaskablePPO from scratch on drawn traces, as `nightshift policy train scheduling` does, and plays it on the
traces, cuts, seeds and loads on which `benchmarks.scheduling` plays the rule, all over FIFO with backfill on the
same jobs: the Philly-derived trace where it is there, and every drawn shape. *Unbounded* it starts whom it likes;
bounded, as a cluster would let it, whoever the baseline would have started goes first (`Learned.late_first`). What
wins here ships.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

from benchmarks.report import write
from benchmarks.scheduling import ALIKE, BASELINE, OURS, PHILLY, STEADY, Run, parts, rule_sha256, steady, table
from nightshift.controllers.lab.scheduling import shapes, trace
from nightshift.controllers.lab.scheduling.learn import LEARNABLE, LearnedQueue
from nightshift.controllers.lab.scheduling.simulate import SchedulingWorld
from nightshift.controllers.policy_file import PolicyFile
from nightshift.controllers.scheduling.cluster import ClusterShape

JOBS = 500
"""Of a drawn trace, as in `benchmarks.scheduling`."""


def runs(policy: PolicyFile) -> dict[str, Run]:
    """The baseline, the rule, and the policy with and without the bound on waiting."""
    return {
        BASELINE: STEADY[BASELINE],
        OURS: STEADY[OURS],
        "learned": steady(LearnedQueue(policy.network, late_first=True), twin=True),
        "learned_unbounded": steady(LearnedQueue(policy.network), twin=True),
    }


def train(seed: int, steps: int | None) -> tuple[PolicyFile, dict[str, Any]]:
    """The policy, and what it was trained with and cost."""
    began_s, cpu_s = time.monotonic(), time.process_time()
    policy = LEARNABLE.train(seed, steps, lambda text: print(text, flush=True))
    cost = {"wall_s": round(time.monotonic() - began_s), "cpu_s": round(time.process_time() - cpu_s)}
    return policy, {**policy.training, **cost}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, help="of training; none: the full number")
    parser.add_argument("--seed", type=int, default=1, help="of training")
    parser.add_argument("--seeds", type=int, default=5, help="of evaluation")
    parser.add_argument("--name", default="scheduling_learned")
    given = parser.parse_args()
    root, seeds = os.environ.get("NIGHTSHIFT_DATA"), given.seeds
    traces = {"trace3": parts(trace.read(Path(root) / PHILLY), seeds)} if root else {}
    traces |= {f"shape_{name}": [shapes.drawn(name, JOBS, seed) for seed in range(seeds)] for name in shapes.NAMES}
    policy, training = train(given.seed, given.steps)
    results: dict[str, Any] = {"rule_sha256": rule_sha256(), "training": training}
    for name, each in traces.items():
        print(f"{name}: {len(each[0])} jobs", flush=True)
        about = results.setdefault(name, {})
        for found in table(each, runs(policy), ALIKE, SchedulingWorld(ClusterShape()), {}):
            about["loads"] = found
            write(given.name, results)


if __name__ == "__main__":
    main()
