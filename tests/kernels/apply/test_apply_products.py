"""Products of matrices in the job's file: eager layers and compiled regions, forward and backward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from nightshift.kernels.apply.job import state
from nightshift.kernels.apply.job.products import multiply_by_kernels, multiply_by_torch
from nightshift.kernels.apply.job.state import Kernel, Report
from nightshift.kernels.generate.template import Family
from nightshift.kernels.ops.adamw.flat_family import Flat
from nightshift.kernels.ops.products.triton_family import Matmul
from nightshift.kernels.ops.products.triton_linear_family import Linear
from nightshift.kernels.problem import Case
from tests.kernels.apply.applied_records import made_of
from tests.kernels.apply.test_apply import run

pytestmark = pytest.mark.full  # each compiles a step in a process of its own

SCRIPT = Path(__file__).parent / "applied_products.py"


def products(dtype: str) -> list[dict[str, Any]]:
    """A layer's three products; the layer has 16 inputs and 32 outputs."""
    layer, back = Case.of(dtype, m=12, n=32, k=16), Case.of(dtype, m=12, n=16, k=32)
    made = [made_of(Matmul(), name, layer) for name in ("linear", "linear_weight_gradient")]
    return [*made, made_of(Matmul(), "matmul", back)]


def test_a_layer_s_products_are_the_kernels_and_what_a_guard_refuses_is_torch_s(tmp_path: Path) -> None:
    """The step, its gradients and second derivatives are torch's; one row, columns, other sizes, other dtypes, no
    rows and torch.func's transforms are left to torch, and so are a layer with a bias and one of other sizes."""
    seen = run("eager", tmp_path, products("float32"), script=SCRIPT)
    names = ["linear n=32 k=16 float32", "linear_weight_gradient n=32 k=16 float32", "matmul n=16 k=32 float32"]
    assert [(where, name) for where, name, _ in seen["applied"]] == [("products of matrices", n) for n in names]
    assert seen["again"]
    assert seen["equal"] == [True, True]
    trained = {"linear": 1, "linear_weight_gradient": 1, "matmul": 1}
    inferred = {**trained, "linear": 2}
    # the layer once more for second derivatives: its first derivatives are torch's, the last pass is not
    again = {**inferred, "linear": 3, "linear_weight_gradient": 2}
    assert seen["calls"] == [trained, inferred, again]
    assert seen["twice"]
    assert seen["shapes"] == [[12, 32], [32], [49, 32], [0, 32], [12, 1, 32], [3, 4, 32]]
    assert seen["refused"]
    assert seen["laid"]
    assert seen["fallbacks"] == {"linear: stride": 2, "linear: shape": 1}
    assert seen["checks"] == [[1, 0], [2, 0], [3, 0]]
    assert seen["keys"]
    assert seen["restored"] == 1
    assert seen["written"], "what a kernel gives may be written to in place"
    assert seen["back"]


def test_under_autocast_a_layer_s_products_are_of_the_dtype_that_it_casts_to(tmp_path: Path) -> None:
    seen = run("cast", tmp_path, products("float16"), script=SCRIPT)
    assert seen["equal"], "values, or dtypes of outputs and gradients"
    assert seen["calls"] == {"linear": 1, "linear_weight_gradient": 1, "matmul": 1}
    assert seen["plain"], "without autocast the layer is of another dtype than the kernels"


def test_layers_that_read_copies_of_their_weights_multiply_by_the_same_kernels(tmp_path: Path) -> None:
    listed = [*products("float16"), made_of(Flat(), "adamw_many", Case.of("float16", n=40))]
    seen = run("copied", tmp_path, listed, script=SCRIPT)
    assert seen["equal"]
    assert seen["places"] >= 3, "the layers, and the optimiser"
    assert seen["fresh"] == 3, "copies are there to be read"
    assert seen["calls"] == {"linear": 3, "linear_weight_gradient": 3, "matmul": 3, "adamw_many": 3}
    assert seen["wrong"] == 0


