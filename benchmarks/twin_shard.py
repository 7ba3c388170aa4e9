"""One shard of `benchmarks.twin`: the daemon itself over a synthetic cluster, in a process of its own.

    python -m benchmarks.twin_shard GPUS SEED LOOKS TICK_S [--storm LOOK] [--power] [--haste TIMES] [--job-nodes N]

Prints one JSON object. Nothing of the daemon is replaced but its source (`benchmarks.twin_fleet`) and the world
that it acts on (`controllers.actuators.simulated`). Its clock is stepped; it does not store its time for the CLI at
each look, as a daemon by the machine's clock does not. Two people, freshly signed in, approve every plan at the
next look. Between two looks all that the daemon does in other threads ends (stages, books), so a look's time is its
own; theirs is counted apart.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

for _threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")

import numpy as np  # noqa: E402
import sqlalchemy as sa  # noqa: E402
import structlog  # noqa: E402

from benchmarks.detect_speed import NAMES, resident_bytes  # noqa: E402
from benchmarks.twin_fleet import JOB_NODES, DrawnFault, TwinCollector, TwinFleet  # noqa: E402
from nightshift.agent import app as daemon  # noqa: E402
from nightshift.agent.app import App  # noqa: E402
from nightshift.agent.approvals.policy import Person, Role  # noqa: E402
from nightshift.agent.clock import SteppedClock  # noqa: E402
from nightshift.agent.correlation import collection  # noqa: E402
from nightshift.agent.goodput import report  # noqa: E402
from nightshift.agent.settings import Settings  # noqa: E402
from nightshift.agent.store.incident import Incident, IncidentState, entered_s  # noqa: E402
from nightshift.agent.store.tables import metadata  # noqa: E402
from nightshift.collectors.subject import Inventory, Subject, SubjectKind  # noqa: E402
from nightshift.collectors.tick import Batch  # noqa: E402
from nightshift.controllers.actuators.simulated import SimulatedCluster  # noqa: E402
from nightshift.detectors.alarms.lanes import widest  # noqa: E402

START_S = 1_790_006_400.0
PEOPLE = ("ann", "bob")
STAGES = ("merge", "history", "detect", "budget", "correlate and store", "housekeeping", "look")


class StageClock:
    """Seconds of the looking thread by stage, look by look: (CPU, wall)."""

    def __init__(self) -> None:
        self.looks: list[dict[str, tuple[float, float]]] = []
        self._now: dict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))

    def around(self, owner: Any, method: str, stage: str) -> None:
        inner: Callable[..., Any] = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.thread_time(), time.perf_counter()
            try:
                return inner(*args, **kwargs)
            finally:
                cpu_s, wall_s = self._now[stage]
                self._now[stage] = cpu_s + time.thread_time() - began[0], wall_s + time.perf_counter() - began[1]

        setattr(owner, method, timed)

    def end(self) -> None:
        self.looks.append(dict(self._now))
        self._now.clear()


class Shard:
    """The daemon and its cluster."""

    def __init__(
        self, folder: Path, gpus: int, seed: int, tick_s: float, storm_s: float, power: bool, haste: float,
        job_nodes: int = JOB_NODES,
    ) -> None:  # fmt: skip
        (folder / "logs").mkdir()
        self.clock, self.tick_s, self.folder = SteppedClock(START_S), tick_s, folder
        settings = Settings.model_validate(
            {
                "cluster": f"c{seed}",
                "state_dir": str(folder / "state"),
                "tick_s": tick_s,
                "console": {"enabled": False},
                "sources": [{"type": "training_logs", "directory": str(folder / "logs")}],
                "actuators": [{"type": "simulated", "path": str(folder / "world.sqlite"), "probes": True}],
                "power": {"enabled": power},
                "guard": {
                    # jobs hold whole racks: by the default, any plan that stops one is refused
                    "rack_fraction": 1.0,
                    # limits by the hour, for faults that come more often
                    "cluster_rate": round(12 * haste),
                    "rack_rate": round(6 * haste),
                    "breaker_nodes": round(10 * haste),
                },
            }
        )
        self.app = App(settings, clock=self.clock)
        self.fleet = TwinFleet(gpus, seed, START_S, settings.cluster, haste, job_nodes)
        world = SimulatedCluster(folder / "world.sqlite")
        self.fleet.place(self.app.inventory, world)
        self.watts: list[tuple[float, float]] = []
        """(all, of GPUs of jobs that are stopped) at each look."""
        self.app.collection.swap([_Metered(self, TwinCollector(self.fleet, world, storm_s))])
        self.stages = StageClock()
        watch = self.app.watch
        for owner, method, stage in (
            (watch._merger, "merge", "merge"),
            (watch.history, "add", "history"),
            (watch.detection, "detect", "detect"),
            (watch.detection.budget, "weigh", "budget"),
            (watch, "_decide", "correlate and store"),
            (watch, "_tidy", "housekeeping"),
            (self.app, "tick", "look"),
        ):
            self.stages.around(owner, method, stage)

    def run(self, looks: int) -> None:
        self.beside: list[float] = []
        """CPU seconds of all other threads at each look, the fleet's own making taken off."""
        self.made_s = 0.0
        self.app.start()
        for _ in range(looks):
            cpu_s, mine_s, self.made_s = time.process_time(), time.thread_time(), 0.0
            while (look := self.app.tick()) is None:  # a starved machine renews its lease late
                time.sleep(0.1)
            mine_s = time.thread_time() - mine_s
            self.app.settle(600.0)
            if look.decisions or len(self.stages.looks) % 10 == 0:
                self._approve()
            self.beside.append(time.process_time() - cpu_s - mine_s - self.made_s)
            self.stages.end()
            self.clock.wait_until(self.clock.now_s() + self.tick_s)

    def _approve(self) -> None:
        waiting = [s for s in self.app.store.open_incidents() if s.state is IncidentState.AWAITING_APPROVAL]
        for summary in waiting:
            incident = self.app.store.incident(summary.id)
            for name in PEOPLE if incident.action is not None else ():
                person = Person(name, frozenset({Role.APPROVER, Role.ADMIN}), "console", self.clock.now_s())
                self.app.gate.approve(incident.id, incident.action.plan_sha256, person)
        if waiting:
            self.app.settle(600.0)

    # Figures ------------------------------------------------------------------------------------------------

    def figures(self) -> dict[str, Any]:
        looks, stored = self.stages.looks[1:], self.app.store
        cpu = {name: np.array([look.get(name, (0.0, 0.0))[0] for look in looks]) for name in STAGES}
        wall = np.array([look["look"][1] for look in looks])
        incidents = [stored.incident(row.id) for row in stored.incidents(limit=100_000)]
        with stored.database.read() as connection:
            rows = {
                t.name: connection.execute(sa.select(sa.func.count()).select_from(t)).scalar_one()
                for t in metadata.sorted_tables
            }
            booked = report.make(connection, START_S, self.clock.now_s())
        state = self.folder / "state"
        return {
            "first_look_s": self.stages.looks[0]["look"][0],
            "cpu_s": {name: _spread(values) for name, values in cpu.items()},
            "wall_s": _spread(wall),
            "other_threads_cpu_s": _spread(np.array(self.beside[1:])),
            "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "rows": {name: count for name, count in rows.items() if count},
            "database_bytes": sum(path.stat().st_size for path in state.iterdir() if path.is_file()),
            "state_bytes": sum(map(len, self.app.detection.snapshots().values())),
            "history_looks": len(self.app.history.columns(SubjectKind.GPU, NAMES[0], 0.0, math.inf).t_s),
            "messages": {"samples": self.fleet.gpus * len(NAMES), "pages_scraped": len(self.fleet.nodes)},
            "faults": dict(Counter(fault.model.name for fault in self.fleet.faults)),
            "watts": np.array(self.watts).mean(axis=0).tolist(),
            "ettr_booked": booked.ettr.value,
            "ettr_true": self.fleet.ettr(self.clock.now_s()),
            "good_nodes_touched": len(self.fleet.touched - {n for f in self.fleet.faults for n in f.nodes}),
            **self._judged(incidents),
        }

    def _judged(self, incidents: Sequence[Incident]) -> dict[str, Any]:
        """Faults beside the incidents that they opened."""
        places = {id(incident): self._places(incident) for incident in incidents}
        found_s, over_s, matched = [], [], set()
        seen = Counter[str]()
        for fault in self.fleet.faults:
            mine = [i for i in incidents if places[id(i)] & self._named(fault) and i.opened_s >= fault.at_s - 1.0]
            matched |= {i.id for i in mine}
            if mine:
                seen[fault.model.name] += 1
                found_s.append(min(i.opened_s for i in mine) - fault.at_s)
                ends = entered_s(min(mine, key=lambda i: i.opened_s).history, IncidentState.RESOLVED)
                over_s += [ends[-1] - fault.at_s] if ends else []

        def lanes(of: Sequence[Incident]) -> dict[str, int]:
            return dict(Counter(str(widest(stored.finding for stored in i.findings)) for i in of))

        released = [f.released_s - f.at_s for f in self.fleet.faults if math.isfinite(f.released_s)]
        return {
            "incidents": len(incidents),
            "lanes": lanes(incidents),
            "unmatched_lanes": lanes([i for i in incidents if i.id not in matched]),
            "plans": dict(Counter(str(i.action.kind) for i in incidents if i.action is not None)),
            "faults_found": dict(seen),
            "unmatched_incidents": len(incidents) - len(matched),
            "unmatched": [i.title for i in incidents if i.id not in matched][:10],
            "found_s": sorted(found_s), "resolved_s": sorted(over_s), "released_s": sorted(released),
        }  # fmt: skip

    def _places(self, incident: Incident) -> frozenset[str]:
        """Nodes and jobs that an incident speaks of."""
        names = set()
        for subject in {stored.finding.subject for stored in incident.findings}:
            at_s = incident.opened_s
            found = subject
            if subject.kind is SubjectKind.SOURCE and "http://" in subject.name:
                found = Subject(SubjectKind.NODE, subject.name.partition("http://")[2].partition(":")[0])
            for kind in (SubjectKind.NODE, SubjectKind.JOB, SubjectKind.SWITCH):
                above = self.app.inventory.above(found, kind, at_s)
                names |= set() if above is None else {above.name}
        return frozenset(names)

    def _named(self, fault: DrawnFault) -> frozenset[str]:
        """Places of a fault: its nodes; of software, which is nowhere, its job."""
        nodes = {self.fleet.nodes[n].name for n in fault.nodes}
        return frozenset({fault.job} if fault.model.name == "software" else nodes | {fault.job})


