"""Which problem a trace's operators are: every spelling that users write, and nothing that only looks like one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity
from torch.profiler import profile as torch_profile

from nightshift.collectors.training.kineto_reader import read_trace
from nightshift.collectors.training.kineto_trace import Signature
from nightshift.kernels.loop.optimise import from_profile
from nightshift.kernels.ops.problems import ALL, BY_NAME
from nightshift.kernels.problem import Case
from nightshift.kernels.profile.cost import cost
from nightshift.kernels.profile.hotspots import profile_of
from nightshift.kernels.profile.match import PATTERNS, segments
from nightshift.kernels.profile.operators import OperatorCall
from nightshift.kernels.profile.pattern import BIASED, ProblemMatch
from tests.kernels.profile.traces import GELU, ROW, W, X, traced
from tests.kernels.profile.traces import unit as _unit

SEQUENCES: dict[str, list[OperatorCall]] = {
    "rmsnorm": [
        _unit("to", X), _unit("pow", X, (), kind="float"), _unit("mean", X, kind="float"),
        _unit("add", ROW, (), kind="float"), _unit("rsqrt", ROW, kind="float"),
        _unit("mul", X, ROW, kind="float"), _unit("to", X, kind="float"), _unit("mul", W, X),
    ],
    "rmsnorm_residual": [
        _unit("add", X, X), _unit("pow", X, ()), _unit("mean", X), _unit("rsqrt", ROW),
        _unit("mul", X, ROW), _unit("mul", X, W),
    ],
    "layernorm": [_unit("layer_norm", X, (), W, W)],
    "softmax": [_unit("softmax", X, (), concrete=("", "-1"))],
    "cross_entropy": [_unit("cross_entropy_loss", (128, 1000), (128,))],
    "cross_entropy_cast": [
        _unit("to", (2, 64, 1000)), _unit("reshape", (2, 64), kind="long int"),
        _unit("cross_entropy_loss", (128, 1000), (128,), kind="float"),
    ],
    "gelu": [_unit("gelu", X)],
    "flash_attention": [
        _unit("scaled_dot_product_attention", *[(2, 4, 64, 32)] * 3, (), (), (), concrete=("",) * 5 + ("True",))
    ],
    "linear": [_unit("linear", X, (256, 64), ())],
    "matmul": [_unit("mm", (128, 64), (64, 256))],
    "linear_weight_gradient": [
        OperatorCall("aten::mm", Signature(((256, 128), (128, 64)), ((1, 256), (64, 1)), ("float",) * 2, ("",) * 2),
             1e-4, 0.0, 0, 0, 0)
    ],
    "swiglu": [_unit("silu", X), _unit("mul", X, X)],
    "geglu": [_unit("gelu", X), _unit("mul", X, X)],
    "fused_mlp": [
        _unit("linear", X, (256, 64)), _unit("silu", (4, 32, 256)), _unit("linear", X, (256, 64)),
        _unit("mul", (4, 32, 256), (4, 32, 256)), _unit("linear", (4, 32, 256), (64, 256)),
    ],
    "dropout_add": [_unit("dropout", X, ()), _unit("add", X, X)],
    "reduce_sum": [_unit("sum", X, (), concrete=("", "[-1]"))],
    "max": [_unit("amax", X, (), concrete=("", "[-1]"))],
    "rotary_half": [
        unit
        for heads in (8, 2)
        for shape in [(1, heads, 16, 32)]
        for unit in [_unit("mul", shape, (16, 32)), _unit("neg", shape), _unit("cat"),
                     _unit("mul", shape, (16, 32)), _unit("add", shape, shape)]
    ],
}  # fmt: skip


@pytest.mark.parametrize("problem", SEQUENCES)
def test_each_familys_operators_are_recognised_with_sizes_that_its_problem_takes(problem: str) -> None:
    units = SEQUENCES[problem]
    ((taken, found),) = segments(units)
    assert len(taken) == len(units)
    assert found is not None
    assert found.problem == problem
    case = Case.of(found.dtype, **found.sizes)  # type: ignore[arg-type]
    reference = BY_NAME[problem]
    assert {axis.name for axis in reference.axes} == set(found.sizes)
    need = cost(found)
    assert need.forward_bytes == pytest.approx(reference.compulsory_bytes(case), rel=0.35)
    assert need.forward_flops <= 3 * reference.flops(case) + 1


@pytest.mark.parametrize(
    "units",
    [
        [_unit("softmax", X, (), concrete=("", "1"))],
        [_unit("pow", X, ()), _unit("mean", X), _unit("mul", X, W)],
        [_unit("scaled_dot_product_attention", *[(2, 4, 64, 32)] * 3, (), (), (), concrete=("",) * 5 + ("False",))],
        [_unit("scaled_dot_product_attention", (2, 8, 64, 32), (2, 2, 64, 32), (2, 2, 64, 32))],
        [_unit("gelu", X, kernel=GELU.format(1))],
        [_unit("layer_norm", X, (), (), ())],
        [_unit("sum", X, (), concrete=("", "[0]"))],
        [OperatorCall("aten::linear", Signature((), (), (), ()), 1.0, 0.0, 0, 0, 0)],
    ],
)
def test_what_only_looks_like_a_family_is_left_alone(units: list[OperatorCall]) -> None:
    assert all(found is None for _, found in segments(units))


def test_a_product_s_operands_are_known_by_how_they_lie_and_a_bias_is_noted() -> None:
    """What a compiled step records: `mm` with strides."""

    def product(
        name: str, left: tuple[int, int], right: tuple[int, int], turns: str, *bias: tuple[int, ...]
    ) -> Any:
        sizes = (*bias, left, right)
        strides = (
            *((1,) for _ in bias),
            *((1, s[0]) if turn == "T" else (s[1], 1) for s, turn in zip((left, right), turns, strict=True)),
        )
        told = Signature(sizes, strides, ("float",) * len(sizes), ("",) * len(sizes))
        ((_, found),) = segments([OperatorCall(f"aten::{name}", told, 1e-4, 0.0, 0, 0, 0)])
        return found and (found.problem, dict(found.sizes), BIASED in found.note)

    sizes = {"m": 8, "n": 16, "k": 24}
    assert product("mm", (8, 24), (24, 16), "NN") == ("matmul", sizes, False)
    assert product("mm", (8, 24), (24, 16), "NT") == ("linear", sizes, False)
    assert product("mm", (8, 24), (24, 16), "TN") == ("linear_weight_gradient", {"m": 24, "n": 8, "k": 16}, False)
    assert product("addmm", (8, 24), (24, 16), "NT", (16,)) == ("linear_bias", sizes, False)
    assert product("addmm", (8, 24), (24, 16), "NT", (8, 16)) == ("linear", sizes, True), "a sum is no bias"
    assert product("addmm", (8, 24), (24, 16), "NN", (16,)) == ("matmul", sizes, True), "its weight lies otherwise"
    ((_, biased),) = segments([_unit("linear", X, (256, 64), (256,))])
    assert biased is not None
    assert (biased.problem, biased.note) == ("linear_bias", "")


def test_every_pattern_speaks_of_a_problem_that_exists() -> None:
    assert len(PATTERNS) >= 15
    named = {problem.name for problem in ALL}
    assert {*SEQUENCES, "adamw", "embedding_gradient"} <= named


def test_a_real_trace_of_torch_on_this_machine_is_matched(tmp_path: Path) -> None:
    """Without a GPU an operator's own time on its thread stands for it; shapes are the running torch's."""
    norm = torch.nn.RMSNorm(32)
    layer = torch.nn.Linear(32, 64)
    with torch_profile(activities=[ProfilerActivity.CPU], record_shapes=True) as session:
        layer(norm(torch.randn(4, 8, 32))).sum().backward()
    path = tmp_path / "cpu.json"
    session.export_chrome_trace(str(path))
    trace = read_trace(path)
    called = [s for s in trace.signatures if s.dims[:2] == ((4, 8, 32), (64, 32))]
    assert called
    assert called[0].dtypes[:2] == ("float", "float")
    assert (trace.flows.kind == 1).any()
    assert "linear_bias" in {hotspot.problem for hotspot in profile_of(trace).hotspots}


SMALL: dict[str, dict[str, int]] = {
    "cross_entropy": {"m": 16, "v": 40},
    "cross_entropy_cast": {"m": 16, "v": 40},
    "dequantise": {"m": 8, "n": 16},
    "dropout_add": {"m": 8, "n": 16},
    "flash_attention": {"b": 1, "h": 2, "s": 16, "d": 8},
    "flash_attention_by_position": {"b": 2, "h": 2, "s": 16, "d": 8},
    "fused_mlp": {"m": 8, "d": 16, "f": 24},
    "geglu": {"m": 8, "n": 16},
    "gelu": {"m": 8, "n": 16},
    "layernorm": {"m": 8, "n": 16},
    "linear_gelu": {"m": 8, "n": 32, "k": 24},
    "linear_relu": {"m": 8, "n": 32, "k": 24},
    "matmul": {"m": 8, "n": 16, "k": 24},
    "linear": {"m": 8, "n": 16, "k": 24},
    "linear_bias": {"m": 8, "n": 16, "k": 24},
    "linear_weight_gradient": {"m": 24, "n": 16, "k": 8},
    "max": {"m": 8, "n": 16},
    "particle_weights": {"m": 64, "k": 3},
    "quantise": {"m": 8, "n": 16},
    "reduce_sum": {"m": 8, "n": 16},
    "rmsnorm": {"m": 8, "n": 16},
    "rmsnorm_residual": {"m": 8, "n": 16},
    "rotary_half": {"b": 1, "h": 3, "g": 2, "s": 8, "d": 16},
    "rotary_half_by_position": {"b": 2, "h": 3, "g": 2, "s": 8, "d": 16},
    "rotary_interleaved_by_position": {"b": 2, "h": 3, "s": 8, "d": 16},
    "rotary_interleaved": {"b": 2, "h": 3, "s": 8, "d": 16},
    "softmax": {"m": 8, "n": 16},
    "stencil_3x3": {"c": 2, "h": 12, "w": 16, "k": 3},
    "stencil_5x5": {"c": 2, "h": 12, "w": 16, "k": 5},
    "swiglu": {"m": 8, "n": 16},
}
OTHERWISE = {
    "adamw": "a mark that the optimiser leaves", "adamw_many": "searched with adamw where products have 16 bits",
    "adamw_cast": "as adamw_many, for a weight alone",
    "embedding_gradient": "time of its backward pass",
    "linear_weight_gradient_wide": "asked for by name, where a job reads copies of its weights",
    "linear_gelu_tanh": "its kernel's name, which a trace without a GPU has not",
    "copy": "a bare copy is no operation of a model", "permute": "a bare copy is no operation of a model",
}  # fmt: skip
"""Found by other means than a run of forward operators, or not meant to be found."""


AS_WRITTEN = {
    "flash_attention_by_position": lambda *given: F.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in given), is_causal=True
    ),
    "dropout_add": lambda x, residual, p, seed: F.dropout(x, p) + residual,
    "linear_gelu": lambda x, w, b: F.linear(F.gelu(F.linear(x, w, b)), w.t()),
    "linear_relu": lambda x, w, b: F.linear(F.relu(F.linear(x, w, b)), w.t()),
}
"""Where the reference draws its numbers by itself, so that anyone can check them; blocks around a part."""
ALSO = {"linear_gelu": ["matmul"], "linear_relu": ["matmul"]}
"""What else stands in that block."""


def test_a_trace_of_every_problem_leads_to_that_problem_by_itself(tmp_path: Path) -> None:
    """What torch records of the code that users write is matched with its sizes, and becomes a problem file."""
    derived = {problem.name for problem in ALL if problem.name.endswith("_backward")}
    assert {*SMALL, *OTHERWISE, *derived} == {problem.name for problem in ALL}
    for name, sizes in SMALL.items():
        problem = BY_NAME[name]
        dtype = next(d for d in ("bfloat16", "float16", "float32") if d in problem.dtypes)
        values = problem.inputs(Case.of(dtype, **sizes), "normal", 1, "cpu")  # type: ignore[arg-type]
        written = AS_WRITTEN.get(name, problem.reference)
        found = traced(lambda written=written, values=values: written(*values), tmp_path / f"{name}.json")
        matched = [(h.problem, h.sizes, h.dtype) for h in found.hotspots if h.problem]
        mine = [one for one in matched if one[0] not in ALSO.get(name, ())]
        assert mine == [(name, sizes, dtype)], f"{name}: {matched}, {[h.operators for h in found.hotspots]}"
        others = ALSO.get(name, [])
        assert [one[0] for one in matched if one not in mine] == others
        works, decisions = from_profile(found, tmp_path, None, most=1 + len(others), min_gain=0.0)
        assert sorted(work.task.problem.name for work in works) == sorted([name, *others]), decisions


def _range_only(
    position: torch.Tensor, weight: torch.Tensor, landmark: torch.Tensor, distance: torch.Tensor
) -> Any:
    apart = torch.cdist(position, landmark)
    return torch.log_softmax(weight + -0.5 * ((apart - distance) / 0.5).pow(2).sum(-1), 0)


def _by_norm(position: torch.Tensor, weight: torch.Tensor, landmark: torch.Tensor, distance: torch.Tensor) -> Any:
    apart = torch.linalg.vector_norm(position[:, None] - landmark[None], dim=-1)
    weight = weight + ((apart - distance) * 2.0).square().sum(-1) * -0.5
    return weight - weight.logsumexp(0)


def _added_up(x: torch.Tensor) -> torch.Tensor:
    """Without a tensor of weights, and in place."""
    padded = F.pad(x, (1, 1, 1, 1))
    out = 0.25 * padded[:, 0:12, 0:16]
    for number in range(1, 9):
        a, b = divmod(number, 3)
        out += 0.125 * padded[:, a : a + 12, b : b + 16]
    return out


SPELLINGS: list[tuple[str, Any]] = [
    ("particle_weights", lambda: _range_only(torch.rand(64, 2), torch.rand(64), torch.rand(3, 2), torch.rand(3))),
    ("particle_weights", lambda: _by_norm(torch.rand(64, 2), torch.rand(64), torch.rand(3, 2), torch.rand(3))),
    ("stencil_3x3", lambda: _added_up(torch.rand(2, 12, 16))),
    ("stencil_5x5", lambda: F.conv2d(torch.rand(2, 1, 12, 16), torch.rand(1, 1, 5, 5), padding=2)),
    ("dequantise", lambda: torch.ones(4, 8, dtype=torch.int8) * torch.rand(4, 1)),
    ("", lambda: F.conv2d(torch.rand(2, 3, 12, 16), torch.rand(4, 3, 3, 3), padding=1)),
    ("", lambda: F.conv2d(torch.rand(2, 1, 12, 16), torch.rand(1, 1, 3, 3), padding=1, dilation=2)),
    ("", lambda: F.conv2d(torch.rand(2, 1, 12, 16), torch.rand(1, 1, 3, 3), torch.rand(1), padding=1)),
    ("", lambda: torch.rand(4, 8) * torch.rand(4, 1)),
    ("", lambda: torch.ones(4, 8, dtype=torch.int8).float() * torch.rand(4, 8)),
    ("", lambda: F.pad(torch.rand(2, 12, 16), (1, 1, 1, 1)) * 2.0),
]


def test_other_spellings_are_known_and_what_only_looks_like_one_is_not(tmp_path: Path) -> None:
    for number, (name, function) in enumerate(SPELLINGS):
        found = traced(function, tmp_path / f"{number}.json")
        assert {h.problem for h in found.hotspots if h.problem} == ({name} if name else set()), (number, name)


def test_costs_are_those_of_the_problems_for_every_size() -> None:
    for problem in ALL:
        if problem.name in SEQUENCES or problem.name in ("adamw", "embedding_gradient"):
            case = problem.cases[0]
            need = cost(ProblemMatch(problem.name, case.sizes, case.dtype))
            assert need.forward_bytes > 0
