"""One turn of scheduling in a live cluster: what waits is seen, ordered, steered within the shield, and read back.

A turn opens first what nobody holds any more (after a crash: what the dead process held). Then every waiting job
with a gate of ours gets one decision with its receipt, stored before anything is written, completed when it was
read back. In shadow the baseline is executed: the gate opens, as if nobody steered. A gate that cannot be written
is left as it stands and comes again; by its age it opens in any case.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np

from nightshift.collectors.base import Permanent, Temporary
from nightshift.controllers.decision import ControlDecision, ControlPolicy, Mode, Trust, confirm, decide, plain
from nightshift.controllers.scheduling.cluster import ClusterShape, Seat
from nightshift.controllers.scheduling.interference import UNKNOWN, Load, columns
from nightshift.controllers.scheduling.policies import Steering, Worth, backfill
from nightshift.controllers.scheduling.predict import Durations
from nightshift.controllers.scheduling.state import QueueState, Start
from nightshift.controllers.scheduling.steer import InOrder, Let, Steer, SteerShield, SteerVerb, WaitingJob
from nightshift.controllers.scheduling.whatif import occupied


@dataclass(frozen=True, slots=True)
class JobSeen:
    """A job of the queue or on GPUs. `gpus`: 0 where not known. `gate`: what opens it, None where it has none of
    ours; `nodes`: GPUs held by node's place, empty while it waits. `watts`: what it would add to the rack's draw.
    `label`: what its owner calls it and its repeats; `priority`: as people set it; `workload`: Kueue's, for
    boosts."""

    name: str
    queue: str
    user: str
    submitted_s: float
    gpus: int
    gate: object | None = None
    nodes: Mapping[int, int] = field(default_factory=dict)
    started_s: float = math.nan
    evicts: bool = True
    load: Load = UNKNOWN
    watts: float = 0.0
    label: str = ""
    priority: int = 0
    opted_in: bool = True
    workload: str = ""
    placeable: bool = False
    """Its gate is a pod's scheduling gate, so nodes can be preferred before it comes off."""
    share: str = ""
    """What its owner and its queue's administrator opted in to: `host`, another job beside it; `guest`, also to be
    that job, which may be stopped and started again; empty: neither."""
    kueue_queue: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The cluster as read. `closed[node]`: GPUs of a node that take nobody (degraded, cordoned). `slope_w`: rise of
    the rack's draw allowed a minute. `names`: of the nodes, by place."""

    at_s: float
    shape: ClusterShape
    jobs: Sequence[JobSeen]
    closed: Mapping[int, int] = field(default_factory=dict)
    slope_w: float = math.inf
    names: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    """Their host names, by which a pod can prefer them; empty where nobody asks."""
    shares: frozenset[int] = frozenset()
    """Nodes that give one GPU to more than one pod (time slices, MPS), by place."""
    sick: frozenset[int] = frozenset()
    """Nodes that take jobs though an incident is open on them, by place."""


class Keep(Protocol):
    """Stores a receipt (`agent.store.receipts.Receipts.keep`)."""

    def __call__(self, decision: ControlDecision, *, chance: float = 0.0, treated: bool = False) -> None: ...


class QueueDoors(Protocol):
    """Opens, holds and boosts: `controllers.actuators.kube_queue.KubernetesQueue`."""

    def release_overdue(self) -> Sequence[object]: ...
    def open(self, gate: object) -> bool: ...
    def hold(self, gate: object, until_s: float) -> None: ...
    def prefer(self, gate: object, prefer: Sequence[str], avoid: Sequence[str]) -> None: ...
    def boost(self, workload: str, value: int) -> str: ...
    def read_back(self, gate: object) -> Steer: ...


