"""Scores a played case as AIOpsLab does (arXiv 2501.06706): detection, localisation with its superset penalty,
cause, mitigation by the state of the cluster; and beyond it, every action that was not needed counts as a
failure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.incidents.parts import GPUS, JOBS, Trouble, gpu_name
from benchmarks.incidents.play import Entry, Played
from nightshift.controllers.action import ActionKind
from nightshift.detectors.base import Fault

_F, _A = Fault, ActionKind
_HBM = frozenset({_F.HBM_DEGRADED, _F.HBM_IMMINENT})
_RESTART = frozenset({_A.RESTART_JOB, _A.RESTART_POD})


@dataclass(frozen=True)
class Truth:
    """What a right answer to a fault is: names of the cause, the level at which it sits, what may be done. With no
    `repairs`, nothing is to be done; `ends` says that the world must show the fault ended by an action."""

    causes: frozenset[Fault]
    level: str
    repairs: frozenset[ActionKind]
    ends: bool = True


TRUTHS: Mapping[str, Truth] = {
    "gpu_leak": Truth(frozenset({_F.GPU_MEMORY_LEAK}), "gpu", _RESTART),
    "host_leak": Truth(frozenset({_F.HOST_MEMORY_LEAK}), "gpu", _RESTART),
    "lr_jump": Truth(frozenset({_F.LOSS_DIVERGED, _F.LOSS_NONFINITE}), "job", _RESTART),
    "bit_flip": Truth(frozenset({_F.LOSS_DIVERGED, _F.LOSS_NONFINITE}), "job", _RESTART),
    "nan": Truth(frozenset({_F.LOSS_NONFINITE}), "job", _RESTART),
    "stall": Truth(frozenset({_F.DATA_STALL}), "job", _RESTART | {_A.NOTIFY_OWNER}),
    "hang": Truth(frozenset({_F.HANG}), "job", _RESTART),
    "hbm": Truth(_HBM, "gpu", frozenset({_A.QUARANTINE_GPU, _A.RESET_GPU})),
    "hbm_reboot": Truth(_HBM, "gpu", frozenset({_A.REBOOT_NODE})),
    "hbm_rma": Truth(_HBM, "gpu", frozenset({_A.QUARANTINE_GPU, _A.OPEN_RMA})),
    "gpu_lost": Truth(frozenset({_F.GPU_LOST}), "gpu", frozenset({_A.REBOOT_NODE})),
    "nvlink": Truth(frozenset({_F.NVLINK_DEGRADED}), "gpu", frozenset({_A.RESET_GPU, _A.DRAIN})),
    "firmware": Truth(frozenset({_F.XID}), "gpu", frozenset({_A.RESET_GPU})),
    "user_crash": Truth(frozenset({_F.XID}), "gpu", _RESTART, ends=False),
    "held": Truth(frozenset({_F.THROTTLE}), "gpu", frozenset({_A.CORDON, _A.DRAIN})),
    "nvlink_errors": Truth(frozenset({_F.NVLINK_DEGRADED}), "gpu", frozenset({_A.RESET_GPU, _A.DRAIN, _A.CORDON})),
    "pcie_replays": Truth(frozenset({_F.PCIE_DEGRADED}), "gpu", frozenset({_A.CORDON, _A.DRAIN})),
    "vanish": Truth(frozenset({_F.GPU_LOST}), "gpu", frozenset({_A.CORDON, _A.REBOOT_NODE})),
    "slow_rank": Truth(frozenset({_F.STRAGGLER}), "gpu", frozenset({_A.NOTIFY_OWNER}), ends=False),
    "aer": Truth(frozenset({_F.PCIE_DEGRADED}), "gpu", frozenset({_A.CORDON, _A.DRAIN})),
    "oom_burst": Truth(frozenset({_F.OOM_KILL}), "job", frozenset({_A.NOTIFY_OWNER}), ends=False),
    "dark": Truth(frozenset({_F.SOURCE_LOST}), "node", frozenset(), ends=False),
}
_OF_A_JOB = frozenset({_F.LOSS_DIVERGED, _F.LOSS_NONFINITE, _F.DATA_STALL, _F.HANG, _F.OOM_KILL})
TOO_SHORT_S = 120.0
EARLY_S = 150.0
"""A finding's bucket may begin this much before the fault."""


