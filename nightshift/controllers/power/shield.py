"""What no power proposal passes unchecked: pure code between any policy and the GPUs' limits.

The proof rests on one number per GPU, its *worst* limit: the highest of what it was read to enforce, what it was
ordered since it was last read back, and the fallback that its node returns to without a lease; a GPU that was not
read back counts at its default limit, one whose node was caught lying at its highest. An order is given only if
the worst limits of a rack, its host power and the margin fit the budget. Since the worst limit covers the time
before an order is carried out, after it, and after every lease has ended, the sum holds whichever of the agent, a
node or the network dies, and when. From the same number follows that others are lowered, and read back as
lowered, before anyone is raised.

Reading limits back tells whose orders hold, which nodes lie, and what people set (`observe`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from enum import Enum, auto

from nightshift.controllers.decision import Clip
from nightshift.controllers.power.limits import (
    DWELL_S,
    LOCKOUT_S,
    MARGIN_SHARE,
    STALE_S,
    Gpu,
    LimitMemory,
    LimitOrders,
    RackBudget,
    Settings,
    without,
)

PATIENCE = 3
"""Turns within which an order has to be read back."""


def same(one_mw: int, other_mw: int) -> bool:
    """Equal within a watt: exporters round."""
    return abs(one_mw - other_mw) < _WATT


def observe(
    gpus: Iterable[Gpu], memory: LimitMemory, granted: Mapping[str, bool], now_s: float, s: Settings
) -> LimitMemory:
    """Reads back: which orders hold, which nodes lie, what people changed, which jobs were slowed too much.

    `granted`: node → whether it said that it had carried the last orders out. A limit that had been confirmed and
    is another now, or one that was neither ordered nor there before, was set by a person. One that was granted and
    was never read back in PATIENCE turns is a lie. A reading may be older than the last order: then it is what the
    order before it made, and says nothing of the last. What was remembered for a time after `now_s` (the clock was
    set back since) counts from now.
    """
    memory = _not_ahead(memory, now_s, s)
    seen = list(gpus)
    of: dict[_Reading, set[str]] = {reading: set() for reading in _Reading}
    for gpu in seen:
        of[_reading(gpu, memory, now_s, s)].add(gpu.uuid)
    denied = [gpu for gpu in seen if gpu.uuid in of[_Reading.OTHER] and granted.get(gpu.node, False)]
    unmet = without(memory.unmet, of[_Reading.HOLDS] | of[_Reading.LEASE_ENDED])
    unmet |= {gpu.uuid: unmet.get(gpu.uuid, 0) + 1 for gpu in denied}
    slowed = {gpu.job for gpu in seen if gpu.job and gpu.slowdown > gpu.slowdown_budget + 0.01}  # never where NaN
    return replace(
        memory,
        confirmed=(memory.confirmed | of[_Reading.HOLDS]) - of[_Reading.LEASE_ENDED],  # ordered again
        manual=memory.manual | of[_Reading.FOREIGN],
        liars=memory.liars | {gpu.node for gpu in denied if unmet[gpu.uuid] >= PATIENCE},
        read_mw={gpu.uuid: gpu.enforced_mw for gpu in seen if gpu.enforced_mw is not None},
        unread_mw=without(memory.unread_mw, of[_Reading.HOLDS]),
        unmet=unmet,
        locked_until_s={**memory.locked_until_s, **dict.fromkeys(slowed, now_s + LOCKOUT_S)},
    )


def _not_ahead(memory: LimitMemory, now_s: float, s: Settings) -> LimitMemory:
    """Else a clock that was set back would keep jobs locked out, and racks from rising, for as long as it went."""
    locked = {job: min(until_s, now_s + LOCKOUT_S) for job, until_s in memory.locked_until_s.items()}
    return replace(
        memory,
        changed_s={uuid: min(at_s, now_s) for uuid, at_s in memory.changed_s.items()},
        locked_until_s={job: until_s for job, until_s in locked.items() if until_s > now_s},
        raised_at_s={rack: min(at_s, now_s) for rack, at_s in memory.raised_at_s.items()},
    )


class _Reading(Enum):
    """What a limit that was read says of who set it."""

    NOTHING = auto()
    HOLDS = auto()
    """It is what was ordered, read since."""
    LEASE_ENDED = auto()
    FOREIGN = auto()
    """Neither ordered nor there before: a person set it."""
    OTHER = auto()
    """Read since the order, and not what was ordered; is it still to come, or does its node lie?"""


def _reading(gpu: Gpu, memory: LimitMemory, now_s: float, s: Settings) -> _Reading:
    now_mw, uuid = gpu.enforced_mw, gpu.uuid
    if now_mw is None or gpu.seen_age_s > STALE_S or uuid in memory.manual:
        return _Reading.NOTHING
    ordered = memory.ordered_mw.get(uuid)
    if ordered is None:
        return _Reading.NOTHING if now_mw in (gpu.default_mw, gpu.fallback_mw) else _Reading.FOREIGN
    if same(now_mw, ordered):
        return _Reading.HOLDS if _read_since(gpu, memory, now_s) else _Reading.NOTHING
    # orders that were never read back may still be carried out, late: they are ours too
    ours = any(same(now_mw, mw) for mw in (gpu.fallback_mw, *memory.unread_mw.get(uuid, ())))
    was_there = uuid not in memory.confirmed and same(now_mw, memory.read_mw.get(uuid, gpu.default_mw))
    if not (ours or was_there):
        return _Reading.FOREIGN
    if same(now_mw, gpu.fallback_mw) and not same(now_mw, memory.read_mw.get(uuid, -1)):
        return _Reading.LEASE_ENDED
    return _Reading.OTHER if _read_since(gpu, memory, now_s) else _Reading.NOTHING


def _read_since(gpu: Gpu, memory: LimitMemory, now_s: float) -> bool:
    """Whether its limit was read after it was last ordered another one."""
    return now_s - gpu.seen_age_s >= memory.changed_s.get(gpu.uuid, -math.inf)


def give_back(memory: LimitMemory, gpus: Iterable[Gpu], names: frozenset[str]) -> LimitMemory:
    """A person gave GPUs (by UUID) or all of a node's back to power control: what is set there now counts as ours
    to change, and the node is believed again."""
    mine = [gpu for gpu in gpus if (gpu.uuid in names or gpu.node in names) and gpu.enforced_mw is not None]
    uuids = frozenset(gpu.uuid for gpu in mine)
    return replace(
        memory,
        manual=memory.manual - uuids,
        liars=memory.liars - names,
        unmet=without(memory.unmet, uuids),
        unread_mw=without(memory.unread_mw, uuids),
        ordered_mw={**memory.ordered_mw, **{gpu.uuid: gpu.enforced_mw or 0 for gpu in mine}},
        confirmed=memory.confirmed | uuids,
    )


__all__ = [
    "PATIENCE",
    "Gpu",
    "LimitMemory",
    "LimitOrders",
    "RackBudget",
    "Settings",
    "decide",
    "decide_step",
    "give_back",
    "headroom_mw",
    "held",
    "observe",
    "worst_mw",
]


_WATT = 1000
_KEPT = 16


def worst_mw(gpu: Gpu, memory: LimitMemory, s: Settings) -> int:
    """The highest limit that the GPU may have until the next turn, whatever dies. One that is not read any more may
    have been started anew, and is at its default then."""
    if gpu.node in memory.liars:
        return gpu.max_mw
    base = gpu.fallback_mw
    if gpu.uuid not in memory.manual:
        base = max(base, memory.ordered_mw.get(gpu.uuid, 0), *memory.unread_mw.get(gpu.uuid, ()))
    if gpu.enforced_mw is None or not gpu.seen_age_s <= STALE_S:
        base = max(base, gpu.default_mw)
    return max(base, gpu.enforced_mw or 0)


def headroom_mw(rack: RackBudget, gpus: Iterable[Gpu], memory: LimitMemory, settings: Settings) -> int:
    """Of the rack's budget, what the worst case leaves; negative: it is overdrawn."""
    usable = int(rack.budget_mw * (1.0 - MARGIN_SHARE)) - rack.host_mw
    return usable - sum(worst_mw(gpu, memory, settings) for gpu in gpus)


