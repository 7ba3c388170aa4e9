"""Power control in the daemon: observe → policy proposes → shield decides → lease → read back. Off by default.

One turn per window. Windows are gathered from every look (`power_windows`), each job's gang is judged
(`controllers.power.gang`), the racks' shield has the last word, nodes get leases, and every proposal leaves a
receipt. Where it does not act, the same happens but for the leases. The emergency stop freezes: what was ordered is
renewed and nothing new is. A daemon that dies renews nothing, and the nodes go to their fallback by themselves.
"""

from __future__ import annotations

import json
import math
import queue
import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import structlog

from agent.power_parts import Around, Turn
from agent.power_windows import GpuWindow, Windows
from collectors.base import Permanent, Temporary
from collectors.seal import SealError, fingerprint, trusted_keys
from collectors.subject import Inventory
from collectors.tick import Tick
from controllers.actuators.power_nodes import Grant, Nodes, NodeStatus
from controllers.decision import Decision, Mode, Policy, confirm, decide, plain
from controllers.policy_file import PolicyFile, read
from controllers.power import descent, shield
from controllers.power.belief import TOP, Bank, Outlook
from controllers.power.breaker import Breaker
from controllers.power.curves import LEVELS
from controllers.power.features import INTERFACE
from controllers.power.gang import DescentPolicy, Gang, GangSeen, Guard, Highest, NetworkPolicy, level_of
from controllers.power.settings import PowerSettings

_WAITING = 4


