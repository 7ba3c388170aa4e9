"""Remote storage that jobs wait for, by their nodes' kernel logs: evidence quotes it, and correlation makes what
waits for one server one incident.

Limits: a server is known by the name that the kernel calls it by; jobs of which one stood still for long before the
first line (NFS is said to be silent three minutes after it is) have opened their own incidents by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from nightshift.agent.correlation.decisions import Group, KnownIncident
from nightshift.agent.correlation.kinship import FindingPlaces, Kin, first_cause, kin_of, onset_key
from nightshift.collectors.kernel_log.event import KernelEvent, KernelEventKind
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.detectors.base import Finding, State

BEFORE_S = 900.0
"""A server that fell silent so long before the onset (s) may be what a job waits for."""
WAITS = frozenset({Kin.STALL, Kin.HANG})

_Waits = TypeVar("_Waits", Group, KnownIncident)
Events = Callable[[Subject, float, float], Iterable[KernelEvent]]
"""A node's kernel events in a range of time (Unix s), oldest first."""


def no_events(_node: Subject, _start_s: float, _end_s: float) -> Iterable[KernelEvent]:
    return ()


def silent_servers(events: Iterable[KernelEvent], cause: Finding) -> set[str]:
    """The servers that explain a stall or a hang on this node. One that answered again before the onset, or again
    for good in a hang, explains nothing."""
    last: dict[str, tuple[float, bool]] = {}
    for event in events:
        server = event.attributes.get("server")
        if event.kind is KernelEventKind.STORAGE and server is not None:
            # events come oldest first, so the last word on each server stands
            last[server] = event.record.at.t_s, event.attributes.get("answers") == "yes"
    stalls = kin_of(cause) is Kin.STALL
    return {name for name, (t_s, answers) in last.items() if not answers or (stalls and t_s >= cause.since.t_s)}


class StorageWaits:
    """Which incidents wait for which servers at `at_s` (Unix s)."""

    def __init__(self, places: FindingPlaces, events: Events, at_s: float) -> None:
        self._places, self._events, self._at_s = places, events, at_s
        self._of: dict[str, frozenset[str]] = {}

    def of(self, findings: Sequence[Finding]) -> frozenset[str]:
        """The servers that firing stalls and hangs of one incident wait for; none where something else, such as a
        GPU's error, stopped the job."""
        # a job that lost its GPU also hangs, and draws no other job's incident in
        if kin_of(first_cause(findings)) not in WAITS:
            return frozenset()
        waiting = [f for f in findings if kin_of(f) in WAITS and f.state is State.FIRING]
        return frozenset().union(*map(self._servers, waiting))

    def _servers(self, finding: Finding) -> frozenset[str]:
        if finding.episode not in self._of:
            start_s = finding.since.t_s - BEFORE_S
            nodes = [place for place in self._places.of(finding) if place.kind is SubjectKind.NODE]
            told = [silent_servers(self._events(node, start_s, self._at_s), finding) for node in nodes]
            self._of[finding.episode] = frozenset().union(*told)
        return self._of[finding.episode]

    def joined(self, homes: Sequence[Group], incidents: Iterable[KnownIncident]) -> list[Group]:
        """The homes of a tick, with those that wait for one server made one: of the open incident that waits for
        it, where there is one. What has an incident already keeps it."""
        waiting = {home: self.of([*_findings_of(home.incident), *home.findings]) for home in homes}
        fresh = [home for home in homes if home.incident is None and waiting[home]]
        if not fresh:
            return list(homes)
        standing = [(i, self.of(i.findings)) for i in incidents if not i.resolved and i.findings]
        # two open incidents are never merged, even where both wait for one server (limits of `correlate`)
        heads = [(home, waiting[home]) for home in homes if home.incident is not None]
        kept = [home for home in homes if home not in fresh]
        for home in sorted(fresh, key=lambda home: onset_key(first_cause(home.findings))):
            head = _that_waits_for(waiting[home], heads)
            if head is not None:
                head[0].findings += home.findings
                continue
            heads.append((home, waiting[home] | self._adopted(home, waiting[home], standing)))
            kept.append(home)
        return kept

    def _adopted(
        self,
        home: Group,
        servers: frozenset[str],
        standing: Iterable[tuple[KnownIncident, frozenset[str]]],
    ) -> frozenset[str]:
        """Puts a new group into the open incident that waits for one of its servers; returns the incident's, so
        that a group that waits for another of them finds its way there, too."""
        incident, theirs = _that_waits_for(servers, standing) or (None, frozenset())
        if incident is not None:
            home.incident = incident
            home.reason = f"waits for the same storage: {', '.join(sorted(theirs & servers))}"
        return theirs


def _that_waits_for(
    servers: frozenset[str], among: Iterable[tuple[_Waits, frozenset[str]]]
) -> tuple[_Waits, frozenset[str]] | None:
    """The first group or incident, with its servers, that waits for one of these."""
    return next((pair for pair in among if pair[1] & servers), None)


def _findings_of(incident: KnownIncident | None) -> tuple[Finding, ...]:
    return () if incident is None else incident.findings
