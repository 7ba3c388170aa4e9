"""Short work first within backfill's own longest wait: measured beside the order that ships, stops no job.

EASY backfill passes over wide gangs each time a backfilled job outlasts its prediction, so they wait several times
longer than all others. This order gives such a gang firm nodes, and spends on short work what that gains. Its
reference is a twin (`twin.py`): plain backfill of the same jobs, so the bound is what they would have waited there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from nightshift.controllers.scheduling.cluster import B1
from nightshift.controllers.scheduling.policies import Steering, backfill, firm_nodes
from nightshift.controllers.scheduling.state import QueueState


@dataclass
class WithinTail:
    """Needs a twin (`QuickTwin`); traces have no priorities. Five rules, in this order.

    1. Until jobs in the twin have waited `from_pressure` times as long as jobs have worked, it is plain backfill.
    2. *Due* is who has waited `share` of the longest wait in the twin so far. The due start in order of submission.
       The first that does not fit holds nodes, until others are expected to be free twice as soon.
    3. Gangs of several nodes are next where whole nodes are free: it costs most to empty nodes, so all gangs that
       wait use the nodes that were emptied for one.
    4. The others follow by expected work (s x GPUs, `Durations.alike`), with EASY's reservation for the first that
       does not fit.
    5. A job enters held nodes only if it is gone in time at the quantile `sure` of its duration.
    """

    share: float = 0.92
    sure: float = 0.9
    from_pressure: float = 3.0
    looks: int = 256
    """Of the order so many are tried, so that a decision's cost is bounded."""
    held: tuple[int, B1] | None = field(default=None, init=False)
    """A due job and the nodes held for it."""
    _plain: Steering = field(default_factory=lambda: Steering(share=False), init=False)
    _has_begun: bool = field(default=False, init=False)

    def __call__(self, state: QueueState) -> None:
        assert state.twin is not None
        # once its course has left the twin's it never turns back: who waits then would not wait in the twin
        self._has_begun = self._has_begun or state.twin.pressure >= self.from_pressure
        if not self._has_begun:
            self._plain(state)
            return
        due, work = self.due(state), state.expected_s()
        rest = sorted(
            (job for job in state.queue if job not in due), key=lambda job: work[job] * float(state.width[job])
        )
        if self.held is not None and self.held[0] not in due:
            self.held = None
        for job in due:
            self._seat(state, job)
        for job in rest:
            if state.width[job] > state.cluster.shape.per_node:
                _started(state, job, None if self.held is None else self.held[1], "its nodes are free")
        waiting = set(state.queue)
        self._fill(state, [job for job in (*due, *rest) if job in waiting][: self.looks])

    def due(self, state: QueueState) -> list[int]:
        """Who is passed over no longer, first submitted first."""
        assert state.twin is not None
        least_s = self.share * state.twin.longest_wait_s
        return [job for job in state.queue if state.waited_s(job) >= least_s]

    def _seat(self, state: QueueState, job: int) -> None:
        """Starts a due job, or gives it nodes to hold."""
        taken = None if self.held is None else self.held[1]
        if self.held is not None and self.held[0] != job:
            _started(state, job, taken, "due")
        elif (taken is not None and _started(state, job, ~taken, "due")) or _started(state, job, None, "due"):
            self.held = None
        else:
            nodes = firm_nodes(state, job, taken)
            self.held = None if nodes is None else (job, nodes)

    def _fill(self, state: QueueState, order: Sequence[int]) -> None:
        if self.held is None:
            backfill(state, order)
            return
        first, held = self.held
        ends_s = state.gpu_ends_s()
        ends_s[~held] = np.inf
        until_s = state.reservation(first, ends_s)[0]

        def sure(job: int) -> bool:
            return state.now_s + state.guess_s(job, self.sure) <= until_s

        backfill(state, [job for job in order if job != first], closed=held, sure=sure)


def _started(state: QueueState, job: int, avoid: B1 | None, why: str) -> bool:
    gpus = state.cluster.alone(int(state.width[job]), avoid)
    if gpus is not None:
        state.start(job, gpus, why)
    return gpus is not None
