"""What no proposal to lock SM clocks passes unchecked. Pure; beside the power limits' shield, never inside it.

A power limit never binds on work that waits for memory: it draws less than any limit. A lower SM clock does. But a
locked clock is no promise of power: the budget's proof counts enforced power limits alone (`shield.worst_mw`), and
nothing here enters it. A lock is an upper bound of the clock, from the highest down, by bounded steps; a free clock
has none. Freeing is always allowed and always whole.

NVML tells no lock back, so it is read back by its effect, the SM clock: a GPU that works above its lock does not
have it. One that was read within it and then works above it, or whose clock stays below it (or stays low when it is
free) with no throttle reason, is held by a person: its clock is never touched again until it is given back.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from pydantic import BaseModel, ConfigDict, Field

from nightshift.controllers.decision import Clip
from nightshift.controllers.power import shield
from nightshift.controllers.power.limits import DWELL_S, STALE_S, Gpu, without

GRID_MHZ = 15
"""Step of the SM clocks that NVIDIA's data centre GPUs support (`nvidia-smi -q -d SUPPORTED_CLOCKS`)."""
FREE_SHARE = 0.97
"""Of its highest clock, what a GPU whose clock nobody holds runs at."""
STEP_SHARE = 0.05
"""Largest share by which one step lowers a lock: what a step costs is seen before the next one."""
FLOOR_SHARE = 0.5
"""No clock is locked below this share of its highest: what a clock binds then takes twice as
long."""
MAX_MHZ = 1980
"""Highest SM clock of a GPU until its node answers: an H100's and H200's. Without nodes every lock is a shadow."""
TWICE = 2
"""Turns that a clock above a lock that had held has to be seen: a node that forgot it locks it again in between."""


class Settings(BaseModel):
    """SM clock locks, where no power limit can bind."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = Field(False, description="Also propose locked SM clocks; without `power.act` a shadow")


@dataclass(frozen=True)
class ClockReading:
    """The clock of one GPU (MHz; NaN: not known). `high_mhz`: the highest reading of the window."""

    gpu: Gpu
    max_mhz: int
    now_mhz: float
    high_mhz: float
    read_s: float
    throttled: bool = False  # heat, a power brake or the power limit holds the clock
    busy: bool = True  # an idle GPU's clock is low by itself


@dataclass(frozen=True)
class ClockMemory:
    """What is remembered between turns; plain, so that it can be kept and restored. By GPU."""

    ordered_mhz: Mapping[str, int] = field(default_factory=dict)  # not in it: free
    changed_s: Mapping[str, float] = field(default_factory=dict)
    read_s: Mapping[str, float] = field(default_factory=dict)  # the reading that was looked at last
    confirmed: frozenset[str] = frozenset()  # whose lock was read back
    odd: Mapping[str, int] = field(default_factory=dict)  # turns running that it was not read back
    manual: frozenset[str] = frozenset()  # whose clock a person took over
    liars: frozenset[str] = frozenset()  # nodes that said locked and did not


@dataclass(frozen=True)
class ClockOrders:
    """`changed_mhz`: clocks to be locked, or freed (None); what is not in it stays."""

    changed_mhz: Mapping[str, int | None]
    clips: Mapping[str, tuple[Clip, ...]]
    memory: ClockMemory


def observe(
    readings: Sequence[ClockReading],
    memory: ClockMemory,
    granted: Mapping[str, bool],
    by_hand: frozenset[str] = frozenset(),
) -> ClockMemory:
    """Reads locks back. `granted`: node → whether it said that it had carried the last lease out; `by_hand`: GPUs
    whose nodes saw a person change the clock."""
    confirmed, liars, odd = set(memory.confirmed) - by_hand, set(memory.liars), dict(memory.odd)
    manual = set(memory.manual | by_hand)
    for one in readings:
        node, uuid = one.gpu.node, one.gpu.uuid
        if not _is_new(one, memory, manual):
            continue
        lock_mhz = memory.ordered_mhz.get(uuid)
        off = _off(one, lock_mhz)
        if lock_mhz is not None and off is not _Off.ABOVE:
            confirmed.add(uuid)
        if off is None:
            odd.pop(uuid, None)
        if off is None or not granted.get(node, False):
            continue  # a node that was away carried nothing out, so its clocks say nothing of people or lies
        turns = odd[uuid] = odd.get(uuid, 0) + 1
        has_slipped = off is _Off.ABOVE and uuid in confirmed
        if turns < (TWICE if has_slipped else shield.PATIENCE):
            continue
        if off is _Off.ABOVE and not has_slipped:
            liars.add(node)
        else:
            manual.add(uuid)
            confirmed.discard(uuid)
    ordered = without(memory.ordered_mhz, manual)
    read_s = {one.gpu.uuid: one.read_s for one in readings if math.isfinite(one.read_s)}
    return replace(
        memory, ordered_mhz=ordered, read_s=read_s, confirmed=frozenset(confirmed), manual=frozenset(manual),
        liars=frozenset(liars), odd=odd,
    )  # fmt: skip


def _is_new(one: ClockReading, memory: ClockMemory, manual: Set[str]) -> bool:
    """Whether a clock of ours was read, after its last change and after the reading before."""
    uuid = one.gpu.uuid
    if uuid in manual or not one.gpu.seen_age_s <= STALE_S or not math.isfinite(one.now_mhz):
        return False
    # turns may be shorter than readings: one reading that counts twice would use up a node's patience
    is_after = one.read_s > memory.read_s.get(uuid, -math.inf)
    return is_after and one.read_s >= memory.changed_s.get(uuid, math.inf)


class _Off(Enum):
    ABOVE = auto()
    """It runs above its lock."""
    BELOW = auto()
    """It stays below its lock (free: below its highest) for no reason that it gives."""


def _off(one: ClockReading, lock_mhz: int | None) -> _Off | None:
    """How a GPU's clock is not as it was ordered; None where it is, or where that cannot be told."""
    if lock_mhz is not None and one.now_mhz > lock_mhz + GRID_MHZ:
        return _Off.ABOVE
    lower_mhz = one.max_mhz * FREE_SHARE if lock_mhz is None else lock_mhz - GRID_MHZ
    # by the window's highest: between two kernels a clock falls by itself
    is_below = one.high_mhz < lower_mhz and one.busy and not one.throttled
    return _Off.BELOW if is_below else None


