"""What every detector bears, counted by the words of its contract: `python -m benchmarks.detect_contract`.

Each clause is checked alone (`detectors.contract.check`) and in mixtures (`detectors.contract.walks`: `--walks`
seeds from `--first` on, each over every detector). `--add` adds to the counts that are there, so that a run can be
made in parts; `--only` walks some detectors and leaves the others' rows as they are. A walk that fails names its
seed, which is its reproduction.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.report import RESULTS, write
from nightshift.collectors.tick import Tick
from nightshift.detectors.contract.check import CONTRACT, calls, problems
from nightshift.detectors.contract.streams import faults, played
from nightshift.detectors.contract.testing import Kind, run
from nightshift.detectors.contract.walks import LENGTH, draw, walk
from nightshift.detectors.contract.world import HealthyFleet
from nightshift.detectors.plugins import ALL

SAVED = Path(__file__).parent.parent / "tests" / "detectors" / "snapshots"
TOLD = 20


def per_sample_ns(kind: Kind) -> float:
    """CPU time per value of a detector over the stream in which everything is broken."""
    ticks, inventory = played(faults)
    detector, began_s = kind(), time.process_time()
    run(detector, ticks, inventory)
    return 1e9 * (time.process_time() - began_s) / sum(_samples(tick) for tick in ticks)


def _samples(tick: Tick) -> int:
    stepped = sum(len(column) for series in tick.steps for column in series.columns.values())
    return stepped + sum(frame.values.size for frame in tick.frames.values())


def alone(kind: Kind, files: list[bytes]) -> dict[str, Any]:
    return {
        "clauses, each alone": len(CONTRACT),
        "problems, each alone": problems(kind),
        "states of earlier versions": len(files),
        "Python calls of 30 ticks, 8 and 256 GPUs": [calls(kind, HealthyFleet(gpus=gpus)) for gpus in (8, 256)],
        "CPU ns per sample, everything broken, 8 GPUs": round(per_sample_ns(kind)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--walks", type=int, default=2000)
    parser.add_argument("--add", action="store_true", help="add to the counts of the parts before")
    parser.add_argument("--only", default="", help="detectors, comma-separated; empty: all")
    asked = parser.parse_args()
    kinds = [kind for kind in ALL if not asked.only or kind.plugin in asked.only.split(",")]
    states = {k: [f.read_bytes() for f in sorted(SAVED.glob(f"{k.plugin}-v*.npz"))] for k in ALL}
    checks: dict[str, Counter[str]] = {kind.plugin: Counter() for kind in ALL}
    failures: dict[str, list[str]] = {kind.plugin: [] for kind in ALL}
    seeds: dict[str, list[list[int]]] = {kind.plugin: [] for kind in ALL}
    rows: dict[str, Any] = {}
    if asked.add or asked.only:
        rows = json.loads((RESULTS / "detect_contract.json").read_text())["results"]["detectors"]
    for kind in kinds if asked.add else ():
        row = rows[kind.plugin]
        checks[kind.plugin].update(row["walked"])
        failures[kind.plugin] += row["failures"]
        seeds[kind.plugin] += row["seeds"]
    for seed in range(asked.first, asked.first + asked.walks):
        drawn = draw(seed)
        for kind in kinds:
            walked = walk(kind, drawn, states[kind])
            checks[kind.plugin].update(walked.checks)
            failures[kind.plugin] += walked.problems[:1]
    rows |= {
        kind.plugin: {
            **alone(kind, states[kind]),
            "seeds": [*seeds[kind.plugin], [asked.first, asked.first + asked.walks]],
            "walked": dict(sorted(checks[kind.plugin].items())),
            "failed": len(failures[kind.plugin]),
            "failures": failures[kind.plugin][:TOLD],
        }
        for kind in kinds
    }
    write(
        "detect_contract",
        {
            "walks per detector, at least": min(row["walked"]["determinism"] for row in rows.values()),
            "ticks of a walk, at most": 2 * LENGTH,
            "detectors": rows,
            "walks": sum(row["walked"]["determinism"] for row in rows.values()),
            "failed": sum(row["failed"] for row in rows.values()),
        },
    )


if __name__ == "__main__":
    main()
