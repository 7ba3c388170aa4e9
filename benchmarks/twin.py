"""A twin of fleets of 1,000 to 1,000,000 GPUs: `python -m benchmarks.twin [--only PART] [--size GPUS]`.

The daemon itself (`benchmarks.twin_shard`) over synthetic clusters (`benchmarks.twin_fleet`), one agent a cluster,
one process after another. A fleet of a million GPUs is twenty clusters of 50,000. Two of them are run, since they
differ in what is drawn alone: a sum is ten times theirs, and `clusters_run` says so.

cost: looks 5 s apart with published fault rates and the loss of one power domain, over the ten minutes in which
every detector's state is stored at least once. Seconds of one core by stage.
flat: the same without a storm, as many clusters of 10,000 GPUs, where a larger cluster shares out nothing, beside
clusters of 50,000. A job costs a look as much as hundreds of GPUs do, so jobs are of one size in all of them.
power: the cost of power control in shadow, beside the same looks without it.
days: three clusters for hours, looks 5 s apart, faults many times as often as published so that there are
enough of them (`DAYS`); two people approve each plan at the next look. Pages a day and ETTR are given for the
published rates: what comes of a fault is counted by fault, what comes of none by day. Nothing is timed in it.
`--size` runs one of its clusters alone and keeps the others.

Slopes are of log cost over log cluster size, by least squares over all clusters, with bootstrap intervals of 90 %.
A slope below 1 is a fixed cost of each look: nothing is projected beyond the largest cluster with it. Fleets of
100,000 to 10,000,000 GPUs are projected as many such clusters, with 90 % intervals by Student's t over those run.
What it cannot tell: watts saved (a synthetic GPU answers to no limit, so power control is only timed) and what
scraping costs (`collectors_speed.json`).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.detect_held_out import commit
from benchmarks.report import RESULTS, write

SHARD = 50_000
SIZES = (1_000, 10_000, 100_000, 1_000_000)
LOOKS, TICK_S, STORM = 132, 5.0, 2
"""Looks, their distance, and the look at which a power domain fails: its pages are lost two minutes later."""
RUN = 2
"""Clusters of a fleet that are run."""
EQUAL, EQUAL_RUN = 10_000, 3
"""GPUs of each of many equal clusters, and how many are run."""
EQUAL_JOB_NODES = 31
"""Nodes of each job in both sizes of cluster: a fortieth of the smaller one."""
TARGETS = (100_000, 1_000_000, 10_000_000)
STAGES = ("merge", "history", "detect", "budget", "correlate and store", "housekeeping")
DRAWS = 2_000
STUDENT = {2: 6.314, 3: 2.920}
"""Quantile of Student's t at 95 %, by how many clusters were run."""


def shard(
    gpus: int, seed: int, looks: int, tick_s: float, *flags: str, folder: str | None = None
) -> dict[str, Any]:
    """A cluster's figures. `folder`: where the daemon's files are."""
    command = [sys.executable, "-m", "benchmarks.twin_shard", *map(str, (gpus, seed, looks, tick_s)), *flags]
    there = os.environ | ({} if folder is None else {"TMPDIR": folder})
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=there)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(f"{gpus:>9,} GPUs, seed {seed}: look {found['cpu_s']['look']}", file=sys.stderr, flush=True)
    return found


