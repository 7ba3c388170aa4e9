"""The canary of a job's file keeps the set of kernels that makes the step faster, on a machine that drifts."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.kernels.apply.canary_world import NAMES, World, worlds


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Any, World]]:
    return worlds(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("gains", "kept"),
    [
        ({"rmsnorm": 0.1, "cross_entropy": 0.05, "gelu": 0.01}, set(NAMES)),
        ({"rmsnorm": 0.1, "cross_entropy": -0.05}, {"rmsnorm", "rmsnorm_backward"}),
        ({"rmsnorm": -0.1, "cross_entropy": -0.05, "gelu": -0.01}, set()),
        ({"rmsnorm": 0.0005, "cross_entropy": 0.0}, set()),
    ],
)
def test_it_keeps_what_makes_the_step_faster(world: Any, gains: dict[str, float], kept: set[str]) -> None:
    runtime, one = world(gains=gains)
    told: list[str] = []
    one.state.log = told.append
    seconds = runtime.canary(one.step, clock=one.clock)
    assert set(one.state.kernels) == kept
    assert seconds["none"] == pytest.approx(1.0)
    assert "canary keeps" in told[-1]
    if kept:
        assert seconds["gain"] == pytest.approx(1.0 / (1.0 - sum(gains[n] for n in kept & gains.keys())) - 1.0)
        said = one.state.gain
        assert said["gain_us"] == pytest.approx((seconds["none"] - seconds["kept"]) * 1e6, abs=2)
        assert 0 < said["gain_low_us"] <= said["gain_us"]
        assert said["step_us"] == round(seconds["kept"] * 1e6)
    else:
        assert one.state.gain == {}, "the log line states no gain"


def test_kernels_that_no_step_called_are_named_with_what_was_left_to_torch_and_not_kept(world: Any) -> None:
    """A set is kept whole: one in it that never ran looked like all others. A gradient's goes with its kernel."""
    runtime, one = world(gains={"rmsnorm": 0.1, "cross_entropy": 0.1}, idle=("gelu", "rmsnorm_backward"))
    told: list[str] = []
    one.state.log = told.append
    step = one.step

    def counted() -> None:
        runtime.fell_back("gelu", "transform")
        step()

    runtime.canary(counted, clock=one.clock)
    (line,) = (line for line in told if "no step called" in line)
    assert "no step called rmsnorm_backward, gelu; left to torch: gelu: transform (" in line
    assert told[-1].endswith("keeps rmsnorm, rmsnorm_backward, cross_entropy of " + ", ".join(NAMES))
    assert not any("gelu" in held for held in one.held[1:])  # and no reading is spent on it