def decide(
    racks: Mapping[str, RackBudget],
    gpus: Iterable[Gpu],
    wishes_mw: Mapping[str, float],
    memory: LimitMemory,
    now_s: float,
    s: Settings,
    shares_mw: Mapping[str, int] | None = None,
) -> LimitOrders:
    """What of the wishes (GPU → mW) may be done now. Pure; `memory` after `observe`. `shares_mw`: what a GPU's job
    may have of a rack that has too little for all (`division`); a job that is locked out gets no more than that."""
    by_rack: dict[str, list[Gpu]] = defaultdict(list)
    for gpu in gpus:
        by_rack[gpu.rack].append(gpu)
    clips: dict[str, list[Clip]] = defaultdict(list)
    wanted: dict[str, int] = {}
    everyone = [gpu for members in by_rack.values() for gpu in members]
    for gpu in everyone:
        share_mw = (shares_mw or {}).get(gpu.uuid, gpu.max_mw)
        target = _alone(gpu, wishes_mw.get(gpu.uuid), share_mw, memory, now_s, clips[gpu.uuid])
        if target is not None:
            wanted[gpu.uuid] = target
    _together(everyone, wanted, memory, clips)
    _drop_unbudgeted(everyone, racks, wanted, clips)
    lower = {gpu.uuid: wanted[gpu.uuid] for gpu in everyone if _goes(gpu, wanted, memory) < 0}
    rise: dict[str, int] = {}
    raised_at_s = dict(memory.raised_at_s)
    overdrawn: dict[str, int] = {}
    for name, members in sorted(by_rack.items()):
        if name not in racks:
            continue
        room = headroom_mw(racks[name], members, memory, s)
        if room < 0:
            left = _shed(members, lower, -room, memory, s, clips)
            if left > 0:
                overdrawn[name] = left
            continue
        _raise(name, members, wanted, room, raised_at_s, memory, now_s, s, clips, rise)
    _whole(everyone, rise, clips)
    return LimitOrders(
        lower,
        rise,
        {uuid: tuple(found) for uuid, found in clips.items() if found},
        replace(_with_orders(memory, {**lower, **rise}, now_s), raised_at_s=raised_at_s),
        overdrawn,
    )