def decide(
    readings: Iterable[ClockReading],
    wishes: Mapping[str, float],
    memory: ClockMemory,
    limits: shield.LimitMemory,
    now_s: float,
) -> ClockOrders:
    """What of the wishes (job → share of the highest clock; none, or 1: free) may be done now. Both memories after
    `observe`; `limits` is read, never changed."""
    gangs: dict[str, list[ClockReading]] = defaultdict(list)
    for one in readings:
        gangs[one.gpu.job or f"\0{one.gpu.uuid}"].append(one)  # one without a job is a gang of its own
    changed: dict[str, int | None] = {}
    clips: dict[str, tuple[Clip, ...]] = {}
    for job, members in gangs.items():
        share, clip = _gang(job, members, wishes.get(job), memory, limits, now_s)
        if clip is not None:
            clips |= {one.gpu.uuid: (clip,) for one in members}
        if share is not None:
            changed |= _changes(members, share, memory)
    ordered = {**memory.ordered_mhz, **{u: mhz for u, mhz in changed.items() if mhz is not None}}
    ordered = {u: mhz for u, mhz in ordered.items() if changed.get(u, mhz) is not None}
    return ClockOrders(
        changed,
        clips,
        replace(
            memory,
            ordered_mhz=ordered,
            changed_s={**memory.changed_s, **dict.fromkeys(changed, now_s)},
            confirmed=memory.confirmed - changed.keys(),
            odd=without(memory.odd, changed),
        ),
    )


def _changes(members: Iterable[ClockReading], share: float, memory: ClockMemory) -> dict[str, int | None]:
    """The locks that a gang's share comes to, where they are others than now; none of a clock that a person set."""
    wanted = {
        one.gpu.uuid: None if share >= 1.0 else int(share * one.max_mhz) // GRID_MHZ * GRID_MHZ for one in members
    }
    return {
        uuid: mhz
        for uuid, mhz in wanted.items()
        if uuid not in memory.manual and mhz != memory.ordered_mhz.get(uuid)
    }


