"""Orders of a queue, from the plainest to ours. Each looks at a `QueueState` and starts what it would start now.

None evicts, none sees a duration before its end. Reservations follow EASY backfill (Lifka 1995; Mu'alem and
Feitelson 2001): whoever is first and does not fit gets a time and nodes, and nobody may be put in between who is
expected to be in the way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field

import numpy as np

from nightshift.controllers.scheduling.cluster import B1, F8, I8, Seat
from nightshift.controllers.scheduling.state import BOLDLY, CAREFULLY, QueueState

Policy = Callable[[QueueState], None]
MOVES = 2.0
"""Other nodes are held for a late job where they are expected to be free so many times sooner."""
CAREFUL = 0.7
"""Quantile of the duration by which the cost of sharing is told: long jobs share for long."""


def fifo(state: QueueState) -> None:
    """First come, first served: whoever does not fit stops everybody behind."""
    while state.queue:
        gpus = state.cluster.alone(int(state.width[state.queue[0]]))
        if gpus is None:
            return
        state.start(state.queue[0], gpus, "first in the queue")


def backfill(
    state: QueueState,
    order: Sequence[int] | None = None,
    *,
    share: bool = False,
    closed: B1 | None = None,
    sure: Callable[[int], bool] = lambda job: False,
) -> None:
    """EASY backfill along an order (none: by submission), by predicted durations. `closed`: nodes closed to all but
    those that are `sure` to be gone in time."""
    waiting = list(state.queue if order is None else order)
    # starts only take room away, so a width that fitted nowhere once fits nowhere in this pass; long queues are of
    # few widths. Sharing depends on the job itself, so there nothing is skipped.
    failed: set[tuple[int, bool, bool]] = set()
    widest = math.inf if share else _widest(state)
    blocked: B1 | None = None
    until_s = math.inf
    worth = Worth(state)
    for job in waiting:
        width = int(state.width[job])
        if width > widest and blocked is not None:
            continue
        if (width, True, True) in failed:  # nowhere at all, however short it is
            continue
        clear = blocked is None or state.now_s + state.guess_s(job) <= until_s
        shut = None if closed is None or sure(job) else closed
        if (width, clear, shut is None) in failed:
            continue
        avoid = shut if clear else _either(blocked, shut)
        gpus = state.cluster.alone(width, avoid)
        if gpus is not None:
            state.start(job, gpus, "fits now" if blocked is None else "fits beside the reservation")
        elif not (share and _joins(state, job, avoid, worth)):
            if not share:
                failed.add((width, clear, shut is None))
            if blocked is None:
                until_s, blocked = _reserved(state, job, closed)


def _either(some: B1 | None, others: B1 | None) -> B1 | None:
    return others if some is None else some if others is None else some | others


def _joins(state: QueueState, job: int, avoid: B1 | None, worth: Worth) -> bool:
    """Starts a job beside others where that pays."""
    seat = state.seat(job, avoid)
    if seat is None or not worth.sharing(job, seat):
        return False
    state.start(job, seat.gpus, "shares with a complementary job", shared=True)
    return True


def _reserved(state: QueueState, job: int, taken: B1 | None) -> tuple[float, B1]:
    """When and on which nodes it will fit, but for those that are closed to all."""
    ends_s = state.gpu_ends_s()
    if taken is not None:
        ends_s[taken] = np.inf
    return state.reservation(job, ends_s)


def _widest(state: QueueState) -> float:
    """More GPUs than this fit nowhere now, whatever is reserved; starts only make it less."""
    free = int(state.cluster.free().sum(1).max())
    return math.inf if free == state.cluster.shape.per_node else float(free)


@dataclass
class Worth:
    """Whether sharing now shortens the sum of completion times, as far as that can be told, within one decision.

    It saves the job the time until GPUs are expected to be free for it, and everybody behind it the GPU-seconds
    that are then not taken (its own less those by which its neighbours stay longer) times their number over the
    cluster's. It costs what the job and its
    neighbours lose while they share. So short jobs share rather than wait, and long ones only where many wait.
    """

    state: QueueState
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


def shortest(state: QueueState) -> None:
    """Shortest predicted job first, without reservations."""
    for job in sorted(state.queue, key=state.guess_s):
        gpus = state.cluster.alone(int(state.width[job]))
        if gpus is not None:
            state.start(job, gpus, "shortest that fits")


def backfill_sharing(state: QueueState) -> None:
    """The baseline's order with our sharing: what co-location alone is worth."""
    backfill(state, share=True)


