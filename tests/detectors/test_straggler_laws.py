"""Laws of stragglers, on drawn jobs of any size, stages and imbalance: the slow workers are named, and no other."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from nightshift.collectors.frame import StepSeries
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import State
from nightshift.detectors.progress.straggler import STAGE, Straggler, by_stage, few_and_apart

SEEDS = range(3)
JOB = Subject(SubjectKind.JOB, "ml/pp")
STEPS, STEP_S, PER_TICK = 150, 2.0, 5


@dataclass
class Job:
    """Ranks in equal pipeline stages; sequence lengths differ by rank and step, so that each is slow at times."""

    seed: int
    ranks: int = 16
    stages: int = 1
    told: bool = True
    compute: np.ndarray = field(init=False)
    data: np.ndarray = field(init=False)
    joins: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng([17, self.seed, self.ranks, self.stages])
        shape = (self.ranks, STEPS)
        spread = self.rng.uniform(0.01, 0.12)
        batch = np.exp(0.1 * self.rng.standard_normal(STEPS))
        self.compute = 0.8 * batch * np.exp(spread * self.rng.standard_normal(shape))
        self.data = 0.02 * np.exp(0.2 * self.rng.standard_normal(shape))
        self.joins = np.zeros(self.ranks, dtype=int)
        self.stage = np.arange(self.ranks) * self.stages // self.ranks
        self.compute *= self.rng.uniform(0.7, 1.4, self.stages)[self.stage][:, None] if self.stages > 1 else 1.0

    def named(self) -> list[int]:
        detector, inventory = Straggler(), Inventory()
        subjects = [Subject(SubjectKind.RANK, f"{JOB.name}#{rank}") for rank in range(self.ranks)]
        for rank, subject in enumerate(subjects):
            inventory.observe(subject, JOB, -1.0)
            if self.told and self.stages > 1:
                inventory.describe(subject, **{STAGE: str(self.stage[rank])})
        found = set()
        for first in range(0, STEPS, PER_TICK):
            step = np.arange(first, first + PER_TICK)
            series = []
            for rank, subject in enumerate(subjects):
                if first < self.joins[rank]:
                    continue
                columns = {"compute_s": self.compute[rank, step], "data_s": self.data[rank, step]}
                series.append(StepSeries(subject, "run", step, STEP_S * (step + 1.0), columns, "log"))
            at_s = STEP_S * (first + PER_TICK)
            for finding in detector.update(Tick(at_s, steps=tuple(series)), inventory):
                if finding.state is State.FIRING:
                    found.add(subjects.index(finding.subject))
        return sorted(found)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("ranks", [2, 4, 16, 48])
def test_imbalance_accuses_nobody(seed: int, ranks: int) -> None:
    """Random sequence lengths make every rank the slowest one at times."""
    assert Job(seed, ranks).named() == []


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("ranks", "stages"), [(8, 4), (16, 4), (32, 8)])
def test_stages_of_unequal_work_accuse_nobody(seed: int, ranks: int, stages: int) -> None:
    """The stages are told, and one takes up to twice as long as another."""
    assert Job(seed, ranks, stages).named() == []


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("ranks", "stages"), [(2, 1), (8, 1), (16, 4), (48, 1)])
def test_one_slow_worker_is_named_wherever_it_is(seed: int, ranks: int, stages: int) -> None:
    """15 to 60 % more compute, at any rank, in jobs with and without stages."""
    job = Job(seed, ranks, stages)
    slow = int(job.rng.integers(ranks))
    job.compute[slow] *= job.rng.uniform(1.15, 1.6)
    assert job.named() == [slow]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("ranks", "stages"), [(8, 1), (16, 4), (48, 1)])
def test_two_slow_workers_are_both_named(seed: int, ranks: int, stages: int) -> None:
    """In two different ways: one computes slowly, one waits for its data."""
    job = Job(seed, ranks, stages)
    first, second = sorted(job.rng.choice(ranks, 2, replace=False).tolist())
    job.compute[first] *= job.rng.uniform(1.2, 1.6)
    job.data[second] += job.rng.uniform(0.15, 0.4)
    assert job.named() == [first, second]


UNEVEN = {
    "context cut by length": np.linspace(0.6, 1.4, 16),
    "a gentle slope": np.linspace(0.9, 1.12, 16),
    "every second rank": np.tile([1.0, 1.3], 8),
    "experts of unequal load": np.array(
        [0.95, 1.07, 1.12, 0.72, 1.1, 0.81, 1.24, 0.9, 0.76, 1.02, 0.86, 1.18, 0.98, 1.27, 1.15, 0.84]
    ),
}


@pytest.mark.parametrize("shares", UNEVEN.values(), ids=list(UNEVEN))
@pytest.mark.parametrize("seed", SEEDS)
def test_work_that_is_shared_out_unevenly_accuses_nobody(seed: int, shares: np.ndarray) -> None:
    """Many ranks are slow, by degrees, and none of them is ill."""
    job = Job(seed, 16)
    job.compute *= shares[:, None]
    assert job.named() == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_slow_worker_among_uneven_work_is_named(seed: int) -> None:
    """It stands apart from the most loaded of the others; they are not accused with it."""
    job = Job(seed, 16)
    job.compute *= UNEVEN["experts of unequal load"][:, None]
    job.compute[9] *= 2.0
    assert job.named() == [9]


@pytest.mark.parametrize(
    ("ratio", "slow", "few"),
    [
        ([1.0, 1.3], [1], {1}),
        ([1.0, 1.0, 1.3, 1.08, 1.0, 1.02], [2, 3], {2, 3}),
        ([1.0, 1.0, 1.3, 1.08, 1.05, 1.02], [2, 3], {2}),
        ([1.0, 1.3, 1.0, 1.3], [1, 3], set()),
        ([1.0, 1.1, 1.2, 1.3, 1.4, 1.5], [2, 3, 4, 5], set()),
        ([1.0, 1.0, float("nan"), 1.2], [3], {3}),
        ([], [], set()),
    ],
)
def test_slow_workers_are_few_and_apart(ratio: list[float], slow: list[int], few: set[int]) -> None:
    """As many as stand apart by half of what the least of them is slower; a third of the group at most."""
    assert few_and_apart(ratio, [n in slow for n in range(len(ratio))]) == few


@pytest.mark.parametrize("seed", SEEDS)
def test_a_worker_that_was_slow_for_a_while_is_not_named(seed: int) -> None:
    """A pause of a sixth of the steps: a checkpoint, an evaluation, a neighbour's burst."""
    job = Job(seed)
    job.compute[3, 60:85] *= 2.0
    assert job.named() == []