def _gang(
    job: str,
    members: list[ClockReading],
    wish: float | None,
    memory: ClockMemory,
    limits: shield.LimitMemory,
    now_s: float,
) -> tuple[float | None, Clip | None]:
    """(share of the highest clock that a gang gets as a whole, 1: free, None: it stays as it is; what clipped it).

    A gang works at the pace of its slowest, so where one of it cannot be locked, none is.
    """
    wish = 1.0 if wish is None or not math.isfinite(wish) else wish
    if limits.locked_until_s.get(job, -math.inf) > now_s:
        return 1.0, Clip("slowdown", wish, 1.0, f"{job} was slowed too much: its clock is free")
    never = _unlockable(members, memory, limits)
    if never is not None:
        return 1.0, None if wish >= 1.0 else Clip(never[0], wish, 1.0, never[1])
    for one in members:
        because = shield.held(one.gpu, limits) or _unread(one, memory, now_s)
        if because is not None:
            return None, Clip(f"clock {because[0]}", wish, None, because[1])
    return (1.0, None) if wish >= 1.0 else _step(members, wish, memory, now_s)


def _unread(one: ClockReading, memory: ClockMemory, now_s: float) -> tuple[str, str] | None:
    if not now_s - one.read_s <= STALE_S:  # NaN too: never read
        return "stale", f"its clock was not read for {now_s - one.read_s:.0f} s"
    if one.gpu.uuid in memory.odd:
        return "read-back", f"{one.gpu.uuid} does not run at the clock that it was given; is it a person's?"
    return None


def _step(
    members: list[ClockReading], wish: float, memory: ClockMemory, now_s: float
) -> tuple[float | None, Clip | None]:
    """How far a lock may go now: by one step, not too soon, and lower only where the last one was read back."""
    present = min(memory.ordered_mhz.get(one.gpu.uuid, one.max_mhz) / one.max_mhz for one in members)
    share = max(wish, FLOOR_SHARE, present - STEP_SHARE)
    clip = None if share <= wish else Clip("clock", wish, share, "bounded steps, and not below the floor")
    since_s = now_s - max(memory.changed_s.get(one.gpu.uuid, -math.inf) for one in members)
    if since_s < DWELL_S and abs(share - present) * max(one.max_mhz for one in members) >= GRID_MHZ:
        return None, Clip("clock dwell", wish, None, f"changed {since_s:.0f} s ago")
    unread = [u for one in members if (u := one.gpu.uuid) in memory.ordered_mhz and u not in memory.confirmed]
    if share < present and unread:
        return None, Clip("clock read-back", wish, None, f"the lock of {unread[0]} was not read back yet")
    return share, clip


def _unlockable(
    members: list[ClockReading], memory: ClockMemory, limits: shield.LimitMemory
) -> tuple[str, str] | None:
    for one in members:
        gpu = one.gpu
        if gpu.job == "":
            return "clock", "no job"
        if gpu.uuid in memory.manual:
            return "clock manual", f"a person set the clock of {gpu.uuid}"
        if gpu.node in memory.liars or gpu.node in limits.liars:
            return "clock lockout", f"{gpu.node} said that it had set what it had not"
        if gpu.uuid in limits.manual or gpu.uuid not in limits.ordered_mw:
            return "clock", f"{gpu.uuid} has no lease: its power limit is not ours"
    return None


def give_back(memory: ClockMemory, gpus: Iterable[Gpu], names: frozenset[str]) -> ClockMemory:
    """A person gave GPUs (by UUID) or all of a node's back: their clocks are free, and ours to change."""
    uuids = {gpu.uuid for gpu in gpus if gpu.uuid in names or gpu.node in names}
    return replace(
        memory,
        manual=memory.manual - uuids,
        liars=memory.liars - names,
        odd=without(memory.odd, uuids),
        changed_s=without(memory.changed_s, uuids),
    )
