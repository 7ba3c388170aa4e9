"""Tails are fitted on what loosened detectors say of healthy telemetry, and hold on series that they never saw."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.collectors.frame import Frame, SeriesIndex
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.alarms.budget import DAY_S, Budget, BudgetSettings
from nightshift.detectors.alarms.calibration import (
    CalibrationError,
    LooseAlarms,
    fitted,
    listen,
    load,
    loosened,
    save,
    tail_of,
)
from nightshift.detectors.alarms.promise import Graded, promises
from nightshift.detectors.alarms.tail import Tail, calibrated
from nightshift.detectors.base import RateBasis
from nightshift.detectors.contract.world import HealthyFleet
from nightshift.detectors.memory.leak import MemoryLeak
from nightshift.detectors.plugins import ALL

CLIMBS = 40


def gpu(number: int) -> Subject:
    return Subject(SubjectKind.GPU, f"GPU-{number}")


def test_every_statistical_detector_is_graded_or_brings_its_own_calibration() -> None:
    """None states a statistical rate whose threshold nobody can move."""
    statistical = [kind for kind in ALL if kind().stated.basis is RateBasis.STATISTICAL]
    assert len(statistical) == 9
    # it says ANOMALY, which is watched and opens nothing by itself
    watched = {"local_gradients"}
    assert {kind.plugin for kind in statistical if not hasattr(kind, "LOOSE")} == watched
    assert all(isinstance(kind(), Graded) and 0 < kind.LOOSE < 1 for kind in statistical if hasattr(kind, "LOOSE"))


def climbing(count: int, hours: int, seed: int) -> list[Tick]:
    """GPUs that fill, each for a while and to a level of its own, and stay there: no leak, however alike."""
    rng = np.random.default_rng(seed)
    minutes = np.arange(hours * 60)
    begins, ends = rng.uniform(120, 400, count), rng.uniform(0.05, 0.5, count)
    lasts = rng.uniform(200, 500, count)
    share = 0.2 + ends * np.clip((minutes[:, None] - begins) / lasts, 0.0, 1.0)
    share += 0.001 * rng.standard_normal(share.shape)
    index = SeriesIndex(SubjectKind.GPU, tuple(gpu(n) for n in range(count)))
    found = []
    for minute in minutes.tolist():
        at_s = 1e9 + 60.0 * minute
        used = 80e9 * share[minute]
        values, seen = np.column_stack([used, 80e9 - used]), np.full((1, 2), at_s)
        names = ("gpu_memory_used_bytes", "gpu_memory_free_bytes")
        frame = Frame(at_s, index, names, values, seen, np.zeros(count, dtype=np.int64))
        found.append(Tick(at_s, {SubjectKind.GPU: frame}))
    return found


@pytest.mark.full
def test_a_tail_of_some_series_bounds_the_alarms_of_others_at_any_granted_rate() -> None:
    """Fitted on 40 series, counted on 40 others of the same kind: never more than twice what was granted."""
    heard = listen(loosened([MemoryLeak]), climbing(CLIMBS, 14, 1), Inventory())
    tail = fitted(heard, "test")["memory_leak"]
    assert tail.episodes >= 20
    assert tail.series_days == pytest.approx(CLIMBS * (14 * 60 - 1) / 1440, rel=1e-6)
    others = climbing(CLIMBS, 14, 2)
    for share in (0.8, 0.5, 0.2):
        rate = share * tail.rate_per_1000
        detector = MemoryLeak(MemoryLeak.Settings(strength=tail.score(rate)))
        episodes = {f.episode for tick in others for f in detector.update(tick, Inventory())}
        assert len(episodes) <= 2.0 * rate / 1000.0 * tail.series_days
        assert episodes or share < 0.5


@given(st.lists(st.integers(0, 5), min_size=4, max_size=30), st.floats(0.1, 30.0))
@settings(max_examples=60, deadline=None)
def test_the_rate_is_never_below_what_was_seen_and_falls_with_the_score(counts: list[int], days: float) -> None:
    """One episode more than were seen, over the days that were watched; none is not never."""
    rng = np.random.default_rng(len(counts))
    peaks = {gpu(n): (0.2 + rng.exponential(0.3, count)).tolist() for n, count in enumerate(counts)}
    tail = tail_of(peaks, {gpu(n): days for n in range(len(counts))}, 0.2, "test")
    assert tail.rate_per_1000 >= 1000.0 * (sum(counts) + 1) / (days * len(counts)) * (1 - 1e-9)
    rates = [tail.rate(score) for score in (0.1, 0.2, 1.0, 3.0, 30.0)]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] > 0
    if sum(counts) < 10:
        assert tail.shape >= 0.25


def test_a_file_is_taken_back_and_a_broken_one_is_named(tmp_path: Path) -> None:
    """What is written is read; what is no calibration says where it is wrong, and nothing is half read."""
    path = tmp_path / "own.json"
    tails = {"hang": Tail(0.1, 5.0, 0.1, 0.25, 3, 700.0, "test")}
    save(path, tails)
    assert load(path) == tails
    for text in ("", "[]", '{"hang": {}}', '{"hang": {"threshold": 1}}', path.read_text().replace("5.0", "NaN")):
        path.write_text(text)
        with pytest.raises(CalibrationError, match=r"own\.json"):
            load(path)
    with pytest.raises(CalibrationError, match="gone"):
        load(tmp_path / "gone.json")


def test_own_telemetry_turns_claims_into_promises_that_can_be_made_stricter() -> None:
    """With a tail of one's own, a detector states its rate and weak alarms cost more than strong ones."""
    own = {"hang": Tail(0.1, 400.0, 0.1, 0.25, 12, 900.0, "own"), "xid": Tail(0.1, 1.0, 0.1, 0.0, 1, 1.0, "no")}
    detectors = [kind() for kind in ALL]
    told = promises(detectors, own)
    assert told["hang"].tail == own["hang"]
    assert told["hang"].per_1000_series_days == pytest.approx(own["hang"].rate(1.0))
    assert told["xid"].tail is None
    assert told["stall"] == next(d for d in detectors if d.name == "stall").stated
    lines = {line.detector: line for line in Budget(BudgetSettings(), told).lines()}
    assert lines["hang"].basis_word == "measured"
    assert lines["stall"].basis_word == "learning"
    assert lines["ecc"].basis_word == "bound"


