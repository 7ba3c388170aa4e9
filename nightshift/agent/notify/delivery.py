"""What a failed call to an outlet means, and how long a place is left alone after one.

RateLimited       429: nothing was done; not before `retry_after_s`
NoAnswer          the connection broke, timed out or answered 5xx: it may have happened
DeliveryRefused   the service said no; `reason` is its word for it
"""

from __future__ import annotations

from collections.abc import Iterator

from nightshift.collectors.base import Permanent, Temporary

# Doubles from the first to the last: a service that restarts is back within seconds, and half a minute is the most
# that a page then waits for the next try.
_BACK_OFF_S = (1.0, 30.0)


class RateLimited(Temporary):
    """Too many calls; nothing was done."""


class NoAnswer(Temporary):
    """No answer came: it may have happened."""


class DeliveryRefused(Permanent):
    """A service refused, for `reason`."""

    def __init__(self, reason: str, service: str = "Slack") -> None:
        super().__init__(f"{service} refused: {reason}")
        self.reason = reason


class DeliveryPace:
    """Until when a place is left alone: after a 429 the place itself, without an answer everything, ever longer."""

    def __init__(self) -> None:
        # Since when (wall, s), for how long, and why. Both times, not their sum: a clock that is set back an hour
        # must not hold a page up for that hour.
        self._left: dict[str, tuple[float, float, str]] = {}
        self._backing_off_s = 0.0
        self.refused = False
        """Whether the last answer was a refusal: nothing is gained by waiting for this outlet."""

    def may(self, scope: str, wall_s: float) -> bool:
        """Whether a place may be called; an empty name asks of all of them."""
        return not any(self._holds(name, wall_s) for name in {scope, ""})

    def reasons(self, wall_s: float) -> Iterator[str]:
        """Why places are left alone now."""
        for place, (_, _, why) in self._left.items():
            if why and self._holds(place, wall_s):
                yield why

    def _holds(self, place: str, wall_s: float) -> bool:
        since_s, for_s, _ = self._left.get(place, (0.0, 0.0, ""))
        # An age below 0: the clock was set back.
        return 0 <= wall_s - since_s < for_s

    def answered(self) -> None:
        self._backing_off_s, self.refused = 0.0, False

    def leave(self, scope: str, wall_s: float, for_s: float, reason: str = "") -> None:
        if len(self._left) > _MOST_PLACES:  # one entry a message that was refused: years of them are forgotten
            self._left = {name: left for name, left in self._left.items() if self._holds(name, wall_s)}
        self._left[scope] = wall_s, for_s, reason

    def away(self, wall_s: float, reason: str = "") -> float:
        """Nobody answers: leaves every place alone, and returns for how long (s)."""
        least, most = _BACK_OFF_S
        self._backing_off_s = min(most, max(least, 2 * self._backing_off_s))
        self.leave("", wall_s, self._backing_off_s, reason)
        return self._backing_off_s


_MOST_PLACES = 1000
