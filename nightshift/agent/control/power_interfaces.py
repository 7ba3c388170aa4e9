"""What power control asks of the daemon around it, and what one of its turns did."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from nightshift.agent.control.power_absence import Standing
from nightshift.controllers.actuators.power_nodes import Grant
from nightshift.controllers.decision import Decision, Trust
from nightshift.controllers.outcome import Sample, Stretch
from nightshift.controllers.power import shield
from nightshift.controllers.promotion import Health

Trusts = Callable[[str, bool, float], Trust]
"""(job, its owner opted in, now) → how far the policy is trusted with it."""


@dataclass(frozen=True)
class Happened:
    """What one turn tells of outcomes: decisions that came into force, what was seen, and jobs that are gone."""

    now_s: float
    stretches: Sequence[Stretch] = ()
    samples: Sequence[Sample] = ()
    gone: Sequence[str] = ()


@dataclass
class Around:
    """What the loop asks of the daemon; tests hand in their own."""

    keep: Callable[[Sequence[tuple[Decision, float, bool]]], None]
    """Stores receipts, each with the chance that the policy was executed and whether it was."""
    trusts: Callable[[], Trusts] = lambda: lambda _job, _opted, _now_s: Trust()
    """Read once a turn."""
    note: Callable[[Health], str] = lambda _health: ""
    """Tells what happened to the policy just now; where that demotes it, why. Raises Temporary where the store is
    away: it is told again, and until then no policy is trusted."""
    happened: Callable[[Happened], None] = lambda _happened: None
    halted: Callable[[], bool] = lambda: False
    ill_nodes: Callable[[], frozenset[str]] = frozenset
    """Nodes on which an incident is open."""
    term: Callable[[], int] = lambda: 1
    """Another one than at the last turn: another daemon may have led in between, and what it kept is taken up."""
    leads: Callable[[], bool] = lambda: True
    store: Callable[[bytes], None] = lambda _state: None
    recall: Callable[[], bytes | None] = lambda: None
    released: Callable[[], Mapping[str, float]] = dict
    """GPUs and nodes that people gave back to power control, and when (Unix s)."""
    standing: Standing | None = None
    """None: nobody can say which nodes are deleted."""
    count: Callable[[str], None] = lambda _outcome: None
    gauge: Callable[[str, float, bool], None] = lambda _rack, _headroom_w, _open: None


@dataclass
class Turn:
    """What one turn did, for tests and logs."""

    receipts: list[Decision] = field(default_factory=list)
    orders: shield.Orders | None = None
    grants: Mapping[str, Grant] = field(default_factory=dict)
