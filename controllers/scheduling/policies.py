"""Orders of a queue, from the plainest to ours. Each looks at a `State` and starts what it would start now.

None evicts, none sees a duration before its end. Reservations follow EASY backfill (Lifka 1995; Mu'alem and
Feitelson 2001): whoever is first and does not fit gets a time and nodes, and nobody may be put in between who is
expected to be in the way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from controllers.scheduling.cluster import B1, F8, Seat
from controllers.scheduling.state import State

Policy = Callable[[State], None]
CAREFUL = 0.7
"""Quantile of the duration by which the cost of sharing is told: long jobs share for long."""


def fifo(state: State) -> None:
    """First come, first served: whoever does not fit stops everybody behind."""
    while state.queue:
        gpus = state.cluster.alone(int(state.width[state.queue[0]]))
        if gpus is None:
            return
        state.start(state.queue[0], gpus, "first in the queue")


def backfill(
    state: State, order: Sequence[int] | None = None, *, share: bool = False, taken: B1 | None = None
) -> None:
    """EASY backfill along an order (none: by submission), by predicted durations. `taken`: nodes closed to all."""
    waiting = list(state.queue if order is None else order)
    failed: set[tuple[int, bool]] = set()
    blocked: B1 | None = None
    until_s = math.inf
    worth = Worth(state)
    for job in waiting:
        width = int(state.width[job])
        clear = blocked is None or state.now_s + state.guess_s(job) <= until_s
        if (width, clear) in failed:
            continue
        avoid = taken if clear or blocked is None else (blocked if taken is None else blocked | taken)
        gpus = state.cluster.alone(width, avoid)
        if gpus is not None:
            state.start(job, gpus, "fits now" if blocked is None else "fits beside the reservation")
            continue
        if share:
            seat = state.seat(job, avoid)
            if seat is not None and worth.sharing(job, seat):
                state.start(job, seat.gpus, "shares with a complementary job", shared=True)
                continue
        if not share:
            failed.add((width, clear))
        if blocked is None:
            ends_s = state.gpu_ends_s()
            if taken is not None:
                ends_s[taken] = np.inf
            until_s, blocked = state.reservation(job, ends_s)


@dataclass
class Worth:
    """Whether sharing now shortens the sum of completion times, as far as that can be told, within one decision.

    It saves the job the time until GPUs are expected to be free for it, and everybody behind it the GPU-seconds
    that are then not taken (its own less those by which its neighbours stay longer) times their number over the
    cluster's. It costs what the job and its
    neighbours lose while they share. So short jobs share rather than wait, and long ones only where many wait.
    """

    state: State
    ends_s: F8 | None = None
    waits_s: dict[int, float] = field(default_factory=dict)

    def sharing(self, job: int, seat: Seat) -> bool:
        state, width = self.state, int(self.state.width[job])
        if width not in self.waits_s:
            self.ends_s = state.gpu_ends_s() if self.ends_s is None else self.ends_s
            self.waits_s[width] = state.reservation(job, self.ends_s)[0] - state.now_s
        work_s = state.guess_s(job, CAREFUL)
        saved = max(width - seat.lost_gpus * seat.own, 0.0)
        behind = max(len(state.queue) - 1, 0) * saved / state.cluster.shape.gpus
        cost = (seat.own - 1.0) + seat.lost * seat.own
        return self.waits_s[width] + (behind - cost) * work_s > 0.0


def shortest(state: State) -> None:
    """Shortest predicted job first, without reservations."""
    for job in sorted(state.queue, key=state.guess_s):
        gpus = state.cluster.alone(int(state.width[job]))
        if gpus is not None:
            state.start(job, gpus, "shortest that fits")


def backfill_sharing(state: State) -> None:
    """The baseline's order with our sharing: what co-location alone is worth."""
    backfill(state, share=True)


@dataclass
class Steering:
    """Ours. Three rules, in this order.

    1. *Late* jobs, which the baseline's twin (`twin.py`) has started and we have not, go first, and each that does
       not fit holds nodes that nobody else may enter until it sits: the bound on waiting.
    2. The others go by predicted GPU-seconds over the time waited: short and narrow first, and everybody's turn
       comes. The first that does not fit gets a reservation as in EASY backfill.
    3. Whoever does not fit alone shares where the interference model, corrected by what was seen, says on its upper
       side that it pays; and only as long as no more wait with us than in the twin (`_pays`): a model that is wrong
       about this cluster is found out by its queue.

    `patience`: power of the predicted GPU-seconds; 0 would be first come, first served. `settle_s` is added to each
    wait, so that the newest are told apart by length rather than by seconds of waiting. `looks`: of the queue's
    order this many are tried, so that a decision's cost is bounded. `margin`: jobs by which we may be behind before
    sharing stops.
    """

    patience: float = 1.0
    settle_s: float = 600.0
    share: bool = True
    looks: int = 256
    margin: float = 3.0
    held: dict[int, B1] = field(default_factory=dict, init=False)
    """Nodes held for late jobs; kept between decisions, since nodes chosen anew each time are never empty."""

    def __call__(self, state: State) -> None:
        late = state.twin.late() if state.twin is not None else []
        share = self.share and self._pays(state)
        self.held = {job: nodes for job, nodes in self.held.items() if job in set(late)}
        for job in late:
            self._seat_late(state, job, share)
        taken = np.logical_or.reduce(list(self.held.values())) if self.held else None
        rest = sorted(set(state.queue).difference(late), key=lambda job: self.rank(state, job))
        if state.priority:
            rest.sort(key=lambda job: -state.priority[job])
        backfill(state, rest[: self.looks], share=share, taken=taken)

    def _pays(self, state: State) -> bool:
        """Whether sharing has paid so far: what waits here and what is lost to neighbours now, each in jobs, is no
        more than what waits in the twin, which shares nothing. A job that waits and a second that is lost cost the
        mean completion time the same, so this compares the two clusters' pace of it."""
        if state.twin is None:
            return True
        lost = sum(1.0 - float(state.rate[job]) for job in state.cluster.held)
        return len(state.queue) + lost <= state.twin.waiting + self.margin

    def rank(self, state: State, job: int) -> float:
        """The lower, the sooner."""
        waited_s = state.now_s - float(state.submit_s[job]) + self.settle_s
        return float((state.guess_s(job) * float(state.width[job])) ** self.patience / waited_s)

    def _seat_late(self, state: State, job: int, share: bool) -> None:
        others = [nodes for who, nodes in self.held.items() if who != job]
        taken = np.logical_or.reduce(others) if others else None
        width = int(state.width[job])
        gpus = state.cluster.alone(width, taken)
        shared = gpus is None and share
        if shared:
            seat = state.seat(job, taken, 0.0)
            gpus = None if seat is None else seat.gpus
        if gpus is not None:
            self.held.pop(job, None)
            state.start(job, gpus, "late: the baseline would have started it", shared=shared)
        elif job not in self.held:
            ends_s = state.gpu_ends_s()
            if taken is not None:
                ends_s[taken] = np.inf
            until_s, nodes = state.reservation(job, ends_s)
            if math.isfinite(until_s):
                self.held[job] = nodes
