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


@dataclass(frozen=True)
class SteerShield:
    """See the module. A missing number never lets a hold through."""

    limits: SteerLimits = SteerLimits()

    def decide(self, observation: WaitingJob, action: Steer) -> ShieldRuling[Steer]:
        seen, limits, clips = observation, self.limits, list[Clip]()
        now = action

        def clip(constraint: str, after: Steer, why: str) -> None:
            nonlocal now
            if after != now:
                clips.append(Clip(constraint, now, after, why))
                now = after

        if not seen.opted_in:
            clip("opt_in", Steer(SteerVerb.START), "its owner gave us no gate")
            return ShieldRuling(now, tuple(clips))
        bounded = int(np.clip(now.boost, -limits.most_boost, limits.most_boost))
        clip("boost", replace(now, boost=bounded), f"beyond ±{limits.most_boost}")
        if seen.evicts:
            clip("boost", replace(now, boost=0), "its queue evicts for a higher priority; that needs approval")
        if now.verb is SteerVerb.START:
            clip("deadline", replace(now, until_s=0.0), "a start has no end")
        latest_s = min(seen.now_s + limits.most_hold_s, seen.submitted_s + seen.bound_s)
        known = math.isfinite(latest_s)
        if now.verb is SteerVerb.HOLD:
            if not known or not math.isfinite(now.until_s):
                clip("deadline", replace(now, verb=SteerVerb.START, until_s=0.0), "a hold whose end is not known")
            elif now.until_s <= seen.now_s:
                clip("deadline", replace(now, verb=SteerVerb.START, until_s=0.0), "a hold that has ended")
            elif now.until_s > latest_s:
                clip("deadline", replace(now, until_s=latest_s), "a hold past its latest end")
        if now.verb is SteerVerb.START and seen.healthy_gpus < seen.gpus and known:
            why = f"{seen.healthy_gpus:.0f} healthy GPUs for {seen.gpus:.0f}"
            clip("degraded", replace(now, verb=SteerVerb.HOLD, until_s=latest_s), why)
        over = not seen.waited_s < seen.bound_s
        if now.verb is SteerVerb.HOLD and (over or seen.late):
            why = "past its bound on waiting" if over else "the baseline has started it"
            clip("starvation", replace(now, verb=SteerVerb.START, until_s=0.0), why)
        steep = seen.ramp_w + seen.added_w > seen.slope_w and seen.ramp_w > 0
        end_s = seen.submitted_s + seen.bound_s + (limits.ramp_grace_s if over else 0.0)
        if now.verb is SteerVerb.START and steep and seen.now_s < end_s:
            until_s = min(seen.now_s + limits.ramp_hold_s, end_s)
            why = f"{seen.ramp_w:.0f} W and {seen.added_w:.0f} W more in a minute; {seen.slope_w:.0f} W is allowed"
            clip("rack_ramp", replace(now, verb=SteerVerb.HOLD, until_s=until_s), why)
        well = tuple(host for host in now.prefer if host not in seen.sick)
        clip("degraded", replace(now, prefer=well), "an incident is open on a preferred node")
        if now.verb is SteerVerb.HOLD or not seen.placeable:
            clip("placement", replace(now, prefer=(), avoid=()), "no pod of ours to write a preference on")
        most = limits.most_hosts
        few = replace(now, prefer=now.prefer[:most], avoid=now.avoid[:most])
        clip("placement", few, f"more than {most} hosts")
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
