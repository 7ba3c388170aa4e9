"""A learnt model finds combinations that no class of workload has, and only where it knows the GPU."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from nightshift.collectors.seal import fingerprint
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Fault, SnapshotError, State
from nightshift.detectors.contract.testing import START_S, changes, gpu, inventory, tick
from nightshift.detectors.outliers.density import BUILT_IN, Density, ModelError, find, load
from nightshift.detectors.outliers.learning import LearningError, LearningPlan, episodes, learn, looks
from nightshift.detectors.outliers.multivariate import Multivariate, MultivariateSettings

METRICS = ("gpu_utilization_percent", "gpu_power_w")
PLAN = LearningPlan("H200", METRICS, look_s=10.0, persist=3, settle=10)


def draw(rng: np.random.Generator, busy: bool) -> dict[str, float]:
    """Two classes: work (power follows utilisation) and idling."""
    util = float(np.clip(rng.normal(85.0, 6.0), 0, 100)) if busy else float(abs(rng.normal(0.0, 1.0)))
    return dict(zip(METRICS, (util, 110.0 + 6.0 * util + float(rng.normal(0.0, 12.0))), strict=True))


def healthy(count: int, seed: int, gpus: int = 8, from_tick: int = 0) -> list[Tick]:
    rng = np.random.default_rng(seed)
    return [
        tick(START_S + 5.0 * n, {g: draw(rng, (n // 100 + g) % 3 != 0) for g in range(gpus)})
        for n in range(from_tick, from_tick + count)
    ]


@pytest.fixture(scope="module")
def model() -> Density:
    pytest.importorskip("sklearn", reason="learning needs scikit-learn")
    return learn(looks(healthy(3000, 1), PLAN), PLAN, "a made fleet")


def known(model_name: str = "NVIDIA H200") -> Inventory:
    fleet = inventory()
    for number in range(8):
        fleet.describe(gpu(number), model=model_name)
    return fleet


def odd(from_tick: int, count: int, seed: int = 7) -> list[Tick]:
    """GPU 3 says that it works and draws what an idle one does: each value is usual, the pair is not."""
    rng = np.random.default_rng(seed)
    ticks = []
    for n in range(from_tick, from_tick + count):
        rows = {g: draw(rng, True) for g in range(8)}
        rows[3]["gpu_power_w"] = 115.0 + float(rng.normal(0.0, 3.0))
        ticks.append(tick(START_S + 5.0 * n, rows))
    return ticks


def test_a_combination_that_no_class_has_is_found_named_and_cleared(model: Density) -> None:
    """One episode on the one GPU, with the metric that is furthest off, a p-value and what is usual."""
    ticks = healthy(200, 2) + odd(200, 60) + healthy(100, 3, from_tick=260)
    found = changes(Multivariate(density=model), ticks, known())
    assert [(f.state, f.subject) for f in found] == [(State.FIRING, gpu(3)), (State.CLEAR, gpu(3))]
    first = found[0]
    assert first.fault is Fault.ANOMALY
    assert first.score >= first.threshold
    assert first.p_value is not None
    assert 0 < first.p_value < 0.01
    assert {"gpu_power_w", "usual_gpu_power_w"} <= set(first.facts)
    assert first.at.t_s - START_S - 1000 <= 60


def test_a_made_fleet_that_is_well_is_silent(model: Density) -> None:
    """Fresh draws, all GPUs, two hours."""
    assert changes(Multivariate(density=model), healthy(1500, 11), known()) == []


def test_another_kind_of_gpu_a_new_pod_and_no_model_are_not_judged(model: Density) -> None:
    """Another SKU; the same change on a GPU that was handed to another pod meanwhile; the default settings."""
    ticks = healthy(200, 2) + odd(200, 60)
    assert changes(Multivariate(density=model), ticks, known("NVIDIA A100")) == []
    handed = known()
    pod = Subject(SubjectKind.POD, "ml/other-0")
    handed.end(gpu(3), Subject(SubjectKind.POD, "ml/train-3"), START_S + 1000)
    handed.observe(gpu(3), pod, START_S + 1000)
    assert changes(Multivariate(density=model), ticks, handed) == []
    assert changes(Multivariate(), ticks, known()) == []


def test_a_gpu_is_judged_only_after_it_looked_usual(model: Density) -> None:
    """Odd from the first look on: a workload that the model does not know, not a fault."""
    assert changes(Multivariate(density=model), odd(0, 300), known()) == []


def test_missing_metrics_are_no_data_while_firing(model: Density) -> None:
    blind = [tick(START_S + 5.0 * n, {3: {"gpu_power_w": 115.0}}) for n in range(260, 400)]
    found = changes(Multivariate(density=model), healthy(200, 2) + odd(200, 60) + blind, known())
    assert [f.state for f in found] == [State.FIRING, State.NO_DATA]


def test_the_threshold_follows_the_stated_rate(model: Density) -> None:
    """A rarer alarm has to be stronger; the stated rate is never more than was measured."""
    rates = (1000.0, 10.0, 0.1)
    thresholds = [Multivariate(MultivariateSettings(rate_per_1000=r), model).threshold for r in rates]
    assert thresholds == sorted(thresholds)
    assert thresholds[0] < thresholds[2]
    loose = Multivariate(MultivariateSettings(rate_per_1000=1e9), model).stated
    assert loose.per_1000_series_days == model.tail.rate_per_1000


def test_calibration_counts_the_episodes_that_the_detector_calls(model: Density) -> None:
    """The offline count and the detector, at the same threshold, agree on a stream with three odd stretches."""
    ticks = healthy(200, 2)
    for n in range(3):
        ticks += odd(200 + 160 * n, 60, seed=n) + healthy(100, 20 + n, from_tick=260 + 160 * n)
    usual = model.tail.threshold
    rows = looks(ticks, PLAN)[gpu(3)]
    offline = episodes(model.score(rows)[0], usual, PLAN.persist, PLAN.settle)
    detector = Multivariate(MultivariateSettings(rate_per_1000=1e12), model)
    began = [f for f in changes(detector, ticks, known()) if f.state is State.FIRING and f.subject == gpu(3)]
    assert len(began) == len(offline) >= 3


def test_a_model_is_json_and_a_broken_one_is_named(model: Density, tmp_path: Path) -> None:
    """Saved and loaded it scores the same; no pickle; every defect is one sentence with the file."""
    path = tmp_path / "m.json"
    model.save(path)
    x = np.array([[85.0, 620.0], [0.0, 600.0]])
    assert np.array_equal(load(path).score(x)[0], model.score(x)[0])
    assert path.read_bytes()[:1] == b"{"
    text = path.read_text()
    broken = [
        "",
        "[]",
        "{}",
        "[" * 100_000,
        text.replace('"version": 2', '"version": 1'),
        text.replace('"means"', '"x"'),
    ]
    for one in (*(b.encode() for b in broken), pickle.dumps(vars(model)), b"PK\x03\x04"):
        path.write_bytes(one)
        with pytest.raises(ModelError, match=r"m\.json"):
            load(path)
    assert find("h200").source == load(BUILT_IN / "h200.json").source


def test_a_model_that_was_changed_is_refused_whatever_was_changed(model: Density, tmp_path: Path) -> None:
    """Every field, changed in the file: the digest tells. With a new digest, what cannot be is told by name."""
    path = tmp_path / "m.json"
    model.save(path)
    told = json.loads(path.read_text())
    for name, value in told.items():
        for other in (None, 7, "x", [], {}, [value]):
            if other != value:
                path.write_text(json.dumps({**told, name: other}))
                with pytest.raises(ModelError, match=r"m\.json"):
                    load(path)
    absurd = {
        "sku": "", "metrics": ["gpu_power_w", "gpu_power_w"], "look_s": 0, "persist": 10**9, "settle": True,
        "weights": [2.0] + [1.0] * (len(told["weights"]) - 1), "highest": told["highest"][::-1] or [2.0, 1.0],
        "whiten": np.zeros(np.shape(told["whiten"])).tolist(), "scale": [0.0, 1.0], "scored": 1.5,
        "tail": {**told["tail"], "scale": 0.0}, "centre": [1.0],
    }  # fmt: skip
    del told["digest"]
    for name, value in absurd.items():
        forged = {**told, name: value}
        path.write_text(json.dumps({**forged, "digest": fingerprint(forged)}))
        with pytest.raises(ModelError, match=name):
            load(path)


def test_a_state_of_another_model_is_refused(model: Density) -> None:
    """Its columns are other metrics'."""
    with pytest.raises(SnapshotError):
        Multivariate(density=model).restore(Multivariate.for_check().snapshot())


def test_too_little_to_learn_from_is_said() -> None:
    pytest.importorskip("sklearn", reason="learning needs scikit-learn")
    with pytest.raises(LearningError, match="looks to train on"):
        learn(looks(healthy(20, 1), PLAN), PLAN, "little")
