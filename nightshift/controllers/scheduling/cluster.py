"""GPUs of a cluster and who sits on them: at most two jobs a GPU, gangs whole, small gangs in one node.

Everything is an array over nodes and GPUs, so a look at 10,000 GPUs costs what one at 64 does, times the memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from nightshift.collectors.base import Permanent
from nightshift.controllers.scheduling.interference import Experience

I8 = NDArray[np.int64]
F8 = NDArray[np.float64]
B1 = NDArray[np.bool_]
NOBODY = -1


@dataclass(frozen=True, slots=True)
class ClusterShape:
    """`nodes` of `per_node` GPUs, `per_rack` nodes a rack. `across_racks`: times slower a gang runs that spans
    racks."""

    nodes: int = 8
    per_node: int = 8
    per_rack: int = 4
    across_racks: float = 1.05

    @property
    def gpus(self) -> int:
        return self.nodes * self.per_node


@dataclass(frozen=True, slots=True)
class SharingRules:
    """When two jobs may share. `least_gain`: GPUs' worth of throughput gained per GPU shared, at the upper
    quantile of both slowdowns; `most_slowdown`: of either job, at the upper quantile."""

    least_gain: float = 0.4
    most_slowdown: float = 2.5


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a gang could share. `own`: times slower it is expected to run there; `lost`: seconds of work that the
    others together are expected to lose a second; `lost_gpus`: the same, each times its width."""

    gpus: I8
    own: float
    lost: float
    lost_gpus: float = 0.0


@dataclass(frozen=True, slots=True)
class Guest:
    """What whoever comes as a neighbour may cost. `work_s`: its expected length; `room(hosts)`: seconds that each
    may lose, and that each has left alone."""

    work_s: float
    room: Callable[[I8], tuple[F8, F8]]


@dataclass(frozen=True, slots=True)
class _Look:
    """`people`: jobs without a neighbour, `width` theirs; `index[node, gpu]`: which of them sits there, or one past
    the last where nobody may come, two past where nobody is; `room[node]`: GPUs that could take somebody."""

    people: I8
    width: I8
    index: I8
    room: I8


