"""What can be seen of the world from outside: each node's pages, and each trainer's log file."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from examples.demo import pages
from examples.demo.job import Job
from examples.demo.pages import ContainerView, GpuView
from examples.demo.recording import Cell
from examples.demo.scenario import GIB, MIB, TICK_S, GpuPlan
from examples.demo.serving import CADVISOR, DCGM, NodeServer

_SYSTEM_PODS = (("dcgm-exporter", 0.22 * GIB), ("cilium", 0.35 * GIB))
_EMPTY_BYTES = 4 * MIB


@dataclass
class Device:
    """A GPU's own state, which outlives the jobs on it."""

    plan: GpuPlan
    energy_mj: float
    corrected: int = 0
    uncorrected: int = 0
    remapped_corrected: int = 0
    remapped_uncorrected: int = 0
    pending: bool = False
    last_xid: int = 0
    idle_since_s: float | None = None
    """Since when nothing runs on it after its job had to leave."""
    unusable: bool = False
    """After an uncontained error nothing starts on it until it was reset."""

    def reset(self) -> None:
        """Volatile counters start anew, and pending remaps take effect."""
        self.corrected = self.uncorrected = self.last_xid = 0
        self.pending = self.unusable = False
        self.idle_since_s = None

    def view(self, cell: Cell, memory_bytes: float, pod: tuple[str, str] | None) -> GpuView:
        """How its page shows it; takes a tick's energy."""
        power_w = min(699.9, cell.power_w * self.plan.power_factor)
        temperature_c = round(cell.temperature_c + self.plan.temperature_offset_c)
        self.energy_mj += power_w * TICK_S * 1e3
        return GpuView(
            self.plan,
            replace(cell, power_w=power_w, temperature_c=temperature_c),
            memory_bytes,
            self.energy_mj,
            self.corrected,
            self.uncorrected,
            self.remapped_corrected,
            self.remapped_uncorrected,
            self.pending,
            self.last_xid,
            pod,
        )


class Outside:
    """Writes what the daemon may read, tick by tick."""

    def __init__(
        self,
        nodes: Mapping[str, NodeServer],
        jobs: Sequence[Job],
        logs: Path,
        idle: Cell,
        rng: Random,
        up_since_s: float,
    ) -> None:
        self._nodes, self._jobs, self._idle, self._rng, self._up_since_s = nodes, jobs, idle, rng, up_since_s
        logs.mkdir(parents=True, exist_ok=True)
        self._files = {
            (job.plan.full_name, rank): (logs / f"{job.plan.namespace}_{job.pod(rank)}_trainer.log").open("a")
            for job in jobs
            for rank in job.ranks
        }

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        for server in self._nodes.values():
            server.close()

    def publish(self, devices: Iterable[Device], now_s: float) -> None:
        """Appends the trainers' new lines, and replaces every node's pages."""
        for job in self._jobs:
            self._write_logs(job)
        gpus: dict[str, list[GpuView]] = {node: [] for node in self._nodes}
        boxes: dict[str, list[ContainerView]] = {
            node: [self._system(node, name, size) for name, size in _SYSTEM_PODS] for node in self._nodes
        }
        held = {job.gpus[rank].uuid: (job, rank) for job in self._jobs for rank in job.ranks if job.has_pods}
        for device in devices:
            cell, memory_bytes, pod = self._idle, _EMPTY_BYTES, None
            if device.plan.uuid in held:
                job, rank = held[device.plan.uuid]
                pod = (job.plan.namespace, job.pod(rank))
                if job.views:
                    cell, memory_bytes = job.views[rank].cell, job.views[rank].memory_bytes
                    boxes[device.plan.node].append(_container(job, rank))
            gpus[device.plan.node].append(device.view(cell, memory_bytes, pod))
        for node, server in self._nodes.items():
            server.pages = {
                DCGM: pages.dcgm_page(gpus[node]),
                CADVISOR: pages.cadvisor_page(boxes[node], now_s),
            }

    def _write_logs(self, job: Job) -> None:
        for rank, lines in enumerate(job.lines):
            if lines:
                file = self._files[job.plan.full_name, rank]
                file.write("".join(lines))
                file.flush()
                lines.clear()

    def _system(self, node: str, name: str, size: float) -> ContainerView:
        uid = f"{_digest(node, name):08x}"
        anonymous = size + self._rng.gauss(0, 2 * MIB)
        pod = f"{name}-{uid[:5]}"
        return ContainerView("kube-system", pod, name, uid, anonymous, 40 * MIB, 2 * GIB, self._up_since_s)


def oom_kill_lines(job: Job, rank: int) -> tuple[str, str]:
    """What the kernel logs when a rank's container exceeds its limit (mm/oom_kill.c)."""
    uid, kib = _uid(job, rank), int(job.plan.limit_bytes // 1024)
    pid = 4_000 + _digest(job.plan.full_name, rank, job.generation) % 900_000
    group = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid}.slice"
    return (
        (
            f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=cri-containerd-{uid}.scope,mems_allowed=0-1,"
            f"oom_memcg={group},task_memcg={group}/cri-containerd-{uid}.scope,task=python3,pid={pid},uid=0"
        ),
        (
            f"Memory cgroup out of memory: Killed process {pid} (python3) total-vm:{3 * kib}kB, anon-rss:{kib}kB,"
            f" file-rss:91240kB, shmem-rss:0kB, UID:0 pgtables:{kib // 500}kB oom_score_adj:985"
        ),
    )


def _container(job: Job, rank: int) -> ContainerView:
    view = job.views[rank]
    return ContainerView(
        job.plan.namespace,
        job.pod(rank),
        "trainer",
        _uid(job, rank),
        view.anonymous_bytes,
        view.cache_bytes,
        job.plan.limit_bytes,
        job.start_s,
    )


def _uid(job: Job, rank: int) -> str:
    """A pod's uid: another one after each restart."""
    return f"{_digest(job.plan.full_name, rank, job.generation):08x}"


def _digest(*parts: object) -> int:
    return zlib.crc32("|".join(map(str, parts)).encode())
