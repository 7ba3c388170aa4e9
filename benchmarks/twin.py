"""A twin of fleets of 1,000 to 1,000,000 GPUs: `python -m benchmarks.twin [--only cost|life|power]`.

The daemon itself (`benchmarks.twin_shard`) over synthetic clusters (`benchmarks.twin_fleet`), one agent a cluster,
one process after another. A fleet of a million GPUs is eight clusters of 125,000, each run.

cost: looks 5 s apart with published fault rates and the loss of one power domain. Seconds of one core by stage.
life: looks 60 s apart over hours or days: faults beside incidents, pages, times, ETTR.
power: the cost of power control in shadow, beside the same looks without it.

Slopes are of log cost over log size, by least squares over all shards, with 90 % intervals by a bootstrap over
shards; projections follow from them for one agent, and from the eight clusters' cost per GPU for many agents.
What it cannot tell: watts saved (a synthetic GPU answers to no limit, so power control is only timed), and what
scraping costs (`collectors_speed.json`).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.detect_held_out import commit
from benchmarks.report import RESULTS, write

SHARD = 125_000
SIZES = (1_000, 10_000, 100_000, 1_000_000)
LOOKS, TICK_S, STORM = 40, 5.0, 10
"""Looks, their distance and the look at which a power domain fails. Housekeeping is once a minute."""
LIVES = {1_000: 4_320, 10_000: 2_880, 125_000: 300}
"""Cluster size → looks of a minute: three days, two days, five hours."""
TARGETS = (100_000, 1_000_000, 10_000_000)
STAGES = ("merge", "history", "detect", "budget", "correlate and store", "housekeeping")
DRAWS = 2_000


def shard(gpus: int, seed: int, looks: int, tick_s: float, *flags: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.twin_shard", *map(str, (gpus, seed, looks, tick_s)), *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(f"{gpus:>9,} GPUs, seed {seed}: look {found['cpu_s']['look']}", file=sys.stderr, flush=True)
    return found


def cost() -> dict[str, Any]:
    """By fleet size: its clusters, each as measured."""
    fleets: dict[str, Any] = {}
    for size in SIZES:
        clusters = [min(SHARD, size)] * -(-size // SHARD)
        rows = [shard(g, n + 1, LOOKS, TICK_S, "--storm", str(STORM)) for n, g in enumerate(clusters)]
        fleets[str(size)] = {"clusters": rows, **_fleet(rows)}
    every = [row for fleet in fleets.values() for row in fleet["clusters"]]
    return {"fleets": fleets, **_projected(every, fleets[str(SIZES[-1])]["clusters"])}


def _fleet(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A fleet's figures from its clusters': sums, and the worst cluster."""
    gpus = sum(row["gpus"] for row in rows)
    mean_s = sum(row["cpu_s"]["look"]["mean"] for row in rows)
    return {
        "gpus": gpus,
        "look_cpu_s_sum": {"median": sum(row["cpu_s"]["look"]["median"] for row in rows), "mean": mean_s},
        "look_cpu_s_worst_cluster": max(row["cpu_s"]["look"]["worst"] for row in rows),
        "look_wall_s_worst_cluster": max(row["wall_s"]["worst"] for row in rows),
        "detect_cpu_s_sum": sum(row["cpu_s"]["detect"]["median"] for row in rows),
        "detect_cpu_s_cluster": {
            "median": max(row["cpu_s"]["detect"]["median"] for row in rows),
            "worst": max(row["cpu_s"]["detect"]["worst"] for row in rows),
        },
        "mean_us_a_gpu": 1e6 * mean_s / gpus,
        "median_us_a_gpu": 1e6 * sum(row["cpu_s"]["look"]["median"] for row in rows) / gpus,
        "stage_mean_s_sum": {name: sum(row["cpu_s"][name]["mean"] for row in rows) for name in STAGES},
        "other_threads_cpu_s_sum": sum(row["other_threads_cpu_s"]["mean"] for row in rows),
        "peak_bytes_sum": sum(row["peak_bytes"] for row in rows),
        "peak_bytes_cluster": max(row["peak_bytes"] for row in rows),
        "database_bytes_sum": sum(row["database_bytes"] for row in rows),
        "rows_sum": sum(sum(row["rows"].values()) for row in rows),
        "samples_a_look": sum(row["messages"]["samples"] for row in rows),
        "incidents": sum(row["incidents"] for row in rows),
        "history_looks": min(row["history_looks"] for row in rows),
    }


