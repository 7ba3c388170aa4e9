"""What the power shield works on: a GPU and a rack as they were seen, what is remembered, what is ordered."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field

from nightshift.controllers.decision import Clip

# Telemetry older than this: the GPU holds its limit. Four scrapes of 15 s, so that one that fails stops nothing.
STALE_S = 60.0
# How long a job that was slowed too much is left alone: its next phase has other needs by then.
LOCKOUT_S = 3600.0
# Part of a rack's budget that is never given out, since limits are not kept exactly: of 660 readings of an H200
# that its limit held 3 were above it, by at most 0.7 % (`benchmarks.power_rack --telemetry`), and of 680 measured
# points of sweeps (Zeus) none. The error of a feed's meter belongs in its budget. Each per cent costs a rack about
# half a point of mean throughput.
MARGIN_SHARE = 0.01
# A limit stays at least this long (s), unless the budget lowers it: six looks, after which its cost is seen.
DWELL_S = 30.0
T = TypeVar("T")


class Settings(BaseModel):
    """What power control may never do."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    raise_w_per_min: float = Field(2000.0, gt=0, description="How fast a rack's limits may rise in sum (W/min)")
    slowdown: float = Field(0.05, gt=0, lt=1, description="A job may be slowed by this share, unless it says less")


def without(by_name: Mapping[str, T], names: Container[str]) -> dict[str, T]:
    """What is remembered of all but these."""
    return {name: value for name, value in by_name.items() if name not in names}


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as it was seen. Limits in mW; None: not known."""

    uuid: str
    node: str
    rack: str
    job: str  # gang; empty: none
    min_mw: int
    max_mw: int
    default_mw: int
    fallback_mw: int  # what its node returns to without a lease
    enforced_mw: int | None  # read back from telemetry, not from the node's answer
    seen_age_s: float  # of that reading and of the job's speed
    incident: bool = False
    slowdown: float = 0.0  # measured, share; NaN: not known
    slowdown_budget: float = 0.05


@dataclass(frozen=True)
class RackBudget:
    name: str
    budget_mw: int
    host_mw: int  # everything in the rack that is no GPU, at its most


@dataclass(frozen=True)
class LimitMemory:
    """What the shield remembers between turns; plain, so that it can be kept and restored."""

    ordered_mw: Mapping[str, int] = field(default_factory=dict)
    unread_mw: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # earlier orders, none read back since
    confirmed: frozenset[str] = frozenset()  # GPUs whose last order was read back
    read_mw: Mapping[str, int] = field(default_factory=dict)  # what was read at the turn before
    changed_s: Mapping[str, float] = field(default_factory=dict)
    manual: frozenset[str] = frozenset()  # GPUs that a person took over
    liars: frozenset[str] = frozenset()  # nodes that said done and did not
    unmet: Mapping[str, int] = field(default_factory=dict)  # turns that an order was not read back
    locked_until_s: Mapping[str, float] = field(default_factory=dict)  # jobs
    raised_at_s: Mapping[str, float] = field(default_factory=dict)  # racks


@dataclass(frozen=True)
class LimitOrders:
    """Limits to be set, lowering and raising apart; a GPU in neither is left as it is."""

    lower_mw: Mapping[str, int]
    raise_mw: Mapping[str, int]
    clips: Mapping[str, tuple[Clip, ...]]  # by GPU
    memory: LimitMemory
    overdrawn: Mapping[str, int]  # racks whose worst case does not fit, and by how much (mW)
    waiting: bool = False  # raises wait until lowerings are read back: ask again at the next look

    @property
    def limits_mw(self) -> dict[str, int]:
        return {**self.raise_mw, **self.lower_mw}

    def limit_mw(self, uuid: str) -> int | None:
        """Of one GPU; None: left as it is."""
        return self.lower_mw.get(uuid, self.raise_mw.get(uuid))