def test_layers_that_read_copies_keep_float32_gradients_of_their_weights_by_a_kernel_that_gives_them(
    tmp_path: Path,
) -> None:
    """In a compiled region it stands for the product that gives float32, of the same sizes and strides alone."""
    layer = Case.of("float16", m=12, n=32, k=16)
    listed = [made_of(Matmul(), "linear_weight_gradient_wide", layer)]
    listed.append(made_of(Flat(), "adamw_many", Case.of("float16", n=40)))
    seen = run("wide", tmp_path, listed, script=SCRIPT)
    assert seen["calls"] == {"linear_weight_gradient_wide": 2, "adamw_many": 2}, "a step's, and one more"
    assert seen["gap"] < 1e-6, "nothing is rounded to 16 bits"
    assert seen["wrong"] == 0
    ours, narrow, rows, lies = seen["graphs"]
    assert ours == ["nightshift.linear_weight_gradient_wide.default"]
    assert narrow == rows == ["aten.permute.default", "aten.mm.dtype"]
    assert lies == ["aten.mm.dtype"]


def biased(dtype: str, family: Family | None = None) -> list[dict[str, Any]]:
    """The products of a layer with a bias, 16 inputs and 32 outputs."""
    layer, back = Case.of(dtype, m=12, n=32, k=16), Case.of(dtype, m=12, n=16, k=32)
    made = [made_of(family or Linear(), "linear_bias", layer), made_of(Matmul(), "linear_weight_gradient", layer)]
    return [*made, made_of(Matmul(), "matmul", back)]


def test_a_layer_with_a_bias_has_its_three_products_by_kernels_and_its_bias_s_gradient_by_torch(
    tmp_path: Path,
) -> None:
    """Also by its gradients' kernels alone. A bias of another shape, stride or dtype leaves the layer to torch, and
    so does a bias that is a matrix; one that is frozen gets no gradient."""
    seen = run("biased", tmp_path, biased("float32"), script=SCRIPT)
    widths = {"linear_bias": "n=32 k=16", "linear_weight_gradient": "n=32 k=16", "matmul": "n=16 k=32"}
    assert seen["applied"] == [f"{name} {size} float32" for name, size in widths.items()]
    assert seen["equal"] == [True, True, True], "trained, inferred, and trained by the gradients' kernels alone"
    trained = {"linear_bias": 2, "linear_weight_gradient": 2, "matmul": 2}
    inferred = {**trained, "linear_bias": 4}
    assert seen["calls"] == [trained, inferred, inferred]
    assert seen["refused"]
    assert seen["twice"]
    assert seen["frozen"]
    assert seen["fallbacks"] == {"linear_bias: stride": 1}
    assert seen["wrong"] == 0
    assert seen["back"]
    assert seen["alone"] == {"linear_weight_gradient": 2, "matmul": 2}


@pytest.mark.parametrize(
    "family", [pytest.param(Linear(), id="linear", marks=pytest.mark.full), pytest.param(Matmul(), id="matmul")]
)
def test_a_bias_is_added_before_the_result_is_rounded_as_torch_adds_it(tmp_path: Path, family: Family) -> None:
    """By each family that writes the kernel, under autocast too, with the gradients' dtypes."""
    seen = run("biased_cast", tmp_path, biased("float16", family), script=SCRIPT)
    assert seen["once"] == 2050.0, "2048 if the product is rounded first"
    assert seen["equal"]
    assert seen["calls"] == {"linear_bias": 2, "linear_weight_gradient": 2, "matmul": 2}


@pytest.mark.full
def test_a_compiled_region_s_product_with_a_bias_is_one_kernel_until_that_is_demoted(tmp_path: Path) -> None:
    seen = run("biased_compiled", tmp_path, biased("float32"), script=SCRIPT)
    assert seen["equal"] == [True] * 3, "compiled, after the demotion, after unapply"
    forward, backward, anew, back = seen["graphs"]
    assert forward == ["linear_bias", "linear_bias", "mm"]
    assert sorted(backward) == sorted(["linear_weight_gradient"] * 2 + ["matmul"] * 2 + ["mm"] * 2)
    assert anew == ["addmm", "addmm", "mm"]
    assert sorted(back) == sorted(backward)
    once = {"linear_bias": 2, "linear_weight_gradient": 2, "matmul": 2}
    assert seen["calls"] == [once, {"linear_bias": 2, "linear_weight_gradient": 4, "matmul": 4}]
    assert seen["wrong"] == 0


