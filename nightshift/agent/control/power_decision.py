"""From a window to one gang's decision: what is believed of the gang, what the policy proposes, whose word counts.

Windows and what nodes say become gangs on levels, for the belief, and GPUs in racks, for the shield. Then the
policy is asked, the slowdown guard has its word, and a coin says which of the two is carried out.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nightshift.agent.control.power_racks import RackState
from nightshift.agent.control.power_windows import GpuWindow, mean
from nightshift.collectors.base import Permanent
from nightshift.collectors.seal import SealError, trusted_keys
from nightshift.controllers.actuators.power_nodes import NodeStatus
from nightshift.controllers.decision import Clip, ControlDecision, ControlPolicy, Mode, Trust, decide
from nightshift.controllers.drift import Drift, Envelope
from nightshift.controllers.policy_file import PolicyFile, read
from nightshift.controllers.power import descent, shield
from nightshift.controllers.power.arms import Round
from nightshift.controllers.power.belief import TOP, Outlook, shared_bank
from nightshift.controllers.power.curves import LEVELS
from nightshift.controllers.power.features import INTERFACE
from nightshift.controllers.power.gang import (
    CLOCK,
    DescentPolicy,
    Gang,
    GangAnswer,
    GangSeen,
    Highest,
    NetworkPolicy,
    SlowdownGuard,
    answers,
    level_of,
    look,
)
from nightshift.controllers.power.limits import STALE_S
from nightshift.controllers.power.settings import PowerSettings

Belief = tuple[Gang, Outlook, GangSeen, descent.DescentCare]


@dataclass(frozen=True)
class LearnedPolicy:
    """The learned policy that is asked, and how far what it sees is from its training."""

    file: PolicyFile
    drift: Drift

    @classmethod
    def of(cls, file: PolicyFile | None) -> LearnedPolicy | None:
        """None for the heuristic. Raises PolicyRefused where the file's envelope is not fit."""
        return None if file is None else cls(file, Drift(Envelope.of(file)))


@dataclass(frozen=True, slots=True)
class Decided:
    """A gang's decision on its way through the racks' shield. `other`: the level that the other arm would have had;
    `highest_mw`: its GPUs with their highest limits."""

    decision: ControlDecision
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
    ) -> tuple[ControlDecision, float, bool]:
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


def ask(beliefs: Mapping[str, Belief]) -> dict[str, GangAnswer]:
    """What the heuristic and the guard say of every gang, asked at once of all that want the same care."""
    alike: dict[descent.DescentCare, list[str]] = defaultdict(list)
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
    answer: GangAnswer,
    trust: Trust,
    learned: LearnedPolicy | None,
    rng: np.random.Generator,
    now_s: float,
    highest_mw: Mapping[str, int] | None = None,
) -> Decided:
    """Asks the policy and the baseline; moves the gang's home to what is executed. The receipt's prediction is of
    the level that is executed, whoever asked for it. `answer`: of `ask`."""
    gang, seen, observation, care = belief
    treated = bool(trust.chance > 0 and rng.random() < trust.chance)
    policy: ControlPolicy[GangSeen, int] = DescentPolicy(gang, seen, answer)
    network = None
    if learned is not None:
        policy = network = NetworkPolicy(learned.file, gang, seen, care, greedy=trust.mode is not Mode.TRIAL)
    guard = SlowdownGuard(answer.floor, care.budget)
    level, decision = decide(
        "power", trust.mode, policy, Highest(), guard, observation, rng, now_s,
        treated=treated, chance=trust.designed,
    )  # fmt: skip
    other = int(decision.baseline if treated else guard.decide(observation, decision.proposed).action)
    more: dict[str, Any] = {"prediction": _expected(seen, level)}
    if learned is not None and network is not None and network.inputs is not None:
        learned.drift.take(job, network.inputs, now_s)
        more["outside"] = learned.drift.envelope.outside(network.inputs)
    decision = replace(decision, **more)
    # a look at the reference is for one window: the gang comes back to the home that it has
    probes = level == TOP and decision.why.startswith("reference")
    if treated and not probes:
        gang.jobs.home[0] = level
    # home is where the gang is, not where a policy that was not executed wished it
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


