"""What a window of a job was worth: the outcome of a decision on its power, against the job's own reference.

The reference is the job at its highest limit, as far as windows were spent there. Energy is the node's: of it
`HOST_SHARE` is what a node draws beside its GPUs whatever they do, so that slowing a job is never free. Pure.
"""

from __future__ import annotations

import math

from nightshift.controllers.power.belief import TOP
from nightshift.controllers.power.gang import Gang

HOST_SHARE = 0.3


def reference(gang: Gang) -> tuple[float, float]:
    """(speed, draw) at the highest limit: means over its windows; NaN where there is none yet."""
    w = gang.jobs.windows
    count = float(w.count[0, TOP])
    if count <= 0:
        return math.nan, math.nan
    return float(w.speed[0, TOP]) / count, float(w.draw[0, TOP]) / count


def worth(speed: float, draw: float, at_reference: tuple[float, float]) -> tuple[float, float]:
    """(reward, slowdown) of a window: the share of node energy per unit of work saved against the reference, and
    time per unit of work as a ratio to it (1 = none). NaN where anything is missing or is no positive number."""
    speed_at, draw_at = at_reference
    if not all(math.isfinite(x) and x > 0 for x in (speed, draw, speed_at, draw_at)):
        return math.nan, math.nan
    slowdown = speed_at / speed
    energy = ((1.0 - HOST_SHARE) * draw / draw_at + HOST_SHARE) * slowdown
    return 1.0 - energy, slowdown
