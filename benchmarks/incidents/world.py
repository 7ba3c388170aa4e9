"""A small cluster that plays one case: two nodes, three jobs, and whatever the case does to them.

It serves the same pages as production's exporters (`examples.demo.pages`), writes kernel and training logs, and
reacts to actions as a cluster would: a restarted job starts healthy from a checkpoint, a quarantined GPU is not
used again, a reset GPU forgets its errors. Signals are synthetic: noise on constant levels plus what the case does.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, TextIO

import httpx

from collectors.subject import Subject, SubjectKind
from controllers.action import Action, ActionKind
from examples.demo import pages
from examples.demo.job import DEVICE_BYTES, RESERVED_BYTES
from examples.demo.pages import ContainerView, GpuView, KernelLine
from examples.demo.recording import Cell
from examples.demo.scenario import GIB, MIB, GpuPlan
from examples.demo.serving import CADVISOR, DCGM, KERNEL_LOG

TICK_S, START_S = 5.0, 1_772_416_800.0
NODES, GPUS = ("n01", "n02"), 5
JOBS = {
    "a": (("n01", 0), ("n01", 1), ("n01", 2), ("n01", 3)),
    "b": (("n02", 0), ("n02", 1)),
    "c": (("n02", 2), ("n02", 3)),
}
STEP_S, CHECKPOINT_STEPS, DOWN_S, LIMIT = 1.0, 60, 15.0, 40 * GIB
TEXT = "text/plain; version=0.0.4; charset=utf-8"
_BUSES = ("0f", "2d", "44", "5b", "89")
_K, _A = SubjectKind, ActionKind
COMPUTE = 0.7
"""Share of a step that a rank computes by itself; the rest is spent with the others."""
FOLLOWS = (
    "[rank{rank}]:[E ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout:"
    " ERROR peer closed, aborting the process group"
)
_OF_A_GPU = frozenset({"ce", "xids", "aer", "held", "nvlink_errors", "pcie_replays", "vanish"})


def gpu_name(node: str, index: int) -> str:
    return f"GPU-{NODES.index(node)}{index}000000-0000-4000-8000-00000000000{index}"


class _Body(httpx.AsyncByteStream):
    def __init__(self, content: bytes) -> None:
        self._content = content

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._content


class Node(httpx.AsyncBaseTransport):
    """One node's HTTP side, without a socket: the collectors' own client asks it in the same process."""

    def __init__(self, name: str) -> None:
        self.url = f"http://{name}.bench"
        self.pages: dict[str, bytes] = {}
        self.kernel_log: list[KernelLine] = []

    def log(self, t_s: float, text: str) -> None:
        self.kernel_log.append(KernelLine(len(self.kernel_log) + 1, t_s, text))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path == KERNEL_LOG:
            after = max(0, int(request.url.params.get("after", "0")))  # -1: nothing was read yet
            return httpx.Response(200, stream=_Body(pages.kernel_page(self.kernel_log[after : after + 1000])))
        if path in self.pages:
            return httpx.Response(200, headers={"Content-Type": TEXT}, stream=_Body(self.pages[path]))
        return httpx.Response(404, stream=_Body(b"not found\n"))


@dataclass
class Trouble:
    """Something that the case does, and since when; `over` when it ended and by what."""

    event: Mapping[str, Any]
    since_s: float
    place: tuple[str, int] | None = None
    """The GPU that it sits on, as node and index; it does not move with the job."""
    over: str = ""
    over_s: float = math.inf

    def __getitem__(self, key: str) -> Any:
        return self.event[key]

    @property
    def active(self) -> bool:
        return not self.over


@dataclass
class Job:
    """A training job: one pod per rank, named `<job>-<rank>`, in the namespace `ml`."""

    name: str
    gpus: list[tuple[str, int]]
    step: int = 5000
    up: bool = True
    back_s: float = 0.0
    fraction: float = 0.0
    checkpoints: list[int] = field(default_factory=lambda: [4980])
    extra_gpu: list[float] = field(default_factory=list)
    extra_host: list[float] = field(default_factory=list)
    loss_added: float = 0.0
    runs_away: int = -1
    """The rank whose gradient alone has left the others'."""
    stalled_until_s: float = 0.0
    evaluates_until_s: float = 0.0
    stuck: bool = False
    stays_down: bool = False
    learning_rate: float = 3e-4
    slow: dict[int, float] = field(default_factory=dict)
    """By rank: how many times longer its own work takes."""
    started_s: float = START_S - 7200.0
    last_step_s: float = START_S
    last_made_s: float = START_S
    """When it last made a step, whereas `last_step_s` also begins anew with each start."""

    def __post_init__(self) -> None:
        self.extra_gpu, self.extra_host = ([0.0] * len(self.gpus) for _ in range(2))

    @property
    def subject(self) -> Subject:
        return Subject(_K.JOB, f"ml/{self.name}")


