"""What power control asks of the daemon around it, and what it tells: receipts, the policy's health, outcomes.

A receipt is stored twice: before anything is done, so that no crash loses one, and with what was read back at the
turn after. What happened to a policy is owed until the store took it, and till then no policy is trusted.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from nightshift.agent.control.power_absence import Standing
from nightshift.agent.control.power_decision import Belief
from nightshift.collectors.base import Permanent, Temporary
from nightshift.controllers.actuators.power_nodes import LeaseAnswer
from nightshift.controllers.decision import ControlDecision, Trust, confirm
from nightshift.controllers.outcome import Sample, Stretch
from nightshift.controllers.power import shield
from nightshift.controllers.power.worth import reference, worth
from nightshift.controllers.promotion import PolicyHealth

Trusts = Callable[[str, bool, float], Trust]
"""(job, its owner opted in, now) → how far the policy is trusted with it."""


@dataclass(frozen=True)
class Happened:
    """What one turn tells of outcomes: decisions that came into force, what was seen, and jobs that are gone."""

    now_s: float
    stretches: Sequence[Stretch] = ()
    samples: Sequence[Sample] = ()
    gone: Sequence[str] = ()


@dataclass
class Around:
    """What the loop asks of the daemon; tests hand in their own."""

    keep: Callable[[Sequence[tuple[ControlDecision, float, bool]]], None]
    """Stores receipts, each with the chance that the policy was executed and whether it was."""
    trusts: Callable[[], Trusts] = lambda: lambda _job, _opted, _now_s: Trust()
    """Read once a turn."""
    note: Callable[[PolicyHealth], str] = lambda _health: ""
    """Tells what happened to the policy just now; where that demotes it, why. Raises Temporary where the store is
    away: it is told again, and until then no policy is trusted."""
    happened: Callable[[Happened], None] = lambda _happened: None
    halted: Callable[[], bool] = lambda: False
    ill_nodes: Callable[[], frozenset[str]] = frozenset
    """Nodes on which an incident is open."""
    term: Callable[[], int] = lambda: 1
    """Another one than at the last turn: another daemon may have led in between, and what it kept is taken up."""
    leads: Callable[[], bool] = lambda: True
    store: Callable[[bytes], None] = lambda _state: None
    recall: Callable[[], bytes | None] = lambda: None
    released: Callable[[], Mapping[str, float]] = dict
    """GPUs and nodes that people gave back to power control, and when (Unix s)."""
    standing: Standing | None = None
    """None: nobody can say which nodes are deleted."""
    count: Callable[[str], None] = lambda _outcome: None
    gauge: Callable[[str, float, bool], None] = lambda _rack, _headroom_w, _open: None


@dataclass
class PowerTurn:
    """What one turn did, for tests and logs."""

    receipts: list[ControlDecision] = field(default_factory=list)
    orders: shield.LimitOrders | None = None
    grants: Mapping[str, LeaseAnswer] = field(default_factory=dict)


ReadBack = Callable[[Mapping[str, Any]], Mapping[str, Mapping[str, int | None]]]


@dataclass(frozen=True, slots=True)
class Receipt:
    """A decision until it is read back: its GPUs, the chance that the policy was executed, and whether it was."""

    decision: ControlDecision
    uuids: tuple[str, ...]
    chance: float
    treated: bool

    def row(self) -> tuple[ControlDecision, float, bool]:
        return self.decision, self.chance, self.treated


class Telling:
    """One per daemon."""

    def __init__(self, around: Around) -> None:
        self._around = around
        self.pending: list[Receipt] = []
        """Receipts of the last turn."""
        self._owed = PolicyHealth()
        self._mutex = threading.Lock()
        self._turned_s = math.nan
        self._jobs: frozenset[str] = frozenset()
        self._log = structlog.get_logger("power")

    def forget(self) -> None:
        """Another daemon led in between."""
        self.pending, self._jobs, self._turned_s = [], frozenset(), math.nan

    # Receipts ----------------------------------------------------------------------------------------------------

    def keep(self) -> None:
        self._around.keep([receipt.row() for receipt in self.pending])

    def ordered(self, changed_mw: Mapping[str, int]) -> None:
        """What followed in the middle of the window belongs to the turn's receipts."""
        for number, one in enumerate(self.pending):
            mine = {uuid: changed_mw[uuid] for uuid in one.uuids if uuid in changed_mw}
            executed = {**one.decision.executed, "limits_mw": {**one.decision.executed["limits_mw"], **mine}}
            self.pending[number] = replace(one, decision=replace(one.decision, executed=executed))
        self.keep()

    def settle(self, enforced_mw: Mapping[str, int | None], clocks: ReadBack) -> None:
        """Stores the receipts of the turn before, with what was read back."""
        done = []
        for one in self.pending:
            executed = one.decision.executed
            back = {u: enforced_mw.get(u) for u in one.uuids if u in executed["limits_mw"]}
            if back or executed.get("clocks_mhz"):
                read = {**executed, "limits_mw": back, **clocks(executed)}
                done.append(replace(one, decision=confirm(one.decision, read)).row())
        self.pending = []
        if done:
            self._around.keep(done)

    # Health ------------------------------------------------------------------------------------------------------

    def health(self, what: PolicyHealth) -> bool:
        """What happened to the policy, at once; whether it was taken. What was not is owed, and told again."""
        with self._mutex:
            owed, self._owed = self._owed, PolicyHealth()
        what = PolicyHealth(
            what.turns + owed.turns, what.lockouts + owed.lockouts, 0, what.budget_events + owed.budget_events,
            what.drift,
        )  # fmt: skip
        try:
            self._around.note(what)
        except (Temporary, Permanent) as error:
            with self._mutex:
                self._owed = what
            self._log.error("outcome store failed", error=str(error))
            return False
        return True

    def trusts(self, what: PolicyHealth) -> Trusts:
        """How far the policy is trusted in this turn, once everything that happened is told."""
        if not self.health(what):
            return lambda _job, _opted, _now_s: Trust()
        return self._around.trusts()

    # Outcomes ----------------------------------------------------------------------------------------------------

    def window(
        self, beliefs: Mapping[str, Belief], racks: Mapping[str, Iterable[str]], overdrawn: set[str], now_s: float
    ) -> None:
        """Tells what came of the window that ended now, and which jobs are gone. `racks`: of each job; `overdrawn`:
        those whose breaker is open."""
        since_s, self._turned_s = self._turned_s, now_s
        samples = []
        for job, (gang, _, seen, _) in beliefs.items() if math.isfinite(since_s) else ():
            reward, slowdown = worth(seen.speed, seen.draw, reference(gang))
            samples.append(Sample(job, since_s, now_s, reward, slowdown, not overdrawn.isdisjoint(racks[job])))
        gone = sorted(self._jobs - beliefs.keys())
        self._jobs = frozenset(beliefs)
        self._around.happened(Happened(now_s, (), samples, gone))
