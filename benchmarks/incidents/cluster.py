"""A small cluster of two nodes and three jobs: serves pages, writes logs, and reacts to actions as a cluster would.

A restarted job starts healthy from a checkpoint, a quarantined GPU is not used again, a reset GPU forgets its
errors. The pages are those of production's exporters (`examples.demo.pages`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, TextIO

from benchmarks.incidents.parts import (
    BUSES,
    CHECKPOINT_STEPS,
    COMPUTE,
    DOWN_S,
    FOLLOWS,
    GPUS,
    JOBS,
    LIMIT,
    NODES,
    OF_A_GPU,
    START_S,
    STEP_S,
    TICK_S,
    Job,
    Node,
    Trouble,
    gpu_name,
)
from examples.demo import pages
from examples.demo.job import DEVICE_BYTES, RESERVED_BYTES
from examples.demo.pages import ContainerView, GpuView
from examples.demo.recording import Cell
from examples.demo.scenario import GIB, MIB, GpuPlan
from examples.demo.serving import CADVISOR, DCGM
from nightshift.collectors.subject import SubjectKind
from nightshift.controllers.action import Action, ActionKind


class Cluster:
    """Runs jobs and carries actions out. `now_s` is simulated Unix time."""

    def __init__(self, case: Mapping[str, Any], folder: Path) -> None:
        self.case, self.now_s = case, START_S
        self.rng = Random(f"{case['name']} {case.get('seed', 0)}")
        self.logs = folder / "logs"
        self.logs.mkdir(parents=True)
        self.nodes = {node: Node(node) for node in NODES}
        self.jobs = {name: Job(name, list(gpus)) for name, gpus in JOBS.items()}
        self.troubles: list[Trouble] = []
        self.closed: set[str] = set()
        self.unusable: set[str] = set()
        self.gone: set[str] = set()
        self.dark: dict[str, float] = {}
        self.owner_acts: list[tuple[float, str]] = []
        self.held: dict[str, tuple[int, int]] = {}
        """By GPU: the clock that it is held to (MHz) and the reason's bit (NVML's clocks event reasons)."""
        self.replays: dict[str, float] = {}
        self.crc: dict[str, float] = {}
        self.load: dict[str, float] = {}
        """By job: share of the time that its GPUs are busy."""
        self.moving: dict[str, tuple[str, int]] = {}
        self._counters: dict[str, list[int]] = {
            gpu_name(n, i): [0, 0, 0, 0, 0, 0] for n in NODES for i in range(GPUS)
        }
        self._energy = dict.fromkeys(self._counters, 1e12)
        self._files: dict[str, TextIO] = {
            f"{name}-{rank}": (self.logs / f"ml_{name}-{rank}_trainer.log").open("a")
            for name, gpus in JOBS.items()
            for rank in range(len(gpus))
        }
        self._publish()

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    @property
    def elapsed_s(self) -> float:
        return self.now_s - START_S

    def kernel(self, node: str, text: str, after_s: float = 0.0) -> None:
        self.nodes[node].log(self.now_s - 2.0 + after_s, text)

    def xid(self, place: tuple[str, int], rest: str, after_s: float = 0.0) -> None:
        self.kernel(place[0], f"NVRM: Xid (PCI:0000:{BUSES[place[1]]}:00): {rest}", after_s)

    # What is done about it --------------------------------------------------------------------------------------

    def act(self, action: Action) -> None:
        """Carries an action out on this cluster."""
        name = action.target.name
        by = action.kind.value
        match action.kind:
            case ActionKind.RESTART_JOB:
                step = action.params.get("checkpoint_step")
                self.restart(self.jobs[name.rpartition("/")[2]], by, None if step is None else int(step))
            case ActionKind.RESTART_POD:
                self.restart(self.jobs[name.rpartition("/")[2].rpartition("-")[0]], by)
            case ActionKind.QUARANTINE_GPU:
                self.closed.add(name)
                holder = self._holder(name)
                if holder is not None:
                    self.moving[name] = (holder.name, holder.checkpoints[-1])
                else:
                    self._end_gpu(name, by)
            case ActionKind.RESET_GPU:
                self._reset({name}, by)
            case ActionKind.REBOOT_NODE:
                self._reset({gpu_name(name, i) for i in range(GPUS)}, by)
            case ActionKind.CORDON:
                self.closed |= {gpu_name(name, i) for i in range(GPUS)}
                self._end_node(name, by)
            case ActionKind.DRAIN:
                self.closed |= {gpu_name(name, i) for i in range(GPUS)}
                self._end_node(name, by)
                for job in [j for j in self.jobs.values() if any(n == name for n, _ in j.gpus)]:
                    self.restart(job, by)
            case ActionKind.NOTIFY_OWNER if action.target.kind is SubjectKind.JOB:
                self.owner_acts.append((self.now_s + 300.0, name.rpartition("/")[2]))

    def _reset(self, gpus: set[str], by: str) -> None:
        for gpu in gpus:
            self._counters[gpu] = [0] * 6
            self._end_gpu(gpu, by)
        self.unusable -= gpus
        self.gone -= gpus
        for job in [j for j in self.jobs.values() if any(gpu_name(*p) in gpus for p in j.gpus)]:
            self.restart(job, by)

    def _end_gpu(self, gpu: str, by: str) -> None:
        for trouble in self.troubles:
            if trouble["do"] in OF_A_GPU and trouble.active and gpu_name(*self._place(trouble)) == gpu:
                trouble.over, trouble.over_s = by, self.now_s

    def _end_node(self, node: str, by: str) -> None:
        for trouble in self.troubles:
            if trouble["do"] in OF_A_GPU - {"ce"} and trouble.active and self._place(trouble)[0] == node:
                trouble.over, trouble.over_s = by, self.now_s

    def crash(self, job: Job, says: str, place: tuple[str, int] | None = None) -> None:
        """Ends the job's processes; with a place, the rank there speaks first and the others of the lost peer."""
        culprit = job.gpus.index(place) if place in job.gpus else None
        for rank in range(len(job.gpus)):
            mine = culprit in (None, rank)
            late_s = 0.0 if mine else 0.3 + 0.1 * rank
            text = says if mine else FOLLOWS.format(rank=rank)
            self._write(job, rank, f"{'ERROR' if 'rror' in text else 'INFO'} {text}", self.now_s + late_s - 1.0)
        job.up, job.back_s = False, self.now_s + DOWN_S
        job.extra_gpu, job.extra_host = ([0.0] * len(job.gpus) for _ in range(2))

    def restart(self, job: Job, by: str, newest_step: int | None = None) -> None:
        """The gang starts anew from the newest checkpoint up to a step; a damaged one brings the damage back."""
        self.crash(job, "Received SIGTERM, shutting down")
        job.stays_down = False
        fits = [s for s in job.checkpoints if newest_step is None or s <= newest_step]
        job.step = fits[-1] if fits else job.checkpoints[0]
        for trouble in self.troubles:
            if not trouble.active or trouble.event.get("job") != job.name:
                continue
            if trouble["do"] in ("bit_flip", "nan", "lr_jump"):
                if job.step > trouble.event.get("at_step", math.inf):
                    continue
                job.loss_added, job.learning_rate = 0.0, 3e-4
            elif trouble["do"] not in ("gpu_leak", "host_leak", "stall", "hang"):
                continue
            trouble.over, trouble.over_s = by, self.now_s
        job.stuck, job.stalled_until_s, job.runs_away = False, 0.0, -1

    def _holder(self, gpu: str) -> Job | None:
        return next((j for j in self.jobs.values() if any(gpu_name(*p) == gpu for p in j.gpus)), None)

    # Jobs -------------------------------------------------------------------------------------------------------

    def _run(self, job: Job) -> None:
        if not job.up:
            if self.now_s >= job.back_s and not job.stays_down:
                self._start(job)
            return
        for trouble in self.troubles:
            damages = trouble["do"] in ("bit_flip", "nan", "lr_jump") and trouble.event.get("job") == job.name
            if damages and "at_step" not in trouble.event:
                trouble.event = {**trouble.event, "at_step": job.step}
        if job.stuck or self.now_s < max(job.stalled_until_s, job.evaluates_until_s):
            return
        paces = [job.slow.get(rank, 1.0) / (self._clock(place) / 1980) for rank, place in enumerate(job.gpus)]
        job.fraction += TICK_S / (STEP_S * (COMPUTE * max(paces) + 1 - COMPUTE))
        count = int(job.fraction)
        job.fraction -= count
        if not count:
            return
        for number in range(count):
            job.step += 1
            t_s = self.now_s - TICK_S + (number + 1) * TICK_S / count
            took_s, job.last_step_s, job.last_made_s = t_s - job.last_step_s, t_s, t_s
            level = 2.2 + 0.8 * math.exp(-(job.step - 5000) / 4000)
            gradient = 1.0 + abs(self.rng.gauss(0, 0.1)) + (3.0 * job.loss_added if job.loss_added > 0 else 0.0)
            for rank in range(len(job.gpus)):
                n = self.rng.randint(10, 19)
                own = gradient * self.rng.gauss(1, 0.02) * (8.0 if rank == job.runs_away else 1.0)
                loss = level + self.rng.gauss(0, 0.03) + job.loss_added
                shown = "nan" if math.isnan(loss) else f"{loss:.4f}"
                self._write(
                    job,
                    rank,
                    f"INFO rank={rank} step={job.step} loss={shown} grad_norm={own:.4f}"
                    f" lr={job.learning_rate:.3e} step_time={took_s:.3f}s"
                    f" compute_time={STEP_S * COMPUTE * paces[rank] * self.rng.gauss(1, 0.01):.4f}s"
                    f" data_time=0.0{n}s",
                    t_s,
                )
            if job.step % CHECKPOINT_STEPS == 0:
                job.checkpoints.append(job.step)
                self._write(job, 0, f"INFO Saved checkpoint step={job.step} path=/ckpt/{job.name}/{job.step}", t_s)

    def _start(self, job: Job) -> None:
        taken = {place for other in self.jobs.values() if other is not job for place in other.gpus}
        for number, place in enumerate(job.gpus):
            gpu = gpu_name(*place)
            if gpu in self.closed or gpu in self.gone:
                spare = [
                    (n, i)
                    for n in NODES
                    for i in range(GPUS)
                    if (n, i) not in taken | set(job.gpus) and gpu_name(n, i) not in self.closed | self.gone
                ]
                if not spare:
                    return
                job.gpus[number] = spare[0]
                if gpu in self.closed:
                    self._end_gpu(gpu, "quarantine_gpu")
        if any(gpu_name(*place) in self.unusable for place in job.gpus):
            self.crash(job, "RuntimeError: CUDA error: uncorrectable ECC error encountered")
            return
        job.up, job.started_s, job.last_step_s = True, self.now_s, self.now_s
        for rank in range(len(job.gpus)):
            self._write(job, rank, f"INFO Loading checkpoint step={job.step} rank={rank}")

    def _write(self, job: Job, rank: int, text: str, t_s: float | None = None) -> None:
        at_s = self.now_s if t_s is None else t_s
        stamp = datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{int(at_s % 1 * 1000):03d}Z"
        self._files[f"{job.name}-{rank}"].write(f"{stamp} {text}\n")

    # What is seen -----------------------------------------------------------------------------------------------

    def _publish(self) -> None:
        held = {place: (job, rank) for job in self.jobs.values() if job.up for rank, place in enumerate(job.gpus)}
        for node, server in self.nodes.items():
            gpus, boxes = [], []
            for index in range(GPUS):
                uuid = gpu_name(node, index)
                if uuid in self.gone:
                    continue
                job, rank = held.get((node, index), (None, 0))
                gpus.append(self._gpu(node, index, uuid, job, rank))
                if job is not None:
                    boxes.append(self._box(job, rank))
            if self.dark.get(node, 0.0) > self.now_s:
                server.pages = {CADVISOR: pages.cadvisor_page(boxes, self.now_s)}
            else:
                server.pages = {DCGM: pages.dcgm_page(gpus), CADVISOR: pages.cadvisor_page(boxes, self.now_s)}

    def _gpu(self, node: str, index: int, uuid: str, job: Job | None, rank: int) -> GpuView:
        waits = job is not None and self.now_s < job.stalled_until_s
        hung = job is not None and job.stuck
        idle = job is None or waits or (hung and any(
            t["do"] == "hang" and t.active and t["job"] == job.name and int(t.event.get("rank", 0)) == rank
            for t in self.troubles
        ))  # fmt: skip
        busy = self.load.get(job.name, 1.0) if job is not None else 1.0
        util = 0.0 if idle else 99.0 * busy
        mhz, reason = self.held.get(uuid, (1980, 0))
        power = 115.0 if idle else (330.0 if hung else 620.0 * (0.4 + 0.6 * busy) * mhz / 1980)
        power += self.rng.gauss(0, 4)
        self._energy[uuid] += power * TICK_S * 1e3
        memory = 4 * MIB if job is None else 40 * GIB + job.extra_gpu[rank] + self.rng.gauss(0, MIB)
        memory = min(memory, DEVICE_BYTES - RESERVED_BYTES)
        active = 0.0 if idle else 0.85 * busy
        cell = Cell(
            memory_added_bytes=0.0, process_added_bytes=0.0, power_w=power, temperature_c=35 + 0.05 * power,
            sm_clock_mhz=345 if idle else mhz, memory_clock_mhz=3201,
            throttle_reasons=reason | (1 if idle else 0), utilization_percent=util,
            memory_utilization_percent=util * 0.5, engine_active_ratio=active, sm_active_ratio=active * 0.9,
            tensor_active_ratio=active * 0.4, dram_active_ratio=active * 0.5, steps=(),
        )  # fmt: skip
        plan = GpuPlan(node, index, uuid, BUSES[index], 1.0, 0.0)
        sbe, dbe, remapped, lost, pending, last = self._counters[uuid]
        pod = None if job is None else ("ml", f"{job.name}-{rank}")
        return GpuView(
            plan, cell, memory, self._energy[uuid], sbe, dbe, remapped, lost, bool(pending), last, pod,
            int(self.replays.get(uuid, 0.0)), int(self.crc.get(uuid, 0.0)),
        )  # fmt: skip

    def _clock(self, place: tuple[str, int]) -> float:
        return float(self.held.get(gpu_name(*place), (1980, 0))[0])

    def _box(self, job: Job, rank: int) -> ContainerView:
        anonymous = 12 * GIB + job.extra_host[rank] + self.rng.gauss(0, 2 * MIB)
        cache = 2 * GIB + self.rng.gauss(0, 6 * MIB)
        return ContainerView(
            "ml", f"{job.name}-{rank}", "trainer", f"uid-{job.name}-{rank}-{int(job.started_s)}", anonymous, cache,
            LIMIT, job.started_s,
        )  # fmt: skip
