"""What every playbook needs to draw up an action: who is hit, what acting and waiting cost, and a stable identity.

Costs are GPU-hours of lost work: GPUs of the jobs that stop × (time to start again + work since the checkpoint that
they go back to). They are estimates from stated settings, NaN where a figure that they need was never seen.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from nightshift.collectors.kubernetes.makers import NOTICE
from nightshift.collectors.seal import fingerprint
from nightshift.collectors.subject import SITE, SITE_NODE, Inventory, Subject, SubjectKind
from nightshift.controllers.action import (
    STOPPED_GPUS,
    Action,
    ActionKind,
    ActionProposal,
    BlastRadius,
    Precondition,
    Situation,
    Undo,
    target_of,
)
from nightshift.detectors.base import State

# How long a slowdown would go on unnoticed: a night.
HORIZON_S = 28_800.0
# A GPU reset with its checks; the driver takes most of it, whatever the site.
RESET_S = 300.0
# A node's reboot with its checks, on the long side: a plan must not promise less.
REBOOT_S = 1200.0
# Until a person would act without us (s), on the long side: at night, after a page and a journey to a keyboard.
RESPONSE_S = 7200.0
# Chance of another uncorrectable HBM error within 24 h of a first, measured on Calchas' data.
REPEAT_PROBABILITY = 0.44


class Economy(BaseModel):
    """What time costs on this cluster; used for both sides of every plan."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    restart_s: float = Field(
        default=600.0, gt=0, description="From a job's stop to its first step after restart (s)"
    )
    expires_s: float = Field(default=3600.0, gt=0, description="Time until an unapproved plan expires (s)")
    gpu_hour_price: float | None = Field(
        default=None, gt=0, description="Price of one GPU-hour in your currency; none: goodput without money"
    )


@dataclass(frozen=True)
class Reach:
    """What stands on a subject at the moment: nodes, GPUs, jobs and pods, sorted."""

    nodes: tuple[Subject, ...]
    gpus: tuple[Subject, ...]
    jobs: tuple[Subject, ...]
    pods: tuple[Subject, ...]

    @classmethod
    def of(cls, situation: Situation, subject: Subject) -> Reach:
        """The subject's own place: a GPU reaches its pod and job, a node everything on it, a job all its GPUs.
        A job that has just crashed is still counted: where none is there now, the one at the onset."""
        now = cls._at(situation, subject, situation.at_s)
        onset_s = number(situation, "since_s")
        if now.jobs or math.isnan(onset_s):
            return now
        # the time of the onset alone may be just after its processes had gone
        before = max(
            (cls._at(situation, subject, t_s) for t_s in (onset_s, onset_s - BEFORE_CRASH_S)),
            key=lambda r: len(r.jobs),
        )
        return cls(now.nodes or before.nodes, now.gpus or before.gpus, before.jobs, before.pods)

    @classmethod
    def _at(cls, situation: Situation, subject: Subject, at_s: float) -> Reach:
        inventory = situation.inventory
        gpus = set(inventory.gpus(subject, at_s))
        # a rank and a container hold no GPUs of their own: those of their pod are meant
        if subject.kind in (SubjectKind.RANK, SubjectKind.CONTAINER) and not gpus:
            pod = inventory.above(subject, SubjectKind.POD, at_s)
            gpus = set(inventory.gpus(pod, at_s)) if pod else set()
        around = {subject, *gpus, *inventory.below(subject, SubjectKind.POD, at_s)}
        found: dict[SubjectKind, set[Subject]] = {k: set() for k in (_K.NODE, _K.JOB, _K.POD)}
        for near in around:
            for above in inventory.ancestors(near, at_s):
                if above.kind in found:
                    found[above.kind].add(above)
        return cls(*(tuple(sorted(s)) for s in (found[_K.NODE], gpus, found[_K.JOB], found[_K.POD])))


_K = SubjectKind
BEFORE_CRASH_S = 60.0
"""A crash empties its GPUs at once: what was there is looked up this long before the onset."""


