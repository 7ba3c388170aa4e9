"""Windows and what nodes say, as the belief and the shield want them: gangs on levels, GPUs in racks."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace

from nightshift.agent.control.power_decision import Belief
from nightshift.agent.control.power_racks import RackState
from nightshift.agent.control.power_windows import GpuWindow, mean
from nightshift.controllers.actuators.power_nodes import NodeStatus
from nightshift.controllers.power import descent, shield
from nightshift.controllers.power.belief import Outlook, shared_bank
from nightshift.controllers.power.curves import LEVELS
from nightshift.controllers.power.gang import Gang, GangSeen, level_of, look
from nightshift.controllers.power.settings import PowerSettings

_KEPT_S = 3600.0
"""For which a gang's belief outlives the last sight of its job."""


def power_range(settings: PowerSettings, window: GpuWindow, told: Mapping[str, NodeStatus]) -> tuple[int, int]:
    """Lowest and highest limit of a GPU (mW): as its node says, else as it is configured."""
    node = told.get(window.node)
    if node is not None and window.uuid in node.gpus:
        return node.gpus[window.uuid].min_mw, node.gpus[window.uuid].max_mw
    return int(settings.min_w * 1000), int(settings.max_w * 1000)


def seen_age_s(read_s: float, now_s: float, stale_s: float) -> float:
    """How long ago something was read (s). A time that lies further ahead than clocks differ is of before the clock
    was set back: how old it is nobody knows, so it is infinitely old."""
    return now_s - read_s if read_s - now_s <= stale_s else math.inf


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
        seen_age_s(window.read_s, now_s, settings.shield.stale_s),
        incident=ill,
        slowdown=belief[2].slowdown if belief is not None and sure else math.nan,
        slowdown_budget=belief[2].budget if belief is not None else settings.shield.slowdown,
    )


@dataclass(frozen=True, slots=True)
class _View:
    """One gang's window, as the belief wants it. `level` -1: not known."""

    gang: Gang
    level: int
    lowest: int
    draw: float
    steady: bool


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
        gangs: Mapping[str, list[GpuWindow]],
        speeds: Mapping[str, tuple[float, float]],
        told: Mapping[str, NodeStatus],
        ordered_mw: Mapping[str, int],
        racks: Mapping[str, Iterable[RackState]],
        now_s: float,
        on_clock: Container[str] = (),
    ) -> dict[str, Belief]:
        """The gangs after this window, what is believed of each, and what a policy sees. `speeds`: of a job, work
        per second and its age; `racks`: those that its GPUs stand in. A window teaches where its limit was read as
        ordered, and the same all along; not while the gang's clock is what is moved."""
        views = {
            job: self._view(job, members, told, ordered_mw, now_s, job in on_clock)
            for job, members in gangs.items()
        }
        unknown, taken = (math.nan, math.inf), []
        for job, view in views.items():
            speed = speeds.get(job, unknown)[0]
            taken.append((view.gang, speed, view.draw) if view.steady else (view.gang, math.nan, math.nan))
        cares = {
            budget: replace(self.care, budget=budget)
            for budget in {self._settings.shield.slowdown, *self._settings.slowdown_of.values()}
        }
        found = {}
        for (job, view), seen in zip(views.items(), look(taken, self._bank, self.care), strict=True):
            care, members, speed_s = cares[self._budget(job)], gangs[job], speeds.get(job, unknown)
            found[job] = (view.gang, seen, _observed(job, view, seen, care, members, speed_s, racks[job]), care)
        return found

    def _budget(self, job: str) -> float:
        return self._settings.slowdown_of.get(job.partition("/")[0], self._settings.shield.slowdown)

    def _view(
        self,
        job: str,
        members: list[GpuWindow],
        told: Mapping[str, NodeStatus],
        ordered_mw: Mapping[str, int],
        now_s: float,
        on_clock: bool,
    ) -> _View:
        """The window, and the gang at the level that it was read at."""
        self._seen_s[job] = now_s
        ranges = [power_range(self._settings, w, told) for w in members]
        lowest = max(level_of(low / high) for low, high in ranges)
        shares = [w.limit_w * 1000.0 / high for w, (_, high) in zip(members, ranges, strict=True)]
        stale_s = self._settings.shield.stale_s
        read = all(seen_age_s(w.read_s, now_s, stale_s) <= stale_s for w in members)
        level = level_of(min(shares)) if read and all(map(math.isfinite, shares)) else -1
        draw = sum(w.draw_w * 1000.0 / high for w, (_, high) in zip(members, ranges, strict=True)) / len(members)
        gang = self.gangs.get(job)
        if gang is None or int(gang.jobs.lowest[0]) != lowest:
            gang = self.gangs[job] = Gang.start(lowest)
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
        return _View(gang, level, lowest, draw, steady)


def _observed(
    job: str,
    view: _View,
    seen: Outlook,
    care: descent.Care,
    members: list[GpuWindow],
    speed: tuple[float, float],
    racks: Iterable[RackState],
) -> GangSeen:
    home = int(view.gang.jobs.home[0])
    slowdown = float(seen.slowdown[0, home])
    scarcest = min(racks, key=lambda r: r.room if math.isfinite(r.room) else math.inf, default=RackState())
    return GangSeen(
        unit=job,
        job=job,
        lever=view.gang.lever,
        level=float(LEVELS[view.level]) if view.level >= 0 else math.nan,
        speed=speed[0],
        speed_age_s=speed[1],
        draw=view.draw,
        gpus=len(members),
        lowest=float(LEVELS[view.lowest]),
        slowdown=slowdown,
        slowdown_sd=float(seen.slowdown_sd[0, home]),
        budget=care.budget,
        dram_active=mean([w.dram_active for w in members]),
        sm_active=mean([w.sm_active for w in members]),
        temperature_c=mean([w.temperature_c for w in members]),
        throttled=False,
        slack=care.budget - slowdown,
        rack_room=scarcest.room,
        rack_slope=scarcest.slope,
    )