@pytest.mark.parametrize("seed", SEEDS)
def test_ranks_that_join_late_are_judged_by_the_steps_that_they_share(seed: int) -> None:
    """Half of the job comes at a third of the run, one of them slow."""
    job = Job(seed)
    job.joins[8:] = 50
    job.compute[11] *= 1.3
    assert job.named() == [11]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("ranks", "share"), [(16, 2), (16, 4), (64, 2), (64, 8)])
@pytest.mark.parametrize("at_the_end", [True, False])
def test_a_heavy_last_or_first_stage_that_nobody_told_accuses_nobody(
    seed: int, ranks: int, share: int, at_the_end: bool
) -> None:
    """One of 2, 4 or 8 stages takes half as long again, as the one with the vocabulary does."""
    job = Job(seed, ranks)
    size = ranks // share
    job.compute[ranks - size if at_the_end else 0 : ranks if at_the_end else size] *= 1.5
    assert job.named() == []


def test_a_slow_worker_of_a_heavy_stage_that_nobody_told_is_named() -> None:
    """Within its block it stands out as it would in a stage that was told."""
    job = Job(1, 16)
    job.compute[8:] *= 1.8
    job.compute[12] *= 1.15
    assert job.named() == [12]


@pytest.mark.parametrize(("seed", "ranks", "stages"), [(0, 8, 4), (1, 16, 4), (2, 16, 8), (0, 64, 8)])
@pytest.mark.parametrize("told", [True, False])
def test_first_and_last_stages_that_idle_by_design_make_nobody_else_slow(
    seed: int, ranks: int, stages: int, told: bool
) -> None:
    """Both hold fewer layers and wait in the pipeline's bubble; the stages between compute half as long again."""
    job = Job(seed, ranks)
    job.stages, job.told = stages, told
    job.stage = np.arange(ranks) * stages // ranks
    job.compute[(job.stage > 0) & (job.stage < stages - 1)] *= 1.5
    assert job.named() == []


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("told", [True, False])
def test_a_first_stage_that_alone_loads_data_accuses_nobody(seed: int, told: bool) -> None:
    """Ranks of later stages get activations: their data time is next to nothing, that of the first is not."""
    job = Job(seed, 16)
    job.stages, job.told, job.stage = 4, told, np.arange(16) // 4
    job.data[:4] *= 6.0
    job.compute[12:] *= 1.5
    assert job.named() == []


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("rank", [5, 9])
def test_a_slow_worker_between_idle_stages_is_named(told: bool, rank: int) -> None:
    """Among the busy stages' ranks it is slower still."""
    job = Job(2, 16)
    job.stages, job.told, job.stage = 4, told, np.arange(16) // 4
    job.compute[4:12] *= 1.8
    job.compute[rank] *= 1.2
    assert job.named() == [rank]


@pytest.mark.parametrize(
    ("own_s", "blocks"),
    [
        ([1, 1, 1, 1, 1, 1, 1.6, 1.6], [[6, 7]]),
        ([1.5, 1.5, 1, 1, 1, 1, 1, 1], [[0, 1]]),
        ([1, 1, 1, 1, 1.5, 1.45, 1.5, 1.5], [[4, 5, 6, 7]]),
        ([1, 1, 1.5, 1.5, 1.5, 1.5, 1, 1], [[0, 1], [6, 7]]),
        ([1.2, 1.2, 1.5, 1.5, 1.5, 1.5, 1, 1], [[0, 1], [6, 7]]),
        ([1, 1, 1, 1.6, 1, 1, 1, 1.6], []),
        ([1, 1, 1, 1, 1, 1, 1, 1.6], []),
        ([1, 1, 1, 1, 1, 1, 1.2, 1.6], []),
        ([1, 1, 1, 1, 1.02, 1.02, 1.02, 1.02], []),
        ([1, 1.5], []),
        ([1, 1, float("nan"), 1.5], []),
    ],
)
def test_a_stage_is_a_block_at_an_edge_whose_ranks_are_alike(own_s: list[float], blocks: list[list[int]]) -> None:
    """Whatever else is slow is slow by itself; every rank is in exactly one group."""
    groups = by_stage(np.array(own_s, dtype=float))
    assert groups[: len(blocks)] == blocks
    assert len(groups) == len(blocks) + 1
    assert sorted(rank for group in groups for rank in group) == list(range(len(own_s)))
