"""The book of a detector's open alarms: one onset per episode, and each change of state said once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from nightshift.collectors.frame import Instant
from nightshift.collectors.subject import Subject
from nightshift.detectors.base import Exhibit, Fault, Finding, Severity, SnapshotError, State

Key = tuple[Fault, Subject]


@dataclass(frozen=True, slots=True)
class Alarm:
    """What a detector says of one subject at one moment; the book adds onset, state and name."""

    fault: Fault
    subject: Subject
    since_s: float
    severity: Severity
    summary: str
    score: float
    threshold: float
    p_value: float | None = None
    evidence: tuple[Exhibit, ...] = ()
    facts: Mapping[str, float | str] | None = None


class Episodes:
    """Turns alarms into findings. An episode keeps the onset of its first alarm until it clears.

    >>> from nightshift.detectors.contract.testing import gpu
    >>> episodes = Episodes("mine")
    >>> first = episodes.fire(Alarm(Fault.XID, gpu(0), 100.0, Severity.WARNING, "Xid 31", 1.0, 0.5), at_s=105.0)
    >>> again = episodes.fire(Alarm(Fault.XID, gpu(0), 200.0, Severity.WARNING, "Xid 31", 1.0, 0.5), at_s=205.0)
    >>> again.since.t_s, again.episode == first.episode
    (100.0, True)
    >>> episodes.clear(Fault.XID, gpu(1), 300.0, "quiet") is None  # nothing was open there
    True
    """

    def __init__(self, detector: str, budget_cost: float = 0.0) -> None:
        self._detector = detector
        self._budget_cost = budget_cost
        self._open: dict[Key, Finding] = {}
        self._missing_s: dict[Key, float] = {}
        """When the signal of an open episode was last missing (Unix s)."""

    def __contains__(self, key: Key) -> bool:
        return key in self._open

    def __iter__(self) -> Iterator[Key]:
        return iter(self._open)

    def __len__(self) -> int:
        return len(self._open)

    def get(self, fault: Fault, subject: Subject) -> Finding | None:
        return self._open.get((fault, subject))

    def fire(self, alarm: Alarm, at_s: float) -> Finding:
        """A new episode, or the next word on an open one (its evidence is kept where the alarm brings none)."""
        key = (alarm.fault, alarm.subject)
        known = self._open.get(key)
        finding = Finding(
            detector=self._detector,
            fault=alarm.fault,
            subject=alarm.subject,
            state=State.FIRING,
            since=known.since if known else Instant(alarm.since_s),
            at=Instant(at_s),
            severity=alarm.severity,
            summary=alarm.summary,
            score=alarm.score,
            threshold=alarm.threshold,
            p_value=alarm.p_value,
            budget_cost=self._budget_cost,
            evidence=alarm.evidence or (known.evidence if known else ()),
            facts=_told(alarm.facts or {}),
        )
        self._open[key] = finding
        return finding

    def again(self, fault: Fault, subject: Subject, at_s: float) -> Finding | None:
        """The open episode, still firing now, with its last words."""
        known = self._open.get((fault, subject))
        if known is None:
            return None
        self._open[(fault, subject)] = replace(known, at=Instant(at_s), state=State.FIRING)
        return self._open[(fault, subject)]

    def clear(
        self, fault: Fault, subject: Subject, at_s: float, summary: str, score: float = 0.0
    ) -> Finding | None:
        """Ends an open episode: the finding that says so, or None where none was open."""
        known = self._open.pop((fault, subject), None)
        self._missing_s.pop((fault, subject), None)
        if known is None:
            return None
        return replace(known, state=State.CLEAR, at=Instant(at_s), summary=summary, score=score)

    def no_data(self, fault: Fault, subject: Subject, at_s: float, summary: str) -> Finding | None:
        """Says once that an open episode's signal is missing; it stays open and keeps the fault's own words."""
        known = self._open.get((fault, subject))
        if known is not None:
            self._missing_s[fault, subject] = at_s
        if known is None or known.state is State.NO_DATA:
            return None
        gone = replace(known, state=State.NO_DATA, at=Instant(at_s))
        self._open[(fault, subject)] = gone
        return replace(gone, summary=summary)

    def quiet_s(self, fault: Fault, subject: Subject, last_s: float, at_s: float) -> float:
        """How long nothing was wrong while the signal was observed (s); `last_s`: when something last was (Unix s).

        The time without data, and what was quiet before it, prove nothing: a source that is back begins again."""
        # a clock that was set back must not leave a silence in the future
        return at_s - max(last_s, min(self._missing_s.get((fault, subject), last_s), at_s))

    def report(self, word: Callable[[Fault, Subject], Finding | None]) -> list[Finding]:
        """What `word` says of every open episode, which it may end; None says nothing."""
        said = (word(fault, subject) for fault, subject in tuple(self._open))
        return [finding for finding in said if finding is not None]

    def saved(self) -> list[dict[str, Any]]:
        """JSON for a snapshot; exhibits are not kept (they are with the incident)."""
        return [
            {
                "fault": f.fault.value,
                "subject": str(f.subject),
                "state": f.state.value,
                "since_s": f.since.t_s,
                "at_s": f.at.t_s,
                "severity": f.severity.value,
                "summary": f.summary,
                "score": f.score,
                "threshold": f.threshold,
                "p_value": f.p_value,
                "facts": dict(f.facts),
                "missing_s": self._missing_s.get(key),
            }
            for key, f in self._open.items()
        ]

    def load(self, saved: Iterable[Mapping[str, Any]]) -> None:
        """Takes back `saved`; SnapshotError where an entry is not one."""
        found: dict[Key, Finding] = {}
        missing_s: dict[Key, float] = {}
        try:
            for entry in saved:
                last_s = entry.get("missing_s")  # older snapshots have none
                if not math.isfinite(entry["since_s"]) or not math.isfinite(last_s or 0.0):
                    raise ValueError(f"since_s {entry['since_s']!r}, missing_s {last_s!r}")
                finding = Finding(
                    detector=self._detector,
                    fault=Fault(entry["fault"]),
                    subject=Subject.parse(entry["subject"]),
                    state=State(entry["state"]),
                    since=Instant(entry["since_s"]),
                    at=Instant(entry["at_s"]),
                    severity=Severity(entry["severity"]),
                    summary=entry["summary"],
                    score=entry["score"],
                    threshold=entry["threshold"],
                    p_value=entry["p_value"],
                    budget_cost=self._budget_cost,
                    facts=entry["facts"],
                )
                found[(finding.fault, finding.subject)] = finding
                if last_s is not None:
                    missing_s[finding.fault, finding.subject] = float(last_s)
        except (KeyError, TypeError, ValueError) as error:
            raise SnapshotError(f"{self._detector}: snapshot episode: {error!r}") from error
        self._open, self._missing_s = found, missing_s


def _told(facts: Mapping[str, float | str]) -> dict[str, float | str]:
    """The facts that are known: what is stored and sealed later holds no NaN."""
    return {name: value for name, value in facts.items() if isinstance(value, str) or math.isfinite(value)}
