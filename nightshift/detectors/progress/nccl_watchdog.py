"""What a run's own watchdog says in its log: a collective that did not end.

PyTorch's watchdog (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp) writes one line per rank that waited:
`[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=15, OpType=ALLREDUCE, …) ran for 600029
milliseconds before timing out`. It is an event and taken at its word; what it names is a rank that waited. The one
that was waited for is the rank of the group that says nothing, or whose sequence number is behind. Other ranks
repeat it (a dump signal), and Horovod (horovod/common/stall_inspector.cc) names the ranks that it waits for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from nightshift.collectors.frame import LogRecord
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.collectors.training.line import read_nccl_line
from nightshift.collectors.training.workload import rank_of
from nightshift.detectors.base import Fault, Finding, RateBasis, Severity, SnapshotError, StatedRate
from nightshift.detectors.episodes import Alarm, Episodes
from nightshift.detectors.quiet_periods import QuietPeriods, exhibits
from nightshift.detectors.snapshot import pack, unpack

VERSION = 1
_CAUGHT = "Watchdog caught collective operation timeout: WorkNCCL("
_OTHERS: tuple[tuple[str, re.Pattern[str], Severity, str], ...] = (
    (
        "dump signal",
        re.compile(r"dump signal due to a collective timeout from +rank (?P<ranks>\d{1,6})"),
        Severity.CRITICAL,
        "NCCL's watchdog of rank {ranks}: a collective did not end",
    ),
    (
        "missing ranks",
        re.compile(r"\[missing ranks: ?(?P<ranks>[\d, ]{1,200})\]"),
        Severity.WARNING,
        "Horovod's stall check: a collective waits for rank {ranks}",
    ),
    (
        "ProcessGroupNCCL",
        re.compile(r"Heartbeat monitor timed out|watchdog got stuck for \d+ seconds"),
        Severity.CRITICAL,
        "NCCL's watchdog itself is stuck: a collective or a call of CUDA hangs",
    ),
    (
        "atchdog timeout (",
        re.compile(r"[Ww]atchdog timeout \((?:self\.)?\w*watchdog_timeout="),
        Severity.CRITICAL,
        "The server's own watchdog: its engine hangs",
    ),
)
"""Lines without the work's own data: plain words that they hold, pattern, severity, the finding's words."""


@dataclass(frozen=True, slots=True)
class _Said:
    """What one line says of a hang. rank: the one that waited, where the line tells; ran_s: 0 where it does not."""

    words: str
    severity: Severity
    facts: dict[str, float | str]
    rank: int | None = None
    ran_s: float = 0.0


# No further line for this long ends the episode: the watchdog's own timeout, so a second one joins the first.
QUIET_S = 600.0


class NcclWatchdogSettings(BaseModel):
    """When an episode of watchdog lines is over."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NcclWatchdog:
    """HANG on the rank that waited in the collective, or on its pod or job where the line does not say the rank.

    >>> from nightshift.detectors.contract.testing import START_S, show, tick
    >>> line = (
    ...     "[rank3]:[E] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=15, "
    ...     "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds"
    ... )
    >>> show(NcclWatchdog(), [tick(START_S, logs=["step 14 loss 2.1", line])])
    0 s: firing hang rank:ml/train#3
        NCCL's watchdog: ALLREDUCE number 15 did not end in 600 s
    """

    plugin: ClassVar[str] = "nccl_watchdog"
    Settings = NcclWatchdogSettings

    def __init__(self, settings: NcclWatchdogSettings | None = None) -> None:
        self.settings = settings or NcclWatchdogSettings()
        self._episodes = Episodes(self.name)
        self._quiet = QuietPeriods(self._episodes, QUIET_S)

    @property
    def name(self) -> str:
        return self.plugin

    @property
    def faults(self) -> tuple[Fault, ...]:
        return (Fault.HANG,)

    @property
    def stated(self) -> StatedRate:
        return StatedRate(
            0.0, RateBasis.EVENT, "the run itself says that it hangs", series=SubjectKind.RANK, precision=1.0
        )

    def update(self, tick: Tick, inventory: Inventory) -> list[Finding]:
        findings: list[Finding] = []
        spoken: set[tuple[Fault, Subject]] = set()
        for record in tick.logs:
            said = _said(record.text)
            if said is not None:
                subject = _subject(record, said.rank, tick.at_s, inventory)
                findings.append(self._fire(record, said, subject, tick.at_s))
                spoken.add((Fault.HANG, subject))
        stepped = {s.subject for s in tick.steps if len(s.step)}
        jobs = {inventory.above(s, SubjectKind.JOB, tick.at_s) for s in stepped}
        for fault, subject in tuple(self._episodes):
            job = inventory.above(subject, SubjectKind.JOB, tick.at_s)
            if (fault, subject) not in spoken and (subject in stepped or (job is not None and job in jobs)):
                done = self._episodes.clear(fault, subject, tick.at_s, "Steps come again")
                findings += [done] if done else []
        return findings + self._quiet.rest(tick, inventory, spoken)

    def _fire(self, record: LogRecord, said: _Said, subject: Subject, at_s: float) -> Finding:
        known = self._episodes.get(Fault.HANG, subject)
        self._quiet.event(Fault.HANG, subject, at_s)
        since_s = min(record.at.t_s, at_s) - said.ran_s
        alarm = Alarm(
            Fault.HANG,
            subject,
            since_s,
            said.severity,
            said.words,
            score=said.ran_s,
            threshold=0.0,
            evidence=exhibits(known, {record: "the watchdog's own line"}),
            facts=said.facts,
        )
        return self._episodes.fire(alarm, at_s)

    def snapshot(self) -> bytes:
        return pack(self.name, VERSION, {"last": self._quiet.saved(), "episodes": self._episodes.saved()}, {})

    def restore(self, state: bytes) -> None:
        _, meta, _ = unpack(state, self.name, (VERSION,))
        fresh = NcclWatchdog(self.settings)
        try:
            fresh._quiet.load(meta["last"])
            fresh._episodes.load(meta["episodes"])
        except (KeyError, TypeError, ValueError) as error:
            raise SnapshotError(f"{self.name}: {error!r}") from error
        self._quiet, self._episodes = fresh._quiet, fresh._episodes


def _said(text: str) -> _Said | None:
    """What a line says of a collective that does not end; None of any other line."""
    if _CAUGHT in text and (line := read_nccl_line(text)) is not None and line.operation is not None:
        ran_s = line.ran_s or 0.0
        # before PyTorch 2.1 the watchdog did not number the work
        sequence: dict[str, float | str] = {} if line.work is None else {"sequence": float(line.work)}
        work = line.operation if line.work is None else f"{line.operation} number {line.work}"
        words = f"NCCL's watchdog: {work} did not end in {ran_s:.0f} s"
        facts = {"collective": line.operation, **sequence, "silent_s": ran_s}
        return _Said(words, Severity.CRITICAL, facts, line.rank, ran_s)
    for held, pattern, severity, words in _OTHERS:
        if held in text and (match := pattern.search(text)) is not None:
            ranks = match.groupdict().get("ranks", "").strip(" ,")
            return _Said(words.format(ranks=ranks), severity, {"waited_for": ranks} if ranks else {})
    return None


def _subject(record: LogRecord, rank: int | None, at_s: float, inventory: Inventory) -> Subject:
    job = inventory.above(record.subject, SubjectKind.JOB, at_s)
    if record.subject.kind is SubjectKind.RANK or rank is None or job is None:
        return record.subject
    return rank_of(job, rank)
