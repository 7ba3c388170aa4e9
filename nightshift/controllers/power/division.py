"""What of its policy's level a gang may have where a rack has too little for all. Between policy and shield; pure.

A rack is scarce where what its gangs' policies ask for, with what cannot be moved now, is above what its budget
leaves. Then its gangs share it (`share`), whole: a gang in two racks gets the lesser of both. What a GPU counts for
is what the shield will count: never less than its node's fallback. Nobody gets more than its policy asked for.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from nightshift.controllers.power.belief import TOP, Bank, LevelWindows
from nightshift.controllers.power.curves import LEVELS
from nightshift.controllers.power.gang import Gang, level_of
from nightshift.controllers.power.limits import MARGIN_SHARE, Gpu, LimitMemory, RackBudget, Settings
from nightshift.controllers.power.share import Claims, Sharing, divide
from nightshift.controllers.power.shield import held, worst_mw


@dataclass(frozen=True)
class Division:
    """Levels of the gangs in scarce racks, and those of them that are asked for their reference in this window."""

    levels: Mapping[str, int] = field(default_factory=dict)
    probed: frozenset[str] = frozenset()


def divide_racks(
    racks: Mapping[str, RackBudget],
    gpus: Iterable[Gpu],
    asks: Mapping[str, tuple[Gang, int]],
    memory: LimitMemory,
    now_s: float,
    bank: Bank,
    s: Settings,
    sharing: Sharing,
) -> Division:
    """`asks`: job → (its gang, the level that its policy wants). `memory` after `observe`; `bank` with a `steep` of
    RANGE."""
    seen = [gpu for gpu in gpus if gpu.rack in racks]
    lowest = _lowest_levels(seen, asks, memory, s)
    ceiling = {job: max(least, _ask(job, asks[job][1], memory, now_s)) for job, least in lowest.items()}
    scarce = _scarce_racks(racks, seen, ceiling, memory, s)
    jobs = sorted({job for _, cost in scarce for job in cost})
    if not jobs:
        return Division()
    claims = _claims([(asks[job][0], lowest[job], ceiling[job]) for job in jobs], bank, sharing)
    levels: dict[str, int] = {}
    asked: dict[str, list[bool]] = defaultdict(list)
    row = {job: number for number, job in enumerate(jobs)}
    for room, cost in scarce:
        mine = claims.rows(np.array([row[job] for job in cost]))
        found, probed = divide(mine, np.array(list(cost.values())), room, sharing)
        for number, job in enumerate(cost):
            levels[job] = min(levels.get(job, TOP), int(found[number]))
            asked[job].append(number in probed)
    # a gang in two racks runs at its reference only if both have room for it: else the probe would be none
    return Division(levels, frozenset(job for job, said in asked.items() if all(said)))


def _ask(job: str, level: int, memory: LimitMemory, now_s: float) -> int:
    """One that was slowed too much asks for all, as the shield will for it."""
    return TOP if memory.locked_until_s.get(job, -math.inf) > now_s else level


def _claims(asking: Sequence[tuple[Gang, int, int]], bank: Bank, sharing: Sharing) -> Claims:
    """Of each (gang, its lowest level, the level that it asks for)."""
    gangs, lowest, ceiling = zip(*asking, strict=True)
    sums = ("count", "speed", "draw")
    # all gangs in one look at the bank: what is believed of fifty costs little more than of one
    return Claims.of(
        bank,
        LevelWindows(*(np.concatenate([getattr(gang.jobs.windows, name) for gang in gangs]) for name in sums)),
        np.array([gang.level for gang in gangs]),
        np.array(lowest),
        np.array(ceiling),
        np.array([gang.tried for gang in gangs]),
        sharing.noise,
    )


def _lowest_levels(
    gpus: Iterable[Gpu], asks: Mapping[str, tuple[Gang, int]], memory: LimitMemory, s: Settings
) -> dict[str, int]:
    """Of each gang that can be moved, the level below which it cannot go: its own, or a node's fallback."""
    seen = list(gpus)
    stuck = {gpu.job for gpu in seen if held(gpu, memory) is not None}  # one member holds its whole gang
    lowest: dict[str, int] = {}
    for gpu in seen:
        if gpu.job in asks and gpu.job not in stuck:
            least = max(int(asks[gpu.job][0].jobs.lowest[0]), level_of(gpu.fallback_mw / gpu.max_mw))
            lowest[gpu.job] = max(lowest.get(gpu.job, 0), least)
    return lowest


def _scarce_racks(
    racks: Mapping[str, RackBudget],
    gpus: Iterable[Gpu],
    ceiling: Mapping[str, int],
    memory: LimitMemory,
    s: Settings,
) -> list[tuple[float, dict[str, float]]]:
    """Of each rack whose gangs together ask for more than it has: its room (mW), and what a percent of the highest
    limit costs it by gang. `ceiling`: the level that each gang that can be moved asks for."""
    inside: dict[str, list[Gpu]] = defaultdict(list)
    for gpu in gpus:
        inside[gpu.rack].append(gpu)
    scarce = []
    for name, rack in racks.items():
        room = rack.budget_mw * (1.0 - MARGIN_SHARE) - rack.host_mw
        cost: dict[str, float] = defaultdict(float)
        for gpu in inside[name]:
            if gpu.job in ceiling:
                cost[gpu.job] += gpu.max_mw / 100.0
            else:
                fixed = gpu.job or held(gpu, memory)  # an idle one goes to its fallback
                room -= worst_mw(gpu, memory, s) if fixed else max(gpu.fallback_mw, gpu.min_mw)
        if sum(LEVELS[ceiling[job]] * 100.0 * each for job, each in cost.items()) > room:
            scarce.append((room, dict(cost)))
    return scarce
