"""One gang's decision in the frame: the policy is asked, the slowdown guard has its word, a coin says whose."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nightshift.collectors.base import Permanent
from nightshift.collectors.seal import SealError, trusted_keys
from nightshift.controllers.decision import Clip, Decision, Mode, Policy, Trust, decide
from nightshift.controllers.drift import Drift, Envelope
from nightshift.controllers.policy_file import PolicyFile, read
from nightshift.controllers.power import descent
from nightshift.controllers.power.arms import Round
from nightshift.controllers.power.belief import TOP, Outlook
from nightshift.controllers.power.curves import LEVELS
from nightshift.controllers.power.features import INTERFACE
from nightshift.controllers.power.gang import (
    CLOCK,
    Answer,
    DescentPolicy,
    Gang,
    GangSeen,
    Guard,
    Highest,
    NetworkPolicy,
    answers,
)
from nightshift.controllers.power.settings import PowerSettings

Belief = tuple[Gang, Outlook, GangSeen, descent.Care]


@dataclass(frozen=True)
class Asked:
    """The learned policy that is asked, and how far what it sees is from its training."""

    file: PolicyFile
    drift: Drift

    @classmethod
    def of(cls, file: PolicyFile | None) -> Asked | None:
        """None for the heuristic. Raises PolicyRefused where the file's envelope is not fit."""
        return None if file is None else cls(file, Drift(Envelope.of(file)))


@dataclass(frozen=True, slots=True)
class Decided:
    """A gang's decision on its way through the racks' shield. `other`: the level that the other arm would have had;
    `highest_mw`: its GPUs with their highest limits."""

    decision: Decision
    level: int
    other: int
    trust: Trust
    treated: bool
    present: int = -1
    """The level that the gang is at."""
    highest_mw: Mapping[str, int] = field(default_factory=dict)
    cap: int = TOP
    """Level that its racks have for it, where they have too little for all."""

    on_clock: bool = False
    """Its levels are of the SM clock; its power limit is the highest that it can have."""
    clocks_mhz: Mapping[str, int | None] = field(default_factory=dict)
    clock_clips: tuple[Clip, ...] = ()
    clock_same: bool = True
    """Whether the other arm would have led to the same clocks."""

    def limit_level(self, level: int) -> int:
        """The level of its power limits, where its policy asks for `level`."""
        return TOP if self.on_clock else level

    def wishes_mw(self, level: int, cap: int) -> dict[str, float]:
        """The limits at a level, where its racks have `cap` for it."""
        share = float(LEVELS[min(self.limit_level(level), cap)])
        return {uuid: share * mw for uuid, mw in self.highest_mw.items()}

    def capped(self, cap: int, belief: Belief) -> Decided:
        """With what its racks have for it; its prediction is of what is executed."""
        if cap >= self.limit_level(self.level):
            return replace(self, cap=cap)
        before, after = float(LEVELS[self.limit_level(self.level)]), float(LEVELS[cap])
        clip = Clip("rack", before, after, "the rack has too little for all: its gangs share it")
        decision = replace(
            self.decision,
            clips=(*self.decision.clips, clip),
            executed=TOP if self.on_clock else cap,  # on the clock: free
            prediction={} if self.on_clock else _expected(belief[1], cap),
        )
        return replace(self, cap=cap, decision=decision)

    def through(
        self, around: Round, acts: bool, instead: Callable[[str, int], Mapping[str, float]]
    ) -> tuple[Decision, float, bool]:
        """The whole receipt after the racks' shield; the chance by design that what was executed was the policy's,
        and whether it was. Where the other arm would have led to the same, nothing was drawn: certain. `instead`:
        the wishes near this job if it had asked for another level, its racks shared anew."""
        orders = around.orders
        clips = tuple(dict.fromkeys(c for uuid in self.highest_mw for c in orders.clips.get(uuid, ())))
        limits = {u: mw for u in self.highest_mw if (mw := orders.limit_mw(u)) is not None}
        executed: dict[str, Any] = {"level": self.decision.executed, "limits_mw": limits if acts else {}}
        if self.on_clock:
            executed["clocks_mhz"] = dict(self.clocks_mhz) if acts else {}
        whole: dict[str, Any] = {"clips": self.decision.clips + self.clock_clips + clips, "executed": executed}
        if not acts and self.present != self.level:  # nothing is executed, and it is not at the baseline by itself
            return replace(self.decision, **whole), 0.0, False
        same = self.level == self.other
        if not same and acts and 0.0 < self.trust.designed < 1.0:
            other = instead(self.decision.unit, self.other)
            same = self.clock_same and around.same_with(other, self.highest_mw)
        if same:
            return replace(self.decision, **whole, executed_propensity=1.0), 1.0, True
        return replace(self.decision, **whole), self.trust.designed, self.treated


def ask(beliefs: Mapping[str, Belief]) -> dict[str, Answer]:
    """What the heuristic and the guard say of every gang, asked at once of all that want the same care."""
    alike: dict[descent.Care, list[str]] = defaultdict(list)
    for job, belief in beliefs.items():
        alike[belief[3]].append(job)
    return {
        job: answer
        for care, jobs in alike.items()
        for job, answer in zip(jobs, answers([beliefs[job][:2] for job in jobs], care), strict=True)
    }


def decide_gang(
    job: str,
    belief: Belief,
    answer: Answer,
    trust: Trust,
    asked: Asked | None,
    rng: np.random.Generator,
    now_s: float,
    highest_mw: Mapping[str, int] | None = None,
) -> Decided:
    """Asks the policy and the baseline; moves the gang's home to what is executed. The receipt's prediction is of
    the level that is executed, whoever asked for it. `answer`: of `ask`."""
    gang, seen, observation, care = belief
    treated = bool(trust.chance > 0 and rng.random() < trust.chance)
    policy: Policy[GangSeen, int] = DescentPolicy(gang, seen, answer)
    network = None
    if asked is not None:
        policy = network = NetworkPolicy(asked.file, gang, seen, care, greedy=trust.mode is not Mode.TRIAL)
    guard = Guard(answer.floor, care.budget)
    level, decision = decide(
        "power", trust.mode, policy, Highest(), guard, observation, rng, now_s,
        treated=treated, chance=trust.designed,
    )  # fmt: skip
    other = int(decision.baseline if treated else guard.decide(observation, decision.proposed).action)
    more: dict[str, Any] = {"prediction": _expected(seen, level)}
    if asked is not None and network is not None and network.inputs is not None:
        asked.drift.take(job, network.inputs, now_s)
        more["outside"] = asked.drift.envelope.outside(network.inputs)
    decision = replace(decision, **more)
    probes = level == TOP and decision.why.startswith("reference")
    if treated and not probes:
        gang.jobs.home[0] = level
    if not treated:
        gang.jobs.home[0] = gang.level
    on_clock = gang.lever == CLOCK
    return Decided(decision, level, other, trust, treated, gang.level, highest_mw or {}, on_clock=on_clock)


def _expected(seen: Outlook, level: int) -> dict[str, float]:
    slow, slow_sd = float(seen.slowdown[0, level]), float(seen.slowdown_sd[0, level])
    return {"slowdown_executed": 1.0 + slow, "slowdown_sd": slow_sd} if math.isfinite(slow + slow_sd) else {}


def load(settings: PowerSettings) -> PolicyFile | None:
    """The policy file of the settings; None for the heuristic. Raises Permanent where it is not fit."""
    if settings.policy_file is None:
        return None
    try:
        return read(settings.policy_file, INTERFACE, trusted_keys(settings.policy_keys))
    except SealError as error:
        raise Permanent(f"power.policy_keys: {error}") from error
