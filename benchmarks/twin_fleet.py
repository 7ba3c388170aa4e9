"""A synthetic fleet for `benchmarks.twin`: one cluster's GPUs × 24 metrics, jobs with steps, faults, repairs.

Rates: Llama 3 (`benchmarks.llama3_failures`), independent in time. Places, assumed: 8 GPUs a node, 4 nodes a rack,
32 nodes a leaf switch (each node has one port there), 16 racks a power domain, jobs of a fortieth of the cluster
but at most 128 nodes (the guard refuses a plan that stops more than a tenth of the GPUs), 2 % spare nodes.
Of network faults a quarter takes a leaf switch (assumed), the others one node's port. Of power supplies each fault
takes its rack (assumed). A storm is the power of one domain. Repairs, assumed: a reset or reboot mends a node in 5
minutes; a drained node is mended by people in a day; a switch, power, or what no plan mends in half an hour.

A job stops with the first of its nodes that fails, and starts anew from its last checkpoint (each 10 minutes) when
all its places are good: 3 minutes of start-up, steps of 10 s. A place goes to a spare when its node is drained, and
also when it is reset or rebooted: `controllers.actuators.kube_repair` first moves what runs there. A job that is
restarted leaves its cordoned nodes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.detect_speed import NAMES
from benchmarks.llama3_failures import per_gpu_day
from nightshift.collectors.frame import Frame, Instant, LogRecord, Reason, SeriesIndex, SourceStatus, StepSeries
from nightshift.collectors.kernel_log.event import KernelEvent
from nightshift.collectors.kernel_log.lines import KernelLogParser
from nightshift.collectors.kubernetes.states import Trouble, written
from nightshift.collectors.subject import Inventory, Membership, Subject, SubjectKind
from nightshift.collectors.tick import Batch
from nightshift.controllers.action import ActionKind
from nightshift.controllers.actuators.simulated import SimulatedCluster

K = SubjectKind
PER_NODE, RACK_NODES, SWITCH_NODES, DOMAIN_NODES, JOB_NODES, SPARES = 8, 4, 32, 64, 128, 0.02
JOB_PART = 40
CHECKPOINT_S, START_UP_S, STEP_S = 600.0, 180.0, 10.0
REBOOT_S, PEOPLE_S, SHARED_REPAIR_S = 300.0, 86_400.0, 1_800.0
SWITCH_SHARE = 0.25
GRACE_S = 50.0
"""After it Kubernetes calls a silent node not ready: its controller's default since 1.32, 40 s before."""


@dataclass(frozen=True)
class FaultModel:
    """One kind. `per_gpu_day`: published. `xid`: what the driver says, 0: nothing. `lost`: no telemetry comes from
    its GPUs. `nodes`: how many neighbours it takes. `mends_s`: it is over after that whatever is done (NaN: no)."""

    name: str
    per_gpu_day: float
    xid: int = 0
    lost: bool = False
    nodes: int = 1
    whole_node: bool = False
    mends_s: float = math.nan


_NETWORK = per_gpu_day("Network Switch/Cable")
MODELS = (
    FaultModel("faulty GPU", per_gpu_day("Faulty GPU"), 79, lost=True),
    FaultModel("HBM", per_gpu_day("GPU HBM3 Memory"), 94),
    FaultModel("SRAM", per_gpu_day("GPU SRAM Memory"), 140),
    FaultModel("GPU system processor", per_gpu_day("GPU System Processor"), 119),
    FaultModel(
        "host",
        per_gpu_day("SSD", "Server Chassis", "IO Expansion Board", "CPU", "System Memory"),
        lost=True,
        whole_node=True,
    ),
    FaultModel("port or cable", per_gpu_day("NIC") + _NETWORK * (1 - SWITCH_SHARE), mends_s=SHARED_REPAIR_S),
    FaultModel("leaf switch", _NETWORK * SWITCH_SHARE, nodes=SWITCH_NODES, mends_s=SHARED_REPAIR_S),
    FaultModel(
        "rack power",
        per_gpu_day("Power Supply"),
        lost=True,
        nodes=RACK_NODES,
        whole_node=True,
        mends_s=SHARED_REPAIR_S,
    ),
    FaultModel("software", per_gpu_day("Software Bug", "Dependency", "NCCL Watchdog Timeouts"), mends_s=60.0),
)
"""Not in it, since nothing on a node tells of them: host maintenance, silent corruption, thermal interfaces."""
STORM = FaultModel("power domain", 0.0, lost=True, nodes=DOMAIN_NODES, whole_node=True, mends_s=SHARED_REPAIR_S)