@dataclass
class Steering:
    """Ours: plain backfill, job by job, and guests beside it where that costs nobody. Four rules, in this order.

    1. *Late* jobs, which the baseline's twin (`twin.py`) has started and we have not, start first, on the GPUs that
       they have there where those are free. Without guests this is the twin's plan exactly; the first that does not
       fit holds nodes that nobody else may enter until it sits, or shares if that costs it less than waiting.
    2. *Guests* sit beside a running job: only one that is all but sure to leave before its
       hosts, and only while each host still ends no later than in the twin, but for `grace` (`State.spare_s`);
       none while a late job finds no place.
    3. The first of the queue keeps its reservation (EASY); behind it short and narrow go first, by predicted
       GPU-seconds over the time waited (Tsafrir et al. 2007 backfill shortest first), so everybody's turn comes.
    4. Guests come only where there is much to win: where the twin's jobs have waited `from_pressure` times as long
       as jobs have worked, more boldly from `bold_pressure` on, but not on the nodes that the first of the queue
       needs whole (`State.seat`); and only as long as no more wait with us than in
       the twin (`_pays`): a model that is wrong about this cluster is found out by its queue. A guest changes who
       sits with whom for as long as anybody of them runs, and so when whole nodes come free for wide gangs: by luck
       sooner or later than in the twin. Only where most of the waiting goes away does that not matter to the tail.

    `settle_s` is added to each wait, so that the newest are told apart by length rather than by seconds of waiting.
    `looks`: of the queue's order this many are tried, so that a decision's cost is bounded. `margin`: jobs by which
    we may be behind before sharing stops.
    """

    settle_s: float = 600.0
    share: bool = True
    looks: int = 256
    margin: float = 3.0
    from_pressure: float = 3.0
    bold_pressure: float = 4.0
    held: tuple[int, B1] | None = field(default=None, init=False)
    """A late job and the nodes held for it; kept between decisions, since nodes chosen anew are never empty."""

    def __call__(self, state: QueueState) -> None:
        late = state.twin.late() if state.twin is not None else []
        share = self.share and self._pays(state)
        if self.held is not None and self.held[0] not in late:
            self.held = None
        for job in late:
            self._seat_late(state, job, share)
        if not share and state.twin is not None and state.twin.is_like(state.cluster):
            # the twin's cluster is ours, so what backfill starts in it has started. A second look would start more:
            # the first starts have moved the reservation, and jobs begun early made waits longer without one guest.
            return
        rest = self.order(state, set(late))
        taken = None if self.held is None else self.held[1]
        share = share and not any(job in late for job in state.queue)
        backfill(state, rest[: self.looks], share=share, closed=taken)

    def order(self, state: QueueState, late: Set[int] = frozenset()) -> list[int]:
        """Who waits and is not late: the first of the queue, then by rank; higher priority goes before both."""
        rest = [job for job in state.queue if job not in late]
        # the first keeps its place whatever its rank: the reservation is its, and short jobs would pass it for ever
        rest[1:] = sorted(rest[1:], key=lambda job: self.rank(state, job))
        if state.priority:
            rest.sort(key=lambda job: -state.priority[job])
        return rest

    def _pays(self, state: QueueState) -> bool:
        """Whether sharing is worth its risk and has paid so far: what waits here and what is lost to neighbours
        now, each in jobs, is no more than what waits in the twin, which shares nothing. A job that waits and a
        second that is lost cost the mean completion time the same, so this compares the clusters' pace of it."""
        if state.twin is None:
            return True
        pressure = state.twin.pressure
        state.care = BOLDLY if pressure >= self.bold_pressure else CAREFULLY
        lost = sum(1.0 - float(state.rate[job]) for job in state.cluster.held)
        return pressure >= self.from_pressure and len(state.queue) + lost <= state.twin.waiting + self.margin

    def rank(self, state: QueueState, job: int) -> float:
        """The lower, the sooner."""
        waited_s = state.now_s - float(state.submit_s[job]) + self.settle_s
        return state.guess_s(job) * float(state.width[job]) / waited_s

    def _seat_late(self, state: QueueState, job: int, share: bool) -> None:
        # nodes held for another late job; None also where the nodes are held for this one
        taken = None if self.held is None or self.held[0] == job else self.held[1]
        gpus = _place_of_late(state, job, taken)
        shared = gpus is None and share
        if shared:
            seat = state.seat(job, taken, late=True)
            gpus = None if seat is None else seat.gpus
        if gpus is not None:
            self.held = None if taken is None else self.held
            state.start(job, gpus, "late: the baseline would have started it", shared=shared)
        elif taken is None:
            self._hold(state, job)

    def _hold(self, state: QueueState, job: int) -> None:
        """Keeps nodes for a late job, or the ones that it has."""
        nodes = firm_nodes(state, job, None if self.held is None else self.held[1])
        self.held = None if nodes is None else (job, nodes)


def firm_nodes(state: QueueState, job: int, held: B1 | None) -> B1 | None:
    """Nodes `[nodes]` to keep for a job that does not fit: those `held` for it, or others that are expected to be
    free so much sooner (`MOVES`). None where it fits on none."""
    ends_s = state.gpu_ends_s()
    until_s, nodes = state.reservation(job, ends_s)
    if not math.isfinite(until_s):
        return None
    if held is not None:
        ends_s[~held] = np.inf
        # who moves gives up nodes that have been emptying for it: only for others that are free far sooner
        if state.reservation(job, ends_s)[0] - state.now_s <= MOVES * (until_s - state.now_s):
            return held
    return nodes


def _place_of_late(state: QueueState, job: int, taken: B1 | None) -> I8 | None:
    """Free GPUs for a late job. Those that it has in the twin come first: on them our cluster stays the twin's."""
    assert state.twin is not None
    free = state.cluster.free()
    is_open, there = free if taken is None else free & ~taken[:, None], state.twin.gpus[job]
    return there if is_open.reshape(-1)[there].all() else state.cluster.alone(int(state.width[job]), taken)
