"""`nightshift learn` makes a model of recordings that the multivariate detector takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from nightshift.collectors.recording import RecordingWriter
from nightshift.collectors.subject import Inventory
from nightshift.detectors.outliers.density import load
from nightshift.detectors.outliers.multivariate import Multivariate, MultivariateSettings
from tests.agent.forks import nightshift
from tests.detectors.test_multivariate import METRICS, gpu, healthy


def test_a_recording_becomes_a_model_that_a_daemon_can_be_told_of(tmp_path: Path) -> None:
    """Only the GPUs of the named kind; too little and unknown metrics are one sentence each."""
    pytest.importorskip("sklearn", reason="learning needs scikit-learn")
    path, model = tmp_path / "well.jsonl.gz", tmp_path / "model.json"
    writer, inventory = RecordingWriter(path, 5.0), Inventory()
    for number in range(8):
        inventory.describe(gpu(number), model="NVIDIA H200" if number < 6 else "NVIDIA A100")
    for tick in healthy(1500, 1):
        writer.add(tick, inventory)
    writer.close()
    arguments = ("learn", str(path), "--sku", "H200", "-o", str(model))
    done = nightshift(*arguments, "--metrics", ",".join(METRICS))
    assert done.returncode == 0, done.stderr
    assert "GPU-days" in done.stdout
    assert load(model).sku == "H200"
    assert Multivariate(MultivariateSettings(model=str(model))).threshold > load(model).tail.threshold
    for wrong, words in ((("--metrics", "gpu_colour"), "gpu_colour"), ((), "looks to train on")):
        done = nightshift(*arguments, *wrong)
        assert done.returncode == 2, done.stderr
        assert words in " ".join(done.stderr.split())
