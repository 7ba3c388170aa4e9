"""What one window of power control costs the daemon where every GPU of 10,000 is a gang of its own, the most that
it can have to judge: CPU seconds of `PowerLoop.turn`.

View, belief, policy, slowdown guard, racks' shield and receipts are the daemon's own. Nodes are a table in memory,
which answers at once; receipts and state are made and handed over, but no database writes them.

`python -m benchmarks.power_look` measures it alone, and puts it into power's results in place of what was there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.report import RESULTS, write
from nightshift.agent.control import power_loop
from nightshift.agent.control.power_interfaces import Around
from nightshift.collectors.frame import Frame, SeriesIndex, StepSeries
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.controllers.actuators.power_nodes import LeaseAnswer, NodeGpu, NodeStatus
from nightshift.controllers.decision import Mode, Trust
from nightshift.controllers.power import shield
from nightshift.controllers.power.belief import TOP
from nightshift.controllers.power.curves import LEVELS, on_levels, synthetic
from nightshift.controllers.power.settings import PowerSettings

MAX, FALLBACK = 700_000, 420_000
PER_NODE, PER_RACK = 8, 32
STEPS = 6


@dataclass
class Fleet:
    """Nodes that answer at once and keep their leases; each GPU runs a job on a made-up curve."""

    gpus: int
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    now_s: float = 1000.0

    def __post_init__(self) -> None:
        curves = synthetic(250, np.random.default_rng(99))
        self.time, self.draw = on_levels(curves)
        self.curve = np.arange(self.gpus) % len(curves)
        self.names = [f"G{i}" for i in range(self.gpus)]
        self.row = {name: i for i, name in enumerate(self.names)}
        self.limit_mw = np.full(self.gpus, FALLBACK)
        self.subjects = tuple(Subject(SubjectKind.GPU, name) for name in self.names)
        self.index = SeriesIndex(SubjectKind.GPU, self.subjects)
        self.ranks = [Subject(SubjectKind.RANK, f"team-a/j{i}#0") for i in range(self.gpus)]
        self.inventory = Inventory()
        for i, gpu in enumerate(self.subjects):
            pod = Subject(SubjectKind.POD, f"team-a/p{i}")
            self.inventory.observe(gpu, Subject(SubjectKind.NODE, f"n{i // PER_NODE}"), 0.0)
            self.inventory.observe(gpu, pod, 0.0)
            self.inventory.observe(pod, Subject(SubjectKind.JOB, f"team-a/j{i}"), 0.0)

    def settings(self) -> PowerSettings:
        nodes = [f"n{i}" for i in range(-(-self.gpus // PER_NODE))]
        racks = {
            f"r{at // PER_RACK}": {
                "nodes": tuple(nodes[at : at + PER_RACK]),
                "budget_w": 1.05 * PER_NODE * PER_RACK * MAX / 1000.0,
            }
            for at in range(0, len(nodes), PER_RACK)
        }
        urls = dict.fromkeys(nodes, "https://localhost:1")
        limits = {"raise_w_per_min": 1e6}
        return PowerSettings(enabled=True, act=True, racks=racks, nodes={"urls": urls}, shield=limits)

    def status(self) -> Mapping[str, NodeStatus]:
        found: dict[str, dict[str, NodeGpu]] = {}
        for i, name in enumerate(self.names):
            gpu = NodeGpu(200_000, MAX, MAX, FALLBACK, int(self.limit_mw[i]), 1980)
            found.setdefault(f"n{i // PER_NODE}", {})[name] = gpu
        return {node: NodeStatus(gpus, 60.0) for node, gpus in found.items()}

    def grant(self, leases: Mapping[str, Mapping[str, Any]]) -> Mapping[str, LeaseAnswer]:
        for lease in leases.values():
            for name, mw in lease["limits_mw"].items():
                self.limit_mw[self.row[name]] = mw
        return {node: LeaseAnswer(True, "ok") for node in leases}

    def close(self) -> None:
        """Holds nothing."""

    def look(self) -> Tick:
        """Telemetry of one window, all at its end."""
        self.now_s += 30.0
        level = np.clip(np.searchsorted(LEVELS, self.limit_mw / MAX + 1e-6, side="right") - 1, 0, TOP)
        noise = 1.0 + 0.01 * self.rng.normal(size=(2, self.gpus))
        draw_w = self.draw[self.curve, level] * MAX / 1000.0 * noise[0]
        pace_s = 4.0 * self.time[self.curve, level] * noise[1]
        values = np.column_stack([draw_w, self.limit_mw / 1000.0])
        columns, epoch = ("gpu_power_w", "gpu_power_limit_w"), np.zeros(self.gpus, dtype=np.int64)
        frame = Frame(self.now_s, self.index, columns, values, np.full((1, 2), self.now_s), epoch)
        numbers = np.arange(STEPS, dtype=np.int64)
        times = self.now_s - pace_s[:, None] * numbers[::-1]
        steps = [StepSeries(rank, "r", numbers, t, {}, "log") for rank, t in zip(self.ranks, times, strict=True)]
        return Tick(self.now_s, {SubjectKind.GPU: frame}, steps)


def look_cpu_s(gpus: int = 10_000, windows: int = 15, looks: int = 7) -> dict[str, float]:
    """Medians over the last `looks` windows: of what judges the gangs, and of the whole turn."""
    fleet, trust = Fleet(gpus), Trust(Mode.ACTIVE, 1.0, 1.0)
    around = Around(keep=lambda _made: None, trusts=lambda: lambda _job, _opted, _now_s: trust)
    loop = power_loop.PowerLoop(fleet.settings(), fleet.inventory, fleet, around)
    judged_s = 0.0

    def timed(asked: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*given: Any) -> Any:
            nonlocal judged_s
            began_s = time.process_time()
            found = asked(*given)
            judged_s += time.process_time() - began_s
            return found

        return ask

    parts, took = vars(power_loop), []
    plainly = parts["ask"]
    loop._beliefs.believe = timed(loop._beliefs.believe)  # type: ignore[method-assign]
    parts["ask"] = timed(plainly)
    try:
        for _ in range(windows):
            loop.take(fleet.look())
            judged_s, began_s = 0.0, time.process_time()
            turned = loop.turn(fleet.now_s)
            took.append((judged_s, time.process_time() - began_s))
            if len(turned.receipts) != gpus or any(made.fallback for made in turned.receipts[:: gpus // 100]):
                raise RuntimeError("not every gang was judged")
    finally:
        parts["ask"] = plainly
    judged, whole = (round(float(x), 3) for x in np.median(took[-looks:], axis=0))
    return {"view, belief and policy": judged, "whole turn": whole}


def main() -> None:
    shield.DWELL_S = 0.0  # a limit may change at each look
    results = json.loads((RESULTS / "power.json").read_text())["results"]
    results["look_10000_gangs_cpu_s"] = look_cpu_s()
    write("power", results)


if __name__ == "__main__":
    main()
