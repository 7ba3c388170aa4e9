"""A stored incident with everything on it, for tests of what people see: a host leak that asks to restart a pod."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import orjson

from nightshift.agent.approvals.gate import Gate
from nightshift.agent.approvals.people import Directory, Settings
from nightshift.agent.approvals.policy import ApprovalSettings
from nightshift.agent.clock import SteppedClock
from nightshift.agent.console.sessions import Doorkeeper, TokenAccount
from nightshift.agent.console.site import ConsoleParts, DaemonHealth
from nightshift.agent.incidents.rollouts import Rollouts, VersionChange
from nightshift.agent.store.diagnosis import Claim, Confidence, Diagnosis, Evidence, Predicate, Quote
from nightshift.agent.store.incident_store import Store
from nightshift.collectors.frame import Frame, Instant, Reason, SeriesIndex, SourceStatus
from nightshift.collectors.history import History
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.controllers.action import Action, ActionKind, BlastRadius, Precondition, Undo
from nightshift.detectors.base import Fault, Finding, SeriesExhibit, Severity, State

NOW_S = 1_790_000_000.0
TOKEN = "open-sesame"
BOX = Subject(SubjectKind.CONTAINER, "sft/sft-12-4/trainer")
RANK = Subject(SubjectKind.RANK, "sft/sft-12#4")
METRIC = "container_memory_anonymous_bytes"
ONSET_S = NOW_S - 900


class Story:
    """A store, history and inventory of two nodes, and a console's parts over them."""

    def __init__(self, folder: Path) -> None:
        self.clock = SteppedClock(NOW_S)
        self.store = Store(f"sqlite:///{folder / 'story.db'}", self.clock)
        self.gate = Gate(self.store, ApprovalSettings(), self.clock)
        self.history = History()
        self.inventory = Inventory("prod-1")
        self.waiting: list[tuple[Finding, str]] = []
        self.gpus = [Subject(SubjectKind.GPU, f"GPU-{i:08x}-aaaa") for i in range(16)]
        self._place()
        self._observe()
        self.rollouts = Rollouts(self.store, self.inventory)
        self.rollouts.changes = [VersionChange("gpu-n2", "driver", "565.57.01", "570.86.10", NOW_S - 86_400)]
        self.parts = ConsoleParts(
            store=self.store,
            gate=self.gate,
            history=self.history,
            inventory=self.inventory,
            clock=self.clock,
            doorkeeper=Doorkeeper(
                b"k" * 32, {TOKEN: TokenAccount("ada", ("approver",))}, 3600.0, self.store.database
            ),
            directory=Directory(Settings()),
            health=lambda: DaemonHealth(True, True),
            metrics_page=lambda: b"nightshift_ticks_total 1.0\n",
            cluster="prod-1",
            waiting=lambda: list(self.waiting),
            rollouts=self.rollouts,
        )

    def _place(self) -> None:
        pod, job = Subject(SubjectKind.POD, "sft/sft-12-4"), Subject(SubjectKind.JOB, "sft/sft-12")
        for number, gpu in enumerate(self.gpus):
            node = Subject(SubjectKind.NODE, f"gpu-n{number // 8 + 1}")
            self.inventory.observe(gpu, node, NOW_S - 9999)
            driver = "565.57.01" if number < 8 else "570.86.10"
            self.inventory.describe(gpu, index=str(number % 8), model="NVIDIA H200", driver=driver)
        self.inventory.observe(self.gpus[4], pod, NOW_S - 9999)
        self.inventory.observe(BOX, pod, NOW_S - 9999)
        self.inventory.observe(RANK, pod, NOW_S - 9999)
        self.inventory.observe(pod, job, NOW_S - 9999)

    def _observe(self) -> None:
        gpu_index = SeriesIndex(SubjectKind.GPU, tuple(self.gpus))
        box_index = SeriesIndex(SubjectKind.CONTAINER, (BOX,))
        names = ("gpu_memory_used_bytes", "gpu_memory_free_bytes", "gpu_power_w")
        noise = np.random.default_rng(7)
        down = SourceStatus(
            Subject(SubjectKind.SOURCE, "cadvisor http://gpu-n2:8080/metrics"),
            NOW_S,
            ok=False,
            reason=Reason.TIMEOUT,
            detail="no answer within 4 s",
        )
        good = SourceStatus(
            Subject(SubjectKind.SOURCE, "dcgm_exporter http://gpu-n1:9400/metrics"), NOW_S, ok=True, samples=640
        )
        for at_s in np.arange(NOW_S - 1800, NOW_S + 1, 5.0):
            used = np.linspace(0.2, 0.9, 16) * 141e9 + noise.normal(0, 1e9, 16)
            values = np.stack([used, 141e9 - used, 400 + noise.normal(0, 15, 16)], axis=1)
            values[13] = math.nan
            gpu = Frame(at_s, gpu_index, names, values, np.full((1, 3), at_s), np.zeros(16, dtype=np.int64))
            grown = 18e9 + max(0.0, at_s - ONSET_S) * 2.4e6 + noise.normal(0, 6e7)
            box = Frame(
                at_s, box_index, (METRIC,), np.array([[grown]]), np.full((1, 1), at_s), np.zeros(1, dtype=np.int64)
            )
            self.history.add(Tick(at_s, {gpu.kind: gpu, box.kind: box}, sources=[down, good]))

    def finding(self, fault: Fault = Fault.HOST_MEMORY_LEAK, subject: Subject = BOX) -> Finding:
        t_s, values = self.history.window(BOX, METRIC, NOW_S - 1800, NOW_S)
        exhibit = SeriesExhibit(
            BOX, METRIC, "bytes", tuple(t_s.tolist()), tuple(values.tolist()), 18e9, "cadvisor gpu-n1"
        )
        return Finding(
            "memory_leak",
            fault,
            subject,
            State.FIRING,
            Instant(ONSET_S),
            Instant(NOW_S),
            Severity.WARNING,
            "Anonymous memory grew 8.2 GiB/h for 15 min; the other 7 ranks 0.02",
            9.1,
            4.0,
            evidence=(exhibit,),
        )

    def diagnosis(self, *, quote: str = "18.1 GiB → 20.2 GiB") -> Diagnosis:
        t_s, values = self.history.window(BOX, METRIC, NOW_S - 1800, NOW_S)
        body = {
            "t_s": t_s.tolist(),
            "values": values.tolist(),
            "unit": "bytes",
            "metric": METRIC,
            "subject": str(BOX),
        }
        series = Evidence(
            "E1",
            "cadvisor",
            METRIC,
            NOW_S - 1800,
            NOW_S,
            "application/json",
            orjson.dumps(body),
            "Memory of rank 4",
        )
        log = Evidence(
            "E2", "kernel log", "gpu-n1", NOW_S - 900, NOW_S, "text/plain", b"worker pid 4112 RSS 9.8 GiB", quote
        )
        claim = Claim(
            "Anonymous memory of sft-12-4 rose by 2.1 GiB in 15 min.",
            Predicate.ROSE,
            ("E1",),
            (Quote("E2", quote),),
        )
        return Diagnosis(
            Fault.HOST_MEMORY_LEAK,
            "Host memory leak in sft-12 rank 4",
            Confidence.HIGH,
            (claim,),
            (series, log),
            ("Which process leaks is not proven: only the container is measured.",),
            "A data-loader worker keeps its batches.",
        )

    def action(self, **changes: object) -> Action:
        fields: dict[str, object] = {
            "id": "INC-1-1",
            "kind": ActionKind.RESTART_POD,
            "target": Subject(SubjectKind.POD, "sft/sft-12-4"),
            "why": "The leak ends with its process; the node is healthy, so nothing is cordoned.",
            "blast_radius": BlastRadius(
                jobs=("sft/sft-12",), pods=("sft/sft-12-4",), cost_gpu_hours=6.4, cost_of_waiting_gpu_hours=32.0
            ),
            "undo": Undo(False, "the job starts from its last checkpoint"),
            "expires_at_s": NOW_S + 1800,
            "preconditions": (Precondition(Subject(SubjectKind.POD, "sft/sft-12-4"), "running", "true"),),
        }
        return Action(**{**fields, **changes})  # type: ignore[arg-type]

    def tell(self, title: str = "Host memory leak on sft-12-4") -> str:
        """An incident that waits for approval; returns its id."""
        incident_id = self.store.open_incident(title, [self.finding()])
        self.store.save_diagnosis(self.store.incident(incident_id), self.diagnosis(), by="nightshift")
        incident = self.store.incident(incident_id)
        self.store.save_plan(incident, self.action(id=f"{incident_id}-1"), "least disruptive", by="nightshift")
        return incident_id