@pytest.mark.full
def test_a_compiled_region_s_products_are_swapped_by_layout_and_compiled_anew_after_a_demotion(
    tmp_path: Path,
) -> None:
    """Of the layer both ways, and of the product of activations; a product with a bias behind it and those of other
    sizes stay the compiler's. After the demotion of `matmul` the others stay in use."""
    seen = run("compiled", tmp_path, products("float32"), script=SCRIPT)
    assert seen["equal"] == [True] * 5, "trained, inferred, of dynamic shapes, after the demotion, after unapply"
    assert "aten.mm.default" in seen["dynamic"]
    assert not any("nightshift" in name for name in seen["dynamic"])
    assert seen["wrong"] == 0
    forward, backward, inference, *anew = (
        [name.split(".")[1] for name in graph if name.startswith("nightshift.")] for graph in seen["graphs"]
    )
    assert forward == inference == ["linear", "matmul"]
    assert backward == ["linear", "linear_weight_gradient", "linear_weight_gradient", "matmul"]
    assert seen["outdated"] == 3, "no compilation before the demotion was known"
    assert anew == [["linear"], ["linear", "linear_weight_gradient", "linear_weight_gradient"]]
    assert all("aten.addmm.default" in seen["graphs"][n] for n in (0, 2)), "the layer with a bias"
    once = {"linear": 2, "linear_weight_gradient": 2, "matmul": 2}
    twice = {"linear": 3, "linear_weight_gradient": 2, "matmul": 3}
    eager = {**twice, "linear": 4}  # which the dynamic one was compared with
    assert seen["calls"] == [once, twice, eager, {"linear": 6, "linear_weight_gradient": 4, "matmul": 3}]
    assert seen["names"] == 2, "a compiler's cache must not give what it made with a demoted kernel"
    assert seen["back"]


def test_a_job_s_own_passes_stay_and_run_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """One or several, and all are given back."""
    from torch._inductor import config

    record = {"problem": "linear", "certificate": "c", "sizes": {"m": 2, "n": 2, "k": 2}}
    kernel = Kernel(record, lambda x, weight: x @ weight.t())
    monkeypatch.setattr(state.STATE, "widths", set())
    monkeypatch.setattr(state.STATE, "kernels", {"linear n=2 k=2 float32": kernel})
    seen: list[str] = []
    own = [lambda graph: seen.append("first"), lambda graph: seen.append("second")]
    for earlier, order in ((own[0], ["first"]), (own, ["first", "second"]), (None, [])):
        with config.patch(post_grad_custom_post_pass=earlier):
            report = Report()
            multiply_by_kernels(report)
            assert [where for where, *_ in report.applied] == ["products of matrices"]
            config.post_grad_custom_post_pass(torch.fx.Graph())
            assert seen == order
            seen.clear()
            assert (config.post_grad_custom_post_pass.uuid() is None) == bool(order), "nothing says what these do"
            multiply_by_torch()
            assert config.post_grad_custom_post_pass is earlier


def test_a_pass_that_has_to_be_told_more_than_a_graph_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.11 knows none such: there is nothing to leave alone."""
    from torch._inductor import config, custom_graph_pass

    class Base: ...

    monkeypatch.setattr(custom_graph_pass, "CustomInferenceAwareGraphPass", Base, raising=False)
    kernel = Kernel({"problem": "linear", "certificate": "c", "sizes": {"m": 2, "n": 2, "k": 2}}, torch.matmul)
    monkeypatch.setattr(state.STATE, "widths", set())
    monkeypatch.setattr(state.STATE, "kernels", {"linear n=2 k=2 float32": kernel})
    aware = Base()
    with config.patch(post_grad_custom_post_pass=aware):
        multiply_by_kernels(report := Report())
        assert config.post_grad_custom_post_pass is aware
    assert report.skipped == [("products in compiled regions", "a pass of the job's own stands in their place")]
    monkeypatch.delattr(custom_graph_pass, "CustomInferenceAwareGraphPass")
    with config.patch(post_grad_custom_post_pass=None):
        multiply_by_kernels(report := Report())
        assert not report.skipped
        multiply_by_torch()
