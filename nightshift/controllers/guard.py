"""Keeps mitigation from becoming the outage: limits on what stands unavailable, and on how fast anything is done.

A breaker that counts actions per window lets a slow drip of cordons pass; this one counts the capacity that is out
of use *now*, whoever took it and however long ago. The limits hold per cluster, rack and NVLink domain; a rate
holds per cluster, rack, NVLink domain and job; nodes in maintenance and subjects that opted out are left alone; and
one node has one action under way at a time. Purely a decision: the caller asks it twice, when a plan is made and
again in the transaction that stores the intent, so that two approvals at once cannot pass together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from nightshift.collectors.shared_settings import stated_once
from nightshift.collectors.slurm import SLURM
from nightshift.collectors.subject import TAKES_WORK_SINCE, Inventory, Subject, SubjectKind
from nightshift.controllers.action import KINDS, Action, traits_of
from nightshift.controllers.cordon import node_of

_K = SubjectKind
OPT_OUT_FACT = "nightshift-opt-out"
"""An inventory fact (a label or annotation of the node, job or pod) that keeps us away when it is `true`."""


_PERIOD_S = {"day": 86_400.0, "week": 7 * 86_400.0}


class MaintenanceWindow(BaseModel):
    """A stretch of time in which people work on something and we do not."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    subjects: tuple[str, ...] = Field(
        min_length=1, description="Patterns of subjects, e.g. `node:rack7-*` or `cluster:*`"
    )
    start_s: float = Field(allow_inf_nan=False, description="Start (Unix s)")
    end_s: float = Field(allow_inf_nan=False, description="End (Unix s)")
    owner: str = Field(min_length=1, max_length=200, description="Who is responsible: a person or a team")
    reason: str = Field(default="maintenance", description="Said in the refusal, and where it keeps alerts away")
    every: Literal["once", "day", "week"] = Field(
        default="once", description="Whether it comes again at the same local time"
    )
    zone: SkipJsonSchema[str] = stated_once("time_zone", lambda: "UTC")

    @model_validator(mode="after")
    def _is_one(self) -> MaintenanceWindow:
        if not self.start_s < self.end_s:
            raise ValueError("end_s must be after start_s")
        period_s = _PERIOD_S.get(self.every, math.inf)
        if self.end_s - self.start_s >= period_s:
            raise ValueError(f"a window that repeats every {self.every} must be shorter than that")
        try:
            ZoneInfo(self.zone)
        except (ZoneInfoNotFoundError, ValueError) as error:
            raise ValueError(f"{self.zone!r} is not a time zone of the IANA database") from error
        return self

    def holds_until(self, at_s: float) -> float | None:
        """When the stretch that holds at `at_s` ends (Unix s); None where none does."""
        starts = [self.start_s]
        if self.every != "once" and at_s >= self.start_s:
            zone, period_s = ZoneInfo(self.zone), _PERIOD_S[self.every]
            first = datetime.fromtimestamp(self.start_s, UTC).astimezone(zone).replace(tzinfo=None)
            since = int((at_s - self.start_s) // period_s)
            days = timedelta(seconds=period_s)
            # by the wall clock of its zone, so that it stays at the same hour over a change of daylight saving
            starts = [(first + n * days).replace(tzinfo=zone).timestamp() for n in (since - 1, since, since + 1)]
        length_s = self.end_s - self.start_s
        ends = [start_s + length_s for start_s in starts if start_s <= at_s < start_s + length_s]
        return max(ends, default=None)

    def covers(self, names: Iterable[str]) -> bool:
        """Whether one of a subject's names (its own, and those of what it stands in) fits."""
        return any(fnmatchcase(name, pattern) for name in names for pattern in self.subjects)


# Actions are counted over an hour, the unit of the rates; a second window would only make them hard to read.
RATE_S = 3600.0


class Settings(BaseModel):
    """How much mitigation the cluster bears."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cluster_fraction: float = Field(default=0.1, ge=0, le=1, description="Largest share of all GPUs out of use")
    rack_fraction: float = Field(default=0.5, ge=0, le=1, description="Largest share of a rack's GPUs out of use")
    domain_fraction: float = Field(default=0.5, ge=0, le=1, description="The same for an NVLink domain")
    least_nodes: int = Field(
        default=1, ge=0, description="So many whole nodes may always be out, even if few exist"
    )
    floor_gpus: int = Field(default=0, ge=0, description="At least so many GPUs stay in use, whatever else holds")
    cluster_rate: int = Field(default=12, ge=0, description="Most actions on the cluster per window")
    rack_rate: int = Field(default=6, ge=0, description="Most actions on one rack or NVLink domain per window")
    job_rate: int = Field(default=2, ge=0, description="Most actions that stop one job per window")
    breaker_nodes: int = Field(
        default=10,
        ge=1,
        description="Actions on more nodes than this within an hour stop all actions until a person resumes them",
    )
    breaker_repairs: int = Field(
        default=3,
        ge=1,
        description="Repairs on so many nodes in a row without a confirmed recovery stop all actions likewise",
    )
    maintenance: tuple[MaintenanceWindow, ...] = Field(default=(), description="When and where people work")
    opt_out: tuple[str, ...] = Field(default=(), description="Patterns of subjects that we never act on")


@dataclass(frozen=True, slots=True)
class Commitment:
    """An action that was begun, as stored: `ended_s` when it was no longer under way, `released_s` when what it
    took was given back (undone, uncordoned, or a reset or reboot that finished). None = not yet (Unix s)."""

    action: Action
    begun_s: float
    ended_s: float | None = None
    released_s: float | None = None


@dataclass(frozen=True, slots=True)
class Deed:
    """An action that was begun, whatever came of it. `recovered`: None while that is open, or where its kind
    contains a fault rather than repairs it."""

    action: Action
    begun_s: float
    recovered: bool | None = None


class Limit(StrEnum):
    """Why the guard refuses: the closed set that metrics and messages use."""

    CLUSTER_CAPACITY = "cluster_capacity"
    RACK_CAPACITY = "rack_capacity"
    DOMAIN_CAPACITY = "domain_capacity"
    FLOOR = "floor"
    CLUSTER_RATE = "cluster_rate"
    RACK_RATE = "rack_rate"
    DOMAIN_RATE = "domain_rate"
    JOB_RATE = "job_rate"
    MAINTENANCE = "maintenance"
    OPTED_OUT = "opted_out"
    BUSY = "busy"
    UNKNOWN_PLACE = "unknown_place"
    UNKNOWN_KIND = "unknown_kind"


@dataclass(frozen=True, slots=True)
class GuardRuling:
    """Allowed or not, by which limit, and a sentence for people that says the figures. `retry_at_s` is when asking
    again may help (Unix s); None where only a person or a released capacity changes the answer."""

    allowed: bool
    reason: str
    limit: Limit | None = None
    retry_at_s: float | None = None


def rule(
    action: Action,
    commitments: Iterable[Commitment],
    inventory: Inventory,
    at_s: float,
    settings: Settings | None = None,
    unavailable: frozenset[Subject] = frozenset(),
) -> GuardRuling:
    """Whether an action may begin now. `unavailable` are nodes and GPUs out of use for other reasons (cordoned by
    people, not ready, their source lost); they count against the limits."""
    if action.kind not in KINDS:
        message = f"{action.kind} has no row in nightshift.controllers.action.KINDS, so its effect is unknown"
        return GuardRuling(False, message, Limit.UNKNOWN_KIND)
    if traits_of(action.kind).harmless:
        return GuardRuling(True, "changes nothing in the cluster")
    # an action that is carried on does not stand in its own way
    begun = [c for c in commitments if c.action.id != action.id]
    return _Guard(inventory, at_s, settings or Settings()).rule(action, begun, unavailable)


def overrun(deeds: Iterable[Deed], at_s: float, settings: Settings, action: Action | None = None) -> str:
    """Why Nightshift has to stop itself, as a sentence; empty where it has not to. `deeds`: since a person last
    allowed actions, oldest first. `action`: the one that is about to begin.

    The limits of `rule` bound what is out of use at a time. A source that lies about every node would have us
    repair one after the other within them, so this counts nodes, whoever approved. A job counts as one place: its
    restart changes no node.
    """
    deeds = [deed for deed in deeds if not traits_of(deed.action.kind).harmless]
    if action is not None and not traits_of(action.kind).harmless:
        recent = [deed.action for deed in deeds if at_s - deed.begun_s < RATE_S]
        places = {node_of(one) for one in (*recent, action)}
        if len(places) > settings.breaker_nodes:
            return f"the actions of one hour would touch {len(places)} nodes; {settings.breaker_nodes} are allowed"
    in_vain: set[str] = set()
    for deed in deeds:
        # a hard fault of one node may take the whole ladder of repairs: nodes are counted, not tries
        if deed.recovered:
            in_vain.clear()
        elif deed.recovered is False:
            in_vain.add(node_of(deed.action))
    if len(in_vain) >= settings.breaker_repairs:
        names = ", ".join(sorted(in_vain)[:5])
        return f"repairs of {len(in_vain)} nodes in a row had no confirmed recovery: {names}"
    return ""


def out_of_use(commitments: Iterable[Commitment], inventory: Inventory, at_s: float) -> set[Subject]:
    """The GPUs that actions of ours keep out of use now."""
    return _Guard(inventory, at_s, Settings())._out(list(commitments), frozenset())


class _Guard:
    def __init__(self, inventory: Inventory, at_s: float, settings: Settings) -> None:
        self._inventory, self._at_s, self._settings = inventory, at_s, settings

    def rule(self, action: Action, commitments: list[Commitment], unavailable: frozenset[Subject]) -> GuardRuling:
        touched = self._touched(action)
        refusal = (
            self._left_alone(touched)
            or self._busy(action, commitments)
            or self._capacity(action, commitments, unavailable)
            or self._rate(action, commitments)
        )
        return refusal or GuardRuling(True, self._margin(action, commitments, unavailable))

    def _touched(self, action: Action) -> set[Subject]:
        return {above for s in action.named for above in self._inventory.ancestors(s, self._at_s)} | {
            self._inventory.cluster
        }

    def _left_alone(self, touched: set[Subject]) -> GuardRuling | None:
        for subject in sorted(touched):
            name = str(subject)
            opted = (self._inventory.fact(subject, OPT_OUT_FACT) or "").lower() == "true"
            if opted or any(fnmatchcase(name, pattern) for pattern in self._settings.opt_out):
                return GuardRuling(False, f"{name} opted out of automatic repair", Limit.OPTED_OUT)
            for window in self._settings.maintenance:
                until_s = window.holds_until(self._at_s)
                if until_s is not None and window.covers([name]):
                    message = f"{name} is in maintenance: {window.reason} ({window.owner})"
                    return GuardRuling(False, message, Limit.MAINTENANCE, until_s)
        return None

    def _nodes(self, action: Action) -> set[Subject]:
        """The nodes that an action works on: those it names, or those of its target's GPUs and pods."""
        named = action.named
        own = {s for s in named if s.kind is _K.NODE}
        # a rack's plan names the nodes that it works on: the others keep running
        for subject in {s for s in named - own if s.kind is not _K.RACK}:
            below = {subject, *self._inventory.gpus(subject, self._at_s)}
            above = (self._inventory.above(s, _K.NODE, self._at_s) for s in below)
            own |= {node for node in above if node is not None}
        return own

    def _busy(self, action: Action, begun: list[Commitment]) -> GuardRuling | None:
        nodes = self._nodes(action)
        for commitment in begun:
            if commitment.ended_s is not None or traits_of(commitment.action.kind).harmless:
                continue
            shared = nodes & self._nodes(commitment.action)
            if shared or commitment.action.target == action.target:
                where = min(shared).name if shared else action.target.name
                other = commitment.action
                return GuardRuling(False, f"{other.kind} {other.id} is running on {where}", Limit.BUSY, self._at_s)
        return None

    def _taken(self, action: Action) -> set[Subject]:
        """What an action takes while it runs: all nodes of the jobs that it stops, too."""
        if not traits_of(action.kind).takes_capacity:
            return set()
        # a cordon or a taint keeps pods off the whole node, also where the target is one of its GPUs
        whole = ({action.target} if action.target.kind is not _K.RACK else set()) | self._nodes(action)
        found = {gpu for subject in whole for gpu in self._inventory.gpus(subject, self._at_s)}
        return found | {Subject(_K.GPU, name) for name in action.blast_radius.gpus}

    def _held(self, action: Action) -> set[Subject]:
        """What an action that has ended keeps out of use: the jobs that it stopped may run again elsewhere."""
        radius = replace(action.blast_radius, jobs=(), pods=())
        return self._taken(replace(action, blast_radius=radius))

    def _out(self, begun: list[Commitment], unavailable: frozenset[Subject]) -> set[Subject]:
        out = {gpu for s in unavailable for gpu in self._inventory.gpus(s, self._at_s)}
        for commitment in begun:
            if commitment.released_s is None and not self._takes_work_again(commitment):
                ended = commitment.ended_s is not None
                out |= self._held(commitment.action) if ended else self._taken(commitment.action)
        return out

    def _takes_work_again(self, commitment: Commitment) -> bool:
        """Whether its manager has said that the node of an ended action takes work, and was seen to since then:
        a person has uncordoned it. Counted for good, a few of those would leave nothing to be done any more."""
        action, ended_s = commitment.action, commitment.ended_s
        if ended_s is None or not traits_of(action.kind).cordons:
            return False
        node = Subject(_K.NODE, node_of(action))
        since = self._inventory.fact(node, TAKES_WORK_SINCE)
        is_free = (
            self._inventory.fact(node, "unschedulable") == "false" and self._inventory.fact(node, SLURM) != "out"
        )
        return is_free and since is not None and float(since) > ended_s

    def _scopes(self, gpus: Iterable[Subject]) -> dict[Subject, set[Subject]]:
        """The cluster, racks and NVLink domains of these GPUs, each with all of its GPUs."""
        above = {s for gpu in gpus for s in self._inventory.ancestors(gpu, self._at_s)}
        wide = {s for s in above if s.kind in (_K.RACK, _K.NVLINK_DOMAIN)}
        scopes = {s: set(self._inventory.gpus(s, self._at_s)) for s in wide}
        scopes[self._inventory.cluster] = set(self._inventory.subjects(_K.GPU, self._at_s))
        return scopes

    def _allowed(self, scope: Subject, gpus: set[Subject]) -> int:
        """How many GPUs of a scope may be out: a share, but always `least_nodes` of its largest nodes."""
        share = {
            _K.RACK: self._settings.rack_fraction,
            _K.NVLINK_DOMAIN: self._settings.domain_fraction,
        }.get(scope.kind, self._settings.cluster_fraction)
        per_node: dict[Subject | None, int] = {}
        for gpu in gpus:
            node = self._inventory.above(gpu, _K.NODE, self._at_s)
            per_node[node] = per_node.get(node, 0) + 1
        # a share of a small rack may be less than one node: nothing could ever be repaired there
        largest = sorted(per_node.values(), reverse=True)[: self._settings.least_nodes]
        return max(math.floor(share * len(gpus)), sum(largest))

    def _capacity(
        self, action: Action, begun: list[Commitment], unavailable: frozenset[Subject]
    ) -> GuardRuling | None:
        if not traits_of(action.kind).takes_capacity:
            return None
        taken = self._taken(action)
        if not taken:
            message = f"no GPUs are known on {action.target.name}: what this takes away cannot be counted"
            return GuardRuling(False, message, Limit.UNKNOWN_PLACE)
        out = self._out(begun, unavailable)
        new = taken - out
        # what is out of use already costs nothing more, even where the limit is reached
        if not new:
            return None
        limits = {_K.RACK: Limit.RACK_CAPACITY, _K.NVLINK_DOMAIN: Limit.DOMAIN_CAPACITY}
        for scope, gpus in sorted(self._scopes(new).items()):
            if action.target.kind is _K.RACK and scope.kind in (_K.RACK, _K.NVLINK_DOMAIN):
                continue  # the domain that failed is what the plan is about; the cluster's share and floor hold
            would, allowed = len((out | new) & gpus), self._allowed(scope, gpus)
            if would > allowed:
                message = f"{would} of {len(gpus)} GPUs of {scope.name} would be out of use; {allowed} are allowed"
                return GuardRuling(False, message, limits.get(scope.kind, Limit.CLUSTER_CAPACITY))
        fleet = self._inventory.subjects(_K.GPU, self._at_s)
        left = len(set(fleet) - out - new)
        if left < self._settings.floor_gpus:
            message = f"{left} GPUs would be left in use; the floor is {self._settings.floor_gpus}"
            return GuardRuling(False, message, Limit.FLOOR)
        return None

    def _rate(self, action: Action, begun: list[Commitment]) -> GuardRuling | None:
        recent = [c for c in begun if not traits_of(c.action.kind).harmless and self._at_s - c.begun_s < RATE_S]
        limits = {
            _K.CLUSTER: (self._settings.cluster_rate, Limit.CLUSTER_RATE),
            _K.RACK: (self._settings.rack_rate, Limit.RACK_RATE),
            _K.NVLINK_DOMAIN: (self._settings.rack_rate, Limit.DOMAIN_RATE),
            _K.JOB: (self._settings.job_rate, Limit.JOB_RATE),
        }
        ours = self._counted(action)
        others = [self._counted(c.action) for c in recent]
        for scope in sorted(ours):
            most, limit = limits[scope.kind]
            count = sum(scope in touched for touched in others)
            if count >= most:
                first_s = min(
                    (c.begun_s for c, t in zip(recent, others, strict=True) if scope in t), default=self._at_s
                )
                minutes = RATE_S / 60
                message = f"{count} actions on {scope} within {minutes:.0f} min; {most} are allowed"
                return GuardRuling(False, message, limit, first_s + RATE_S)
        return None

    def _counted(self, action: Action) -> set[Subject]:
        """The scopes whose rate an action counts in: every rack and domain it works in, and each job it stops."""
        found = {self._inventory.cluster} | {Subject(_K.JOB, name) for name in action.blast_radius.jobs}
        if action.target.kind is _K.JOB:
            found.add(action.target)
        for node in self._nodes(action):
            above = self._inventory.ancestors(node, self._at_s)
            found |= {s for s in above if s.kind in (_K.RACK, _K.NVLINK_DOMAIN)}
        return found

    def _margin(self, action: Action, begun: list[Commitment], unavailable: frozenset[Subject]) -> str:
        gpus = set(self._inventory.subjects(_K.GPU, self._at_s))
        out = self._out(begun, unavailable) | self._taken(action)
        allowed = self._allowed(self._inventory.cluster, gpus)
        return f"GPUs out of use with this: {len(out & gpus)} of {allowed} allowed"