class PowerLoop:
    """One per daemon. `take` is called at every look; turns run in a thread of their own once `start` was
    called."""

    def __init__(
        self, settings: PowerSettings, inventory: Inventory, nodes: Nodes | None, around: Around, seed: int = 0
    ) -> None:
        """Raises Permanent (PolicyRefused) where a policy file is not fit to be loaded."""
        self.settings, self._nodes, self._around = settings, nodes if settings.act else None, around
        self._windows = Windows(inventory)
        self._log = structlog.get_logger("power")
        self._rng = np.random.default_rng(seed)
        self._bank = Bank.make()
        self._file = _load(settings)
        self._care = descent.Care()
        self._rack_of = {node: name for name, rack in settings.racks.items() for node in rack.nodes}
        self._breakers = dict.fromkeys(settings.racks, Breaker())
        self._memory = shield.Memory()
        self._released: dict[str, float] = {}
        self._gangs: dict[str, Gang] = {}
        self._before: dict[str, int] = {}
        self._granted: dict[str, bool] = {}
        self._pending: list[tuple[Decision, tuple[str, ...], float, bool]] = []
        self._closed_s = -math.inf
        self._queue: queue.Queue[tuple[Tick, bool] | None] = queue.Queue(_WAITING)
        self._thread: threading.Thread | None = None
        self._restore()

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
        self._windows.take(tick)
        tripped = self._watch_draw(tick)
        if self._closed_s == -math.inf:
            self._closed_s = tick.at_s
        if not tripped and tick.at_s - self._closed_s < self.settings.window_s:
            return
        self._closed_s = tick.at_s
        if self._thread is None:
            return
        try:
            self._queue.put_nowait((tick, tripped))
        except queue.Full:
            self._log.warning("turn left out: the one before takes too long")

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            try:
                self.turn(item[0].at_s)
            except (Temporary, Permanent) as error:
                self._around.count("failed")
                self._log.error("turn failed; limits stay, leases run out", error=str(error))

    # One turn

    def turn(self, now_s: float) -> Turn:
        """Closes the window and decides. Raises Temporary or Permanent where the store or the nodes' answers do."""
        s = self.settings
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
        self._memory = shield.observe(gpus, self._memory, self._granted, now_s, s.shield)
        self._settle({g.uuid: g.enforced_mw for g in gpus})
        found = Turn()
        if self._around.halted():
            self._around.count("halted")
            found.grants = self._send(self._memory.ordered_mw, gpus)
            return found
        wishes: dict[str, float] = {g.uuid: float(g.fallback_mw) for g in gpus if not g.job}
        decided: list[tuple[Decision, tuple[str, ...], float, bool]] = []
        for job, members in gangs.items():
            decision, level, chance, treated = self._decide(job, beliefs[job], now_s)
            share = float(LEVELS[level])
            wishes.update({w.uuid: share * self._range(w, told)[1] for w in members})
            decided.append((decision, tuple(w.uuid for w in members), chance, treated))
        racks = {n: shield.Rack(n, int(r.budget_w * 1000), int(r.host_w * 1000)) for n, r in s.racks.items()}
        for gpu in gpus:
            if gpu.rack in self._breakers and self._breakers[gpu.rack].open(now_s, s.breaker):
                wishes[gpu.uuid] = float(min(gpu.fallback_mw, wishes.get(gpu.uuid, gpu.fallback_mw)))
        orders = shield.decide(racks, gpus, wishes, self._memory, now_s, s.shield)
        found.orders = orders
        if self._nodes is not None:
            self._memory = orders.memory
            found.grants = self._send(orders.memory.ordered_mw, gpus)
            self._granted = {node: grant.ok for node, grant in found.grants.items()}
        for decision, uuids, chance, treated in decided:
            clips = tuple(dict.fromkeys(c for uuid in uuids for c in orders.clips.get(uuid, ())))
            limits = {u: orders.limits_mw[u] for u in uuids if u in orders.limits_mw}
            whole = replace(
                decision,
                clips=decision.clips + clips,
                executed={"level": decision.executed, "limits_mw": limits if self._nodes is not None else {}},
            )
            found.receipts.append(whole)
            self._pending.append((whole, uuids, chance, treated))
            self._around.count("fallback" if decision.fallback else "clipped" if whole.clips else "as proposed")
        if self._nodes is None:
            self._settle({})
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

    def _decide(
        self, job: str, belief: tuple[Gang, Outlook, GangSeen, descent.Care], now_s: float
    ) -> tuple[Decision, int, float, bool]:
        gang, seen, observation, care = belief
        opted_in = job.partition("/")[0] in self.settings.opted_in
        mode, chance = self._around.chance(job, opted_in)
        treated = bool(chance > 0 and self._rng.random() < chance)
        beliefs = {job: (gang, seen)}
        policy: Policy[GangSeen, int] = DescentPolicy(beliefs, care)
        if self._file is not None:
            policy = NetworkPolicy(self._file, beliefs, care, greedy=mode is not Mode.TRIAL)
        shown = mode if treated else Mode.SHADOW
        guard = Guard(gang, seen, care)
        level, decision = decide("power", shown, policy, Highest(), guard, observation, self._rng, now_s)
        probes = level == TOP and decision.why.startswith("reference")
        if treated and not probes:
            gang.jobs.home[0] = level
        if not treated:
            gang.jobs.home[0] = gang.level
        return decision, level, chance, treated

    def _believe(
        self,
        job: str,
        members: list[GpuWindow],
        speeds: Mapping[str, tuple[float, float]],
        told: Mapping[str, NodeStatus],
    ) -> tuple[Gang, Outlook, GangSeen, descent.Care]:
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
            dram_active=_mean([w.dram_active for w in members]),
            sm_active=_mean([w.sm_active for w in members]),
            temperature_c=_mean([w.temperature_c for w in members]),
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
        beliefs: Mapping[str, tuple[Gang, Outlook, GangSeen, descent.Care]],
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

    def _watch_draw(self, tick: Tick) -> bool:
        """Whether a breaker tripped just now."""
        tripped = False
        for name, rack in self.settings.racks.items():
            draw_mw = self._windows.draw_mw(rack.nodes, tick) + rack.host_w * 1000.0
            before = self._breakers[name]
            after = before.look(draw_mw, int(rack.budget_w * 1000), tick.at_s, self.settings.breaker)
            self._breakers[name] = after
            if after.open(tick.at_s, self.settings.breaker) and not before.open(tick.at_s, self.settings.breaker):
                self._log.error(
                    "breaker open: the rack's GPUs go to their fallback", rack=name, draw_w=draw_mw / 1000
                )
                tripped = True
        return tripped

    # What is kept

    def _settle(self, enforced_mw: Mapping[str, int | None]) -> None:
        """Stores the receipts of the turn before, with what was read back."""
        pending, self._pending = self._pending, []
        for decision, uuids, chance, treated in pending:
            ordered = decision.executed["limits_mw"]
            back = {u: enforced_mw.get(u) for u in uuids if u in ordered}
            done = confirm(decision, {"level": decision.executed["level"], "limits_mw": back}) if back else decision
            self._around.keep(done, chance, treated)

    def _keep_state(self) -> None:
        gangs = {job: gang.to_json() for job, gang in self._gangs.items()}
        body = {"memory": plain(self._memory), "gangs": gangs, "released": self._released}
        self._around.store(json.dumps(body).encode())

    def _restore(self) -> None:
        raw = self._around.recall()
        if raw is None:
            return
        try:
            body = json.loads(raw)
            memory: dict[str, Any] = {
                k: frozenset(v) if isinstance(v, list) else v for k, v in body["memory"].items()
            }
            self._memory = shield.Memory(**memory)
            self._gangs = {job: Gang.from_json(text) for job, text in body["gangs"].items()}
            self._released = {str(name): float(at_s) for name, at_s in body.get("released", {}).items()}
        except (ValueError, KeyError, TypeError) as error:
            self._log.warning("power state of before not readable; begins anew", error=str(error))


def _mean(values: list[float]) -> float:
    known = [v for v in values if math.isfinite(v)]
    return sum(known) / len(known) if known else math.nan


def _load(settings: PowerSettings) -> PolicyFile | None:
    if settings.policy_file is None:
        return None
    try:
        return read(settings.policy_file, INTERFACE, trusted_keys(settings.policy_keys))
    except SealError as error:
        raise Permanent(f"power.policy_keys: {error}") from error
