"""A source that stopped telling us things: itself a finding, because silence is not health."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from nightshift.collectors.frame import SourceStatus
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Fault, Finding, RateBasis, Severity, SnapshotError, StatedRate
from nightshift.detectors.episodes import Alarm, Episodes
from nightshift.detectors.snapshot import pack, unpack

VERSION = 1


# A source without a good answer for so long is lost (s).
LOST_AFTER_S = 120.0
# A source that is not queried for this long was removed from the configuration.
FORGET_S = 3600.0


class SourceSettings(BaseModel):
    """Nothing to set: a source is its collector's, and silence is the same everywhere."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class SourceLost:
    """SOURCE_LOST on the source; `covers` tells what is unwatched meanwhile.

    >>> from nightshift.collectors.frame import Reason
    >>> from nightshift.detectors.contract.testing import START_S, show, tick
    >>> failed = [None] + [Reason.TIMEOUT] * 29 + [None]
    >>> show(SourceLost(), [tick(START_S + 5 * n, failed=reason) for n, reason in enumerate(failed)])
    120 s: firing source_lost source:page n1
        No good answer for 120 s (timeout); unwatched: node:n1
    150 s: clear source_lost source:page n1
        The source answers again
    """

    plugin: ClassVar[str] = "source"
    Settings = SourceSettings

    def __init__(self, settings: SourceSettings | None = None) -> None:
        self.settings = settings or SourceSettings()
        self._good_s: dict[Subject, float] = {}
        self._asked_s: dict[Subject, float] = {}
        self._last: dict[Subject, SourceStatus] = {}
        self._partly_s: dict[Subject, float] = {}
        """Since when a source answers and leaves something out."""
        self._episodes = Episodes(self.name)
        self._resumed = False
        """After a restore: the time in which nobody asked is not the sources' silence."""

    @property
    def name(self) -> str:
        return self.plugin

    @property
    def faults(self) -> tuple[Fault, ...]:
        return (Fault.SOURCE_LOST,)

    @property
    def stated(self) -> StatedRate:
        return StatedRate(
            0.0,
            RateBasis.EVENT,
            "a source that does not answer does not answer",
            series=SubjectKind.SOURCE,
            precision=1.0,
        )

    def update(self, tick: Tick, inventory: Inventory) -> list[Finding]:
        findings: list[Finding] = []
        if self._resumed:
            self._good_s = {
                s: t if (Fault.SOURCE_LOST, s) in self._episodes else tick.at_s for s, t in self._good_s.items()
            }
            self._resumed = False
        for status in tick.sources:
            source = status.source
            self._asked_s[source] = tick.at_s
            if status.ok:
                self._good_s[source] = tick.at_s
                findings += self._answered(status, tick.at_s)
            else:
                # a source that never answered is lost from its first look on, not from the epoch
                self._good_s.setdefault(source, tick.at_s)
                self._last[source] = status
        for source in list(self._good_s):
            # a clock that was set back must not make a silence of the future out of a good answer
            good_s = self._good_s[source] = min(self._good_s[source], tick.at_s)
            asked_s = self._asked_s[source] = min(self._asked_s.get(source, good_s), tick.at_s)
            silent_s = tick.at_s - good_s
            if tick.at_s - asked_s > FORGET_S:
                for known in (self._good_s, self._asked_s, self._last, self._partly_s):
                    known.pop(source, None)
                gone = self._episodes.no_data(
                    Fault.SOURCE_LOST, source, tick.at_s, "The source is no longer queried"
                )
                findings += [gone] if gone else []
            elif silent_s >= LOST_AFTER_S:
                findings.append(self._episodes.fire(self._alarm(source, good_s, silent_s), tick.at_s))
        return findings

    def _answered(self, status: SourceStatus, at_s: float) -> list[Finding]:
        """A source that answers is lost no more; what it leaves out all the while is said, and wakes nobody."""
        known = self._episodes.get(Fault.SOURCE_LOST, status.source)
        if not status.partly:
            self._partly_s.pop(status.source, None)
            back = self._episodes.clear(Fault.SOURCE_LOST, status.source, at_s, "The source answers again")
            return [back] if back else []
        since_s = self._partly_s[status.source] = min(self._partly_s.get(status.source, at_s), at_s)
        if known is not None and "partly" not in known.facts:
            back = self._episodes.clear(Fault.SOURCE_LOST, status.source, at_s, "The source answers again, in part")
            return [back] if back else []
        if at_s - since_s < LOST_AFTER_S:
            return []
        alarm = Alarm(
            Fault.SOURCE_LOST,
            status.source,
            since_s,
            Severity.INFO,
            f"Answers, and leaves something out: {status.partly}",
            score=at_s - since_s,
            threshold=LOST_AFTER_S,
            facts={"reason": "partly", "partly": status.partly},
        )
        return [self._episodes.fire(alarm, at_s)]

    def _alarm(self, source: Subject, good_s: float, silent_s: float) -> Alarm:
        status = self._last.get(source)
        reason = status.reason.value if status and status.reason else "not asked"
        detail = f": {status.detail}" if status and status.detail else ""
        covers = " ".join(sorted(str(s) for s in status.covers)[:16]) if status else ""
        summary = f"No good answer for {silent_s:.0f} s ({reason}{detail})"
        if covers:
            summary += f"; unwatched: {covers}"
        return Alarm(
            Fault.SOURCE_LOST,
            source,
            good_s,
            Severity.WARNING,
            summary,
            score=silent_s,
            threshold=LOST_AFTER_S,
            facts={"reason": reason, "silent_s": silent_s, "covers": covers},
        )

    def snapshot(self) -> bytes:
        meta = {
            "good_s": {str(s): t for s, t in self._good_s.items()},
            "asked_s": {str(s): t for s, t in self._asked_s.items()},
            "partly_s": {str(s): t for s, t in self._partly_s.items()},
            "episodes": self._episodes.saved(),
        }
        return pack(self.name, VERSION, meta, {})

    def restore(self, state: bytes) -> None:
        _, meta, _ = unpack(state, self.name, (VERSION,))
        episodes = Episodes(self.name)
        try:
            good_s = {Subject.parse(s): float(t) for s, t in meta["good_s"].items()}
            asked_s = {Subject.parse(s): float(t) for s, t in meta["asked_s"].items()}
            partly_s = {Subject.parse(s): float(t) for s, t in meta.get("partly_s", {}).items()}
            episodes.load(meta["episodes"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SnapshotError(f"{self.name}: {error!r}") from error
        self._good_s, self._asked_s, self._episodes = good_s, asked_s, episodes
        self._partly_s = partly_s
        self._resumed = True
