"""What a scheduling policy sees, and how it says what should start: the same simulated and in a live cluster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from nightshift.controllers.scheduling.cluster import B1, F8, I8, NOBODY, Cluster, Guest, Seat, SharingRules
from nightshift.controllers.scheduling.interference import MEASURED, Experience
from nightshift.controllers.scheduling.predict import Durations, Kind, Present

RUNS_ON = 0.7
"""Quantile of the duration by which a running job's end is expected (for reservations)."""


@dataclass(frozen=True, slots=True)
class Start:
    """One proposal: this job on these GPUs (flat indices). `shared`: some of them have a job already."""

    job: int
    gpus: I8
    shared: bool
    why: str


@dataclass(frozen=True, slots=True)
class SharingCare:
    """How sure sharing has to be. `certain`: quantile of a guest's length by which it must have left before its
    hosts; `grace`: share of its length by which a host may end later than in the twin."""

    certain: float = 0.95
    grace: float = 0.05


CAREFULLY, BOLDLY = SharingCare(), SharingCare(certain=0.7, grace=0.1)


class BaselineTwin(Protocol):
    """The same jobs under plain backfill, played beside us (in simulation: `controllers.lab.scheduling.twin`)."""

    @property
    def started_s(self) -> Mapping[int, float]:
        """When it started whom."""
        ...

    @property
    def gpus(self) -> Mapping[int, I8]:
        """Where it started them."""
        ...

    @property
    def waiting(self) -> int:
        """How many wait there."""
        ...

    @property
    def pressure(self) -> float:
        """Time that jobs have waited there over the work done so far: how much there is to win."""
        ...

    @property
    def longest_wait_s(self) -> float:
        """Of all that came, until its start there or now."""
        ...

    def late(self) -> list[int]:
        """Who waits here though the baseline would have started it, the earliest there first."""
        ...

    def is_like(self, cluster: Cluster) -> bool:
        """Whether the same jobs sit there on the same GPUs."""
        ...


