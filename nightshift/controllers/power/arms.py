"""What a trial's coin decided of power: whether the other arm would have led to other limits at all.

The shield clips by racks, so a gang's limits hang on every gang that shares a rack with it, directly or through
others. What is asked is: all else as it was drawn, would the other arm's level have given this gang the same
limits? Then nothing was drawn, and the turn says nothing about the policy. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from nightshift.controllers.power import shield


def linked(gpus: Iterable[shield.Gpu]) -> dict[str, list[shield.Gpu]]:
    """Rack → all GPUs whose limits its own can move: of racks that hold a gang in common, and so on."""
    seen = list(gpus)
    racks_of: dict[str, set[str]] = defaultdict(set)
    group = {gpu.rack: {gpu.rack} for gpu in seen}
    for gpu in seen:
        if gpu.job:  # those without a job are no gang
            racks_of[gpu.job].add(gpu.rack)
    for racks in racks_of.values():
        if len(racks) > 1:
            whole = set().union(*(group[rack] for rack in racks))
            group.update(dict.fromkeys(whole, whole))
    members: dict[int, list[shield.Gpu]] = defaultdict(list)
    for gpu in seen:
        members[id(group[gpu.rack])].append(gpu)
    return {rack: members[id(whole)] for rack, whole in group.items()}


def newly_locked(former: shield.LimitMemory, present: shield.LimitMemory) -> int:
    """Jobs and nodes that were locked out between the two."""
    jobs = present.locked_until_s.keys() - former.locked_until_s.keys()
    return len(jobs) + len(present.liars - former.liars)


@dataclass(frozen=True)
class Round:
    """One turn of the shield, as it was asked."""

    racks: Mapping[str, shield.RackBudget]
    gpus: list[shield.Gpu]
    wishes_mw: Mapping[str, float]
    memory: shield.LimitMemory
    now_s: float
    settings: shield.Settings
    orders: shield.LimitOrders
    shares_mw: Mapping[str, int] = field(default_factory=dict)

    def near(self, uuids: Iterable[str]) -> list[shield.Gpu]:
        """All GPUs whose limits these GPUs' can move."""
        racks = {self._rack_of[uuid] for uuid in uuids if uuid in self._rack_of}
        found = {id(group): group for group in (self._linked[rack] for rack in sorted(racks))}
        return [gpu for group in found.values() for gpu in group]

    @cached_property
    def _rack_of(self) -> dict[str, str]:
        return {gpu.uuid: gpu.rack for gpu in self.gpus}

    @cached_property
    def _linked(self) -> dict[str, list[shield.Gpu]]:
        return linked(self.gpus)

    def same_with(self, instead_mw: Mapping[str, float], uuids: Iterable[str]) -> bool:
        """Whether other wishes for GPUs near these would have given these the same limits."""
        mine = list(uuids)
        near = self.near(mine)
        wishes = {gpu.uuid: self.wishes_mw[gpu.uuid] for gpu in near if gpu.uuid in self.wishes_mw}
        wishes |= instead_mw
        step = shield.decide_step(
            self.racks, near, wishes, self.memory, self.now_s, self.settings, self.shares_mw
        ).limits_mw
        return all(step.get(uuid) == self.orders.limit_mw(uuid) for uuid in mine)
