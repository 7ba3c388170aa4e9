"""The false-alarm budget, in words that a rota understands: false pages per week on this fleet, all detectors.

The budget is split over the statistical detectors by the number of series that each watches; what one does not need
goes to others. Each alarm costs the false alarms at least this strong that are to be expected per week on this
fleet: by what this fleet has shown so far (`detectors.alarms.history.AlarmHistory`), which begins with what a tail
says where there is one, and with one alarm per share where there is none. One that costs more than its detector's
share, times the pages that quiet times have saved up, does not page: it is kept, told and counted, and pages once
it is strong enough. So a small fleet hears weak alarms and a large one only strong ones. (Testing many series at
once by a rate per tick does not hold a rate per week, because the ticks of one series are not independent: episodes
are counted.)

Whatever the tails are worth, every page of a statistical detector takes one from a purse that fills at the budget's
pace, and gives it back where somebody acted on it; one that may drain a node takes one of a second purse too.
So an operator who installs and does nothing has the budget kept from the first day, under any noise. While the
purse is empty, alarms are *not yet promised*: told, counted, part of incidents that are open, but no page.

A rate counts where it was measured (`detectors.alarms.populations`). An alarm elsewhere is a *ticket* until
the operator calibrates or a week of this fleet was watched: its incident opens and is shown, and nobody is paged.

Alarms of one job merge (`MERGE_S`); one that returns soon is the same page (`REFRACTORY_S`). An event is an event:
it pages, and states its base rate and the precision that follows; so does what is CERTAIN (`detectors.base`).

What is kept of every detector and every open alarm is saved as versioned JSON (`BudgetState`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.alarms.history import DAY_S, AlarmHistory, Purse, spend
from nightshift.detectors.alarms.populations import NEAR_FACTS, population_of, unmeasured
from nightshift.detectors.base import CERTAIN, Fault, Finding, RateBasis, Severity, SnapshotError, State, StatedRate

VERSION = 2


@dataclass(frozen=True, slots=True)
class BudgetLine:
    """One detector's part in the budget. Pages are per week on this fleet, rates per 1,000 series-days.

    expected: false pages per week; of statistics, the share, which is kept by counting. stated and realised rate
    are of pages (of an event's alarms). realised: pages that nobody confirmed, an upper bound of the false ones;
    NaN before a series was watched.
    """

    detector: str
    stated: StatedRate
    series: int
    share: float
    expected: float
    stated_rate: float
    realised: float
    series_days: float
    alarms: int
    withheld: int
    paged: int
    confirmed: int

    @property
    def basis_word(self) -> str:
        if self.stated.basis is RateBasis.EVENT:
            return "event"
        if self.stated.tail is None:
            return "learning"
        return "measured" if self.stated.tail.series_days > 0 else "bound"


class Said(IntEnum):
    """How an open episode stands."""

    WITHHELD = 0
    MERGED = 1
    """It pages as part of an earlier page, or as an event; nothing was spent on it."""
    PAGED = 2
    DRAINS = 3
    """Paged, and spent of the second purse too."""


@dataclass(slots=True)
class DetectorAccount:
    series_days: float = 0.0
    alarms: int = 0
    withheld: int = 0
    paged: int = 0
    confirmed: int = 0
    history: AlarmHistory = field(default_factory=AlarmHistory)


@dataclass(frozen=True)
class BudgetState:
    """A budget's state. left: what the two purses hold; spent: episode → (detector, what it spent, when)."""

    accounts: dict[str, DetectorAccount]
    left: tuple[float, float]
    open: dict[str, Said]
    spent: dict[str, tuple[str, Said, float]]
    paged_s: dict[tuple[str, str], float]
    last_s: float | None

    def dump(self) -> bytes:
        accounts = {
            name: [a.series_days, a.alarms, a.withheld, a.paged, a.confirmed, a.history.saved()]
            for name, a in self.accounts.items()
        }
        meta = {
            "version": VERSION,
            "accounts": accounts,
            "left": self.left,
            "open": self.open,
            "spent": self.spent,
            "paged": [[what, where, t] for (what, where), t in self.paged_s.items()],
            "at_s": self.last_s,
        }
        return json.dumps(meta).encode()

    @staticmethod
    def load(state: bytes) -> BudgetState:
        """Takes back a state of this or the previous version. Raises SnapshotError."""
        try:
            meta: dict[str, Any] = json.loads(state)
            version = meta["version"]
            if version not in (1, VERSION):
                raise SnapshotError(f"budget: snapshot version {version!r}, this code reads {VERSION} and 1")
            if version == 1:
                meta = _from_1(meta)
            accounts = {
                name: DetectorAccount(
                    float(days), int(alarms), int(held), int(paged), int(right), AlarmHistory.load(history)
                )
                for name, (days, alarms, held, paged, right, history) in meta["accounts"].items()
            }
            left, drains = (float(n) for n in meta["left"])
            spent = {str(e): (str(d), Said(said), float(t)) for e, (d, said, t) in meta["spent"].items()}
            paged_s = {(str(what), str(where)): float(t) for what, where, t in meta["paged"]}
            still = {str(key): Said(said) for key, said in meta["open"].items()}
            last_s = None if meta["at_s"] is None else float(meta["at_s"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SnapshotError(f"budget: not a snapshot: {error!r}") from error
        if not all(map(math.isfinite, (left, drains, *paged_s.values(), last_s or 0.0))):
            raise SnapshotError("budget: a figure is not finite")
        return BudgetState(accounts, (left, drains), still, spent, paged_s, last_s)


def _from_1(meta: dict[str, Any]) -> dict[str, Any]:
    """Version 1 had a bucket per detector and no history: what was watched counts, alarms of then as unknown."""
    old = meta["accounts"].items()
    accounts = {
        n: [days, alarms, held, 0, 0, AlarmHistory(float(days), float(alarms)).saved()]
        for n, (days, alarms, held, _) in old
    }
    still = {key: int(Said.PAGED if pages else Said.WITHHELD) for key, pages in meta["open"].items()}
    return {**meta, "accounts": accounts, "left": [1.0, 1.0], "open": still, "spent": {}}


WEEK_DAYS = 7.0
TICKET = "ticket"
"""Value of the fact `lane`: the incident opens and is shown, and nobody is paged for it."""
OF_A_JOB = frozenset(
    {
        Fault.GPU_MEMORY_LEAK,
        Fault.HOST_MEMORY_LEAK,
        Fault.LOSS_DIVERGED,
        Fault.LOSS_NONFINITE,
        Fault.DATA_STALL,
        Fault.HANG,
        Fault.OOM_KILL,
        Fault.JOB_CRASH,
        Fault.POD_START,
    }
)
"""Faults whose remedy is the job's own restart: urgent perhaps, but no node is drained for them."""
_STEPPERS = (SubjectKind.RANK, SubjectKind.JOB)
_FORGET_S, _TIDY_S = 3600.0, 60.0
TRUSTED = 10.0
CONFIRMED_S = 30 * DAY_S
"""A page can be confirmed for this long after it ended."""


# Alarms on a job or node while one of its alarms pages, and this long after, are the same page.
MERGE_S = 600.0
# An alarm that returns on its subject within this time is no new page.
REFRACTORY_S = 3600.0


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
    burst: float = Field(
        default=3.0,
        ge=1,
        description="Most false pages at the same time; quiet times save up to this many",
    )


class Budget:
    """Weighs every finding of a tick against the budget; one instance for all detectors."""

    def __init__(self, settings: BudgetSettings, stated: Mapping[str, StatedRate]) -> None:
        self.settings = settings
        self.stated = dict(stated)
        self._accounts = {name: DetectorAccount() for name in stated}
        weekly, most = settings.false_pages_per_week, settings.burst
        self._purse = Purse(weekly, most, most)
        self._drains = Purse(weekly * settings.drain_share, 1.0, 1.0)
        self._series: dict[SubjectKind, int] = {}
        self._steppers: dict[Subject, float] = {}
        self._training: set[str] = set()
        """Names of the jobs of `_steppers`."""
        self._open: dict[str, Said] = {}
        self._spent: dict[str, tuple[str, Said, float]] = {}
        """Episode → (detector, what it spent, when), while it may still be confirmed."""
        self._why: dict[str, str] = {}
        self._waiting: dict[str, Finding] = {}
        self._paged_s: dict[tuple[str, str], float] = {}
        self._last_s: float | None = None
        self._tidied_s = -math.inf

    @property
    def left(self) -> float:
        """Pages of statistics that may still be false now."""
        return self._purse.left

    def why(self, episode: str) -> str:
        """Why an open alarm does not page; empty where it does."""
        return self._why.get(episode, "")

    def waiting(self) -> list[tuple[Finding, str]]:
        """Open alarms that do not page, as last heard, strongest for their detector first, and why not. What was
        withheld before a restart is there again once its detector speaks of it."""
        found = [(finding, self.why(episode)) for episode, finding in list(self._waiting.items())]
        return sorted(found, key=lambda pair: (pair[0].budget_cost, pair[0].since.t_s))

    def weigh(self, findings: Sequence[Finding], tick: Tick, inventory: Inventory) -> list[Finding]:
        """The same findings in the same order, with what each costs and whether it pages."""
        self._watch(tick)
        shares = self.shares()
        return [self._one(finding, shares, tick.at_s, inventory) for finding in findings]

    def confirm(self, episodes: Iterable[str]) -> None:
        """Somebody let act on these alarms: they were not false, and what they spent comes back. Told again, it
        changes nothing."""
        for episode in episodes:
            detector, said, _ = self._spent.pop(episode, ("", Said.WITHHELD, 0.0))
            if detector in self._accounts:
                self._accounts[detector].confirmed += 1
                self._purse.give_back()
                if said is Said.DRAINS:
                    self._drains.give_back()
            for account in self._accounts.values():
                account.history.confirmed(episode)

    def shares(self) -> dict[str, float]:
        """Pages per week by statistical detector: by number of series, no more than it needs."""
        left = self.settings.false_pages_per_week
        wants = {
            name: self._needs(name)
            for name, rate in self.stated.items()
            if rate.basis is RateBasis.STATISTICAL and self._count(name) > 0 and rate.per_1000_series_days > 0
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

    def _needs(self, name: str) -> float:
        """Pages per week if all alarms of a detector paged: by its tail or by what this fleet has shown."""
        tail, history = self.stated[name].tail, self._accounts[name].history
        prior_days = 0.0 if tail is None else 1000.0 / max(tail.rate_per_1000, 1e-300)
        return self._weekly(name, 1000.0 * history.rate(-math.inf, prior_days, self._last_s or 0.0))

    def lines(self) -> list[BudgetLine]:
        """What every detector was given, promises on this fleet, and did."""
        shares = self.shares()
        found = []
        for name, stated in self.stated.items():
            account = self._accounts[name]
            share = shares.get(name, math.nan)
            days = account.series_days
            if stated.basis is RateBasis.EVENT:
                expected, rate = self._weekly(name, self._false_rate(stated)), stated.per_1000_series_days
                realised = account.alarms
            else:
                expected = share
                rate = self._per_1000(name, share) if share >= 0 else stated.per_1000_series_days
                realised = account.paged - account.confirmed
            line = BudgetLine(
                name,
                stated,
                self._count(name),
                share,
                expected,
                rate,
                1000.0 * realised / days if days > 0 else math.nan,
                days,
                account.alarms,
                account.withheld,
                account.paged,
                account.confirmed,
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
            self._training.add(_job_of(series.subject))
        self._pass_time(0.0 if self._last_s is None else tick.at_s - self._last_s, tick.at_s)
        if self._last_s is None or not 0 <= self._last_s - tick.at_s <= _FORGET_S:
            self._last_s = tick.at_s  # also where the clock was set back; not where a tick came late
        if not 0 <= tick.at_s - self._tidied_s < _TIDY_S:
            self._tidied_s = tick.at_s
            self._tidy(tick.at_s)

    def _pass_time(self, elapsed_s: float, at_s: float) -> None:
        if not 0 < elapsed_s <= _FORGET_S:
            return  # nobody watched over a longer gap, so it neither fills the purse nor counts as healthy days
        for name, account in self._accounts.items():
            count = self._count(name)
            account.series_days += elapsed_s / DAY_S * count
            account.history.watch(count, elapsed_s, at_s)
        self._purse.fill(elapsed_s)
        self._drains.fill(elapsed_s)

    def _tidy(self, at_s: float) -> None:
        horizon_s = max(MERGE_S, REFRACTORY_S)
        self._steppers = {s: t for s, t in self._steppers.items() if at_s - t <= _FORGET_S}
        self._training = {_job_of(stepper) for stepper in self._steppers}
        self._paged_s = {k: t for k, t in self._paged_s.items() if at_s - t <= horizon_s}
        # what is still open may be confirmed however long ago it paged
        self._spent = {e: s for e, s in self._spent.items() if e in self._open or at_s - s[2] <= CONFIRMED_S}

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
        known, certain = self._open.get(key), self._is_certain(finding, stated)
        allowed = self._allowed(finding, shares)
        if not certain:
            cost = self._price(finding.detector, finding.score, allowed, at_s)
        else:
            cost = self._weekly(finding.detector, self._false_rate(stated)) if _is_event(stated) else 0.0
        # also of what has ended: an incident is a ticket while all that opened it are
        lane = {} if certain else self._lane(finding, stated, at_s, inventory)
        finding = replace(finding, facts={**finding.facts, **lane}) if lane else finding
        if finding.state is not State.FIRING:
            if finding.state is State.CLEAR:
                self._end(finding, known, at_s)
            return replace(finding, pages=known is not Said.WITHHELD, budget_cost=cost)
        if not certain and (known is None or key in account.history.young):
            account.history.heard(key, finding.score, at_s)
        said = known
        if not known:
            said = Said.MERGED if certain else self._decide(finding, cost, allowed, at_s, inventory)
        assert said is not None
        weighed = replace(finding, pages=bool(said), budget_cost=cost)
        self._enter(weighed, known, said)
        if said >= Said.PAGED:
            self._paged_s[self._place(finding, at_s, inventory)] = at_s
        return weighed

    def _enter(self, finding: Finding, known: Said | None, said: Said) -> None:
        """Books how an open episode stands now, and how it stood before."""
        account, key = self._accounts[finding.detector], finding.episode
        if known is None:
            account.alarms += 1
            account.withheld += said is Said.WITHHELD
        elif said and not known:
            account.withheld -= 1  # it was held when it came, and has grown strong enough since
        self._open[key] = said
        if said:
            self._why.pop(key, None)
            self._waiting.pop(key, None)
        else:
            self._waiting[key] = finding

    def _lane(self, finding: Finding, stated: StatedRate, at_s: float, inventory: Inventory) -> dict[str, str]:
        """Facts of an alarm that opens an incident and calls nobody; none where it may page.

        A rate counts where it was measured: on populations in `populations.json`, on telemetry that the operator
        calibrated, or here, once a week of this fleet was watched.
        """
        watched = self._accounts[finding.detector].history.days
        if stated.own or watched >= WEEK_DAYS * max(self._count(finding.detector), 1):
            return {}
        if finding.fault in NEAR_FACTS:
            return {}
        above = inventory.ancestors(finding.subject, at_s)
        where = population_of(finding.subject, above, self._training)
        why = unmeasured(finding.detector, where)
        return {"lane": TICKET, "lane_reason": why} if why else {}

    def _allowed(self, finding: Finding, shares: Mapping[str, float]) -> float:
        """What an alarm may cost (false alarms per week) and still page: its detector's share."""
        allowed = shares.get(finding.detector, 0.0) or self.settings.false_pages_per_week / len(self.stated)
        allowed *= self.settings.drain_share if _drains(finding) else 1.0
        # what quiet times saved up may be spent on weaker alarms (alpha-investing: Foster and Stine, 2008)
        return allowed * max(self._purse.left, 1.0)

    def _end(self, finding: Finding, known: Said | None, at_s: float) -> None:
        """Forgets a cleared episode, but for when its page ended: one that returns soon is the same page."""
        self._open.pop(finding.episode, None)
        self._why.pop(finding.episode, None)
        self._waiting.pop(finding.episode, None)
        if known is not None and known >= Said.PAGED:
            self._paged_s[self._key(finding)] = at_s

    def _is_certain(self, finding: Finding, stated: StatedRate) -> bool:
        return _is_event(stated) or finding.score >= CERTAIN

    def _price(self, name: str, score: float, allowed: float, at_s: float) -> float:
        """False alarms at least this strong that are to be expected per week on this fleet."""
        count, tail = max(self._count(name), 1), self.stated[name].tail
        enough = count * WEEK_DAYS / allowed
        fitted = math.inf if tail is None else 1000.0 / max(tail.rate(score), 1e-300)
        # No tail is trusted further than TRUSTED times what the share needs: a few alarms that it calls impossible
        # outweigh it. Without one, one alarm costs the share.
        prior_days = enough if tail is None else min(fitted, TRUSTED * enough)
        return self._accounts[name].history.rate(score, prior_days, at_s) * count * WEEK_DAYS

    def _decide(self, finding: Finding, cost: float, allowed: float, at_s: float, inventory: Inventory) -> Said:
        here, there = self._key(finding), self._place(finding, at_s, inventory)
        same_s, near_s = self._paged_s.get(here, -math.inf), self._paged_s.get(there, -math.inf)
        if at_s - same_s <= REFRACTORY_S or at_s - near_s <= MERGE_S:
            return Said.MERGED
        if cost > allowed * (1.0 + 1e-9):
            self._why[finding.episode] = f"over its detector's part of the budget, {allowed:.2g} per week"
            return Said.WITHHELD
        drains = _drains(finding)
        if not spend([self._purse, self._drains] if drains else [self._purse]):
            self._why[finding.episode] = "weekly false-page budget used up: no page was confirmed real"
            return Said.WITHHELD
        said = Said.DRAINS if drains else Said.PAGED
        self._accounts[finding.detector].paged += 1
        self._spent[finding.episode] = (finding.detector, said, at_s)
        self._paged_s[here] = at_s
        return said

    @staticmethod
    def _key(finding: Finding) -> tuple[str, str]:
        return f"{finding.detector}/{finding.fault}", str(finding.subject)

    @staticmethod
    def _place(finding: Finding, at_s: float, inventory: Inventory) -> tuple[str, str]:
        """The job or node, whatever the detector: what goes wrong there at once is one page to a rota."""
        above = inventory.ancestors(finding.subject, at_s)
        places = [s for s in above if s.kind is SubjectKind.JOB] or [s for s in above if s.kind is SubjectKind.NODE]
        return "at", str(min(places) if places else finding.subject)

    def snapshot(self) -> bytes:
        """Accounts and open episodes as JSON, so that a restart neither pays twice nor forgets what was said."""
        kept = BudgetState(
            self._accounts,
            (self._purse.left, self._drains.left),
            self._open,
            self._spent,
            self._paged_s,
            self._last_s,
        )
        return kept.dump()

    def restore(self, state: bytes) -> None:
        """Takes back a snapshot of this or the previous version. Raises SnapshotError and stays fresh."""
        kept = BudgetState.load(state)
        self._accounts = {name: kept.accounts.get(name, DetectorAccount()) for name in self.stated}
        self._purse.left = min(kept.left[0], self._purse.most)
        self._drains.left = min(kept.left[1], self._drains.most)
        self._spent, self._paged_s, self._open, self._last_s = kept.spent, kept.paged_s, kept.open, kept.last_s


def _job_of(stepper: Subject) -> str:
    return stepper.name.rpartition("#")[0] or stepper.name  # a rank is named by its job


def _is_event(stated: StatedRate) -> bool:
    return stated.basis is RateBasis.EVENT


def _drains(finding: Finding) -> bool:
    return finding.severity is Severity.CRITICAL and finding.fault not in OF_A_JOB


def words(finding: Finding) -> str:
    """What an alarm cost of the budget, for people."""
    said = f"{finding.budget_cost:.2g} false alarms at least this strong are expected per week on this fleet"
    if finding.facts.get("lane") == TICKET:
        said += f"; a ticket, no page: {finding.facts['lane_reason']}"
    return said if finding.pages else f"no stated false-alarm rate yet, so it does not page on its own; {said}"


def is_ticket(findings: Iterable[Finding]) -> bool:
    """Whether all alarms that opened an incident are tickets: one alarm that may page makes it a page."""
    lanes = [finding.facts.get("lane") for finding in findings if finding.pages]
    return bool(lanes) and all(lane == TICKET for lane in lanes)
