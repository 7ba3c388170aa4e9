"""Kernel lines and samples a second beside an earlier commit: `python -m benchmarks.kernel_log_turns CHECKOUT`.

CHECKOUT is a work tree of the earlier commit. Each turn runs `collectors_speed.py` with `--part kernel_log` and
`--part exposition` of both trees in processes of their own, so that what else runs on the machine meets both.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.report import write

ROOT = Path(__file__).resolve().parent.parent


PARTS = {"kernel_log": "lines_per_s", "exposition": "ours_samples_per_s"}


def rate(tree: Path, part: str) -> int:
    """Lines or samples a second of this work tree."""
    done = subprocess.run(
        [sys.executable, "benchmarks/collectors_speed.py", "--part", part, "--in-process"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        stdout=subprocess.PIPE,
        check=True,
    )
    return int(json.loads(done.stdout)[PARTS[part]])


def name(tree: Path) -> str:
    done = subprocess.run(
        ["git", "-C", str(tree), "rev-parse", "--short=12", "HEAD"], stdout=subprocess.PIPE, check=True
    )
    return done.stdout.decode().strip()


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the kernel log's reader with an earlier commit's")
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--turns", type=int, default=6)
    args = parser.parse_args()
    told: dict[str, object] = {
        "command": f"python -m benchmarks.kernel_log_turns CHECKOUT --turns {args.turns}",
        "commits": {"before": name(args.checkout), "now": name(ROOT)},
    }
    for part, what in PARTS.items():
        turns = [(rate(args.checkout, part), rate(ROOT, part)) for _ in range(args.turns)]
        before, now = zip(*turns, strict=True)
        told[what.removeprefix("ours_")] = {
            "before": before,
            "now": now,
            "ratio_of_best": round(max(now) / max(before), 2),
            "median_of_ratios": round(statistics.median(b / a for a, b in turns), 2),
        }
    write("kernel_log_turns", told)


if __name__ == "__main__":
    main()