def _drop_unbudgeted(
    gpus: Iterable[Gpu], racks: Mapping[str, RackBudget], wanted: dict[str, int], clips: dict[str, list[Clip]]
) -> None:
    for gpu in gpus:
        if gpu.rack not in racks:
            target = wanted.pop(gpu.uuid, None)
            clips[gpu.uuid].append(Clip("rack", target, None, f"rack {gpu.rack} has no budget"))


def _with_orders(memory: LimitMemory, given_mw: Mapping[str, int], now_s: float) -> LimitMemory:
    """The memory once these orders are given. What was ordered before and never read back may still be carried out,
    so it stays among what a GPU may have."""
    ordered = {**memory.ordered_mw, **given_mw}
    again = {u for u in given_mw if ordered[u] != memory.ordered_mw.get(u)}
    unread = {
        uuid: tuple(sorted({*memory.unread_mw.get(uuid, ()), memory.ordered_mw[uuid]})[-_KEPT:])
        for uuid in again
        if uuid in memory.ordered_mw and uuid not in memory.confirmed
    }
    return replace(
        memory,
        ordered_mw=ordered,
        unread_mw={**memory.unread_mw, **unread},
        confirmed=memory.confirmed - again,
        changed_s={**memory.changed_s, **dict.fromkeys(again, now_s)},
    )


def decide_step(
    racks: Mapping[str, RackBudget],
    gpus: Iterable[Gpu],
    wishes_mw: Mapping[str, float],
    memory: LimitMemory,
    now_s: float,
    s: Settings,
    shares_mw: Mapping[str, int] | None = None,
) -> LimitOrders:
    """`decide` in two looks where raises want what others give up just now: they wait, whole, for the next look,
    when that was read back. A part of a raise given now would keep the rest away for a dwell time."""
    seen = list(gpus)
    orders = decide(racks, seen, wishes_mw, memory, now_s, s, shares_mw)
    giving = {gpu.rack for gpu in seen if gpu.uuid in orders.lower_mw}
    short = {
        gpu.rack for gpu in seen if gpu.rack in giving and any(_for_room(c) for c in orders.clips.get(gpu.uuid, ()))
    }
    if not short:
        return orders
    gangs = {gpu.job for gpu in seen if gpu.rack in short and gpu.job}
    wishes = {
        gpu.uuid: min(wishes_mw[gpu.uuid], float(_present(gpu, memory)))
        if gpu.rack in short or gpu.job in gangs
        else wishes_mw[gpu.uuid]
        for gpu in seen
        if gpu.uuid in wishes_mw
    }
    return replace(decide(racks, seen, wishes, memory, now_s, s, shares_mw), clips=orders.clips, waiting=True)


def _for_room(clip: Clip) -> bool:
    return clip.constraint == "budget" and clip.before is not None and clip.why.startswith("the rack has")


