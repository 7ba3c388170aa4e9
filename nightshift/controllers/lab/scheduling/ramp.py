"""How steeply a rack's draw may rise: starts on it are spread, so that power need not cap what has begun.

What a job adds is taken as the same for each of its GPUs, as in a live cluster before it has run. A start that
comes alone goes however much it adds, since a gang cannot start by halves; that is the shield's rule too (`steer`).
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from nightshift.controllers.scheduling.cluster import I8, ClusterShape

MINUTE_S = 60.0


@dataclass
class Ramp:
    """`slope_w`: rise of one rack's draw allowed within a minute; `gpu_watts`: what a start adds per GPU.

    `rises_w`: of every start on each of its racks, the rise within the minute up to it, itself included; 0 where it
    came alone."""

    shape: ClusterShape
    gpu_watts: float = 500.0
    slope_w: float = math.inf
    rises_w: list[float] = field(default_factory=list)
    _lately: dict[int, deque[tuple[float, float]]] = field(default_factory=lambda: defaultdict(deque))

    def begins_s(self, now_s: float, gpus: I8) -> float:
        """When a job that is given these GPUs now begins; books its rise."""
        racks, counts = np.unique(gpus // (self.shape.per_node * self.shape.per_rack), return_counts=True)
        added_w = {int(rack): self.gpu_watts * int(count) for rack, count in zip(racks, counts, strict=True)}
        at_s = next(at_s for at_s in self._times_s(now_s, added_w) if self._is_flat(at_s, added_w))
        for rack, watts in added_w.items():
            lately = self._lately[rack]
            lately.append((at_s, watts))
            while lately[0][0] + MINUTE_S <= now_s:
                lately.popleft()
            risen_w = self._risen_w(rack, at_s)
            self.rises_w.append(risen_w if risen_w > watts else 0.0)
        return at_s

    def _times_s(self, now_s: float, added_w: dict[int, float]) -> Iterator[float]:
        """From now or the last start booked there on: the moments at which an earlier start is a minute ago."""
        booked = [at_s for rack in added_w for at_s, _ in self._lately[rack]]
        first_s = max([now_s, *booked])
        yield first_s
        yield from sorted(at_s + MINUTE_S for at_s in booked if at_s + MINUTE_S > first_s)

    def _is_flat(self, at_s: float, added_w: dict[int, float]) -> bool:
        risen_w = {rack: self._risen_w(rack, at_s) for rack in added_w}
        return all(risen_w[rack] <= 0.0 or risen_w[rack] + w <= self.slope_w for rack, w in added_w.items())

    def _risen_w(self, rack: int, at_s: float) -> float:
        return math.fsum(watts for t_s, watts in self._lately[rack] if t_s <= at_s < t_s + MINUTE_S)
