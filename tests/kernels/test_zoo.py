"""The zoo of public models: who is wrong leaves, what is measured is told with its interval, killed runs go on."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.kernels_zoo import WAYS, interval, summary
from benchmarks.zoo_models import MODELS, Truth, wrong


def trained(scale: float = 1.0) -> nn.Module:
    """A layer with the gradient of its output's sum; scale: what is wrong of its weight's gradient."""
    torch.manual_seed(0)
    layer = nn.Linear(16, 4)
    layer(torch.ones(2, 16)).square().sum().backward()
    assert layer.weight.grad is not None
    layer.weight.grad *= scale
    return layer


def truth() -> Truth:
    return Truth(10.147, {name: p.grad.clone() for name, p in trained().named_parameters() if p.grad is not None})


def test_a_contestant_with_another_gradient_or_loss_leaves_the_race() -> None:
    """Eager is the yardstick; a loss of 4,104 where 10.147 is right was once trained without a word."""
    known = truth()
    assert wrong(known, 10.148, trained(1.01))[0] == ""  # eager in bf16, off by a hundredth
    assert wrong(known, 10.147, trained(1.015))[0] == ""
    assert wrong(known, 10.147, trained(1.1))[0].startswith("weight: gradient differs by")
    assert wrong(known, 4104.0, trained())[0] == "loss 4104, in float32 10.147"
    assert "loss nan" in wrong(known, float("nan"), trained())[0]


def test_a_gradient_that_is_missing_or_not_finite_is_wrong_for_eager_too() -> None:
    layer = trained()
    layer.bias.grad = None  # type: ignore[union-attr]
    assert wrong(truth(), 10.147, layer)[0] == "bias: no gradient"
    assert wrong(truth(), 10.147, trained(float("inf")))[0].startswith("weight: gradient differs by inf")


def test_an_interval_is_of_the_median_by_order_statistics() -> None:
    """Of twelve the third and the tenth: P(fewer than three of twelve coins) is 1.9 %, than four 7.3 %."""
    assert interval([float(n) for n in range(1, 13)]) == (3.0, 6.5, 10.0)
    assert interval([3.0, 1.0, 2.0]) == (1.0, 2.0, 3.0)


def _contestant(ratio: float) -> dict[str, Any]:
    return {"eager_over_it": [ratio, ratio, ratio], "peak_bytes": 2**30}


def test_the_summary_counts_nothing_applied_as_one_and_tells_who_was_left_out(tmp_path: Path) -> None:
    left = {"left_out": "NothingKeptError: the canary keeps nothing: as without the file"}
    raced = {
        "eager": _contestant(1.0),
        "compile": _contestant(1.2),
        "ours": _contestant(1.1),
        "ours + compile": left,
    }
    patched = {"eager": _contestant(1.0), "liger": _contestant(1.4), "liger + compile": {"left_out": "wrong: loss"}}
    (tmp_path / "llama3.race.json").write_text(json.dumps({"contestants": raced}))
    (tmp_path / "llama3.liger.json").write_text(json.dumps({"contestants": patched}))
    told = summary(tmp_path)["models"]["llama3"]
    assert told["best_without"] == "liger"
    assert told["best_with_over_best_without"] == 1.0
    assert told["best_ours_over_best_without"] == pytest.approx(1.1 / 1.4)
    assert told["ours_over_same_mode"] == {"ours": 1.1}
    assert set(told["left_out"]) == {"ours + compile", "liger + compile"}
    assert not WAYS["liger"].ours


@pytest.mark.full
@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs transformers")
@pytest.mark.parametrize("name", MODELS)
def test_every_model_runs_tiny_on_a_cpu_and_a_second_call_has_nothing_to_do(name: str, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "benchmarks.kernels_zoo", "--tiny", "--device", "cpu", "--only", name]
    words += ["--parts", "race", "--contestants", "compile", "--out", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads((tmp_path / f"{name}.race.json").read_text())
    assert told["done"]
    for one in told["contestants"].values():
        assert "left_out" not in one
        assert one["check"]["gradients"] == one["check"]["of"] > 0
    again = subprocess.run(words, capture_output=True, text=True, check=False, timeout=100)
    assert "begins" not in again.stdout
