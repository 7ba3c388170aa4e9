"""A learned order beside the rule: `NIGHTSHIFT_DATA=… python -m benchmarks.scheduling_learned [--steps 100000]`.

Trains MaskablePPO from scratch on drawn traces, as `nightshift policy train scheduling` does, and plays it and the
rule on the same jobs as FIFO with backfill: on drawn traces that it was not trained on, and on the Philly-derived
trace where it is there. What wins here is what ships.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

from benchmarks.report import write
from benchmarks.scheduling import PHILLY, rule_sha256
from controllers.scheduling.learn import LEARNABLE


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, help="of training; none: the full number")
    parser.add_argument("--seeds", type=int, default=5, help="of evaluation")
    parser.add_argument("--name", default="scheduling_learned")
    given = parser.parse_args()
    root = os.environ.get("NIGHTSHIFT_DATA")
    files = [[Path(root) / PHILLY]] if root else []
    began_s, cpu_s = time.monotonic(), time.process_time()
    policy = LEARNABLE.train(1, given.steps, lambda text: print(text, flush=True))
    training = {
        **policy.training,
        "wall_s": round(time.monotonic() - began_s),
        "cpu_s": round(time.process_time() - cpu_s),
    }
    loads: dict[str, dict[str, Any]] = {}
    for each in [[], *files]:
        for row in LEARNABLE.evaluate(policy, each, range(given.seeds))["rows"]:
            loads.setdefault(row["trace"], {}).setdefault(str(row["load"]), {})[row["policy"]] = row
            print(row, flush=True)
    write(given.name, {"rule_sha256": rule_sha256(), "training": training, "traces": loads})


if __name__ == "__main__":
    main()
