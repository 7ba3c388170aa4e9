"""What power control asks of the daemon around it, and what one of its turns did."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from controllers.actuators.power_nodes import Grant
from controllers.decision import Decision, Mode
from controllers.power import shield


@dataclass
class Around:
    """What the loop asks of the daemon; tests hand in their own."""

    keep: Callable[[Decision, float, bool], None]
    """Stores a receipt, with the chance that the policy was executed and whether it was."""
    chance: Callable[[str, bool], tuple[Mode, float]] = lambda _job, _opted: (Mode.SHADOW, 0.0)
    """(job, its owner opted in) → how far the policy is trusted, and its chance of being executed."""
    halted: Callable[[], bool] = lambda: False
    ill_nodes: Callable[[], frozenset[str]] = frozenset
    """Nodes on which an incident is open."""
    term: Callable[[], int] = lambda: 1
    store: Callable[[bytes], None] = lambda _state: None
    recall: Callable[[], bytes | None] = lambda: None
    released: Callable[[], Mapping[str, float]] = dict
    """GPUs and nodes that people gave back to power control, and when (Unix s)."""
    count: Callable[[str], None] = lambda _outcome: None
    gauge: Callable[[str, float, bool], None] = lambda _rack, _headroom_w, _open: None


@dataclass
class Turn:
    """What one turn did, for tests and logs."""

    receipts: list[Decision] = field(default_factory=list)
    orders: shield.Orders | None = None
    grants: Mapping[str, Grant] = field(default_factory=dict)
