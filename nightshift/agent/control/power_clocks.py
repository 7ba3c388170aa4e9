"""SM clocks in the daemon: which gangs no power limit can bind on, what is believed of their clocks, their locks.

A gang is on the power lever until that is seen to save nothing (it draws too little for any limit, or a limit was
tried and lifted for good). Then, while its draw stays well below its limits and its clocks are free, it goes on to
the clock with the same belief, heuristic and guard on other curves (`controllers.power.clock_curves`). A change of
phase, or a rack that has too little for all, sends it back, with its clock free.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from nightshift.agent.control.power_decision import Belief, Decided
from nightshift.agent.control.power_windows import GpuWindow
from nightshift.controllers.actuators.power_nodes import NodeStatus
from nightshift.controllers.power import clocks, descent, shield
from nightshift.controllers.power.belief import TOP, Outlook
from nightshift.controllers.power.clock_curves import careful, clock_bank
from nightshift.controllers.power.clocks import FREE_SHARE, GRID_MHZ
from nightshift.controllers.power.curves import LEVELS
from nightshift.controllers.power.gang import Gang, level_of, look

UNBOUND = 0.85
"""A draw below this share of the enforced limit: the limit does not bind."""


@dataclass(frozen=True)
class _Taken:
    """A window of a gang on the clock. `looks`: windows taken before; `speed`, `draw`: NaN where it teaches
    nothing."""

    job: str
    gang: Gang
    looks: int
    unbound: bool
    speed: float
    draw: float


@dataclass
class GangClocks:
    """Of one daemon; `gangs`: those on the clock. Does nothing where it is not enabled."""

    settings: clocks.Settings
    memory: clocks.ClockMemory
    gangs: dict[str, Gang]

    def __init__(self, settings: clocks.Settings, may: bool = True) -> None:
        self.settings, self.memory, self.gangs = settings, clocks.ClockMemory(), {}
        self._bank = clock_bank() if settings.enabled and may else None
        self._seen: list[clocks.ClockReading] = []
        self._next = self.memory
        self._top: dict[str, int] = {}

    @property
    def on(self) -> bool:
        return self._bank is not None

    def observe(
        self,
        gpus: Iterable[shield.Gpu],
        windows: Iterable[GpuWindow],
        beliefs: Mapping[str, Belief],
        told: Mapping[str, NodeStatus],
        granted: Mapping[str, bool],
        s: shield.Settings,
    ) -> None:
        """Takes a window in: what was read of every GPU's clock."""
        self._top |= {u: g.max_clock_mhz for node in told.values() for u, g in node.gpus.items()}
        busy = {job for job, belief in beliefs.items() if not belief[2].missing()}
        of = {w.uuid: w for w in windows}
        self._seen = [
            clocks.ClockReading(
                gpu,
                self._top.get(gpu.uuid, clocks.MAX_MHZ),
                of[gpu.uuid].clock_now_mhz,
                of[gpu.uuid].clock_high_mhz,
                of[gpu.uuid].clock_read_s,
                of[gpu.uuid].throttled,
                gpu.job in busy,
            )
            for gpu in gpus
        ]
        by_hand = frozenset().union(*(node.clocks_by_hand for node in told.values()))
        self.memory = clocks.observe(self._seen, self.memory, granted, s, by_hand)

    def believe(self, beliefs: Mapping[str, Belief], windows: Mapping[str, list[GpuWindow]]) -> dict[str, Belief]:
        """Beliefs of all gangs, each on its lever; a power gang whose phase changed on the clock begins anew."""
        if self._bank is None:
            return dict(beliefs)
        found, taken = dict(beliefs), list[_Taken]()
        seen: dict[str, dict[str, clocks.ClockReading]] = defaultdict(dict)
        for one in self._seen:
            seen[one.gpu.job][one.gpu.uuid] = one
        for job, belief in beliefs.items():
            members, mine = windows[job], seen.get(job, {})
            if not all(w.uuid in mine for w in members):
                continue
            if job in self.gangs and any(w.draw_w > UNBOUND * w.limit_w for w in members):
                found[job] = self._back(job, belief)
            elif (one_taken := self._taken(job, belief, members, mine)) is not None:
                taken.append(one_taken)
        # all in one look at the bank, with the care of any: a look reads nothing of it that differs by gang
        windows_of = [(each.gang, each.speed, each.draw) for each in taken]
        said = look(windows_of, self._bank, beliefs[taken[0].job][3]) if taken else []
        for each, outlook in zip(taken, said, strict=True):
            if int(each.gang.jobs.looks[0]) <= each.looks:  # another phase: which lever is worth it is asked anew
                found[each.job] = self._back(each.job, beliefs[each.job])
            else:
                found[each.job] = _known(each.gang, outlook, beliefs[each.job], each.unbound)
        return found

    def _taken(
        self, job: str, belief: Belief, members: list[GpuWindow], mine: Mapping[str, clocks.ClockReading]
    ) -> _Taken | None:
        """A window of a gang on the clock, or of one that comes to it now; None for one on the power lever."""
        unbound = all(w.draw_w <= UNBOUND * w.limit_w for w in members)
        held = [self._held(mine[w.uuid], w) for w in members]
        gang = self.gangs.get(job)
        fit = gang is not None and unbound and all(math.isfinite(share) for share in held)
        if gang is None:
            power = belief[0]
            if not (unbound and all(share == 1.0 for share in held) and power.unbound(belief[3])):
                return None
            # it brings its reference along, and this window is in that already: it is not taken twice
            gang = self.gangs[job] = power.on_clock(level_of(self.settings.floor_share))
        lock = min(self.memory.ordered_mhz.get(u, one.max_mhz) / one.max_mhz for u, one in mine.items())
        gang.level = level_of(lock - 1e-3) if lock < 1.0 else TOP
        speed, draw = (belief[2].speed, belief[2].draw) if fit else (math.nan, math.nan)
        return _Taken(job, gang, int(gang.jobs.looks[0]), unbound, speed, draw)

    def _back(self, job: str, belief: Belief) -> Belief:
        """Back to the power lever, where nothing is known yet."""
        power, seen, observation, care = belief
        del self.gangs[job]
        power.jobs = descent.Jobs.start(power.jobs.lowest)
        return power, _unknown(seen), replace(observation, slowdown=math.nan, slowdown_sd=math.nan), care

    def _held(self, one: clocks.ClockReading, window: GpuWindow) -> float:
        """Share of its highest clock that a GPU had all through the window; NaN where that is not known."""
        lock_mhz = self.memory.ordered_mhz.get(one.gpu.uuid)
        if lock_mhz is None:
            return 1.0 if window.clock_low_mhz >= FREE_SHARE * one.max_mhz else math.nan
        kept = one.gpu.uuid in self.memory.confirmed and abs(window.clock_high_mhz - lock_mhz) <= GRID_MHZ
        return lock_mhz / one.max_mhz if kept else math.nan

    def decide(
        self, decided: Mapping[str, Decided], limits: shield.LimitMemory, now_s: float, s: shield.Settings
    ) -> Mapping[str, Decided]:
        """Asks the clocks' shield; decisions with what it said. `limits` after the limits' shield."""
        if self._bank is None:
            return decided
        self.gangs = {job: gang for job, gang in self.gangs.items() if job in decided and decided[job].cap >= TOP}
        on = {job: made for job, made in decided.items() if job in self.gangs}
        wishes = {job: float(LEVELS[made.level]) for job, made in on.items()}

        def ask(wanted: Mapping[str, float]) -> clocks.ClockOrders:
            return clocks.decide(self._seen, wanted, self.memory, limits, now_s, s, self.settings)

        orders = ask(wishes)
        # all gangs' other arm in one question: clocks have no common budget, so no gang moves another
        other = ask({job: float(LEVELS[made.other]) for job, made in on.items()})
        self._next = orders.memory
        return {**decided, **{job: _with_clocks(made, orders, other) for job, made in on.items()}}

    def commit(self) -> None:
        """What was decided last is being ordered."""
        if self._bank is not None:
            self.memory = self._next

    def give_back(self, gpus: Iterable[shield.Gpu], names: frozenset[str]) -> None:
        self.memory = clocks.give_back(self.memory, gpus, names)

    def read_back(self, executed: Mapping[str, Any]) -> dict[str, dict[str, int | None]]:
        """Of a receipt's clocks, where it has any, what each is now: the lock where it was read to hold, else the
        clock itself."""
        if "clocks_mhz" not in executed:
            return {}
        now = {one.gpu.uuid: one.now_mhz for one in self._seen if math.isfinite(one.now_mhz)}
        back = {
            u: mhz if mhz is None or now[u] <= mhz + GRID_MHZ else round(now[u])
            for u, mhz in executed["clocks_mhz"].items()
            if u in now
        }
        return {"clocks_mhz": back}


