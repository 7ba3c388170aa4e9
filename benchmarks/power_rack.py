"""A rack of 16 GPUs below what its jobs would draw: the divider beside a PI controller and the max-min oracle.

    python -m benchmarks.power_rack [SWEEP.csv …]

Jobs are those that draw at least three quarters of the highest limit, on GPUs that can be limited to half of it;
of made-up curves that are not in the bank, and of every sweep that is given. Two hours a run.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import write
from collectors.base import Permanent
from controllers.power.belief import Bank
from controllers.power.curves import Curve, read_sweeps, synthetic
from controllers.power.evaluate import interval
from controllers.power.rack import RANGE, Believed, CommonCap
from controllers.power.rack_run import RackScore, Scene, oracle, rack

GPUS, WINDOWS, SHARES = 16, 240, (0.7, 0.8)
LEAST_MEAN, LEAST_GAP = -0.005, 0.5


def hungry(curves: Sequence[Curve]) -> list[Curve]:
    return [c for c in curves if c.draw_w[-1] >= 0.75 * c.max_w and c.min_w <= 0.505 * c.max_w]


def compare(curves: Sequence[Curve], share: float, seeds: int, bank: Bank) -> dict[str, Any]:
    """Every divider on the same scenes; what the divider recovers of the worst job's gap, over the seeds' means."""
    runs: dict[str, list[RackScore]] = {"oracle": [], "PI": [], "PI, shielded": [], "divider": []}
    for seed in range(seeds):
        scene = Scene.make(curves, share, seed, GPUS, WINDOWS)
        runs["oracle"].append(oracle(scene))
        runs["PI"].append(rack(scene, CommonCap(), seed, shielded=False))
        runs["PI, shielded"].append(rack(scene, CommonCap(), seed))
        runs["divider"].append(rack(scene, Believed(bank), seed))
    found: dict[str, Any] = {"curves": len(curves)}
    for name, scores in runs.items():
        columns = {key: [asdict(score)[key] for score in scores] for key in asdict(scores[0])}
        found[name] = {key: round(float(np.mean(values)), 5) for key, values in columns.items()}
        found[name]["worst_95"] = [round(x, 4) for x in interval(columns["worst"])]
    for peer in ("PI", "PI, shielded"):
        mean = [d.mean - p.mean for d, p in zip(runs["divider"], runs[peer], strict=True)]
        gap = found["oracle"]["worst"] - found[peer]["worst"]
        recovered = (found["divider"]["worst"] - found[peer]["worst"]) / gap if gap > 0 else float("nan")
        found[f"against {peer}"] = {
            "mean": round(float(np.mean(mean)), 5),
            "mean_95": [round(x, 5) for x in interval(mean)],
            "recovered": round(recovered, 3),
            "meets": bool(
                np.mean(mean) >= LEAST_MEAN and recovered >= LEAST_GAP and found["divider"]["over"] == 0.0
            ),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("sweeps", type=Path, nargs="*")
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    bank = Bank.make(steep=RANGE)
    sets = {"made up": hungry(synthetic(300, np.random.default_rng(99)))}
    for path in given.sweeps:
        sets[path.stem.removeprefix("summary_power_")] = hungry(read_sweeps(path))
    results: dict[str, Any] = {"gpus": GPUS, "windows": WINDOWS, "seeds": given.seeds, "sets": {}}
    for name, curves in sets.items():
        results["sets"][name] = {}
        for share in SHARES:
            try:
                results["sets"][name][f"{share:.0%}"] = compare(curves, share, given.seeds, bank)
            except Permanent as error:
                results["sets"][name][f"{share:.0%}"] = {"curves": len(curves), "not possible": str(error)}
            write("power_rack", results)


if __name__ == "__main__":
    main()
