"""Leaks are found at any scrape interval: buckets are as wide as the looks are apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nightshift.collectors.subject import SubjectKind
from nightshift.detectors.base import Fault, State
from nightshift.detectors.contract.world import START_S, HealthyFleet
from nightshift.detectors.memory.leak import MemoryLeak

USED, FREE = "gpu_memory_used_bytes", "gpu_memory_free_bytes"


def leaking(
    every_s: float, minutes: float, seed: int = 0, back_s: float = 0.0, after_s: float = 0.0
) -> tuple[MemoryLeak, list[tuple[float, str, str]]]:
    """One GPU of eight ranks fills by 1 GiB in ten minutes, looked at every `every_s`, a second early or late.

    After `after_s` the clock is set back by `back_s`; what is found is told with the time that has really passed.
    """
    world, detector = HealthyFleet(), MemoryLeak()
    inventory, rng, found = world.inventory(), np.random.default_rng(seed), []
    for kind in (SubjectKind.GPU, SubjectKind.RANK, SubjectKind.POD):
        for child in inventory.subjects(kind, START_S):
            for parent in inventory.parents(child, START_S):  # as a collector says it again by the new time
                inventory.observe(child, parent, START_S - 60.0 - back_s)
    for number in range(int(60.0 * minutes / every_s)):
        at_s = START_S + number * every_s + float(rng.uniform(-1.0, 1.0))
        frame = world.frame(SubjectKind.GPU, number, at_s)
        used = 2.0**30 * max(at_s - START_S - 300.0, 0.0) / 600.0
        frame.values[0, frame.columns[USED]] += used
        frame.values[0, frame.columns[FREE]] -= used
        told_s = at_s - back_s * (at_s >= START_S + after_s)
        frame = replace(frame, at_s=told_s)
        tick = replace(world.tick(number), at_s=told_s, frames={SubjectKind.GPU: frame}, steps=())
        for finding in detector.update(tick, inventory):
            if finding.state is State.FIRING:
                found.append((at_s - START_S, finding.subject.name, str(finding.facts["test"])))
                assert finding.fault is Fault.GPU_MEMORY_LEAK
    return detector, found


@pytest.mark.parametrize("every_s", [5.0, 15.0, 30.0, 60.0])
def test_the_test_against_peers_names_the_leak_within_the_hour(every_s: float) -> None:
    """At a minute between looks it takes longer than at five seconds, and is found all the same."""
    detector, found = leaking(every_s, 60.0)
    assert found
    assert {(name, test) for _, name, test in found} == {("GPU-0", "contrast")}
    assert found[0][0] < 900.0 + 15.0 * max(every_s, 20.0)
    signal = detector._signals[0]
    window = signal.contrast.window(signal.table)
    assert np.isfinite(window[:, -8:]).all()


@pytest.mark.parametrize("after_s", [240.0, 480.0])
@pytest.mark.parametrize("back_s", [45.0, 600.0, 86400.0])
def test_a_clock_that_is_set_back_delays_no_alarm(back_s: float, after_s: float) -> None:
    """Before the leak and in its midst: it was told when the clock was as late again, after a day a day later."""
    _, straight = leaking(15.0, 40.0)
    detector, found = leaking(15.0, 40.0, back_s=back_s, after_s=after_s)
    assert {(name, test) for _, name, test in found} == {("GPU-0", "contrast")}
    assert found[0][0] <= straight[0][0] + 60.0
    times_s = detector._signals[0].contrast.times_s()
    assert abs(times_s[-1] - (START_S + 2400.0 - back_s)) < 60.0


def test_a_change_of_pace_forgets_buckets_of_another_width_and_survives_a_snapshot() -> None:
    """The width is part of the state: restored, the detector goes on in the same buckets."""
    detector, _ = leaking(60.0, 30.0)
    resumed = MemoryLeak()
    resumed.restore(detector.snapshot())
    for before, after in zip(detector._signals, resumed._signals, strict=True):
        assert after.contrast.width_s == before.contrast.width_s
        assert after.looked_s == before.looked_s
    assert detector._signals[0].contrast.width_s == 80.0
    assert detector._signals[0].patience.width_s == 300.0