@dataclass
class QueueState:
    """Jobs by number, in order of submission. Arrays `[jobs]`; a policy reads `submit_s`, `width`, `user`, never a
    duration."""

    cluster: Cluster
    submit_s: F8
    width: I8
    user: list[str]
    loads: F8
    now_s: float = 0.0
    queue: list[int] = field(default_factory=list)
    """Who waits, first submitted first."""
    done_s: F8 = field(default_factory=lambda: np.zeros(0))
    """Work done so far (s of running alone), as of now, by job."""
    rate: F8 = field(default_factory=lambda: np.ones(0))
    """Work done per second, as observed."""
    durations: Durations = field(default_factory=Durations)
    known: Experience = field(default_factory=lambda: Experience(MEASURED))
    """What sharing is expected to cost."""
    kinds: I8 = field(default_factory=lambda: np.zeros(0, np.int64))
    """Index in `KINDS` by job, -1 where it is not known; empty: of none."""
    rules: SharingRules = field(default_factory=SharingRules)
    begin: Callable[[Start], None] = lambda start: None
    twin: BaselineTwin | None = None
    """The baseline beside us; None where nobody asked for it."""
    name: list[str] = field(default_factory=list)
    """What their owners call them; empty where nobody knows."""
    priority: list[int] = field(default_factory=list)
    """As people set it, the higher the sooner, before any order of ours; empty: all alike."""
    began_s: dict[int, float] = field(default_factory=dict)
    """When whom we started began."""
    care: SharingCare = field(default_factory=SharingCare)
    _guessed: dict[int, tuple[int, float]] = field(default_factory=dict)
    _whole_s: dict[int, tuple[float, float]] = field(default_factory=dict)
    _asked_s: F8 = field(default_factory=lambda: np.zeros(0))
    _rooms: F8 = field(default_factory=lambda: np.zeros((2, 0)))
    _awaited_by: tuple[float, int] | None = None
    _awaited_nodes: B1 = field(default_factory=lambda: np.zeros(0, bool))

    def start(self, job: int, gpus: I8, why: str, *, shared: bool = False) -> None:
        """Proposes a start and books its GPUs, so that the next look in this decision sees them taken."""
        self.cluster.put(job, gpus)
        self.queue.remove(job)
        self.began_s[job] = self.now_s
        self._awaited_by = None
        self.begin(Start(job, gpus, shared, why))

    def seat(self, job: int, avoid: B1 | None = None, *, late: bool = False) -> Seat | None:
        """Where the job could share GPUs now (`Cluster.shared`): with a twin only where no host ends later than
        there. `late`: it has a claim to GPUs, so its hosts' ends do not count, but sharing has to cost it less than
        waiting is expected to."""
        if self.twin is None:
            return self._shared(job, avoid, self.rules)
        if late:
            found = self._shared(job, avoid, replace(self.rules, least_gain=0.0))
            waits_s = self.reservation(job, self.gpu_ends_s())[0] - self.now_s if found is not None else 0.0
            return found if found and (found.own - 1.0) * self.guess_s(job, RUNS_ON) <= waits_s else None
        # carefully first, so that a bold guest comes only where no careful one fits
        found = self._guest(job, avoid, CAREFULLY)
        if found is not None or self.care == CAREFULLY:
            return found
        awaited = self._awaited()
        return self._guest(job, awaited if avoid is None else avoid | awaited, self.care)

    def _guest(self, job: int, avoid: B1 | None, care: SharingCare) -> Seat | None:
        return self._shared(job, avoid, self.rules, Guest(self.guess_s(job, care.certain), self._room))

    def _shared(self, job: int, avoid: B1 | None, rules: SharingRules, guest: Guest | None = None) -> Seat | None:
        if not len(self.kinds):
            self.kinds = np.full(len(self.submit_s), -1)
        return self.cluster.shared(
            job, int(self.width[job]), self.loads, self.kinds, self.known, rules, avoid, guest
        )

    def _awaited(self) -> B1:
        """The nodes on which the first of the queue counts, where it needs several whole ones: one guest that stays
        on keeps all of them from it."""
        first = self.queue[0]
        if (self.now_s, first) != self._awaited_by:
            self._awaited_by = (self.now_s, first)
            self._awaited_nodes = np.zeros(len(self.cluster.closed), bool)
            if self.width[first] > self.cluster.shape.per_node:
                self._awaited_nodes = self.reservation(first, self.gpu_ends_s())[1]
        return self._awaited_nodes

    def _room(self, hosts: I8) -> tuple[F8, F8]:
        """Of each, `spare_s` and `left_s`: once a decision."""
        if len(self._asked_s) != len(self.submit_s):
            self._asked_s, self._rooms = np.full(len(self.submit_s), np.nan), np.zeros((2, len(self.submit_s)))
        new = hosts[self._asked_s[hosts] != self.now_s]
        self._rooms[:, new] = [
            [self.spare_s(job) for job in new.tolist()],
            [self.left_s(job) for job in new.tolist()],
        ]
        self._asked_s[new] = self.now_s
        return self._rooms[0, hosts], self._rooms[1, hosts]

    def spare_s(self, job: int) -> float:
        """Seconds that a running job may yet lose to neighbours and still end no later than in the twin, but for
        `care.grace`."""
        assert self.twin is not None
        began_s, done_s = self.began_s.get(job, self.now_s), float(self.done_s[job])
        there_s = self.twin.started_s.get(job, self.now_s)
        lost_s = max(self.now_s - began_s - done_s, 0.0)
        return there_s - began_s - lost_s + self.care.grace * self._whole(job)

    def left_s(self, job: int) -> float:
        """Seconds of work that a running job is expected to have left."""
        return max(self._whole(job) - float(self.done_s[job]), 1.0)

    def _whole(self, job: int) -> float:
        known = self._whole_s.get(job)
        if known is None or known[0] != self.now_s:
            found = self._quantile(job, RUNS_ON, float(self.done_s[job]))
            known = self._whole_s[job] = (self.now_s, found)
        return known[1]

    def guess_s(self, job: int, q: float = 0.5) -> float:
        """The job's predicted duration alone (s), before it has run."""
        # what is predicted changes only when a job ends: asked for every waiting job at every look otherwise
        stamp = self.durations.ended
        known = self._guessed.get(job)
        if known is None or known[0] != stamp or q != 0.5:
            found = self._quantile(job, q)
            if q != 0.5:
                return found
            known = self._guessed[job] = (stamp, found)
        return known[1]

    def _quantile(self, job: int, q: float, age_s: float = 0.0) -> float:
        name = self.name[job] if self.name else ""
        width, submit_s = int(self.width[job]), float(self.submit_s[job])
        return self.durations.quantile(self.user[job], width, submit_s, q, age_s, name)

    def waited_s(self, job: int) -> float:
        return self.now_s - float(self.submit_s[job])

    def expected_s(self) -> dict[int, float]:
        """Of each job that waits the duration alone (s), by those submitted beside it."""
        kinds: dict[Kind, list[tuple[int, Present]]] = defaultdict(list)
        for job in self.queue:
            kinds[self._kind(job)].append((job, Present(float(self.submit_s[job]))))
        for job in self.cluster.held:
            kind = self._kind(job)
            if kind in kinds:
                kinds[kind].append((job, Present(float(self.submit_s[job]), float(self.done_s[job]))))
        return {
            job: lasts_s
            for kind, jobs in kinds.items()
            for (job, _), lasts_s in zip(jobs, self.durations.alike(kind, [here for _, here in jobs]), strict=True)
        }

    def _kind(self, job: int) -> Kind:
        return self.user[job], self.name[job] if self.name else "", int(self.width[job])

    def forget(self) -> None:
        """What was predicted so far, since what it was learned from has changed."""
        self._guessed.clear()
        self._whole_s.clear()

    def expected_end_s(self, job: int) -> float:
        """When a running job is expected to end, at the pace it has now."""
        # beside a job of which nothing is known its slowdown is infinite, and its pace 0
        return self.now_s + self.left_s(job) / max(float(self.rate[job]), 1e-6)

    def gpu_ends_s(self) -> F8:
        """`[nodes, per_node]`: when each GPU is expected to be free; infinite where it is closed."""
        # one more than jobs, for the seats of nobody
        ends = np.full(len(self.submit_s) + 1, self.now_s)
        for job in self.cluster.held:
            ends[job] = self.expected_end_s(job)
        tenants = np.where(self.cluster.tenants == NOBODY, len(self.submit_s), self.cluster.tenants)
        return np.asarray(np.where(self.cluster.closed, np.inf, ends[tenants].max(2)))

    def reservation(self, job: int, ends_s: F8) -> tuple[float, B1]:
        """When and on which nodes a job that does not fit now will, if all end as expected."""
        width, per_node = int(self.width[job]), self.cluster.shape.per_node
        nodes: NDArray[np.bool_] = np.zeros(len(ends_s), bool)
        if width <= per_node:
            # free by then are as many of a node's GPUs as it needs
            at_s = np.partition(ends_s, width - 1, axis=1)[:, width - 1]
            need = 1
        else:
            at_s, need = ends_s.max(1), -(-width // per_node)
        if need > len(at_s):
            return np.inf, nodes
        chosen = np.argsort(at_s, kind="stable")[:need]
        nodes[chosen] = True
        return float(at_s[chosen].max()), nodes