def test_the_shipped_calibration_is_of_real_days_and_says_of_which() -> None:
    """Only what was watched for days has a tail, and the detector states its rate where it alarms."""
    tail = calibrated("memory_leak")
    assert tail is not None
    assert tail.series_days > 100
    assert "Alibaba" in tail.source
    assert MemoryLeak().stated.per_1000_series_days == pytest.approx(tail.rate(1.0))
    assert calibrated("hang") is None


def test_days_are_counted_of_what_was_seen_only() -> None:
    """A row of NaN is no series-day, neither is a gap of hours, nor a rank that does not step."""
    world = HealthyFleet(gpus=2)
    ticks = [world.tick(number) for number in (0, 12, 24)]
    blind = ticks[2].frames[SubjectKind.GPU]
    blind.values[0] = np.nan
    late = world.tick(5000)
    heard = listen(loosened(ALL), [*ticks, late], world.inventory())
    assert heard["throttle"].days[world.gpus[0]] == pytest.approx(60.0 / DAY_S)
    assert heard["throttle"].days[world.gpus[1]] == pytest.approx(120.0 / DAY_S)
    assert heard["hang"].days[world.ranks[0]] == pytest.approx(120.0 / DAY_S)
    assert sum(heard["memory_leak"].days.values()) == pytest.approx(420.0 / DAY_S)
    with pytest.raises(CalibrationError):
        tail_of({}, {}, 0.2, "nothing")
    assert fitted({"serving": LooseAlarms(0.1)}, "nothing") == {}
