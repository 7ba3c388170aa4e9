"""Inference servers that stop while requests wait: hung, or stopping again and again.

A server that writes no token is idle, not ill, unless somebody waits for one. So the signal is progress (tokens
written or requests done, both counters) against demand (requests in the queue or in the batch). No progress for
long under demand is a hang; repeated pauses that cost a share of the time are a stall. A queue that only grows is
load, not a fault: then tokens come as fast as ever. A server that never wrote anything is starting up.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from nightshift.collectors.frame import Floats, Frame
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.alarms.promise import stated
from nightshift.detectors.base import Fault, Finding, SeriesExhibit, Severity, SnapshotError, StatedRate
from nightshift.detectors.episodes import Alarm, Episodes
from nightshift.detectors.series_table import Column, SeriesTable
from nightshift.detectors.snapshot import pack, unpack

VERSION = 1
RING = 64
_PROGRESS = ("server_generated_tokens_total", "server_requests_done_total")
_DEMAND = ("server_requests_waiting", "server_requests_running")


# No token while requests wait for this long; the prefill of the longest prompts takes less. `strength` scales it.
HANG_S = 120.0
# A shorter stop under demand is no pause: it can be one scrape that came early.
PAUSE_S = 20.0
# One pause can be a model that loads an adapter; three within the window are a habit.
PAUSES = 3
# Pauses are counted over this, as gaps of training are (`detectors.progress.stall`).
WINDOW_S = 900.0
# Share of the window that the pauses have to cost; `strength` scales it.
LOST_SHARE = 0.15
# Progress without a pause for this long clears.
CLEAR_S = 120.0
# A server unseen for this long was scaled down.
FORGET_S = 3600.0


class ServingSettings(BaseModel):
    """When a server has stopped."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    strength: float = Field(default=1.0, gt=0, description="This many times as long, or as costly, is an alarm")