@dataclass
class SchedulingController:
    """`doors` None: writes nothing, and decides on every job that waits as if each had a gate. `standing`: how far
    the policy is trusted for a job now; `keep`: stores receipts."""

    doors: QueueDoors | None
    keep: Keep
    rng: np.random.Generator
    standing: Callable[[str], Trust] = lambda job: Trust()
    policy: ControlPolicy[WaitingJob, Steer] = field(default_factory=InOrder)
    baseline: ControlPolicy[WaitingJob, Steer] = field(default_factory=Let)
    shield: SteerShield = field(default_factory=SteerShield)
    bound_s: float = 4 * 3600.0
    durations: Durations = field(default_factory=Durations)
    failures: dict[str, str] = field(default_factory=dict, init=False)
    """Gates that could not be written in the last turn, and why."""
    differed: list[str] = field(default_factory=list, init=False)
    """Jobs for which policy and baseline would have done different things in the last turn, within the shield."""
    _running: dict[str, JobSeen] = field(default_factory=dict, init=False)
    _risen: list[tuple[float, float]] = field(default_factory=list, init=False)
    _first: set[str] = field(default_factory=set, init=False)
    """Whom plain backfill would have started in an earlier turn."""
    _beside: dict[str, str] = field(default_factory=dict, init=False)
    _places: dict[str, tuple[int, ...]] = field(default_factory=dict, init=False)
    """On which nodes our order would start whom."""
    _shared: set[str] = field(default_factory=set, init=False)

    def turn(self, snapshot: Snapshot) -> list[ControlDecision]:
        """Every gated job once, in our order. Never raises for one job's sake."""
        self.failures, self.differed = {}, []
        try:
            if self.doors is not None:
                self.doors.release_overdue()
        except (Temporary, Permanent) as error:
            self.failures["overdue"] = str(error)
        self._learn(snapshot)
        planned, order, late = self._plan(snapshot)
        healthy = snapshot.shape.gpus - sum(snapshot.closed.values())
        # the slope is of a minute
        self._risen = [(at_s, w) for at_s, w in self._risen if snapshot.at_s - at_s < 60.0]
        receipts = []
        for place, job in enumerate(order):
            if self.doors is not None and job.gate is None:
                continue
            seen = self._seen(snapshot, job, place, job.name in planned, job.name in late, healthy)
            receipts.append(self._decide(job, seen))
        return receipts

    def _decide(self, job: JobSeen, seen: WaitingJob) -> ControlDecision:
        trust = self.standing(job.name)
        treated = bool(self.rng.random() < trust.chance)
        action, receipt = decide(
            "scheduling", trust.mode, self.policy, self.baseline, self.shield, seen, self.rng, seen.now_s,
            treated=treated, chance=trust.designed,
        )  # fmt: skip
        proposed = self.shield.decide(
            seen, Steer(**{**receipt.proposed, "verb": SteerVerb(receipt.proposed["verb"])})
        )
        same = plain(proposed.action) == receipt.baseline
        other = receipt.baseline["verb"] != proposed.action.verb  # a place is no order: it moves nobody's start
        if other and (trust.designed > 0 or trust.mode is Mode.SHADOW):
            self.differed.append(job.name)
        # the coin is the epoch's (`epochs`), and so is its receipt: within one, nothing is drawn of a single job
        counts = same or treated
        chance = float(counts)
        self.keep(receipt, chance=chance, treated=counts)
        done = self._carry_out(job, action, receipt)
        if done is not None:
            receipt = done
            self.keep(receipt, chance=chance, treated=counts)
        return receipt

    def _carry_out(self, job: JobSeen, action: Steer, receipt: ControlDecision) -> ControlDecision | None:
        if self.doors is None:
            return None
        assert job.gate is not None
        try:
            if action.verb is SteerVerb.START:
                if action.prefer or action.avoid:
                    write = partial(self.doors.prefer, job.gate, action.prefer, action.avoid)
                    self._aside(job, write, "started without its preferred nodes")
                self.doors.open(job.gate)
                self._risen.append((receipt.at_s, job.watts))
            else:
                self.doors.hold(job.gate, action.until_s)
                if action.boost and job.workload:
                    move = partial(self.doors.boost, job.workload, action.boost)
                    self._aside(job, move, "held without its place in Kueue's queue")
            return confirm(receipt, self.doors.read_back(job.gate))
        except (Temporary, Permanent) as error:
            self.failures[job.name] = str(error)
            return None

    def _aside(self, job: JobSeen, write: Callable[[], object], without: str) -> None:
        """What cannot be written beside a start or a hold keeps neither from being done and read back."""
        try:
            write()
        except (Temporary, Permanent) as error:
            self.failures[job.name] = f"{without}: {error}"

    def _seen(
        self, snapshot: Snapshot, job: JobSeen, place: int, planned: bool, late: bool, healthy: int
    ) -> WaitingJob:
        guess_s = self.durations.quantile(job.user, job.gpus, job.submitted_s, 0.5, name=job.label)
        ramp_w = sum(watts for _, watts in self._risen)
        return WaitingJob(
            job.queue, job.name, snapshot.at_s, job.submitted_s, self.bound_s, float(job.gpus or math.nan),
            float(healthy), guess_s, planned, place, late, job.opted_in, job.evicts, ramp_w, snapshot.slope_w,
            job.watts, self._beside.get(job.name, ""), job.name in self._shared, job.placeable,
            _hosts(snapshot, self._places.get(job.name, ())), _hosts(snapshot, sorted(snapshot.sick)),
        )  # fmt: skip

    def _learn(self, snapshot: Snapshot) -> None:
        """A job that ran and is gone has ended: its run is a duration."""
        now = {job.name: job for job in snapshot.jobs if job.nodes}
        for name, job in self._running.items():
            if name not in now and math.isfinite(job.started_s):
                # by the first look without it, so at most a turn too long
                self.durations.learn(job.user, job.gpus, job.submitted_s, snapshot.at_s - job.started_s, job.label)
        self._running = now

    def _plan(self, snapshot: Snapshot) -> tuple[set[str], list[JobSeen], set[str]]:
        """What our order would start now, all that wait in that order, and whom plain backfill would start."""
        jobs = sorted(snapshot.jobs, key=lambda job: (-job.priority, job.submitted_s, job.name))
        # the order puts nobody beside anybody: a GPU goes to one pod, but where its node shares it (`_share`)
        state, order = self._state(snapshot, jobs), Steering(share=False)
        waiting = list(state.queue)
        plain, first = self._state(snapshot, jobs), set[str]()
        plain.begin = lambda start: first.add(jobs[start.job].name)
        backfill(plain)
        # late is who backfill would have started in an earlier turn: in this one we still may
        late, self._first = self._first & {jobs[number].name for number in waiting}, self._first | first
        self._first &= {job.name for job in jobs}

        places = {number: place for place, number in enumerate(order.order(state))}

        def rank(number: int) -> tuple[bool, int, int]:
            return jobs[number].name not in late, -jobs[number].priority, places[number]

        self._places, self._beside, self._shared, per_node = {}, {}, set(), snapshot.shape.per_node

        def begin(start: Start) -> None:
            self._places[jobs[start.job].name] = tuple(sorted(set((start.gpus // per_node).tolist())))

        state.begin = begin
        order(state)
        if snapshot.shares:
            self._share(snapshot, jobs, state)
        planned = {jobs[number].name for number in waiting if number not in state.queue}
        self._suggest(snapshot, jobs, state)
        # after all others: how many GPUs it takes is not known, so no order can place it, and the baseline decides
        unknown = [job for job in jobs if not job.gpus and not job.nodes]
        return planned, [*(jobs[number] for number in sorted(waiting, key=rank)), *unknown], late

    def _share(self, snapshot: Snapshot, jobs: Sequence[JobSeen], state: QueueState) -> None:
        """Seats who does not fit alone beside a job that it does not slow much, on nodes that share GPUs anyway."""
        # only on nodes that give a GPU to several pods: elsewhere the device plugin would not place them so; and
        # not on nodes with a job that did not opt in
        elsewhere = np.ones(snapshot.shape.nodes, bool)
        elsewhere[sorted(snapshot.shares - snapshot.sick)] = False
        elsewhere[sorted({node for job in jobs if not job.share for node in job.nodes})] = True
        worth = Worth(state)
        for number in list(state.queue):
            may = jobs[number].placeable and jobs[number].share == "guest"
            seat = state.seat(number, elsewhere) if may else None
            if seat is not None and worth.sharing(number, seat):
                self._shared.add(jobs[number].name)
                self._said(snapshot, jobs, state, number, seat)
                state.start(number, seat.gpus, "shares with a complementary job", shared=True)

    def _suggest(self, snapshot: Snapshot, jobs: Sequence[JobSeen], state: QueueState) -> None:
        """Who could share GPUs with whom now, by the model's upper side; said on the receipt, done by nobody."""
        for number in state.queue:
            seat = state.seat(number)
            if seat is not None:
                self._said(snapshot, jobs, state, number, seat)

    def _said(
        self, snapshot: Snapshot, jobs: Sequence[JobSeen], state: QueueState, number: int, seat: Seat
    ) -> None:
        who = sorted({jobs[other].name for gpu in seat.gpus.tolist() for other in state.cluster.on(gpu)})
        nodes = sorted({snapshot.names[gpu // snapshot.shape.per_node] for gpu in seat.gpus.tolist()})
        said = f"{', '.join(who)} on {', '.join(nodes)}, {seat.own:.2f} times slower"
        self._beside[jobs[number].name] = said

    def _state(self, snapshot: Snapshot, jobs: Sequence[JobSeen]) -> QueueState:
        running = {number: job.nodes for number, job in enumerate(jobs) if job.nodes}
        cluster = occupied(snapshot.shape, running, snapshot.closed)
        ran_s = [snapshot.at_s - job.started_s if math.isfinite(job.started_s) else 0.0 for job in jobs]
        return QueueState(
            cluster,
            np.asarray([job.submitted_s for job in jobs]),
            np.asarray([job.gpus for job in jobs], np.int64),
            [job.user for job in jobs],
            columns([job.load for job in jobs]),
            snapshot.at_s,
            [number for number, job in enumerate(jobs) if not job.nodes and job.gpus],
            np.asarray(ran_s, float),
            np.ones(len(jobs)),
            self.durations,
            name=[job.label for job in jobs],
            priority=[job.priority for job in jobs],
        )


def _hosts(snapshot: Snapshot, places: Sequence[int]) -> tuple[str, ...]:
    return tuple(snapshot.hosts[place] for place in places if place < len(snapshot.hosts))
