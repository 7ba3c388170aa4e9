"""Divides a stretch of wall time of every GPU among the accounts: pure, and exact by construction.

Time is cut wherever anything begins or ends; each piece of each GPU goes to the first rule that fits. What several
holders share (MIG instances, time slices) is divided among them. Nothing is estimated here.
"""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from nightshift.agent.goodput.accounts import Account


class LedgerEntry(NamedTuple):
    """What GPU-seconds are summed by. Empty: none, or not known."""

    account: Account
    job: str = ""
    node: str = ""
    cause: str = ""
    incident: str = ""


class PlaceState(IntEnum):
    """What can be said of a GPU beside who holds it. The least that covers a moment counts."""

    REPAIR = 0
    FAULT = 1
    MAINTENANCE = 2
    UNOBSERVED = 3
    IDLE = 4


@dataclass(frozen=True, slots=True)
class PlaceMark:
    """A GPU is in a state from `start_s` to `end_s` (Unix s)."""

    start_s: float
    end_s: float
    state: PlaceState
    cause: str = ""
    incident: str = ""


@dataclass(frozen=True, slots=True)
class GpuHold:
    """A job holds a share of a GPU. `share` NaN: an equal part of what no other takes for sure."""

    start_s: float
    end_s: float
    job: str
    share: float = float("nan")


@dataclass(frozen=True)
class GpuGroup:
    """GPUs of one node about which everything is alike. `present`: when they belonged to the fleet."""

    count: int
    node: str
    present: tuple[tuple[float, float], ...]
    holds: tuple[GpuHold, ...] = ()
    marks: tuple[PlaceMark, ...] = ()


@dataclass(frozen=True, slots=True)
class Segment:
    """What a job did in a stretch of time: `parts` are (account, share), together 1. `stopped`: a fault of a place
    may explain more than the job's own signals do."""

    start_s: float
    end_s: float
    parts: tuple[tuple[Account, float], ...]
    cause: str = ""
    incident: str = ""

    @property
    def in_step(self) -> bool:
        return self.parts[0][0] in IN_STEP


IN_STEP = frozenset(
    {
        *(Account.PRODUCTIVE, Account.UNATTRIBUTED, Account.DATA_WAIT, Account.EXPOSED_COMM, Account.STRAGGLING),
        Account.RECOMPUTED,
    }
)


@dataclass(frozen=True)
class JobTime:
    """A job's segments, by time, without overlaps. Where none is, it is not known what the job did; `steps`: it has
    reported steps at all."""

    segments: tuple[Segment, ...] = ()
    steps: bool = False
    starts: tuple[float, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "starts", tuple(segment.start_s for segment in self.segments))

    def at(self, t_s: float) -> Segment | None:
        place = bisect.bisect_right(self.starts, t_s) - 1
        found = self.segments[place] if place >= 0 else None
        return found if found is not None and t_s < found.end_s else None

    def between(self, start_s: float, end_s: float) -> Sequence[Segment]:
        first = max(0, bisect.bisect_right(self.starts, start_s) - 1)
        return self.segments[first : bisect.bisect_left(self.starts, end_s)]


Sums = dict[LedgerEntry, float]
_UNKNOWN_JOB = JobTime()


def settle(groups: Iterable[GpuGroup], jobs: Mapping[str, JobTime], start_s: float, end_s: float) -> Sums:
    """GPU-seconds of [start_s, end_s) by entry.

    >>> step = Segment(10.0, 60.0, ((Account.UNATTRIBUTED, 1.0),))
    >>> group = GpuGroup(8, "n1", ((0.0, 100.0),), (GpuHold(0.0, 60.0, "ml/a"),))
    >>> for entry, spent in settle([group], {"ml/a": JobTime((step,), True)}, 0.0, 100.0).items():
    ...     print(entry.account, entry.job, spent)
    unexplained ml/a 80.0
    unattributed ml/a 400.0
    free  320.0
    """
    sums: Sums = defaultdict(float)
    for group in groups:
        for begin_s, finish_s in _pieces(group, jobs, start_s, end_s):
            spent = (finish_s - begin_s) * group.count
            for entry, share in _divide(group, jobs, (begin_s + finish_s) / 2):
                sums[entry] += spent * share
    return dict(sums)


