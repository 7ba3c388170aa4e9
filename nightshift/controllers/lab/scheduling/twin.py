"""The counterfactual beside us: the same jobs in a cluster that schedules by FIFO with backfill and shares nothing.

Two uses. A receipt says what the baseline would have done. And it bounds waiting: a job that the twin has started
and we have not is *late*, and goes before everything else, so that no order, however clever or wrong, makes a job
wait longer for it than plain backfill would have by more than the time to free its GPUs.

The twin knows a duration when the real job has ended (its work, not its time slowed by a neighbour). One that still
runs in both worlds goes on in the twin until it ends in the real one; what was played since it should have ended is
then played again, and with it what it had learned of durations: it predicts from what has ended *there*. So once
all is known the twin is plain backfill's course itself, however much neighbours slowed anybody here: what it
promises rests on no model of what sharing costs.
"""

from __future__ import annotations

import heapq
import math
from copy import deepcopy
from dataclasses import dataclass, field

import numpy as np

from nightshift.controllers.scheduling.cluster import I8, Cluster
from nightshift.controllers.scheduling.policies import backfill
from nightshift.controllers.scheduling.predict import Lesson
from nightshift.controllers.scheduling.state import QueueState, Start


@dataclass
class Twin:
    """`seen` what waits, `ended` what ran how long; `started_s` answers when the baseline started a job."""

    real: QueueState
    started_s: dict[int, float] = field(default_factory=dict)
    gpus: dict[int, I8] = field(default_factory=dict)
    """Where it started them."""
    _waited_s: float = 0.0
    _state: QueueState = field(init=False)
    _ends: list[tuple[float, int]] = field(default_factory=list)
    _worked_s: dict[int, float] = field(default_factory=dict)
    _seen: list[tuple[float, int]] = field(default_factory=list)
    _gone: list[tuple[float, int, Lesson]] = field(default_factory=list)
    """Who came and who ended there, in order of time, and what it taught."""

    def __post_init__(self) -> None:
        real = self.real
        self._state = QueueState(
            Cluster(real.cluster.shape),
            real.submit_s,
            real.width,
            real.user,
            real.loads,
            done_s=np.zeros(len(real.submit_s)),
            rate=np.ones(len(real.submit_s)),
            durations=deepcopy(real.durations),
            begin=self._begin,
            name=real.name,
        )

    def seen(self, job: int) -> None:
        """A job was submitted."""
        self._come(job, self.real.now_s)

    def _come(self, job: int, at_s: float) -> None:
        self._advance(at_s)
        self._seen.append((at_s, job))
        self._state.queue.append(job)
        self._look()

    def ended(self, job: int, worked_s: float) -> None:
        """A job ended in the real cluster after this much work (s of running alone). Where it would have ended
        there before now, what has been played since is played again: else a neighbour that slows a job here would
        slow it there too, and nobody would be late however wrong the model."""
        self._advance(self.real.now_s)
        self._worked_s[job] = worked_s
        # it has not started there: how long it takes is known before, and used when it does
        if job not in self.started_s:
            return
        end_s = self.started_s[job] + self._lasts_s(job)
        if end_s < self.real.now_s:
            self._again(end_s)
        else:
            heapq.heappush(self._ends, (end_s, job))
        self._advance(self.real.now_s)

    def _again(self, from_s: float) -> None:
        """Takes back what happened there since a time, and plays it with what is known now."""
        cluster, now_s = self._state.cluster, self._state.now_s
        sat = self._take_back_ends(from_s)
        self._take_back_starts(from_s)
        # who ended since sits again, though its GPUs may have been closed meanwhile: they were open when it started
        cluster.closed[:] = False
        for job in sat:
            if job in self.started_s:
                cluster.put(job, self.gpus[job])
        self._ends = [
            (self.started_s[job] + self._lasts_s(job), job) for job in cluster.held if job in self._worked_s
        ]
        heapq.heapify(self._ends)
        for at_s, job in self._take_back_arrivals(from_s):
            self._come(job, at_s)
        self._advance(now_s)

    def _take_back_ends(self, from_s: float) -> list[int]:
        """And what they taught; who ended since."""
        sat: list[int] = []
        # newest first: a level's lesson can only be taken back while it is the level's newest
        while self._gone and self._gone[-1][0] >= from_s:
            _, job, lesson = self._gone.pop()
            self._state.durations.take_back(lesson)
            sat.append(job)
        self._state.forget()
        return sat

    def _take_back_starts(self, from_s: float) -> None:
        cluster = self._state.cluster
        while self.started_s:  # in order of time, as a dict keeps it
            job, at_s = self.started_s.popitem()
            if at_s < from_s:
                self.started_s[job] = at_s
                break
            self._waited_s -= at_s - float(self._state.submit_s[job])
            self._state.queue.append(job)
            if job in cluster.held:
                cluster.take(job)

    def _take_back_arrivals(self, from_s: float) -> list[tuple[float, int]]:
        """Who came since, in order of time."""
        came: list[tuple[float, int]] = []
        while self._seen and self._seen[-1][0] >= from_s:
            came.append(self._seen.pop())
        later = {job for _, job in came}
        self._state.queue = sorted(job for job in self._state.queue if job not in later)
        return came[::-1]

    def late(self) -> list[int]:
        """Who waits though the baseline would have started it, the earliest there first."""
        found = [job for job in self.real.queue if job in self.started_s]
        return sorted(found, key=lambda job: (self.started_s[job], job))

    def is_like(self, cluster: Cluster) -> bool:
        """Whether the same jobs sit there on the same GPUs: then the baseline has said who starts now. Asked again
        after its own starts it would say more: they move the reservation of the first that waits."""
        here = self._state.cluster
        return np.array_equal(here.tenants, cluster.tenants) and np.array_equal(here.closed, cluster.closed)

    @property
    def waiting(self) -> int:
        """How many wait there."""
        return len(self._state.queue)

    @property
    def pressure(self) -> float:
        """Time that jobs have waited there over the work that jobs have done so far: how much there is to win."""
        here = self._state
        waits_s = self._waited_s + len(here.queue) * here.now_s - float(here.submit_s[here.queue].sum())
        return waits_s / max(float(self.real.done_s.sum()), 1.0)

    @property
    def longest_wait_s(self) -> float:
        """Of all that came, until its start there or now."""
        here = self._state
        starts_s = [*self.started_s.items(), *((job, here.now_s) for job in here.queue)]
        return max((at_s - float(here.submit_s[job]) for job, at_s in starts_s), default=0.0)

    def _begin(self, start: Start) -> None:
        self._waited_s += self._state.now_s - float(self._state.submit_s[start.job])
        self.started_s[start.job], self.gpus[start.job] = self._state.now_s, start.gpus
        cluster = self._state.cluster
        self._state.rate[start.job] = 1.0 / cluster.shape.across_racks if cluster.spans_racks(start.gpus) else 1.0
        if start.job in self._worked_s:
            heapq.heappush(self._ends, (self._state.now_s + self._lasts_s(start.job), start.job))

    def _lasts_s(self, job: int) -> float:
        return self._worked_s[job] / float(self._state.rate[job])

    def _advance(self, now_s: float) -> None:
        while self._ends and self._ends[0][0] <= now_s:
            self._state.now_s, job = heapq.heappop(self._ends)
            self._state.cluster.take(job)
            self._gone.append((self._state.now_s, job, self._learn(job)))
            if self._state.queue:
                self._look()
        self._state.now_s = now_s

    def _learn(self, job: int) -> Lesson:
        here = self._state
        name, submit_s = here.name[job] if here.name else "", float(here.submit_s[job])
        return here.durations.learn(here.user[job], int(here.width[job]), submit_s, self._worked_s[job], name)

    def _look(self) -> None:
        state = self._state
        # the twin stops nobody for a fault, so a GPU that failed here closes there only once it is empty
        state.cluster.closed[:] = self.real.cluster.closed & state.cluster.empty()
        for job in state.cluster.held:
            state.done_s[job] = (state.now_s - self.started_s[job]) * state.rate[job]
        backfill(state)