def job_of(situation: Situation) -> Subject | None:
    """The job that the incident's subject belongs to or is; None where it is not known or not exactly one."""
    jobs = Reach.of(situation, _instance(situation)).jobs
    return jobs[0] if len(jobs) == 1 else None


def place_of(situation: Situation, kind: SubjectKind) -> Subject | None:
    """The one GPU, node or pod that the incident is about; None where it is not known or not exactly one."""
    reach = Reach.of(situation, _instance(situation) if kind is _K.POD else situation.subject)
    found = {_K.GPU: reach.gpus, _K.NODE: reach.nodes, _K.POD: reach.pods}[kind]
    return found[0] if len(found) == 1 else None


def held_by(situation: Situation, gpu: Subject) -> dict[str, str]:
    """The parameter that names a GPU's node; empty where it is not known."""
    node = situation.inventory.above(gpu, _K.NODE, situation.at_s)
    return {"node": node.name} if node is not None else {}


def _instance(situation: Situation) -> Subject:
    """The one MIG instance that an error of its GPU stayed in, where it is known who holds it: the pods of the
    others have nothing to do with it. Else the incident's subject."""
    gpu, at_s = situation.subject, number(situation, "since_s")
    named = {str(f.facts.get("mig_instances", "")) for f in situation.findings if f.subject == gpu}
    name = named.pop() if len(named) == 1 else ""
    if gpu.kind is _K.GPU and name.isdecimal():
        found = Subject(_K.MIG, f"{gpu.name}/mig{int(name)}")
        times = (situation.at_s, at_s, at_s - BEFORE_CRASH_S)
        if any(situation.inventory.parents(found, t_s, _K.POD) for t_s in times):
            return found
    return gpu


def number(situation: Situation, fact: str) -> float:
    """A finite figure among the facts; NaN where it is missing or not one."""
    try:
        value = float(situation.facts.get(fact, math.nan))
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


def job_gpus(situation: Situation, jobs: tuple[Subject, ...]) -> int:
    """GPUs that stop with these jobs; of a job that has just crashed, those that it had at the onset."""
    inventory, onset_s = situation.inventory, number(situation, "since_s")
    found: set[Subject] = set()
    for job in jobs:
        times = [situation.at_s] + ([] if math.isnan(onset_s) else [onset_s, onset_s - BEFORE_CRASH_S])
        found |= set(next((held for t_s in times if (held := inventory.gpus(job, t_s))), ()))
    return len(found)


def restart_gpu_hours(
    situation: Situation, economy: Economy, jobs: tuple[Subject, ...], checkpoint_s: float
) -> float:
    """Lost by stopping these jobs now and going back to a checkpoint of that time; 0 where no job stops."""
    if not jobs:
        return 0.0
    redo_s = max(0.0, situation.at_s - checkpoint_s)
    return job_gpus(situation, jobs) * (economy.restart_s + redo_s) / 3600.0


def crash_gpu_hours(situation: Situation, economy: Economy, jobs: tuple[Subject, ...]) -> float:
    """Lost if the jobs crash by themselves later: found by a person, restarted, and redone from the last checkpoint
    (on average as old as it is now)."""
    checkpoint_s = number(situation, "checkpoint_s")
    redo_s = 0.0 if math.isnan(checkpoint_s) else max(0.0, situation.at_s - checkpoint_s)
    return job_gpus(situation, jobs) * (RESPONSE_S + economy.restart_s + redo_s) / 3600.0


