"""The recorded faults are found and the recorded benign phases stay silent, whatever other detectors run beside."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from nightshift.detectors.base import Fault, Finding, State
from nightshift.detectors.plugins import ALL
from tests.recordings.replay import START_S, TICK_S, Job, Phase, cut, h200, h200_rank
from tests.some import some

OK = "train_ok"
H200_FAULTS = {
    "train_diverge": Fault.LOSS_DIVERGED,
    "train_bitflip": Fault.LOSS_DIVERGED,
    "train_gpu_leak": Fault.GPU_MEMORY_LEAK,
    "train_host_leak": Fault.HOST_MEMORY_LEAK,
    "train_data_stall": Fault.DATA_STALL,
}
H200_BENIGN = ("train_ok", "train_spike_recovers", "train_varlen_benign", "train_periodic_eval_benign")
RANKS_FAULTS = {
    ("gpu_leak_rank2", 0): Fault.GPU_MEMORY_LEAK,
    ("host_leak_rank0", 0): Fault.HOST_MEMORY_LEAK,
    ("hang_rank2_15s", 0): Fault.HANG,
}
RANKS_BENIGN = ("healthy", "varlen_benign", "eval_rank0_benign")


@dataclass(frozen=True)
class Said:
    """One change of an episode: the sample at which it was said, and the finding."""

    sample: int
    finding: Finding


def run(job: Job) -> list[Said]:
    """All detectors over a job's ticks; every change of state of every episode."""
    detectors, inventory = [kind() for kind in ALL], job.inventory()
    states: dict[str, State] = {}
    said = []
    for sample, tick in enumerate(job.ticks()):
        for detector in detectors:
            for finding in detector.update(tick, inventory):
                if states.get(finding.episode) is not finding.state:
                    states[finding.episode] = finding.state
                    said.append(Said(sample, finding))
    return said


def warm() -> Phase:
    return cut(h200(OK), 30)


@pytest.mark.parametrize("phase", some(sorted(H200_FAULTS)))
def test_a_recorded_fault_on_one_rank_is_found_named_and_cleared_once_the_run_is_well(phase: str) -> None:
    """One episode of the right fault, on rank 0 or its GPU or container, that ends once the rank is well."""
    faulty = [warm(), h200(phase), warm()]
    job = Job([faulty, *([[warm(), warm(), warm()]] * 3)])
    begin = len(warm())
    said = run(job)
    assert {s.finding.fault for s in said} == {H200_FAULTS[phase]}
    assert {s.finding.state for s in said} == {State.FIRING, State.CLEAR}
    assert len(said) == 2
    assert said[0].finding.subject in (job.rank[0], job.gpu[0], job.box[0])
    assert begin <= said[0].sample < begin + len(h200(phase)) <= said[1].sample
    assert said[0].finding.since.t_s >= START_S + (begin - 1) * TICK_S


@pytest.mark.parametrize("phase", some(H200_BENIGN))
@pytest.mark.parametrize("ranks", [4, pytest.param(1, marks=pytest.mark.full)])
def test_a_recorded_benign_phase_alarms_nothing(phase: str, ranks: int) -> None:
    """Alone and on all ranks of a job alike."""
    assert run(Job([[warm(), h200(phase), warm()]] * ranks)) == []


@pytest.mark.parametrize(("phase", "rank"), sorted(RANKS_FAULTS))
def test_a_fault_of_one_of_two_ranks_is_found(phase: str, rank: int) -> None:
    """The two-GPU job: the faulty rank is named; a hang is said of both, since both stand."""
    job = Job([[h200_rank("healthy", r), h200_rank(phase, r)] for r in (0, 1)])
    firing = [s.finding for s in run(job) if s.finding.state is State.FIRING]
    assert {f.fault for f in firing} == {RANKS_FAULTS[(phase, rank)]}
    if RANKS_FAULTS[(phase, rank)] is not Fault.HANG:
        assert {f.subject for f in firing} <= {job.rank[rank], job.gpu[rank], job.box[rank]}


@pytest.mark.parametrize("phase", RANKS_BENIGN)
def test_a_benign_phase_of_two_ranks_alarms_nothing(phase: str) -> None:
    """Healthy, variable length on both ranks, and evaluation on rank 0 only."""
    assert run(Job([[h200_rank("healthy", r), h200_rank(phase, r)] for r in (0, 1)])) == []
