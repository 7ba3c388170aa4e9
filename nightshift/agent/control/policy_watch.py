"""Keeps a learned policy's trust by itself: outcomes are settled, evidence is looked at when it is due, an approved
step is taken whichever door it was approved at, and what goes wrong takes the policy down in the same transaction
that notes it. One per daemon; only the replica that leads calls it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from nightshift.agent.approvals.policy_gate import PolicyGate
from nightshift.agent.store.receipts import Receipts
from nightshift.collectors.base import Permanent, Temporary
from nightshift.controllers.cache.features import INTERFACE as CACHE
from nightshift.controllers.decision import Mode, Trust
from nightshift.controllers.outcome import Joiner, JoinSettings, ReceiptOutcome, Sample, Stretch
from nightshift.controllers.power.features import INTERFACE
from nightshift.controllers.promotion import (
    STEPS,
    PolicyHealth,
    PolicyStanding,
    PromotionEvidence,
    is_look_due,
    trust_of,
)

INTERFACES = {each.kind: each for each in (INTERFACE, CACHE)}
"""Kinds that can be shipped: the daemon asks power's, a serving engine the cache's. A learned order of the queue is
only ever evaluated."""
EVERY_S = 30.0
_WORTH_EVERY_S = 3600.0
_DAY_S = 86_400.0


_SIGNS = {
    "drift:": "drift",  # first: it names inputs, and one of them is called budget
    "budget event": "budget",
    "violation": "violation",
    "locked out": "lockout",
    "worse than": "worth",
}
REASONS = (*_SIGNS.values(), "other")


class PolicyCounters(Protocol):
    """Where numbers about policies go: the daemon's metrics."""

    def standing(self, kind: str, mode: str, level: int) -> None: ...
    def demoted(self, kind: str, reason: str) -> None: ...
    def outcomes(self, kind: str, state: str, count: int) -> None: ...
    def jobs(self, kind: str, settled: int) -> None: ...


class Uncounted:
    """Counts nothing."""

    def standing(self, kind: str, mode: str, level: int) -> None: ...
    def demoted(self, kind: str, reason: str) -> None: ...
    def outcomes(self, kind: str, state: str, count: int) -> None: ...
    def jobs(self, kind: str, settled: int) -> None: ...


def reason_of(demotion: str) -> str:
    """A demotion's reason as one of few words, for a metric's label."""
    return next((word for sign, word in _SIGNS.items() if sign in demotion), "other")