@dataclass
class Cluster:
    """`tenants[node, gpu, seat]`: numbers of jobs, or NOBODY. `closed`: GPUs that take nobody (degraded,
    cordoned)."""

    shape: ClusterShape
    tenants: I8 = field(init=False)
    closed: B1 = field(init=False)
    held: dict[int, I8] = field(default_factory=dict, init=False)
    """Job → flat indices of its GPUs."""
    _look: _Look | None = field(default=None, init=False)
    """What `shared` knows of who could take a neighbour, until somebody comes or goes."""

    def __post_init__(self) -> None:
        self.tenants = np.full((self.shape.nodes, self.shape.per_node, 2), NOBODY)
        self.closed = np.zeros((self.shape.nodes, self.shape.per_node), bool)
        self._seats = self.tenants.reshape(-1, 2)

    def put(self, job: int, gpus: I8) -> None:
        """Seats a job. Raises Permanent where a GPU is closed or full, or the job sits already."""
        seats = self._seats[gpus]
        if job in self.held or len(np.unique(gpus)) != len(gpus):
            raise Permanent(f"job {job} sits already, or asks twice for a GPU")
        if self.closed.reshape(-1)[gpus].any() or (seats != NOBODY).all(1).any():
            raise Permanent(f"job {job}: a GPU is closed or full")
        self._seats[gpus, np.where(seats[:, 0] == NOBODY, 0, 1)] = job
        self.held[job] = gpus
        self._look = None

    def take(self, job: int) -> None:
        """Frees a job's seats."""
        gpus = self.held.pop(job)
        seats = self._seats[gpus]
        self._seats[gpus] = np.where(seats == job, NOBODY, seats)
        self._look = None

    def close(self, gpus: I8, closed: bool = True) -> None:
        """Takes GPUs out of use for new jobs, or gives them back; who sits there stays."""
        self.closed.reshape(-1)[gpus] = closed
        self._look = None

    def free(self) -> B1:
        """`[nodes, per_node]`: open GPUs with nobody on them."""
        return np.asarray(self.empty() & ~self.closed)

    def empty(self) -> B1:
        """`[nodes, per_node]`: GPUs with nobody on them, open or not."""
        return np.asarray((self.tenants[..., 0] == NOBODY) & (self.tenants[..., 1] == NOBODY))

    def on(self, gpu: int) -> list[int]:
        """Who sits on a GPU."""
        return [job for job in self._seats[gpu].tolist() if job != NOBODY]

    def neighbours(self, job: int) -> list[int]:
        """Who shares a GPU with the job."""
        found = set(self._seats[self.held[job]].ravel().tolist())
        return sorted(found - {job, NOBODY})

    def spans_racks(self, gpus: I8) -> bool:
        racks = gpus // (self.shape.per_node * self.shape.per_rack)
        return bool((racks != racks[0]).any())

    # where a gang fits

    def alone(self, gpus: int, avoid: B1 | None = None) -> I8 | None:
        """Free GPUs for a gang: the fullest node that still fits it; a wide gang takes whole nodes, of one rack
        where that is possible. `avoid`: nodes that are kept for somebody else."""
        free = self.free()
        count = free.sum(1)
        if avoid is not None:
            count = np.where(avoid, 0, count)
        if gpus <= self.shape.per_node:
            # best fit: an emptier node stays whole for a gang that needs all of it
            fitting = np.where(count >= gpus, count, self.shape.per_node + 1)
            node = int(fitting.argmin())
            if fitting[node] > self.shape.per_node:
                return None
            return node * self.shape.per_node + np.flatnonzero(free[node])[:gpus]
        whole = np.flatnonzero(count == self.shape.per_node)
        need = -(-gpus // self.shape.per_node)
        if len(whole) < need:
            return None
        return self._of_nodes(self._close_by(whole, need), gpus)

    def _close_by(self, nodes: I8, need: int) -> I8:
        """`need` of these nodes, within one rack if one has enough (the one with the fewest to spare)."""
        racks, counts = np.unique(nodes // self.shape.per_rack, return_counts=True)
        fitting = counts >= need
        if fitting.any():
            rack = racks[fitting][counts[fitting].argmin()]
            return np.asarray(nodes[nodes // self.shape.per_rack == rack][:need])
        # no rack has enough: from the one with most of them on, so that it spans as few as it can
        by_size = np.argsort(-counts[np.searchsorted(racks, nodes // self.shape.per_rack)], kind="stable")
        return np.asarray(nodes[by_size[:need]])

    def _of_nodes(self, nodes: I8, gpus: int) -> I8:
        flat = nodes[:, None] * self.shape.per_node + np.arange(self.shape.per_node)
        return np.asarray(flat.ravel()[:gpus])

    def shared(
        self,
        job: int,
        gpus: int,
        loads: F8,
        kinds: I8,
        experience: Experience,
        rules: SharingRules,
        avoid: B1 | None = None,
        guest: Guest | None = None,
    ) -> Seat | None:
        """GPUs for a gang of which some have a job already, where sharing pays at the upper quantile: memory
        first, then each side's slowdown, then what it gains less what the others lose, each with its whole gang.
        `guest`: also nobody beside whom it would stay longer than they, or cost them more than they can spare."""
        look = self._look = self._look or self._singles()
        people, room = look.people, look.room
        per_node, need = min(gpus, self.shape.per_node), -(-gpus // self.shape.per_node)
        roomy = room >= per_node if avoid is None else (room >= per_node) & ~avoid
        if not len(people) or np.count_nonzero(roomy) < need:
            return None
        mine, theirs, model, own = loads[job], loads[people], experience.model, int(kinds[job])
        # both at the upper quantile, to decide; what is told of the seat later is typical
        theirs_slower = model.slowdown(theirs, mine, experience.shift(kinds[people], own, upper=True))
        mine_slower = model.slowdown(mine, theirs, experience.shift(own, kinds[people], upper=True))
        good = model.fits_memory(mine, theirs) & (np.maximum(theirs_slower, mine_slower) <= rules.most_slowdown)
        if guest is not None and good.any():
            stay_s, at = guest.work_s * mine_slower, np.flatnonzero(good)
            spare_s, left_s = guest.room(people[at])
            lost_s = stay_s[at] * (1.0 - 1.0 / theirs_slower[at])
            good[at] = (lost_s <= spare_s) & (stay_s[at] <= left_s * theirs_slower[at])
        if not good.any():
            return None
        loss = np.where(good, look.width * (1.0 - 1.0 / theirs_slower), np.inf)
        # ranked GPU by GPU, while a neighbour loses once however many of its GPUs are shared: each bears its part.
        # The last two are places of `_Look.index`: nobody may come, nobody is there
        share = np.append(loss / np.minimum(look.width, self.shape.per_node), (np.inf, 0.0))
        cost = share[look.index]
        if avoid is not None:
            cost = np.where(avoid[:, None], np.inf, cost)
        order = np.argsort(cost, axis=1, kind="stable")
        ranked = np.take_along_axis(cost, order, 1)
        total = ranked[:, :per_node].sum(1)
        # the least loss need not gain most, since the slowest neighbour sets the whole gang's pace: a few more are
        # tried. Of several nodes only the best ones are, else the tries would be every choice of them
        best = np.argsort(total, kind="stable")[: need + 7]
        best = best[np.isfinite(total[best])]
        tries = [best[k : k + 1] for k in range(len(best))] if need == 1 else [best[:need]] * (len(best) >= need)
        for nodes in tries:
            flat = (nodes[:, None] * self.shape.per_node + order[nodes][:, :per_node]).ravel()[:gpus]
            seats = self._seats[flat]
            met = np.unique(seats.max(1))
            met = np.searchsorted(people, met[met != NOBODY])
            # all of them are free after all: nobody is shared with
            if not len(met):
                return Seat(flat, 1.0, 0.0)
            gain = gpus / float(mine_slower[met].max()) - float(loss[met].sum())
            if gain >= rules.least_gain * gpus:
                return _typical(flat, mine, theirs[met], own, kinds[people[met]], look.width[met], experience)
        return None

    def _singles(self) -> _Look:
        used = self.tenants != NOBODY
        # pairs are what was measured, so a job with a neighbour on any GPU takes no other on the rest
        paired = np.unique(self.tenants[used.all(2)])
        resident = self.tenants.max(2)
        one = (used.sum(2) == 1) & ~self.closed & ~np.isin(resident, paired)
        people = np.unique(resident[one])
        index = np.full(resident.shape, len(people))
        index[one] = np.searchsorted(people, resident[one])
        free = self.free()
        index[free] = len(people) + 1
        width = np.asarray([len(self.held[int(job)]) for job in people], np.int64)
        return _Look(people, width, index, (one | free).sum(1))


def _typical(gpus: I8, mine: F8, theirs: F8, own: int, kinds: I8, width: I8, experience: Experience) -> Seat:
    """A seat beside these, with what it typically costs. `own`, `kinds`: of the job and of its neighbours."""
    slower = experience.model.slowdown(mine, theirs, experience.shift(own, kinds, upper=False))
    lost = 1.0 - 1.0 / experience.model.slowdown(theirs, mine, experience.shift(kinds, own, upper=False))
    return Seat(gpus, float(slower.max()), float(lost.sum()), float((lost * width).sum()))