def draw_up(
    situation: Situation,
    economy: Economy,
    kind: ActionKind,
    target: Subject,
    *,
    why: str,
    undo: Undo,
    stops: tuple[Subject, ...] = (),
    gpus: tuple[Subject, ...] = (),
    nodes: tuple[Subject, ...] = (),
    cost_gpu_hours: float = 0.0,
    waiting_gpu_hours: float = math.nan,
    note: str = "",
    params: Mapping[str, str | int | float | bool] | None = None,
    preconditions: tuple[Precondition, ...] = (),
    needs_approval: bool = True,
) -> Action:
    """An action whose id is the same for the same incident, attempt, kind and target, so that it happens once.

    `stops` are the jobs that stop; `gpus` and `nodes` what is unavailable to others while the action stands. Nodes
    are bound by their uid where it is known: another machine may come up under the same name.
    """
    inventory, at_s = situation.inventory, situation.at_s
    places = {*nodes, target, *([Subject(_K.NODE, str(params["node"]))] if params and "node" in params else [])}
    pods = sorted({pod for job in stops for pod in inventory.children(job, at_s, _K.POD)})
    # rules of approval go by size: a restart of 512 GPUs named no GPU, and one person could approve it
    stopped = {STOPPED_GPUS: count} if (count := job_gpus(situation, stops)) else {}
    attempt = situation.facts.get("attempt", 0.0)
    identity = fingerprint([situation.incident_id, str(attempt), kind.value, str(target)])
    return Action(
        # in small letters: Jobs are named by it, and names of Kubernetes have no capitals
        id=f"{situation.incident_id}-{kind.value.replace('_', '-')}-{identity[:10]}".lower(),
        kind=kind,
        target=target,
        why=why,
        blast_radius=BlastRadius(
            nodes=tuple(n.name for n in nodes),
            gpus=tuple(g.name for g in gpus),
            jobs=tuple(j.name for j in stops),
            pods=tuple(p.name for p in pods),
            cost_gpu_hours=cost_gpu_hours,
            cost_of_waiting_gpu_hours=waiting_gpu_hours,
            note=note,
        ),
        undo=undo,
        expires_at_s=at_s + economy.expires_s,
        params={**(params or {}), **stopped, **_sites(places, inventory)},
        preconditions=(*preconditions, *_machines(places, inventory)),
        needs_approval=needs_approval,
    )


def _machines(places: Collection[Subject], inventory: Inventory) -> tuple[Precondition, ...]:
    """That each node is still the machine that it was."""
    same = {s: uid for s in places if s.kind is _K.NODE and (uid := inventory.fact(s, "uid"))}
    return tuple(Precondition(node, "uid", uid) for node, uid in sorted(same.items()))


def _sites(places: Collection[Subject], inventory: Inventory) -> dict[str, str]:
    """The owner of the node or job that a plan is about, so that no other manager's actuator carries it out."""
    return {key: value for s in places for key in (SITE, SITE_NODE) if (value := inventory.fact(s, key))}


def notice_due_s(situation: Situation, node: Subject) -> float | None:
    """When a node's machine goes, by its cloud's open notice (Unix s); infinity where that names no time that is
    still to come, None where there is no notice on this node."""
    for finding in situation.findings:
        is_open = finding.facts.get("trouble") == NOTICE and finding.state is not State.CLEAR
        if is_open and finding.subject == node:
            due_s = float(finding.facts.get("due_s", math.inf))
            return due_s if due_s > situation.at_s else math.inf
    return None


_NOUNS = {_K.GPU: "GPU", _K.NODE: "node", _K.POD: "pod", _K.JOB: "job"}


class Remedy(ABC):
    """A playbook for the one subject that its kind acts on. Fulfils `controllers.action.Playbook`."""

    kind: ClassVar[ActionKind]
    unknown: ClassVar[str] = ""
    """What is said where there is no one such subject; empty: that it is unknown which."""

    def __init__(self, economy: Economy | None = None) -> None:
        self._economy = economy or Economy()

    def propose(self, situation: Situation) -> ActionProposal:
        subject = self.subject(situation)
        if subject is not None:
            return self.plan(situation, subject)
        return ActionProposal(
            None, self.unknown or f"unknown which single {_NOUNS[target_of(self.kind)]} is affected"
        )

    def subject(self, situation: Situation) -> Subject | None:
        """What to act on; None where it is not known or not exactly one."""
        target = target_of(self.kind)
        return job_of(situation) if target is _K.JOB else place_of(situation, target)

    @abstractmethod
    def plan(self, situation: Situation, subject: Subject) -> ActionProposal:
        """The action on it, or why none fits."""
