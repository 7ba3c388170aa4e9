"""Linear layers with GELU or ReLU behind them, in traces of eager and compiled models: one operation where the
job's file has a place for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from nightshift.collectors.training.kineto_trace import Signature
from nightshift.kernels.profile.hotspots import profile
from nightshift.kernels.profile.match import UNKNOWN_FORM, segments
from nightshift.kernels.profile.operators import OperatorCall
from tests.kernels.profile.traces import GELU, X, traced
from tests.kernels.profile.traces import unit as _unit


class Block(torch.nn.Module):
    """down(act(up(x)))."""

    def __init__(self, act: torch.nn.Module, *, bias: bool = True, out: int = 32) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(32, 64, bias=bias), torch.nn.Linear(64, out)
        self.act = act

    def forward(self, x: torch.Tensor) -> Any:
        return self.down(self.act(self.up(x)))


class Gated(Block):
    def forward(self, x: torch.Tensor) -> Any:
        return F.gelu(self.up(x)) * self.up(x)


def untrained(block: torch.nn.Module, *sizes: int) -> Any:
    @torch.no_grad()
    def call() -> None:
        block.eval()(torch.randn(*sizes))

    return call


def trained(block: torch.nn.Module, *sizes: int) -> Any:
    return lambda: block(torch.randn(*sizes)).sum().backward()


def cast(block: torch.nn.Module, *sizes: int) -> Any:
    def call() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            untrained(block, *sizes)()

    return call


def compiled(block: torch.nn.Module, *sizes: int) -> Any:
    faster = torch.compile(block)
    untrained(faster, *sizes)()
    return untrained(faster, *sizes)


def test_a_layer_and_its_activation_are_one_where_the_jobs_file_has_a_place_for_both(tmp_path: Path) -> None:
    """Leading dimensions are rows; the second layer stays a product of its own."""
    relu, inplace = torch.nn.ReLU(), torch.nn.ReLU(inplace=True)
    dropped = torch.nn.Sequential(torch.nn.GELU(), torch.nn.Dropout(0.1))
    for number, (block, sizes, name) in enumerate(
        [
            (Block(torch.nn.GELU()), (3, 5, 32), "linear_gelu"),
            (Block(relu), (15, 32), "linear_relu"),
            (Block(inplace), (1, 3, 5, 32), "linear_relu"),
            (Block(dropped), (15, 32), "linear_gelu"),
        ]
    ):
        found = traced(untrained(block, *sizes), tmp_path / f"{number}.json")
        parts = {h.problem: h.sizes for h in found.hotspots if h.problem}
        assert parts == {name: {"m": 15, "n": 64, "k": 32}, "linear_bias": {"m": 15, "n": 32, "k": 64}}
        why = next(h.why for h in found.hotspots if h.problem == name)
        assert why == (UNKNOWN_FORM if name == "linear_gelu" else "")


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_where_it_has_none_they_are_taken_one_by_one(tmp_path: Path) -> None:
    """Trained, cast, without a bias, of another width, a gate (its form is not recorded on a CPU)."""
    gelu = torch.nn.GELU
    for number, (call, expected) in enumerate(
        [
            (trained(Block(gelu()), 4, 32), {"linear_bias", "gelu"}),
            (cast(Block(gelu()), 4, 32), {"linear_bias", "gelu"}),
            (untrained(Block(gelu(), bias=False), 4, 32), {"linear", "linear_bias", "gelu"}),
            (untrained(Block(gelu(), out=8), 4, 32), {"linear_bias", "gelu"}),
            (untrained(Gated(gelu()), 4, 32), {"linear_bias", "geglu"}),
            (untrained(Block(torch.nn.SiLU()), 4, 32), {"linear_bias"}),
        ]
    ):
        found = traced(call, tmp_path / f"{number}.json")
        assert {h.problem for h in found.hotspots if h.problem and h.problem != "reduce_sum"} == expected, number


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_what_a_compiler_hides_is_not_guessed(tmp_path: Path) -> None:
    found = traced(compiled(Block(torch.nn.GELU()), 4, 32), tmp_path / "compiled.json")
    assert not any(h.problem for h in found.hotspots)


def _product(name: str, *tensors: tuple[int, ...], turned: int = 1) -> OperatorCall:
    """A product as a compiled region calls it: with the linear layer's weight turned, and where it goes to."""
    unit = _unit(name, *tensors)
    at = 1 + (name == "addmm")
    strides = list(unit.signature.strides)
    strides[at] = (1, tensors[at][0]) if turned else (tensors[at][1], 1)
    return replace(unit, signature=replace(unit.signature, strides=tuple(strides)))


