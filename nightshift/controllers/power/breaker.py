"""The fast breaker: independent of policy, shield and their bookkeeping, it looks at one number, the rack's draw.

Over the budget by more than `trip_share`, or over it at all for `slow_s`, it trips: every GPU of the rack to its
fallback limit at once, and no raise until `rest_s` after the draw came down. A rack whose draw is not read for
`blind_s` counts as over.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from pydantic import BaseModel, ConfigDict, Field


class Settings(BaseModel):
    """When the breaker trips."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    trip_share: float = Field(0.02, ge=0, lt=1, description="Share over the budget at which it trips immediately")
    slow_s: float = Field(10.0, ge=0, description="Over the budget at all for this long: trips (s)")
    blind_s: float = Field(60.0, gt=0, description="A rack's draw not read for this long: trips (s)")
    rest_s: float = Field(600.0, gt=0, description="Raises nothing for this long after the draw came down (s)")


@dataclass(frozen=True)
class Breaker:
    """Of one rack. `tripped_s`: the last moment at which it was over."""

    over_since_s: float = math.inf
    read_s: float = -math.inf
    tripped_s: float = -math.inf

    def look(self, draw_mw: float, budget_mw: int, now_s: float, s: Settings) -> Breaker:
        """After one reading of the rack's whole draw (GPUs and hosts; NaN: not read). Times after `now_s` are of
        before the clock was set back: they count as now."""
        tripped_s = min(self.tripped_s, now_s)
        if not math.isfinite(draw_mw) or draw_mw < 0:
            read_s = now_s if self.read_s == -math.inf else min(self.read_s, now_s)
            blind = now_s - read_s >= s.blind_s
            return replace(self, read_s=read_s, tripped_s=now_s if blind else tripped_s)
        over_since_s = min(self.over_since_s, now_s) if draw_mw > budget_mw else math.inf
        trips = draw_mw > budget_mw * (1.0 + s.trip_share) or now_s - over_since_s >= s.slow_s
        return Breaker(over_since_s, now_s, now_s if trips else tripped_s)

    def open(self, now_s: float, s: Settings) -> bool:
        """Whether the rack's GPUs have to be at their fallback."""
        return now_s - self.tripped_s < s.rest_s
