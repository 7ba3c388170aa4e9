"""The ledger on data that it was not made with.

    NIGHTSHIFT_DATA=… python -m benchmarks.goodput_replayed --openb FOLDER

Alibaba's GPU cluster of 2023 (github.com/alibaba/clusterdata, cluster-trace-gpu-v2023: openb_pod_list_default.csv
and openb_node_list_gpu_node.csv in FOLDER): six hours of its busiest day, the pods with an even md5. Known of its
truth: when a pod was submitted, scheduled and deleted, and how much of which GPUs it asked for; not where it ran
(first fit here), and no steps: nothing may be productive. Pods that ask for a part of a GPU are slices of time.

Two H200s of ours (h200_ranks): real steps with measured parts. Known: how long steps and their parts took.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import json
import math
import os
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.detect_held_out import commit
from benchmarks.report import write
from nightshift.agent.clock import SteppedClock
from nightshift.agent.goodput.accounts import SURVIVED, WAITING, Account
from nightshift.agent.goodput.ledger import GoodputLedger
from nightshift.agent.goodput.steps import StepPoint, StepTrack
from nightshift.agent.goodput.sums import totals
from nightshift.agent.store.incident_store import Store
from nightshift.collectors.frame import Frame, SeriesIndex
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick

K = SubjectKind
DAY_S, SPAN_S, LOOK_S = 86_400.0, 6 * 3600.0, 300.0
BUSIEST_DAY = 148
EPOCH_S = 1_780_012_800.0  # a midnight; the trace counts from its own beginning


def is_even(name: str) -> bool:
    return int(hashlib.md5(name.encode()).hexdigest(), 16) % 2 == 0


class OpenB:
    """A day of the trace, placed first fit."""

    def __init__(self, folder: Path) -> None:
        self.start_s = BUSIEST_DAY * DAY_S + 9 * 3600.0
        self.end_s = self.start_s + SPAN_S
        self.free: dict[str, list[int]] = {}
        with (folder / "openb_node_list_gpu_node.csv").open() as file:
            for row in csv.DictReader(file):
                if int(row["gpu"]):
                    self.free[row["sn"]] = [1000] * int(row["gpu"])
        with (folder / "openb_pod_list_default.csv").open() as file:
            rows = [row for row in csv.DictReader(file) if int(row["num_gpu"]) and row["scheduled_time"]]
        self.pods = [row for row in rows if is_even(row["name"])]
        self.truth: dict[str, float] = defaultdict(float)
        self.waited = 0.0
        self.refused = 0

    def events(self) -> list[tuple[float, int, dict[str, str]]]:
        """(time, 1 scheduled or 0 deleted, pod), by time."""
        found = []
        for row in self.pods:
            since_s, until_s = float(row["scheduled_time"]), float(row["deletion_time"] or math.inf)
            if until_s > self.start_s and since_s < self.end_s and until_s > since_s:
                found.append((max(since_s, self.start_s), 1, row))
                found.append((until_s, 0, row))
            asked_s = float(row["creation_time"])
            if since_s > self.start_s and asked_s < self.end_s and since_s > asked_s:
                waits_s = min(since_s, self.end_s) - max(asked_s, self.start_s)
                self.waited += waits_s * int(row["num_gpu"])
                found.append((max(asked_s, self.start_s), 2, row))
        return sorted(found, key=lambda event: event[:2])

    def place(self, row: dict[str, str]) -> tuple[str, list[int]] | None:
        count, milli = int(row["num_gpu"]), int(row["gpu_milli"])
        for node, left in self.free.items():
            fits = [n for n, free in enumerate(left) if free >= milli][:count]
            if len(fits) == count:
                for n in fits:
                    left[n] -= milli
                return node, fits
        self.refused += 1
        return None


def openb(folder: Path) -> dict[str, Any]:
    trace, clock, inventory = OpenB(folder), SteppedClock(EPOCH_S), Inventory("openb")
    gpus = {node: [Subject(K.GPU, f"{node}/{n}") for n in range(len(left))] for node, left in trace.free.items()}
    for node, mine in gpus.items():
        for gpu in mine:
            inventory.observe(gpu, Subject(K.NODE, node), EPOCH_S)
    index = SeriesIndex(K.GPU, tuple(gpu for mine in gpus.values() for gpu in mine))
    values = np.full((len(index), 1), 50.0)
    frame = (("gpu_utilization_percent",), values, np.zeros((1, 1)), np.zeros(len(index), dtype=np.int64))
    events, held, turns = trace.events(), {}, []
    whole = {row["name"] for row in trace.pods if int(row["gpu_milli"]) == 1000}
    with tempfile.TemporaryDirectory() as temp:
        store = Store(f"sqlite:///{temp}/s.db", clock, inventory=inventory)
        ledger = GoodputLedger(store, inventory)
        for at_s in np.arange(LOOK_S, SPAN_S + 1, LOOK_S).tolist():
            clock.wait_until(EPOCH_S + at_s)
            while events and events[0][0] <= trace.start_s + at_s:
                when_s, what, row = events.pop(0)
                _happens(trace, inventory, held, gpus, row, what, EPOCH_S + when_s - trace.start_s)
            began_s = time.perf_counter()
            ledger.look(Tick(clock.now_s(), {K.GPU: Frame(clock.now_s(), index, *frame)}))
            turns.append(time.perf_counter() - began_s)
        ledger.turn(clock.now_s())
        with store.database.read() as connection:
            sums = totals(connection, EPOCH_S, clock.now_s())
        store.close()
    for name, (_, _, since_s) in held.items():
        trace.truth[name] += (EPOCH_S + SPAN_S - since_s) * _count(trace, name)
    return _openb_figures(trace, sums, whole, len(index), turns)


def _happens(
    trace: OpenB, inventory: Inventory, held: dict[str, Any], gpus: dict[str, list[Subject]], row: dict[str, str],
    what: int, at_s: float,
) -> None:  # fmt: skip
    name = row["name"]
    pod, job = Subject(K.POD, f"openb/{name}"), Subject(K.JOB, f"openb/{name}")
    if what == 2:
        inventory.observe(pod, job, at_s)
        inventory.describe(pod, gpus=row["num_gpu"])
    elif what == 1:
        place = trace.place(row)
        inventory.observe(pod, job, at_s)
        if place is not None:
            node, slots = place
            inventory.observe(pod, Subject(K.NODE, node), at_s)
            for n in slots:
                inventory.observe(gpus[node][n], pod, at_s)
            held[name] = (node, slots, at_s)
    elif name in held:
        node, slots, since_s = held.pop(name)
        trace.truth[name] += (at_s - since_s) * _count(trace, name)
        for n in slots:
            inventory.end(gpus[node][n], pod, at_s)
            trace.free[node][n] += int(row["gpu_milli"])
        inventory.end(pod, job, at_s)


def _count(trace: OpenB, name: str) -> int:
    return next(int(row["num_gpu"]) for row in trace.pods if row["name"] == name)


def _openb_figures(
    trace: OpenB, sums: dict[Any, float], whole: set[str], gpus: int, turns: list[float]
) -> dict[str, Any]:
    booked: dict[str, float] = defaultdict(float)
    accounts: dict[str, float] = defaultdict(float)
    for entry, spent in sums.items():
        accounts[entry.account] += spent
        if entry.account not in WAITING:
            booked[entry.job.removeprefix("openb/")] += spent
    wall = SPAN_S * gpus
    truth = {name: spent for name, spent in trace.truth.items() if name in whole}
    off = sum(abs(spent - booked[name]) for name, spent in truth.items())
    return {
        "gpus": gpus,
        "pods": len(trace.truth),
        "of_a_part_of_a_gpu": sum(name not in whole for name in trace.truth),
        "not_placed": trace.refused,
        "imbalance": abs(sum(s for a, s in accounts.items() if a not in WAITING) - wall) / wall,
        "whole_gpu_pods_off": off / sum(truth.values()),
        "in_steps": sum(accounts[account] for account in SURVIVED),
        "queued_over_truth": accounts[Account.QUEUED] / trace.waited if trace.waited else math.nan,
        "median_turn_s": float(np.median(turns)),
        "largest_turn_s": max(turns),
    }


def ranks(folder: Path) -> dict[str, Any]:
    """Rank 0's steps of each phase: what the track says of steps, parts and pauses, against the recording."""
    with gzip.open(folder / "ranks_dev_steps.csv.gz", "rt") as file:
        rows = [row for row in csv.DictReader(file) if row["rank"] == "0"]
    meta = json.loads((folder / "ranks_dev_meta.json").read_text())
    found = {}
    for phase, start_s, end_s, _ in meta["events"]:
        points = [
            StepPoint(
                float(r["ts_s"]), int(r["step"]), phase, compute_s=float(r["compute_s"]), data_s=float(r["data_s"]),
                comm_s=float(r["comm_s"]),
            )
            for r in rows
            if r["phase"] == phase
        ]  # fmt: skip
        track = StepTrack()
        track.take("0", points)
        stretches, pauses = track.timeline()
        inside_s = sum(s.length_s for s in stretches)
        found[phase] = {
            "wall_s": end_s - start_s,
            "in_steps_s": inside_s,
            "data_share": sum(s.data_s for s in stretches) / inside_s,
            "data_share_recorded": sum(p.data_s for p in points[1:]) / (points[-1].t_s - points[0].t_s),
            "pauses": len(pauses),
            "longest_pause_s": max((p.end_s - p.start_s for p in pauses), default=0.0),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--openb", type=Path, required=True)
    given = parser.parse_args()
    data = os.environ.get("NIGHTSHIFT_DATA")
    if not data:
        parser.error("NIGHTSHIFT_DATA does not name the folder of measurements")
    figures = {"commit": commit(), "openb_even": openb(given.openb), "h200_ranks": ranks(Path(data) / "h200_ranks")}
    write("goodput_replayed", figures)


if __name__ == "__main__":
    main()