def test_a_kernel_that_another_rank_calls_is_no_idle_one(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, one = world(gains={"rmsnorm": 0.1, "gelu": 0.1}, idle=("gelu",))
    monkeypatch.setattr(runtime, "of_all_ranks", lambda mine: [mine, {"gelu"}])
    runtime.canary(one.step, clock=one.clock)
    assert "gelu" in one.state.kernels


def test_where_a_step_calls_none_none_is_kept(world: Any) -> None:
    """Not even one that chance would have."""
    runtime, one = world(gains=dict.fromkeys(NAMES, 0.1), idle=NAMES)
    seconds = runtime.canary(one.step, clock=one.clock)
    assert not one.state.kernels
    assert set(seconds) == {"all"}


def test_small_gains_that_no_single_reading_shows_are_kept_together(world: Any) -> None:
    """Three kernels of 1 % each under a noise of 0.5 %: leave-one-out readings contradict each other."""
    kept = 0
    for seed in range(40):
        runtime, one = world(
            gains=dict.fromkeys(("rmsnorm", "cross_entropy", "gelu"), 0.01), noise=0.005, seed=seed
        )
        runtime.canary(one.step, clock=one.clock)
        kept += sum(one.state.kernels.keys() >= {name} for name in ("rmsnorm", "cross_entropy", "gelu"))
    assert kept >= 0.8 * 3 * 40


def test_noise_alone_seldom_keeps_anything(world: Any) -> None:
    found = 0
    for seed in range(200):
        runtime, one = world(gains={}, noise=0.01, seed=seed)
        runtime.canary(one.step, clock=one.clock)
        found += bool(one.state.kernels)
    assert found <= 0.08 * 200  # 5 % by right, and what 200 draws allow above it


def test_a_machine_that_warms_up_neither_hides_nor_makes_a_gain(world: Any) -> None:
    """The step gets a fifth slower from the first reading to the last."""
    runtime, one = world(gains={"rmsnorm": 0.05, "gelu": -0.05}, drift=0.0002)
    runtime.canary(one.step, clock=one.clock)
    assert {"rmsnorm"} <= one.state.kernels.keys()
    assert "gelu" not in one.state.kernels
    runtime, one = world(gains={}, drift=0.0002)
    runtime.canary(one.step, clock=one.clock)
    assert not one.state.kernels


def test_a_kernel_that_breaks_the_step_is_left_out(world: Any) -> None:
    runtime, one = world(gains={"rmsnorm": 0.1}, breaks="gelu")
    seconds = runtime.canary(one.step, clock=one.clock)
    assert math.isinf(seconds["all"])
    assert "rmsnorm" in one.state.kernels
    assert "gelu" not in one.state.kernels


def test_a_step_that_broke_off_leaves_no_gradients_behind(world: Any) -> None:
    """The next backward pass would add to them; those of a CUDA graph lie where there is no memory any more."""
    runtime, one = world(gains={}, breaks="gelu")
    model = torch.nn.Linear(2, 2)
    one.state.models.add(model)
    seen: list[bool] = []

    def step() -> None:
        seen.append(model.weight.grad is not None)
        model(torch.ones(1, 2)).sum().backward()
        one.step()
        model.zero_grad()

    runtime.canary(step, clock=one.clock)
    assert seen
    assert not any(seen)


def test_a_lost_context_ends_the_canary_and_names_the_kernels(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, one = world(gains={}, breaks="gelu")

    def wait() -> None:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(runtime, "_wait", lambda: wait() if "gelu" in one.state.kernels else None)
    with pytest.raises(RuntimeError, match=r"gelu lost the GPU's context .*illegal.*: apply without them"):
        runtime.canary(one.step, clock=one.clock)


def test_a_table_for_one_launch_keeps_no_gradient_alive(world: Any) -> None:
    """A CUDA graph's replay takes its gradients back; asked for their address then, torch raises."""
    runtime, _ = world(gains={})
    rows = [tuple(torch.zeros(size) for _ in range(4)) for size in (40, 20000)]
    table = runtime.ChunkTable(rows, torch.bfloat16)
    gradients = [weakref.ref(row[1]) for row in rows]
    again = [(row[0], torch.ones_like(row[1]), *row[2:]) for row in rows]
    del rows
    gc.collect()
    assert [gradient() for gradient in gradients] == [None, None]
    bases = table.bases(again)
    assert {id(base) for base in bases[:4]} <= {id(x) for row in again for x in row}
    assert table.table[:, 5].tolist() == [40, 16384, 20000 - 16384]
    assert table.table[:, 4].tolist() == [-1, -1, -1]


def test_a_table_is_placed_anew_where_gradients_lie_elsewhere(world: Any) -> None:
    """As made for them; outside of CUDA graphs they do in every step, and a whole one costs the host too much."""
    runtime, _ = world(gains={})
    sizes = (40, 20000, 7)
    rows = [tuple(torch.zeros(size) for _ in range(4)) for size in sizes]
    table = runtime.ChunkTable(rows, torch.bfloat16)
    owner = table._owner
    for count in range(3):
        room = torch.zeros(sum(sizes) + 64 * count)  # gradients among others, further apart each time
        starts = [0, 40 + 8 * count, 20040 + 64 * count]
        later = [(r[0], room[at : at + r[0].numel()], *r[2:]) for at, r in zip(starts, rows, strict=True)]
        table.place(later, runtime._addresses(later))
        assert table.table.tolist() == runtime.ChunkTable(later, torch.bfloat16).table.tolist()
        assert [id(x) for x in table.bases(later)[:4]] == [
            id(x) for x in runtime.ChunkTable(later, torch.bfloat16).bases(later)[:4]
        ]
        assert table._owner is owner
        base = min(row[1].data_ptr() for row in later)
        assert [base + 4 * begin for begin in table.table[:, 1].tolist()] == [
            room.data_ptr() + 4 * at for at in (0, starts[1], starts[1] + 16384, starts[2])
        ]


def test_a_step_that_torch_alone_does_not_run_is_told(world: Any) -> None:
    runtime, one = world(gains={})

    def step() -> None:
        if not one.state.kernels:
            raise RuntimeError("out of memory")
        one.step()

    with pytest.raises(RuntimeError, match="out of memory"):
        runtime.canary(step, clock=one.clock)


def test_it_keeps_to_its_time(world: Any) -> None:
    """With little of it fewer groups are tried alone, and those that were not stay in the sets."""
    runtime, one = world(gains={"rmsnorm": 0.1, "gelu": 0.05})
    whole = runtime.canary(one.step, clock=one.clock)
    long_s = one.now
    runtime, one = world(gains={"rmsnorm": 0.1, "gelu": 0.05})
    short = runtime.canary(one.step, limit_s=0.6 * long_s, clock=one.clock)
    assert "without cross_entropy" in whole
    assert not any(label.startswith("without") for label in short)
    assert one.now < 0.85 * long_s
    assert one.state.kernels.keys() == set(NAMES)


@pytest.mark.parametrize("names", [(), ("gelu",)])
@pytest.mark.parametrize("gain", [0.1, -0.05])
def test_what_passes_change_without_a_kernel_is_on_trial_as_well(
    world: Any, names: tuple[str, ...], gain: float
) -> None:
    runtime, one = world(names, gains={"gelu": 0.03, "passes": gain})
    seconds = runtime.canary(one.step, clock=one.clock)
    assert one.state.passing == (gain > 0)
    assert set(one.state.kernels) == set(names)
    assert seconds["none"] == pytest.approx(1.0)


def test_nothing_to_try_keeps_nothing(world: Any) -> None:
    runtime, one = world(names=(), gains={})
    assert runtime.canary(one.step, clock=one.clock).keys() == {"all"}  # whether passes have a part, a step shows
