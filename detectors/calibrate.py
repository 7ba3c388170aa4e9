"""The false-alarm budget, in words that a rota understands: false pages per week on this fleet, all detectors.

The budget is split over the statistical detectors by the number of series that each watches; what one does not
need goes to others. Each alarm then costs what the calibration says: the false alarms at least this strong
that healthy telemetry of this size gives in a week. One that costs more than its detector's share does not page: it
is kept, told and counted, and pages as soon as it is strong enough. So a small fleet hears weak alarms and a large
one only strong ones, and a strong alarm always comes through. (Testing many series at once by a rate per tick does
not hold a rate per week, because the ticks of one series are not independent: what is counted here is episodes.)

On top of that, for the case that a calibration is wrong here: alarms of one job merge (`merge_s`), one that returns
soon is the same page (`refractory_s`), and a token bucket per detector bounds borderline alarms: a page takes
cost / share of a token, and share tokens come back per week.

Only what was measured can be silenced: a statistical detector without a tail always pages, and its promise is
printed as a claim. An event is an event: it pages, and states its base rate and the precision that follows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from collectors.subject import Inventory, Subject, SubjectKind
from collectors.tick import Tick
from detectors.base import Fault, Finding, RateBasis, Severity, SnapshotError, State, StatedRate

WEEK_DAYS = 7.0
DAY_S = 86400.0
VERSION = 1
OF_A_JOB = frozenset(
    {
        Fault.GPU_MEMORY_LEAK,
        Fault.HOST_MEMORY_LEAK,
        Fault.LOSS_DIVERGED,
        Fault.LOSS_NONFINITE,
        Fault.DATA_STALL,
        Fault.HANG,
        Fault.OOM_KILL,
    }
)
"""Faults whose remedy is the job's own restart: urgent perhaps, but no node is drained for them."""
_STEPPERS = (SubjectKind.RANK, SubjectKind.JOB)
_FORGET_S, _TIDY_S = 3600.0, 60.0


