"""ETTR of one training over 9,600 GPUs, simulated: our ladder beside a stated baseline.

    python -m benchmarks.ettr [--runs 40]

Failures: Llama 3's published table (`benchmarks.llama3_failures`), independent in time, of five groups that differ
in where they are. Grid: checkpoint interval, start-up, spare nodes; 30 days a
run. Durations of ours: from our committed results, which the output names; what none measures is assumed, and
said. Baseline, assumed: a collective's timeout of ten minutes (PyTorch's default), then a person who finds and
drains the node in 8 to 45 minutes, and is wrong as often as stated. Sensitivity: each duration ± 50 %.

It simulates: no daemon runs here. What a real cluster adds (people who do not approve, queues) is not in it.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from benchmarks.detect_held_out import commit
from benchmarks.llama3_failures import count, per_gpu_day
from benchmarks.report import RESULTS, write

GPUS, DAYS, PER_NODE = 9_600, 30.0, 8
RATE = per_gpu_day()
"""Interruptions a GPU-day."""


class Group(NamedTuple):
    """Causes alike in how they show. `count`: of 419. `tells`: the node itself reports it (an Xid, a lost GPU, a
    condition); else the job hangs, and its place comes from its dumps. `hardware`: the node has to leave."""

    name: str
    count: int
    tells: bool
    hardware: bool


_GPU = (
    "Faulty GPU",
    "GPU HBM3 Memory",
    "GPU SRAM Memory",
    "GPU System Processor",
    "GPU Thermal Interface + Sensor",
)
_HOST = ("SSD", "Power Supply", "Server Chassis", "IO Expansion Board", "CPU", "System Memory")
GROUPS = (
    Group("GPU and its memory", count(*_GPU), True, True),
    Group("host hardware", count(*_HOST), True, True),
    Group("network", count("Network Switch/Cable", "NIC"), False, True),
    Group("silent or hung", count("Silent Data Corruption", "NCCL Watchdog Timeouts"), False, True),
    Group("software and maintenance", count("Software Bug", "Host Maintenance", "Dependency"), True, False),
)


@dataclass(frozen=True)
class Durations:
    """Seconds. detect: from the fault to the finding where the node tells; hang: where none does; place: to read
    the dumps; act: from the plan to the drain. wrong: share of faults that do not tell, placed wrong. Detection
    spreads by a lognormal of 0.4, acting by 0.3 (assumed)."""

    detect_s: float
    hang_s: float
    place_s: float
    act_s: float
    wrong: float
    check_s: float


@dataclass(frozen=True)
class Setting:
    """One cell of the grid."""

    checkpoint_s: float
    start_s: float
    spares: int
    repair_days: float = 2.0


def measured() -> tuple[Durations, dict[str, str]]:
    """Ours, and where each comes from."""

    def of(name: str) -> Any:
        found = json.loads((RESULTS / f"{name}.json").read_text())
        return found.get("results", found)

    place, slurm, approve, progress = (of(name) for name in ("hang_place", "slurm", "approve", "held_out_progress"))
    drains = [row["after_approval_s"] for row in slurm["xid48"]["rounds"]]
    found = Durations(
        detect_s=float(of("incidents")["halves"]["drawn"]["median_delay_s"]),
        hang_s=max(progress["hangs"]["delay_s"].values()), place_s=float(place["largest_s"]),
        act_s=float(np.median(drains)) + float(approve["on_the_store"]["wall_s"]["median"]),
        wrong=1.0 - float(place["made_right"]), check_s=5.0,
    )  # fmt: skip
    return found, {
        "detect_s": "incidents.json, median delay of the drawn half: faults of every kind",
        "hang_s": "held_out_progress.json, longest delay of a hang's alarm",
        "place_s": "hang_place.json, longest of 1,024 ranks",
        "act_s": "slurm.json (approval to drained, median) + approve.json (the gate); approval is automatic",
        "wrong": "hang_place.json, share of made dumps with a wrong rank",
        "check_s": "assumed: a preflight pass that still counts (decision 068)",
    }


BASELINE = Durations(600.0, 600.0, 0.0, 1_600.0, 0.10, 0.0)
"""No part of it is measured by us."""


def released_s(group: Group, d: Durations, rng: np.random.Generator, by_people: bool) -> tuple[float, bool]:
    """From a fault until its job may start on good nodes, and whether a wrong node was taken first."""
    spread = rng.lognormal(0.0, 0.4)
    seen_s = (d.detect_s if group.tells and not by_people else d.hang_s) * spread
    found_s = 0.0 if group.tells and not by_people else d.place_s
    wrong = bool(group.hardware and (by_people or not group.tells) and rng.random() < d.wrong)
    act_s = rng.uniform(480.0, 2_700.0) * d.act_s / 1_600.0 if by_people else d.act_s * rng.lognormal(0.0, 0.3)
    once_s = seen_s + found_s + act_s + d.check_s
    return once_s * (2.0 if wrong else 1.0), wrong


def run(s: Setting, d: Durations, seed: int, by_people: bool = False) -> dict[str, Any]:
    """One training of thirty days."""
    rng = np.random.default_rng(seed)
    shares = np.array([g.count for g in GROUPS], dtype=float)
    end_s, at_s, useful_s, released, wrong, hardware = DAYS * 86_400.0, s.start_s, 0.0, [], 0, 0
    back: list[float] = []
    while at_s < end_s:
        next_s = at_s + rng.exponential(86_400.0 / (RATE * GPUS))
        ran_s = min(next_s, end_s) - at_s
        useful_s += ran_s if next_s >= end_s else ran_s // s.checkpoint_s * s.checkpoint_s
        if next_s >= end_s:
            break
        group = GROUPS[int(rng.choice(len(GROUPS), p=shares / shares.sum()))]
        out_s, is_wrong = released_s(group, d, rng, by_people)
        released.append(out_s)
        wrong += is_wrong
        ready_s = next_s + out_s
        if group.hardware:
            hardware += 1
            back = [t for t in back if t > ready_s]
            if len(back) >= s.spares:  # no spare is left: wait for the first that comes back
                ready_s = max(ready_s, sorted(back)[len(back) - s.spares]) if back else ready_s
            back.append(ready_s + rng.exponential(s.repair_days * 86_400.0))
        at_s = ready_s + s.start_s
    return {"ettr": useful_s / end_s, "released_s": released, "wrong": wrong, "hardware": hardware}


def cell(s: Setting, d: Durations, runs: int, by_people: bool = False) -> dict[str, float]:
    made = [run(s, d, seed, by_people) for seed in range(runs)]
    times = np.concatenate([m["released_s"] for m in made])
    ettr = np.array([m["ettr"] for m in made])
    return {
        "ettr": float(ettr.mean()),
        "ettr_5": float(np.quantile(ettr, 0.05)),
        "ettr_95": float(np.quantile(ettr, 0.95)),
        "interruptions": len(times) / runs,
        "released_median_s": float(np.median(times)),
        "released_p95_s": float(np.quantile(times, 0.95)),
        "wrong_node": sum(m["wrong"] for m in made) / len(times),
    }  # fmt: skip


def sensitivity(s: Setting, d: Durations, runs: int) -> dict[str, Mapping[str, float]]:
    """Each duration half, and half again as long; and all of them."""
    found = {}
    names = ("detect_s", "hang_s", "place_s", "act_s", "wrong", "check_s")
    for by in (0.5, 1.5):
        for name in names:
            found[f"{name} × {by}"] = cell(s, replace(d, **{name: getattr(d, name) * by}), runs)
        found[f"all × {by}"] = cell(s, replace(d, **{name: getattr(d, name) * by for name in names}), runs)
    # the ranks' real dumps over gloo: one of five was placed wrong
    found["wrong = 0.2, as of the real dumps"] = cell(s, replace(d, wrong=0.2), runs)
    for name in ("checkpoint_s", "start_s", "repair_days"):
        for by in (0.5, 1.5):
            found[f"{name} × {by}"] = cell(replace(s, **{name: getattr(s, name) * by}), d, runs)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=40)
    runs = parser.parse_args().runs
    ours, sources = measured()
    cells = []
    for checkpoint_s, start_s, spares in itertools.product((300.0, 900.0, 1800.0), (180.0, 600.0), (4, 12, 24)):
        s = Setting(checkpoint_s, start_s, spares)
        row = {"checkpoint_s": checkpoint_s, "start_s": start_s, "spares": spares}
        cells.append(row | {"ours": cell(s, ours, runs), "baseline": cell(s, BASELINE, runs, True)})
    middle = Setting(900.0, 600.0, 12)
    write("ettr", {
        "commit": commit(), "data": "simulated", "gpus": GPUS, "days": DAYS, "runs": runs,
        "interruptions_a_day": RATE * GPUS, "groups": [g._asdict() for g in GROUPS], "durations": vars(ours),
        "sources": sources, "baseline": vars(BASELINE), "grid": cells,
        "ahead_in_all_cells": all(c["ours"]["ettr"] > c["baseline"]["ettr"] for c in cells),
        "middle": cell(middle, ours, runs), "middle_baseline": cell(middle, BASELINE, runs, True),
        "sensitivity": sensitivity(middle, ours, runs),
    })  # fmt: skip


if __name__ == "__main__":
    main()
