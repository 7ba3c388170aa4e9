"""Power control in the daemon: observe → policy proposes → shield decides → lease → read back. Off by default.

One turn per window. Windows are gathered from every look (`power_windows`), each job's gang is judged
(`power_decision`), racks that have too little for all are shared (`controllers.power.division`),
the racks' shield has the last word, nodes get leases, and every proposal leaves a receipt. What waits for
others to be read back as lowered follows at the next look. Where it does not act, the same happens but for the
leases. The emergency stop freezes: what was ordered is renewed and nothing new is. A daemon that dies renews
nothing, and the nodes go to their fallback by themselves.

SM clocks (`GangClocks`): a gang is on the power lever until that is seen to save nothing (it draws too little for
any limit, or a limit was tried and lifted for good). Then, while its draw stays well below its limits and its
clocks are free, it goes on to the clock with the same belief, heuristic and guard on other curves
(`controllers.power.clock_curves`). A change of phase, or a rack that has too little for all, sends it back, with
its clock free.
"""

from __future__ import annotations

import json
import math
import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import structlog

from nightshift.agent.control.power_absence import AbsentNodes
from nightshift.agent.control.power_decision import (
    Belief,
    Beliefs,
    Decided,
    LearnedPolicy,
    ask,
    decide_gang,
    power_range,
    shield_gpu,
)
from nightshift.agent.control.power_interfaces import Around, Happened, PowerTurn, Receipt, Telling, Trusts
from nightshift.agent.control.power_racks import Racks
from nightshift.agent.control.power_windows import GpuWindow, GpuWindows
from nightshift.collectors.base import Permanent, Temporary
from nightshift.collectors.seal import fingerprint
from nightshift.collectors.subject import Inventory
from nightshift.collectors.tick import Tick
from nightshift.controllers.actuators.power_nodes import LeaseAnswer, Nodes, NodeStatus
from nightshift.controllers.decision import ControlDecision, plain
from nightshift.controllers.outcome import Stretch
from nightshift.controllers.policy_file import PolicyFile
from nightshift.controllers.power import clocks, descent, shield
from nightshift.controllers.power.arms import Round, newly_locked
from nightshift.controllers.power.belief import TOP, Outlook, shared_bank
from nightshift.controllers.power.clock_curves import careful, clock_bank
from nightshift.controllers.power.clocks import FLOOR_SHARE, FREE_SHARE, GRID_MHZ, MAX_MHZ, STEP_SHARE, ClockMemory
from nightshift.controllers.power.curves import LEVELS
from nightshift.controllers.power.division import Division, divide_racks
from nightshift.controllers.power.gang import Gang, level_of, look
from nightshift.controllers.power.settings import LEASE_S, WINDOW_S, PowerSettings
from nightshift.controllers.power.share import RANGE, Sharing
from nightshift.controllers.power.shield import LimitMemory
from nightshift.controllers.promotion import PolicyHealth

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
        statuses: Mapping[str, NodeStatus],
        granted: Mapping[str, bool],
    ) -> None:
        """Takes a window in: what was read of every GPU's clock."""
        self._top |= {u: g.max_clock_mhz for node in statuses.values() for u, g in node.gpus.items()}
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
        by_hand = frozenset().union(*(node.clocks_by_hand for node in statuses.values()))
        self.memory = clocks.observe(self._seen, self.memory, granted, by_hand)

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
            gang = self.gangs[job] = power.on_clock(level_of(FLOOR_SHARE))
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
        self, decided: Mapping[str, Decided], limits: shield.LimitMemory, now_s: float
    ) -> Mapping[str, Decided]:
        """Asks the clocks' shield; decisions with what it said. `limits` after the limits' shield."""
        if self._bank is None:
            return decided
        self.gangs = {job: gang for job, gang in self.gangs.items() if job in decided and decided[job].cap >= TOP}
        on = {job: made for job, made in decided.items() if job in self.gangs}
        wishes = {job: float(LEVELS[made.level]) for job, made in on.items()}

        def ask(wanted: Mapping[str, float]) -> clocks.ClockOrders:
            return clocks.decide(self._seen, wanted, self.memory, limits, now_s)

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


