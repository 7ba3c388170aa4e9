"""Episodes of events that have no "over" of their own: they end when nothing more happened for a stated time.

Quiet is only quiet where someone listens: while every source that covers the node is lost, silence is no_data, and
the quiet time begins again when one is back. What only a kernel log tells is not heard by a node's other sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nightshift.collectors.frame import LogRecord
from nightshift.collectors.kernel_log.event import KERNEL_LOGS
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Fault, Finding, LogExhibit
from nightshift.detectors.episodes import Episodes

KEEP_RECORDS = 8


def deaf(tick: Tick) -> frozenset[Subject]:
    """Nodes that some lost source covers and no healthy one does.

    >>> from nightshift.detectors.contract.testing import START_S, tick
    >>> from nightshift.collectors.frame import Reason
    >>> [str(node) for node in deaf(tick(START_S, failed=Reason.TIMEOUT))], list(deaf(tick(START_S)))
    (['node:n1'], [])
    """
    lost = {subject for s in tick.sources if not s.ok for subject in s.covers}
    heard = {subject for s in tick.sources if s.ok for subject in s.covers}
    return frozenset(lost - heard)


def unread(tick: Tick, node: Subject | None) -> bool:
    """Whether kernel logs are read, and this node's is not; of a node that is not known, whether none is."""
    logs = [s for s in tick.sources if s.source.name.partition(" ")[0] in KERNEL_LOGS]
    return bool(logs) and not any(s.ok and (node is None or node in (s.covers or (node,))) for s in logs)


def node_of(subject: Subject, inventory: Inventory, at_s: float) -> Subject | None:
    return subject if subject.kind is SubjectKind.NODE else inventory.above(subject, SubjectKind.NODE, at_s)


class QuietPeriods:
    """When each episode's last event was, and what a tick without one means for it."""

    def __init__(self, episodes: Episodes, quiet_s: float, *, by_kernel_log: bool = False) -> None:
        """`by_kernel_log`: nothing but a kernel log tells of these events."""
        self._episodes = episodes
        self._quiet_s = quiet_s
        self._by_kernel_log = by_kernel_log
        self.last_s: dict[tuple[Fault, Subject], float] = {}

    def event(self, fault: Fault, subject: Subject, at_s: float) -> None:
        self.last_s[(fault, subject)] = max(at_s, self.last_s.get((fault, subject), at_s))

    def rest(self, tick: Tick, inventory: Inventory, spoken: set[tuple[Fault, Subject]]) -> list[Finding]:
        """The word on every open episode that had no event in this tick."""
        findings: list[Finding] = []
        unheard = deaf(tick)
        heard = tick.frames or tick.events or tick.logs or any(s.ok for s in tick.sources)
        for fault, subject in tuple(self._episodes):
            if (fault, subject) in spoken:
                continue
            found: Finding | None
            node = node_of(subject, inventory, tick.at_s)
            if not heard or node in unheard or (self._by_kernel_log and unread(tick, node)):
                found = self._episodes.no_data(fault, subject, tick.at_s, "The sources of its node are lost")
            elif self._is_quiet(fault, subject, tick.at_s):
                said = f"Nothing more for {self._quiet_s:.0f} s"
                found = self._episodes.clear(fault, subject, tick.at_s, said)
                self.last_s.pop((fault, subject), None)
            else:
                found = self._episodes.again(fault, subject, tick.at_s)
            findings += [found] if found else []
        return findings

    def _is_quiet(self, fault: Fault, subject: Subject, at_s: float) -> bool:
        last_s = self.last_s.get((fault, subject), at_s)
        return self._episodes.quiet_s(fault, subject, last_s, at_s) >= self._quiet_s

    def saved(self) -> list[list[Any]]:
        return [[fault.value, str(subject), last_s] for (fault, subject), last_s in self.last_s.items()]

    def load(self, saved: list[list[Any]]) -> None:
        self.last_s = {(Fault(fault), Subject.parse(subject)): float(last_s) for fault, subject, last_s in saved}


def exhibits(finding: Finding | None, records: Mapping[LogRecord, str]) -> tuple[LogExhibit, ...]:
    """The lines of an open episode and new ones, the first and the latest kept."""
    known = [e for e in (finding.evidence if finding else ()) if isinstance(e, LogExhibit)]
    known += [LogExhibit(record, note) for record, note in records.items()]
    if len(known) > KEEP_RECORDS:
        known = known[: KEEP_RECORDS // 2] + known[-KEEP_RECORDS // 2 :]
    return tuple(known)
