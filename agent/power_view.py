"""Windows and what nodes say, as the belief and the shield want them: gangs on levels, GPUs in racks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from agent.power_decide import Belief
from agent.power_racks import RackState
from agent.power_windows import GpuWindow, mean
from controllers.actuators.power_nodes import NodeStatus
from controllers.power import descent, shield
from controllers.power.belief import shared_bank
from controllers.power.curves import LEVELS
from controllers.power.gang import Gang, GangSeen, level_of
from controllers.power.settings import PowerSettings

_KEPT_S = 3600.0
"""For which a gang's belief outlives the last sight of its job."""


def power_range(settings: PowerSettings, window: GpuWindow, told: Mapping[str, NodeStatus]) -> tuple[int, int]:
    """Lowest and highest limit of a GPU (mW): as its node says, else as it is configured."""
    node = told.get(window.node)
    if node is not None and window.uuid in node.gpus:
        return node.gpus[window.uuid].min_mw, node.gpus[window.uuid].max_mw
    return int(settings.min_w * 1000), int(settings.max_w * 1000)


def shield_gpu(
    settings: PowerSettings,
    rack: str,
    window: GpuWindow,
    told: Mapping[str, NodeStatus],
    ill: bool,
    belief: Belief | None,
    now_s: float,
) -> shield.Gpu:
    low, high = power_range(settings, window, told)
    mine = told.get(window.node, NodeStatus()).gpus.get(window.uuid)
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
        incident=ill,
        slowdown=belief[2].slowdown if belief is not None and sure else math.nan,
        slowdown_budget=belief[2].budget if belief is not None else settings.shield.slowdown,
    )


class Beliefs:
    """What is believed of every gang."""

    def __init__(self, settings: PowerSettings) -> None:
        self._settings = settings
        self._bank = shared_bank()
        self._seen_s: dict[str, float] = {}
        self.care = descent.Care()
        self.gangs: dict[str, Gang] = {}

    def forget(self, now_s: float) -> None:
        """Gangs whose job was not seen for long."""
        self.gangs = {j: g for j, g in self.gangs.items() if now_s - self._seen_s.setdefault(j, now_s) < _KEPT_S}
        self._seen_s = {job: self._seen_s[job] for job in self.gangs}

    def believe(
        self,
        job: str,
        members: list[GpuWindow],
        speed: tuple[float, float],
        told: Mapping[str, NodeStatus],
        ordered_mw: Mapping[str, int],
        racks: Iterable[RackState],
        now_s: float,
        on_clock: bool = False,
    ) -> Belief:
        """The gang after this window, what is believed of it, and what a policy sees. `speed`: work per second and
        its age. A window teaches where its limit was read as ordered, and the same all along; not while the gang's
        clock is what is moved."""
        self._seen_s[job] = now_s
        ranges = [power_range(self._settings, w, told) for w in members]
        lowest = max(level_of(low / high) for low, high in ranges)
        shares = [w.limit_w * 1000.0 / high for w, (_, high) in zip(members, ranges, strict=True)]
        read = all(now_s - w.read_s <= self._settings.shield.stale_s for w in members)
        level = level_of(min(shares)) if read and all(map(math.isfinite, shares)) else -1
        draw = float(np.mean([w.draw_w * 1000.0 / high for w, (_, high) in zip(members, ranges, strict=True)]))
        gang = self.gangs.get(job)
        if gang is None or int(gang.jobs.lowest[0]) != lowest:
            gang = self.gangs[job] = Gang.start(lowest)
        budget = self._settings.slowdown_of.get(job.partition("/")[0], self._settings.shield.slowdown)
        care = replace(self.care, budget=budget)
        steady = (
            level >= 0
            and not on_clock
            and all(
                w.steady and abs(w.limit_w * 1000.0 - ordered_mw.get(w.uuid, w.limit_w * 1000.0)) < 1000.0
                for w in members
            )
        )
        if level >= 0:
            gang.level = level
        seen = gang.look(speed[0] if steady else math.nan, draw if steady else math.nan, self._bank, care)
        home = int(gang.jobs.home[0])
        slowdown = float(seen.slowdown[0, home])
        scarcest = min(racks, key=lambda r: r.room if math.isfinite(r.room) else math.inf, default=RackState())
        observation = GangSeen(
            unit=job,
            job=job,
            lever=gang.lever,
            level=float(LEVELS[level]) if level >= 0 else math.nan,
            speed=speed[0],
            speed_age_s=speed[1],
            draw=draw,
            gpus=len(members),
            lowest=float(LEVELS[lowest]),
            slowdown=slowdown,
            slowdown_sd=float(seen.slowdown_sd[0, home]),
            budget=budget,
            dram_active=mean([w.dram_active for w in members]),
            sm_active=mean([w.sm_active for w in members]),
            temperature_c=mean([w.temperature_c for w in members]),
            throttled=False,
            slack=budget - slowdown,
            rack_room=scarcest.room,
            rack_slope=scarcest.slope,
        )
        return gang, seen, observation, care
