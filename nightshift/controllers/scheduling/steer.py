"""What may be done to one waiting job, and the shield around it: start it, hold it a while, move it in the queue.

The cluster's own scheduler goes on deciding where pods run. We only keep a gate shut a little longer that the job's
owner put there, or change a waiting job's priority, so nothing here can stop a job that runs. Constraints, in this
order; each that changes something is on the receipt:

    opt_in        no gate of ours, nothing to hold: the job goes as it would without us
    boost         no priority outside of ±`most_boost`, none where Kueue would evict somebody for it
    deadline      no hold past `most_hold_s` from now, nor past the job's bound on waiting
    degraded      held while too few healthy GPUs are there, rather than started onto a degraded one; no node
                  preferred on which an incident is open
    placement     no preference of nodes but on a pod that carries our gate, and for few of them
    starvation    past its bound, or later than the baseline would have started it: start, whatever the policy says
    rack_ramp     a start that would raise the rack's draw faster than its slope allows waits; at most
                  `ramp_grace_s` past the bound, since power's own shield caps draw whatever starts
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from enum import StrEnum

import numpy as np

from nightshift.controllers.decision import Clip, PolicyProposal, ShieldRuling


class SteerVerb(StrEnum):
    START = "start"
    HOLD = "hold"


@dataclass(frozen=True, slots=True)
class Steer:
    """`until_s`: end of a hold (Unix s), 0 for a start. `boost`: added to the workload's priority. `prefer`,
    `avoid`: hosts that the cluster's scheduler is asked to prefer and to keep off, which it may do otherwise."""

    verb: SteerVerb
    until_s: float = 0.0
    boost: int = 0
    prefer: tuple[str, ...] = ()
    avoid: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """One waiting job as seen (`Observation`). Times in Unix s, draw in W; NaN = not known.

    `planned`: whether our order would start it now; `place`: its place in that order, from 0. `late`: the twin has
    started it. `evicts`: its queue lets a higher priority evict. `ramp_w`: the rack's rise over the last minute by
    what was started; `slope_w`: the rise allowed a minute; `added_w`: what this job would add.
    `beside`: with whom it could share GPUs: a suggestion to people, and where its nodes share GPUs (`shares`) what
    is done. `placeable`: its gate is a pod's, so that a preference can be written. `hosts`: where our order would
    start it; `sick`: where an incident is open on a node that takes jobs.
    """

    queue: str
    workload: str
    now_s: float
    submitted_s: float
    bound_s: float
    gpus: float
    healthy_gpus: float
    guess_s: float
    planned: bool
    place: int
    late: bool
    opted_in: bool
    evicts: bool
    ramp_w: float = 0.0
    slope_w: float = math.inf
    added_w: float = 0.0
    beside: str = ""
    shares: bool = False
    placeable: bool = False
    hosts: tuple[str, ...] = ()
    sick: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        return self.queue

    @property
    def job(self) -> str:
        return self.workload

    @property
    def waited_s(self) -> float:
        return self.now_s - self.submitted_s

    def missing(self) -> tuple[str, ...]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return tuple(name for name, value in values.items() if isinstance(value, float) and math.isnan(value))


@dataclass(frozen=True, slots=True)
class SteerLimits:
    """`most_hold_s`: of one hold, which a later decision may renew until the job's bound."""

    most_hold_s: float = 300.0
    most_boost: int = 100
    ramp_grace_s: float = 600.0
    ramp_hold_s: float = 30.0
    most_hosts: int = 32
    """Named in a preference of nodes; the first of them."""


Clipped = tuple[Steer, str] | None
"""What a constraint makes of an action, and why; None where it has nothing to say."""


def _latest_s(seen: WaitingJob, limits: SteerLimits) -> float:
    """The latest end of a hold; NaN where it is not known, which fails every comparison: no hold goes through."""
    return min(seen.now_s + limits.most_hold_s, seen.submitted_s + seen.bound_s)


def _started(now: Steer) -> Steer:
    return replace(now, verb=SteerVerb.START, until_s=0.0)


def _opted_in(seen: WaitingJob, now: Steer, limits: SteerLimits) -> Clipped:
    return None if seen.opted_in else (Steer(SteerVerb.START), "its owner gave us no gate")


def _bounded_boost(seen: WaitingJob, now: Steer, limits: SteerLimits) -> Clipped:
    bounded = int(np.clip(now.boost, -limits.most_boost, limits.most_boost))
    return replace(now, boost=bounded), f"beyond ±{limits.most_boost}"


def _no_eviction(seen: WaitingJob, now: Steer, limits: SteerLimits) -> Clipped:
    if not seen.evicts:
        return None
    # a boost is to move who waits; where it makes another job be evicted it is an action that stops work
    return replace(now, boost=0), "its queue evicts for a higher priority; that needs approval"


def _ends_in_time(seen: WaitingJob, now: Steer, limits: SteerLimits) -> Clipped:
    if now.verb is SteerVerb.START:
        return replace(now, until_s=0.0), "a start has no end"
    latest_s = _latest_s(seen, limits)
    # failing open: a job held by a number that nobody knows would wait for good
    if not math.isfinite(latest_s) or not math.isfinite(now.until_s):
        return _started(now), "a hold with an unknown end"
    if now.until_s <= seen.now_s:
        return _started(now), "a hold that has ended"
    if now.until_s > latest_s:
        return replace(now, until_s=latest_s), "a hold past its latest end"
    return None


