"""Lemons in drawn fleets and in public failure records: `python -m benchmarks.lemons`.

Drawn: fleets of 1,000 nodes of 8 GPUs over 26 weeks. Healthy nodes fail 6.5 times per 1,000 node-days on average,
as in RSC-1 (Kokolis et al., arXiv 2410.21680). Made up: 1.2 % of the nodes are lemons, healthy rates are of a gamma
distribution (shape 2), six in ten failures are of one GPU, and a node is used on 60 to 100 % of days. A
lemon, or one GPU of it, fails 10 to 40 times as often as a healthy node (log-uniform). Every day the daemon's
own count (`agent.incidents.lemons`) judges the last 28 days. A lemon is found where it is named once in the 26
weeks. A healthy node that is named is false.

Public: `--titan FILE` (gc_full.csv of github.com/olcf/TitanGPULife, Ostrouchov et al., SC20: double bit errors and
GPUs off the bus, by slot and by serial number) and `--lanl FILE` (LA-UR-05-7318: failures of 22 systems by node,
those of hardware; a node counts as used on every day of its system's record). No one has labelled a lemon there, so
four figures tell. Every 28 days, units are named by the 28 days before. `again`: of the named, those that fail
in the 28 days after; `peers_again`: the same of all others. `by_chance`: units named where each failure of the
record is given to another unit in use on that day, so that there is no lemon: what is named there is false.
`repeaters`: units with failures on five days of 28 or more, and how many of them were named.
"""

from __future__ import annotations

import argparse
import csv
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.detect_held_out import commit
from benchmarks.report import write
from nightshift.agent.incidents.lemons import DAYS, lemons

NODES, GPUS, SPAN, SEEDS = 1000, 8, 182, range(100, 110)
RATE, SHARE, OF_A_GPU, SHAPE = 6.5e-3, 0.012, 0.6, 2.0
TIMES = (10.0, 40.0)
SPLIT_AT = 20.0
LANL = ("8", "9", "10", "11", "12", "13", "14", "18", "19", "20")
"""Systems of 128 nodes and more with a record of years."""


