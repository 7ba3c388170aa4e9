"""What goes wrong inside a MIG instance, a leak or an application's error: mended at its own pod."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nightshift.collectors.frame import Frame, Instant, SeriesIndex
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.controllers.action import Situation
from nightshift.controllers.playbooks.reset_gpu import ResetGpu
from nightshift.controllers.playbooks.restart_job import RestartJob
from nightshift.controllers.playbooks.restart_pod import RestartPod
from nightshift.detectors.base import Fault, Finding, Severity, State
from nightshift.detectors.memory.leak import MemoryLeak

K = SubjectKind
GIB = 2.0**30
LIMIT = 17.5 * GIB
STEP_S, BEGAN_S = 15.0, 1.79e9
METRICS = ("gpu_memory_used_bytes", "gpu_memory_free_bytes")
GPU, NODE = Subject(K.GPU, "GPU-0"), Subject(K.NODE, "n1")


def instance(number: int) -> Subject:
    return Subject(K.MIG, f"GPU-0/mig{number}")


def held(jobs: list[str]) -> Inventory:
    """One GPU cut into an instance for the one pod of each of these jobs; a job named twice has two ranks."""
    known = Inventory()
    known.observe(GPU, NODE, BEGAN_S)
    for number, job in enumerate(jobs):
        pod, owner = Subject(K.POD, f"ml/{job}-{number}"), Subject(K.JOB, f"ml/{job}")
        rank = Subject(K.RANK, f"ml/{job}#{number}")
        pairs = [(instance(number), GPU), (instance(number), pod), (GPU, pod), (pod, NODE), (pod, owner)]
        for child, parent in [*pairs, (rank, pod), (rank, owner), (GPU, rank)]:
            known.observe(child, parent, BEGAN_S)
    return known


def told(
    levels_gib: np.ndarray, known: Inventory, detector: MemoryLeak | None = None, first: int = 0
) -> list[Finding]:
    """What fires, of instances [n, steps] of one GPU, from the first of these steps on."""
    index = SeriesIndex(K.MIG, tuple(instance(n) for n in range(len(levels_gib))))
    epoch, found = np.zeros(len(levels_gib), dtype=np.int64), {}
    detector = detector or MemoryLeak()
    for step, used in enumerate(GIB * levels_gib.T[first:], start=first):
        at_s = BEGAN_S + STEP_S * step
        frame = Frame(at_s, index, METRICS, np.stack([used, LIMIT - used], 1), np.full((1, 2), at_s), epoch)
        for finding in detector.update(Tick(at_s, {K.MIG: frame}), known):
            found[finding.episode] = finding
    return [finding for finding in found.values() if finding.state is State.FIRING]


def climbing(count: int, leaks: int, minutes: float, pace_gib_h: float = 8.0) -> np.ndarray:
    levels = np.full((count, int(minutes * 60 / STEP_S)), 6.0)
    levels[leaks] += pace_gib_h * np.arange(levels.shape[1]) * STEP_S / 3600.0
    return levels


def test_it_is_told_on_the_instance_and_its_own_pod_is_restarted() -> None:
    """Three services share the GPU; the other two are not touched, and not blamed."""
    known = held(["a", "b", "c"])
    hours = climbing(3, 1, minutes=6 * 60, pace_gib_h=1.6)
    hours[:, : int(2 * 3600 / STEP_S)] = 6.0
    hours[1] = 6.0 + np.maximum(np.arange(hours.shape[1]) * STEP_S / 3600.0 - 2.0, 0.0) * 2.4
    (finding,) = told(hours, known)
    assert (finding.subject, "GPU memory climbs" in finding.summary) == (instance(1), True)
    assert float(finding.facts["limit_bytes"]) == pytest.approx(LIMIT)
    situation = Situation("INC-1", finding.fault, finding.subject, (finding,), known, finding.at.t_s)
    plan = RestartPod().propose(situation).action
    assert plan is not None
    assert (plan.target.name, plan.blast_radius.jobs) == ("ml/b-1", ())


def test_ranks_in_instances_of_one_gpu_are_each_others_control() -> None:
    """Minutes are enough against the job's other ranks; the neighbour's job is none of them."""
    known = held(["a", "a", "a", "b"])
    (finding,) = told(climbing(4, 2, minutes=20), known)
    assert (finding.subject, finding.facts["test"], finding.facts["peers"]) == (instance(2), "contrast", 2.0)
    assert finding.facts["rank"] == "ml/a#2"
    situation = Situation("INC-1", finding.fault, finding.subject, (finding,), known, finding.at.t_s)
    assert RestartPod().propose(situation).action is None
    plan = RestartJob().propose(situation).action
    assert plan is not None
    assert plan.target.name == "ml/a"


def test_what_it_learnt_of_instances_outlives_a_restart() -> None:
    known, levels = held(["a", "a", "a"]), climbing(3, 0, minutes=20)
    before, after = MemoryLeak(), MemoryLeak()
    assert told(levels[:, :70], known, before) == told(levels[:, :70], known)
    after.restore(before.snapshot())
    (whole,), (resumed,) = told(levels, known), told(levels, known, after, first=70)
    assert (resumed.episode, resumed.facts) == (whole.episode, whole.facts)


@pytest.mark.parametrize(
    ("instances", "pod"), [("1", "ml/b-1"), ("01", "ml/b-1"), ("1 2", None), ("9", None), ("", None)]
)
def test_an_applications_error_in_one_instance_restarts_its_pod_and_no_other(
    instances: str, pod: str | None
) -> None:
    """The line names the instance; it was not known which of the GPU's pods that is, and nothing was proposed."""
    at, known = Instant(BEGAN_S + 100.0), held(["a", "b", "c"])
    facts: dict[str, float | str] = {"mig_instances": instances} if instances else {}
    finding = Finding(
        "xid", Fault.XID, GPU, State.FIRING, at, at, Severity.WARNING, "Xid 43", 1.0, 0.0, facts=facts
    )  # fmt: skip
    situation = Situation("INC-1", Fault.XID, GPU, (finding,), known, BEGAN_S + 130.0, {"since_s": at.t_s})
    plan = RestartPod().propose(situation).action
    assert (plan.target.name if plan else None) == pod
    reset = ResetGpu().propose(replace(situation, facts={**situation.facts, "recovery_action": "reset_gpu"})).action
    assert reset is not None
    assert len(reset.blast_radius.jobs) == 3, "who resets the GPU hits them all"