def _kernel(name: str) -> OperatorCall:
    return replace(_unit("x"), name=name, signature=Signature((), (), (), ()))


UP, DOWN = ((128, 64), (64, 256)), ((64,), (128, 256), (256, 64))
BENT: list[tuple[list[OperatorCall], str]] = [
    ([_product("mm", *UP), _kernel("triton_poi_fused_addmm_gelu_0"), _product("addmm", *DOWN)], "linear_gelu"),
    (
        [_product("mm", *UP), _kernel("triton_poi_fused_addmm_relu_view_3"), _product("mm", *DOWN[1:])],
        "linear_relu",
    ),
    ([_product("addmm", (256,), *UP), _kernel("triton_poi_fused_relu_0"), _product("addmm", *DOWN)], "linear_relu"),
    ([_product("mm", *UP), _kernel("triton_poi_fused__unsafe_view_gelu_5"), _product("mm", *DOWN[1:])], ""),
    ([_product("mm", *UP), _kernel("triton_poi_fused_addmm_gelu_mul_0"), _product("addmm", *DOWN)], ""),
    ([_product("mm", *UP), _kernel("triton_poi_fused_addmm_gelu_0"), _product("mm", (64, 128), (128, 256))], ""),
    ([_product("mm", *UP, turned=0), _kernel("triton_poi_fused_addmm_gelu_0"), _product("addmm", *DOWN)], ""),
    ([_product("mm", *UP), _kernel("triton_poi_fused_addmm_gelu_0")], ""),
]


@pytest.mark.parametrize(("units", "problem"), BENT)
def test_a_compiled_regions_kernel_says_what_is_behind_a_product(units: list[OperatorCall], problem: str) -> None:
    """The bias may be the product's or the kernel's; with other operators in it, or another weight, it is none."""
    (taken, found), *_ = segments(units)
    if not problem:
        assert found is None or found.problem in ("linear", "linear_bias", "matmul")
        return
    assert found is not None
    assert len(taken) == 2
    assert (found.problem, found.sizes, found.dtype) == (problem, {"m": 128, "n": 256, "k": 64}, "bfloat16")
    alone = [{"mm": "linear", "addmm": "linear_bias"}[u.base] for u in units if u.base in ("mm", "addmm")]
    assert [one.problem for _, one in segments(units, parameters=1000) if one] == alone


def test_the_form_of_gelu_is_what_its_kernel_says(tmp_path: Path) -> None:
    """Torch records no strings: a GPU kernel's name is all that tells them apart."""
    linear, behind = [_unit("linear", X, (256, 64), (256,))], [_unit("linear", (4, 32, 256), (64, 256), (64,))]
    for function, (alone, gated, block) in {
        1: (None, "geglu", "linear_gelu_tanh"),
        2: ("gelu", "gelu", "linear_gelu"),
    }.items():
        act = _unit("gelu", (4, 32, 256), kernel=GELU.format(function))
        product = _unit("mul", (4, 32, 256), (4, 32, 256))
        names = [[one.problem if one else None for _, one in segments(units)] for units in (
            [act], [act, product], [*linear, act, *behind])]  # fmt: skip
        assert names[0] == [alone]
        assert names[1][0] == gated
        assert names[2] == [block, "linear_bias"]
    trace = traced(lambda: F.gelu(torch.randn(4, 8), approximate="tanh"), tmp_path / "tanh.json")
    assert [h.why for h in trace.hotspots if h.problem == "gelu"] == [UNKNOWN_FORM]


def test_the_recordings_gelu_is_known_to_be_the_exact_one() -> None:
    recorded = Path(__file__).parents[2] / "recordings" / "h200_train_trace.json.gz"
    assert {h.why for h in profile(recorded).hotspots if h.problem == "gelu"} == {""}
