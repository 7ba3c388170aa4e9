"""Nodes of a rack that vanished: from telemetry, and then from the cluster.

A rack's draw is not known while one of its nodes is silent, and after a minute the breaker holds the rack at its
fallback. Silence alone never ends that. Only where the API server says that the Node object, which stood before, is
deleted does the node get no lease any more; it counts at its worst case for as long as its last lease can live, and
then as gone: it draws nothing and its GPUs take no part of the budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import structlog

from nightshift.agent.control.power_windows import GpuWindow
from nightshift.collectors.base import Permanent, Temporary
from nightshift.controllers.power import shield
from nightshift.controllers.power.settings import LEASE_S, WINDOW_S, PowerSettings

Standing = Callable[[Collection[str]], frozenset[str]]
"""Those of the names that are Nodes now, as the API server says. Raises Temporary or Permanent."""


class AbsentNodes:
    """One per daemon. Asked and changed by turns; `draws_mw` is read from the thread that looks."""

    def __init__(self, settings: PowerSettings, standing: Standing | None) -> None:
        """`standing` None: nobody can say, and a silent node is silent for ever."""
        self._nodes = frozenset(node for rack in settings.racks.values() for node in rack.nodes)
        self._lives_s = LEASE_S + WINDOW_S  # a turn may be late by a window
        self._shield, self._standing = settings.shield, standing
        self._stood: frozenset[str] = frozenset()
        self._since_s: Mapping[str, float] = {}
        self._worst_mw: Mapping[str, float] = {}
        self._asked: frozenset[str] = frozenset()
        self._strange: frozenset[str] = frozenset()
        self._log = structlog.get_logger("power")

    @property
    def nodes(self) -> frozenset[str]:
        """Whose Node object is deleted: they get no lease."""
        return frozenset(self._since_s)

    def look(
        self, silent: Collection[str], gpus: Sequence[shield.Gpu], memory: shield.LimitMemory, now_s: float
    ) -> None:
        """After a look at telemetry. `silent`: nodes whose draw was not read. While the API server does not answer,
        what it said last holds."""
        if self._standing is None:
            return
        silent = frozenset(silent) & self._nodes
        names = silent | (self._nodes - self._asked)
        try:
            standing = self._standing(names) if names else frozenset()
        except (Temporary, Permanent) as error:
            self._log.warning("absent nodes lookup failed", silent=sorted(silent), error=str(error))
            return
        strange = silent - standing - self._stood
        for node in sorted(strange - self._strange):
            self._log.error("silent node not found", node=node)
        self._strange = strange
        self._asked |= names
        self._stood |= standing
        left = {n: at_s for n, at_s in self._since_s.items() if n in silent and n not in standing}
        newly = (silent & self._stood) - standing - left.keys()
        for node in sorted(newly):
            self._log.warning("lease of deleted node dropped", node=node, counted_for_s=self._lives_s)
        # written before the names: whoever reads between the two finds no number, and no number is no draw
        self._worst_mw = {**self._worst_mw, **{node: self._worst(node, gpus, memory) for node in newly}}
        self._since_s = left | dict.fromkeys(newly, now_s)

    def draws_mw(self, now_s: float) -> dict[str, float]:
        """What to count for deleted nodes that telemetry does not show."""
        worst_mw = self._worst_mw
        return {
            node: 0.0 if self._is_over(since_s, now_s) else worst_mw.get(node, math.nan)
            for node, since_s in self._since_s.items()
        }

    def left(self, windows: Iterable[GpuWindow], now_s: float) -> list[GpuWindow]:
        """Without the GPUs of nodes whose last lease cannot live any more."""
        over = {node for node, since_s in self._since_s.items() if self._is_over(since_s, now_s)}
        return [window for window in windows if window.node not in over]

    def _worst(self, node: str, gpus: Sequence[shield.Gpu], memory: shield.LimitMemory) -> float:
        found = [shield.worst_mw(gpu, memory, self._shield) for gpu in gpus if gpu.node == node]
        return float(sum(found)) if found else math.nan

    def _is_over(self, since_s: float, now_s: float) -> bool:
        return now_s - since_s >= self._lives_s

    # What is kept for the daemon that leads next -----------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        worst_mw = {n: mw for n, mw in self._worst_mw.items() if n in self._since_s and math.isfinite(mw)}
        return {"stood": sorted(self._stood), "since_s": dict(self._since_s), "worst_mw": worst_mw}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Raises KeyError, TypeError or ValueError where it is not of this form."""
        if not state:
            return
        stood = frozenset(map(str, state["stood"]))
        since_s = {str(n): float(at_s) for n, at_s in state["since_s"].items()}
        worst_mw = {str(n): float(mw) for n, mw in state["worst_mw"].items()}
        self._stood = self._stood | (stood & self._nodes)
        self._worst_mw = worst_mw
        self._since_s = {n: at_s for n, at_s in since_s.items() if n in self._nodes}
