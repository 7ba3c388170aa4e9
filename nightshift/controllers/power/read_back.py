"""What the shield learns by reading limits back: whose orders hold, who lies, and what people set. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from nightshift.controllers.power.limits import Gpu, Memory, Settings

_WATT = 1000
PATIENCE = 3
"""Turns within which an order has to be read back."""


def same(one_mw: int, other_mw: int) -> bool:
    """Equal within a watt: exporters round."""
    return abs(one_mw - other_mw) < _WATT


def observe(gpus: Iterable[Gpu], memory: Memory, granted: Mapping[str, bool], now_s: float, s: Settings) -> Memory:
    """Reads back: which orders hold, which nodes lie, what people changed, which jobs were slowed too much.

    `granted`: node → whether it said that it had carried the last orders out. A limit that had been confirmed and
    is another now, or one that was neither ordered nor there before, was set by a person. One that was granted and
    was never read back in PATIENCE turns is a lie. A reading may be older than the last order: then it is what the
    order before it made, and says nothing of the last. What was remembered for a time after `now_s` (the clock was
    set back since) counts from now.
    """
    changed_s = {uuid: min(at_s, now_s) for uuid, at_s in memory.changed_s.items()}
    memory = replace(memory, changed_s=changed_s)
    confirmed, manual, liars = set(memory.confirmed), set(memory.manual), set(memory.liars)
    seen = list(gpus)
    unread = dict(memory.unread_mw)
    unmet, locked = (
        dict(memory.unmet),
        {
            job: min(until_s, now_s + s.lockout_s)
            for job, until_s in memory.locked_until_s.items()
            if until_s > now_s
        },
    )
    for gpu in seen:
        if not math.isnan(gpu.slowdown) and gpu.job and gpu.slowdown > gpu.slowdown_budget + 0.01:
            locked[gpu.job] = now_s + s.lockout_s
        ordered = memory.ordered_mw.get(gpu.uuid)
        if gpu.enforced_mw is None or gpu.seen_age_s > s.stale_s or gpu.uuid in manual:
            continue
        if ordered is None:
            if gpu.enforced_mw not in (gpu.default_mw, gpu.fallback_mw):
                manual.add(gpu.uuid)
        elif same(gpu.enforced_mw, ordered):
            if _read_since(gpu, memory, now_s):
                confirmed.add(gpu.uuid)
                unmet.pop(gpu.uuid, None)
                unread.pop(gpu.uuid, None)
        elif not any(same(gpu.enforced_mw, mw) for mw in (gpu.fallback_mw, *unread.get(gpu.uuid, ()))) and (
            gpu.uuid in confirmed or not same(gpu.enforced_mw, memory.read_mw.get(gpu.uuid, gpu.default_mw))
        ):
            manual.add(gpu.uuid)
        elif same(gpu.enforced_mw, gpu.fallback_mw) and not same(gpu.enforced_mw, memory.read_mw.get(gpu.uuid, -1)):
            confirmed.discard(gpu.uuid)  # the lease ended: ordered again
            unmet.pop(gpu.uuid, None)
        elif granted.get(gpu.node, False) and _read_since(gpu, memory, now_s):
            unmet[gpu.uuid] = unmet.get(gpu.uuid, 0) + 1
            if unmet[gpu.uuid] >= PATIENCE:
                liars.add(gpu.node)
    return replace(
        memory,
        confirmed=frozenset(confirmed),
        manual=frozenset(manual),
        liars=frozenset(liars),
        read_mw={gpu.uuid: gpu.enforced_mw for gpu in seen if gpu.enforced_mw is not None},
        unread_mw=unread,
        unmet=unmet,
        locked_until_s=locked,
        raised_at_s={rack: min(at_s, now_s) for rack, at_s in memory.raised_at_s.items()},
    )


def _read_since(gpu: Gpu, memory: Memory, now_s: float) -> bool:
    """Whether its limit was read after it was last ordered another one."""
    return now_s - gpu.seen_age_s >= memory.changed_s.get(gpu.uuid, -math.inf)


def give_back(memory: Memory, gpus: Iterable[Gpu], names: frozenset[str]) -> Memory:
    """A person gave GPUs (by UUID) or all of a node's back to power control: what is set there now counts as ours
    to change, and the node is believed again."""
    mine = [gpu for gpu in gpus if (gpu.uuid in names or gpu.node in names) and gpu.enforced_mw is not None]
    uuids = frozenset(gpu.uuid for gpu in mine)
    return replace(
        memory,
        manual=memory.manual - uuids,
        liars=memory.liars - names,
        unmet={uuid: turns for uuid, turns in memory.unmet.items() if uuid not in uuids},
        unread_mw={uuid: orders for uuid, orders in memory.unread_mw.items() if uuid not in uuids},
        ordered_mw={**memory.ordered_mw, **{gpu.uuid: gpu.enforced_mw or 0 for gpu in mine}},
        confirmed=memory.confirmed | uuids,
    )
