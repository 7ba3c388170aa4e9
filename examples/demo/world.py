"""Four nodes with eight GPUs each: plays the script, serves the pages, and reacts to what is done to the cluster.

The world stands outside of the daemon. What joins them is what joins them in production: HTTP pages, log files, and
the cluster that the actuator writes (here a file, `controllers.actuators.simulated`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from random import Random

from examples.demo.job import DEVICE_BYTES, DOWN_TICKS, RESERVED_BYTES, Job, JobState
from examples.demo.outside import Device, Outside, oom_kill_lines
from examples.demo.recording import Recording
from examples.demo.scenario import (
    NODES,
    START_S,
    TICK_S,
    EccEvent,
    Fault,
    FaultKind,
    GpuPlan,
    Scenario,
)
from examples.demo.serving import NodeServer
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.controllers.action import ActionKind
from nightshift.controllers.actuators.simulated import SimulatedCluster, SimulatedEffect

_OWNER_ACTS_AFTER_S = 300.0
_QUARANTINE_RESET_S = 60.0
"""A GPU in quarantine is reset and tested by its node so long after its last process; it stays in quarantine."""
_LOADS_AFTER_TICKS = 6
_ECC_ERROR = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
_CHATTER = (
    "perf: interrupt took too long (2531 > 2500), lowering kernel.perf_event_max_sample_rate to 79000",
    "IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready",
    "systemd-journald[812]: Data hash table of /run/log/journal/system.journal has a fill level at 75.1",
    "nfs: server ckpt-store OK",
)
_CLOSING = frozenset({ActionKind.CORDON, ActionKind.DRAIN, ActionKind.QUARANTINE_GPU})


def gpu_subject(gpu: GpuPlan) -> Subject:
    return Subject(SubjectKind.GPU, gpu.uuid)


def job_subject(job: Job) -> Subject:
    return Subject(SubjectKind.JOB, job.plan.full_name)


def pod_subject(job: Job, rank: int) -> Subject:
    return Subject(SubjectKind.POD, f"{job.plan.namespace}/{job.pod(rank)}")


@dataclass
class FaultRecord:
    """What became of a fault of the script in this world, for the scorer."""

    fault: Fault
    began_s: float | None = None
    ended_s: float | None = None
    ended_by: str = ""

    @property
    def active(self) -> bool:
        return self.began_s is not None and self.ended_s is None


class World:
    """Plays a scenario. `now_s` is simulated Unix time; `advance` moves it on by whole ticks."""

    def __init__(self, scenario: Scenario, recording: Recording, folder: Path, start_s: float = START_S) -> None:
        self.scenario = scenario
        self.start_s = self.now_s = start_s
        self.logs = folder / "logs"
        self.cluster = SimulatedCluster(folder / "cluster.sqlite")
        self.nodes = {node: NodeServer(node) for node in NODES}
        self.records = [FaultRecord(fault) for fault in scenario.faults]
        self._rng = Random(f"world {scenario.seed}")
        self.jobs = [Job(plan, recording, Random(f"{plan.name} {scenario.seed}")) for plan in scenario.jobs]
        self._gpus = {gpu.uuid: Device(gpu, energy_mj=self._rng.uniform(1e12, 9e12)) for gpu in scenario.gpus}
        self._ecc_done = 0
        self._begun_benign: set[int] = set()
        self._stray_done: set[int] = set()
        self._seen_effect = 0
        self._owner_acts: list[tuple[float, Job]] = []
        self._moving: dict[str, tuple[Job, int]] = {}
        self._resume_step: dict[str, int | None] = {}
        self._by_hand: dict[str, str] = {}
        self._closed: set[str] = set()
        """GPUs in quarantine and nodes that are cordoned, by name."""
        for node in NODES:
            self.cluster.add(Subject(SubjectKind.NODE, node))
            loading = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04"
            self.nodes[node].log(start_s - 86_400, loading)
        for gpu in scenario.gpus:
            self.cluster.add(gpu_subject(gpu))
        for job in self.jobs:
            self.cluster.add(job_subject(job))
            for rank in job.ranks:
                self.cluster.add(pod_subject(job, rank))
            job.start_s = start_s - 7_200
            job.last_step_s = start_s - TICK_S
        self._outside = Outside(
            self.nodes, self.jobs, self.logs, recording.idle.cells[0], self._rng, start_s - 86_400
        )
        self._play()

    @property
    def elapsed_s(self) -> float:
        return self.now_s - self.start_s

    def advance(self, to_s: float) -> None:
        """Plays every tick up to a time."""
        while self.now_s + TICK_S <= to_s + 1e-6:
            self.now_s += TICK_S
            self._play()

    def close(self) -> None:
        self._outside.close()

    def _play(self) -> None:
        self._take_effects()
        self._follow_script()
        for job in self.jobs:
            self._drive(job)
        self._outside.publish(self._gpus.values(), self.now_s)

    # What is done to the cluster

    def _take_effects(self) -> None:
        for effect in self.cluster.effects(self._seen_effect):
            self._seen_effect = effect.number
            self._react(effect)
        for due_s, job in list(self._owner_acts):
            if self.now_s >= due_s:
                self._owner_acts.remove((due_s, job))
                self._owner_repairs(job)
        for gpu in self._gpus.values():
            idle_s = math.inf if gpu.idle_since_s is None else self.now_s - gpu.idle_since_s
            if gpu.plan.uuid in self._closed and _QUARANTINE_RESET_S <= idle_s < math.inf:
                self._reset([gpu], "the reset in quarantine")
        for uuid, (job, checkpoints) in list(self._moving.items()):
            if job.state is not JobState.RUNNING or job.saved > checkpoints:
                del self._moving[uuid]
                self._restart(job, "moved off a quarantined GPU")

    def _react(self, effect: SimulatedEffect) -> None:
        name = effect.target.name
        opens = effect.kind is ActionKind.UNCORDON
        if effect.kind in _CLOSING or opens:
            (self._closed.discard if opens != effect.undo else self._closed.add)(name)
        if effect.undo:
            return
        match effect.kind:
            case ActionKind.RESTART_JOB:
                step = effect.params.get("checkpoint_step")
                self._restart(self._job_named(name), effect.kind, None if step is None else int(step))
            case ActionKind.RESTART_POD:
                job = next(j for j in self.jobs for r in j.ranks if pod_subject(j, r) == effect.target)
                self._restart(job, effect.kind)
            case ActionKind.QUARANTINE_GPU:
                holder = self._holder(name)
                if holder is None:
                    self._leave(self._gpus[name], effect.kind)
                elif effect.params.get("after_checkpoint"):
                    self._moving[name] = (holder, holder.saved)
                else:
                    self._restart(holder, effect.kind)
            case ActionKind.RESET_GPU:
                self._reset([self._gpus[name]], effect.kind)
            case ActionKind.REBOOT_NODE:
                self._reset([gpu for gpu in self._gpus.values() if gpu.plan.node == name], effect.kind)
            case ActionKind.DRAIN:
                for job in [j for j in self.jobs if any(gpu.node == name for gpu in j.gpus)]:
                    self._restart(job, effect.kind)
            case ActionKind.NOTIFY_OWNER if effect.target.kind is SubjectKind.JOB:
                self._owner_acts.append((self.now_s + _OWNER_ACTS_AFTER_S, self._job_named(name)))

    def _reset(self, gpus: list[Device], by: str) -> None:
        """Their processes end, volatile counters start anew, and pending remaps take effect."""
        for gpu in gpus:
            gpu.reset()
            self._end_ecc(gpu.plan.uuid, by)
        held = {gpu.plan.uuid for gpu in gpus}
        for job in [j for j in self.jobs if any(gpu.uuid in held for gpu in j.gpus)]:
            self._restart(job, by)

    def _leave(self, gpu: Device, by: str) -> None:
        """Nothing runs on it any more: its memory is not read. In quarantine its node will reset and test it."""
        self._end_ecc(gpu.plan.uuid, by)
        gpu.idle_since_s = self.now_s

    def _owner_repairs(self, job: Job) -> None:
        for record in self._of(job):
            if record.fault.kind is FaultKind.DATA_STALL:
                job.end(record.fault)
                self._ended(record, "the owner's repair")
            elif record.fault.kind is not FaultKind.ECC:
                clean = [c.step for c in job.checkpoints if not c.tainted]
                self._restart(job, "the owner's restart", clean[-1] if clean else None)

    def _restart(self, job: Job, by: str, newest_step: int | None = None) -> None:
        self._by_hand[job.plan.full_name] = by
        self._resume_step[job.plan.full_name] = newest_step
        job.stop(self.now_s, "Received SIGTERM, shutting down")
        self._tell_running(job, False)

    # The script

    def _follow_script(self) -> None:
        for record in self.records:
            fault = record.fault
            if record.began_s is None and self.elapsed_s >= fault.onset_s:
                job = self.jobs[fault.job]
                if job.state is not JobState.RUNNING:
                    continue
                record.began_s = self.now_s
                if fault.kind is not FaultKind.ECC:
                    job.begin(fault)
            if fault.kind is FaultKind.ECC and record.active:
                self._ecc(record)
        for number, benign in enumerate(self.scenario.benign):
            if number not in self._begun_benign and self.elapsed_s >= benign.onset_s:
                self._begun_benign.add(number)
                self.jobs[benign.job].begin(benign)
        for number, stray in enumerate(self.scenario.stray):
            if number not in self._stray_done and self.elapsed_s >= stray.onset_s:
                self._stray_done.add(number)
                self._gpus[stray.gpu.uuid].corrected += 1
        if self._rng.random() < 0.02:
            self.nodes[self._rng.choice(NODES)].log(self.now_s, self._rng.choice(_CHATTER))

    def _ecc(self, record: FaultRecord) -> None:
        fault = record.fault
        gpu = self._gpus[self.scenario.jobs[fault.job].gpus[fault.rank].uuid]
        holder = self._holder(gpu.plan.uuid)
        since_s = self.now_s - (record.began_s or 0.0)
        while self._ecc_done < len(fault.ecc) and fault.ecc[self._ecc_done].after_s <= since_s:
            event = fault.ecc[self._ecc_done]
            self._ecc_done += 1
            if holder is None or holder.state is not JobState.RUNNING:
                continue
            self._show(event, gpu)
            if event.crashes_job:
                gpu.unusable = any(line.startswith("95,") for line in event.lines)
                self._crash(holder, _ECC_ERROR)
                holder = None

    def _show(self, event: EccEvent, gpu: Device) -> None:
        gpu.corrected += event.corrected
        gpu.uncorrected += event.uncorrected
        gpu.remapped_corrected += event.remapped_corrected
        gpu.remapped_uncorrected += event.remapped_uncorrected
        gpu.pending |= event.pending
        gpu.last_xid = gpu.last_xid if event.last_xid is None else event.last_xid
        for number, line in enumerate(event.lines):
            t_s = self.now_s - 2 + 0.004 * number
            self.nodes[gpu.plan.node].log(t_s, f"NVRM: Xid (PCI:0000:{gpu.plan.pci_bus}:00): {line}")

    # Jobs

    def _drive(self, job: Job) -> None:
        job.advance(self.now_s)
        waited = job.state is JobState.DOWN and job.ticks_in_state >= DOWN_TICKS
        if waited or job.state is JobState.PENDING:
            self._start(job)
        loads = job.state is JobState.STARTING and job.ticks_in_state > _LOADS_AFTER_TICKS
        if loads and any(self._gpus[gpu.uuid].unusable for gpu in job.gpus):
            self._crash(job, _ECC_ERROR)
        for rank, view in enumerate(job.views):
            if view.memory_bytes > DEVICE_BYTES - RESERVED_BYTES:
                self._crash(job, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 12.00 MiB.")
                break
            if view.anonymous_bytes > job.plan.limit_bytes:
                self._oom_kill(job, rank)
                break

    def _start(self, job: Job) -> None:
        """Pods are placed on GPUs that may be used, their own where possible; else the job waits."""
        taken = {gpu.uuid for other in self.jobs if other is not job for gpu in other.gpus}
        usable = [gpu for gpu in self.scenario.gpus if self._may_use(gpu) and gpu.uuid not in taken]
        wanted = [gpu if gpu in usable else None for gpu in job.gpus]
        spare = [gpu for gpu in usable if gpu not in wanted]
        if wanted.count(None) > len(spare):
            job.state = JobState.PENDING
            return
        left = [gpu.uuid for gpu, now in zip(job.gpus, wanted, strict=True) if now is None]
        job.gpus = [gpu if gpu is not None else spare.pop(0) for gpu in wanted]
        by = self._by_hand.pop(job.plan.full_name, "")
        for fault in job.resume(self.now_s, self._resume_step.pop(job.plan.full_name, None)):
            self._ended(next(r for r in self.records if r.fault is fault), by or "a restart by itself")
        for uuid in left:
            self._leave(self._gpus[uuid], by)
        self._tell_running(job, True)

    def _may_use(self, gpu: GpuPlan) -> bool:
        return gpu.uuid not in self._closed and gpu.node not in self._closed

    def _crash(self, job: Job, line: str) -> None:
        job.stop(self.now_s, line)
        self._tell_running(job, False)

    def _oom_kill(self, job: Job, rank: int) -> None:
        for line in oom_kill_lines(job, rank):
            self.nodes[job.gpus[rank].node].log(self.now_s, line)
        self._crash(job, "Killed")

    def _tell_running(self, job: Job, running: bool) -> None:
        self.cluster.add(job_subject(job), running="true" if running else "false")

    # Who is who

    def _job_named(self, full_name: str) -> Job:
        return next(job for job in self.jobs if job.plan.full_name == full_name)

    def _holder(self, uuid: str) -> Job | None:
        return next((job for job in self.jobs if any(gpu.uuid == uuid for gpu in job.gpus)), None)

    def _of(self, job: Job) -> list[FaultRecord]:
        return [record for record in self.records if record.active and self.jobs[record.fault.job] is job]

    def _end_ecc(self, uuid: str, by: str) -> None:
        for record in self.records:
            gpu = self.scenario.jobs[record.fault.job].gpus[record.fault.rank]
            if record.fault.kind is FaultKind.ECC and record.active and gpu.uuid == uuid:
                self._ended(record, by)

    def _ended(self, record: FaultRecord, by: str) -> None:
        if record.active:
            record.ended_s, record.ended_by = self.now_s, by