def _with_clocks(made: Decided, orders: clocks.ClockOrders, other: clocks.ClockOrders) -> Decided:
    def changes(arm: clocks.ClockOrders) -> dict[str, int | None]:
        return {u: arm.changed_mhz[u] for u in made.highest_mw if u in arm.changed_mhz}

    clips = tuple(dict.fromkeys(c for u in made.highest_mw for c in orders.clips.get(u, ())))
    return replace(
        made, clocks_mhz=changes(orders), clock_clips=clips, clock_same=changes(orders) == changes(other)
    )


def _known(gang: Gang, seen: Outlook, belief: Belief, unbound: bool) -> Belief:
    """A gang on the clock; where a limit binds its level is not known: the fallback, free."""
    _, _, observation, care = belief
    home = int(gang.jobs.home[0])
    slow = float(seen.slowdown[0, home])
    known = replace(
        observation,
        lever=gang.lever,
        level=float(LEVELS[gang.level]) if unbound else math.nan,
        lowest=float(LEVELS[int(gang.jobs.lowest[0])]),
        slowdown=slow,
        slowdown_sd=float(seen.slowdown_sd[0, home]),
        slack=observation.budget - slow,
    )
    return gang, seen, known, careful(care)


def _unknown(seen: Outlook) -> Outlook:
    return Outlook(*(getattr(seen, name) * math.nan for name in Outlook.__dataclass_fields__))