_MEASURES = {
    "look_cpu_s": lambda row: row["cpu_s"]["look"]["mean"],
    "worst_look_cpu_s": lambda row: row["cpu_s"]["look"]["worst"],
    "detect_cpu_s": lambda row: row["cpu_s"]["detect"]["median"],
    "other_threads_cpu_s": lambda row: row["other_threads_cpu_s"]["mean"],
    "memory_bytes": lambda row: row["peak_bytes"] - row["before_bytes"],
    "state_bytes": lambda row: row["state_bytes"],
    "database_rows": lambda row: sum(row["rows"].values()),
}


def _projected(rows: Sequence[dict[str, Any]], largest: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Slopes and projections: value, low, high."""
    rng = np.random.default_rng(40)
    gpus = np.array([row["gpus"] for row in rows], dtype=float)
    slopes, one, many = {}, {}, {}
    for name, of in _MEASURES.items():
        values = np.maximum([of(row) for row in rows], 1e-9)
        lines = []
        while len(lines) < DRAWS:
            drawn = rng.integers(len(rows), size=len(rows))
            if len(set(gpus[drawn].tolist())) > 1:
                lines.append(np.polyfit(np.log(gpus[drawn]), np.log(values[drawn]), 1))
        line, spread = np.polyfit(np.log(gpus), np.log(values), 1), np.array(lines)
        slopes[name] = _interval(line[0], spread[:, 0])
        one[name] = {str(t): _interval(_at(line, t), _at(spread.T, t)) for t in TARGETS}
        per_gpu = np.array([of(row) / row["gpus"] for row in largest])
        means = rng.choice(per_gpu, (DRAWS, len(per_gpu))).mean(axis=1)
        many[name] = {str(t): _interval(per_gpu.mean() * t, means * t) for t in TARGETS}
    return {"slopes": slopes, "one_agent": one, "many_agents": many}


def _at(line: Any, gpus: int) -> Any:
    return np.exp(line[1] + line[0] * np.log(gpus))


def _interval(value: Any, drawn: Any) -> dict[str, float]:
    low, high = np.quantile(drawn, [0.05, 0.95])
    return {"value": float(value), "low": float(low), "high": float(high)}


def life() -> dict[str, Any]:
    """By cluster size: faults, incidents, times."""
    found = {}
    for gpus, looks in LIVES.items():
        row = shard(gpus, 7, looks, 60.0)
        days = looks / 1_440
        drawn = sum(row["faults"].values())
        found[str(gpus)] = {
            "days": days, "faults": row["faults"], "faults_found": row["faults_found"],
            "incidents": row["incidents"], "lanes": row["lanes"], "plans": row["plans"],
            "unmatched_incidents": row["unmatched_incidents"], "unmatched": row["unmatched"],
            "faults_a_gpu_day": drawn / gpus / days,
            "pages_a_day": row["lanes"].get("page", 0) / days,
            "found_s": _quantiles(row["found_s"]), "released_s": _quantiles(row["released_s"]),
            "resolved_s": _quantiles(row["resolved_s"]), "ettr": row["ettr"],
            "watts": row["watts"][0], "watts_of_stopped_jobs": row["watts"][1],
            "rows": row["rows"], "rows_a_day": sum(row["rows"].values()) / days,
        }  # fmt: skip
    return found


def _quantiles(values: Sequence[float]) -> dict[str, float | int | None]:
    if not values:
        return {"n": 0, "median": None, "p95": None}
    return {"n": len(values), "median": float(np.median(values)), "p95": float(np.quantile(values, 0.95))}


def power() -> dict[str, Any]:
    """With and without power control in shadow, at 10,000 GPUs."""
    rows = {name: shard(10_000, 3, 26, TICK_S, *flags) for name, flags in (("off", ()), ("shadow", ("--power",)))}
    return {
        name: {"look_cpu_s": row["cpu_s"]["look"], "other_threads_cpu_s": row["other_threads_cpu_s"]}
        for name, row in rows.items()
    }


PARTS = {"cost": cost, "life": life, "power": power}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=PARTS, action="append", help="a part alone replaces its own figures")
    chosen = parser.parse_args().only or list(PARTS)
    path = RESULTS / "twin.json"
    found = json.loads(path.read_text())["results"] if path.exists() else {}
    for name in chosen:
        found |= {name: PARTS[name](), f"{name}_commit": commit()}
    write("twin", found)
    if "cost" in found:
        (RESULTS / "twin.svg").write_text(plot(found["cost"]["fleets"]))
    print(Counter(chosen), file=sys.stderr)


# The picture ------------------------------------------------------------------------------------------------------

_WIDTH, _HEIGHT, _EDGE = 330, 210, 44
_PANELS = (
    ("Mean look, s of one core", lambda fleet: fleet["look_cpu_s_sum"]["mean"]),
    ("Detection, s of one core", lambda fleet: fleet["detect_cpu_s_sum"]),
    ("Mean look, µs a GPU", lambda fleet: fleet["mean_us_a_gpu"]),
    ("Memory, GiB", lambda fleet: fleet["peak_bytes_sum"] / 2**30),
    ("Database, MiB", lambda fleet: fleet["database_bytes_sum"] / 2**20),
    ("Database rows", lambda fleet: fleet["rows_sum"]),
)


def plot(fleets: dict[str, Any]) -> str:
    """One SVG of log-log panels over fleet size."""
    across = 3
    height = _HEIGHT * -(-len(_PANELS) // across)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH * across} {height}" '
        'font-family="sans-serif" font-size="11" fill="#333" role="img" aria-label="Cost against fleet size">'
    )
    parts = [head]
    for number, (title, of) in enumerate(_PANELS):
        points = [(fleet["gpus"], of(fleet)) for fleet in fleets.values()]
        parts.append(
            f'<g transform="translate({number % across * _WIDTH},{number // across * _HEIGHT})">'
            f"{_panel(title, points)}</g>"
        )
    return "".join([*parts, "</svg>\n"])


def _panel(title: str, points: Sequence[tuple[float, float]]) -> str:
    xs, ys = (np.log10(np.array(column)) for column in zip(*points, strict=True))
    low, high = np.floor(ys.min()), max(np.ceil(ys.max()), np.floor(ys.min()) + 1)
    px = _EDGE + (xs - xs.min()) / (xs.max() - xs.min()) * (_WIDTH - 2 * _EDGE)
    py = _HEIGHT - _EDGE - (ys - low) / (high - low) * (_HEIGHT - 2 * _EDGE)
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"/>'
        f'<text x="{x:.1f}" y="{y - 7:.1f}" text-anchor="middle">{v:.3g}</text>'
        for x, y, (_, v) in zip(px, py, points, strict=True)
    )
    names = "".join(
        f'<text x="{x:.1f}" y="{_HEIGHT - _EDGE + 16}" text-anchor="middle">{int(g):,}</text>'
        for x, (g, _) in zip(px, points, strict=True)
    )
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(px, py, strict=True))
    return (
        f'<text x="{_EDGE}" y="16" font-weight="bold">{title}</text>'
        f'<path d="M{_EDGE} {_EDGE - 10}V{_HEIGHT - _EDGE}H{_WIDTH - _EDGE}" fill="none" stroke="#999"/>'
        f'<polyline points="{line}" fill="none" stroke="#2a6"/><g fill="#2a6">{dots}</g>{names}'
    )


if __name__ == "__main__":
    main()
