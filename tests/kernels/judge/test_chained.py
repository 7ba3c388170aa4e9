"""Events that a kernel forged are told by the judge's clock over calls queued back to back, small kernels too."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from nightshift.kernels.judge.launch_plan import Plan
from nightshift.kernels.judge.race.contest import QUICK, Race
from nightshift.kernels.judge.race.contestants import Replayed
from nightshift.kernels.judge.race.timing import Board
from nightshift.kernels.judge.verdict import Reason, Refusal

_MESSAGE_S, _SPOIL_S = 150e-6, 2e-6


class Replay:
    """A replay process on a clock of its own: what its calls really take, what spoiling an output takes."""

    limits = SimpleNamespace(call_s=60.0)

    def __init__(self, call_s: float, captures: bool = True, late_s: float = 0.0) -> None:
        """late_s: how long a busy host takes to see that a chain is over."""
        self.call_s, self.captures, self.late_s, self.now_s = call_s, captures, late_s, 0.0
        self.chained: list[int] = []

    def request(self, body: Mapping[str, Any], *_: object, **__: object) -> Any:
        self.now_s += _MESSAGE_S
        told: dict[str, Any] = {"ok": True}
        if body["op"] == "chain":
            told["captured"] = self.captures
            each = _SPOIL_S + (0.0 if body["empty"] else self.call_s)
            calls = body["times"] * len(body["order"]) if self.captures else 0
            self.chained.append(calls)
            self.now_s += calls * each + (0.0 if body["empty"] else self.late_s)
        elif body["op"] == "run":  # from Python: a launch takes at least what Python does
            self.now_s += len(body["order"]) * max(self.call_s, 12e-6)
        return SimpleNamespace(body=told)


class Track:
    mutates: tuple[int, ...] = ()

    def __init__(self, process: Replay, outputs: int = 1) -> None:
        self.process = process
        self.slots = [SimpleNamespace(outputs=[None] * outputs, blend=0) for _ in range(4)]
        self.checked: list[int] = []

    def to_json(self) -> list[Any]:
        return []

    def check(self, number: int) -> None:
        self.checked.append(number)


def clocks(
    told_s: float, call_s: float, captures: bool = True, blends: bool = True, late_s: float = 0.0
) -> tuple[float, Track]:
    """The judge's clock over a replay whose events say `told_s` and whose calls take `call_s`. Raises Refusal."""
    process = Replay(call_s, captures, late_s)
    track = Track(process)
    entrant = Replayed(track, Plan((), ()), 1, lambda: process.now_s, blends, random.Random(3))  # type: ignore[arg-type]
    race = Race(entrant, [], track, Board(0.0, 1, {}), QUICK, random.Random(4))  # type: ignore[arg-type]
    return race._clocks(told_s), track


@pytest.mark.parametrize("call_s", [2e-6, 8e-6, 19e-6, 120e-6, 9e-3])
def test_honest_events_are_believed(call_s: float) -> None:
    """Events hold a launch and a flushed L2, so they say somewhat more than a chained call takes."""
    found, _ = clocks(call_s + 2e-6, call_s)
    assert found == pytest.approx(call_s, rel=0.25)


@pytest.mark.parametrize(("told_s", "call_s"), [(4e-6, 12e-6), (8e-6, 19e-6), (10e-6, 20e-6), (60e-6, 120e-6)])
def test_a_kernel_that_says_half_of_its_time_is_refused(told_s: float, call_s: float) -> None:
    """Launches from Python had to be granted 40 µs each: no kernel below 20 µs could be held to its word."""
    with pytest.raises(Refusal, match="events say") as refused:
        clocks(told_s, call_s)
    assert refused.value.reason is Reason.clocks_disagree


def test_a_host_that_is_late_once_a_chain_accuses_no_candidate_and_hides_none() -> None:
    """Slow calls are few in a chain, so that five milliseconds are a third of it: the longer chain decides."""
    found, track = clocks(1.8e-3, 1.8e-3, late_s=5e-3)
    assert found == pytest.approx(1.8e-3, rel=0.2)
    assert max(track.process.chained) == 4 * min(track.process.chained)
    with pytest.raises(Refusal, match="events say"):
        clocks(1.8e-3, 2.6e-3, late_s=5e-3)


def test_the_chain_is_looked_into_and_ends_soon_whatever_the_events_say() -> None:
    """An event that says nothing at all may not hold the judge for an hour; outputs of the chain are compared."""
    with pytest.raises(Refusal, match="events say"):
        clocks(0.0, 1e-3)
    process = Replay(1e-3)
    track = Track(process)
    Replayed(track, Plan((), ()), 1, lambda: process.now_s, True, random.Random(1)).chained([0, 1, 2], 0.0)  # type: ignore[arg-type]
    assert max(process.chained) <= 4096
    assert len(track.checked) == 1


def test_what_cannot_be_captured_is_held_to_launches_from_python() -> None:
    """Coarser: forty microseconds a launch."""
    found, _ = clocks(10e-6, 20e-6, captures=False)
    assert math.isnan(found)
    with pytest.raises(Refusal, match="events say"):
        clocks(10e-6, 90e-6, captures=False)


def test_slow_calls_are_launched_from_python_a_few_times() -> None:
    """A deep convolution's 50 ms, 810 times, would hold the GPU for 40 s."""
    _, track = clocks(50e-3, 50e-3, captures=False)
    assert track.process.now_s < 6.0
    with pytest.raises(Refusal, match="events say"):
        clocks(50e-3, 120e-3, captures=False)


def test_a_search_does_not_pay_for_chains() -> None:
    """Its races certify nothing, and thousands of them are run."""
    found, track = clocks(10e-6, 20e-6, blends=False)
    assert math.isnan(found)
    assert track.process.chained == []
