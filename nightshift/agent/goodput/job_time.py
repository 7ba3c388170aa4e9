"""What a job did when: its steps, and what explains the time between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from nightshift.agent.goodput.accounts import SLOWS, STOPS, Account
from nightshift.agent.goodput.settle import JobTime, Segment
from nightshift.agent.goodput.steps import Pause, StepStretch
from nightshift.detectors.base import Fault

# A fault may be seen so long before the steps stop, and be why (s).
BEFORE_S = 900.0
# Where a fault is seen this much later than the steps stopped, it does not explain the time before it.
LATER_S = 120.0
_ORDER = {fault: place for place, fault in enumerate(STOPS)}


@dataclass(frozen=True, slots=True)
class JobFault:
    """A fault that touches a job, from its onset to its end (Unix s; infinity: it stands). `cause`: what the
    incident's diagnosis says, else the fault itself. `stops`, `slows`: where a pause, and the excess of slow steps,
    go that it explains; None: it explains none. Of two that do, the one with the least `order` names the cause."""

    start_s: float
    end_s: float
    cause: str
    incident: str
    stops: Account | None = None
    slows: Account | None = None
    order: int = 0

    @classmethod
    def of(cls, fault: Fault, start_s: float, end_s: float, cause: str, incident: str) -> JobFault:
        """What a finding comes to."""
        return cls(start_s, end_s, cause, incident, STOPS.get(fault), SLOWS.get(fault), _ORDER.get(fault, 0))


@dataclass(frozen=True, slots=True)
class JobMark:
    """The job itself says what it does."""

    start_s: float
    end_s: float
    account: Account


@dataclass(frozen=True, slots=True)
class JobSignals:
    """All that is known of one job. `held`: when it held GPUs; `begins`: when it got GPUs or was started."""

    stretches: Sequence[StepStretch]
    pauses: Sequence[Pause]
    held: Sequence[tuple[float, float]]
    begins: Sequence[float]
    faults: Sequence[JobFault] = ()
    marks: Sequence[JobMark] = ()
    line_s: float = 0.0
    """Time from one line of steps to the next: where steps stop between two, nobody sees the last ones."""


def job_time(signals: JobSignals, has_steps: bool | None = None) -> JobTime:
    """The job's segments. Where nothing explains a time between steps there is none."""
    found = [*_steps(signals), *_between(signals)]
    found.sort(key=lambda segment: segment.start_s)
    marks = sorted(signals.marks, key=lambda mark: mark.start_s)
    if marks:
        found = list(_overlaid(found, marks))
    return JobTime(tuple(found), bool(signals.stretches) if has_steps is None else has_steps)


def _steps(signals: JobSignals) -> Iterator[Segment]:
    slow = [fault for fault in signals.faults if fault.slows is not None]
    usual_s = _usual_s(signals.stretches, slow)
    restarts = [pause for pause in signals.pauses if pause.restart or pause.back]
    for stretch in signals.stretches:
        yield _repeated(stretch, restarts, signals.faults) if stretch.again else _advanced(stretch, slow, usual_s)


def _usual_s(stretches: Iterable[StepStretch], slow: Sequence[JobFault]) -> float:
    """Time of a step while nothing slows it; NaN: there is none."""
    usual = [
        s.length_s / s.steps
        for s in stretches
        if s.steps > 0 and not any(f.start_s < s.end_s and s.start_s < f.end_s for f in slow)
    ]
    return median(usual) if usual else float("nan")


def _repeated(stretch: StepStretch, restarts: Sequence[Pause], faults: Iterable[JobFault]) -> Segment:
    """Steps computed again, for the reason of the last restart before them."""
    before = [pause for pause in restarts if pause.start_s <= stretch.start_s]
    why = _why(faults, before[-1].start_s, before[-1].end_s) if before else None
    return Segment(stretch.start_s, stretch.end_s, ((Account.RECOMPUTED, 1.0),), *_named(why))


def _advanced(stretch: StepStretch, slow: Iterable[JobFault], usual_s: float) -> Segment:
    """New steps; what is longer than usual under a fault that slows goes to that fault."""
    middle_s = (stretch.start_s + stretch.end_s) / 2
    by = next((fault for fault in slow if fault.start_s <= middle_s < fault.end_s), None)
    parts = _parts(stretch)
    if by is not None and by.slows is not None and stretch.steps > 0:
        excess = 1.0 - usual_s * stretch.steps / stretch.length_s
        if excess > 0:
            parts = _moved(parts, by.slows, excess)
    shown = tuple((account, share) for account, share in parts.items() if share > 0)
    return Segment(stretch.start_s, stretch.end_s, shown, *_named(by))


def _named(fault: JobFault | None) -> tuple[str, str]:
    """(cause, incident); empty where no fault explains it."""
    return ("", "") if fault is None else (fault.cause, fault.incident)


