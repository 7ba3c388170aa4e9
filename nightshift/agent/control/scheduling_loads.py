"""What jobs do to their GPUs, from telemetry: for suggestions of who could share with whom.

What a job that waits will do is not measured yet: it is what the newest of its name did, without repeats' numbers.
Duty is the share of time with a kernel running; activity is told per that share. Host and network are not seen:
what is not the GPU's is at most theirs, so both are taken as that, which errs on the side of not sharing.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict

import numpy as np

from nightshift.collectors.subject import Inventory, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.controllers.actuators.kube_queue_follow import unnumbered
from nightshift.controllers.scheduling.interference import UNKNOWN, Load

_COLUMNS = (
    "gpu_utilization_percent",
    "gpu_sm_active_ratio",
    "gpu_dram_active_ratio",
    "gpu_memory_used_bytes",
    "gpu_memory_free_bytes",
)
_NEWEST = 0.05
"""Weight of one look in the running mean."""
_JOBS = 4096


class Loads:
    """Running means by job (NAMESPACE/NAME); the newest jobs are kept."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._means: OrderedDict[str, np.ndarray] = OrderedDict()
        self._newest: OrderedDict[str, np.ndarray] = OrderedDict()
        """By name without its repeat's number."""

    def take(self, tick: Tick) -> None:
        frame = tick.frames.get(SubjectKind.GPU)
        if frame is None:
            return
        table = np.stack([frame.column(name) for name in _COLUMNS], axis=1)
        rows: dict[str, list[int]] = defaultdict(list)
        for row, gpu in enumerate(frame.index.subjects):
            job = self._inventory.above(gpu, SubjectKind.JOB, tick.at_s)
            if job is not None:
                rows[job.name].append(row)
        for name, where in rows.items():
            part = table[where]
            if not np.isfinite(part).all():
                continue
            util, sm, dram, used, free = part.T
            duty = float(np.clip(util / 100.0, 0.0, 1.0).max())
            share = float((used / np.maximum(used + free, 1.0)).max())
            now = np.asarray([duty, float(sm.max()), float(dram.max()), share])
            before = self._means.pop(name, None)
            mean = now if before is None else (1.0 - _NEWEST) * before + _NEWEST * now
            # of memory the highest ever: two jobs that fit by their means would not at their peaks
            mean[3] = share if before is None else max(share, float(before[3]))
            self._means[name] = mean
            # taken out first, so that it comes last: the oldest are forgotten from the front
            self._newest.pop(unnumbered(name), None)
            self._newest[unnumbered(name)] = mean
        for kept in (self._means, self._newest):
            while len(kept) > _JOBS:
                kept.popitem(last=False)

    def of(self, job: str) -> Load:
        """All NaN where neither the job nor a repeat of it was seen with every metric."""
        mean = self._means.get(job, self._newest.get(unnumbered(job)))
        if mean is None or not mean[0] > 0:
            return UNKNOWN
        duty, sm, dram, memory = mean.tolist()
        # host and network are not measured: what is not the GPU's may be either's, so each counts in full
        rest = 1.0 - duty
        return Load("unknown", duty, rest, rest, min(sm / duty, 1.0), min(dram / duty, 1.0), memory)