def _healthy_gpus(seen: WaitingJob, now: Steer, limits: SteerLimits) -> Clipped:
    latest_s = _latest_s(seen, limits)
    if now.verb is SteerVerb.HOLD or not seen.healthy_gpus < seen.gpus or not math.isfinite(latest_s):
        return None
    why = f"{seen.healthy_gpus:.0f} healthy GPUs for {seen.gpus:.0f}"
    return replace(now, verb=SteerVerb.HOLD, until_s=latest_s), why


def _not_starved(seen: WaitingJob, now: Steer, limits: SteerLimits) -> Clipped:
    over = not seen.waited_s < seen.bound_s  # a wait that is not known counts as past it
    if now.verb is SteerVerb.START or not (over or seen.late):
        return None
    return _started(now), "past its bound on waiting" if over else "the baseline has started it"


def _flat_rack(seen: WaitingJob, now: Steer, limits: SteerLimits) -> Clipped:
    over = not seen.waited_s < seen.bound_s
    # what comes alone goes however much it adds: a gang cannot start by halves
    steep = seen.ramp_w + seen.added_w > seen.slope_w and seen.ramp_w > 0
    # past its bound it waits little longer: power's own shield caps the draw whatever starts
    end_s = seen.submitted_s + seen.bound_s + (limits.ramp_grace_s if over else 0.0)
    if now.verb is SteerVerb.HOLD or not steep or not seen.now_s < end_s:
        return None
    until_s = min(seen.now_s + limits.ramp_hold_s, end_s)
    why = f"{seen.ramp_w:.0f} W and {seen.added_w:.0f} W more in a minute; {seen.slope_w:.0f} W is allowed"
    return replace(now, verb=SteerVerb.HOLD, until_s=until_s), why


def _well_hosts(seen: WaitingJob, now: Steer, limits: SteerLimits) -> Clipped:
    well = tuple(host for host in now.prefer if host not in seen.sick)
    return replace(now, prefer=well), "an incident is open on a preferred node"


def _placeable(seen: WaitingJob, now: Steer, limits: SteerLimits) -> Clipped:
    if now.verb is SteerVerb.START and seen.placeable:
        return None
    return replace(now, prefer=(), avoid=()), "no pod on which a preference may be written"


def _few_hosts(seen: WaitingJob, now: Steer, limits: SteerLimits) -> Clipped:
    most = limits.most_hosts
    return replace(now, prefer=now.prefer[:most], avoid=now.avoid[:most]), f"more than {most} hosts"


_CONSTRAINTS: tuple[tuple[str, Callable[[WaitingJob, Steer, SteerLimits], Clipped]], ...] = (
    ("boost", _bounded_boost),
    ("boost", _no_eviction),
    ("deadline", _ends_in_time),
    ("degraded", _healthy_gpus),
    ("starvation", _not_starved),
    ("rack_ramp", _flat_rack),
    ("degraded", _well_hosts),
    ("placement", _placeable),
    ("placement", _few_hosts),
)
"""In this order: each sees what the ones before it left."""


@dataclass(frozen=True)
class SteerShield:
    """See the module. A missing number never lets a hold through."""

    limits: SteerLimits = SteerLimits()

    def decide(self, observation: WaitingJob, action: Steer) -> ShieldRuling[Steer]:
        now, clips = action, list[Clip]()
        # a job that is not ours to hold goes as it would without us: nothing else is looked at
        constraints = _CONSTRAINTS if observation.opted_in else (("opt_in", _opted_in),)
        for name, constraint in constraints:
            found = constraint(observation, now, self.limits)
            if found is not None and found[0] != now:
                clips.append(Clip(name, now, found[0], found[1]))
                now = found[0]
        return ShieldRuling(now, tuple(clips))


@dataclass(frozen=True)
class Let:
    """The baseline: every job goes at once, as without us; the cluster's scheduler decides."""

    name: str = "as_without_us"

    def propose(self, observation: WaitingJob, rng: np.random.Generator) -> PolicyProposal[Steer]:
        return PolicyProposal(Steer(SteerVerb.START), "the cluster's scheduler decides")


@dataclass(frozen=True)
class InOrder:
    """Ours: what the order would start now goes, the others are held a while and stand in that order."""

    hold_s: float = 120.0
    boosts: bool = True
    places: bool = True
    name: str = "steering"

    def propose(self, observation: WaitingJob, rng: np.random.Generator) -> PolicyProposal[Steer]:
        # the first fifty stand in order before everybody else's jobs of their priority; behind them Kueue's own
        # order will do
        boost = max(0, 50 - observation.place) if self.boosts else 0
        if observation.planned or observation.late:
            places = self.places and observation.placeable
            prefer, avoid = (observation.hosts, observation.sick) if places else ((), ())
            how = f"shares with {observation.beside}" if observation.shares else "fits now"
            return PolicyProposal(
                Steer(SteerVerb.START, 0.0, boost, prefer, avoid), f"place {observation.place}: {how}"
            )
        why = f"place {observation.place}: others go first"
        return PolicyProposal(Steer(SteerVerb.HOLD, observation.now_s + self.hold_s, boost), why)
