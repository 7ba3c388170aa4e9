"""What an order would do from here on, played out: when each job that waits would start.

For receipts and for what a policy is worth, not for decisions: lengths are given, so nothing of the play depends on
what is learned while it is compared. No neighbours and no faults; a gang's pace does not depend on where it sits.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from nightshift.controllers.scheduling.cluster import F8, I8, NOBODY, Cluster, ClusterShape
from nightshift.controllers.scheduling.interference import UNKNOWN, columns
from nightshift.controllers.scheduling.policies import backfill
from nightshift.controllers.scheduling.predict import Durations
from nightshift.controllers.scheduling.state import QueueState, Start


@dataclass(frozen=True, slots=True)
class PlayedJob:
    """A job in a play. `lasts_s`: how long it runs, from the beginning of the play where it runs already (then
    `nodes` says where, GPUs by node's place); `comes_s`: when it is first seen (Unix s)."""

    name: str
    gpus: int
    comes_s: float
    submitted_s: float
    lasts_s: float
    priority: int = 0
    nodes: Mapping[int, int] = field(default_factory=dict)


class _Given(Durations):
    """Lengths as given; who runs past its own has a second left."""

    def __init__(self, lasts_s: Mapping[str, float]) -> None:
        super().__init__()
        self._lasts_s = lasts_s

    def quantile(
        self, user: str, gpus: int, submit_s: float, q: float, age_s: float = 0.0, name: str = ""
    ) -> float:
        return max(self._lasts_s[name], age_s + 1.0)


@dataclass
class _Play(QueueState):
    """When each job ends is known: nothing is predicted again at every look. `end_s` by job, now where it waits."""

    end_s: F8 = field(default_factory=lambda: np.zeros(0))

    def gpu_ends_s(self) -> F8:
        ends = np.append(np.maximum(self.end_s, self.now_s + 1.0), self.now_s)
        ends_s = ends[np.where(self.cluster.tenants == NOBODY, len(self.end_s), self.cluster.tenants)].max(2)
        return np.asarray(np.where(self.cluster.closed, np.inf, ends_s))


def occupied(shape: ClusterShape, nodes: Mapping[int, Mapping[int, int]], closed: Mapping[int, int]) -> Cluster:
    """A cluster with jobs (by number) on so many GPUs of each node, and so many GPUs a node that take nobody. Where
    a node holds more than it has, its GPUs are shared: the rest sit beside one other each."""
    cluster, per_node = Cluster(shape), shape.per_node
    for number, held in nodes.items():
        seats = [
            gpu
            for node, count in held.items()
            for gpu in (node * per_node + _first_free(cluster, node)[:count]).tolist()
        ]
        if seats:
            cluster.put(number, np.asarray(seats))
    for node, count in closed.items():
        free = np.flatnonzero(cluster.free()[node])
        # which of them is closed nobody says: from the far end, so that the free ones lie together
        cluster.close(node * per_node + free[len(free) - min(count, len(free)) :])
    return cluster


def _first_free(cluster: Cluster, node: int) -> I8:
    """GPUs of a node with a seat left, empty ones first."""
    # a node may hold more than it has GPUs, where it shares them: the rest sit second
    taken = (cluster.tenants[node] != NOBODY).sum(1)
    return np.asarray(np.argsort(taken, kind="stable")[: int((taken < 2).sum())])


def starts_s(
    shape: ClusterShape,
    closed: Mapping[int, int],
    jobs: Sequence[PlayedJob],
    from_s: float,
    order: Callable[[QueueState], None] = backfill,
) -> dict[str, float]:
    """When each job that does not run yet starts (Unix s); infinite for those that never do. `order`: plain
    backfill by priority and submission, or another that starts what it would start now."""
    return _Replay(shape, closed, jobs, from_s).run(order)


class _Replay:
    """One play: the jobs by number, in order of priority and submission, so that `queue.sort` is that order."""

    def __init__(
        self, shape: ClusterShape, closed: Mapping[int, int], parts: Sequence[PlayedJob], from_s: float
    ) -> None:
        self._jobs = jobs = sorted(parts, key=lambda part: (-part.priority, part.submitted_s, part.name))
        cluster = occupied(shape, {number: job.nodes for number, job in enumerate(jobs) if job.nodes}, closed)
        self._starts_s = {job.name: math.inf for job in jobs if not job.nodes}
        self._ends = [(from_s + jobs[number].lasts_s, number) for number in cluster.held]
        heapq.heapify(self._ends)
        self._began_s = dict.fromkeys(cluster.held, from_s)
        self._coming = sorted((max(job.comes_s, from_s), n) for n, job in enumerate(jobs) if not job.nodes)
        self._state = _Play(
            cluster,
            np.asarray([job.submitted_s for job in jobs], float),
            np.asarray([job.gpus for job in jobs], np.int64),
            [""] * len(jobs),
            columns([UNKNOWN] * len(jobs)),
            from_s,
            done_s=np.zeros(len(jobs)),
            rate=np.ones(len(jobs)),
            durations=_Given({job.name: job.lasts_s for job in jobs}),
            begin=self._begin,
            name=[job.name for job in jobs],
            priority=[job.priority for job in jobs],
            end_s=np.asarray([from_s + job.lasts_s if job.nodes else -math.inf for job in jobs]),
        )

    def run(self, order: Callable[[QueueState], None]) -> dict[str, float]:
        state = self._state
        # once nothing runs and nobody comes, nothing changes any more: who still waits never starts
        while self._coming or (state.queue and self._ends):
            nexts = [events[0][0] for events in (self._coming, self._ends) if events]
            self._go_to(min(nexts))
            if state.queue:
                order(state)
        return self._starts_s

    def _go_to(self, now_s: float) -> None:
        """All that happens by then, before the order looks: as in a cluster, where one turn sees it together."""
        state = self._state
        state.now_s = now_s
        while self._ends and self._ends[0][0] <= now_s:
            state.cluster.take(heapq.heappop(self._ends)[1])
        arrived = [number for at_s, number in self._coming if at_s <= now_s]
        del self._coming[: len(arrived)]
        state.queue = sorted([*state.queue, *arrived])
        for number in state.cluster.held:
            state.done_s[number] = now_s - self._began_s[number]

    def _begin(self, start: Start) -> None:
        job, now_s = self._jobs[start.job], self._state.now_s
        self._starts_s[job.name] = self._began_s[start.job] = now_s
        self._state.end_s[start.job] = now_s + job.lasts_s
        heapq.heappush(self._ends, (now_s + job.lasts_s, start.job))