class Serving:
    """HANG and DATA_STALL on the inference server whose requests wait for tokens that do not come.

    >>> from nightshift.collectors.subject import Subject, SubjectKind
    >>> from nightshift.detectors.contract.testing import START_S, frame, show, tick
    >>> chat = Subject(SubjectKind.SERVER, "http://n1:8000/chat")
    >>> def look(n):  # twelve requests wait; no token is written from the 20th look on
    ...     row = {"server_generated_tokens_total": 400.0 * min(n, 20), "server_requests_waiting": 12.0}
    ...     return tick(START_S + 5 * n, frames=[frame(START_S + 5 * n, {chat: row}, SubjectKind.SERVER)])
    >>> show(Serving(), [look(n) for n in range(60)])
    220 s: firing hang server:http://n1:8000/chat
        No token for 120 s while 12 requests wait or run
    """

    plugin: ClassVar[str] = "serving"
    LOOSE: ClassVar[float] = 0.1
    Settings = ServingSettings

    def __init__(self, settings: ServingSettings | None = None) -> None:
        self.settings = settings or ServingSettings()
        self._table = self._fresh()
        self._episodes = Episodes(self.name, self.stated.per_1000_series_days / 1000.0)

    def _fresh(self) -> SeriesTable:
        columns = {name: Column(np.float64, np.nan) for name in _PROGRESS}
        columns |= {
            "epoch": Column(np.int64, -1),
            "stood": Column(np.bool_, 0),  # the last look saw no progress under demand
            "works": Column(np.bool_, 0),  # it has written something since it started
            "moved_s": Column(np.float64, np.nan),  # last progress, or last time that nobody waited
            "last_s": Column(np.float64, np.nan),
            "start": Column(np.float64, np.nan, (RING,)),  # pauses: from, to (Unix s)
            "end": Column(np.float64, np.nan, (RING,)),
            "pauses": Column(np.int64, 0),
            "demand": Column(np.float64, np.nan),
        }
        return SeriesTable(columns, FORGET_S)

    @property
    def name(self) -> str:
        return self.plugin

    @property
    def faults(self) -> tuple[Fault, ...]:
        return (Fault.HANG, Fault.DATA_STALL)

    @property
    def strength(self) -> float:
        return self.settings.strength

    @property
    def stated(self) -> StatedRate:
        source = "no healthy server telemetry with a queue is at hand: a claim"
        return stated(self.plugin, 1.0, source, self.settings.strength, SubjectKind.SERVER)

    def update(self, tick: Tick, inventory: Inventory) -> list[Finding]:
        frame = tick.frames.get(SubjectKind.SERVER)
        seen: dict[Subject, bool] = {}
        if frame is not None and len(frame.index):
            whole = self._take(frame, tick.at_s)
            seen = dict(zip(frame.index.subjects, whole.tolist(), strict=True))
        return self._episodes.report(
            lambda fault, subject: self._word(fault, subject, seen.get(subject, False), tick.at_s)
        )

    def _take(self, frame: Frame, at_s: float) -> NDArray[np.bool_]:
        """One look at every server; which told both its demand and its progress."""
        table = self._table
        rows = table.rows(frame.index, at_s)
        slots = np.arange(rows.start, rows.start + len(frame.index)) if isinstance(rows, slice) else rows
        demand = _sum([_level(frame.column(name)) for name in _DEMAND])
        anew = table["epoch"][slots] != frame.epoch
        table["epoch"][slots] = frame.epoch
        moved, told = np.zeros(len(slots), bool), np.zeros(len(slots), bool)
        for name in _PROGRESS:
            value, before = _level(frame.column(name)), table[name][slots]
            told |= np.isfinite(value)
            with np.errstate(invalid="ignore"):
                moved |= (value > before) & ~anew
                anew |= value < before
            table[name][slots] = np.where(np.isfinite(value), value, before)
        whole = told & np.isfinite(demand)
        late = np.isfinite(table["last_s"][slots]) & (at_s <= table["last_s"][slots])
        whole &= ~late
        table["works"][slots] = np.where(whole, (table["works"][slots] & ~anew) | moved, table["works"][slots])
        waits = whole & (np.nan_to_num(demand) > 0) & ~moved & ~anew
        # after a gap in the data nobody knows when it moved last: the stop begins with the first look after it
        gap = ~(at_s - table["last_s"][slots] <= PAUSE_S + 60.0)
        goes_on = whole & (~waits | gap | np.isnan(table["moved_s"][slots]))
        ended = goes_on & moved & table["stood"][slots] & ~gap
        ended &= at_s - table["moved_s"][slots] >= PAUSE_S
        table["stood"][slots] = np.where(whole, waits & ~gap, table["stood"][slots])
        for row in np.flatnonzero(ended & table["works"][slots]).tolist():
            self._note(int(slots[row]), at_s)
        stopped_s = np.where(waits & table["works"][slots], at_s - table["moved_s"][slots], 0.0)
        table["moved_s"][slots] = np.where(goes_on, at_s, table["moved_s"][slots])
        table["demand"][slots] = np.where(whole, demand, table["demand"][slots])
        table["last_s"][slots] = np.where(whole, at_s, table["last_s"][slots])
        for row in np.flatnonzero((stopped_s >= self.settings.strength * HANG_S) & ~gap).tolist():
            self._hang(int(slots[row]), float(stopped_s[row]), at_s)
        for row in np.flatnonzero(ended).tolist():
            self._stall(int(slots[row]), at_s)
        found: NDArray[np.bool_] = whole | (late & told)
        return found

    def _note(self, slot: int, at_s: float) -> None:
        table = self._table
        place = int(table["pauses"][slot]) % RING
        table["start"][slot, place], table["end"][slot, place] = table["moved_s"][slot], at_s
        table["pauses"][slot] += 1

    def _hang(self, slot: int, stopped_s: float, at_s: float) -> None:
        table = self._table
        subject, tokens, demand = (
            table.subjects[slot],
            float(np.nan_to_num(table[_PROGRESS[0]][slot])),
            float(table["demand"][slot]),
        )
        since_s = at_s - stopped_s
        exhibit = SeriesExhibit(
            subject, _PROGRESS[0], "tokens", (since_s, at_s), (tokens, tokens), None, "", "no token in this time"
        )
        alarm = Alarm(
            Fault.HANG,
            subject,
            since_s,
            Severity.CRITICAL,
            f"No token for {stopped_s:.0f} s while {demand:.0f} requests wait or run",
            score=stopped_s / HANG_S,
            threshold=self.settings.strength,
            evidence=(exhibit,),
            facts={"silent_s": stopped_s, "requests": demand, "server": subject.name},
        )
        self._episodes.fire(alarm, at_s)

    def _stall(self, slot: int, at_s: float) -> None:
        s, table = self.settings, self._table
        start, end = table["start"][slot], table["end"][slot]
        recent = end > at_s - WINDOW_S
        if int(recent.sum()) < PAUSES:
            return
        order = np.argsort(end[recent])
        start, end = start[recent][order], end[recent][order]
        begin_s = max(at_s - WINDOW_S, float(start[0]))
        lost_s = float((end - np.maximum(start, begin_s)).sum())
        lost = lost_s / max(at_s - begin_s, 1.0)
        if lost < s.strength * LOST_SHARE:
            return
        subject, longest_s = table.subjects[slot], float((end - start).max())
        exhibit = SeriesExhibit(
            subject,
            "pause_s",
            "s",
            tuple(end.tolist()),
            tuple((end - start).tolist()),
            PAUSE_S,
            "",
            "stops under demand; the reference is the least that counts",
        )
        alarm = Alarm(
            Fault.DATA_STALL,
            subject,
            float(start[0]),
            Severity.WARNING,
            f"{len(end)} stops of up to {longest_s:.0f} s cost {100 * lost:.0f} % of the time while requests wait",
            score=lost / LOST_SHARE,
            threshold=s.strength,
            evidence=(exhibit,),
            facts={
                "stalls": float(len(end)),
                "lost_share": lost,
                "longest_stall_s": longest_s,
                "server": subject.name,
            },
        )
        self._episodes.fire(alarm, at_s)

    def _word(self, fault: Fault, subject: Subject, seen: bool, at_s: float) -> Finding | None:
        table, slot = self._table, self._table.slot(subject)
        if not seen or slot is None:
            return self._episodes.no_data(fault, subject, at_s, "The server's page tells nothing")
        if fault is Fault.HANG:
            if float(table["moved_s"][slot]) >= at_s:
                return self._episodes.clear(fault, subject, at_s, "Tokens flow again, or no request waits")
            return self._episodes.again(fault, subject, at_s)
        last_s = float(np.nanmax(table["end"][slot], initial=-np.inf))
        stopped_s = at_s - float(table["moved_s"][slot])
        if self._episodes.quiet_s(fault, subject, last_s, at_s) >= CLEAR_S and stopped_s < PAUSE_S:
            return self._episodes.clear(fault, subject, at_s, "Tokens come without stops again")
        return self._episodes.again(fault, subject, at_s)

    def snapshot(self) -> bytes:
        subjects, arrays = self._table.saved()
        return pack(self.name, VERSION, {"subjects": subjects, "episodes": self._episodes.saved()}, arrays)

    def restore(self, state: bytes) -> None:
        _, meta, arrays = unpack(state, self.name, (VERSION,))
        table, episodes = self._fresh(), Episodes(self.name, self.stated.per_1000_series_days / 1000.0)
        try:
            table.load(meta["subjects"], arrays)
            episodes.load(meta["episodes"])
        except (KeyError, TypeError, ValueError) as error:
            raise SnapshotError(f"{self.name}: {error!r}") from error
        self._table, self._episodes = table, episodes


def _level(column: Floats) -> Floats:
    with np.errstate(invalid="ignore"):
        return np.where((column >= 0) & (column < 2.0**53), column, np.nan)


def _sum(columns: list[Floats]) -> Floats:
    """The sum of what is told; NaN where nothing is."""
    stacked: NDArray[Any] = np.stack(columns)
    total: Floats = np.nansum(stacked, axis=0)
    return np.where(np.isfinite(stacked).any(axis=0), total, np.nan)
