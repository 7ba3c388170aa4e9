"""A store and a history of a large fleet, for the console's benchmark and its tests."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from examples.demo import recorded
from nightshift.agent.approvals.gate import Gate
from nightshift.agent.approvals.people import Directory, Settings
from nightshift.agent.approvals.policy import ApprovalSettings
from nightshift.agent.clock import SteppedClock
from nightshift.agent.console.sessions import Doorkeeper, TokenAccount
from nightshift.agent.console.site import ConsoleParts, DaemonHealth
from nightshift.agent.incidents.suppression import Suppressor
from nightshift.agent.store.incident import Cause
from nightshift.agent.store.incident_store import Store
from nightshift.agent.store.receipts import Receipts
from nightshift.collectors.frame import Frame, Instant, SeriesIndex, SourceStatus
from nightshift.collectors.history import History
from nightshift.collectors.subject import Inventory, Membership, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.controllers.decision import ControlDecision, Mode
from nightshift.detectors.base import Fault, Finding, Severity, State

NOW_S = 1_790_000_000.0
PER_NODE, NODES_PER_RACK = 8, 8
_FAULTS = (Fault.XID, Fault.GPU_MEMORY_LEAK, Fault.ANOMALY, Fault.STRAGGLER)


class LargeFleet:
    """`gpus` GPUs in racks of 64, each seen a moment ago, and `incidents` open incidents (and a tenth as many that
    are over) spread over them, decisions on power, a drawn queue and a kernel search."""

    def __init__(self, folder: Path, gpus: int, incidents: int) -> None:
        self.clock = SteppedClock(NOW_S)
        self.store = Store(f"sqlite:///{folder / 'fleet.db'}", self.clock)
        self.history = History()
        self.inventory = Inventory("prod-1")
        self.gpus = [Subject(SubjectKind.GPU, f"GPU-{i:08x}-5a1f-4c2b-9e0d-{i:012x}") for i in range(gpus)]
        self._place()
        self._observe()
        for number in range(incidents + incidents // 10):
            self._open(number, over=number >= incidents)
        recorded.tell(self.store, NOW_S)
        self._decide_power()

    def parts(self) -> ConsoleParts:
        """A console's parts over it."""
        return ConsoleParts(
            store=self.store,
            gate=Gate(self.store, ApprovalSettings(), self.clock),
            history=self.history,
            inventory=self.inventory,
            clock=self.clock,
            doorkeeper=Doorkeeper(
                b"k" * 32, {"token": TokenAccount("ada", ("approver",))}, 3600.0, self.store.database
            ),
            directory=Directory(Settings()),
            health=lambda: DaemonHealth(True, True),
            metrics_page=lambda: b"",
            cluster="prod-1",
            suppressor=Suppressor(self.store, self.clock, inventory=self.inventory),
        )

    def _place(self) -> None:
        cluster = self.inventory.cluster
        links: list[Membership] = []
        for number, gpu in enumerate(self.gpus):
            node = Subject(SubjectKind.NODE, f"gpu-n{number // PER_NODE + 1}")
            rack = Subject(SubjectKind.RACK, f"r{number // (PER_NODE * NODES_PER_RACK) + 1}")
            job = Subject(SubjectKind.JOB, f"team-{number // 512}/train")
            pod = Subject(SubjectKind.POD, f"team-{number // 512}/train-{number // PER_NODE}")
            pairs = [(gpu, node), (gpu, pod)]
            if not number % PER_NODE:
                pairs += [(node, rack), (pod, job), (pod, node)]
            if not number % (PER_NODE * NODES_PER_RACK):
                pairs.append((rack, cluster))
            links += [Membership(child, parent, NOW_S - 9_999.0, math.inf) for child, parent in pairs]
            self.inventory.describe(gpu, index=str(number % PER_NODE), model="NVIDIA H200")
        self.inventory.load(links)

    def _observe(self) -> None:
        names = ("gpu_memory_used_bytes", "gpu_memory_free_bytes", "gpu_power_w", "gpu_power_limit_w")
        draw = np.random.default_rng(3)
        index = SeriesIndex(SubjectKind.GPU, tuple(self.gpus))
        for at_s in (NOW_S - 10.0, NOW_S - 5.0, NOW_S):
            used = draw.uniform(0.1, 0.95, len(self.gpus)) * 141e9
            values = np.stack(
                [used, 141e9 - used, draw.normal(500, 60, len(self.gpus)), 700.0 + 0.0 * used], axis=1
            )
            values[:: max(1, len(self.gpus) // 20)] = math.nan
            epoch = np.zeros(len(self.gpus), dtype=np.int64)
            frame = Frame(at_s, index, names, values, np.full((1, 4), at_s), epoch)
            source = SourceStatus(Subject(SubjectKind.SOURCE, "prometheus"), at_s, ok=True, samples=values.size)
            self.history.add(Tick(at_s, {frame.kind: frame}, sources=[source]))

    def _decide_power(self) -> None:
        """A decision in shadow on each job."""
        jobs = sorted(subject.name for subject in self.inventory.subjects(SubjectKind.JOB, NOW_S))
        decided = [
            ControlDecision(
                f"{number:016x}", "power", NOW_S, Mode.SHADOW, job, job, "descent", "", {}, 60, 1.0, (),
                {"level": 70, "limits_mw": {}}, 1.0, 70, "full", {}, "benchmark",
            )
            for number, job in enumerate(jobs)
        ]  # fmt: skip
        Receipts(self.store.database).keep_all([(one, 0.0, False) for one in decided])

    def _open(self, number: int, over: bool) -> None:
        gpu = self.gpus[(number * 7919) % len(self.gpus)]
        fault = _FAULTS[number % len(_FAULTS)]
        severity = (Severity.WARNING, Severity.CRITICAL, Severity.INFO)[number % 3]
        finding = Finding(
            "benchmark", fault, gpu, State.FIRING, Instant(NOW_S - number), Instant(NOW_S), severity,
            f"{fault} on {gpu.name}", 5.0, 4.0,
        )  # fmt: skip
        name = self.store.open_incident(f"{fault} on {gpu.name} of gpu-n{number % 1250}", [finding])
        if over:
            self.store.move(name, Cause.CLOSED_BY_PERSON, "benchmark", "", 1)
