"""What came of a decision: receipts joined with the telemetry of the stretch in which they were in force.

    receipt ──from──────────────────────until──┐  a stretch: from a decision to the next one on the same unit
    telemetry   [sample] [sample]   [sample]   │  only samples that lie wholly inside one stretch count
                                               └─ settled once it is covered, or `grace_s` later, or void

Samples may come late, twice and in any order: a stretch stays open for `grace_s` past its end, the same sample
counts once, and what straddles two stretches counts for neither. A job that ends cuts its stretch short; a stretch
of which too little was seen is *void*, with its reason, never settled by a guess. A clock that steps back voids
what was open, since nobody can say any more which decision was in force. Voids are counted by arm: a step up is
refused where the policy's turns lose more outcomes than the baseline's (`promotion`).

Times are Unix s of one clock, the daemon's. Holds no store: what is open is given back by `open_receipts`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Stretch:
    """A receipt in force. `until_s`: when the next decision on its unit was made; infinite: not yet."""

    id: str
    unit: str
    job: str
    from_s: float
    until_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Sample:
    """What was seen of a job between two moments. `reward`: higher is better; `slowdown`: a ratio, 1 = none; NaN:
    not known. `violated`: a hard constraint was broken."""

    job: str
    from_s: float
    to_s: float
    reward: float
    slowdown: float
    violated: bool = False


@dataclass(frozen=True, slots=True)
class ReceiptOutcome:
    """Of one receipt. `void`: why there will be none; empty where it is settled."""

    id: str
    reward: float = math.nan
    slowdown: float = math.nan
    violated: bool = False
    void: str = ""


@dataclass(frozen=True, slots=True)
class JoinSettings:
    grace_s: float = 120.0
    """How long after a stretch's end its telemetry may come."""
    least_share: float = 0.5
    """Share of a stretch that has to have been seen."""
    longest_s: float = 3600.0
    """A stretch ends here where nothing was decided after it."""
    step_s: float = 5.0
    """A clock that goes back by more than this was set."""


_VIOLATED = "violated; too little was seen of the rest"
"""A violation is never lost for want of the rest."""


@dataclass
class Joiner:
    """One per kind. `decided` and `saw` take in, `settle` gives out; each outcome once."""

    settings: JoinSettings = field(default_factory=JoinSettings)
    _open: dict[str, Stretch] = field(default_factory=dict)  # id → stretch
    _last: dict[str, str] = field(default_factory=dict)  # unit → id of its newest
    _seen: dict[str, dict[tuple[float, float], Sample]] = field(default_factory=dict)  # job → samples
    _ended_s: dict[str, float] = field(default_factory=dict)
    _void: list[ReceiptOutcome] = field(default_factory=list)
    _now_s: float = -math.inf

    def decided(self, stretch: Stretch) -> None:
        """A decision was made: it ends the one before on the same unit. The same receipt twice changes nothing."""
        if stretch.id in self._open:
            return
        before = self._open.get(self._last.get(stretch.unit, ""))
        if before is not None and math.isinf(before.until_s):
            if stretch.from_s <= before.from_s:
                self._give_up(before, "the clock stepped back")
            else:
                self._open[before.id] = replace(before, until_s=stretch.from_s)
        self._open[stretch.id], self._last[stretch.unit] = stretch, stretch.id

    def saw(self, sample: Sample) -> None:
        """Takes telemetry in, in any order; what is known already or has no length is left out."""
        if sample.to_s > sample.from_s:
            self._seen.setdefault(sample.job, {}).setdefault((sample.from_s, sample.to_s), sample)

    def ended(self, job: str, at_s: float) -> None:
        """The job is gone, however it ended."""
        self._ended_s.setdefault(job, at_s)

    def open_receipts(self) -> list[Stretch]:
        return list(self._open.values())

    def settle(self, now_s: float) -> list[ReceiptOutcome]:
        """What can be said now, once for each receipt."""
        if now_s < self._now_s - self.settings.step_s:
            for stretch in self.open_receipts():
                self._give_up(stretch, "the clock stepped back")
            self._seen.clear()
            self._ended_s.clear()
        self._now_s = now_s
        found, self._void = self._void, []
        for stretch in self.open_receipts():
            outcome = self._outcome(stretch, now_s)
            if outcome is not None:
                found.append(outcome)
                self._close(stretch)
        self._forget(now_s)
        return found

    def _outcome(self, stretch: Stretch, now_s: float) -> ReceiptOutcome | None:
        s = self.settings
        gone_s = self._ended_s.get(stretch.job, math.inf)
        until_s = min(stretch.until_s, stretch.from_s + s.longest_s, max(gone_s, stretch.from_s))
        if now_s < until_s:
            return None
        inside = self._inside(stretch, until_s)
        known = [x for x in inside if math.isfinite(x.reward + x.slowdown)]
        length_s = until_s - stretch.from_s
        seen_s = sum(x.to_s - x.from_s for x in known)
        # not quite all: windows of telemetry do not end where decisions do
        if seen_s < 0.99 * length_s and now_s < until_s + s.grace_s:
            return None
        violated = any(x.violated for x in inside)
        if length_s <= 0 or not known or seen_s < s.least_share * length_s:
            ended = "the job ended; " if gone_s <= until_s else ""
            why = f"{ended}{seen_s:.0f} s of {length_s:.0f} s were seen"
            return ReceiptOutcome(stretch.id, violated=violated, void=_VIOLATED if violated else why)
        reward = sum(x.reward * (x.to_s - x.from_s) for x in known) / seen_s
        slowdown = sum(x.slowdown * (x.to_s - x.from_s) for x in known) / seen_s
        return ReceiptOutcome(stretch.id, reward, slowdown, violated)

    def _inside(self, stretch: Stretch, until_s: float) -> list[Sample]:
        samples = self._seen.get(stretch.job, {}).values()
        return [sample for sample in samples if stretch.from_s <= sample.from_s and sample.to_s <= until_s]

    def _give_up(self, stretch: Stretch, why: str) -> None:
        self._void.append(ReceiptOutcome(stretch.id, void=why))
        self._close(stretch)

    def _close(self, stretch: Stretch) -> None:
        del self._open[stretch.id]
        if self._last.get(stretch.unit) == stretch.id:
            del self._last[stretch.unit]

    def _forget(self, now_s: float) -> None:
        """Samples and ends that no open stretch can use any more."""
        oldest: dict[str, float] = {}
        for stretch in self._open.values():
            oldest[stretch.job] = min(stretch.from_s, oldest.get(stretch.job, math.inf))
        reach_s = now_s - self.settings.grace_s
        for job in list(self._seen):
            since_s = min(oldest.get(job, math.inf), reach_s)
            kept = {key: sample for key, sample in self._seen[job].items() if sample.to_s > since_s}
            if kept:
                self._seen[job] = kept
            else:
                del self._seen[job]
        self._ended_s = {j: t for j, t in self._ended_s.items() if j in oldest or t > reach_s}


def shares_lost(rows: Iterable[tuple[bool, bool]]) -> tuple[float, float]:
    """(treated, has an outcome) of drawn turns → share without one, of the policy's and of the baseline's."""
    counts = [[0, 0], [0, 0]]
    for treated, known in rows:
        counts[treated][known] += 1
    treated_share, other_share = (counts[arm][0] / max(1, sum(counts[arm])) for arm in (1, 0))
    return treated_share, other_share
