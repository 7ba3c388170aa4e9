"""Clocks of logs that name no time zone: how far they are from UTC, by lines that were just written."""

from __future__ import annotations

import time

LIVE_S = 120.0
"""What was written no longer ago was just written."""
QUARTER_S = 900.0
NEAREST_S, FARTHEST_S = 3600.0, 14 * 3600.0
"""How far from UTC a zone is that is not UTC."""


def zone_of(newest_s: float, changed_s: float, now_s: float) -> float | None:
    """What to add to a log's times (s), taken for UTC, by its newest one; None where it does not tell.

    changed_s: when its file was last written, by this machine's clock; now_s: the time of the look (Unix s).

    >>> import time
    >>> now_s = time.time()
    >>> zone_of(newest_s=now_s + 7200.0, changed_s=now_s, now_s=now_s)  # the log's clock is two hours ahead of UTC
    -7200.0
    """
    if time.time() - changed_s > LIVE_S:
        return None
    zone_s = round((now_s - newest_s) / QUARTER_S) * QUARTER_S
    is_zone = zone_s == 0 or NEAREST_S <= abs(zone_s) <= FARTHEST_S
    return zone_s if is_zone and abs(now_s - newest_s - zone_s) <= LIVE_S else None
