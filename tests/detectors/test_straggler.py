"""A slow worker is named, a worker that was told to be slow is not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from nightshift.collectors.subject import SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Finding
from nightshift.detectors.contract.world import HealthyFleet
from nightshift.detectors.progress.straggler import Straggler

LIMIT = "gpu_power_limit_w"


def ticks(signal: str, limit_w: float) -> Iterator[Tick]:
    """Rank 2 takes a third longer in `signal` all the time; its GPU may draw limit_w, the others 700 W."""
    world = HealthyFleet()
    for tick in world.ticks(60):
        steps = tuple(
            replace(
                s, columns={**s.columns, signal: s.column(signal) * (1.3 if s.subject == world.ranks[2] else 1)}
            )
            for s in tick.steps
        )
        frame = tick.frames[SubjectKind.GPU]
        frame.values[2, frame.columns[LIMIT]] = limit_w
        yield replace(tick, steps=steps)


def accused(signal: str, limit_w: float) -> set[str]:
    detector, inventory = Straggler(), HealthyFleet().inventory()
    found: list[Finding] = []
    for tick in ticks(signal, limit_w):
        found += detector.update(tick, inventory)
    return {finding.subject.name for finding in found}


@pytest.mark.parametrize(
    ("signal", "limit_w", "named"),
    [
        ("compute_s", 700.0, {"ml/train#2"}),
        ("compute_s", float("nan"), {"ml/train#2"}),
        ("compute_s", 500.0, set()),
        ("data_s", 500.0, set()),
    ],
)
def test_a_rank_whose_gpu_is_capped_below_its_peers_is_not_accused_of_slow_compute(
    signal: str, limit_w: float, named: set[str]
) -> None:
    """A cap is a decision, ours or another's; an unknown limit excuses nobody."""
    assert accused(signal, limit_w) == named


@pytest.mark.parametrize(("silent_after_s", "named"), [(900.0, set()), (60.0, {"ml/train#2"})])
def test_an_exporter_that_is_down_makes_no_capped_rank_a_slow_one(
    silent_after_s: float, named: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit of minutes ago still says why it is slow, over a restart too; one of long ago says nothing."""
    monkeypatch.setattr("nightshift.detectors.progress.straggler.SILENT_AFTER_S", silent_after_s)
    detector, inventory = Straggler(), HealthyFleet().inventory()
    found: set[str] = set()
    for number, tick in enumerate(ticks("compute_s", 500.0)):
        if number == 20:
            state, detector = detector.snapshot(), Straggler(detector.settings)
            detector.restore(state)
        seen = tick if number < 20 else replace(tick, frames={})
        found |= {finding.subject.name for finding in detector.update(seen, inventory)}
    assert found == named


def test_a_cap_does_not_excuse_slow_data() -> None:
    """Loading data costs a GPU no power: what is slow there is slow whatever the cap says."""
    world = HealthyFleet()
    detector, inventory, found = Straggler(), world.inventory(), set()
    for tick in ticks("data_s", 500.0):
        slow = tuple(
            replace(s, columns={**s.columns, "data_s": s.column("data_s") * 10})
            if s.subject == world.ranks[2]
            else s
            for s in tick.steps
        )
        found |= {finding.subject.name for finding in detector.update(replace(tick, steps=slow), inventory)}
    assert found == {"ml/train#2"}


@pytest.mark.parametrize(
    ("models", "named"),
    [
        ({2: "NVIDIA H100 80GB HBM3"}, set()),
        ({2: ""}, {"ml/train#2"}),
        ({0: "NVIDIA H100 80GB HBM3"}, {"ml/train#2"}),
    ],
)
def test_a_gpu_of_a_slower_model_is_not_accused_of_slow_compute(models: dict[int, str], named: set[str]) -> None:
    """An H100 beside H200s computes as fast as it can; among GPUs of its own model a slow one is still told."""
    world = HealthyFleet()
    detector, inventory, found = Straggler(), world.inventory(), set()
    for number, rank in enumerate(world.ranks):
        for gpu in inventory.gpus(rank, world.ticks(1)[0].at_s):
            inventory.describe(gpu, model=models.get(number, "NVIDIA H200"))
    for tick in ticks("compute_s", 700.0):
        found |= {finding.subject.name for finding in detector.update(tick, inventory)}
    assert found == named
