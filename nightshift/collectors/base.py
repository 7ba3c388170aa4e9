"""The contract of every collector, and the two kinds of failure that the whole house knows.

    Temporary   retried by exactly one layer, the caller's loop
    Permanent   said to the user, naming the file, line or field

A collector never raises out of `collect`: a source that fails is a `SourceStatus` with a reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:  # the two failures are known to every command line, which does not load NumPy for them
    from nightshift.collectors.subject import Inventory
    from nightshift.collectors.tick import Batch


class Temporary(Exception):
    """Trying again may work. `retry_after_s` where the other side said when."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Permanent(Exception):
    """Trying again will not help; the message tells a person what to change and where."""


@runtime_checkable
class Collector(Protocol):
    """Reads some sources of one type. One instance serves one configured entry of the settings."""

    @property
    def name(self) -> str:
        """The plug-in's name, as in the settings: the `collector` label of its metrics."""
        ...

    def collect(self, now_s: float, inventory: Inventory, timeout_s: float) -> Batch:
        """Everything new since the last call, within `timeout_s` of wall time and bounded memory.

        `now_s` is the daemon's clock (Unix s). Relations that the source tells (GPU on node, pod on GPU) are
        observed into `inventory`. Missing or refused data becomes a status with a reason and NaN, never an
        exception and never a healthy value.
        """
        ...

    def close(self) -> None:
        """Releases connections and files; called once."""
        ...