@dataclass
class QuickTwin(Twin):
    """A twin that plays nothing again, for orders that leave its course for long: a job may end there before it has
    started here. Such a job ends there when predicted, at the quantile `runs_on` of those that last as long as it
    has here. As long as an order keeps to its starts, it is the twin itself (a property test)."""

    runs_on: float = 0.8
    _unlearned: set[int] = field(default_factory=set)
    """Who ended there by prediction, and has not ended here."""

    def ended(self, job: int, worked_s: float) -> None:
        """A job ended in the real cluster after this much work (s of running alone)."""
        self._worked_s[job] = worked_s
        if job in self._unlearned:
            self._unlearned.discard(job)
            self._learn(job)
        elif job in self.started_s:
            heapq.heappush(self._ends, (max(self.started_s[job] + self._lasts_s(job), self._state.now_s), job))
        self._advance(self.real.now_s)

    def _begin(self, start: Start) -> None:
        super()._begin(start)
        if start.job not in self._worked_s:
            heapq.heappush(self._ends, (self._predicted_s(start.job), start.job))

    def _predicted_s(self, job: int) -> float:
        real, here = self.real, self._state
        name, ran_s = here.name[job] if here.name else "", here.now_s - real.began_s.get(job, here.now_s)
        width, submit_s = int(here.width[job]), float(here.submit_s[job])
        whole_s = here.durations.quantile(here.user[job], width, submit_s, self.runs_on, max(ran_s, 0.0), name)
        return self.started_s[job] + whole_s / float(here.rate[job])

    def _advance(self, now_s: float) -> None:
        while self._ends and self._ends[0][0] <= now_s:
            self._state.now_s, job = heapq.heappop(self._ends)
            if job not in self._state.cluster.held or not self._is_over(job):
                continue
            self._state.cluster.take(job)
            if job in self._worked_s:
                self._learn(job)
            else:
                self._unlearned.add(job)
            if self._state.queue:
                self._look()
        self._state.now_s = now_s

    def _is_over(self, job: int) -> bool:
        """Whether it ends there now; else it comes again, when that is known."""
        here, began_s = self._state, self.started_s[job]
        known_s = began_s + self._lasts_s(job) if job in self._worked_s else None
        if known_s is not None:
            if known_s > here.now_s:
                heapq.heappush(self._ends, (known_s, job))
            return known_s <= here.now_s
        # it started here no later, and runs: so it runs there
        if self.real.began_s.get(job, math.inf) <= began_s:
            return False
        end_s = self._predicted_s(job)
        if end_s > here.now_s:
            heapq.heappush(self._ends, (end_s, job))
        return end_s <= here.now_s