LOWEST_MW = 200_000
"""Lowest limit of a GPU until its node answers (mW): the least that an H100, an H200 and a B200 accept."""
_KEPT_S = 3600.0
"""For which a gang's belief outlives the last sight of its job."""
_WORKLOADS = 1000
"""Of so many, those that ended last, is remembered what they cost at each level."""


def power_range(settings: PowerSettings, window: GpuWindow, status: Mapping[str, NodeStatus]) -> tuple[int, int]:
    """Lowest and highest limit of a GPU (mW): as its node says; of a node that has not answered, `power.max_w`."""
    node = status.get(window.node)
    if node is not None and window.uuid in node.gpus:
        return node.gpus[window.uuid].min_mw, node.gpus[window.uuid].max_mw
    highest_mw = int(settings.max_w * 1000)
    return min(LOWEST_MW, highest_mw), highest_mw


def seen_age_s(read_s: float, now_s: float, stale_s: float) -> float:
    """How long ago something was read (s). A time that lies further ahead than clocks differ is of before the clock
    was set back: how old it is nobody knows, so it is infinitely old."""
    return now_s - read_s if read_s - now_s <= stale_s else math.inf


def shield_gpu(
    settings: PowerSettings,
    rack: str,
    window: GpuWindow,
    status: Mapping[str, NodeStatus],
    ill: bool,
    belief: Belief | None,
    now_s: float,
) -> shield.Gpu:
    low, high = power_range(settings, window, status)
    mine = status.get(window.node, NodeStatus()).gpus.get(window.uuid)
    # a lockout is for an hour, so it takes a slowdown that is sure; NaN never leads to one
    sure = belief is not None and belief[2].slowdown_sd < 0.01
    return shield.Gpu(
        window.uuid,
        window.node,
        rack,
        window.job,
        low,
        high,
        mine.default_mw if mine is not None else high,
        mine.fallback_mw if mine is not None else high,
        None if math.isnan(window.limit_w) else round(window.limit_w * 1000.0),
        seen_age_s(window.read_s, now_s, STALE_S),
        incident=ill,
        slowdown=belief[2].slowdown if belief is not None and sure else math.nan,
        slowdown_budget=belief[2].budget if belief is not None else settings.shield.slowdown,
    )


@dataclass(frozen=True, slots=True)
class _View:
    """One gang's window, as the belief wants it. `level` -1: not known."""

    gang: Gang
    level: int
    lowest: int
    draw: float
    steady: bool


