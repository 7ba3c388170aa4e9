"""Where a job hangs: the rank that the others wait for, in which collective, and the line that differs.

Each rank waits in its oldest operation that has not completed. Whom it waits for follows from that operation:
members of its group that have not enqueued it, that enqueued another in its place, or whose GPU has not started it;
of a send or receive, the other end. Waits are followed from rank to rank (a stall in one group blocks others) until
ranks that wait for nobody: they are named. A rank without a dump, where others have one, does not answer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from nightshift.collectors.training.hang_dumps import (
    COMPLETED,
    STARTED,
    CollectiveEntry,
    ProcessStack,
    RankTrace,
    RasReport,
    own_frame,
)

# More ranks than this share that all differ are no outliers.
FEW = 0.25


class HangKind(StrEnum):
    """How the named ranks differ from those that wait for them."""

    NOT_CALLED = "not_called"
    """They never came to the collective."""
    OTHER_CALL = "other_call"
    """They called another collective in its place, or with other sizes or types."""
    NO_ANSWER = "no_answer"
    """Their process left no dump, or does not answer."""
    NOT_STARTED = "not_started"
    """They enqueued it, but their GPU has not started it."""
    OTHER_STACK = "other_stack"
    """Their main thread is elsewhere."""


@dataclass(frozen=True)
class HangPlace:
    """The ranks that are waited for. `collective`: what the others wait in; `line`: where a named rank was last
    seen, or is; `waiting_line`: where the others are."""

    kind: HangKind
    ranks: tuple[int, ...]
    collective: str = ""
    group: str = ""
    number: int = -1
    line: str = ""
    waiting_line: str = ""
    waiting: int = 0
    source: str = ""

    @property
    def words(self) -> str:
        few = ", ".join(map(str, self.ranks[:8])) + (
            f" and {len(self.ranks) - 8} more" if len(self.ranks) > 8 else ""
        )
        who = f"rank {few}" if len(self.ranks) == 1 else f"ranks {few}"
        what = f"{self.collective} number {self.number}" if self.number >= 0 else self.collective or "a collective"
        where = f" of group {self.group}" if self.group else ""
        does = {
            HangKind.NOT_CALLED: f"never called {what}{where}",
            HangKind.OTHER_CALL: f"called another operation in place of {what}{where}",
            HangKind.NO_ANSWER: "left no dump and does not answer",
            HangKind.NOT_STARTED: f"enqueued {what}{where}, but the GPU has not started it",
            HangKind.OTHER_STACK: "is in other code than the ranks that wait",
        }[self.kind]
        return f"{who} {does}; {self.waiting} ranks wait"


def locate(
    traces: Iterable[RankTrace], ras: RasReport | None = None, stacks: Sequence[ProcessStack] = ()
) -> HangPlace | None:
    """Where it hangs, by the best source there is; None where no rank differs from the others.

    >>> def trace(rank, last):
    ...     states = ["completed"] * 7 + ["scheduled"]
    ...     entries = [CollectiveEntry("0", n, "all_reduce", states[n]) for n in range(last + 1)]
    ...     return RankTrace(rank, tuple(entries), {"0": (0, 1, 2, 3)})
    >>> locate([trace(0, 7), trace(1, 7), trace(2, 6), trace(3, 7)]).words
    'rank 2 never called all_reduce number 7 of group 0; 3 ranks wait'
    """
    found = _by_traces(sorted(traces, key=lambda trace: trace.rank))
    found = found or (_by_ras(ras) if ras is not None else None) or _by_stacks(stacks)
    if found is None:
        return None
    where = {stack.rank: own_frame(stack.frames) for stack in stacks}
    here = next((where[rank] for rank in found.ranks if rank in where), "")
    if not here or found.line == here:
        return found
    return HangPlace(**{**found.__dict__, "line": here})


# Flight recorder ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Wait:
    """The operation in which a rank waits for others, how they differ from it, and who they are."""

    entry: CollectiveEntry
    kind: HangKind
    ranks: set[int]


class _Job:
    """All dumps of a job, by group and number."""

    def __init__(self, traces: Sequence[RankTrace]) -> None:
        self.traces = {trace.rank: trace for trace in traces}
        self.members = _members(traces)
        self.calls: dict[tuple[str, int], dict[int, CollectiveEntry]] = defaultdict(dict)
        self._answers: dict[tuple[str, int], tuple[HangKind, set[int]] | None] = {}
        self.enqueued: dict[str, dict[int, int]] = defaultdict(dict)
        for trace in traces:
            for entry in trace.entries:
                if entry.peer is None:
                    self.calls[entry.group, entry.number][trace.rank] = entry
                    last = self.enqueued[entry.group].get(trace.rank, -1)
                    self.enqueued[entry.group][trace.rank] = max(last, entry.number)
            for group, number in trace.enqueued.items():
                if group in self.members:
                    self.enqueued[group][trace.rank] = max(self.enqueued[group].get(trace.rank, -1), number)

    def wait_of(self, rank: int) -> _Wait | None:
        """The oldest pending operation of a rank in which it waits for others.
        Gloo marks no operation as completed: there, one that all of its members are in is passed over."""
        entries = self.traces[rank].entries
        pending = sorted((e for e in entries if e.state != COMPLETED), key=lambda e: (e.created_ns, e.number))
        for entry in pending[:1] if len(pending) < len(entries) else pending:
            found = self.waits_for(rank, entry)
            if found is not None and rank in found[1] and not self._disagree(entry, *found):
                return None  # it is one of those that are waited for
            if found is not None and found[1] - {rank}:
                return _Wait(entry, found[0], found[1] - {rank})
        return None

    def _disagree(self, entry: CollectiveEntry, kind: HangKind, ranks: set[int]) -> bool:
        """Whether no call of this operation is that of most: then each waits for the others."""
        return kind is HangKind.OTHER_CALL and self.calls[entry.group, entry.number].keys() <= ranks

    def waits_for(self, rank: int, entry: CollectiveEntry) -> tuple[HangKind, set[int]] | None:
        """Whom a rank waits for in an operation, and how they differ."""
        if entry.peer is not None:
            return self._other_end(rank, entry, entry.peer)
        key = entry.group, entry.number
        if key not in self._answers:
            self._answers[key] = self._of_collective(entry)
        return self._answers[key]

    def _of_collective(self, entry: CollectiveEntry) -> tuple[HangKind, set[int]] | None:
        members = self.members.get(entry.group, ())
        silent = {m for m in members if m not in self.traces}
        if silent:
            return HangKind.NO_ANSWER, silent
        calls = self.calls[entry.group, entry.number]
        late = {m for m in members if self.enqueued[entry.group].get(m, -1) < entry.number}
        if late:
            return HangKind.NOT_CALLED, late
        odd = _odd({m: (e.name, e.sizes) for m, e in calls.items()})
        if odd:
            return HangKind.OTHER_CALL, odd
        idle = {m for m, e in calls.items() if e.state not in (COMPLETED, STARTED)}
        if idle and len(idle) < len(calls) and len(idle) <= max(1, FEW * len(calls)):
            return HangKind.NOT_STARTED, idle
        return None

    def _other_end(self, rank: int, entry: CollectiveEntry, peer: int) -> tuple[HangKind, set[int]] | None:
        members = self.members.get(entry.group, ())
        other = members[peer] if peer < len(members) else peer
        if other not in self.traces:
            return HangKind.NO_ANSWER, {other}
        place = members.index(rank) if rank in members else rank

        def matching(end: int, to: int, send: bool) -> list[CollectiveEntry]:
            return [
                e for e in self.traces[end].entries if e.group == entry.group and e.peer == to and e.is_send is send
            ]

        mine = matching(rank, peer, entry.is_send)
        theirs = matching(other, place, not entry.is_send)
        ahead = sum(e.state != COMPLETED for e in mine) > sum(e.state != COMPLETED for e in theirs)
        return (HangKind.NOT_CALLED, {other}) if ahead else None


def _members(traces: Sequence[RankTrace]) -> dict[str, tuple[int, ...]]:
    """Group → global ranks: as the dumps say, else those that used it. Gloo does not name its default group."""
    told: dict[str, set[int]] = defaultdict(set)
    used: dict[str, set[int]] = defaultdict(set)
    added: set[tuple[str, int]] = set()
    for trace in traces:
        for name, ranks in trace.groups.items():
            # dumps share one tuple of a group's ranks: thousands of ranks are not added thousands of times
            if (name, id(ranks)) not in added:
                added.add((name, id(ranks)))
                told[name].update(ranks)
        for entry in trace.entries:
            used[entry.group].add(trace.rank)
    found = {}
    for name, users in used.items():
        known = told.get(name) or (told[""] if told.get("") and name == "0" else set())
        found[name] = tuple(sorted(known or users))
    return found


def _odd(what: Mapping[int, tuple[str, str]]) -> set[int]:
    """Ranks whose value is not that of most; of two ranks that differ, nobody can say which is right: both."""
    counts = Counter(what.values())
    if len(counts) < 2:
        return set()
    (usual, most), (_, second) = counts.most_common(2)
    return set(what) if most == second else {rank for rank, value in what.items() if value != usual}


def _by_traces(traces: Sequence[RankTrace]) -> HangPlace | None:
    if len(traces) < 2:
        return None
    job = _Job(traces)
    waits: dict[int, _Wait] = {}
    for rank in job.traces:
        if (wait := job.wait_of(rank)) is not None:
            waits[rank] = wait
    if not waits:
        return None
    return _named(job, waits, _roots(waits))


def _roots(waits: Mapping[int, _Wait]) -> Counter[int]:
    """The ranks at the ends of the chains of waits, and from how many ranks a chain ends there."""
    roots: Counter[int] = Counter()
    for start in waits:
        seen, frontier = {start}, [start]
        while frontier:
            rank = frontier.pop()
            wait = waits.get(rank)
            # ranks that disagree wait for each other: the difference itself is the end
            if wait is None or (wait.kind is HangKind.OTHER_CALL and rank != start):
                roots[rank] += rank != start
                continue
            for other in wait.ranks - seen:
                seen.add(other)
                frontier.append(other)
    return roots


def _named(job: _Job, waits: Mapping[int, _Wait], roots: Counter[int]) -> HangPlace | None:
    if not roots:  # everybody waits for somebody: a circle; the wait that most share is the place
        roots = Counter(rank for wait in waits.values() for rank in wait.ranks)
    ranks = _most_awaited(roots)
    direct = [wait for wait in waits.values() if wait.ranks & ranks]
    kind = Counter(wait.kind for wait in direct).most_common(1)[0][0]
    usual = [wait for wait in direct if wait.kind is kind]
    entry = min((wait.entry for wait in usual), key=lambda e: (e.created_ns, e.number))
    if kind is HangKind.OTHER_CALL:
        ranks = set().union(*(wait.ranks for wait in usual)) & set(roots) or ranks
    last = filter(None, (_last_line(job, rank, entry) for rank in sorted(ranks)))
    return HangPlace(
        kind,
        tuple(sorted(ranks)),
        entry.name,
        entry.group,
        entry.number,
        next(last, ""),
        entry.line,
        len(set(waits) - ranks),
        "flight recorder",
    )


def _most_awaited(roots: Counter[int]) -> set[int]:
    most = max(roots.values())
    return {rank for rank, count in roots.items() if count == most}


def _last_line(job: _Job, rank: int, entry: CollectiveEntry) -> str:
    """Where a named rank called what it called in place of the collective, or what it called last."""
    trace = job.traces.get(rank)
    if trace is None or not trace.entries:
        return ""
    mine = job.calls.get((entry.group, entry.number), {}).get(rank)
    return (mine or max(trace.entries, key=lambda e: (e.created_ns, e.number))).line


# RAS and stacks -------------------------------------------------------------------------------------------------


def _by_ras(report: RasReport) -> HangPlace | None:
    if report.missing:
        ranks = tuple(sorted(report.missing))
        return HangPlace(HangKind.NO_ANSWER, ranks, line=report.places.get(ranks[0], ""), source="NCCL RAS")
    if not report.behind:
        return None
    least = min(report.behind.values())
    ranks = tuple(sorted(rank for rank, count in report.behind.items() if count == least))
    place = report.places.get(ranks[0], "")
    name = report.operation or "a collective"
    return HangPlace(HangKind.NOT_CALLED, ranks, name, "", least + 1, place, source="NCCL RAS")


def _by_stacks(stacks: Sequence[ProcessStack]) -> HangPlace | None:
    """The few ranks whose own code is at another line than most: the rest waits at one line."""
    where = {stack.rank: own_frame(stack.frames) for stack in stacks}
    counts = Counter(where.values())
    if len(counts) < 2:
        return None
    usual, most = counts.most_common(1)[0]
    odd = sorted(rank for rank, frame in where.items() if frame != usual)
    if len(odd) > max(1, FEW * len(where)) or most < 2:
        return None
    line = Counter(where[rank] for rank in odd).most_common(1)[0][0]
    return HangPlace(HangKind.OTHER_STACK, tuple(odd), line=line, waiting_line=usual, waiting=most, source="stacks")