class _Metered:
    """The fleet as a collector; what making it costs is not the daemon's."""

    name = "twin"

    def __init__(self, shard: Shard, inner: TwinCollector) -> None:
        self._shard, self._inner = shard, inner

    def collect(self, now_s: float, inventory: Inventory, timeout_s: float) -> Batch:
        began_s = time.thread_time()
        batch = self._inner.collect(now_s, inventory, timeout_s)
        self._shard.watts.append(self._inner.fleet.watts(batch.frames[0]))
        self._shard.made_s = time.thread_time() - began_s
        return batch

    def close(self) -> None: ...


def _spread(values: np.ndarray) -> dict[str, float]:
    return {
        "median": float(np.median(values)),
        "mean": float(values.mean()),
        "p99": float(np.quantile(values, 0.99)),
        "worst": float(values.max()),
    }


def main() -> None:
    collection.LEAST_PATIENCE_S = 600.0  # the clock waits for each look
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, kind in (("gpus", int), ("seed", int), ("looks", int), ("tick_s", float)):
        parser.add_argument(name, type=kind)
    parser.add_argument("--storm", type=int, default=-1, help="the look at which a power domain fails")
    parser.add_argument("--power", action="store_true", help="with power control, in shadow")
    parser.add_argument("--haste", type=float, default=1.0, help="faults come that many times as often")
    parser.add_argument("--job-nodes", type=int, default=JOB_NODES, help="the most nodes of a job")
    o = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    daemon.tell_time = lambda store, now_s: None
    with tempfile.TemporaryDirectory() as folder:
        storm_s = START_S + o.storm * o.tick_s if o.storm >= 0 else math.inf
        before, began_s = resident_bytes(), time.process_time()
        shard = Shard(Path(folder), o.gpus, o.seed, o.tick_s, storm_s, o.power, o.haste, o.job_nodes)
        told = {
            "gpus": o.gpus,
            "seed": o.seed,
            "looks": o.looks,
            "tick_s": o.tick_s,
            "power": o.power,
            "haste": o.haste,
        }
        told |= {"before_bytes": before, "build_s": time.process_time() - began_s}
        try:
            shard.run(o.looks)
            print(json.dumps(told | shard.figures()))
        finally:
            shard.app.stop()


if __name__ == "__main__":
    main()
