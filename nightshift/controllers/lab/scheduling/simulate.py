"""A cluster that runs a trace under a policy: event by event, with placement, sharing, restarts and faults.

What is true here and hidden from policies: durations, and how much each pair really slows each other (the model's
mean, times a lognormal draw as wide as the model's own error, per pair of kinds, and 10 % per pair of jobs).
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from nightshift.collectors.base import Permanent
from nightshift.controllers.lab.scheduling.trace import TraceJob
from nightshift.controllers.lab.scheduling.twin import Twin
from nightshift.controllers.scheduling.cluster import F8, I8, Cluster, ClusterShape
from nightshift.controllers.scheduling.interference import KINDS, MEASURED, Experience, Interference, columns
from nightshift.controllers.scheduling.policies import Policy
from nightshift.controllers.scheduling.state import QueueState, Start


class _Event(IntEnum):
    """At the same moment they happen in this order: who arrives is there before somebody's GPUs come free."""

    ARRIVE = 0
    END = 1
    FAULT = 2
    REPAIR = 3
    TICK = 4


@dataclass(frozen=True, slots=True)
class Faults:
    """GPUs that fail: mean GPU-hours between failures, and how long one stays closed (s)."""

    mean_gpu_hours: float = float("inf")
    repair_s: float = 4 * 3600.0


@dataclass(frozen=True, slots=True)
class SchedulingWorld:
    """`restart_s`: lost when a job is stopped and begins again (from its last checkpoint, `checkpoint_s` apart)."""

    shape: ClusterShape = field(default_factory=ClusterShape)
    model: Interference = MEASURED
    restart_s: float = 60.0
    checkpoint_s: float = 1800.0
    faults: Faults = field(default_factory=Faults)
    tick_s: float = 0.0
    """A look at least this often while somebody waits (preemptive policies); 0: only when something happens."""
    harsher: float = 0.0
    """Added to every true log slowdown: how wrong the model may be before the figures turn."""
    slope_w: float = float("inf")
    """Rise of one rack's draw allowed within a minute: starts wait for it, on the GPUs that they have."""


@dataclass(frozen=True)
class SimulationResult:
    """Per job: `wait_s` until its first start, `jct_s` from submission to end, `slowed`: JCT less wait, over its
    duration alone. `busy`: share of GPU-seconds with somebody on them; `stops`: how often a job was stopped."""

    wait_s: F8
    jct_s: F8
    slowed: F8
    busy: float
    stops: int
    shared: int
    rises_w: F8 = field(default_factory=lambda: np.zeros(1))
    """Of each start, by how much its rack's draw had risen within the minute up to it; 0 where it came alone."""

    def figures(self) -> dict[str, float]:
        """Seconds, but for shares and counts."""
        return {
            "mean_jct_s": float(self.jct_s.mean()),
            "median_jct_s": float(np.median(self.jct_s)),
            "p95_jct_s": float(np.quantile(self.jct_s, 0.95)),
            "p99_jct_s": float(np.quantile(self.jct_s, 0.99)),
            "mean_wait_s": float(self.wait_s.mean()),
            "p99_wait_s": float(np.quantile(self.wait_s, 0.99)),
            "longest_wait_s": float(self.wait_s.max()),
            "p99_slowed": float(np.quantile(self.slowed, 0.99)),
            "busy": self.busy,
            "stops": float(self.stops),
            "shared": float(self.shared),
            "p99_rise_w": float(np.quantile(self.rises_w, 0.99)),
            "highest_rise_w": float(self.rises_w.max()),
        }


MINUTE_S = 60.0