def leases(
    ordered_mw: Mapping[str, int],
    gpus: Iterable[shield.Gpu],
    memory: shield.LimitMemory,
    term: int,
    ttl_s: float,
    locks: clocks.ClockMemory,
) -> dict[str, dict[str, Any]]:
    """Node → lease (`power_leases.Lease`). None for a limit that a person set, nor for a node that lied. Clocks are
    in it only where there are any: a node agent from before they were takes the rest."""
    by_node: dict[str, dict[str, int]] = defaultdict(dict)
    held: dict[str, int] = {}
    for gpu in gpus:
        if gpu.uuid in ordered_mw and gpu.uuid not in memory.manual and gpu.node not in memory.liars:
            by_node[gpu.node][gpu.uuid] = ordered_mw[gpu.uuid]
        if gpu.enforced_mw is not None and gpu.uuid in memory.confirmed:
            held[gpu.uuid] = gpu.enforced_mw
    found: dict[str, dict[str, Any]] = {
        node: {
            "id": "power",
            "term": term,
            "ttl_s": ttl_s,
            "limits_mw": limits,
            "held_mw": {u: held[u] for u in limits if u in held},
        }
        for node, limits in by_node.items()
    }
    return {node: {**lease, **_clock_terms(locks, lease["limits_mw"].keys())} for node, lease in found.items()}


def _clock_terms(locks: clocks.ClockMemory, mine: Set[str]) -> dict[str, Any]:
    """A lease's clocks, of these GPUs."""
    # freed: locked by us once and no more. One that does not run as ordered may be a person's by now: not a word
    ours = locks.changed_s.keys() - locks.ordered_mhz.keys() - locks.manual - locks.odd.keys()
    terms: dict[str, Any] = {
        "clocks_mhz": {u: mhz for u, mhz in locks.ordered_mhz.items() if u in mine},
        "clocks_freed": sorted(ours & mine),
        "clocks_left": sorted(locks.manual & mine),
    }
    return {name: term for name, term in terms.items() if term}


def _gangs(windows: Iterable[GpuWindow]) -> dict[str, list[GpuWindow]]:
    gangs: dict[str, list[GpuWindow]] = defaultdict(list)
    for window in windows:
        if window.job:
            gangs[window.job].append(window)
    return gangs


def complaints(status: Mapping[str, NodeStatus], former: Mapping[str, NodeStatus]) -> list[tuple[str, str]]:
    """(node, what is wrong with it), where that is news."""
    return [
        (n, s.error) for n, s in sorted(status.items()) if s.error and s.error != former.get(n, NodeStatus()).error
    ]


@dataclass
class PowerState:
    """What power control keeps in the daemon's store from turn to turn, for the daemon that leads next.

    `released`: GPUs and nodes that people gave back, and when that was taken up (Unix s). `gone`: of
    `power_absence.AbsentNodes`. `workloads`: those that ran before."""

    memory: LimitMemory = field(default_factory=LimitMemory)
    gangs: dict[str, Gang] = field(default_factory=dict)
    released: dict[str, float] = field(default_factory=dict)
    gone: Mapping[str, Any] = field(default_factory=dict)
    clocks: ClockMemory = field(default_factory=ClockMemory)
    on_clock: dict[str, Gang] = field(default_factory=dict)
    workloads: dict[str, Gang] = field(default_factory=dict)

    @classmethod
    def read(cls, raw: bytes) -> PowerState:
        """Raises ValueError, KeyError or TypeError where it is not of this form."""
        body = json.loads(raw)
        sets: dict[str, Any] = {k: frozenset(v) if isinstance(v, list) else v for k, v in body["memory"].items()}
        sets["unread_mw"] = {u: tuple(orders) for u, orders in dict(sets.get("unread_mw") or {}).items()}
        gangs = {job: Gang.from_json(text) for job, text in body["gangs"].items()}
        released = {str(name): float(at_s) for name, at_s in body.get("released", {}).items()}
        clocks: dict[str, Any] = {
            k: frozenset(v) if isinstance(v, list) else v for k, v in body.get("clocks", {}).items()
        }
        on_clock = {job: Gang.from_json(text) for job, text in body.get("on_clock", {}).items()}
        workloads = {key: Gang.from_json(text) for key, text in body.get("workloads", {}).items()}
        gone = dict(body.get("gone", {}))
        return cls(LimitMemory(**sets), gangs, released, gone, ClockMemory(**clocks), on_clock, workloads)

    def write(self) -> bytes:
        gangs = {job: gang.to_json() for job, gang in self.gangs.items()}
        body = {"memory": plain(self.memory), "gangs": gangs, "released": self.released, "gone": self.gone}
        more = {
            name: {key: gang.to_json() for key, gang in gangs.items()}
            for name, gangs in (("on_clock", self.on_clock), ("workloads", self.workloads))
        }
        return json.dumps({**body, "clocks": plain(self.clocks), **more}).encode()


