"""What a trial's coin decided of power: whether the other arm would have led to other limits at all.

The shield clips by racks, so a gang's limits hang on every gang that shares a rack with it, directly or through
others. What is asked is: all else as it was drawn, would the other arm's level have given this gang the same
limits? Then nothing was drawn, and the turn says nothing about the policy. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from controllers.power import shield


def neighbours(gpus: Iterable[shield.Gpu], uuids: frozenset[str]) -> list[shield.Gpu]:
    """All GPUs whose limits these GPUs' can move: of their racks, of the gangs in those racks, and so on."""
    seen = list(gpus)
    racks_of: dict[str, set[str]] = {}
    for gpu in seen:
        racks_of.setdefault(gpu.job, set()).add(gpu.rack)
    racks_of.pop("", None)  # those without a job are no gang
    racks = {gpu.rack for gpu in seen if gpu.uuid in uuids}
    grew = True
    while grew:
        more = set().union(*(found for found in racks_of.values() if found & racks)) | racks
        grew, racks = more != racks, more
    return [gpu for gpu in seen if gpu.rack in racks]


def newly_locked(before: shield.Memory, after: shield.Memory) -> int:
    """Jobs and nodes that were locked out between the two."""
    jobs = after.locked_until_s.keys() - before.locked_until_s.keys()
    return len(jobs) + len(after.liars - before.liars)


@dataclass(frozen=True)
class Round:
    """One turn of the shield, as it was asked."""

    racks: Mapping[str, shield.Rack]
    gpus: list[shield.Gpu]
    wishes_mw: Mapping[str, float]
    memory: shield.Memory
    now_s: float
    settings: shield.Settings
    orders: shield.Orders
    shares_mw: Mapping[str, int] = field(default_factory=dict)

    def same_with(self, instead_mw: Mapping[str, float], uuids: frozenset[str] | None = None) -> bool:
        """Whether other wishes for some GPUs would have given these GPUs (without: just those) the same limits."""
        mine = frozenset(instead_mw) if uuids is None else uuids
        near = neighbours(self.gpus, frozenset(instead_mw) | mine)
        wishes = {**self.wishes_mw, **instead_mw}
        step = shield.decide_step(
            self.racks, near, wishes, self.memory, self.now_s, self.settings, self.shares_mw
        ).limits_mw
        return all(step.get(uuid) == self.orders.limit_mw(uuid) for uuid in mine)
