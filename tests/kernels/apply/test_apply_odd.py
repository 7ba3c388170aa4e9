"""The job's file in jobs that do more with their models than call them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kernels.apply.applied_records import every_record
from tests.kernels.apply.test_apply import run

pytestmark = pytest.mark.full  # each starts a job of its own with torch

SCRIPT = Path(__file__).parent / "applied_odd.py"


def test_a_module_is_asked_without_a_trace_and_hooks_within_a_block_hear_of_its_calls(tmp_path: Path) -> None:
    """No hook of the job's hears of the question, no random number is used up; TorchScript is left alone."""
    seen = run("asked", tmp_path, every_record(), script=SCRIPT)
    assert seen["silent"]
    assert seen["applied"] == ["fused_mlp", "layernorm", "linear_gelu", "rmsnorm", "swiglu"]
    assert seen["equal"]
    assert seen["heard"] == ["norm", "block.act", "block", "plain.1"]


def test_a_module_that_cannot_be_asked_does_not_stop_the_job(tmp_path: Path) -> None:
    seen = run("unready", tmp_path, every_record(), script=SCRIPT)
    told = [["0", "cannot be asked"], ["2", "cannot be asked"]]
    assert seen == {"applied": ["1"], "skipped": told, "shape": [6, 64]}


def test_a_forward_that_somebody_else_replaced_stays(tmp_path: Path) -> None:
    seen = run("held", tmp_path, every_record(), script=SCRIPT)
    assert seen == {"skipped": ["rmsnorm: its forward was replaced"], "seen": 1, "kept": True}


def test_a_copied_model_is_applied_and_a_pickled_one_is_torchs(tmp_path: Path) -> None:
    seen = run("carried", tmp_path, every_record(), script=SCRIPT)
    assert seen["equal"] == [True, True, True]
    assert seen["calls"] == [1, 0, 1]
    assert seen["applied"] == 1
    assert seen["restored"] == [True, True, True]
    assert seen["left"] == 0


def test_torch_func_and_forward_mode_get_torchs_own(tmp_path: Path) -> None:
    seen = run("transformed", tmp_path, every_record(), script=SCRIPT)
    assert seen["equal"]
    assert seen["tangents"] == [True, True]
    assert seen["alike"] == [True, True], "traced by torch.jit, written down by torch.fx"
    assert {"layernorm: transform", "rmsnorm: transform", "gelu: transform"} <= set(seen["refused"])


def test_second_derivatives_are_those_of_torch(tmp_path: Path) -> None:
    """A gradient's kernel cannot be differentiated: where it is to be, torch's formula computes it."""
    seen = run("twice", tmp_path, every_record(), script=SCRIPT)
    assert len(seen) == 6
    assert all(seen.values()), seen


def test_a_norm_whose_gradient_alone_is_a_kernels_is_differentiated_twice(tmp_path: Path) -> None:
    listed = [record for record in every_record() if record["problem"] != "rmsnorm"]
    seen = run("twice", tmp_path, listed, script=SCRIPT)
    assert all(seen.values()), seen


@pytest.mark.full
def test_a_step_that_is_recomputed_inferred_cast_or_resized_is_the_same(tmp_path: Path) -> None:
    seen = run("recomputed", tmp_path, every_record(), script=SCRIPT)
    assert seen == {
        "gradients": [True, True], "inferred": True, "sizes": [True] * 5, "half": "torch.float16"
    }  # fmt: skip


def test_what_a_kernel_gives_may_be_written_to_in_place(tmp_path: Path) -> None:
    seen = run("written", tmp_path, every_record(), script=SCRIPT)
    assert seen["used"] == {"rmsnorm": 3, "layernorm": 3, "gelu": 3}
    assert seen["equal"] == {"rmsnorm": True, "layernorm": True, "gelu": True}


def test_a_target_that_is_no_class_makes_the_loss_nan_and_nothing_is_read_beyond(tmp_path: Path) -> None:
    """Torch stops there; the kernel read the logit at that place, whatever lay in it."""
    seen = run("beyond", tmp_path, every_record(), script=SCRIPT)
    assert seen["calls"] == 3
    assert seen["nan"] == [False, True, True, False, True, False]
    assert seen["others"]
    assert seen["whole"] == [True, True]
    assert seen["known"]
