"""The ledger beside the looks of a large fleet: `python -m benchmarks.goodput_speed [--gpus 100000]`.

Nodes of eight GPUs, jobs of 256 GPUs that print steps, one GPU in a thousand idle, lost or faulty, every job begun
anew once an hour. Reported: what a look pays (CPU seconds of the thread that looks), what a turn costs in the
ledger's own thread, how late a look is while a turn runs, and the balance of the books.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.detect_held_out import commit
from benchmarks.detect_speed import Fleet
from benchmarks.report import write
from nightshift.agent.clock import SteppedClock
from nightshift.agent.goodput.accounts import WAITING
from nightshift.agent.goodput.booking import GoodputBooking
from nightshift.agent.goodput.ledger import GoodputLedger
from nightshift.agent.goodput.sums import totals
from nightshift.agent.store.incident_store import Store
from nightshift.collectors.frame import StepSeries
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.plugins import ALL

K = SubjectKind
START_S, TICK_S, STEP_S, JOB_NODES = 1_790_006_400.0, 5.0, 10.0, 32


class Cluster:
    """A fleet, its jobs and what a look says of them."""

    def __init__(self, gpus: int) -> None:
        self.fleet, self.inventory = Fleet(gpus), Inventory("speed")
        self.gpus = gpus
        self.jobs = [Subject(K.JOB, f"t{j % 50}/job{j}") for j in range(max(1, gpus // 8 // JOB_NODES))]
        for number, gpu in enumerate(self.fleet.index.subjects):
            node = number // 8
            self.inventory.observe(gpu, self.fleet.nodes[node], START_S - 3600.0)
            self.inventory.observe(gpu, Subject(K.POD, f"{self._job(node).name}-{node}"), START_S - 1800.0)
        for node in range(gpus // 8):
            pod = Subject(K.POD, f"{self._job(node).name}-{node}")
            self.inventory.observe(pod, self.fleet.nodes[node], START_S - 1800.0)
            self.inventory.observe(pod, self._job(node), START_S - 1800.0)
            self.inventory.describe(self.fleet.nodes[node], unschedulable="false")

    def _job(self, node: int) -> Subject:
        return self.jobs[min(node // JOB_NODES, len(self.jobs) - 1)]

    def tick(self, number: int) -> Tick:
        drawn = self.fleet.tick(number)
        at_s = START_S + TICK_S * number
        frame = drawn.frames[K.GPU]
        values = frame.values.copy()
        if number % 40 > 20:
            values[3::1000, frame.columns["gpu_utilization_percent"]] = 0.0
        frame = replace(frame, at_s=at_s, values=values, observed_at_s=np.full((1, len(frame.metrics)), at_s))
        steps = []
        for place, job in enumerate(self.jobs):
            phase_s = at_s - START_S - place * 7.0 % 3600
            if phase_s % STEP_S < TICK_S and phase_s % 3600 > 120.0:
                step = np.array([int(phase_s // STEP_S)])
                steps.append(StepSeries(job, "run", step, np.array([at_s - phase_s % STEP_S]), {}, "log"))
        return Tick(at_s, {K.GPU: frame}, steps=tuple(steps), sources=drawn.sources)


def measure(gpus: int, ticks: int) -> dict[str, Any]:
    """Looks of the detectors alone, then with the ledger beside them in its thread, each due as the last ends."""
    cluster, clock = Cluster(gpus), SteppedClock(START_S)
    detectors = [kind() for kind in ALL]
    given_s, alone, beside, turns = [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        store = Store(f"sqlite:///{folder}/s.db", clock, inventory=cluster.inventory)
        ledger = GoodputLedger(store, cluster.inventory)
        booking = GoodputBooking(ledger)

        def turn(now_s: float, turn: Any = ledger.turn) -> None:
            began_s, cpu_s = time.perf_counter(), time.thread_time()
            turn(now_s)
            turns.append((began_s, time.perf_counter(), time.thread_time() - cpu_s))

        ledger.turn = turn  # type: ignore[method-assign]
        for number in range(ticks):
            tick = cluster.tick(number)
            clock.wait_until(tick.at_s)
            began_s = time.perf_counter()
            booking.look(tick)
            given_s.append(time.perf_counter() - began_s)
            time.sleep(0.05)  # the ledger takes the look in before the detectors begin, as it may
            began_s = time.perf_counter()
            for detector in detectors:
                detector.update(tick, cluster.inventory)
            span = (began_s, time.perf_counter())
            during = not booking.wait(0.0)
            (beside if during else alone).append(span[1] - span[0])
            booking.wait(600.0)
        end_s = clock.now_s()
        GoodputLedger.turn(ledger, end_s)
        with store.database.read() as connection:
            sums = totals(connection, START_S, end_s)
        store.close()
    wall = gpus * (end_s - START_S)
    booked = sum(spent for entry, spent in sums.items() if entry.account not in WAITING)
    return {
        "gpus": gpus,
        "ticks": ticks,
        "jobs": len(cluster.jobs),
        "handed_over_worst_s": max(given_s),
        "detection_alone_median_s": float(np.median(alone)),
        "detection_alone_worst_s": max(alone[1:]),
        "detection_beside_a_turn_s": beside,
        "turns": len(turns),
        "turn_median_s": float(np.median([end - begin for begin, end, _ in turns])),
        "turn_worst_s": max(end - begin for begin, end, _ in turns),
        "turn_cpu_median_s": float(np.median([cpu for *_, cpu in turns])),
        "share_of_one_core": sum(cpu for *_, cpu in turns) / (end_s - START_S),
        "dropped": booking.dropped,
        "imbalance": abs(booked - wall) / wall,
        "entries": len(sums),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, nargs="*", default=[10_000, 100_000])
    parser.add_argument("--ticks", type=int, default=800)
    given = parser.parse_args()
    write("goodput_speed", {"commit": commit(), "sizes": [measure(gpus, given.ticks) for gpus in given.gpus]})


if __name__ == "__main__":
    main()
