"""How the API server goes wrong, on request: the next calls that match are answered late, badly, or not at all."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class Fault(StrEnum):
    SLOW = "slow"
    """Answers after the client's patience; the effect happens."""
    TOO_MANY = "429"
    """Refuses with Retry-After, as API priority and fairness does: in plain text, no Status."""
    INTERNAL = "500"
    UNAVAILABLE = "503"
    DISCONNECT = "disconnect"
    """Hangs up before it does anything."""
    LOST_REPLY = "lost reply"
    """The effect happens, then the connection breaks."""
    EXPIRED_TOKEN = "expired token"
    """401, as for a token whose file has just been renewed."""
    FORBIDDEN = "403"
    """Refuses for good, as a role that was narrowed or an admission webhook does."""
    DENIED = "authorizer's 403"
    """Refuses a granted right, as a server does before it has read its roles."""
    WARN = "warning"
    """Does as it is asked, and warns, as for a deprecated version or by an admission webhook."""
    PAGE = "gateway's 404"
    """A gateway, whose backend is away, answers in the server's stead: nothing is done, and nothing is absent."""
    STRANGE = "gateway's 200"
    """So does one that is under maintenance, in JSON."""


STRANGERS: dict[Fault, tuple[int, str]] = {
    Fault.PAGE: (404, "<html><body><h1>404 Not Found</h1>nginx</body></html>"),
    Fault.STRANGE: (200, '{"status": "maintenance", "items": []}'),
}
STATUS = {
    Fault.FORBIDDEN: ("Forbidden", 'forbidden: the webhook "owners" denied the request: not yours'),
    Fault.INTERNAL: ("InternalError", "an internal error"),
    Fault.UNAVAILABLE: ("ServiceUnavailable", "the server is currently unable to handle the request"),
    Fault.EXPIRED_TOKEN: ("Unauthorized", "Unauthorized"),
}
THROTTLED = "Too many requests, please try again later.\n"
"""k8s.io/apiserver, pkg/server/filters/maxinflight.go, tooManyRequests."""
WARNING = '299 - "the webhook \\"owners\\" says: this node belongs to team-b", 299 - "v1beta9 Node is deprecated"'
Matches = Callable[[str, str], bool]


@dataclass
class _Plan:
    fault: Fault
    times: int
    matches: Matches


class Faults:
    """Planned faults, in order; each call meets at most one."""

    def __init__(self, slow_s: float = 0.5) -> None:
        self.slow_s = slow_s
        self.token = ""
        """Only calls with this token meet faults; empty: all."""
        self._plans: list[_Plan] = []
        self._lock = threading.Lock()

    def plan(self, fault: Fault, times: int = 1, matches: Matches = lambda method, path: True) -> None:
        """The next `times` calls for which `matches(method, path)` holds meet the fault."""
        with self._lock:
            self._plans.append(_Plan(fault, times, matches))

    def clear(self) -> None:
        with self._lock:
            self._plans.clear()

    def take(self, method: str, path: str, token: str) -> Fault | None:
        if self.token and token != self.token:
            return None
        with self._lock:
            for plan in self._plans:
                if plan.times > 0 and plan.matches(method, path):
                    plan.times -= 1
                    return plan.fault
        return None