def _pieces(
    group: GpuGroup, jobs: Mapping[str, JobTime], start_s: float, end_s: float
) -> Iterator[tuple[float, float]]:
    """The stretches of the window in which the group is there, cut wherever anything changes."""
    cuts: set[float] = set()
    for mark in group.marks:
        cuts.update((mark.start_s, mark.end_s))
    for hold in group.holds:
        cuts.update((hold.start_s, hold.end_s))
        for segment in jobs.get(hold.job, _UNKNOWN_JOB).between(max(start_s, hold.start_s), min(end_s, hold.end_s)):
            cuts.update((segment.start_s, segment.end_s))
    order = sorted(cuts)
    for since_s, until_s in group.present:
        begin_s, finish_s = max(since_s, start_s), min(until_s, end_s)
        if finish_s <= begin_s:
            continue
        inner = order[bisect.bisect_right(order, begin_s) : bisect.bisect_left(order, finish_s)]
        yield from itertools.pairwise([begin_s, *inner, finish_s])


def _divide(group: GpuGroup, jobs: Mapping[str, JobTime], at_s: float) -> Iterator[tuple[LedgerEntry, float]]:
    """(entry, share) of one GPU at a moment; the shares are 1 together."""
    marks = {m.state: m for m in reversed(group.marks) if m.start_s <= at_s < m.end_s}
    holds = [hold for hold in group.holds if hold.start_s <= at_s < hold.end_s]
    left = 1.0
    for hold, share in _shares(holds):
        left -= share
        for entry, part in _held(hold.job, group.node, jobs.get(hold.job, _UNKNOWN_JOB), marks, at_s):
            yield entry, part * share
    if left > 1e-12:
        yield _not_held(group.node, marks), left


def _shares(holds: Sequence[GpuHold]) -> list[tuple[GpuHold, float]]:
    """Each holder's share: what is stated (a MIG instance), then equal parts of the rest for those who take turns.
    More than the whole is scaled to it."""
    stated = [(hold, hold.share) for hold in holds if hold.share == hold.share]
    taken = sum(share for _, share in stated)
    if taken > 1.0:
        stated, taken = [(hold, share / taken) for hold, share in stated], 1.0
    turns = [hold for hold in holds if hold.share != hold.share]
    return stated + [(hold, (1.0 - taken) / len(turns)) for hold in turns]


Marks = Mapping[PlaceState, PlaceMark]


def _held(job: str, node: str, time: JobTime, marks: Marks, at_s: float) -> Iterator[tuple[LedgerEntry, float]]:
    segment = time.at(at_s)
    if segment is not None and segment.in_step:
        for account, share in segment.parts:
            cause = (segment.cause, segment.incident) if account in _CAUSED else ("", "")
            yield LedgerEntry(account, job, node, *cause), share
        return
    repair, fault = marks.get(PlaceState.REPAIR), marks.get(PlaceState.FAULT)
    if repair is not None:
        yield LedgerEntry(Account.IN_REPAIR, job, node, repair.cause, repair.incident), 1.0
    elif segment is not None and segment.parts[0][0] is not Account.UNEXPLAINED:
        yield LedgerEntry(segment.parts[0][0], job, node, segment.cause, segment.incident), 1.0
    elif fault is not None:
        yield LedgerEntry(Account.HUNG, job, node, fault.cause, fault.incident), 1.0
    elif PlaceState.IDLE in marks:
        yield LedgerEntry(Account.IDLE_HELD, job, node), 1.0
    elif PlaceState.UNOBSERVED in marks:
        yield LedgerEntry(Account.UNOBSERVED, job, node), 1.0
    else:
        yield LedgerEntry(Account.UNEXPLAINED if time.steps else Account.NO_STEPS, job, node), 1.0


_CAUSED = frozenset({Account.DATA_WAIT, Account.STRAGGLING, Account.RECOMPUTED})
_ACCOUNT_OF = {
    PlaceState.REPAIR: Account.IN_REPAIR,
    PlaceState.FAULT: Account.UNHEALTHY,
    PlaceState.MAINTENANCE: Account.MAINTENANCE,
    PlaceState.UNOBSERVED: Account.UNOBSERVED,
}


def _not_held(node: str, marks: Marks) -> LedgerEntry:
    for state, account in _ACCOUNT_OF.items():
        if (mark := marks.get(state)) is not None:
            return LedgerEntry(account, "", node, mark.cause, mark.incident)
    return LedgerEntry(Account.FREE, "", node)