def _parts(stretch: StepStretch) -> dict[Account, float]:
    parts = {
        Account.PRODUCTIVE: stretch.compute_s / stretch.length_s,
        Account.DATA_WAIT: stretch.data_s / stretch.length_s,
        Account.EXPOSED_COMM: stretch.comm_s / stretch.length_s,
    }
    parts[Account.UNATTRIBUTED] = max(0.0, 1.0 - sum(parts.values()))
    return parts


_GIVE = (Account.UNATTRIBUTED, Account.EXPOSED_COMM, Account.PRODUCTIVE, Account.DATA_WAIT)
"""What nobody measured gives first; then communication, in which ranks wait for a slow one."""


def _moved(parts: dict[Account, float], to: Account, excess: float) -> dict[Account, float]:
    """With the excess in one account; what that account has already counts towards it."""
    moved, left = dict(parts), excess - (parts.get(to, 0.0) if to is Account.DATA_WAIT else 0.0)
    for account in _GIVE:
        if account is not to and left > 0:
            taken = min(moved[account], left)
            moved[account] -= taken
            moved[to] = moved.get(to, 0.0) + taken
            left -= taken
    return moved


def _between(signals: JobSignals) -> Iterator[Segment]:
    """What explains the time that is held and not in a step."""
    edges = [(s.start_s, s.end_s) for s in signals.stretches]
    pauses = {pause.start_s: pause for pause in signals.pauses}
    for start_s, end_s, after in _gaps(edges, signals.held):
        pause = pauses.get(start_s)
        why = _why(signals.faults, start_s, end_s)
        begins_s = end_s  # where no step came: what it does since is not known
        if after:
            restarted = pause is not None and pause.restart and why is None
            begins = [b for b in signals.begins if start_s <= b < end_s]
            begins_s = max(begins, default=start_s if restarted else end_s)
        if begins_s > start_s:
            first = bool(edges) and start_s >= edges[0][1]
            line_s = signals.line_s if first else 0.0
            yield from _stopped(start_s, begins_s, pause, why, after and begins_s < end_s, line_s)
        if begins_s < end_s:
            yield Segment(begins_s, end_s, ((Account.INITIALISING, 1.0),), *_named(why))


def _stopped(
    start_s: float, end_s: float, pause: Pause | None, why: JobFault | None, back: bool, line_s: float
) -> Iterator[Segment]:
    if why is not None and why.stops is not None:
        unseen = 0 < why.start_s - start_s <= line_s
        known_s = why.start_s if unseen or why.start_s - start_s > LATER_S else start_s
        if unseen and known_s < end_s:
            yield Segment(start_s, known_s, ((Account.UNATTRIBUTED, 1.0),))
        if known_s < end_s:
            yield Segment(known_s, end_s, ((why.stops, 1.0),), why.cause, why.incident)
    elif pause is not None and pause.saved and not back:
        yield Segment(start_s, end_s, ((Account.CHECKPOINTING, 1.0),))


def _gaps(
    steps: Sequence[tuple[float, float]], held: Sequence[tuple[float, float]]
) -> Iterator[tuple[float, float, bool]]:
    """(start, end, a step follows) of what lies between steps, from the first hold to the end of the last."""
    if not held:
        return
    at_s, end_s = min(start for start, _ in held), max(end for _, end in held)
    for begin_s, finish_s in steps:
        if begin_s > at_s:
            yield at_s, begin_s, True
        at_s = max(at_s, finish_s)
    if end_s > at_s:
        yield at_s, end_s, False


def _why(faults: Iterable[JobFault], start_s: float, end_s: float) -> JobFault | None:
    """The fault that explains why no step came in [start_s, end_s): it stood then, but not long before."""
    fits = [
        fault
        for fault in faults
        if fault.stops is not None
        and start_s - BEFORE_S <= fault.start_s < end_s
        and fault.end_s > start_s
        and end_s > start_s
    ]
    return min(fits, key=lambda fault: (fault.order, fault.start_s), default=None)


def _overlaid(segments: Sequence[Segment], marks: Sequence[JobMark]) -> Iterator[Segment]:
    """Segments with the job's own marks in their places; of marks that overlap the earlier one counts."""
    own: list[Segment] = []
    for mark in marks:
        start_s = max(mark.start_s, own[-1].end_s if own else mark.start_s)
        if start_s < mark.end_s:
            own.append(Segment(start_s, mark.end_s, ((mark.account, 1.0),)))
    pieces: list[Segment] = list(own)
    place = 0
    for segment in segments:
        at_s = segment.start_s
        while place < len(own) and own[place].end_s <= at_s:
            place += 1
        for cover in own[place:]:
            if cover.start_s >= segment.end_s:
                break
            if cover.start_s > at_s:
                pieces.append(_cut(segment, at_s, cover.start_s))
            at_s = max(at_s, cover.end_s)
        if at_s < segment.end_s:
            pieces.append(_cut(segment, at_s, segment.end_s))
    yield from sorted(pieces, key=lambda segment: segment.start_s)


def _cut(segment: Segment, start_s: float, end_s: float) -> Segment:
    return Segment(start_s, end_s, segment.parts, segment.cause, segment.incident)