def cost() -> dict[str, Any]:
    """By fleet size: its clusters, each as measured."""
    storm = ("--storm", str(STORM))
    fleets: dict[str, Any] = {}
    for size in SIZES:
        count = -(-size // SHARD)
        if size == SIZES[-1]:
            rows = fleets[str(SIZES[-2])]["clusters"]  # the same clusters, more of them
        else:
            seeds = range(1, 1 + min(count, RUN))
            rows = [shard(size // count, seed, LOOKS, TICK_S, *storm) for seed in seeds]
        fleets[str(size)] = {"clusters": rows, **_fleet(rows, count)}
    every = [row for fleet in fleets.values() for row in fleet["clusters"]]
    largest = fleets[str(SIZES[-1])]["clusters"]
    return {"fleets": fleets, "limits": _limits(largest), **_projected(every, largest)}


def flat() -> dict[str, Any]:
    """The cost of a GPU without a storm, which costs as much in a small cluster as in a large one."""
    jobs = ("--job-nodes", str(EQUAL_JOB_NODES))
    runs = {
        gpus: [shard(gpus, seed, LOOKS, TICK_S, *jobs) for seed in range(1, 1 + EQUAL_RUN)]
        for gpus in (EQUAL, SHARD)
    }
    equal, large = runs[EQUAL], runs[SHARD]
    fleets = {str(size): _fleet(equal[: size // EQUAL], size // EQUAL) for size in SIZES if size >= EQUAL}
    by_gpu = [fleet["mean_us_a_gpu"] for fleet in fleets.values()]
    of_large = _fleet(large, SIZES[-1] // SHARD)
    return {
        "clusters": equal + large,
        "equal_clusters": fleets,
        "largest_over_least": max(by_gpu) / min(by_gpu),
        "large_clusters": of_large,
        "one_small_over_large": by_gpu[0] / of_large["mean_us_a_gpu"],
        "one_small_over_large_median": fleets[str(EQUAL)]["median_us_a_gpu"] / of_large["median_us_a_gpu"],
    }


WALL_S, MEMORY_BYTES = 10.0, 16 * 2**30
"""What the worst look may take, and the memory of the machine that the first limit is stated for."""


def _limits(largest: Sequence[dict[str, Any]]) -> dict[str, float]:
    """GPUs of one agent at which each resource is used up, on a straight line from the largest cluster that ran."""
    worst = {
        "one core, mean look": lambda row: row["cpu_s"]["look"]["mean"] / TICK_S,
        "one core, mean look and all other threads": lambda row: (
            (row["cpu_s"]["look"]["mean"] + row["other_threads_cpu_s"]["mean"]) / TICK_S
        ),
        "worst look of 10 s": lambda row: row["wall_s"]["worst"] / WALL_S,
        "detection of .6 s": lambda row: row["cpu_s"]["detect"]["median"] / 0.6,
        "memory of 16 GiB": lambda row: row["peak_bytes"] / MEMORY_BYTES,
    }
    return {name: min(row["gpus"] / of(row) for row in largest) for name, of in worst.items()}


def _fleet(rows: Sequence[dict[str, Any]], count: int) -> dict[str, Any]:
    """A fleet's figures from those of its clusters that were run: sums over all `count`, and the worst cluster."""

    def total(of: Callable[[dict[str, Any]], float]) -> float:
        return sum(of(row) for row in rows) * count / len(rows)

    gpus = total(lambda row: row["gpus"])
    mean_s = total(lambda row: row["cpu_s"]["look"]["mean"])
    return {
        "gpus": int(gpus),
        "clusters_run": len(rows),
        "clusters_of": count,
        "look_cpu_s_sum": {"median": total(lambda row: row["cpu_s"]["look"]["median"]), "mean": mean_s},
        "look_cpu_s_worst_cluster": max(row["cpu_s"]["look"]["worst"] for row in rows),
        "look_wall_s_worst_cluster": max(row["wall_s"]["worst"] for row in rows),
        "first_look_s": max(row["first_look_s"] for row in rows),
        "detect_cpu_s_sum": total(lambda row: row["cpu_s"]["detect"]["median"]),
        "detect_cpu_s_cluster": {
            "median": max(row["cpu_s"]["detect"]["median"] for row in rows),
            "worst": max(row["cpu_s"]["detect"]["worst"] for row in rows),
        },
        "mean_us_a_gpu": 1e6 * mean_s / gpus,
        "median_us_a_gpu": 1e6 * total(lambda row: row["cpu_s"]["look"]["median"]) / gpus,
        "stage_mean_s_sum": {name: total(partial(_stage, name)) for name in STAGES},
        "other_threads_cpu_s_sum": total(lambda row: row["other_threads_cpu_s"]["mean"]),
        "peak_bytes_sum": total(lambda row: row["peak_bytes"]),
        "peak_bytes_cluster": max(row["peak_bytes"] for row in rows),
        "state_bytes_sum": total(lambda row: row["state_bytes"]),
        "database_bytes_sum": total(lambda row: row["database_bytes"]),
        "rows_sum": total(lambda row: sum(row["rows"].values())),
        "samples_a_look": total(lambda row: row["messages"]["samples"]),
        "incidents": total(lambda row: row["incidents"]),
        "pages": total(lambda row: row["lanes"].get("page", 0)),
        "storm_found_s": max((max(row["found_s"], default=math.nan) for row in rows), default=math.nan),
        "incidents_of_no_fault": total(lambda row: row["unmatched_incidents"]),
        "watts": total(lambda row: row["watts"][0]),
        "history_looks": min(row["history_looks"] for row in rows),
    }


def _stage(name: str, row: dict[str, Any]) -> float:
    return float(row["cpu_s"][name]["mean"])


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
    """Slopes over cluster size, and fleets of many clusters: value, low, high."""
    rng = np.random.default_rng(40)
    gpus = np.array([row["gpus"] for row in rows], dtype=float)
    slopes, many = {}, {}
    for name, of in _MEASURES.items():
        values = np.maximum([of(row) for row in rows], 1e-9)
        lines: list[float] = []
        while len(lines) < DRAWS:
            drawn = rng.integers(len(rows), size=len(rows))
            if len(set(gpus[drawn].tolist())) > 1:
                lines.append(np.polyfit(np.log(gpus[drawn]), np.log(values[drawn]), 1)[0])
        low, high = np.quantile(lines, [0.05, 0.95])
        value = np.polyfit(np.log(gpus), np.log(values), 1)[0]
        slopes[name] = {"value": float(value), "low": float(low), "high": float(high)}
        per_gpu = np.array([of(row) / row["gpus"] for row in largest])
        half = STUDENT[len(per_gpu)] * per_gpu.std(ddof=1) / math.sqrt(len(per_gpu))
        parts = {"value": per_gpu.mean(), "low": max(0.0, per_gpu.mean() - half), "high": per_gpu.mean() + half}
        many[name] = {str(t): {key: float(part * t) for key, part in parts.items()} for t in TARGETS}
    return {"slopes": slopes, "many_agents": many}


def power() -> dict[str, Any]:
    """With and without power control in shadow, at 10,000 GPUs."""
    rows = {name: shard(10_000, 3, 26, TICK_S, *flags) for name, flags in (("off", ()), ("shadow", ("--power",)))}
    return {
        name: {"look_cpu_s": row["cpu_s"]["look"], "other_threads_cpu_s": row["other_threads_cpu_s"]}
        for name, row in rows.items()
    }


DAYS = {1_000: (0.5, 60.0), 10_000: (0.125, 40.0), SHARD: (0.03125, 40.0)}
"""By cluster size: days run, and how many times as often as published faults come."""
MEMORY = "/dev/shm"


def days(size: int) -> dict[str, Any]:
    """One cluster: faults and what the daemon made of them. Its files are in memory if there is such a folder."""
    length, haste = DAYS[size]
    looks = int(length * 86_400 / TICK_S)
    folder = MEMORY if os.path.isdir(MEMORY) else None
    row = shard(size, 7, looks, TICK_S, "--haste", str(haste), folder=folder)
    return _lived(row, length, haste) | {"cluster": row, "commit": commit()}


def _lived(row: dict[str, Any], length: float, haste: float) -> dict[str, Any]:
    faults = sum(row["faults"].values())
    times = {f"{name}_s": _times(row[f"{name}_s"]) for name in ("found", "resolved", "released")}
    all_lanes, of_none = Counter(row["lanes"]), Counter(row["unmatched_lanes"])

    def a_day(lane: str) -> float:
        return float((all_lanes[lane] - of_none[lane]) / haste + of_none[lane]) / length

    return {
        "days": length,
        "haste": haste,
        "faults": faults,
        "faults_found": sum(row["faults_found"].values()) / max(1, faults),
        **times,
        "pages_a_fault": (all_lanes["page"] - of_none["page"]) / max(1, faults),
        "pages_a_day": a_day("page"),
        "tickets_a_day": a_day("ticket"),
        "incidents_of_no_fault": row["unmatched_incidents"],
        "good_nodes_touched": row["good_nodes_touched"],
        "ettr": 1.0 - (1.0 - row["ettr_true"]) / haste,
        "ettr_off_by": row["ettr_booked"] - row["ettr_true"],
        "watts": row["watts"][0],
        "look_cpu_s": row["cpu_s"]["look"]["mean"] + row["other_threads_cpu_s"]["mean"],
        "peak_bytes": row["peak_bytes"],
        "database_rows_a_day": sum(row["rows"].values()) / length,
        "samples_a_day": row["messages"]["samples"] * 86_400 / TICK_S,
    }


def _times(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {"count": 0}
    return {"count": len(values), "median": float(np.median(values)), "p95": float(np.quantile(values, 0.95))}


_ADD_UP = (
    "pages_a_day", "tickets_a_day", "watts", "look_cpu_s", "peak_bytes", "database_rows_a_day", "samples_a_day",
)  # fmt: skip


def _summed(made: dict[str, Any], size: int) -> dict[str, Any]:
    """A fleet's line: its own run, or as many of the largest cluster as it has."""
    of = str(size if size in DAYS else SHARD)
    count = size // int(of)
    row = made[of]
    return {name: row[name] * count for name in _ADD_UP} | {
        "clusters": count,
        "found_median_s": row["found_s"].get("median"),
        "resolved_median_s": row["resolved_s"].get("median"),
        "released_median_s": row["released_s"].get("median"),
        "ettr": row["ettr"],
    }


PARTS = {"cost": cost, "flat": flat, "power": power}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=(*PARTS, "days"), action="append", help="a part replaces its own figures")
    parser.add_argument("--size", type=int, choices=DAYS, action="append", help="of days, this cluster alone")
    o = parser.parse_args()
    for name in o.only or [*PARTS, "days"]:
        if name in PARTS:
            _store({name: PARTS[name](), f"{name}_commit": commit()})
            continue
        for size in o.size or DAYS:
            row = days(size)
            _store({"days": {"clusters": _stored().get("days", {}).get("clusters", {}) | {str(size): row}}})
    found = _stored()
    clusters = found.get("days", {}).get("clusters", {})
    if len(clusters) == len(DAYS):
        _store({"days": {str(size): _summed(clusters, size) for size in SIZES} | {"clusters": clusters}})
    if "cost" in found:
        (RESULTS / "twin.svg").write_text(plot(found["cost"]["fleets"], _stored().get("days", {})))


def _stored() -> dict[str, Any]:
    path = RESULTS / "twin.json"
    found: dict[str, Any] = json.loads(path.read_text())["results"] if path.exists() else {}
    return found


def _store(part: dict[str, Any]) -> None:
    """Each part as soon as it is there: what is interrupted is run alone later."""
    write("twin", _stored() | part)


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
_LIVED_PANELS = (
    ("Pages a day", lambda fleet: fleet["pages_a_day"]),
    ("Fault to resolved, median s", lambda fleet: fleet["resolved_median_s"]),
    ("Wall time not in useful steps, %", lambda fleet: 100.0 * (1.0 - fleet["ettr"])),
    ("MW", lambda fleet: fleet["watts"] / 1e6),
    ("Samples a day", lambda fleet: fleet["samples_a_day"]),
    ("Database rows a day", lambda fleet: fleet["database_rows_a_day"]),
)


def plot(fleets: dict[str, Any], lived: dict[str, Any]) -> str:
    """One SVG of log-log panels over fleet size."""
    panels = [(title, [(fleet["gpus"], of(fleet)) for fleet in fleets.values()]) for title, of in _PANELS]
    sizes = [size for size in map(str, SIZES) if size in lived]
    panels += [(t, [(int(size), of(lived[size])) for size in sizes]) for t, of in _LIVED_PANELS if sizes]
    across = 3
    height = _HEIGHT * -(-len(panels) // across)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH * across} {height}" '
        'font-family="sans-serif" font-size="11" fill="#333" role="img" aria-label="Cost against fleet size">'
    )
    parts = [head]
    for number, (title, points) in enumerate(panels):
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