_WAITING = 4


@dataclass(frozen=True)
class WindowSeen:
    """One window as a turn decides on it."""

    told: Mapping[str, NodeStatus]
    gangs: Mapping[str, list[GpuWindow]]
    beliefs: Mapping[str, Belief]
    gpus: list[shield.Gpu]
    racks: Mapping[str, shield.RackBudget]


@dataclass(frozen=True)
class PendingRaises:
    """What a turn asked for and could not have yet."""

    racks: Mapping[str, shield.RackBudget]
    wishes_mw: Mapping[str, float]
    shares_mw: Mapping[str, int]
    told: Mapping[str, NodeStatus]
    beliefs: Mapping[str, Belief]


class PowerLoop:
    """One per daemon. `take` is called at every look; turns run in a thread of their own once `start` was
    called."""

    def __init__(
        self,
        settings: PowerSettings,
        inventory: Inventory,
        nodes: Nodes | None,
        around: Around,
        seed: int = 0,
        file: PolicyFile | None = None,
    ) -> None:
        """`file`: the learned policy that is asked; without, the heuristic."""
        self.settings, self._nodes, self._around = settings, nodes if settings.act else None, around
        self._inventory, self._windows = inventory, GpuWindows(inventory)
        self._log = structlog.get_logger("power")
        self._rng = np.random.default_rng(seed)
        self._beliefs = Beliefs(settings)
        self._wide = shared_bank(RANGE) if settings.racks else None
        self._sharing = Sharing()
        self._file, self._asked = file, LearnedPolicy.of(file)
        self._follows: PendingRaises | None = None
        self._gone = AbsentNodes(settings, around.standing)
        self._racks = Racks(settings, self._gone)
        self._told: Mapping[str, NodeStatus] = {}
        self._memory = shield.LimitMemory()
        self._clocks = GangClocks(settings.clocks, file is None)  # a learned policy knows limits alone
        self._released: dict[str, float] = {}
        self._granted: dict[str, bool] = {}
        self._telling = Telling(around)
        self._closed_s = -math.inf
        self._queue: queue.Queue[tuple[float, bool] | None] = queue.Queue(_WAITING)
        self._thread: threading.Thread | None = None
        self._looked_in = self._turned_in = -1  # the lead's term in which it last looked, and turned

    @property
    def policy(self) -> str:
        """Name of the policy that proposes."""
        return "descent" if self._file is None else f"{self._file.name}@{self._file.sha256[:12]}"

    @property
    def policy_sha256(self) -> str:
        if self._file is not None:
            return self._file.sha256
        care, clocks = plain(self._beliefs.care), self.settings.clocks
        if not clocks.enabled:
            return fingerprint(care)
        # Under the names that they had as settings: the evidence of a policy counts under its fingerprint.
        fixed = {"step_share": STEP_SHARE, "max_mhz": MAX_MHZ}
        return fingerprint({"care": care, "clocks": clocks.model_dump() | fixed})

    # Life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread = threading.Thread(target=self._work, name="power", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops turning and keeps what is owed. Leases are not renewed any more: nodes go to their fallback."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(30.0)
            self._thread = None
        self._telling.settle({}, self._clocks.read_back)
        if self._nodes is not None:
            self._nodes.close()

    def take(self, tick: Tick) -> None:
        """Takes a look in; a turn is due at the end of a window, or at once where a breaker trips."""
        if (term := self._around.term()) != self._looked_in:
            self._looked_in, self._closed_s = term, -math.inf
            self._windows = GpuWindows(self._inventory)
        self._windows.take(tick)
        tripped = self._racks.look(tick, self._windows)
        if tripped:
            self._telling.health(PolicyHealth(budget_events=tripped))
        if self._closed_s == -math.inf or self._closed_s > tick.at_s:  # the first look, or the clock was set back
            self._closed_s = tick.at_s
        due = bool(tripped) or tick.at_s - self._closed_s >= WINDOW_S
        if due:
            self._closed_s = tick.at_s
        if self._thread is None or not (due or (self._follows is not None and self._queue.empty())):
            return
        try:
            self._queue.put_nowait((tick.at_s, due))
        except queue.Full:
            self._log.warning("turn skipped")

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            if not self._around.leads():  # it waited here while another daemon took over
                continue
            try:
                if item[1]:
                    self.turn(item[0])
                else:
                    self.follow(item[0])
            except (Temporary, Permanent) as error:
                self._around.count("failed")
                self._log.error("turn failed", error=str(error))
            except Exception:  # noqa: BLE001  the thread that renews leases must not die of a defect of ours
                self._around.count("failed")
                self._log.exception("turn failed")

    # One turn ----------------------------------------------------------------------------------------------------

    def turn(self, now_s: float) -> PowerTurn:
        """Closes the window and decides. Raises Temporary or Permanent where the store or the nodes' answers do."""
        if (term := self._around.term()) != self._turned_in:
            self._take_over()
            self._turned_in = term
        seen, trusts = self._observe(now_s)
        found = PowerTurn()
        if self._around.halted():
            self._around.count("halted")
            found.grants = self._send(self._memory.ordered_mw, seen.gpus)
            return found
        decided = self._decide(seen, trusts, now_s)
        levels = {job: made.level for job, made in decided.items()}
        division = self._divided(seen, decided, levels, seen.gpus, now_s)
        for job, cap in division.levels.items():
            decided[job] = decided[job].capped(cap, seen.beliefs[job])
        for job in division.probed:
            self._beliefs.gangs[job].tried += 1
        shares = {
            uuid: int(LEVELS[cap] * mw)
            for job, cap in division.levels.items()
            for uuid, mw in decided[job].highest_mw.items()
        }
        wishes = self._wished(decided, levels, division, seen.gpus, now_s)
        limits = self.settings.shield
        found.orders = orders = shield.decide_step(
            seen.racks, seen.gpus, wishes, self._memory, now_s, limits, shares
        )
        asked = Round(seen.racks, seen.gpus, wishes, self._memory, now_s, limits, orders, shares)

        def instead(job: str, level: int) -> dict[str, float]:
            near = asked.near(decided[job].highest_mw)
            other = {gpu.job: levels[gpu.job] for gpu in near if gpu.job} | {job: level}
            return self._wished(decided, other, self._divided(seen, decided, other, near, now_s), near, now_s)

        for made in self._clocks.decide(decided, orders.memory, now_s).values():
            found.receipts.append(self._receipt(made, asked, instead))
        self._telling.keep()
        if self._nodes is not None:
            self._memory = orders.memory
            self._clocks.commit()
            self._keep_state()  # an order is remembered before it is given
            found.grants = self._send(orders.memory.ordered_mw, seen.gpus)
            self._granted = {node: grant.ok for node, grant in found.grants.items()}
            if orders.waiting:
                self._follows = PendingRaises(seen.racks, wishes, shares, seen.told, seen.beliefs)
        self._around.happened(Happened(now_s, [Stretch(d.id, d.unit, d.job, now_s) for d in found.receipts]))
        if self._nodes is None:
            self._telling.pending.clear()  # nothing was ordered, so nothing will be read back
            self._keep_state()
        self._show_headroom(seen, now_s)
        return found

    def _receipt(
        self, made: Decided, asked: Round, instead: Callable[[str, int], Mapping[str, float]]
    ) -> ControlDecision:
        receipt, chance, treated = made.through(asked, self._nodes is not None, instead)
        self._telling.pending.append(Receipt(receipt, tuple(made.highest_mw), chance, treated))
        self._around.count("fallback" if receipt.fallback else "clipped" if receipt.clips else "as proposed")
        return receipt

    def _observe(self, now_s: float) -> tuple[WindowSeen, Trusts]:
        """Closes the window: what was seen, what is believed of it, what was read back; and how far the policy is
        trusted, now that all that happened to it is told."""
        s = self.settings
        told = self._nodes.status() if self._nodes is not None else {}
        for node, said in complaints(told, self._told):
            self._log.warning("node agent rejected", node=node, said=said)
        self._told = told
        windows, speeds = self._windows.close(now_s)
        windows = self._gone.left(windows, now_s)
        self._follows = None
        gangs = _gangs(windows)
        states = self._racks.states(windows, now_s)
        racks_of = {job: {self._racks.of_node.get(w.node, "") for w in members} for job, members in gangs.items()}
        scarcity = {job: [states[name] for name in names if name in states] for job, names in racks_of.items()}
        ordered_mw = self._memory.ordered_mw
        beliefs = self._beliefs.believe(gangs, speeds, told, ordered_mw, scarcity, now_s, self._clocks.gangs)
        self._beliefs.forget(now_s)
        gpus = self._gpus(windows, told, beliefs, now_s)
        if self._clocks.on:
            self._clocks.observe(gpus, windows, beliefs, told, self._granted)
            beliefs = self._clocks.believe(beliefs, gangs)
            gpus = self._gpus(windows, told, beliefs, now_s)  # anew: a gang's slowdown may be its clock's
        self._give_back(gpus)
        before = self._memory
        self._memory = shield.observe(gpus, before, self._granted, now_s, s.shield)
        self._gone.look(self._racks.silent, gpus, self._memory, now_s)
        self._telling.settle({g.uuid: g.enforced_mw for g in gpus}, self._clocks.read_back)
        overdrawn = {name for name in s.racks if self._racks.open(name, now_s)}
        self._telling.window(beliefs, racks_of, overdrawn, now_s)
        drift = () if self._asked is None else self._asked.drift.found(now_s)
        trusts = self._telling.trusts(PolicyHealth(len(gangs), newly_locked(before, self._memory), drift=drift))
        racks = {n: shield.RackBudget(n, int(r.budget_w * 1000), int(r.host_w * 1000)) for n, r in s.racks.items()}
        return WindowSeen(told, gangs, beliefs, gpus, racks), trusts

    def _decide(self, seen: WindowSeen, trusts: Trusts, now_s: float) -> dict[str, Decided]:
        """Every gang's decision, before its racks have their word."""
        s, decided = self.settings, {}
        answers = ask(seen.beliefs)
        for job, members in seen.gangs.items():
            trust = trusts(job, job.partition("/")[0] in s.opted_in, now_s)
            highest_mw = {w.uuid: power_range(s, w, seen.told)[1] for w in members}
            decided[job] = decide_gang(
                job, seen.beliefs[job], answers[job], trust, self._asked, self._rng, now_s, highest_mw
            )
        return decided

    def _divided(
        self,
        seen: WindowSeen,
        decided: Mapping[str, Decided],
        asked: Mapping[str, int],
        among: list[shield.Gpu],
        now_s: float,
    ) -> Division:
        """What scarce racks have for the gangs among these GPUs, if their policies ask for these levels."""
        if self._wide is None:
            return Division()
        asks = {job: (self._beliefs.gangs[job], decided[job].limit_level(level)) for job, level in asked.items()}
        inside = {gpu.rack: seen.racks[gpu.rack] for gpu in among}
        limits = self.settings.shield
        return divide_racks(inside, among, asks, self._memory, now_s, self._wide, limits, self._sharing)

    def _wished(
        self,
        decided: Mapping[str, Decided],
        asked: Mapping[str, int],
        division: Division,
        among: list[shield.Gpu],
        now_s: float,
    ) -> dict[str, float]:
        """Limits (mW) that these levels come to; a GPU without a job goes to its fallback."""
        wishes = {g.uuid: float(g.fallback_mw) for g in among if not g.job}
        for job, level in asked.items():
            wishes |= decided[job].wishes_mw(level, division.levels.get(job, TOP))
        return self._racks.broken(among, wishes, now_s)

    def _show_headroom(self, seen: WindowSeen, now_s: float) -> None:
        members_of: dict[str, list[shield.Gpu]] = defaultdict(list)
        for gpu in seen.gpus:
            members_of[gpu.rack].append(gpu)
        for name, rack in seen.racks.items():
            room = shield.headroom_mw(rack, members_of[name], self._memory, self.settings.shield)
            self._around.gauge(name, room / 1000.0, self._racks.open(name, now_s))

    def follow(self, now_s: float) -> bool:
        """Raises what waited for others to be read back as lowered; whether anything was ordered. Asks nobody
        anew: the wishes are those of the turn. Raises as `turn` does."""
        asked, s = self._follows, self.settings
        if asked is None or self._around.halted() or self._around.term() != self._turned_in:
            return False
        gpus = self._gpus(self._gone.left(self._windows.peek(now_s), now_s), asked.told, asked.beliefs, now_s)
        observed = shield.observe(gpus, self._memory, {}, now_s, s.shield)  # who lies is judged by whole turns
        wishes = self._racks.broken(gpus, dict(asked.wishes_mw), now_s)
        orders = shield.decide_step(asked.racks, gpus, wishes, observed, now_s, s.shield, asked.shares_mw)
        changed = {u: mw for u, mw in orders.limits_mw.items() if observed.ordered_mw.get(u) != mw}
        self._memory = orders.memory
        if not orders.waiting:
            self._follows = None
        if not changed:
            return False
        self._telling.ordered(changed)
        self._keep_state()
        grants = self._send(orders.memory.ordered_mw, gpus)
        self._granted = {node: grant.ok for node, grant in grants.items()}
        self._windows.restart(changed, now_s)
        return True

    def _gpus(
        self, seen: list[GpuWindow], told: Mapping[str, NodeStatus], beliefs: Mapping[str, Belief], now_s: float
    ) -> list[shield.Gpu]:
        ill = self._around.ill_nodes()
        return [
            shield_gpu(self.settings, rack, w, told, w.node in ill, beliefs.get(w.job), now_s)
            for w in seen
            if (rack := self._racks.of_node.get(w.node)) is not None
        ]

    def _give_back(self, gpus: list[shield.Gpu]) -> None:
        """Takes up what people gave back since the last turn; what is not seen now is taken up when it is."""
        seen = {name for gpu in gpus if gpu.enforced_mw is not None for name in (gpu.uuid, gpu.node)}
        asked = self._around.released()
        names = frozenset(n for n, at_s in asked.items() if n in seen and at_s > self._released.get(n, -math.inf))
        if names:
            self._memory = shield.give_back(self._memory, gpus, names)
            self._clocks.give_back(gpus, names)
            self._released |= {name: asked[name] for name in names}
            self._log.info("power control restored", names=sorted(names))

    def _send(self, ordered_mw: Mapping[str, int], gpus: list[shield.Gpu]) -> Mapping[str, LeaseAnswer]:
        """Renews every node's lease with what is ordered of its GPUs; not of a node that is deleted, nor of a GPU
        that its node does not have any more: it would refuse the others' with it."""
        if self._nodes is None:
            return {}
        has = {node: told.gpus.keys() for node, told in self._told.items() if told.gpus}
        gpus = [g for g in gpus if g.node not in self._gone.nodes and g.uuid in has.get(g.node, {g.uuid})]
        term, ttl_s = self._around.term(), LEASE_S
        grants = self._nodes.grant(leases(ordered_mw, gpus, self._memory, term, ttl_s, self._clocks.memory))
        for node, grant in grants.items():
            if not grant.ok:
                self._log.warning("power lease denied", node=node, said=grant.said)
        return grants

    # What is kept ------------------------------------------------------------------------------------------------

    def _keep_state(self) -> None:
        gangs, gone, clocks = self._beliefs.gangs, self._gone.to_json(), self._clocks
        kept = PowerState(
            self._memory, gangs, self._released, gone, clocks.memory, clocks.gangs, self._beliefs.workloads
        )
        self._around.store(kept.write())

    def _take_over(self) -> None:
        """Forgets this process's own past and takes up what the daemon that led before kept."""
        self._granted, self._follows = {}, None
        self._telling.forget()
        kept, raw = PowerState(), self._around.recall()
        if raw is not None:
            try:
                kept = PowerState.read(raw)
                self._gone.restore(kept.gone)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                self._log.warning("power state read failed", error=str(error))
        self._memory, self._beliefs.gangs, self._released = kept.memory, kept.gangs, kept.released
        self._beliefs.workloads = kept.workloads
        self._clocks.memory, self._clocks.gangs = kept.clocks, kept.on_clock
