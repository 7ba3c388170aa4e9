"""A small cluster that plays one case: whatever the case does to its nodes and jobs, tick by tick.

Signals are synthetic: noise on constant levels plus what the case does. A trouble `x` begins in `_on_x` and goes on
in `_go_x`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.incidents.cluster import Cluster
from benchmarks.incidents.parts import BUSES, JOBS, LIMIT, TICK_S, Job, Trouble, gpu_name
from examples.demo.scenario import GIB, MIB


class World(Cluster):
    """Plays a case's events."""

    def __init__(self, case: Mapping[str, Any], folder: Path) -> None:
        super().__init__(case, folder)
        self._todo = sorted(case["events"], key=lambda e: float(e["at_s"]))

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
                f"nvidia 0000:{BUSES[index]}:00.0: PCIe Bus Error: severity=Correctable, type=Data Link Layer,"
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