@dataclass
class Ramp:
    """How steeply a rack's draw may rise: starts on it are spread, so that power need not cap what has begun.

    What a job adds is taken as the same for each of its GPUs, as in a live cluster before it has run. A start that
    comes alone goes however much it adds, since a gang cannot start by halves; that is the shield's rule too
    (`steer`).

    `slope_w`: rise of one rack's draw allowed within a minute; `gpu_watts`: what a start adds per GPU.

    `rises_w`: of every start on each of its racks, the rise within the minute up to it, itself included; 0 where it
    came alone."""

    shape: ClusterShape
    gpu_watts: float = 500.0
    slope_w: float = math.inf
    rises_w: list[float] = field(default_factory=list)
    _lately: dict[int, deque[tuple[float, float]]] = field(default_factory=lambda: defaultdict(deque))

    def begins_s(self, now_s: float, gpus: I8) -> float:
        """When a job that is given these GPUs now begins; books its rise."""
        racks, counts = np.unique(gpus // (self.shape.per_node * self.shape.per_rack), return_counts=True)
        added_w = {int(rack): self.gpu_watts * int(count) for rack, count in zip(racks, counts, strict=True)}
        at_s = next(at_s for at_s in self._times_s(now_s, added_w) if self._is_flat(at_s, added_w))
        for rack, watts in added_w.items():
            lately = self._lately[rack]
            lately.append((at_s, watts))
            while lately[0][0] + MINUTE_S <= now_s:
                lately.popleft()
            risen_w = self._risen_w(rack, at_s)
            self.rises_w.append(risen_w if risen_w > watts else 0.0)
        return at_s

    def _times_s(self, now_s: float, added_w: dict[int, float]) -> Iterator[float]:
        """From now or the last start booked there on: the moments at which an earlier start is a minute ago."""
        booked = [at_s for rack in added_w for at_s, _ in self._lately[rack]]
        first_s = max([now_s, *booked])
        yield first_s
        yield from sorted(at_s + MINUTE_S for at_s in booked if at_s + MINUTE_S > first_s)

    def _is_flat(self, at_s: float, added_w: dict[int, float]) -> bool:
        risen_w = {rack: self._risen_w(rack, at_s) for rack in added_w}
        return all(risen_w[rack] <= 0.0 or risen_w[rack] + w <= self.slope_w for rack, w in added_w.items())

    def _risen_w(self, rack: int, at_s: float) -> float:
        return math.fsum(watts for t_s, watts in self._lately[rack] if t_s <= at_s < t_s + MINUTE_S)


class Simulation:
    """One run. `stop` is for preemptive policies only."""

    def __init__(
        self, jobs: Sequence[TraceJob], world: SchedulingWorld, seed: int = 0, *, twin: bool = False
    ) -> None:
        self.jobs, self.world = list(jobs), world
        widest = max(job.gpus for job in jobs)
        if widest > world.shape.gpus:
            raise Permanent(f"a job requests {widest} GPUs, but there are {world.shape.gpus}")
        count = len(self.jobs)
        kinds = [KINDS.index(job.load.kind) if job.load.kind in KINDS else -1 for job in jobs]
        self.state = QueueState(
            Cluster(world.shape),
            np.asarray([job.submit_s for job in jobs]),
            np.asarray([job.gpus for job in jobs]),
            [job.user for job in jobs],
            columns([job.load for job in jobs]),
            done_s=np.zeros(count),
            rate=np.ones(count),
            known=Experience(world.model),
            kinds=np.asarray(kinds),
            begin=self._begin,
            name=[job.name for job in jobs],
        )
        self.twin = self.state.twin = Twin(self.state) if twin else None
        self.seed = seed
        self.ramp = Ramp(world.shape, slope_w=world.slope_w)
        self._random = np.random.default_rng((seed, 0x51A1))
        self._by_kinds = self._random.normal(0.0, world.model.spread, (len(KINDS), len(KINDS)))
        self._kind = [max(kind, 0) for kind in kinds]  # who is of no known kind is slowed as the first of KINDS
        self._pairs: dict[tuple[int, int], float] = {}
        self._told: set[tuple[int, int]] = set()
        self._events: list[tuple[float, int, int, int]] = []
        self._version = [0] * count
        self._left_s = np.asarray([job.duration_s for job in jobs])
        self._at_s = np.zeros(count)
        self.first_start_s = np.full(count, np.nan)
        self.end_s = np.full(count, np.nan)
        self._busy_s = 0.0
        self._changed: set[int] = set()
        self.stops = 0
        self.shared = 0

    def run(self, policy: Policy | Callable[[QueueState], None]) -> SimulationResult:
        for _ in self.steps():
            policy(self.state)
        return self.result()

    def steps(self) -> Iterator[QueueState]:
        """Yields the state whenever something happened; the caller starts what it wants, then goes on."""
        state, events = self.state, self._events
        for number, job in enumerate(self.jobs):
            heapq.heappush(events, (job.submit_s, _Event.ARRIVE, number, 0))
        self._next_fault(0.0)
        while np.isnan(self.end_s).any():
            if not events:
                raise Permanent("the policy leaves jobs waiting in an empty cluster")
            now_s = state.now_s = events[0][0]
            # all of one moment before anybody looks: a policy that saw half of a burst would start the wrong half
            news = False
            while events and events[0][0] <= now_s:
                news |= self._happens(*heapq.heappop(events)[1:])
            self._settle()
            if not (news and state.queue):
                continue
            self._observe()
            yield state
            self._settle()
            # a preemptive order changes its mind by time alone; none is needed where one comes at once
            if self.world.tick_s and state.queue and not any(e[1] == _Event.TICK for e in events[:1]):
                heapq.heappush(events, (now_s + self.world.tick_s, _Event.TICK, 0, 0))

    # what happens

    def _happens(self, what: int, number: int, version: int) -> bool:
        """Whether anything did."""
        # nothing leaves the heap when a job's pace changes: its former end stays in there and is passed over here
        if what == _Event.END and (version != self._version[number] or number not in self.state.cluster.held):
            return False
        match what:
            case _Event.ARRIVE:
                self._arrive(number)
            case _Event.END:
                self._end(number)
            case _Event.FAULT:
                self._fault(number)
            case _Event.REPAIR:
                self.state.cluster.close(np.asarray([number]), False)
        return True

    def _arrive(self, job: int) -> None:
        self.state.queue.append(job)
        if self.twin is not None:
            self.twin.seen(job)

    def _begin(self, start: Start) -> None:
        job = start.job
        self._at_s[job] = self.ramp.begins_s(self.state.now_s, start.gpus)
        if np.isnan(self.first_start_s[job]):
            self.first_start_s[job] = self._at_s[job]
        self.shared += start.shared
        self._changed.update((job, *self.state.cluster.neighbours(job)))

    def stop(self, job: int) -> None:
        """Takes a job off its GPUs; it waits again and pays the restart."""
        self._advance(job)
        self._changed.update(self.state.cluster.neighbours(job))
        self._leave(job)
        self._left_s[job] += self.world.restart_s
        self.state.queue.append(job)
        self.state.queue.sort()  # numbers are in order of submission: who was stopped does not lose its turn
        self.stops += 1

    def _leave(self, job: int) -> None:
        self.state.cluster.take(job)
        self._changed.discard(job)
        self._version[job] += 1
        self.state.rate[job] = 1.0

    def _end(self, job: int) -> None:
        self._advance(job)
        self._changed.update(self.state.cluster.neighbours(job))
        self._leave(job)
        self.end_s[job] = self.state.now_s
        done = self.jobs[job]
        self.state.durations.learn(done.user, done.gpus, done.submit_s, done.duration_s, done.name)
        if self.twin is not None:
            self.twin.ended(job, done.duration_s)

    def _fault(self, gpu: int) -> None:
        """A GPU fails: who sits on it falls back to the last checkpoint and waits again; the GPU stays closed."""
        cluster = self.state.cluster
        for job in cluster.on(gpu):
            self.stop(job)
            # checkpoints are counted in work done, which a neighbour slows as it slows the job
            lost_s = float(self.state.done_s[job] % self.world.checkpoint_s)
            self._left_s[job] += lost_s
            self.state.done_s[job] -= lost_s
        cluster.close(np.asarray([gpu]))
        heapq.heappush(self._events, (self.state.now_s + self.world.faults.repair_s, _Event.REPAIR, gpu, 0))
        self._next_fault(self.state.now_s)

    def _next_fault(self, now_s: float) -> None:
        gpus = self.world.shape.gpus
        mean_s = self.world.faults.mean_gpu_hours * 3600.0 / gpus
        if np.isfinite(mean_s):
            at_s = now_s + float(self._random.exponential(mean_s))
            heapq.heappush(self._events, (at_s, _Event.FAULT, int(self._random.integers(gpus)), 0))

    # progress

    def _observe(self) -> None:
        for job in self.state.cluster.held:
            self._advance(job)

    def _advance(self, job: int) -> None:
        now_s = self.state.now_s
        passed_s = now_s - float(self._at_s[job])
        if passed_s > 0:  # a start that waits for the rack's slope lies ahead of now: nothing is done yet
            done_s = passed_s * float(self.state.rate[job])
            self._left_s[job] -= done_s
            self.state.done_s[job] += done_s
            self._busy_s += passed_s * self.jobs[job].gpus
            self._at_s[job] = now_s

    def _settle(self) -> None:
        """New paces for whoever got or lost a neighbour, and with them new ends."""
        for job in self._changed:
            self._advance(job)
            slower = self._slower(job)
            self.state.rate[job] = 1.0 / slower
            self._experience(job, slower)
            self._version[job] += 1
            from_s = max(self.state.now_s, float(self._at_s[job]))
            end_s = from_s + max(float(self._left_s[job]), 0.0) / float(self.state.rate[job])
            heapq.heappush(self._events, (end_s, _Event.END, job, self._version[job]))
        self._changed.clear()

    def _slower(self, job: int) -> float:
        cluster = self.state.cluster
        # a gang is as slow as its slowest GPU, and steps together: the worst neighbour sets its pace
        found = max((self._true(job, other) for other in cluster.neighbours(job)), default=1.0)
        return found * (self.world.shape.across_racks if cluster.spans_racks(cluster.held[job]) else 1.0)

    def _experience(self, job: int, slower: float) -> None:
        """A job beside one neighbour, not across racks, tells what that neighbour costs it, once."""
        cluster, state = self.state.cluster, self.state
        neighbours = cluster.neighbours(job)
        # beside two, or across racks, what of it is whose cannot be told
        if len(neighbours) != 1 or (job, neighbours[0]) in self._told or cluster.spans_racks(cluster.held[job]):
            return
        other = neighbours[0]
        self._told.add((job, other))
        kinds, loads = state.kinds, state.loads
        state.known.see(int(kinds[job]), int(kinds[other]), loads[job], loads[other], slower)

    def _true(self, job: int, other: int) -> float:
        known = self._pairs.get((job, other))
        if known is None:
            # drawn by the pair's own seed, not in order of meeting: every policy meets the same world
            shift = self._by_kinds[self._kind[job], self._kind[other]] + self.world.harsher
            noise = float(np.random.default_rng((self.seed, job, other)).normal(0.0, 0.1))
            loads = self.state.loads
            known = float(self.world.model.slowdown(loads[job], loads[other], shift)) * float(
                np.exp(max(noise, 0.0))
            )
            self._pairs[job, other] = known
        return known

    def result(self) -> SimulationResult:
        submit_s = self.state.submit_s
        alone_s = np.asarray([job.duration_s for job in self.jobs])
        wait_s, jct_s = self.first_start_s - submit_s, self.end_s - submit_s
        span_s = float(np.max(self.end_s) - submit_s[0])
        busy = self._busy_s / (span_s * self.world.shape.gpus)
        slowed, rises_w = (jct_s - wait_s) / alone_s, np.asarray(self.ramp.rises_w)
        return SimulationResult(wait_s, jct_s, slowed, busy, self.stops, self.shared, rises_w)