@dataclass
class DrawnFault:
    """One that happened (Unix s; NaN: not yet). `released_s`: when the jobs that it stopped may run again, of which
    `stopped` still wait."""

    model: FaultModel
    at_s: float
    nodes: tuple[int, ...]
    gpu: int
    job: str = ""
    over_s: float = math.nan
    released_s: float = math.nan
    stopped: set[str] = field(default_factory=set)

    @property
    def gpus(self) -> np.ndarray:
        if not self.model.whole_node:
            return np.array([self.gpu])
        return (np.array(self.nodes)[:, None] * PER_NODE + np.arange(PER_NODE)).ravel()


@dataclass
class TwinJob:
    """A job's places and steps. `runs_s`: when its present start-up ends (NaN: it is stopped)."""

    subject: Subject
    places: list[int]
    runs_s: float
    step: int = 0
    run: int = 0
    saved: int = 0
    bad: set[int] = field(default_factory=set)


class TwinFleet:
    """One shard: a cluster that one agent watches. `haste`: faults come that many times as often as published, and
    people mend as many times sooner, so that no more spares are in use than at published rates."""

    def __init__(
        self, gpus: int, seed: int, start_s: float, cluster: str, haste: float = 1.0, job_nodes: int = JOB_NODES
    ) -> None:
        self.gpus, self.start_s, self.cluster, self.haste = gpus, start_s, cluster, haste
        self.rng = np.random.default_rng(seed)
        self.index = SeriesIndex(K.GPU, tuple(Subject(K.GPU, f"GPU-{cluster}-{g:07d}") for g in range(gpus)))
        self.nodes = [Subject(K.NODE, f"{cluster}-n{n:06d}") for n in range(gpus // PER_NODE)]
        working = len(self.nodes) - max(1, int(len(self.nodes) * SPARES))
        self.spares = list(range(working, len(self.nodes)))
        size = max(1, min(job_nodes, len(self.nodes) // JOB_PART))
        starts = range(0, working, size)
        self.jobs = [
            TwinJob(Subject(K.JOB, f"team{j % 40}/job{j}"), list(range(s, min(s + size, working))), start_s - 3e3)
            for j, s in enumerate(starts)
        ]
        self.job_of = {node: job for job in self.jobs for node in job.places}
        self._pages = [(Subject(K.SOURCE, f"dcgm_exporter http://{n.name}:9400/metrics"), n) for n in self.nodes]
        self._samples = PER_NODE * len(NAMES)
        self.values = self._usual()
        self.epoch = np.zeros(gpus, dtype=np.int64)
        self.dark = np.zeros(gpus, dtype=np.int32)
        """How many faults keep a GPU from being seen."""
        self.faults: list[DrawnFault] = []
        self.open: list[DrawnFault] = []
        self.out: dict[int, float] = {}
        """Node that was drained → when it is good again."""
        self.repairing: set[int] = set()
        """Nodes of `out` that a reset or reboot gives back."""
        self.touched: set[int] = set()
        """Nodes that a drain, reset or reboot was done to."""
        self._seen = 0
        self._unready: set[int] = set()
        self._parsers: dict[int, KernelLogParser] = {}

    def _usual(self) -> np.ndarray:
        values = np.empty((self.gpus, len(NAMES)))
        for column, name in enumerate(NAMES):
            counted = any(word in name for word in ("ecc", "remap", "reasons", "xid", "recovery"))
            values[:, column] = 0.0 if counted else 16e9 if name.endswith("_bytes") else 60.0
        values[:, NAMES.index("gpu_memory_used_bytes")] = 64e9
        for name, level in (
            ("gpu_sm_clock_mhz", 1980.0),
            ("gpu_memory_clock_mhz", 2619.0),
            ("gpu_power_limit_w", 700.0),
        ):
            values[:, NAMES.index(name)] = level
        idle = np.array(self.spares)[:, None] * PER_NODE + np.arange(PER_NODE)
        values[idle.ravel(), NAMES.index("gpu_memory_used_bytes")] = 5e8
        return values

    def place(self, inventory: Inventory, cluster: SimulatedCluster) -> None:
        """Who is where, and who holds what, since an hour; the world that actions change."""
        since_s, links = self.start_s - 3600.0, []
        for n, node in enumerate(self.nodes):
            rack, switch = n // RACK_NODES, n // SWITCH_NODES
            port = Subject(K.NIC, f"{node.name}/mlx5_0:1")
            pairs = [(node, Subject(K.RACK, f"{self.cluster}-r{rack}")), (port, node)]
            pairs += [(port, Subject(K.SWITCH, f"{self.cluster}-leaf{switch}"))]
            pod = self._pod(n)
            if pod is not None:
                pairs += [(pod, self.job_of[n].subject), (pod, node)]
            for gpu in self.index.subjects[n * PER_NODE : (n + 1) * PER_NODE]:
                pairs += [(gpu, node)] if pod is None else [(gpu, node), (gpu, pod)]
                inventory.describe(gpu, model="NVIDIA H100 80GB HBM3", index=str(int(gpu.name[-7:]) % PER_NODE))
            links += [Membership(child, parent, since_s, math.inf) for child, parent in pairs]
            inventory.describe(node, unschedulable="false")
        inventory.load(links)
        with cluster.transaction() as db:
            facts = [
                (str(node), fact, "false") for node in self.nodes for fact in ("cordoned", "drained", "tainted")
            ]
            facts += [(str(gpu), "quarantined", "false") for gpu in self.index.subjects]
            facts += [(str(job.subject), "running", "true") for job in self.jobs]
            db.executemany("INSERT INTO fact VALUES (?, ?, ?)", facts)

    def _pod(self, node: int) -> Subject | None:
        job = self.job_of.get(node)
        return None if job is None else Subject(K.POD, f"{job.subject.name}-n{node}")

    # Faults -------------------------------------------------------------------------------------------------

    def draw(self, now_s: float, past_s: float) -> list[DrawnFault]:
        """The faults of the last `past_s`."""
        fresh = []
        for model in MODELS:
            for _ in range(self.rng.poisson(self.haste * model.per_gpu_day * self.gpus * past_s / 86_400.0)):
                fresh.append(self.fault(model, now_s))
        return fresh

    def fault(self, model: FaultModel, now_s: float) -> DrawnFault:
        """One at a drawn place."""
        gpu = int(self.rng.integers(self.gpus))
        first = gpu // PER_NODE // model.nodes * model.nodes
        nodes = tuple(range(first, min(first + model.nodes, len(self.nodes))))
        job = self.job_of.get(gpu // PER_NODE)
        made = DrawnFault(model, now_s, nodes, gpu, "" if job is None else job.subject.name)
        self.faults.append(made)
        self.open.append(made)
        if model.lost:
            self.dark[made.gpus] += 1
        for node in nodes:
            self._stop(made, node)
        return made

    def _stop(self, fault: DrawnFault, node: int) -> None:
        if (job := self.job_of.get(node)) is None:
            return
        job.bad.add(node)
        fault.stopped.add(job.subject.name)
        if not math.isnan(job.runs_s):
            job.runs_s, job.step = math.nan, job.saved

    def _end(self, fault: DrawnFault, now_s: float) -> None:
        fault.over_s = now_s
        self.open.remove(fault)
        if fault.model.lost:
            self.dark[fault.gpus] -= 1
        for node in fault.nodes:
            self._good(node, now_s)

    def _good(self, node: int, now_s: float) -> None:
        """A place is good again: the job starts once all are."""
        if (job := self.job_of.get(node)) is not None and node in job.bad:
            if any(node in fault.nodes for fault in self.open):
                return
            job.bad.discard(node)
            self._start(job, now_s)

    def _start(self, job: TwinJob, now_s: float) -> None:
        if job.bad or not math.isnan(job.runs_s):
            return
        job.runs_s, job.run = now_s + START_UP_S, job.run + 1
        for fault in self.faults:
            if math.isnan(fault.released_s) and job.subject.name in fault.stopped:
                fault.stopped.discard(job.subject.name)
                fault.released_s = math.nan if fault.stopped else now_s

    # The world's answer to actions --------------------------------------------------------------------------

    def live(self, now_s: float, inventory: Inventory, cluster: SimulatedCluster) -> None:
        """Takes in what was done to the world since the last look, and ends what is over."""
        for effect in cluster.effects(self._seen):
            self._seen = effect.number
            if effect.target.kind is K.NODE:
                self._acted(int(effect.target.name[-6:]), effect.kind, now_s, inventory)
            elif effect.target.kind is K.GPU:
                self._acted(int(effect.target.name[-7:]) // PER_NODE, effect.kind, now_s, inventory)
            elif effect.kind is ActionKind.RESTART_JOB:
                self._restarted(effect.target, now_s, inventory)
        for fault in [f for f in self.open if now_s - f.at_s >= self._mends_s(f)]:
            self._end(fault, now_s)
        for node in [node for node, good_s in self.out.items() if now_s >= good_s]:
            del self.out[node]
            if node in self.repairing:
                self.repairing.discard(node)
                self._spare(node)
            for fault in [f for f in self.open if f.nodes == (node,)]:
                self._end(fault, now_s)

    def _mends_s(self, fault: DrawnFault) -> float:
        """After how long a fault is over without any action that is under way (s)."""
        if not math.isnan(fault.model.mends_s):
            return fault.model.mends_s
        return math.inf if self.out.keys() & set(fault.nodes) else SHARED_REPAIR_S

    def _acted(self, node: int, kind: ActionKind, now_s: float, inventory: Inventory) -> None:
        if kind in (ActionKind.DRAIN, ActionKind.REBOOT_NODE, ActionKind.RESET_GPU):
            self.touched.add(node)
        if kind in (ActionKind.DRAIN, ActionKind.CORDON):
            inventory.describe(self.nodes[node], unschedulable="true")
        if kind in (ActionKind.DRAIN, ActionKind.QUARANTINE_GPU):
            self.out.setdefault(node, now_s + PEOPLE_S / self.haste)
            self._move(node, now_s, inventory)
        elif kind in (ActionKind.REBOOT_NODE, ActionKind.RESET_GPU):
            self.out[node] = now_s + REBOOT_S
            self.repairing.add(node)
            self._move(node, now_s, inventory)
        elif kind in (ActionKind.UNCORDON, ActionKind.RETURN_NODE):
            inventory.describe(self.nodes[node], unschedulable="false")
            self._spare(node)

    def _restarted(self, subject: Subject, now_s: float, inventory: Inventory) -> None:
        """A job starts again on other nodes in place of cordoned ones."""
        for job in (job for job in self.jobs if job.subject == subject):
            for node in [n for n in job.places if inventory.fact(self.nodes[n], "unschedulable") == "true"]:
                self._move(node, now_s, inventory)

    def _spare(self, node: int) -> None:
        """A node that came back without a job is a spare."""
        if node not in self.job_of and node not in self.spares:
            self.spares.append(node)

    def _move(self, node: int, now_s: float, inventory: Inventory) -> None:
        """A drained node's place goes to a spare."""
        job = self.job_of.get(node)
        if job is None or not self.spares:
            return
        spare, pod = self.spares.pop(0), self._pod(node)
        assert pod is not None
        inventory.end(pod, self.nodes[node], now_s)
        inventory.end(pod, job.subject, now_s)
        for gpu in self.index.subjects[node * PER_NODE : (node + 1) * PER_NODE]:
            inventory.end(gpu, pod, now_s)
        del self.job_of[node]
        self.job_of[spare] = job
        job.places[job.places.index(node)] = spare
        job.bad.discard(node)
        fresh = self._pod(spare)
        assert fresh is not None
        inventory.observe(fresh, job.subject, now_s)
        inventory.observe(fresh, self.nodes[spare], now_s)
        for gpu in self.index.subjects[spare * PER_NODE : (spare + 1) * PER_NODE]:
            inventory.observe(gpu, fresh, now_s)
        if any(spare in fault.nodes for fault in self.open):
            job.bad.add(spare)
        self._start(job, now_s)

    # What collectors bring ----------------------------------------------------------------------------------

    def batch(self, now_s: float, past_s: float, fresh: Sequence[DrawnFault]) -> Batch:
        values = self.values.copy()
        noise = self.rng.integers(80, 100, self.gpus)
        values[:, NAMES.index("gpu_utilization_percent")] = noise
        values[:, NAMES.index("gpu_power_w")] = 500.0 + noise
        values[:, NAMES.index("gpu_energy_j")] = 550.0 * (now_s - self.start_s)
        for rows in self._idle_rows():
            values[rows, NAMES.index("gpu_utilization_percent")] = 0.0
            values[rows, NAMES.index("gpu_power_w")] = 120.0
        values[self.dark > 0] = np.nan
        frame = Frame(now_s, self.index, NAMES, values, np.full((1, len(NAMES)), now_s), self.epoch)
        statuses = self._statuses(now_s)
        events = [event for fault in fresh for event in self._events(fault, now_s)]
        records = [event.record for event in events]
        records += [line for f in fresh if f.model.name == "software" for line in self._crash(f, now_s)]
        records += self._not_ready(now_s)
        return Batch(statuses, (frame,), list(self._steps(now_s, past_s)), records, events)

    def _statuses(self, now_s: float) -> list[SourceStatus]:
        """One page a node; a node does not answer if all its GPUs are dark."""
        dark = (self.dark[: len(self.nodes) * PER_NODE].reshape(-1, PER_NODE) > 0).all(axis=1)
        good = [
            SourceStatus(page, now_s, True, None, "", self._samples, {}, 0.01, (node,))
            for page, node in self._pages
        ]
        for n in np.flatnonzero(dark).tolist():
            page, node = self._pages[n]
            good[n] = SourceStatus(page, now_s, False, Reason.UNREACHABLE, "no route to host", 0, {}, 1.0, (node,))
        return good

    def watts(self, frame: Frame) -> tuple[float, float]:
        """(of all GPUs, of those of jobs that are stopped) at a look (W)."""
        drawn = np.nan_to_num(frame.column("gpu_power_w"))
        stopped = [n for job in self.jobs if math.isnan(job.runs_s) for n in job.places]
        rows = (np.array(stopped, dtype=np.int64)[:, None] * PER_NODE + np.arange(PER_NODE)).ravel()
        return float(drawn.sum()), float(drawn[rows].sum())

    def ettr(self, now_s: float) -> float:
        """Share of wall time in steps that survived, over all places of jobs."""
        places = np.array([len(job.places) for job in self.jobs])
        return float(np.average([job.step * STEP_S for job in self.jobs], weights=places) / (now_s - self.start_s))

    def _idle_rows(self) -> Iterator[np.ndarray]:
        for nodes in (self.spares, [n for job in self.jobs if math.isnan(job.runs_s) for n in job.places]):
            if nodes:
                yield (np.array(nodes)[:, None] * PER_NODE + np.arange(PER_NODE)).ravel()

    def _steps(self, now_s: float, past_s: float) -> Iterator[StepSeries]:
        for job in self.jobs:
            if math.isnan(job.runs_s):
                continue
            first_s = max(now_s - past_s, job.runs_s)
            ends = np.arange(math.floor(first_s / STEP_S) + 1, math.floor(now_s / STEP_S) + 1) * STEP_S
            if not len(ends):
                continue
            steps = job.step + 1 + np.arange(len(ends))
            job.step = int(steps[-1])
            job.saved = max(job.saved, job.step - job.step % int(CHECKPOINT_S / STEP_S))
            loss = {"loss": 2.0 + 0.01 * self.rng.standard_normal(len(ends))}
            yield StepSeries(job.subject, f"run{job.run}", steps, ends, loss, "log")

    def _events(self, fault: DrawnFault, now_s: float) -> Iterator[KernelEvent]:
        for node in fault.nodes:
            if fault.model.xid:
                pci = f"PCI:0000:{fault.gpu % PER_NODE + 1:02x}:00"
                text = f"NVRM: Xid ({pci}): {fault.model.xid}, pid=4242, name=python, GPU says so"
                yield from self._parsed(node, now_s, text, self.index.subjects[fault.gpu])
            elif "port" in fault.model.name or "switch" in fault.model.name:
                yield from self._parsed(node, now_s, "mlx5_core 0000:1b:00.0 mlx5_0:1: Link down", None)

    def _parsed(self, node: int, now_s: float, text: str, gpu: Subject | None) -> Iterator[KernelEvent]:
        subject = self.nodes[node]
        parser = self._parsers.setdefault(node, KernelLogParser(subject))
        record = LogRecord(Instant(now_s), f"kernel {subject.name}", subject, text, int(now_s))
        if (event := parser.read(record)) is not None:
            if gpu is not None:
                event = KernelEvent(event.kind, record, subject, event.code, gpu, event.pci_address)
            yield event

    def _not_ready(self, now_s: float) -> Iterator[LogRecord]:
        """What an API server says of nodes without power or host, and once that they are back."""
        gone = {
            node: fault.at_s + GRACE_S
            for fault in self.open
            for node in (fault.nodes if fault.model.whole_node and now_s >= fault.at_s + GRACE_S else ())
        }
        for node in sorted(self._unready | gone.keys()):
            told = "Ready is Unknown: NodeStatusUnknown: Kubelet stopped posting node status."
            wrong = (Trouble("not_ready", "Unknown", told, gone[node]),) if node in gone else ()
            subject = self.nodes[node]
            yield from written("Node", subject.name, {}, wrong, subject, now_s)
        self._unready = set(gone)

    def _crash(self, fault: DrawnFault, now_s: float) -> Iterator[LogRecord]:
        if (job := self.job_of.get(fault.nodes[0])) is not None:
            for n, text in enumerate(
                (
                    "RuntimeError: The size of tensor a (8) must match the size of tensor b (7)",
                    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: train.py FAILED",
                )
            ):
                yield LogRecord(Instant(now_s), f"log {job.subject.name}", job.subject, text, int(now_s) * 2 + n)


class TwinCollector:
    """The fleet as one source of the daemon. `storm_s`: when a power domain fails."""

    name = "twin"

    def __init__(self, fleet: TwinFleet, cluster: SimulatedCluster, storm_s: float) -> None:
        self.fleet, self.cluster, self.storm_s = fleet, cluster, storm_s
        self._last_s = fleet.start_s

    def collect(self, now_s: float, inventory: Inventory, timeout_s: float) -> Batch:
        past_s, self._last_s = now_s - self._last_s, now_s
        self.fleet.live(now_s, inventory, self.cluster)
        fresh = self.fleet.draw(now_s, past_s)
        if self.storm_s <= now_s < self.storm_s + past_s:
            fresh.append(self.fleet.fault(STORM, now_s))
        return self.fleet.batch(now_s, past_s, fresh)

    def close(self) -> None: ...
