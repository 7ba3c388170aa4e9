"""Racks in the daemon: which node stands in which, their breakers, and what a policy sees of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import structlog

from nightshift.agent.control.power_absence import AbsentNodes
from nightshift.agent.control.power_windows import GpuWindow, GpuWindows
from nightshift.collectors.tick import Tick
from nightshift.controllers.power import shield
from nightshift.controllers.power.breaker import RackBreaker
from nightshift.controllers.power.settings import PowerSettings


@dataclass(frozen=True)
class RackState:
    """What a policy sees of a rack: shares of its budget, what is not drawn of it and the draw's slope per minute.
    NaN: not known."""

    room: float = math.nan
    slope: float = math.nan


class Racks:
    """One per daemon."""

    def __init__(self, settings: PowerSettings, gone: AbsentNodes) -> None:
        self._settings, self._gone = settings, gone
        self.silent: frozenset[str] = frozenset()
        """Nodes whose draw was not read at the last look."""
        self._breakers = dict.fromkeys(settings.racks, RackBreaker())
        self._before: dict[str, tuple[float, float]] = {}
        self._log = structlog.get_logger("power")
        self.of_node = {node: name for name, rack in settings.racks.items() for node in rack.nodes}

    def open(self, rack: str, now_s: float) -> bool:
        """Whether its breaker is open."""
        return self._breakers[rack].open(now_s)

    def look(self, tick: Tick, windows: GpuWindows) -> int:
        """How many breakers tripped just now."""
        tripped = 0
        if not self._settings.racks:  # only racks have budgets: nothing to sum over a fleet
            return 0
        read_mw = {node: mw for node, mw in windows.draws_mw(tick).items() if math.isfinite(mw)}
        self.silent = frozenset(self.of_node.keys() - read_mw.keys())
        known_mw = self._gone.draws_mw(tick.at_s) | read_mw
        for name, rack in self._settings.racks.items():
            draw_mw = sum(known_mw.get(node, math.nan) for node in rack.nodes) + rack.host_w * 1000.0
            before = self._breakers[name]
            after = before.look(draw_mw, int(rack.budget_w * 1000), tick.at_s)
            self._breakers[name] = after
            if after.open(tick.at_s) and not before.open(tick.at_s):
                self._log.error("rack breaker tripped", rack=name, draw_w=draw_mw / 1000)
                tripped += 1
        return tripped

    def broken(self, gpus: list[shield.Gpu], wishes: dict[str, float], now_s: float) -> dict[str, float]:
        """The wishes, where a breaker is open no more than the fallback."""
        for gpu in gpus:
            if gpu.rack in self._breakers and self.open(gpu.rack, now_s):
                wishes[gpu.uuid] = float(min(gpu.fallback_mw, wishes.get(gpu.uuid, gpu.fallback_mw)))
        return wishes

    def states(self, windows: list[GpuWindow], now_s: float) -> dict[str, RackState]:
        found, drawn_w = {}, dict.fromkeys(self._settings.racks, 0.0)
        for w in windows:
            if (mine := self.of_node.get(w.node)) is not None:
                drawn_w[mine] += w.draw_w
        for name, rack in self._settings.racks.items():
            draw_w = rack.host_w + drawn_w[name]
            at_s, before_w = self._before.get(name, (math.nan, math.nan))
            slope = (draw_w - before_w) / max(now_s - at_s, 1.0) * 60.0
            self._before[name] = (now_s, draw_w)
            found[name] = RackState(1.0 - draw_w / rack.budget_w, slope / rack.budget_w)
        return found