@dataclass
class PolicyWatch:
    """`gate`: where standings are kept; `receipts`: where decisions are."""

    gate: PolicyGate
    receipts: Receipts
    counters: PolicyCounters = field(default_factory=Uncounted)

    def __post_init__(self) -> None:
        self._joiners: dict[str, Joiner] = {}
        self._asked: dict[str, tuple[str, JoinSettings]] = {}  # kind → sha256 of what this daemon asks
        self._evaluations: dict[str, PromotionEvidence] = {}
        self._mutex = threading.Lock()
        self._next_s = -float("inf")
        self._worth_s: dict[str, float] = {}
        self._log = structlog.get_logger("policies")

    def begin(
        self,
        kind: str,
        policy: str,
        sha256: str,
        join: JoinSettings | None = None,
        evaluation: PromotionEvidence | None = None,
    ) -> PolicyStanding:
        """Stands what the daemon will ask up. What is open stays open: this replica may only stand by.
        `evaluation`: of a rule that acts, what stands in for its shadow."""
        standing = self.gate.stand(kind, policy, sha256)
        if evaluation is not None:
            self._evaluations[kind] = evaluation
        self._asked[kind] = sha256, join or JoinSettings()
        self._told(standing)
        return standing

    def lead(self) -> None:
        """This replica leads from now on: gives up the outcomes that the one before it left open, since what that
        one had seen of them is gone. Raises Temporary where the store is away; to be told again, then."""
        now_s = self.gate.clock.now_s()
        for kind, (_, join) in self._asked.items():
            lost = self.receipts.void_open(kind, now_s, "the daemon restarted, or another replica took over")
            if lost:
                self.counters.outcomes(kind, "void", lost)
            with self._mutex:
                self._joiners[kind] = Joiner(join)

    def trusts(self, kind: str) -> Callable[[str, bool, float], Trust]:
        """(job, its owner opted in, now) → trust, from one reading of the store. None for a policy that stands but
        is not what this daemon asks: it was stood up after the daemon started."""
        try:
            standing = self.gate.standing(kind)
        except Permanent:  # nobody has stood a policy up
            return lambda _job, _opted_in, _now_s: Trust()
        if kind in self._asked and self._asked[kind][0] != standing.manifest_sha256:
            return lambda _job, _opted_in, _now_s: Trust()
        criteria = self.gate.criteria_of(kind)
        return lambda job, opted_in, now_s: trust_of(standing, job, opted_in, now_s, criteria)

    def note(self, kind: str, what: PolicyHealth) -> str:
        """What happened to the policy just now; why that demotes it, empty where it does not."""
        why = self.gate.note(kind, what)
        if why:
            self._demoted(kind, why)
        return why

    def happened(
        self, kind: str, now_s: float, stretches: Iterable[Stretch], samples: Iterable[Sample], gone: Iterable[str]
    ) -> None:
        """Takes decisions and telemetry in and stores the outcomes that are known now. A store that is away costs
        these outcomes, never a decision: they are counted as lost."""
        with self._mutex:
            joiner = self._joiners.setdefault(kind, Joiner())
            for sample in samples:
                joiner.saw(sample)
            for job in gone:
                joiner.ended(job, now_s)
            for stretch in stretches:
                joiner.decided(stretch)
            found = joiner.settle(now_s)
        if found:
            self._store(kind, found)

    def _store(self, kind: str, found: list[ReceiptOutcome]) -> None:
        try:
            self.receipts.settle_all(found)
        except (Temporary, Permanent) as error:
            self.counters.outcomes(kind, "lost", len(found))
            self._log.error("outcome write failed", policy=kind, outcomes=len(found), error=str(error))
            return
        void = sum(bool(outcome.void) for outcome in found)
        self.counters.outcomes(kind, "settled", len(found) - void)
        self.counters.outcomes(kind, "void", void)
        if violations := sum(outcome.violated for outcome in found):
            self.note(kind, PolicyHealth(violations=violations))

    def turn(self, now_s: float) -> None:
        """Every half minute: takes approved steps, looks where a look is due, asks whether a policy is worth it."""
        if self._next_s - EVERY_S <= now_s < self._next_s:
            return
        self._next_s = now_s + EVERY_S
        try:
            for standing in self.gate.standings():
                self._turn(standing, now_s)
        except (Temporary, Permanent) as error:
            self._log.error("policy check failed", error=str(error))

    def _turn(self, standing: PolicyStanding, now_s: float) -> None:
        kind = standing.kind
        made = self.gate.carry_out_approved(kind)
        if made is not None:
            self._log.info("policy promoted", policy=made.policy, mode=str(made.mode))
            standing = made
        if kind in self._evaluations and self._asked[kind][0] == standing.manifest_sha256:
            standing = self.gate.stand_in(kind, self._evaluations[kind])
        self._told(standing)
        jobs = self.receipts.jobs(kind, standing.policy, standing.mode, standing.since_s)
        self.counters.jobs(kind, jobs)
        if is_look_due(standing, jobs, self.gate.criteria_of(kind)):
            found = self.receipts.gathered(kind, standing.policy, standing.mode, standing.since_s)
            evidence = self.gate.look(kind, found.turns, found.fallback_share, lost=found.lost)
            self._log.info("policy checked", policy=standing.policy, ready=evidence.ready, words=evidence.words)
            standing = self.gate.standing(kind)
        if standing.evidence is not None and standing.evidence.ready and standing.next is not None:
            self.gate.propose(kind)
        if standing.mode in (Mode.CANARY, Mode.ACTIVE) and self._is_worth_due(kind, now_s):
            since_s = max(standing.since_s, now_s - _DAY_S)
            turns = self.receipts.gathered(kind, standing.policy, standing.mode, since_s).turns
            if why := self.gate.watch(kind, PolicyHealth(treated=tuple(turns))):
                self._demoted(kind, why)

    def _is_worth_due(self, kind: str, now_s: float) -> bool:
        due = abs(now_s - self._worth_s.get(kind, -float("inf"))) >= _WORTH_EVERY_S
        if due:
            self._worth_s[kind] = now_s
        return due

    def _demoted(self, kind: str, why: str) -> None:
        self.counters.demoted(kind, reason_of(why))
        self._log.error("policy demoted", policy=kind, why=why)
        self._told(self.gate.standing(kind))

    def _told(self, standing: PolicyStanding) -> None:
        self.counters.standing(standing.kind, str(standing.mode), STEPS.index(standing.mode))