class Beliefs:
    """What is believed of every gang."""

    def __init__(self, settings: PowerSettings) -> None:
        self._settings = settings
        self._bank = shared_bank()
        self._seen_s: dict[str, float] = {}
        self.care = descent.DescentCare()
        self.gangs: dict[str, Gang] = {}
        self.workloads: dict[str, Gang] = {}
        """Of workloads that ran before, by `GpuWindow.workload`; who ended last is last."""
        self._workload_of: dict[str, str] = {}

    def forget(self, now_s: float) -> None:
        """Gangs whose job was not seen for long."""
        self.gangs = {j: g for j, g in self.gangs.items() if now_s - self._seen_s.setdefault(j, now_s) < _KEPT_S}
        self._seen_s = {job: self._seen_s[job] for job in self.gangs}

    def believe(
        self,
        gangs: Mapping[str, list[GpuWindow]],
        speeds: Mapping[str, tuple[float, float]],
        statuses: Mapping[str, NodeStatus],
        ordered_mw: Mapping[str, int],
        racks: Mapping[str, Iterable[RackState]],
        now_s: float,
        on_clock: Container[str] = (),
    ) -> dict[str, Belief]:
        """The gangs after this window, what is believed of each, and what a policy sees. `speeds`: of a job, work
        per second and its age; `racks`: those that its GPUs stand in. A window teaches where its limit was read as
        ordered, and the same all along; not while the gang's clock is what is moved."""
        self._remember(gangs)
        views = {
            job: self._view(job, members, statuses, ordered_mw, now_s, job in on_clock)
            for job, members in gangs.items()
        }
        unknown, taken = (math.nan, math.inf), []
        for job, view in views.items():
            speed = speeds.get(job, unknown)[0]
            taken.append((view.gang, speed, view.draw) if view.steady else (view.gang, math.nan, math.nan))
        cares = {
            budget: replace(self.care, budget=budget)
            for budget in {self._settings.shield.slowdown, *self._settings.slowdown_of.values()}
        }
        found = {}
        for (job, view), seen in zip(views.items(), look(taken, self._bank, self.care), strict=True):
            care, members, speed_s = cares[self._budget(job)], gangs[job], speeds.get(job, unknown)
            found[job] = (view.gang, seen, _observed(job, view, seen, care, members, speed_s, racks[job]), care)
        return found

    def _remember(self, present: Mapping[str, list[GpuWindow]]) -> None:
        """Keeps of jobs that are gone what the next run of their workload can start from."""
        for job in self._workload_of.keys() - present.keys():
            key, gang = self._workload_of.pop(job), self.gangs.get(job)
            if gang is not None and gang.memorable:
                self.workloads.pop(key, None)
                self.workloads[key] = gang
        while len(self.workloads) > _WORKLOADS:
            del self.workloads[next(iter(self.workloads))]
        self._workload_of = {job: members[0].workload for job, members in present.items() if members[0].workload}

    def _begun(self, members: list[GpuWindow], lowest: int) -> Gang:
        """Of a job that is new here; the next run of a workload that ran before on GPUs of this kind."""
        former = self.workloads.get(members[0].workload)
        if former is None or int(former.jobs.lowest[0]) != lowest:
            return Gang.start(lowest)
        return former.again(self.care)

    def _budget(self, job: str) -> float:
        return self._settings.slowdown_of.get(job.partition("/")[0], self._settings.shield.slowdown)

    def _view(
        self,
        job: str,
        members: list[GpuWindow],
        told: Mapping[str, NodeStatus],
        ordered_mw: Mapping[str, int],
        now_s: float,
        on_clock: bool,
    ) -> _View:
        """The window, and the gang at the level that it was read at."""
        self._seen_s[job] = now_s
        ranges = [power_range(self._settings, w, told) for w in members]
        lowest = max(level_of(low / high) for low, high in ranges)
        shares = [w.limit_w * 1000.0 / high for w, (_, high) in zip(members, ranges, strict=True)]
        stale_s = STALE_S
        read = all(seen_age_s(w.read_s, now_s, stale_s) <= stale_s for w in members)
        # a gang steps at the pace of its slowest
        level = level_of(min(shares)) if read and all(map(math.isfinite, shares)) else -1
        draw = sum(w.draw_w * 1000.0 / high for w, (_, high) in zip(members, ranges, strict=True)) / len(members)
        gang = self.gangs.get(job)
        # another lowest level is another kind of GPU: nothing that was learned holds there
        if gang is None or int(gang.jobs.lowest[0]) != lowest:
            gang = self.gangs[job] = self._begun(members, lowest)
        steady = (
            level >= 0
            and not on_clock
            and all(
                # heat slows it, not its limit: such a window says nothing of a level
                w.steady
                and not w.hot
                and abs(w.limit_w * 1000.0 - ordered_mw.get(w.uuid, w.limit_w * 1000.0)) < 1000.0
                for w in members
            )
        )
        if level >= 0:
            gang.level = level
        return _View(gang, level, lowest, draw, steady)


def _observed(
    job: str,
    view: _View,
    seen: Outlook,
    care: descent.DescentCare,
    members: list[GpuWindow],
    speed: tuple[float, float],
    racks: Iterable[RackState],
) -> GangSeen:
    home = int(view.gang.jobs.home[0])
    slowdown = float(seen.slowdown[0, home])
    scarcest = min(racks, key=lambda r: r.room if math.isfinite(r.room) else math.inf, default=RackState())
    return GangSeen(
        unit=job,
        job=job,
        lever=view.gang.lever,
        level=float(LEVELS[view.level]) if view.level >= 0 else math.nan,
        speed=speed[0],
        speed_age_s=speed[1],
        draw=view.draw,
        gpus=len(members),
        lowest=float(LEVELS[view.lowest]),
        slowdown=slowdown,
        slowdown_sd=float(seen.slowdown_sd[0, home]),
        budget=care.budget,
        dram_active=mean([w.dram_active for w in members]),
        sm_active=mean([w.sm_active for w in members]),
        temperature_c=mean([w.temperature_c for w in members]),
        throttled=any(w.hot for w in members),
        slack=care.budget - slowdown,
        rack_room=scarcest.room,
        rack_slope=scarcest.slope,
    )
