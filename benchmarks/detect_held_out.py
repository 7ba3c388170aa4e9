"""Detectors on devices they were not fitted on: `python -m benchmarks.detect_held_out --data FOLDER`.

One protocol for all. A module of `benchmarks.held_out` is one kind of detector; its text says how its sets are
fetched and extracted to FOLDER, and its `measure(folder)` scores them, peers in the same run. What has a name
with an odd md5 is for the score only. Intervals are over devices (pods, machines, jobs), drawn with replacement. A
change that was made after a look at a set marks that set as used: the table SETS says so, and is part of the
result.

Each kind has a result file of its own, `benchmarks/results/held_out_KIND.json`, so one kind can be run alone
(`--only leak`). Each run adds its figures to `benchmarks/results/scored.md`.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import subprocess
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks import held_out
from benchmarks.report import RESULTS, write

SCORED = RESULTS / "scored.md"
SETS = (
    # set, public source, split by, used for tuning (the even half is; the odd half never was, except as said)
    ("Calchas HBM", "openeuler hbm-predictor", "device", "ECC: even devices"),
    (
        "GenTD26",
        "alibaba/clusterdata, v2026-GenAI",
        "pod",
        "leak: even pods, its shipped tail too; odd ones: decision 042 came after a look at their alarms",
    ),
    ("Bitbrains rnd", "GWA-T-12, rnd", "virtual machine", "leak: even machines"),
    (
        "Alibaba 2018 mean",
        "DataCenter-Traces-Datasets",
        "drawn machine",
        "leak: even names, same mean",
    ),
    ("ByteDance AR", "ByteDance-Seed/StragglerAnalysis", "job", "straggler"),
    ("public training logs", "benchmarks.held_out.loss: REPOSITORIES", "log", "loss: even logs"),
    ("MLPerf training logs", "benchmarks.held_out.runs: ROUNDS", "log", "none"),
)


def kinds() -> list[str]:
    """Names of the modules of `benchmarks.held_out` that measure something."""
    return sorted(module.name for module in pkgutil.iter_modules(held_out.__path__))


def commit() -> str:
    """The commit that is measured, with a + where files differ from it; results that a run writes are none."""
    root = Path(__file__).parent.parent
    head = subprocess.run(
        ["git", "rev-parse", "--short=10", "HEAD"], check=True, cwd=root, capture_output=True, text=True
    )
    changed = subprocess.run(
        ["git", "status", "--porcelain", "-uno", "--", ".", ":!benchmarks/results"],
        check=True,
        cwd=root,
        capture_output=True,
        text=True,
    )
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")


def figures(result: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """(set and method, figure with interval) of every value that a kind measured by device."""
    if not isinstance(result, dict):
        return
    if "value" in result and "interval" in result:
        low, high = result["interval"]
        yield path, f"{result['value']:.3g} [{low:.3g}, {high:.3g}]"
        return
    for name, part in result.items():
        yield from figures(part, f"{path} · {name}" if path else str(name))


def note(kind: str, result: Any, at: str) -> None:
    """Adds one row a set to SCORED: the date, the set, the commit `at`, and every figure of this run."""
    rows = []
    for name, part in result.items():
        if said := "; ".join(f"{where} {figure}".strip() for where, figure in figures(part)):
            rows.append(f"| {date.today().isoformat()} | {kind}: {name} | {at} | {said} |\n")
    with SCORED.open("a", encoding="utf-8") as scored:
        scored.writelines(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder that the sets were extracted to")
    parser.add_argument("--only", choices=kinds(), action="append", help="kind to measure; default: all")
    arguments = parser.parse_args()
    if not arguments.data.is_dir():
        parser.error(f"--data: {arguments.data} is no folder; benchmarks/held_out says how to extract the sets")
    table = [dict(zip(("set", "source", "split_by", "used"), row, strict=True)) for row in SETS]
    at = commit()  # before results are written: they are tracked files too
    for kind in arguments.only or kinds():
        result = importlib.import_module(f"benchmarks.held_out.{kind}").measure(arguments.data)
        command = f"python -m benchmarks.detect_held_out --data FOLDER --only {kind}"
        write(f"held_out_{kind}", {"command": command, "commit": at, "public_sets": table, **result})
        note(kind, result, at)


if __name__ == "__main__":
    main()
