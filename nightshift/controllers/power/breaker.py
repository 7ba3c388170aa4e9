"""The fast breaker: independent of policy, shield and their bookkeeping, it looks at one number, the rack's draw.

Over the budget by more than `TRIP_SHARE`, or over it at all for `SLOW_S`, it trips: every GPU of the rack to its
fallback limit at once, and no raise until `REST_S` after the draw came down. A rack whose draw is not read for
`BLIND_S` counts as over.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

# Share over the budget at which it trips immediately: twice what the shield holds back (`MARGIN_SHARE`).
TRIP_SHARE = 0.02
# Over the budget at all for this long, it trips: two readings of a tick of 5 s, so one wrong reading is none.
SLOW_S = 10.0
# A rack whose draw is not read for this long counts as over: as old as telemetry that the shield still believes.
BLIND_S = 60.0
# No raise for this long after the draw came down: what drove it up may come again.
REST_S = 600.0


@dataclass(frozen=True)
class RackBreaker:
    """Of one rack. `tripped_s`: the last moment at which it was over."""

    over_since_s: float = math.inf
    read_s: float = -math.inf
    tripped_s: float = -math.inf

    def look(self, draw_mw: float, budget_mw: int, now_s: float) -> RackBreaker:
        """After one reading of the rack's whole draw (GPUs and hosts; NaN: not read). Times after `now_s` are of
        before the clock was set back: they count as now."""
        tripped_s = min(self.tripped_s, now_s)
        if not math.isfinite(draw_mw) or draw_mw < 0:
            read_s = now_s if self.read_s == -math.inf else min(self.read_s, now_s)
            blind = now_s - read_s >= BLIND_S
            return replace(self, read_s=read_s, tripped_s=now_s if blind else tripped_s)
        over_since_s = min(self.over_since_s, now_s) if draw_mw > budget_mw else math.inf
        trips = draw_mw > budget_mw * (1.0 + TRIP_SHARE) or now_s - over_since_s >= SLOW_S
        return RackBreaker(over_since_s, now_s, now_s if trips else tripped_s)

    def open(self, now_s: float) -> bool:
        """Whether the rack's GPUs have to be at their fallback."""
        return now_s - self.tripped_s < REST_S
