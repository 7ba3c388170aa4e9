"""Power control in the daemon: observe → policy proposes → shield decides → lease → read back. Off by default.

One turn per window. Windows are gathered from every look (`power_windows`), each job's gang is judged
(`controllers.power.gang`), the racks' shield has the last word, nodes get leases, and every proposal leaves a
receipt. Where it does not act, the same happens but for the leases. The emergency stop freezes: what was ordered is
renewed and nothing new is. A daemon that dies renews nothing, and the nodes go to their fallback by themselves.
"""

from __future__ import annotations

import math
import queue
import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import structlog

from agent.power_decide import Asked, Belief, Decided, decide_gang
from agent.power_kept import Kept
from agent.power_parts import Around, Happened, Trusts, Turn
from agent.power_windows import GpuWindow, Windows, mean
from collectors.base import Permanent, Temporary
from collectors.seal import fingerprint
from collectors.subject import Inventory
from collectors.tick import Tick
from controllers.actuators.power_nodes import Grant, Nodes, NodeStatus
from controllers.decision import Decision, Trust, confirm, plain
from controllers.outcome import Sample, Stretch
from controllers.policy_file import PolicyFile
from controllers.power import descent, shield
from controllers.power.arms import Round, newly_locked
from controllers.power.belief import Bank
from controllers.power.breaker import Breaker
from controllers.power.curves import LEVELS
from controllers.power.gang import Gang, GangSeen, level_of
from controllers.power.settings import PowerSettings
from controllers.power.worth import reference, worth
from controllers.promotion import Health

