"""What an outlet can do. Each is one file with its settings inside, and one line in
`agent.notify.outlets.settings`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from nightshift.agent.notify.outlets.letter import Form, Letter


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """Somebody has taken an alert on, in the outlet."""

    key: str
    by: str
    at_s: float


class Outlet(Protocol):
    """A place where alerts stand. Sending a letter again changes nothing: the vendor knows it by its key."""

    name: str
    forms: frozenset[Form]
    """What it can take: a page, or an alert that calls nobody."""
    renew_s: float
    """How often a standing alert is sent again (s); infinite where the vendor keeps it."""

    def send(self, letters: Sequence[Letter]) -> None:
        """Makes alerts stand as the letters say. Raises RateLimited, NoAnswer or Refused."""

    def acknowledged(self, keys: Sequence[str]) -> list[Acknowledgement]:
        """Of these pages, those that somebody has taken on; empty where the outlet tells us itself."""

    def try_out(self) -> str:
        """What the service says of our credentials, without paging anybody. Raises Permanent or Temporary."""

    def close(self) -> None:
        """Closes connections."""
