"""Detectors' states are written by size: small ones each minute, large ones less often, with a finding at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from nightshift.agent.clock import SteppedClock
from nightshift.agent.correlation import watch as watch_module
from nightshift.agent.correlation.collection import Collection
from nightshift.agent.correlation.detection import Detection
from nightshift.agent.correlation.watch import FORGET_AT_MOST_S, Watch
from nightshift.agent.metrics import Metrics
from nightshift.agent.store.incident_store import Store
from nightshift.collectors.frame import Instant
from nightshift.collectors.history import History
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Fault, Finding, RateBasis, Severity, State, StatedRate

START_S, LOOK_S = 1.79e9, 60.0


class Heavy:
    """A detector with a state of a size, which finds something at one look."""

    stated = StatedRate(0.0, RateBasis.EVENT, "a test")
    faults = (Fault.XID,)

    def __init__(self, name: str, size: float, finds_s: float = -1.0) -> None:
        self.name, self._state, self._finds_s = name, b"x" * int(size), finds_s
        self.written = 0

    def update(self, tick: Tick, inventory: Inventory) -> list[Finding]:
        if tick.at_s != self._finds_s:
            return []
        at, node = Instant(tick.at_s), Subject(SubjectKind.NODE, "n1")
        return [Finding(self.name, Fault.XID, node, State.FIRING, at, at, Severity.WARNING, "x", 1e15, 1.0)]

    def snapshot(self) -> bytes:
        self.written += 1
        return self._state

    def restore(self, state: bytes) -> None: ...


PER_S, A_LOOK = 1_000.0, 200_000
"""In place of the daemon's own, which would make the test write gigabytes."""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr(watch_module, "STATE_BYTES_PER_S", PER_S)
    monkeypatch.setattr(watch_module, "STATE_BYTES_A_LOOK", A_LOOK)
    made = Store(f"sqlite:///{tmp_path}/s.db", SteppedClock(START_S))
    yield made
    made.close()


def watch(store: Store, *detectors: Heavy) -> Watch:
    metrics = Metrics("test")
    made = Watch(Collection([], 1.0), Detection(detectors, metrics), store, History(), Inventory(), metrics)
    made.resume(START_S)
    return made


def test_a_large_state_is_written_less_often_and_a_finding_writes_its_own(store: Store) -> None:
    small, large = Heavy("small", 1_000), Heavy("large", 235 * PER_S)
    finder = Heavy("finder", 400 * PER_S, finds_s=START_S + 7 * LOOK_S)
    running = watch(store, small, large, finder)
    for look in range(1, 13):
        before = Counter({d.name: d.written for d in (small, large, finder)})
        running.look(START_S + look * LOOK_S)
        after = Counter({d.name: d.written for d in (small, large, finder)})
        if look == 7:
            assert after["finder"] > before["finder"]
            assert after["large"] == before["large"]
    assert small.written == 12
    assert large.written == 3, "looks 1 or 2, and every fourth after it"
    kept = store.recall("detector/finder")
    assert kept is not None
    running.keep()
    assert large.written == 4, "a stop writes everything"


def test_large_states_do_not_all_come_in_one_look_and_none_is_put_off_for_ever(store: Store) -> None:
    heavy = [Heavy(f"d{n}", A_LOOK) for n in range(3)]
    running = watch(store, *heavy)
    counts = []
    for look in range(1, 1 + int(FORGET_AT_MOST_S // LOOK_S)):
        running.look(START_S + look * LOOK_S)
        counts.append(sum(d.written for d in heavy))
    assert counts[:3] == [1, 2, 3]
    assert min(d.written for d in heavy) >= len(counts) // 3 - 1


def test_a_clock_that_was_set_back_puts_no_state_off(store: Store) -> None:
    small = Heavy("small", 10)
    running = watch(store, small)
    running.look(START_S + 10 * 86_400.0)
    running.look(START_S + 60.0)
    assert small.written == 2