class World:
    """Plays a case's events. `now_s` is simulated Unix time."""

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
        self._todo = sorted(case["events"], key=lambda e: float(e["at_s"]))
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

    def tick(self) -> None:
        """Plays one tick."""
        self.now_s += TICK_S
        while self._todo and float(self._todo[0]["at_s"]) <= self.elapsed_s:
            self._begin(self._todo.pop(0))
        for trouble in self.troubles:
            if trouble.active:
                getattr(self, f"_go_{trouble['do']}", lambda _: None)(trouble)
        for due_s, name in [o for o in self.owner_acts if o[0] <= self.now_s]:
            self.owner_acts.remove((due_s, name))
            self.restart(self.jobs[name], "the owner")
        for gpu, (name, seen) in list(self.moving.items()):
            if self.jobs[name].checkpoints[-1] != seen or not self.jobs[name].up:
                del self.moving[gpu]
                self.restart(self.jobs[name], "moved off the GPU")
        for job in self.jobs.values():
            self._run(job)
        for file in self._files.values():
            file.flush()
        self._publish()

    # What cases do ----------------------------------------------------------------------------------------------

    def _begin(self, event: Mapping[str, Any]) -> None:
        trouble = Trouble(event, self.now_s)
        if "node" in event and "gpu" in event:
            trouble.place = event["node"], int(event["gpu"])
        elif "rank" in event:
            trouble.place = JOBS[event["job"]][int(event["rank"])]  # hardware stays where it was when the job moves
        self.troubles.append(trouble)
        getattr(self, f"_on_{event['do']}", lambda _: None)(trouble)

    def _job(self, trouble: Trouble) -> Job:
        return self.jobs[trouble["job"]]

    def _place(self, trouble: Trouble) -> tuple[str, int]:
        if trouble.place is None:
            raise ValueError(f"case {self.case['name']}: {trouble['do']} names no GPU")
        return trouble.place

    def kernel(self, node: str, text: str, after_s: float = 0.0) -> None:
        self.nodes[node].log(self.now_s - 2.0 + after_s, text)

    def xid(self, place: tuple[str, int], rest: str, after_s: float = 0.0) -> None:
        self.kernel(place[0], f"NVRM: Xid (PCI:0000:{_BUSES[place[1]]}:00): {rest}", after_s)

    def _go_gpu_leak(self, t: Trouble) -> None:
        if self._job(t).up:
            self._job(t).extra_gpu[int(t["rank"])] += float(t["mib_s"]) * MIB * TICK_S

    def _go_host_leak(self, t: Trouble) -> None:
        job, rank = self._job(t), int(t["rank"])
        if job.up:
            job.extra_host[rank] += float(t["mib_s"]) * MIB * TICK_S
            if 12 * GIB + job.extra_host[rank] > LIMIT:
                self._oom(job, rank)

    def _on_oom_burst(self, t: Trouble) -> None:
        self._oom(self._job(t), int(t["rank"]))
        t.over, t.over_s = "the kill itself", self.now_s

    def _oom(self, job: Job, rank: int) -> None:
        kib, pid = int(LIMIT // 1024), 4000 + rank
        self.kernel(
            job.gpus[rank][0],
            f"Memory cgroup out of memory: Killed process {pid} (python3) total-vm:{3 * kib}kB, anon-rss:{kib}kB,"
            f" file-rss:91240kB, shmem-rss:0kB, UID:0 pgtables:{kib // 500}kB oom_score_adj:985",
        )
        self.crash(job, "Killed")

    def _on_lr_jump(self, t: Trouble) -> None:
        self._job(t).learning_rate = float(t.event.get("to", 0.05))

    def _go_lr_jump(self, t: Trouble) -> None:
        self._job(t).loss_added = min(6.0, self._job(t).loss_added + 0.8)

    def _on_bit_flip(self, t: Trouble) -> None:
        """At once everywhere; with `shows`, the rank's own gradient runs away some steps before."""
        if not t.event.get("shows"):
            self._job(t).loss_added = float(t.event.get("to", 4.0))

    def _go_bit_flip(self, t: Trouble) -> None:
        job = self._job(t)
        if t.event.get("shows") and "at_step" in t.event:
            job.runs_away = int(t["rank"])
            if job.step >= t.event["at_step"] + int(t["shows"]):
                job.loss_added, job.runs_away = float(t.event.get("to", 4.0)), -1

    def _on_nan(self, t: Trouble) -> None:
        self._job(t).loss_added = math.nan

    def _on_spike(self, t: Trouble) -> None:
        self._job(t).loss_added = float(t.event.get("to", 2.5))

    def _go_spike(self, t: Trouble) -> None:
        job = self._job(t)
        job.loss_added = job.loss_added * 0.4 if job.loss_added > 0.05 else 0.0

    def _go_stall(self, t: Trouble) -> None:
        job = self._job(t)
        if job.up and self.now_s >= job.stalled_until_s + float(t["every_s"]):
            job.stalled_until_s = self.now_s + float(t["for_s"])

    def _on_pause(self, t: Trouble) -> None:
        """An evaluation: no training step, and the GPUs busy."""
        self._job(t).evaluates_until_s = self.now_s + float(t["for_s"])

    def _on_hang(self, t: Trouble) -> None:
        self._job(t).stuck = True

    def _go_ce(self, t: Trouble) -> None:
        place = self._place(t)
        busy = any(place in job.gpus and job.up for job in self.jobs.values())
        if busy and self.rng.random() < TICK_S / float(t["every_s"]):
            self._counters[gpu_name(*place)][0] += self.rng.choice((1, 1, 2, 4))

    def _on_stray_ce(self, t: Trouble) -> None:
        self._counters[gpu_name(*self._place(t))][0] += 1

    def _on_xids(self, t: Trouble) -> None:
        """Lines as given; `crash` ends the job that holds the GPU, `unusable` keeps it from starting there."""
        place = self._place(t)
        for number, rest in enumerate(t["lines"]):
            self.xid(place, rest, 0.01 * number)
        counters = self._counters[gpu_name(*place)]
        codes = [int(rest.split(",")[0]) for rest in t["lines"]]
        counters[1] += 48 in codes
        counters[3] += 48 in codes
        counters[2] += codes == [63]
        counters[4] |= 63 in codes
        counters[5] = codes[-1]
        if t.event.get("unusable"):
            self.unusable.add(gpu_name(*place))
        if t.event.get("gone"):
            self.gone.add(gpu_name(*place))
        holder = next((job for job in self.jobs.values() if place in job.gpus), None)
        if holder is not None and t.event.get("crash"):
            self.crash(holder, str(t.event.get("says", "RuntimeError: CUDA error")), place)
            holder.stays_down = bool(t.event.get("stays_down"))
        if not t.event.get("lasts"):
            t.over, t.over_s = "an event", self.now_s

    def _on_lines(self, t: Trouble) -> None:
        for number, text in enumerate(t["lines"]):
            self.kernel(t["node"], text, 0.01 * number)

    def _on_job_lines(self, t: Trouble) -> None:
        for text in t["lines"]:
            self._write(self._job(t), int(t.event.get("rank", 0)), text)

    def _go_aer(self, t: Trouble) -> None:
        node, index = self._place(t)
        for n in range(int(t.event.get("per_tick", 3))):
            self.kernel(
                node,
                f"nvidia 0000:{_BUSES[index]}:00.0: PCIe Bus Error: severity=Correctable, type=Data Link Layer,"
                " (Transmitter ID)",
                0.1 * n,
            )

    def _on_dark(self, t: Trouble) -> None:
        self.dark[t["node"]] = self.now_s + float(t["for_s"])

    def _on_vanish(self, t: Trouble) -> None:
        """The GPU is no longer enumerated, and the kernel log says nothing."""
        place = self._place(t)
        self.gone.add(gpu_name(*place))
        holder = next((job for job in self.jobs.values() if place in job.gpus), None)
        if holder is not None:
            self.crash(holder, "RuntimeError: CUDA error: no CUDA-capable device is detected", place)

    def _go_held(self, t: Trouble) -> None:
        """The clock is held down from outside the work (heat, power brake), or by the power cap (a decoy)."""
        gpu = gpu_name(*self._place(t))
        over = self.now_s - t.since_s >= float(t.event.get("for_s", math.inf))
        self.held[gpu] = (1980, 0) if over else (int(t["mhz"]), int(t["reason"]))

    def _go_nvlink_errors(self, t: Trouble) -> None:
        self._count(self.crc, t)

    def _go_pcie_replays(self, t: Trouble) -> None:
        self._count(self.replays, t)

    def _count(self, errors: dict[str, float], t: Trouble) -> None:
        gpu = gpu_name(*self._place(t))
        more = float(t["per_min"]) * TICK_S / 60 * self.rng.uniform(0.8, 1.2)
        errors[gpu] = errors.get(gpu, 0.0) + more

    def _go_slow_rank(self, t: Trouble) -> None:
        """One rank's own work takes longer on whatever it runs on: a slow core, a bad loader, a sick GPU."""
        over = self.now_s - t.since_s >= float(t.event.get("for_s", math.inf))
        self._job(t).slow[int(t["rank"])] = 1.0 if over else float(t["times"])

    def _go_noisy(self, t: Trouble) -> None:
        """A neighbour whose load goes up and down all the time."""
        over = self.now_s - t.since_s >= float(t["for_s"])
        self.load[t["job"]] = 1.0 if over or int(self.now_s / float(t["period_s"])) % 2 else 0.3

    def _go_sawtooth(self, t: Trouble) -> None:
        """Host memory that grows and is given back by the garbage collector, again and again."""
        job = self._job(t)
        phase = (self.now_s - t.since_s) % float(t["period_s"]) / float(t["period_s"])
        for rank in range(len(job.gpus)):
            job.extra_host[rank] = phase * float(t["gib"]) * GIB

    def _on_user_restart(self, t: Trouble) -> None:
        self.restart(self._job(t), "the user")

    def _on_grow_then_stop(self, t: Trouble) -> None:
        """An allocator or cache that grows on all ranks and then stays."""

    def _go_grow_then_stop(self, t: Trouble) -> None:
        job = self._job(t)
        if self.now_s - t.since_s < float(t["for_s"]):
            held = job.extra_gpu if t["memory"] == "gpu" else job.extra_host
            for rank in range(len(job.gpus)):
                held[rank] += float(t["mib_s"]) * MIB * TICK_S

    # What is done about it --------------------------------------------------------------------------------------

    def act(self, action: Action) -> None:
        """Carries an action out on this cluster."""
        name = action.target.name
        by = action.kind.value
        match action.kind:
            case _A.RESTART_JOB:
                step = action.params.get("checkpoint_step")
                self.restart(self.jobs[name.rpartition("/")[2]], by, None if step is None else int(step))
            case _A.RESTART_POD:
                self.restart(self.jobs[name.rpartition("/")[2].rpartition("-")[0]], by)
            case _A.QUARANTINE_GPU:
                self.closed.add(name)
                holder = self._holder(name)
                if holder is not None:
                    self.moving[name] = (holder.name, holder.checkpoints[-1])
                else:
                    self._end_gpu(name, by)
            case _A.RESET_GPU:
                self._reset({name}, by)
            case _A.REBOOT_NODE:
                self._reset({gpu_name(name, i) for i in range(GPUS)}, by)
            case _A.CORDON:
                self.closed |= {gpu_name(name, i) for i in range(GPUS)}
                self._end_node(name, by)
            case _A.DRAIN:
                self.closed |= {gpu_name(name, i) for i in range(GPUS)}
                self._end_node(name, by)
                for job in [j for j in self.jobs.values() if any(n == name for n, _ in j.gpus)]:
                    self.restart(job, by)
            case _A.NOTIFY_OWNER if action.target.kind is _K.JOB:
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
            if trouble["do"] in _OF_A_GPU and trouble.active and gpu_name(*self._place(trouble)) == gpu:
                trouble.over, trouble.over_s = by, self.now_s

    def _end_node(self, node: str, by: str) -> None:
        for trouble in self.troubles:
            if trouble["do"] in _OF_A_GPU - {"ce"} and trouble.active and self._place(trouble)[0] == node:
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
        plan = GpuPlan(node, index, uuid, _BUSES[index], 1.0, 0.0)
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
