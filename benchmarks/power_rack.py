"""A rack of 16 GPUs below what its jobs would draw: the divider beside a PI controller and the max-min oracle.

    python -m benchmarks.power_rack [SWEEP.csv …] [--telemetry RECORDING.csv --limit W]

Jobs are those that draw at least three quarters of the highest limit, on GPUs that can be limited to half of it;
of made-up curves that are not in the bank, and of every sweep that is given. Two hours a run.

PI on the measured draw lends what a job does not draw of its limit, and is over the budget whenever a job turns.
`PI, never over` has the margin that it needs not to be. Behind the shield the limits count, not the draws, so there
is a bound: `told` shares like the divider and knows every curve, before it is run; `limits, at once` does not even
wait for what is to be read back.

The shield's margin stands on how well a GPU keeps its limit: --telemetry is a recording with the columns `power`
(mW) and `throttle` (NVML's reasons), of which the readings are taken while the limit held the clocks.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import write
from nightshift.collectors.base import Permanent
from nightshift.controllers.lab.power.learn import interval
from nightshift.controllers.lab.power.rack_run import (
    Believed,
    CommonCap,
    RackScore,
    Scene,
    TrueShares,
    at_once,
    oracle,
    rack,
)
from nightshift.controllers.lab.power.sweeps import read_sweeps
from nightshift.controllers.power.belief import Bank
from nightshift.controllers.power.curves import Curve, synthetic
from nightshift.controllers.power.share import RANGE, Sharing
from nightshift.detectors.hardware.throttle import POWER_CAP

GPUS, WINDOWS, SHARES = 16, 240, (0.7, 0.8)
LEAST_MEAN, LEAST_GAP = -0.005, 0.5
TOLD = (
    "told every curve",
    "told, for the mean alone",
    "limits, at once",
    "limits, at once, for the mean alone",
    "limits, at once, for the slowest alone",
)
PEERS = ("PI", "PI, never over", "PI, shielded")
MEAN, SLOWEST = Sharing(aversion=1.0), Sharing(aversion=100.0, least=0.0)


def hungry(curves: Sequence[Curve]) -> list[Curve]:
    return [c for c in curves if c.draw_w[-1] >= 0.75 * c.max_w and c.min_w <= 0.505 * c.max_w]


def never_over(scenes: Sequence[Scene]) -> tuple[list[RackScore], float]:
    """PI, unshielded, with the least margin of whole per cent at which no window of any scene is over."""
    for margin in np.arange(0.03, 0.31, 0.01):
        scores = []
        for seed, scene in enumerate(scenes):
            scores.append(rack(scene, CommonCap(margin=float(margin)), seed, shielded=False))
            if scores[-1].over > 0.0:
                break
        else:
            return scores, round(float(margin), 2)
    raise Permanent("PI is over the budget at every margin")


def compare(curves: Sequence[Curve], share: float, seeds: int, bank: Bank) -> dict[str, Any]:
    """Every divider on the same scenes; what the divider recovers of the worst job's gap, over the seeds' means."""
    scenes = [Scene.make(curves, share, seed, GPUS, WINDOWS) for seed in range(seeds)]
    each = list(enumerate(scenes))
    safe, margin = never_over(scenes)
    runs: dict[str, list[RackScore]] = {
        "oracle": [oracle(scene) for scene in scenes],
        "PI": [rack(scene, CommonCap(), seed, shielded=False) for seed, scene in each],
        "PI, never over": safe,
        "PI, shielded": [rack(scene, CommonCap(), seed) for seed, scene in each],
        "divider": [rack(scene, Believed(bank), seed) for seed, scene in each],
        "told every curve": [rack(scene, TrueShares(scene), seed) for seed, scene in each],
        "told, for the mean alone": [rack(scene, TrueShares(scene, sharing=MEAN), seed) for seed, scene in each],
        "limits, at once": [at_once(scene, Sharing()) for scene in scenes],
        "limits, at once, for the mean alone": [at_once(scene, MEAN) for scene in scenes],
        "limits, at once, for the slowest alone": [at_once(scene, SLOWEST) for scene in scenes],
    }
    found: dict[str, Any] = {"curves": len(curves), "margin of PI, never over": margin}
    for name, scores in runs.items():
        columns = {key: [asdict(score)[key] for score in scores] for key in asdict(scores[0])}
        found[name] = {key: round(float(np.mean(values)), 5) for key, values in columns.items()}
        found[name]["worst_95"] = [round(x, 4) for x in interval(columns["worst"])]
    for who in ("divider", *TOLD):
        for peer in PEERS if who == "divider" else PEERS[:2]:
            mean = [d.mean - p.mean for d, p in zip(runs[who], runs[peer], strict=True)]
            gap = found["oracle"]["worst"] - found[peer]["worst"]
            recovered = (found[who]["worst"] - found[peer]["worst"]) / gap if gap > 0 else float("nan")
            found[f"{who} against {peer}"] = {
                "mean": round(float(np.mean(mean)), 5),
                "mean_95": [round(x, 5) for x in interval(mean)],
                "recovered": round(recovered, 3),
                "meets": bool(np.mean(mean) >= LEAST_MEAN and recovered >= LEAST_GAP and found[who]["over"] == 0.0),
            }
    return found


def limit_kept(recording: Path, limit_w: float) -> dict[str, Any]:
    """Draws as shares of the limit, at the readings at which it held the clocks."""
    with recording.open(newline="", encoding="utf-8") as file:
        rows = [(row["power"], row["throttle"]) for row in csv.DictReader(file) if row["power"] and row["throttle"]]
    shares = np.array([float(mw) / 1000.0 / limit_w for mw, why in rows if int(float(why)) & POWER_CAP])
    return {
        "readings": len(shares),
        "above": int((shares > 1.0).sum()),
        "mean": round(float(shares.mean()), 4),
        "highest": round(float(shares.max()), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("sweeps", type=Path, nargs="*")
    parser.add_argument("--telemetry", type=Path)
    parser.add_argument("--limit", type=float, default=700.0)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    bank = Bank.make(steep=RANGE)
    sets = {"made up": hungry(synthetic(300, np.random.default_rng(99)))}
    for path in given.sweeps:
        sets[path.stem.removeprefix("summary_power_")] = hungry(read_sweeps(path))
    results: dict[str, Any] = {"gpus": GPUS, "windows": WINDOWS, "seeds": given.seeds, "sets": {}}
    if given.telemetry is not None:
        results["limit kept"] = limit_kept(given.telemetry, given.limit)
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