class BudgetSettings(BaseModel):
    """The false-alarm budget."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    false_pages_per_week: float = Field(
        default=1.0, gt=0, description="False pages per week on this fleet, all detectors together"
    )
    drain_share: float = Field(
        default=0.1,
        gt=0,
        le=1,
        description="Share of it for alarms that can drain a node (critical ones of hardware)",
    )
    calibration: str = Field(
        default="",
        description="File that `nightshift calibrate` wrote from your telemetry; empty: what is shipped",
    )
    burst: float = Field(default=3.0, ge=1, description="Borderline pages that a detector may send at once")
    merge_s: float = Field(
        default=600.0, ge=0, description="Alarms of one detector on one job or node within this time are one page"
    )
    refractory_s: float = Field(
        default=3600.0, ge=0, description="An alarm that returns on its subject within this time is no new page"
    )


@dataclass(frozen=True, slots=True)
class Line:
    """One detector's part in the budget. Pages are per week on this fleet, rates per 1,000 series-days.

    realised: all alarms, true ones too: an upper bound of the false ones; NaN before a series was watched.
    """

    detector: str
    stated: StatedRate
    series: int
    share: float
    expected: float
    score: float
    realised: float
    series_days: float
    alarms: int
    withheld: int

    @property
    def basis_word(self) -> str:
        if self.stated.basis is RateBasis.EVENT:
            return "event"
        if self.stated.tail is None:
            return "claim"
        return "measured" if self.stated.tail.series_days > 0 else "bound"


@dataclass(slots=True)
class _Account:
    series_days: float = 0.0
    alarms: int = 0
    withheld: int = 0
    tokens: float = math.inf


class Budget:
    """Weighs every finding of a tick against the budget; one instance for all detectors."""

    def __init__(self, settings: BudgetSettings, stated: Mapping[str, StatedRate]) -> None:
        self.settings = settings
        self.stated = dict(stated)
        self._accounts = {name: _Account() for name in stated}
        self._series: dict[SubjectKind, int] = {}
        self._steppers: dict[Subject, float] = {}
        self._open: dict[str, bool] = {}
        self._paged_s: dict[tuple[str, str], float] = {}
        self._last_s: float | None = None
        self._tidied_s = -math.inf

    def weigh(self, findings: Sequence[Finding], tick: Tick, inventory: Inventory) -> list[Finding]:
        """The same findings in the same order, with what each costs and whether it pages."""
        self._watch(tick)
        shares = self.shares()
        return [self._one(finding, shares, tick.at_s, inventory) for finding in findings]

    def shares(self) -> dict[str, float]:
        """Pages per week by statistical detector with a tail: by number of series, no more than it needs."""
        left = self.settings.false_pages_per_week
        wants = {
            name: self._weekly(name, rate.tail.rate_per_1000)
            for name, rate in self.stated.items()
            if rate.basis is RateBasis.STATISTICAL and rate.tail is not None and self._count(name) > 0
        }
        given: dict[str, float] = {}
        while wants:
            total = sum(self._count(name) for name in wants)
            part = {name: left * self._count(name) / total for name in wants}
            sated = [name for name in wants if wants[name] <= part[name]]
            if not sated:
                return given | part
            for name in sated:
                given[name] = wants.pop(name)
                left -= given[name]
        return given

    def lines(self) -> list[Line]:
        """What every detector was given, promises on this fleet, and did."""
        shares = self.shares()
        found = []
        for name, stated in self.stated.items():
            account = self._accounts[name]
            share = shares.get(name, math.nan)
            score = math.nan
            if stated.basis is RateBasis.EVENT:
                expected = self._weekly(name, self._false_rate(stated))
            elif stated.tail is not None and name in shares:
                expected = share
                score = stated.tail.score(self._per_1000(name, share))
            else:
                expected = self._weekly(name, stated.per_1000_series_days)
            days = account.series_days
            realised = 1000.0 * account.alarms / days if days > 0 else math.nan
            line = Line(
                name,
                stated,
                self._count(name),
                share,
                expected,
                score,
                realised,
                days,
                account.alarms,
                account.withheld,
            )
            found.append(line)
        return found

    def _watch(self, tick: Tick) -> None:
        for kind in list(self._series):
            if kind not in tick.frames and tick.frames:
                self._series[kind] = 0
        for kind, frame in tick.frames.items():
            self._series[kind] = len(frame.index)
        for series in tick.steps:
            self._steppers[series.subject] = tick.at_s
        if self._last_s is not None and 0 < tick.at_s - self._last_s <= _FORGET_S:
            days = (tick.at_s - self._last_s) / DAY_S
            for name, account in self._accounts.items():
                account.series_days += days * self._count(name)
        if self._last_s is None or tick.at_s > self._last_s:
            self._refill(0.0 if self._last_s is None else tick.at_s - self._last_s)
            self._last_s = tick.at_s
        if not 0 <= tick.at_s - self._tidied_s < _TIDY_S:
            self._tidied_s = tick.at_s
            horizon_s = max(self.settings.merge_s, self.settings.refractory_s)
            self._steppers = {s: t for s, t in self._steppers.items() if tick.at_s - t <= _FORGET_S}
            self._paged_s = {k: t for k, t in self._paged_s.items() if tick.at_s - t <= horizon_s}

    def _refill(self, elapsed_s: float) -> None:
        shares = self.shares()
        for name, account in self._accounts.items():
            earned = shares.get(name, 0.0) * elapsed_s / (WEEK_DAYS * DAY_S)
            account.tokens = min(account.tokens + earned, self.settings.burst)

    def _count(self, name: str) -> int:
        stated = self.stated[name]
        kinds = (stated.series, *stated.also)
        steppers = len(self._steppers) if any(kind in _STEPPERS for kind in kinds) else 0
        return steppers + sum(self._series.get(kind, 0) for kind in kinds if kind not in _STEPPERS)

    def _weekly(self, name: str, per_1000: float) -> float:
        return per_1000 / 1000.0 * self._count(name) * WEEK_DAYS

    def _per_1000(self, name: str, weekly: float) -> float:
        return 1000.0 * weekly / (max(self._count(name), 1) * WEEK_DAYS)

    @staticmethod
    def _false_rate(stated: StatedRate) -> float:
        wrong = 1.0 if stated.precision is None else 1.0 - stated.precision
        return stated.per_1000_series_days * wrong

    def _one(self, finding: Finding, shares: Mapping[str, float], at_s: float, inventory: Inventory) -> Finding:
        stated = self.stated.get(finding.detector)
        if stated is None:
            return finding
        account, key = self._accounts[finding.detector], finding.episode
        if finding.state is not State.FIRING:
            paged = self._open.get(key, True)
            if finding.state is State.CLEAR:
                self._open.pop(key, None)
                if paged:
                    self._paged_s[self._key(finding)] = at_s
            return replace(finding, pages=paged, budget_cost=self._cost(finding, stated))
        cost = self._cost(finding, stated)
        known = self._open.get(key)
        pages = known or self._may_page(finding, stated, cost, shares, account, at_s, inventory)
        if known is None:
            account.alarms += 1
            account.withheld += not pages
        elif pages and not known:
            account.withheld -= 1
        self._open[key] = pages
        if pages:
            self._paged_s[self._key(finding)] = self._paged_s[self._place(finding, at_s, inventory)] = at_s
        return replace(finding, pages=pages, budget_cost=cost)

    def _cost(self, finding: Finding, stated: StatedRate) -> float:
        if stated.basis is RateBasis.EVENT:
            rate = self._false_rate(stated)
        else:
            rate = stated.tail.rate(finding.score) if stated.tail else stated.per_1000_series_days
        return self._weekly(finding.detector, rate)

    def _may_page(
        self,
        finding: Finding,
        stated: StatedRate,
        cost: float,
        shares: Mapping[str, float],
        account: _Account,
        at_s: float,
        inventory: Inventory,
    ) -> bool:
        if stated.basis is RateBasis.EVENT or stated.tail is None:
            return True
        share = shares.get(finding.detector, 0.0)
        drains = finding.severity is Severity.CRITICAL and finding.fault not in OF_A_JOB
        allowed = share * (self.settings.drain_share if drains else 1.0)
        same = self._paged_s.get(self._key(finding), -math.inf)
        near = self._paged_s.get(self._place(finding, at_s, inventory), -math.inf)
        if at_s - same <= self.settings.refractory_s or at_s - near <= self.settings.merge_s:
            return True
        if cost > allowed * (1.0 + 1e-9):
            return False
        takes = cost / allowed if allowed > 0 else 0.0
        if takes > account.tokens:
            return False
        account.tokens -= takes
        return True

    @staticmethod
    def _key(finding: Finding) -> tuple[str, str]:
        return f"{finding.detector}/{finding.fault}", str(finding.subject)

    @staticmethod
    def _place(finding: Finding, at_s: float, inventory: Inventory) -> tuple[str, str]:
        above = inventory.ancestors(finding.subject, at_s)
        places = [s for s in above if s.kind is SubjectKind.JOB] or [s for s in above if s.kind is SubjectKind.NODE]
        return f"{finding.detector}/{finding.fault}", f"at {min(places) if places else finding.subject}"

    def snapshot(self) -> bytes:
        """Accounts and open episodes as JSON, so that a restart neither pays twice nor forgets what was said."""
        accounts = {
            name: [a.series_days, a.alarms, a.withheld, a.tokens if math.isfinite(a.tokens) else None]
            for name, a in self._accounts.items()
        }
        paged = [[what, where, t] for (what, where), t in self._paged_s.items()]
        meta = {"version": VERSION, "accounts": accounts, "open": self._open, "paged": paged, "at_s": self._last_s}
        return json.dumps(meta).encode()

    def restore(self, state: bytes) -> None:
        """Takes back a snapshot. Raises SnapshotError and stays fresh."""
        try:
            meta: dict[str, Any] = json.loads(state)
            if meta["version"] != VERSION:
                raise SnapshotError(f"budget: snapshot version {meta['version']!r}, this code reads {VERSION}")
            accounts = {
                name: _Account(float(days), int(alarms), int(held), math.inf if tokens is None else float(tokens))
                for name, (days, alarms, held, tokens) in meta["accounts"].items()
            }
            paged = {(str(what), str(where)): float(t) for what, where, t in meta["paged"]}
            still = {str(key): bool(pages) for key, pages in meta["open"].items()}
            last_s = None if meta["at_s"] is None else float(meta["at_s"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SnapshotError(f"budget: not a snapshot: {error!r}") from error
        self._accounts = {name: accounts.get(name, _Account()) for name in self.stated}
        self._paged_s, self._open, self._last_s = paged, still, last_s


def words(finding: Finding) -> str:
    """What an alarm cost of the budget, for people."""
    said = f"{finding.budget_cost:.2g} false alarms at least this strong are expected per week on this fleet"
    return said if finding.pages else f"{said}: over its detector's share, so it does not page by itself"