_WAITING = 4


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
        self._inventory, self._windows = inventory, Windows(inventory)
        self._log = structlog.get_logger("power")
        self._rng = np.random.default_rng(seed)
        self._bank = Bank.make()
        self._file, self._asked = file, Asked.of(file)
        self._care = descent.Care()
        self._rack_of = {node: name for name, rack in settings.racks.items() for node in rack.nodes}
        self._breakers = dict.fromkeys(settings.racks, Breaker())
        self._memory = shield.Memory()
        self._released: dict[str, float] = {}
        self._gangs: dict[str, Gang] = {}
        self._before: dict[str, int] = {}
        self._granted: dict[str, bool] = {}
        self._pending: list[tuple[Decision, tuple[str, ...], float, bool]] = []
        self._owed = Health()
        self._mutex = threading.Lock()
        self._turned_s = math.nan
        self._jobs: frozenset[str] = frozenset()
        self._closed_s = -math.inf
        self._queue: queue.Queue[tuple[Tick, bool] | None] = queue.Queue(_WAITING)
        self._thread: threading.Thread | None = None
        self._looked_in = self._turned_in = -1  # the lead's term in which it last looked, and turned

    @property
    def policy(self) -> str:
        """Name of the policy that proposes."""
        return "descent" if self._file is None else f"{self._file.name}@{self._file.sha256[:12]}"

    @property
    def policy_sha256(self) -> str:
        return fingerprint(plain(self._care)) if self._file is None else self._file.sha256

    # Life

    def start(self) -> None:
        self._thread = threading.Thread(target=self._work, name="power", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops turning and keeps what is owed. Leases are not renewed any more: nodes go to their fallback."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(30.0)
            self._thread = None
        self._settle({})
        if self._nodes is not None:
            self._nodes.close()

    def take(self, tick: Tick) -> None:
        """Takes a look in; a turn is due at the end of a window, or at once where a breaker trips."""
        if (term := self._around.term()) != self._looked_in:
            self._looked_in, self._closed_s = term, -math.inf
            self._windows = Windows(self._inventory)
        self._windows.take(tick)
        tripped = self._watch_draw(tick)
        if tripped:
            self._tell(Health(budget_events=tripped))
        if self._closed_s == -math.inf:
            self._closed_s = tick.at_s
        if not tripped and tick.at_s - self._closed_s < self.settings.window_s:
            return
        self._closed_s = tick.at_s
        if self._thread is None:
            return
        try:
            self._queue.put_nowait((tick, bool(tripped)))
        except queue.Full:
            self._log.warning("turn left out: the one before takes too long")

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            if not self._around.leads():  # it waited here while another daemon took over
                continue
            try:
                self.turn(item[0].at_s)
            except (Temporary, Permanent) as error:
                self._around.count("failed")
                self._log.error("turn failed; limits stay, leases run out", error=str(error))

    # One turn

    def turn(self, now_s: float) -> Turn:
        """Closes the window and decides. Raises Temporary or Permanent where the store or the nodes' answers do."""
        s = self.settings
        if (term := self._around.term()) != self._turned_in:
            self._take_over()
            self._turned_in = term
        told = self._nodes.status() if self._nodes is not None else {}
        seen, speeds = self._windows.close(now_s)
        ill = self._around.ill_nodes()
        gangs: dict[str, list[GpuWindow]] = defaultdict(list)
        for window in seen:
            if window.job:
                gangs[window.job].append(window)
        beliefs = {job: self._believe(job, members, speeds, told) for job, members in gangs.items()}
        gpus = [g for w in seen if (g := self._gpu(w, told, ill, beliefs, now_s)) is not None]
        self._give_back(gpus)
        before = self._memory
        self._memory = shield.observe(gpus, before, self._granted, now_s, s.shield)
        self._settle({g.uuid: g.enforced_mw for g in gpus})
        self._look_back(beliefs, {j: {self._rack_of.get(w.node, "") for w in gangs[j]} for j in gangs}, now_s)
        trusts = self._trusts(len(gangs), newly_locked(before, self._memory), now_s)
        found = Turn()
        if self._around.halted():
            self._around.count("halted")
            found.grants = self._send(self._memory.ordered_mw, gpus)
            return found
        wishes: dict[str, float] = {g.uuid: float(g.fallback_mw) for g in gpus if not g.job}
        decided: list[Decided] = []
        for job, members in gangs.items():
            trust = trusts(job, job.partition("/")[0] in s.opted_in, now_s)
            made = decide_gang(job, beliefs[job], trust, self._asked, self._rng, now_s)
            made = replace(made, highest_mw={w.uuid: self._range(w, told)[1] for w in members})
            wishes.update(made.wishes_mw(made.level))
            decided.append(made)
        racks = {n: shield.Rack(n, int(r.budget_w * 1000), int(r.host_w * 1000)) for n, r in s.racks.items()}
        for gpu in gpus:
            if gpu.rack in self._breakers and self._breakers[gpu.rack].open(now_s, s.breaker):
                wishes[gpu.uuid] = float(min(gpu.fallback_mw, wishes.get(gpu.uuid, gpu.fallback_mw)))
        observed = self._memory
        orders = shield.decide(racks, gpus, wishes, observed, now_s, s.shield)
        found.orders = orders
        asked = Round(racks, gpus, wishes, observed, now_s, s.shield, orders)
        for made in decided:
            receipt, chance, treated = made.through(asked, self._nodes is not None)
            found.receipts.append(receipt)
            self._pending.append((receipt, tuple(made.highest_mw), chance, treated))
            self._around.count("fallback" if receipt.fallback else "clipped" if receipt.clips else "as proposed")
        # before anything is done, so that no crash loses one
        self._around.keep([(receipt, chance, treated) for receipt, _, chance, treated in self._pending])
        if self._nodes is not None:
            self._memory = orders.memory
            found.grants = self._send(orders.memory.ordered_mw, gpus)
            self._granted = {node: grant.ok for node, grant in found.grants.items()}
        self._around.happened(Happened(now_s, [Stretch(d.id, d.unit, d.job, now_s) for d in found.receipts]))
        if self._nodes is None:
            self._pending.clear()
        for name, rack in racks.items():
            mine = [g for g in gpus if g.rack == name]
            room = shield.headroom_mw(rack, mine, self._memory, s.shield)
            self._around.gauge(name, room / 1000.0, self._breakers[name].open(now_s, s.breaker))
        self._keep_state()
        return found

    def _give_back(self, gpus: list[shield.Gpu]) -> None:
        """Takes up what people gave back since the last turn; what is not seen now is taken up when it is."""
        seen = {name for gpu in gpus if gpu.enforced_mw is not None for name in (gpu.uuid, gpu.node)}
        asked = self._around.released()
        names = frozenset(n for n, at_s in asked.items() if n in seen and at_s > self._released.get(n, -math.inf))
        if names:
            self._memory = shield.give_back(self._memory, gpus, names)
            self._released |= {name: asked[name] for name in names}
            self._log.info("given back to power control", names=sorted(names))

    def _tell(self, what: Health) -> bool:
        """What happened to the policy, at once; whether it was taken. What was not is owed, and told again."""
        with self._mutex:
            owed, self._owed = self._owed, Health()
        what = Health(
            what.turns + owed.turns, what.lockouts + owed.lockouts, 0, what.budget_events + owed.budget_events,
            what.drift,
        )  # fmt: skip
        try:
            self._around.note(what)
        except (Temporary, Permanent) as error:
            with self._mutex:
                self._owed = what
            self._log.error("store away: no policy is trusted until it is back", error=str(error))
            return False
        return True

    def _trusts(self, turns: int, lockouts: int, now_s: float) -> Trusts:
        """How far the policy is trusted in this turn, once everything that happened is told."""
        drift = () if self._asked is None else self._asked.drift.found(now_s)
        if not self._tell(Health(turns, lockouts, drift=drift)):
            return lambda _job, _opted, _now_s: Trust()
        return self._around.trusts()

    def _look_back(self, beliefs: Mapping[str, Belief], racks: Mapping[str, set[str]], now_s: float) -> None:
        """Tells what came of the window that ended now, and which jobs are gone. `racks`: of each job."""
        since_s, self._turned_s = self._turned_s, now_s
        overdrawn = {name for name, breaker in self._breakers.items() if breaker.open(now_s, self.settings.breaker)}
        samples = []
        for job, (gang, _, seen, _) in beliefs.items() if math.isfinite(since_s) else ():
            reward, slowdown = worth(seen.speed, seen.draw, reference(gang))
            samples.append(Sample(job, since_s, now_s, reward, slowdown, bool(racks[job] & overdrawn)))
        gone = sorted(self._jobs - beliefs.keys())
        self._jobs = frozenset(beliefs)
        self._around.happened(Happened(now_s, (), samples, gone))

    def _believe(
        self,
        job: str,
        members: list[GpuWindow],
        speeds: Mapping[str, tuple[float, float]],
        told: Mapping[str, NodeStatus],
    ) -> Belief:
        """The gang after this window, what is believed of it, and what a policy sees."""
        ranges = [self._range(w, told) for w in members]
        lowest = max(level_of(low / high) for low, high in ranges)
        shares = [w.limit_w * 1000.0 / high for w, (_, high) in zip(members, ranges, strict=True)]
        level = level_of(min(shares)) if all(map(math.isfinite, shares)) else -1
        draw = float(np.mean([w.draw_w * 1000.0 / high for w, (_, high) in zip(members, ranges, strict=True)]))
        speed, age_s = speeds.get(job, (math.nan, math.inf))
        gang = self._gangs.get(job)
        if gang is None or int(gang.jobs.lowest[0]) != lowest:
            gang = self._gangs[job] = Gang.start(lowest)
        budget = self.settings.slowdown_of.get(job.partition("/")[0], self.settings.shield.slowdown)
        care = replace(self._care, budget=budget)
        steady = level >= 0 and self._before.get(job) == level
        self._before[job] = level
        if level >= 0:
            gang.level = level
        seen = gang.look(speed if steady else math.nan, draw if steady else math.nan, self._bank, care)
        home = int(gang.jobs.home[0])
        observation = GangSeen(
            unit=job,
            job=job,
            lever=gang.lever,
            level=float(LEVELS[level]) if level >= 0 else math.nan,
            speed=speed,
            speed_age_s=age_s,
            draw=draw,
            gpus=len(members),
            lowest=float(LEVELS[lowest]),
            slowdown=float(seen.slowdown[0, home]),
            slowdown_sd=float(seen.slowdown_sd[0, home]),
            budget=budget,
            dram_active=mean([w.dram_active for w in members]),
            sm_active=mean([w.sm_active for w in members]),
            temperature_c=mean([w.temperature_c for w in members]),
            throttled=False,
        )
        return gang, seen, observation, care

    def _range(self, window: GpuWindow, told: Mapping[str, NodeStatus]) -> tuple[int, int]:
        node = told.get(window.node)
        if node is not None and window.uuid in node.gpus:
            return node.gpus[window.uuid].min_mw, node.gpus[window.uuid].max_mw
        return int(self.settings.min_w * 1000), int(self.settings.max_w * 1000)

    def _gpu(
        self,
        window: GpuWindow,
        told: Mapping[str, NodeStatus],
        ill: frozenset[str],
        beliefs: Mapping[str, Belief],
        now_s: float,
    ) -> shield.Gpu | None:
        rack = self._rack_of.get(window.node)
        if rack is None:
            return None
        low, high = self._range(window, told)
        status = told.get(window.node, NodeStatus())
        mine = status.gpus.get(window.uuid)
        belief = beliefs.get(window.job)
        sure = belief is not None and belief[2].slowdown_sd < 0.01
        return shield.Gpu(
            window.uuid,
            window.node,
            rack,
            window.job,
            low,
            high,
            mine.default_mw if mine is not None else high,
            mine.fallback_mw if mine is not None else high,
            None if math.isnan(window.limit_w) else round(window.limit_w * 1000.0),
            now_s - window.read_s,
            incident=window.node in ill,
            slowdown=belief[2].slowdown if belief is not None and sure else math.nan,
            slowdown_budget=belief[2].budget if belief is not None else self.settings.shield.slowdown,
        )

    def _send(self, ordered_mw: Mapping[str, int], gpus: list[shield.Gpu]) -> Mapping[str, Grant]:
        """Renews every node's lease with what is ordered of its GPUs."""
        if self._nodes is None:
            return {}
        by_node: dict[str, dict[str, int]] = defaultdict(dict)
        for gpu in gpus:
            if (
                gpu.uuid in ordered_mw
                and gpu.uuid not in self._memory.manual
                and gpu.node not in self._memory.liars
            ):
                by_node[gpu.node][gpu.uuid] = ordered_mw[gpu.uuid]
        held = {
            g.uuid: g.enforced_mw for g in gpus if g.enforced_mw is not None and g.uuid in self._memory.confirmed
        }
        leases = {
            node: {
                "id": "power",
                "term": self._around.term(),
                "ttl_s": self.settings.lease_s,
                "limits_mw": limits,
                "held_mw": {u: held[u] for u in limits if u in held},
            }
            for node, limits in by_node.items()
        }
        grants = self._nodes.grant(leases)
        for node, grant in grants.items():
            if not grant.ok:
                self._log.warning("power lease not granted", node=node, said=grant.said)
        return grants

    def _watch_draw(self, tick: Tick) -> int:
        """How many breakers tripped just now."""
        tripped = 0
        for name, rack in self.settings.racks.items():
            draw_mw = self._windows.draw_mw(rack.nodes, tick) + rack.host_w * 1000.0
            before = self._breakers[name]
            after = before.look(draw_mw, int(rack.budget_w * 1000), tick.at_s, self.settings.breaker)
            self._breakers[name] = after
            if after.open(tick.at_s, self.settings.breaker) and not before.open(tick.at_s, self.settings.breaker):
                self._log.error(
                    "breaker open: the rack's GPUs go to their fallback", rack=name, draw_w=draw_mw / 1000
                )
                tripped += 1
        return tripped

    # What is kept

    def _settle(self, enforced_mw: Mapping[str, int | None]) -> None:
        """Stores the receipts of the turn before, with what was read back."""
        done = []
        for decision, uuids, chance, treated in self._pending:
            if back := {u: enforced_mw.get(u) for u in uuids if u in decision.executed["limits_mw"]}:
                read = confirm(decision, {"level": decision.executed["level"], "limits_mw": back})
                done.append((read, chance, treated))
        self._pending = []
        if done:
            self._around.keep(done)

    def _keep_state(self) -> None:
        self._around.store(Kept(self._memory, self._gangs, self._released).write())

    def _take_over(self) -> None:
        """Forgets this process's own past and takes up what the daemon that led before kept."""
        self._before, self._granted, self._pending = {}, {}, []
        self._jobs, self._turned_s = frozenset(), math.nan
        kept, raw = Kept(), self._around.recall()
        if raw is not None:
            try:
                kept = Kept.read(raw)
            except (ValueError, KeyError, TypeError) as error:
                self._log.warning("power state of before not readable; begins anew", error=str(error))
        self._memory, self._gangs, self._released = kept.memory, kept.gangs, kept.released
