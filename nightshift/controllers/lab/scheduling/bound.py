"""What no scheduler can do better than: a lower bound on the mean completion time of a trace.

The larger of two. *No wait*: every job takes its duration. *Area* (Goemans 1997, mean busy dates): on one
machine as fast as all seats together, preemptive and fluid, working always on the smallest of what has come gives
the least sum of mean busy dates; a job ends at least half its duration after its own. That schedule knows every
duration, splits gangs and stops jobs, so no real scheduler reaches it.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from nightshift.controllers.lab.scheduling.trace import TraceJob


def least_mean_jct_s(jobs: Sequence[TraceJob], gpus: int, *, gain: float = 1.0) -> float:
    """Seconds. `gain`: throughput of a shared GPU over one that is not, 1 where nothing is shared, 2 at most."""
    alone_s = np.asarray([job.duration_s for job in jobs])
    area_s = alone_s * np.asarray([job.gpus for job in jobs]) / (gpus * gain)
    submit_s = np.asarray([job.submit_s for job in jobs])
    order = np.argsort(submit_s, kind="stable")
    left_s, busy_dates, now_s, waiting, at = area_s.copy(), 0.0, 0.0, list[tuple[float, int]](), 0
    while at < len(order) or waiting:
        if not waiting:
            now_s = max(now_s, float(submit_s[order[at]]))
        while at < len(order) and submit_s[order[at]] <= now_s:
            heapq.heappush(waiting, (float(area_s[order[at]]), int(order[at])))
            at += 1
        job = waiting[0][1]
        next_s = float(submit_s[order[at]]) if at < len(order) else np.inf
        spent_s = min(float(left_s[job]), next_s - now_s)
        busy_dates += (now_s + spent_s / 2.0 - float(submit_s[job])) * spent_s / float(area_s[job])
        left_s[job] -= spent_s
        now_s += spent_s
        # subtracting leaves a rest of rounding, which would be worked on for ever
        if left_s[job] <= 1e-9 * area_s[job]:
            heapq.heappop(waiting)
    return float(max(alone_s.mean(), busy_dates / len(jobs) + alone_s.mean() / 2.0))
