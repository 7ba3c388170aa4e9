"""The false-alarm budget, in words that a rota understands: false pages per week on this fleet, all detectors.

It rations how people are notified (`detectors.alarms.lanes`), never incidents: every alarm opens or joins one. An
event, and what is CERTAIN (`detectors.base`), is a fact and needs no budget; nor does a near-fact
(`detectors.alarms.lanes.is_near_fact`).

The budget is split over the statistical detectors by the number of series that each watches; what one does not need
goes to others. Each alarm has a price: the false alarms at least this strong that are to be expected per week on
this fleet, by what was found false here so far (`detectors.alarms.history.AlarmHistory`), which begins with what a
tail says where there is one, and with one alarm per share where there is none. One that costs more than its
detector's share, times the pages that quiet times have saved up, is no page. So a small fleet is paged for weak
alarms and a large one only for strong ones. (Testing many series at once by a rate per tick does not hold a rate
per week, because the ticks of one series are not independent: episodes are counted.)

However wrong the tails are, each detector has a balance. It fills at the pace of its share, and each page that is
found false takes one. A page is false if a person says so, or if it cleared by itself and no one acted
(`agent.correlation.watch`). An unanswered page takes nothing. A detector that alarms in far more places than it
states is noisy, and does not page until that has passed; other detectors are not affected.

A rate counts where it was measured (`detectors.alarms.promise`). An alarm elsewhere does not page until the
operator calibrates or a week of this fleet was watched.

What is kept of every detector and every open alarm is saved as versioned JSON (`BudgetState`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.alarms.history import DAY_S, OPEN_S, WEEK_S, AlarmHistory, Balance
from nightshift.detectors.alarms.lanes import (
    LANES,
    ORDER,
    PAGE_COST,
    REDO_S,
    Lane,
    Proof,
    WaitingGpus,
    can_wait,
    haste_of,
    in_lane,
    is_near_fact,
    lane_of,
    lost_share,
)
from nightshift.detectors.alarms.promise import TOLERATED, Unit, population_of, unmeasured, upper_ends
from nightshift.detectors.base import CERTAIN, Finding, RateBasis, SnapshotError, State, StatedRate

VERSION = 3


@dataclass(frozen=True, slots=True)
class BudgetLine:
    """One detector's part in the budget. Pages are per week on this fleet, rates per 1,000 series-days.

    expected: false pages per week; of statistics, the share, which is kept by counting. stated and realised rate
    are of pages (of an event's alarms). realised: of pages that were found false; NaN before a series was watched.
    tickets: alarms that did not page. noisy: why its alarms do not page now; empty where they may.
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
    tickets: int
    paged: int
    confirmed: int
    false: int
    noisy: str

    @property
    def basis_word(self) -> str:
        if self.stated.basis is RateBasis.EVENT:
            return "event"
        if self.stated.tail is None:
            return "learning"
        return "measured" if self.stated.tail.series_days > 0 else "bound"


@dataclass(slots=True)
class DetectorAccount:
    """What is kept of a detector. lately: places where it alarmed, false_lately: pages of it that were found false,
    both in about the last week."""

    balance: Balance
    series_days: float = 0.0
    alarms: int = 0
    tickets: int = 0
    paged: int = 0
    confirmed: int = 0
    false: int = 0
    lately: float = 0.0
    false_lately: float = 0.0
    history: AlarmHistory = field(default_factory=AlarmHistory)

    def saved(self) -> list[object]:
        counts = [self.series_days, self.alarms, self.tickets, self.paged, self.confirmed, self.false]
        return [self.balance.left, *counts, self.lately, self.false_lately, self.history.saved()]

    @staticmethod
    def load(saved: Sequence[Any]) -> DetectorAccount:
        """Takes back `saved`. Raises ValueError and TypeError where it is none."""
        left, days, alarms, tickets, paged, confirmed, false, lately, false_lately, history = saved
        figures = {"series_days": float(days), "lately": float(lately), "false_lately": float(false_lately)}
        if not all(map(math.isfinite, (float(left), *figures.values()))):
            raise ValueError("a figure is not finite")
        return DetectorAccount(
            balance=Balance(float(left)),
            alarms=int(alarms),
            tickets=int(tickets),
            paged=int(paged),
            confirmed=int(confirmed),
            false=int(false),
            history=AlarmHistory.load(history),
            **figures,
        )


@dataclass(frozen=True)
class BudgetState:
    """A budget's state. open: episode → its lane. pages: episode of a page → (detector, when), until it is judged.
    places: (detector, place) → when it alarmed there."""

    accounts: dict[str, DetectorAccount]
    open: dict[str, Lane]
    pages: dict[str, tuple[str, float]]
    places: dict[tuple[str, str], float]
    last_s: float | None

    def dump(self) -> bytes:
        meta = {
            "version": VERSION,
            "accounts": {name: account.saved() for name, account in self.accounts.items()},
            "open": self.open,
            "pages": self.pages,
            "places": [[what, where, t] for (what, where), t in self.places.items()],
            "at_s": self.last_s,
        }
        return json.dumps(meta).encode()

    @staticmethod
    def load(state: bytes) -> BudgetState:
        """Takes back a state of this or the previous version. Raises SnapshotError."""
        try:
            meta: dict[str, Any] = json.loads(state)
            version = meta["version"]
            if version not in (VERSION - 1, VERSION):
                raise SnapshotError(f"budget: snapshot version {version!r}, this code reads {VERSION} and 2")
            if version != VERSION:
                meta = _from_2(meta)
            accounts = {name: DetectorAccount.load(saved) for name, saved in meta["accounts"].items()}
            pages = {str(e): (str(d), float(t)) for e, (d, t) in meta["pages"].items()}
            places = {(str(what), str(where)): float(t) for what, where, t in meta["places"]}
            still = {str(key): Lane(lane) for key, lane in meta["open"].items()}
            last_s = None if meta["at_s"] is None else float(meta["at_s"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SnapshotError(f"budget: not a snapshot: {error!r}") from error
        if not all(map(math.isfinite, (*places.values(), last_s or 0.0))):
            raise SnapshotError("budget: a figure is not finite")
        return BudgetState(accounts, still, pages, places, last_s)


def _from_2(meta: dict[str, Any]) -> dict[str, Any]:
    """Version 2 had one balance for all and counted unanswered pages as false, so only its days are kept."""
    left = float(meta["left"][0])
    accounts = {
        name: [left, days, alarms, held, paged, right, 0, 0.0, 0.0, AlarmHistory(float(history[0])).saved()]
        for name, (days, alarms, held, paged, right, history) in meta["accounts"].items()
    }
    still = {key: Lane.PAGE if said else Lane.TICKET for key, said in meta["open"].items()}
    pages = {episode: (detector, t) for episode, (detector, _, t) in meta["spent"].items()}
    return {"accounts": accounts, "open": still, "pages": pages, "places": [], "at_s": meta["at_s"]}


WEEK_DAYS = 7.0
# Most false pages that quiet times save up, all detectors together; each has one at least.
BURST = 3.0
_STEPPERS = (SubjectKind.RANK, SubjectKind.JOB)
_FORGET_S, _TIDY_S = 3600.0, 60.0
TRUSTED = 10.0
SAME_PLACE_S = 3600.0
"""Alarms of a detector on one job or node within this time count once towards its noise."""
NOISY = 10.0
"""A detector is noisy that alarms in this many times as many places as it states, and in LEAST_NOISY at least."""
LEAST_NOISY = 10.0
MEASURED_PART = 0.9
"""Of the budget at most this part is for detectors that were measured; the rest needs some too."""


class BudgetSettings(BaseModel):
    """The false-alarm budget."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    false_pages_per_week: float = Field(
        default=1.0, gt=0, description="False pages per week on this fleet, all detectors together"
    )
    calibration: str = Field(
        default="",
        description="File that `nightshift calibrate` wrote from your telemetry; empty: what is shipped",
    )


class Budget:
    """Weighs every finding of a tick against the budget; one instance for all detectors."""

    def __init__(self, settings: BudgetSettings, stated: Mapping[str, StatedRate]) -> None:
        self.settings = settings
        self.stated = dict(stated)
        self._accounts = {name: self._fresh() for name in stated}
        self._series: dict[SubjectKind, int] = {}
        self._steppers: dict[Subject, float] = {}
        self._counts: dict[str, int] = {}
        """Series by detector, of this look."""
        self._quiet: dict[str, float] = {}
        """`measured_shares` of this look."""
        self._training: set[str] = set()
        """Names of the jobs of `_steppers`."""
        self._open: dict[str, Lane] = {}
        self._pages: dict[str, tuple[str, float]] = {}
        """Episode of a page → (detector, when), until it is judged."""
        self._waiting: dict[str, Finding] = {}
        self._places: dict[tuple[str, str], float] = {}
        self._last_s: float | None = None
        self._tidied_s = -math.inf

    def _fresh(self) -> DetectorAccount:
        return DetectorAccount(Balance(BURST))

    @property
    def left(self) -> float:
        """Pages of statistics that may still be found false now, all detectors together."""
        return sum(self._accounts[name].balance.left for name in self.shares())

    def waiting(self) -> list[tuple[Finding, str]]:
        """Open alarms that do not page, as last heard, strongest for their detector first, and why not. What was
        there before a restart is there again once its detector speaks of it."""
        found = [(finding, str(finding.facts["lane_reason"])) for finding in list(self._waiting.values())]
        return sorted(found, key=lambda pair: (pair[0].budget_cost, pair[0].since.t_s))

    def noisy(self) -> dict[str, str]:
        """Detectors that may not page now because they alarm too often: name → reason."""
        return {name: why for name in self._accounts if (why := self._noise(name))}

    def weigh(self, findings: Sequence[Finding], tick: Tick, inventory: Inventory) -> list[Finding]:
        """The same findings in the same order, each with its price and its lane."""
        self._watch(tick)
        shares, reach = self.shares(), WaitingGpus(inventory, tick.at_s)
        return [self._one(finding, shares, reach, tick.at_s, inventory) for finding in findings]

    def confirm(self, episodes: Iterable[str]) -> None:
        """These alarms were true: a person or a policy acted on them. An earlier verdict stays."""
        for episode in episodes:
            detector, _ = self._pages.pop(episode, ("", 0.0))
            if detector in self._accounts:
                self._accounts[detector].confirmed += 1
            for account in self._accounts.values():
                account.history.found_true(episode)

    def is_fact(self, finding: Finding) -> bool:
        """Whether an alarm needs no statistics."""
        stated = self.stated.get(finding.detector)
        return stated is None or self._is_sure(finding, stated)

    def refute(self, episodes: Iterable[str]) -> None:
        """The alarms of one incident were false. They count as one page of each detector that
        paged. An earlier verdict stays."""
        wrong = set()
        for episode in episodes:
            wrong.add(self._pages.pop(episode, ("", 0.0))[0])
            for account in self._accounts.values():
                account.history.found_false(episode)
        for name in wrong & self._accounts.keys():
            account = self._accounts[name]
            account.false += 1
            account.false_lately += 1.0
            account.balance.take()

    def measured_shares(self) -> dict[str, float]:
        """Pages per week of detectors that were measured to be quiet, the quietest first: TOLERATED times the upper
        end of their rates, where all of it fits beside the others'. Each job counts as one run a week."""
        left, found = MEASURED_PART * self.settings.false_pages_per_week, {}
        needs = {name: TOLERATED * self._measured(name) for name in self.stated}
        for name, need in sorted(needs.items(), key=lambda item: item[1]):
            if 0.0 < need <= left:
                found[name] = need
                left -= need
        return found

    def _measured(self, name: str) -> float:
        """False alarms per week by the upper end of what was measured elsewhere; NaN where nothing counts."""
        stated, ends = self.stated[name], upper_ends(name)
        if _is_event(stated) or stated.own or not ends or not self._count(name):
            return math.nan
        days = ends.get(Unit.DAYS, 0.0) * self._count(name) * WEEK_DAYS
        return max(days, ends.get(Unit.RUNS, 0.0) * len(self._training))

    def shares(self) -> dict[str, float]:
        """Pages per week by statistical detector: what a quiet one needs; of the rest by number of series, no more
        than each needs."""
        given = self.measured_shares()
        left = self.settings.false_pages_per_week - sum(given.values())
        wants = {
            name: self._needs(name)
            for name, rate in self.stated.items()
            if rate.basis is RateBasis.STATISTICAL and self._count(name) > 0 and rate.per_1000_series_days > 0
        }
        wants = {name: need for name, need in wants.items() if name not in given}
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
                realised = account.false
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
                account.tickets,
                account.paged,
                account.confirmed,
                account.false,
                self._noise(name),
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
            if series.subject not in self._steppers:
                self._training.add(_job_of(series.subject))
            self._steppers[series.subject] = tick.at_s
        self._counts.clear()
        self._quiet = self.measured_shares()
        self._pass_time(0.0 if self._last_s is None else tick.at_s - self._last_s, tick.at_s)
        if self._last_s is None or not 0 <= self._last_s - tick.at_s <= _FORGET_S:
            self._last_s = tick.at_s  # also where the clock was set back; not where a tick came late
        if not 0 <= tick.at_s - self._tidied_s < _TIDY_S:
            self._tidied_s = tick.at_s
            self._tidy(tick.at_s)

    def _pass_time(self, elapsed_s: float, at_s: float) -> None:
        if elapsed_s > 0:
            fade = math.exp(-elapsed_s / WEEK_S)
            for account in self._accounts.values():
                account.lately *= fade
                account.false_lately *= fade
        if not 0 < elapsed_s <= _FORGET_S:
            return  # nobody watched over a longer gap, so it neither fills a balance nor counts as healthy days
        shares = self.shares()
        part = max(BURST / max(len(shares), 1), 1.0)
        for name, account in self._accounts.items():
            count = self._count(name)
            account.series_days += elapsed_s / DAY_S * count
            account.history.watch(count, elapsed_s, at_s)
            # one false page of a quiet detector would else mute it for the many weeks that its share takes
            most = BURST if name in self._quiet else part
            account.balance.fill(shares.get(name, 0.0), most, elapsed_s)

    def _tidy(self, at_s: float) -> None:
        gone = [stepper for stepper, t in self._steppers.items() if at_s - t > _FORGET_S]
        for stepper in gone:
            del self._steppers[stepper]
        if gone:
            self._training = {_job_of(stepper) for stepper in self._steppers}
            self._counts.clear()
        self._places = {k: t for k, t in self._places.items() if at_s - t <= SAME_PLACE_S}
        # what is still open may be judged however long ago it paged
        self._pages = {e: p for e, p in self._pages.items() if e in self._open or at_s - p[1] <= OPEN_S}

    def _count(self, name: str) -> int:
        if name not in self._counts:
            stated = self.stated[name]
            kinds = (stated.series, *stated.also)
            steppers = len(self._steppers) if any(kind in _STEPPERS for kind in kinds) else 0
            others = sum(self._series.get(kind, 0) for kind in kinds if kind not in _STEPPERS)
            self._counts[name] = steppers + others
        return self._counts[name]

    def _weekly(self, name: str, per_1000: float) -> float:
        return per_1000 / 1000.0 * self._count(name) * WEEK_DAYS

    def _per_1000(self, name: str, weekly: float) -> float:
        return 1000.0 * weekly / (max(self._count(name), 1) * WEEK_DAYS)

    @staticmethod
    def _false_rate(stated: StatedRate) -> float:
        wrong = 1.0 if stated.precision is None else 1.0 - stated.precision
        return stated.per_1000_series_days * wrong

    def _one(
        self, finding: Finding, shares: Mapping[str, float], reach: WaitingGpus, at_s: float, inventory: Inventory
    ) -> Finding:
        stated = self.stated.get(finding.detector)
        if stated is None:
            return finding
        account, key = self._accounts[finding.detector], finding.episode
        known, sure = self._open.get(key), self._is_sure(finding, stated)
        allowed = self._allowed(finding.detector, shares)
        if not sure:
            cost = self._price(finding.detector, finding.score, allowed, at_s)
        else:
            cost = self._weekly(finding.detector, self._false_rate(stated)) if _is_event(stated) else 0.0
        finding = replace(finding, budget_cost=cost)
        if finding.state is State.FIRING:
            if not sure and (known is None or key in account.history.young):
                account.history.alarm(key, finding.score, at_s)
            if known is None:
                self._count_alarm(finding, at_s, inventory)
        proof, why = self._proof(finding, stated, allowed, at_s, inventory)
        gpus = 0 if known is Lane.PAGE else reach.gpus(finding.subject)
        # what has paged is not taken back, nor does a ticket become less
        lane = max(LANES[proof][haste_of(finding, proof, gpus)], known or Lane.DIGEST, key=ORDER.index)
        weighed = in_lane(finding, lane, proof, why or _cheap(finding, gpus))
        if finding.state is State.FIRING:
            self._enter(weighed, known, proof, at_s)
        elif finding.state is State.CLEAR:
            self._open.pop(key, None)
            self._waiting.pop(key, None)
        return weighed

    def _count_alarm(self, finding: Finding, at_s: float, inventory: Inventory) -> None:
        """Counts a new episode, and towards the detector's noise if the place is new too.

        Near-facts of a whole fleet at once may be true, so they are noise only where they were found false.
        """
        account = self._accounts[finding.detector]
        account.alarms += 1
        if is_near_fact(finding):
            return
        place = finding.detector, self._place(finding, at_s, inventory)
        account.lately += at_s - self._places.get(place, -math.inf) > SAME_PLACE_S
        self._places[place] = at_s

    def _enter(self, weighed: Finding, known: Lane | None, proof: Proof, at_s: float) -> None:
        """Books the lane of an open episode, and the one that it had before."""
        account, key, lane = self._accounts[weighed.detector], weighed.episode, lane_of(weighed)
        was_page, is_page = known is Lane.PAGE, lane is Lane.PAGE
        account.tickets += (not is_page) if known is None else (was_page - is_page)
        self._open[key] = lane
        if not is_page:
            self._waiting[key] = weighed
            return
        self._waiting.pop(key, None)
        if not was_page and proof is not Proof.FACT:
            account.paged += 1
            self._pages[key] = weighed.detector, at_s

    def _proof(
        self, finding: Finding, stated: StatedRate, allowed: float, at_s: float, inventory: Inventory
    ) -> tuple[Proof, str]:
        """How sure an alarm is, and why it is not sure enough to page; empty where it is."""
        if self._is_sure(finding, stated):
            return Proof.FACT, ""
        if noise := self._noise(finding.detector):
            return Proof.NOISY, noise
        why = self._unmeasured(finding, stated, at_s, inventory)
        if why and not self._is_watched(finding.detector):
            return Proof.UNMEASURED, why
        if not why and is_near_fact(finding):
            return Proof.NEAR_FACT, ""
        if finding.budget_cost > allowed * (1.0 + 1e-9):
            return Proof.COMMON, f"over its detector's part of the budget, {allowed:.2g} per week"
        if self._accounts[finding.detector].balance.left < 1.0 - 1e-9:
            return Proof.COMMON, "weekly false-page budget of its detector used up by pages that were false"
        return Proof.RARE, ""

    def _noise(self, name: str) -> str:
        """Why a detector's alarms do not page because there are too many; empty where they may."""
        account, stated = self._accounts[name], self.stated[name]
        if _is_event(stated):
            return ""
        if account.false_lately > LEAST_NOISY:
            wrong = f"{account.false_lately:.0f} of its pages this week were false"
            return f"detector {name} is noisy: {wrong}; its pages are muted"
        expected = self._weekly(name, stated.per_1000_series_days)
        if account.lately <= max(NOISY * expected, LEAST_NOISY):
            return ""
        alarms = f"alarms in {account.lately:.0f} places this week, {expected:.2g} stated"
        return f"detector {name} is noisy: {alarms}; its pages are muted"

    def _unmeasured(self, finding: Finding, stated: StatedRate, at_s: float, inventory: Inventory) -> str:
        """Why the stated rate does not count for an alarm; empty where it does.

        A rate counts where it was measured: on populations in `populations.json`, or on telemetry that the operator
        calibrated.
        """
        if stated.own:
            return ""
        above = inventory.ancestors(finding.subject, at_s)
        return unmeasured(finding.detector, population_of(finding.subject, above, self._training))

    def _is_watched(self, name: str) -> bool:
        """Whether a week of this fleet was watched: then what was found false here decides."""
        return self._accounts[name].history.days >= WEEK_DAYS * max(self._count(name), 1)

    def _allowed(self, name: str, shares: Mapping[str, float]) -> float:
        """What an alarm may cost (false alarms per week) and still page: its detector's share."""
        allowed = shares.get(name, 0.0) or self.settings.false_pages_per_week / len(self.stated)
        # what quiet times saved up may be spent on weaker alarms (alpha-investing: Foster and Stine, 2008)
        return allowed * max(self._accounts[name].balance.left, 1.0)

    @staticmethod
    def _is_sure(finding: Finding, stated: StatedRate) -> bool:
        return _is_event(stated) or finding.score >= CERTAIN

    def _price(self, name: str, score: float, allowed: float, at_s: float) -> float:
        """False alarms at least this strong that are to be expected per week on this fleet."""
        count, tail = max(self._count(name), 1), self.stated[name].tail
        enough = count * WEEK_DAYS / allowed
        fitted = math.inf if tail is None else 1000.0 / max(tail.rate(score), 1e-300)
        # No tail is trusted further than TRUSTED times what the share needs: a few alarms that it calls impossible
        # outweigh it. Without one, one alarm costs the share.
        prior_days = enough if tail is None else min(fitted, TRUSTED * enough)
        if name in self._quiet:
            prior_days = count * WEEK_DAYS / self._measured(name)  # so seldom on healthy telemetry, at most
        return self._accounts[name].history.rate(score, prior_days, at_s) * count * WEEK_DAYS

    @staticmethod
    def _place(finding: Finding, at_s: float, inventory: Inventory) -> str:
        """The job or node of an alarm: what goes wrong there at once is one fault to a rota."""
        above = inventory.ancestors(finding.subject, at_s)
        places = [s for s in above if s.kind is SubjectKind.JOB] or [s for s in above if s.kind is SubjectKind.NODE]
        return str(min(places) if places else finding.subject)

    def snapshot(self) -> bytes:
        """Accounts and open episodes as JSON, so that a restart neither counts twice nor forgets a page."""
        return BudgetState(self._accounts, self._open, self._pages, self._places, self._last_s).dump()

    def restore(self, state: bytes) -> None:
        """Takes back a snapshot of this or the previous version. Raises SnapshotError and stays fresh."""
        kept = BudgetState.load(state)
        self._accounts = {name: kept.accounts.get(name) or self._fresh() for name in self.stated}
        self._pages, self._places, self._open, self._last_s = kept.pages, kept.places, kept.open, kept.last_s


def _job_of(stepper: Subject) -> str:
    return stepper.name.rpartition("#")[0] or stepper.name  # a rank is named by its job


def _is_event(stated: StatedRate) -> bool:
    return stated.basis is RateBasis.EVENT


def _cheap(finding: Finding, gpus: int) -> str:
    """Why a sure alarm is no page."""
    if not gpus:
        return "no GPU is known to wait for it"
    if can_wait(finding):
        return f"a leak pages once its memory is full within {REDO_S / 60:.0f} min, while there is time to act"
    cost = gpus * lost_share(finding)
    return f"waiting costs {cost:.2g} GPU-hours per hour; a page starts at {PAGE_COST:g}"


def words(finding: Finding) -> str:
    """What an alarm costs of the budget, and why it does not page, for people."""
    said = f"{finding.budget_cost:.2g} false alarms at least this strong are expected per week on this fleet"
    lane, why = lane_of(finding), str(finding.facts.get("lane_reason", ""))
    return said if lane is Lane.PAGE else f"{said}; a {lane}, no page: {why or 'weekly false-page budget used up'}"
