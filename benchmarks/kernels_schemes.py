"""Ranks of small products by flip graphs and by the tensor game: `python -m benchmarks.kernels_schemes`.

Each row: the rank that was reached, the published one it is held against, and seconds (of this process's CPU, as
others share the machine) and steps of each seed. Schemes that reach the bar go to the library of
`nightshift.kernels.schemes`, with their lifts to the integers. Writes results/kernels_schemes.json after each seed.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.report import RESULTS, write
from nightshift.kernels.schemes import flip_graph, lifting, scheme
from nightshift.kernels.schemes.native import compiler
from nightshift.version import commit

ROWS = {
    # format: (bar, seeds, most CPU seconds of each, what the bar is)
    "2x2x2": (7, 5, 60.0, "Strassen 1969"),
    "3x3x3": (23, 5, 120.0, "Laderman 1976"),
    "upper-4": (34, 5, 120.0, "Khoruzhii, Gelß and Pokutta, November 2025 (arXiv 2511.10786)"),
    "4x4x4": (47, 5, 60.0, "AlphaTensor 2022, modulo 2"),
    "4x5x5": (76, 5, 600.0, "AlphaTensor 2022"),
}


def searched(text: str, lift: bool, before: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """One row, after each seed; the first scheme of least rank is kept, and the first lift. before: the row that
    a killed run wrote; its seeds are kept."""
    bar, seeds, limit_s, source = ROWS[text]
    form = scheme.Format.of(text)
    runs, kept, whole = list(before["runs"]) if before else [], None, None
    for seed in range(len(runs), seeds):
        found = flip_graph.search(form, bar, seed, limit_s, time.process_time)
        runs.append({**found.origin, "rank": found.rank})
        print(text, runs[-1], flush=True)
        if found.rank <= bar:
            kept = kept or found
            whole = whole or (lifting.lifted(found) if lift else None)
        for each in (kept, whole):
            if each is not None:
                scheme.write(each, scheme.LIBRARY)
        yield {
            "bar": bar, "bar_source": source, "best_rank": min(run["rank"] for run in runs),
            "reached": sum(run["rank"] <= bar for run in runs), "seeds": len(runs),
            "lifted": whole is not None if lift else None, "runs": runs,
            **({"first_seeds_at": before["commit"]} if before else {}),
        }  # fmt: skip


def played(seeds: int, limit_s: float) -> dict[str, Any]:
    """The tensor game at 2×2."""
    import torch

    from nightshift.kernels.schemes import tensor_game

    torch.set_num_threads(1)
    runs = []
    for seed in range(seeds):
        found, curve = tensor_game.learned(7, seed, limit_s, time.process_time)
        runs.append({**found.origin, "rank": found.rank, "curve": curve[:: max(1, len(curve) // 20)]})
        print("game", {**runs[-1], "curve": curve[-1:]}, flush=True)
    ranks = [run["rank"] for run in runs]
    return {
        "bar": 7,
        "best_rank": min(ranks),
        "reached": sum(rank <= 7 for rank in ranks),
        "seeds": seeds,
        "runs": runs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rows", nargs="*", help="only these, beside the file's others; default: all")
    parser.add_argument("--game-seconds", type=float, default=120.0)
    parser.add_argument("--no-lift", action="store_true", help="do not lift: minutes of one core at 4x5x5")
    parser.add_argument("--resume", action="store_true", help="keep the seeds that a killed run has written")
    options = parser.parse_args()
    path = RESULTS / "kernels_schemes.json"
    results: dict[str, Any] = {
        "commit": commit(), "cc": compiler(), "load_at_start": os.getloadavg()[0], "clock": "CPU seconds",
    }  # fmt: skip
    for row in options.rows or [*ROWS, "game"]:
        game = row == "game"
        before = json.loads(path.read_text())["results"]["rows"][row] if options.resume else None
        lift = not options.no_lift
        for made in [played(5, options.game_seconds)] if game else searched(row, lift, before):
            # read only now: another process may have written other rows
            rows = json.loads(path.read_text())["results"]["rows"] if path.exists() else {}
            measured = {**made, "commit": commit(), "load": os.getloadavg()[0]}
            results["rows"] = {**dict.fromkeys([*ROWS, "game"]), **rows, row: measured}  # null: not run
            write("kernels_schemes", results)


if __name__ == "__main__":
    main()
