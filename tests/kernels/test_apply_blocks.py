"""Gated feed-forward blocks in the job's file: found by their numbers, in training and where nothing is trained."""

from __future__ import annotations

from pathlib import Path

import pytest

from nightshift.kernels.ops.fused_mlp.triton_family import FusedMlp
from nightshift.kernels.ops.gated.triton_family import Gated
from nightshift.kernels.ops.products.triton_linear_family import Linear
from nightshift.kernels.problem import Case
from tests.kernels.applied_records import made_of
from tests.kernels.test_apply import run

SCRIPT = Path(__file__).parent / "applied_blocks.py"
ROWS = Case.of("float32", m=6, n=32)


@pytest.mark.full
def test_a_gated_block_trains_and_infers_as_before_with_the_kernels(tmp_path: Path) -> None:
    """SwiGLU and its gradient by the kernels, eager and compiled; where nothing is differentiated the block without
    biases is one call, and of one without a gate the first layer with its GELU. A block whose dropout is at work
    stays torch's; one found in evaluation is torch's again in training, because it may have a dropout."""
    listed = [made_of(Gated(), name, ROWS) for name in ("swiglu", "swiglu_backward")]
    listed.append(made_of(FusedMlp(), "fused_mlp", Case.of("float32", m=6, d=16, f=32)))
    listed.append(made_of(Linear(), "linear_gelu", Case.of("float32", m=6, n=32, k=16)))
    seen = run("blocks", tmp_path, listed, script=SCRIPT)
    applied = [[name, problem] for name in ("plain", "biased") for problem in ("swiglu", "fused_mlp")]
    assert seen["applied"] == [*applied, ["other", "linear_gelu"]]
    assert seen["equal"] == [True] * 3
    assert seen["calls"] == {"swiglu": 2, "swiglu_backward": 2, "fused_mlp": 0, "linear_gelu": 0}
    assert seen["found"] == {
        "swiglu": [5, 0],
        "swiglu_backward": [4, 0],
        "fused_mlp": [1, 0],
        "linear_gelu": [1, 0],
    }
    assert seen["keys"]
    assert seen["restored"] == 3
    assert seen["dropped"]
    assert seen["back"]
    assert seen["fallbacks"] == {}


@pytest.mark.full
def test_the_tanh_form_is_another_block_and_its_gradient_is_torch_s_formula(tmp_path: Path) -> None:
    seen = run("blocks", tmp_path, [made_of(Gated(), "geglu", ROWS)], script=SCRIPT)
    assert seen["applied"] == [["plain", "geglu"], ["biased", "geglu"]]
    assert seen["equal"] == [True] * 3
    assert seen["found"] == {"geglu": [6, 0]}
    assert seen["back"]