def _present(gpu: Gpu, memory: LimitMemory) -> int:
    return gpu.enforced_mw if gpu.enforced_mw is not None else memory.ordered_mw.get(gpu.uuid, gpu.default_mw)


def _goes(gpu: Gpu, wanted: Mapping[str, int], memory: LimitMemory) -> int:
    """By how much a GPU's limit is wanted to change (mW); 0 where nobody wants anything."""
    present = _present(gpu, memory)
    return wanted.get(gpu.uuid, present) - present


def held(gpu: Gpu, memory: LimitMemory) -> tuple[str, str] | None:
    """The constraint that leaves a GPU as it is, and why."""
    if gpu.uuid in memory.manual:
        return "manual", "a person set this limit"
    if gpu.node in memory.liars:
        return "lockout", f"{gpu.node} said that it had set a limit and had not"
    if gpu.incident:
        return "incident", f"an incident is open on {gpu.node}"
    if gpu.enforced_mw is None or not gpu.seen_age_s <= STALE_S:
        return "stale", f"not read for {gpu.seen_age_s:.0f} s"
    return None


def _alone(
    gpu: Gpu, wish: float | None, share_mw: int, memory: LimitMemory, now_s: float, clips: list[Clip]
) -> int | None:
    """The limit that the GPU's own constraints leave of the wish; None: leave it as it is."""
    because = held(gpu, memory)
    if because is not None:
        clips.append(Clip(because[0], wish, gpu.enforced_mw, because[1]))
        return None
    if memory.locked_until_s.get(gpu.job, -math.inf) > now_s:
        clips.append(Clip("slowdown", wish, share_mw, f"{gpu.job} was slowed too much: it gets what it can have"))
        wish = share_mw
    if wish is None or not math.isfinite(wish):
        return None
    target = max(gpu.min_mw, int(min(wish, gpu.max_mw)) // _WATT * _WATT)
    if not gpu.min_mw <= wish <= gpu.max_mw:
        clips.append(Clip("range", wish, target, f"the GPU takes {gpu.min_mw} to {gpu.max_mw} mW"))
    since_s = now_s - memory.changed_s.get(gpu.uuid, -math.inf)
    if target != _present(gpu, memory) and since_s < DWELL_S and memory.ordered_mw.get(gpu.uuid) != target:
        clips.append(Clip("dwell", target, gpu.enforced_mw, f"changed {since_s:.0f} s ago"))
        return None
    return target


def _together(
    gpus: Iterable[Gpu], wanted: dict[str, int], memory: LimitMemory, clips: dict[str, list[Clip]]
) -> None:
    """A gang goes at the pace of its slowest: all members get the highest share asked for, or all stay."""
    for job, members, asked in _gangs(gpus, wanted):
        if len(asked) < len(members):
            for gpu in asked:
                before = wanted.pop(gpu.uuid)
                clips[gpu.uuid].append(Clip("gang", before, None, f"another GPU of {job} stays as it is"))
            continue
        share = max(wanted[gpu.uuid] / gpu.max_mw for gpu in members)
        for gpu in members:
            equal = min(gpu.max_mw, max(gpu.min_mw, round(share * gpu.max_mw)))
            if equal != wanted[gpu.uuid]:
                clips[gpu.uuid].append(Clip("gang", wanted[gpu.uuid], equal, f"{job} is limited as a whole"))
                wanted[gpu.uuid] = equal


def _gangs(gpus: Iterable[Gpu], given: Mapping[str, int]) -> Iterator[tuple[str, list[Gpu], list[Gpu]]]:
    """Each job on more than one GPU: (job, all of its GPUs, those that something was given), but for those none of
    which was given anything."""
    gangs: dict[str, list[Gpu]] = defaultdict(list)
    for gpu in gpus:
        if gpu.job:
            gangs[gpu.job].append(gpu)
    for job, members in gangs.items():
        some = [gpu for gpu in members if gpu.uuid in given]
        if len(members) > 1 and some:
            yield job, members, some


def _shed(
    members: list[Gpu],
    lower: dict[str, int],
    missing_mw: int,
    memory: LimitMemory,
    s: Settings,
    clips: dict[str, list[Clip]],
) -> int:
    """Overdrawn: lowers to a common cap until the worst case would fit; never a person's limit. What is left (mW).

    A lowered GPU counts at least at its fallback, so nobody is lowered further than that for the budget's sake.
    """
    free = [
        gpu
        for gpu in members
        if gpu.uuid not in memory.manual and gpu.node not in memory.liars and gpu.enforced_mw is not None
    ]
    now = {gpu.uuid: worst_mw(gpu, memory, s) for gpu in free}
    low = {gpu.uuid: max(gpu.min_mw, gpu.fallback_mw) for gpu in free}
    for gpu in free:
        if gpu.uuid in lower:
            missing_mw -= now[gpu.uuid] - max(lower[gpu.uuid], gpu.fallback_mw)
    if missing_mw <= 0:
        return 0
    at, top = 0, max(now.values(), default=0)
    for _ in range(32):  # the highest common cap that frees enough
        middle = (at + top + 1) // 2
        freed = sum(_frees(gpu, middle, now, low, lower) for gpu in free)
        at, top = (middle, top) if freed >= missing_mw else (at, middle - 1)
    freed = 0
    for gpu in free:
        cap = max(at, low[gpu.uuid])
        present = lower.get(gpu.uuid, now[gpu.uuid])
        if cap < present:
            freed += present - cap
            clips[gpu.uuid].append(Clip("budget", present, cap, "the rack's worst case is over its budget"))
            lower[gpu.uuid] = cap
    return max(0, missing_mw - freed)


def _frees(gpu: Gpu, cap: int, now: Mapping[str, int], low: Mapping[str, int], lower: Mapping[str, int]) -> int:
    return max(0, lower.get(gpu.uuid, now[gpu.uuid]) - max(cap, low[gpu.uuid]))


def _raise(
    rack: str,
    members: list[Gpu],
    wanted: Mapping[str, int],
    room_mw: int,
    raised_at_s: dict[str, float],
    memory: LimitMemory,
    now_s: float,
    s: Settings,
    clips: dict[str, list[Clip]],
    rise: dict[str, int],
) -> None:
    """Gives room out in proportion to what is asked for, within the rack's W/min."""
    asks = {gpu.uuid: (gpu, wanted[gpu.uuid]) for gpu in members if _goes(gpu, wanted, memory) > 0}
    if not asks:
        return
    minutes = min(1.0, (now_s - raised_at_s.get(rack, now_s - 60.0)) / 60.0)
    slope_mw = int(s.raise_w_per_min * 1000.0 * max(0.0, minutes))
    rising = sum(target - _present(gpu, memory) for gpu, target in asks.values())
    # a raise up to the worst limit costs no room: the budget has counted it all along
    costly = sum(max(0, target - worst_mw(gpu, memory, s)) for gpu, target in asks.values())
    share = min(1.0, slope_mw / rising if rising else 1.0)
    word = ("slope", f"at most {s.raise_w_per_min:g} W/min") if share < 1.0 else ("", "")
    if costly * share > room_mw:
        # scaled so that even after rounding the room is not exceeded
        share = min(share, room_mw / costly)
        word = ("budget", f"the rack has {room_mw} mW left")
    for uuid, (gpu, target) in asks.items():
        present = _present(gpu, memory)
        worst = worst_mw(gpu, memory, s)
        given = present + math.floor((target - present) * share)
        # below its worst limit a raise is free, so only what goes beyond it is scaled by the room
        given = min(given, worst + math.floor(max(0, target - worst) * share))
        if given < target:
            clips[uuid].append(Clip(word[0] or "budget", target, given, word[1]))
        given = given // _WATT * _WATT
        if given > present:
            rise[uuid] = given
    if rise:
        raised_at_s[rack] = now_s


def _whole(gpus: Iterable[Gpu], rise: dict[str, int], clips: dict[str, list[Clip]]) -> None:
    """A gang is raised as a whole: to the least share that any of its members was given, or not at all."""
    for job, members, risen in _gangs(gpus, rise):
        present = [g.enforced_mw / g.max_mw for g in members if g.uuid not in rise and g.enforced_mw is not None]
        share = min(rise[gpu.uuid] / gpu.max_mw for gpu in risen)
        if present and min(present) < share:  # a member that could not rise holds the gang
            for gpu in risen:
                clips[gpu.uuid].append(Clip("gang", rise.pop(gpu.uuid), None, f"not all of {job} can be raised"))
            continue
        for gpu in risen:
            equal = math.floor(share * gpu.max_mw)
            if equal < rise[gpu.uuid]:
                clips[gpu.uuid].append(Clip("gang", rise[gpu.uuid], equal, f"{job} is raised as a whole"))
            rise[gpu.uuid] = min(rise[gpu.uuid], equal)