def fleet(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Per node its multiple (1: healthy); per node and day whether it was used, and which GPU failed (-1: none)."""
    lemon = rng.random(NODES) < SHARE
    times = np.where(lemon, np.exp(rng.uniform(np.log(TIMES[0]), np.log(TIMES[1]), NODES)), 1.0)
    rate = np.where(lemon, RATE * times, rng.gamma(SHAPE, RATE / SHAPE, NODES))
    used = rng.random((NODES, SPAN)) < rng.uniform(0.6, 1.0, NODES)[:, None]
    fails = used & (rng.random((NODES, SPAN)) < -np.expm1(-rate)[:, None])
    own = rng.integers(0, GPUS, NODES)
    gpu = np.where(lemon[:, None], own[:, None], rng.integers(0, GPUS, (NODES, SPAN)))
    is_gpu_lemon = rng.random(NODES) < OF_A_GPU
    of_gpu = np.where(lemon[:, None], is_gpu_lemon[:, None], rng.random((NODES, SPAN)) < OF_A_GPU)
    where = np.where(fails, np.where(of_gpu, gpu, GPUS), -1)
    return times, used, where


def judged(used: np.ndarray, where: np.ndarray) -> set[int]:
    """The nodes that are named for these days, by themselves or by a GPU; slots count as their GPUs do."""
    days, failures = used.sum(1), (where >= 0).sum(1)
    named = set(map(int, lemons({str(n): (int(days[n]), int(failures[n])) for n in range(NODES)})))
    by_gpu = [(where == g).sum(1) for g in range(GPUS)]
    counts = {f"{n} {g}": (int(days[n]), int(by_gpu[g][n])) for n in range(NODES) for g in range(GPUS)}
    return named | {int(name.split()[0]) for name in lemons(counts)}


def draw(seed: int) -> dict[str, Any]:
    times, used, where = fleet(np.random.default_rng(seed))
    first: dict[int, int] = {}
    for day in range(DAYS, SPAN + 1):
        for node in judged(used[:, day - DAYS : day], where[:, day - DAYS : day]):
            first.setdefault(node, day)
    bad = [int(n) for n in np.flatnonzero(times > 1.0)]
    return {
        "seed": seed,
        "lemons": len(bad),
        "found": sum(n in first for n in bad),
        "milder": sum(times[n] < SPLIT_AT for n in bad),
        "milder_found": sum(times[n] < SPLIT_AT and n in first for n in bad),
        "false": sum(times[n] == 1.0 for n in first),
        "days_to_find": sorted(first[n] for n in bad if n in first),
    }


Record = tuple[np.ndarray, np.ndarray]
"""[units, days] bool each: in use; failed."""


def titan(path: Path, unit: str) -> Record:
    """By `location` (the node's slot) or `SN` (the GPU)."""
    rows = [row for row in csv.DictReader(path.open()) if row["insert"] and row["remove"]]
    at = {key: number for number, key in enumerate(sorted({row[unit] for row in rows}))}
    first = min(datetime.fromisoformat(row["insert"]) for row in rows)
    spans = [[(datetime.fromisoformat(row[end]) - first).days for end in ("insert", "remove")] for row in rows]
    used = np.zeros((len(at), max(until for _, until in spans) + 1), dtype=np.bool_)
    failed = np.zeros_like(used)
    for row, (since, until) in zip(rows, spans, strict=True):
        used[at[row[unit]], since : until + 1] = True
        failed[at[row[unit]], until] |= bool(row["event"])
    return used, failed


def lanl(path: Path, system: str) -> Record:
    """A system's nodes over its record."""
    rows = [row for row in csv.DictReader(path.open()) if row["System"] == system]
    times = [datetime.strptime(row["Prob Started"], "%m/%d/%Y %H:%M") for row in rows]
    days = [(time - min(times)).days for time in times]
    nodes = max(int(rows[0]["nodes"]), 1 + max(int(row["nodenumz"]) for row in rows))
    failed = np.zeros((nodes, max(days) + 1), dtype=np.bool_)
    for row, day in zip(rows, days, strict=True):
        failed[int(row["nodenumz"]), day] |= bool(row["Hardware"].strip())
    return np.ones_like(failed), failed


def by_chance(record: Record, rng: np.random.Generator) -> Record:
    """The same failures of each day, of other units in use on that day."""
    used, failed = record
    other = np.zeros_like(failed)
    for day in np.flatnonzero(failed.any(0)).tolist():
        other[rng.choice(np.flatnonzero(used[:, day]), int(failed[:, day].sum()), replace=False), day] = True
    return used, other


def named_by_window(record: Record) -> dict[int, set[int]]:
    """By day every 28 days: the units that the 28 days before it name."""
    used, failed = record
    found = {}
    for day in range(DAYS, used.shape[1] + 1, DAYS):
        days, failures = used[:, day - DAYS : day].sum(1), failed[:, day - DAYS : day].sum(1)
        known = np.flatnonzero(days).tolist()
        found[day] = set(map(int, lemons({str(n): (int(days[n]), int(failures[n])) for n in known})))
    return found


def judged_record(record: Record, rng: np.random.Generator) -> dict[str, Any]:
    used, failed = record
    named, months = named_by_window(record), used.sum() / DAYS
    ends = [day for day in named if day + DAYS <= used.shape[1]]
    after = {day: failed[:, day : day + DAYS].max(axis=1) for day in ends}
    hits = [bool(after[day][unit]) for day in after for unit in named[day]]
    others = [after[day][used[:, day] & ~np.isin(np.arange(len(used)), list(named[day]))] for day in after]
    repeaters = {
        (day, int(unit)) for day in named for unit in np.flatnonzero(failed[:, day - DAYS : day].sum(1) >= 5)
    }
    count, chance = (sum(map(len, one.values())) for one in (named, named_by_window(by_chance(record, rng))))
    return {
        "units": len(used), "failures": int(failed.sum()), "windows": len(named),
        "named": count, "named_per_1000_a_month": float(1000 * count / months),
        "again": sum(hits) / max(len(hits), 1), "peers_again": float(np.concatenate(others).mean()),
        "repeaters": len(repeaters), "repeaters_named": sum(unit in named[day] for day, unit in repeaters),
        "by_chance": chance, "by_chance_per_1000_a_month": float(1000 * chance / months),
    }  # fmt: skip


def public(titan_file: Path | None, lanl_file: Path | None) -> dict[str, Any]:
    rng, found = np.random.default_rng(SEEDS[0]), {}
    if titan_file is not None:
        for name, unit in (("Titan, slots", "location"), ("Titan, GPUs", "SN")):
            found[name] = judged_record(titan(titan_file, unit), rng)
    if lanl_file is not None:
        for system in LANL:
            found[f"LANL system {system}"] = judged_record(lanl(lanl_file, system), rng)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--titan", type=Path, metavar="FILE")
    parser.add_argument("--lanl", type=Path, metavar="FILE")
    given = parser.parse_args()
    at, draws, records = commit(), [], public(given.titan, given.lanl)
    for name, record in records.items():
        print(name, record, flush=True)
    for seed in SEEDS:
        draws.append(draw(seed))
        print(draws[-1], flush=True)
    total = {
        name: int(sum(one[name] for one in draws))
        for name in ("lemons", "found", "milder", "milder_found", "false")
    }
    months = len(draws) * (SPAN - DAYS) / 30.0
    graver, graver_found = total["lemons"] - total["milder"], total["found"] - total["milder_found"]
    results = {
        "commit": at, **total, "found_share": total["found"] / total["lemons"],
        "milder_found_share": total["milder_found"] / total["milder"], "graver_found_share": graver_found / graver,
        "false_per_month": total["false"] / months,
        "median_days": float(np.median([day for one in draws for day in one["days_to_find"]])), "draws": draws,
        "public": records,
    }  # fmt: skip
    write("lemons", results)


if __name__ == "__main__":
    main()
