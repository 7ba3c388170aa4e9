"""What every outlet has in common, Slack's too: what a failed call means, when to try again, and a thread that
compares what should stand outside with what does.

RateLimited   429: nothing was done; not before `retry_after_s`
NoAnswer      the connection broke, timed out or answered 5xx: it may have happened
Refused       the service said no; `reason` is its word for it
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

import structlog

from nightshift.collectors.base import Permanent, Temporary

_T = TypeVar("_T")
POLL_S = 0.5
BACK_OFF_S = (1.0, 30.0)


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
        self._left: dict[str, tuple[float, float]] = {}
        """Since when (wall, s) and for how long: a clock that is set back holds nothing up for longer."""
        self._backing_off_s = 0.0

    def may(self, place: str, wall_s: float) -> bool:
        """Whether a place may be called; an empty name asks of all of them."""
        return not any(0 <= wall_s - since_s < for_s for since_s, for_s in map(self._of, {place, ""}))

    def _of(self, place: str) -> tuple[float, float]:
        return self._left.get(place, (0.0, 0.0))

    def answered(self) -> None:
        self._backing_off_s = 0.0

    def leave(self, place: str, wall_s: float, for_s: float) -> None:
        self._left[place] = wall_s, for_s

    def away(self, wall_s: float) -> float:
        """Nobody answers: leaves every place alone, and returns for how long (s)."""
        least, most = BACK_OFF_S
        self._backing_off_s = min(most, max(least, 2 * self._backing_off_s))
        self.leave("", wall_s, self._backing_off_s)
        return self._backing_off_s


class Repeated(ABC):
    """`once` is one comparison; `start` repeats it on a thread of its own until `stop`."""

    def __init__(self, name: str, ends_within_s: float) -> None:
        self._log = structlog.get_logger(name)
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._ends_within_s = ends_within_s
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.problem = ""
        """Why nothing goes out now, for the health page; empty where it does."""

    @abstractmethod
    def once(self) -> None:
        """Sends what is missing."""

    @abstractmethod
    def leads(self) -> bool:
        """Whether this process is the one that sends."""

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Compares now rather than at the next poll."""
        self._wake.set()

    def stop(self) -> None:
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(self._ends_within_s)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                if self.leads():
                    self.once()
            except (Temporary, Permanent) as error:
                self.problem = str(error)
                self._log.warning("outlet delivery delayed", error=str(error))
                self._wake.wait(1.0)
            except Exception as error:  # noqa: BLE001  a defect of ours must not end the messages; it is said
                self.problem = f"{type(error).__name__}: {error}"
                self._log.exception("outlet comparison failed")
                self._wake.wait(5.0)
            self._wake.wait(POLL_S)


def counted(call: Callable[[], _T], count: Callable[[str], None]) -> _T:
    """Makes a call and counts how it ended: ok, limited, no_answer or refused."""
    try:
        answer = call()
    except RateLimited:
        count("limited")
        raise
    except NoAnswer:
        count("no_answer")
        raise
    except DeliveryRefused:
        count("refused")
        raise
    count("ok")
    return answer
