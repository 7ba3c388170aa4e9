"""How far nodes' clocks are from ours, so that times of two nodes can be compared.

A node that tells its time in an answer told it between our sending and our receiving: its offset is that time less
the middle of the two, within half the round trip (Cristian 1989, doi:10.1007/BF01784024). An HTTP Date header says
the same to the second. A measurement loses worth as clocks drift: its uncertainty grows by `DRIFT` of its age.

The merge puts every line on our clock with it. From then on `Instant.order` says before, after or concurrent, with
the clocks' uncertainty between nodes and without any on one node.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from threading import Lock

from nightshift.collectors.frame import Instant
from nightshift.collectors.subject import Inventory, Subject, SubjectKind

# s/s: twice the tolerance of common quartz (±50 ppm), and within what NTP lets a clock be off (RFC 5905: 15 ppm
# frequency tolerance, slewed by at most 500 ppm).
DRIFT = 1e-4
# A measurement up to this half width corrects lines' times; a Date header's is coarser.
FINE_S = 0.25
MAX_OFFSET_S = 10 * 365 * 86400.0


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """`clock` was `offset_s` ahead of ours at `at_s` (Unix s), give or take `uncertainty_s`."""

    clock: str
    offset_s: float
    uncertainty_s: float
    at_s: float

    def half_width_s(self, at_s: float) -> float:
        """The uncertainty at another time."""
        return self.uncertainty_s + DRIFT * abs(at_s - self.at_s)


def measured(
    clock: str, sent_s: float, took_s: float, told_s: float = math.nan, date_s: float = math.nan
) -> ClockOffset | None:
    """The clock's offset by an answer that was asked for at `sent_s` (our clock, Unix s) and complete `took_s`
    later: by the time that it tells (`told_s`), else by its Date header; None where it says neither.

    >>> offset = measured("n1", sent_s=100.0, took_s=0.2, told_s=103.1)  # asked at 100 s, answered 0.2 s later
    >>> round(offset.offset_s, 3), offset.uncertainty_s
    (3.0, 0.1)
    >>> measured("n1", sent_s=100.0, took_s=0.2) is None  # an answer that tells no time
    True
    """
    half_s = took_s / 2
    if math.isnan(told_s):
        told_s, half_s = date_s + 0.5, half_s + 0.5  # Date is cut to whole seconds
    offset_s = told_s - (sent_s + took_s / 2)
    if not math.isfinite(offset_s) or abs(offset_s) > MAX_OFFSET_S:
        return None
    return ClockOffset(clock, offset_s, half_s, sent_s + took_s / 2)


class ClockOffsets:
    """The best measurement of every clock. Safe to read from other threads while measurements are added."""

    def __init__(self, offsets: Iterable[ClockOffset] = (), max_clocks: int = 100_000) -> None:
        self._best: dict[str, ClockOffset] = {}
        self._lock = Lock()
        self._max = max_clocks
        self.is_fine = False
        """Whether any clock is known finely enough to correct its times."""
        self.add(offsets)

    def add(self, offsets: Iterable[ClockOffset]) -> None:
        """Takes measurements. A coarser one is taken once the finer one has aged, or where the two contradict."""
        with self._lock:
            for new in offsets:
                known = self._best.get(new.clock)
                if known is None and len(self._best) >= self._max:
                    continue
                if known is None or self._is_better(new, known):
                    self._best[new.clock] = new
            self.is_fine = any(offset.uncertainty_s <= FINE_S for offset in self._best.values())

    @staticmethod
    def _is_better(new: ClockOffset, known: ClockOffset) -> bool:
        aged_s = known.half_width_s(new.at_s)
        was_stepped = abs(new.offset_s - known.offset_s) > new.uncertainty_s + aged_s
        return new.at_s >= known.at_s and (was_stepped or new.uncertainty_s <= aged_s)

    def offset(self, clock: str) -> ClockOffset | None:
        return self._best.get(clock)

    def __len__(self) -> int:
        return len(self._best)

    def corrected(self, instant: Instant, inventory: Inventory | None = None) -> Instant:
        """The instant as `Instant.order` needs it between nodes: its time on our clock where its own was seen to be
        off, its uncertainty with what is not known of the clock, the clock's name kept (one clock needs no margin
        against itself). Unchanged where the clock was measured coarsely or not at all."""
        known = self._best.get(_node_of(instant, inventory)) if instant.clock else None
        if known is None or known.uncertainty_s > FINE_S:
            return instant
        half_s = known.half_width_s(instant.t_s - known.offset_s)
        if abs(known.offset_s) <= half_s:
            return replace(instant, uncertainty_s=instant.uncertainty_s + half_s + abs(known.offset_s))
        return replace(instant, t_s=instant.t_s - known.offset_s, uncertainty_s=instant.uncertainty_s + half_s)


def _node_of(instant: Instant, inventory: Inventory | None) -> str:
    if inventory is None or "/" not in instant.clock:
        return instant.clock
    node = inventory.above(Subject(SubjectKind.POD, instant.clock), SubjectKind.NODE, instant.t_s)
    return instant.clock if node is None else node.name
