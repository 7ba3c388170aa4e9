"""A slow worker is named, a worker that was told to be slow is not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from nightshift.collectors.subject import SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Finding
from nightshift.detectors.contract import testing as by_hand
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


def loads(
    slow_share: float,
    wait_s: float,
    ranks: int = 2,
    step_s: float = 0.26,
    every: int = 0,
    busy: float | None = 31.0,
) -> list[Finding]:
    """Five minutes of a job whose rank 1 waits for its loader in some steps, at random or every so many; `busy`:
    its GPU's utilisation, beside 93 % of the others that spin meanwhile."""
    draw, detector, known = np.random.default_rng(3), Straggler(), by_hand.inventory(ranks)
    found: list[Finding] = []
    step, late_s = 0, 0.0
    for look in range(60):
        at_s = by_hand.START_S + 5.0 * look
        times: list[float] = []
        while late_s < 5.0:
            slow = step % every == 0 if every else draw.random() < slow_share
            times.append(step_s + wait_s * slow)
            late_s, step = late_s + times[-1], step + 1
        late_s -= 5.0
        first, count = step - len(times), len(times)
        when = [at_s - 5.0 + 5.0 * (k + 1) / count for k in range(count)]
        series = [
            by_hand.steps(
                by_hand.rank(r),
                first,
                when,
                {
                    "compute_s": 0.25 + draw.normal(0.0, 0.002, count),
                    "data_s": [0.01 + (took - step_s) * (r == 1) for took in times],
                },
            )
            for r in range(ranks)
        ]
        rows = {r: {"gpu_utilization_percent": busy if r == 1 else 93.0} for r in range(ranks)} if busy else None
        found += detector.update(by_hand.tick(at_s, rows, series=series), known)
    return found


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("busy", [31.0, None])
def test_a_loader_that_is_slow_now_and_then_is_named_by_what_the_job_loses(ranks: int, busy: float | None) -> None:
    """One step of seven takes six times as long: no median moves, and the job loses 40 % of its time."""
    found = loads(0.135, 1.3, ranks, busy=busy)
    assert {f.subject for f in found} == {by_hand.rank(1)}
    assert found[0].at.t_s - by_hand.START_S <= 300.0
    assert 0.3 < float(found[-1].facts["lost_share"]) < 0.5
    assert found[-1].facts["resource"] == "data"


def test_a_loader_that_is_seldom_slow_is_named_within_four_minutes() -> None:
    """One step of twelve takes twenty times as long; its rank has all of these steps before chance is ruled out."""
    found = loads(0.08, 6.0, step_s=0.33, busy=None)
    assert {f.subject for f in found} == {by_hand.rank(1)}
    assert found[0].at.t_s - by_hand.START_S <= 240.0


@pytest.mark.parametrize(
    ("every", "busy"), [(40, None), (50, 31.0), (10, 93.0)], ids=["evaluation", "checkpoint", "often, GPU at work"]
)
def test_what_one_rank_does_for_all_is_no_slow_loader(every: int, busy: float | None) -> None:
    """It evaluates or saves every so many steps, and its data time holds that."""
    assert loads(0.0, 1.3, every=every, busy=busy) == []


def test_a_job_that_tells_only_every_tenth_of_its_slow_steps_has_its_straggler_named() -> None:
    """The newest steps are counted as they are told: of 36 step numbers it tells four."""
    detector, names = Straggler(), [by_hand.rank(r) for r in range(4)]
    found: list[Finding] = []
    for look in range(120):
        at_s = by_hand.START_S + 10.0 * look
        took = {r: [1.3 if r == 2 else 1.0] for r in range(4)}
        series = [by_hand.steps(names[r], 10 * look, [at_s], {"compute_s": took[r]}) for r in took]
        found += detector.update(by_hand.tick(at_s, series=series), HealthyFleet().inventory())
    assert {finding.subject for finding in found} == {names[2]}