@dataclass
class Score:
    """Shares in [0, 1] per fault of the case; NaN-free: a case without faults has empty lists."""

    detected: list[float] = field(default_factory=list)
    located: list[float] = field(default_factory=list)
    caused: list[float] = field(default_factory=list)
    mitigated: list[float] = field(default_factory=list)
    delays_s: list[float] = field(default_factory=list)
    unneeded: list[str] = field(default_factory=list)
    extra_incidents: int = 0
    matched: dict[str, bool] = field(default_factory=dict)
    """By incident: whether its cause is that of the fault behind it."""
    suspects: list[float] = field(default_factory=list)
    """Of bit flips that show on their rank first: 1 where that rank was named, 0 where none, −1 where another."""
    not_judged: list[str] = field(default_factory=list)
    """Faults that another fault's repair ended (a reboot of the node) before anybody could have seen them."""
    notes: list[str] = field(default_factory=list)


def truth_of(trouble: Trouble) -> Truth | None:
    """The right answer to something that a case does; None for decoys and for parts of another fault."""
    if trouble.event.get("decoy") or trouble.event.get("part"):
        return None
    return TRUTHS.get(str(trouble.event.get("truth", trouble["do"])))


def score(case: Mapping[str, Any], played: Played) -> Score:
    result = Score()
    faults = [(t, truth) for t in played.world.troubles if (truth := truth_of(t)) is not None]
    cut_short = [(t, truth) for t, truth in faults if _cut_short(t, truth)]
    result.not_judged = [
        f"{t['do']} ended {t.over_s - t.since_s:.0f} s after its onset: {t.over}" for t, _ in cut_short
    ]
    judged = [pair for pair in faults if pair not in cut_short]
    used: set[str] = set()
    for trouble, truth in judged:
        entry = _match(trouble, truth, played, used)
        result.detected.append(float(entry is not None))
        if entry is None:
            result.located.append(0.0)
            result.caused.append(0.0)
            result.notes.append(f"{trouble['do']} was not found")
        else:
            used.add(entry.incident.id)
            result.delays_s.append(entry.incident.opened_s - trouble.since_s)
            diagnosis = entry.incident.diagnosis
            right = diagnosis is not None and diagnosis.cause in truth.causes
            result.caused.append(float(right))
            result.matched[entry.incident.id] = right
            if trouble["do"] == "bit_flip" and diagnosis is not None:
                named = diagnosis.facts.get("suspect_rank")
                culprit = f"ml/{trouble['job']}#{trouble['rank']}" if trouble.event.get("shows") else None
                if culprit is not None or named is not None:
                    result.suspects.append(0.0 if named is None else 1.0 if named == culprit else -1.0)
            result.located.append(_located(trouble, truth, entry))
            if not right or result.located[-1] < 1:
                cause = diagnosis.cause if diagnosis else None
                result.notes.append(f"{trouble['do']}: said {cause} at {_predicted(entry)}")
        result.mitigated.append(float(_mitigated(trouble, truth, played, entry)))
        if not result.mitigated[-1]:
            done = [str(a.kind) for e in played.entries for _, a in e.acted]
            result.notes.append(f"{trouble['do']}: not repaired (did {done or 'nothing'})")
    result.extra_incidents = len(played.entries) - len(used)
    harmless = [t for t in played.world.troubles if t.event.get("decoy") and t["do"] == "xids"]
    for entry in played.entries:
        if entry.incident.id not in used:  # an Xid that asks for nothing is rightly said, and rightly left alone
            told = entry.incident.diagnosis
            true = (
                told is not None and told.cause is _F.XID and any(_predicted(entry) & _places(t) for t in harmless)
            )
            result.matched[entry.incident.id] = true
    for entry in played.entries:
        for _, action in entry.acted:
            near = [
                truth for t, truth in faults if action.kind in truth.repairs and _related(action.target.name, t)
            ]
            if not near:
                result.unneeded.append(f"{action.kind} {action.target.name}")
    return result


def _cut_short(trouble: Trouble, truth: Truth) -> bool:
    """Whether another fault's repair ended this one before anybody could have seen it."""
    ours = trouble.over in {kind.value for kind in truth.repairs} or trouble.over == "moved off the GPU"
    return truth.ends and bool(trouble.over) and not ours and trouble.over_s - trouble.since_s < TOO_SHORT_S


def _gpu(trouble: Trouble) -> str | None:
    event = trouble.event
    if "node" in event and "gpu" in event:
        return gpu_name(event["node"], int(event["gpu"]))
    return gpu_name(*JOBS[event["job"]][int(event["rank"])]) if "rank" in event else None


def _jobs(trouble: Trouble) -> set[str]:
    event = trouble.event
    if "job" in event:
        return {event["job"]}
    return {name for name, places in JOBS.items() if any(p == (event["node"], event.get("gpu")) for p in places)}


def _nodes(trouble: Trouble) -> set[str]:
    if "node" in trouble.event:
        return {trouble["node"]}
    return {node for name in _jobs(trouble) for node, _ in JOBS[name]}


def _related(target: str, trouble: Trouble) -> bool:
    names = {f"ml/{name}" for name in _jobs(trouble)} | _nodes(trouble) | {_gpu(trouble)}
    return target in names or any(target.startswith(f"ml/{name}-") for name in _jobs(trouble))


def _match(trouble: Trouble, truth: Truth, played: Played, used: set[str]) -> Entry | None:
    """The incident that this fault opened: after its onset, about its place; one with the right cause first."""
    near = [
        e
        for e in played.entries
        if e.incident.id not in used
        and e.incident.opened_s >= trouble.since_s - EARLY_S
        and _predicted(e) & _places(trouble)
    ]
    near.sort(key=lambda e: not (e.incident.diagnosis and e.incident.diagnosis.cause in truth.causes))
    return near[0] if near else None


def _places(trouble: Trouble) -> set[str]:
    jobs = _jobs(trouble)
    gpus = {gpu_name(*p) for name in jobs for p in JOBS[name]}
    found = {f"ml/{name}" for name in jobs} | gpus | _nodes(trouble)
    own = _gpu(trouble)
    return found | ({own} if own else set())


def _predicted(entry: Entry) -> set[str]:
    """Where the diagnosis puts the fault: the finest place that it names."""
    diagnosis = entry.incident.diagnosis
    facts = diagnosis.facts if diagnosis else {}
    if diagnosis and diagnosis.cause in _OF_A_JOB and "job" in facts:
        return {str(facts["job"])}
    for name in ("gpu", "job", "node"):
        if name in facts:
            return {str(facts[name])}
    return {str(s.name) for s in entry.incident.subjects[:1]}


def _located(trouble: Trouble, truth: Truth, entry: Entry) -> float:
    """1 for exactly the right place, its share for a place that holds it and more, else 0."""
    predicted = _predicted(entry)
    gpu = _gpu(trouble)
    right = {"gpu": {gpu}, "job": {f"ml/{name}" for name in _jobs(trouble)}, "node": _nodes(trouble)}[truth.level]
    if predicted == right:
        return 1.0
    if truth.level == "gpu":
        for name in _jobs(trouble):
            if predicted == {f"ml/{name}"}:
                return 1.0 / len(JOBS[name])
        if predicted == _nodes(trouble):
            return 1.0 / GPUS
    return 0.0


def _mitigated(trouble: Trouble, truth: Truth, played: Played, entry: Entry | None) -> bool:
    """By the cluster's state at the end: the fault was ended by us, its job makes progress, no damage is back."""
    jobs = played.world.jobs
    if not all(name in played.progressing for name in _jobs(trouble)):
        return False
    if any(jobs[name].loss_added != 0 for name in _jobs(trouble)):
        return False
    if truth.ends:
        return trouble.over in {kind.value for kind in truth.repairs} or trouble.over == "moved off the GPU"
    if not truth.repairs:
        return entry is not None and not entry.acted
    return entry is not None
