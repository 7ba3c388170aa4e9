"""From a trace to what is worth a search: every nanosecond accounted, families found, decisions with reasons."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, record_function
from torch.profiler import profile as torch_profile

from collectors.kineto_reader import read_trace
from collectors.kineto_trace import Signature
from kernels.candidate import Candidate
from kernels.judge import inputs
from kernels.optimise import from_profile
from kernels.problem import Case, ProblemError
from kernels.problems import ALL, BY_NAME
from kernels.profile.cost import cost
from kernels.profile.hotspots import Hotspot, Profile, as_text, profile, profile_of
from kernels.profile.match import PATTERNS, segments
from kernels.profile.operators import Unit, operators_of
from kernels.profile.pattern import Found
from kernels.profile.problem_file import load_problem, write_problem
from kernels.profile.roofline import Peaks, PeaksError, probe
from kernels.profile.trigger import Settings, Stake, consider, decide

RECORDED = Path(__file__).parents[1] / "recordings" / "h200_train_trace.json.gz"
H200 = Peaks(4.16e12, {"bfloat16": 7.5e14, "float32": 5.3e13}, "probe")


@pytest.fixture(scope="module")
def recorded() -> Profile:
    return profile(RECORDED, H200)


def test_all_gpu_time_of_the_recording_belongs_to_an_operation(recorded: Profile) -> None:
    listed_s = sum(hotspot.total_s for hotspot in recorded.hotspots)
    assert listed_s == pytest.approx(51.7405e-3 / 3, rel=1e-3)
    assert recorded.unmapped_s == 0.0
    parts = recorded.compute_s + recorded.communication_s + recorded.copy_s + recorded.idle_s
    assert parts == pytest.approx(recorded.step_s)


def test_the_recordings_hot_operations_are_found_with_their_shapes(recorded: Profile) -> None:
    top = recorded.hotspots[0]
    assert (top.problem, top.sizes, top.dtype) == ("rmsnorm", {"m": 8192, "n": 1024}, "float32")
    assert top.calls_per_step == 13  # two in each of six blocks and the last one
    assert top.backward_s > top.forward_s > 0
    found = {(h.problem, *h.sizes.values()) for h in recorded.hotspots if h.problem}
    assert ("adamw", 92_288_000) in found  # the parameters of the recorded model
    assert ("flash_attention", 16, 16, 512, 64) in found
    assert ("cross_entropy_cast", 8192, 8192) in found
    assert ("gelu", 8192, 4096) in found
    assert ("embedding_gradient", 8192, 1024, 8192) in found
    products = [h for h in recorded.hotspots if h.problem == "matmul"]
    assert {h.dtype for h in products} == {"bfloat16"}  # what autocast made of them
    assert all(0.7 < h.utilisation <= 1.0 for h in products)
    unmatched = next(h for h in recorded.hotspots if h.operators == "aten::unbind")
    assert (unmatched.problem, unmatched.gain) == ("", 0.0)
    assert "no family" in unmatched.why
    assert "rmsnorm m=8192 n=1024 float32" in as_text(recorded)


def test_without_a_probe_the_trace_proves_its_own_lower_bounds() -> None:
    found = profile(RECORDED)
    assert found.peaks.source == "trace"
    assert 3.0e12 < found.peaks.bytes_per_s < 4.9e12  # an H200's memory
    assert 5e14 < found.peaks.flops_per_s["bfloat16"] < 1e15
    assert found.hotspots[0].problem == "rmsnorm"


def test_ids_lost_by_the_profiler_are_made_up_for_by_correlation_and_nesting() -> None:
    trace = read_trace(RECORDED)
    gpu = trace.events.rows("kernel", "gpu_memcpy", "gpu_memset")
    trace.events.external_id[gpu] = -1
    lost = profile_of(trace, H200)
    whole = profile(RECORDED, H200)
    assert lost.unmapped_s == 0.0
    by_name = {h.name: h.total_s for h in whole.hotspots}
    assert {h.name: h.total_s for h in lost.hotspots} == pytest.approx(by_name, rel=0.02)


def test_backward_time_is_found_by_sequence_numbers_where_there_are_no_arrows() -> None:
    trace = read_trace(RECORDED)
    trace.flows.kind[:] = 9
    lost, whole = profile_of(trace, H200), profile(RECORDED, H200)
    by_name = {h.name: h.backward_s for h in whole.hotspots if h.problem}
    assert {h.name: h.backward_s for h in lost.hotspots if h.problem} == pytest.approx(by_name, rel=0.02)


def test_collectives_are_counted_apart_and_only_where_nothing_computes(tmp_path: Path) -> None:
    def gpu(name: str, ts: float, dur: float, stream: int, correlation: int) -> list[dict[str, Any]]:
        base = {"ph": "X", "pid": 1, "tid": 2}
        args = {"correlation": correlation}
        return [
            {**base, "cat": "cpu_op", "name": "aten::mm", "ts": ts - 5, "dur": 3.0,
             "args": {"External id": correlation}},
            {**base, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": ts - 4, "dur": 1.0, "args": args},
            {**base, "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": ts, "dur": dur,
             "args": {**args, "External id": correlation, "stream": stream, "device": 0}},
        ]  # fmt: skip

    events = [
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": "ProfilerStep#3",
            "pid": 1,
            "tid": 2,
            "ts": 0.0,
            "dur": 100.0,
        },
        *gpu("gemm", 10.0, 20.0, 7, 1),
        *gpu("ncclDevKernel_AllReduce_Sum", 20.0, 30.0, 9, 2),
        *gpu("gemm", 90.0, 20.0, 7, 3),
        *gpu("gemm", 200.0, 20.0, 7, 4),  # of no step
    ]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": events}))
    found = operators_of(read_trace(path))
    assert found.wall_s == pytest.approx(100e-6)
    assert found.compute_s == pytest.approx(40e-6)
    assert found.communication_s == pytest.approx(20e-6)  # 30 of it beside a product of 10


def _unit(
    name: str, *tensors: tuple[int, ...], kind: str = "c10::BFloat16", concrete: tuple[str, ...] = ()
) -> Unit:
    strides = tuple(tuple(math.prod(d[i + 1 :]) for i in range(len(d))) for d in tensors)
    names = tuple(kind if d else "Scalar" for d in tensors)
    told = concrete + ("",) * (len(tensors) - len(concrete))
    return Unit(f"aten::{name}", Signature(tensors, strides, names, told), 1e-4, 0.0, 0, 0, 0)


X, W, ROW = (4, 32, 64), (64,), (4, 32, 1)
SEQUENCES: dict[str, list[Unit]] = {
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
    "matmul": [_unit("linear", X, (256, 64), ())],
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
        [_unit("gelu", X, (), concrete=("", "tanh"))],
        [_unit("layer_norm", X, (), (), ())],
        [_unit("sum", X, (), concrete=("", "[0]"))],
        [Unit("aten::linear", Signature((), (), (), ()), 1.0, 0.0, 0, 0, 0)],
    ],
)
def test_what_only_looks_like_a_family_is_left_alone(units: list[Unit]) -> None:
    assert all(found is None for _, found in segments(units))


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
    assert "matmul" in {hotspot.problem for hotspot in profile_of(trace).hotspots}


SMALL: dict[str, dict[str, int]] = {
    "cross_entropy": {"m": 16, "v": 40},
    "cross_entropy_cast": {"m": 16, "v": 40},
    "dequantise": {"m": 8, "n": 16},
    "dropout_add": {"m": 8, "n": 16},
    "flash_attention": {"b": 1, "h": 2, "s": 16, "d": 8},
    "fused_mlp": {"m": 8, "d": 16, "f": 24},
    "geglu": {"m": 8, "n": 16},
    "gelu": {"m": 8, "n": 16},
    "layernorm": {"m": 8, "n": 16},
    "matmul": {"m": 8, "n": 16, "k": 24},
    "max": {"m": 8, "n": 16},
    "particle_weights": {"m": 64, "k": 3},
    "quantise": {"m": 8, "n": 16},
    "reduce_sum": {"m": 8, "n": 16},
    "rmsnorm": {"m": 8, "n": 16},
    "rmsnorm_residual": {"m": 8, "n": 16},
    "rotary_half": {"b": 1, "h": 3, "g": 2, "s": 8, "d": 16},
    "rotary_interleaved": {"b": 2, "h": 3, "s": 8, "d": 16},
    "softmax": {"m": 8, "n": 16},
    "stencil_3x3": {"c": 2, "h": 12, "w": 16, "k": 3},
    "stencil_5x5": {"c": 2, "h": 12, "w": 16, "k": 5},
    "swiglu": {"m": 8, "n": 16},
}
OTHERWISE = {
    "adamw": "a mark that the optimiser leaves", "embedding_gradient": "time of its backward pass",
    "copy": "a bare copy is no operation of a model", "permute": "a bare copy is no operation of a model",
}  # fmt: skip
"""Found by other means than a run of forward operators, or not meant to be found."""


AS_WRITTEN = {"dropout_add": lambda x, residual, p, seed: F.dropout(x, p) + residual}
"""Where the reference draws its numbers by itself, so that anyone can check them."""


def traced(function: Any, path: Path) -> Profile:
    """One step of a function under torch's profiler on this machine, read back from its file."""
    with (
        torch_profile(activities=[ProfilerActivity.CPU], record_shapes=True) as session,
        record_function("ProfilerStep#0"),
    ):
        function()
    session.export_chrome_trace(str(path))
    return profile(path)


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
        assert matched == [(name, sizes, dtype)], f"{name}: {matched}, {[h.operators for h in found.hotspots]}"
        works, decisions = from_profile(found, tmp_path, None, most=1, min_gain=0.0)
        assert [work.task.problem.name for work in works] == [name], decisions


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


def test_a_probe_measures_this_machine_and_survives_a_file(tmp_path: Path) -> None:
    found = probe("cpu", copy_bytes=1 << 22, side=64, repeats=2)
    path = tmp_path / "peaks.json"
    path.write_text(json.dumps(found.to_json()))
    again = Peaks.read(path)
    assert again == found
    assert again.bytes_per_s > 0
    assert set(again.flops_per_s) == {"float32", "bfloat16", "float16"}
    for bad in ("{}", "[]", "no", '{"bytes_per_s": -1, "flops_per_s": {}, "source": "x"}'):
        path.write_text(bad)
        with pytest.raises(PeaksError, match="peaks"):
            Peaks.read(path)


POLICY = Settings(namespaces=("lab-*",))
STAKE = Stake("lab-nlp", "gpt", gpu_hours_week=500.0)


@pytest.mark.parametrize(
    ("change", "stake", "policy", "why"),
    [
        ({}, replace(STAKE, namespace="prod"), POLICY, "has not asked"),
        ({}, STAKE, Settings(), "has not asked"),
        ({"problem": ""}, STAKE, POLICY, "no family"),
        ({"utilisation": math.nan}, STAKE, POLICY, "not known"),
        ({"share": 0.01}, STAKE, POLICY, "1.0% of the step, less than 3.0%"),
        ({"utilisation": 0.8}, STAKE, POLICY, "80% of the roofline, more than 70%"),
        ({"gain": 0.005}, STAKE, POLICY, "gain 0.5%, less than 1.0%"),
        ({}, replace(STAKE, gpu_hours_week=50.0), POLICY, "50 GPU-hours a week run it"),
        ({}, replace(STAKE, gpu_hours_week=math.nan), POLICY, "GPU-hours a week run it"),
        ({"gain": 0.011}, STAKE, Settings(namespaces=("*",), search_gpu_hours=40.0), "won back"),
        ({}, replace(STAKE, used_gpu_hours=7.5), POLICY, "7.5 of 8 GPU-hours"),
    ],
)
def test_every_condition_of_the_policy_refuses_with_its_figures(
    recorded: Profile, change: dict[str, Any], stake: Stake, policy: Settings, why: str
) -> None:
    decision = consider(replace(recorded.hotspots[0], **change), stake, policy)
    assert not decision.propose
    assert why in decision.why


def test_the_recordings_norm_is_proposed_and_the_sentence_says_what_it_brings(recorded: Profile) -> None:
    decision = decide(recorded.hotspots, STAKE, POLICY)
    assert decision.propose
    assert decision.hotspot is recorded.hotspots[0]
    for part in ("rmsnorm m=8192 n=1024", "lab-nlp/gpt", "16.0% of the step", "GPU-hours a week", "preemptible"):
        assert part in decision.why
    nothing = decide((), STAKE, POLICY)
    assert not nothing.propose
    assert "no operation" in nothing.why


def test_a_hotspot_becomes_a_problem_file_that_the_judge_can_plan_for(recorded: Profile, tmp_path: Path) -> None:
    for hotspot in recorded.hotspots:
        if not hotspot.problem:
            continue
        path = tmp_path / f"{hotspot.problem}.py"
        problem = write_problem([hotspot], path, str(RECORDED.name))
        assert problem.name == hotspot.problem
        assert problem.cases == (Case.of(hotspot.dtype, **hotspot.sizes),)  # type: ignore[arg-type]
        assert load_problem(path).cases == problem.cases
        written = path.read_text()
        assert "kernels.problems" not in written  # it stands alone
        probes = inputs.plan(problem, Candidate("x", "entry", "triton", "own_kernel", "bitwise"), b"s", inputs.CPU)
        assert probes


def test_hotspots_without_a_problem_have_no_file(recorded: Profile, tmp_path: Path) -> None:
    unmatched = next(h for h in recorded.hotspots if not h.problem)
    with pytest.raises((ProblemError, KeyError)):
        write_problem([unmatched], tmp_path / "x.py")
    mixed: list[Hotspot] = [h for h in recorded.hotspots if h.problem][:2]
    with pytest.raises(ProblemError, match="one problem"):
        write_problem(mixed, tmp_path / "x.py")
    odd = replace(mixed[0], dtype="float64")
    with pytest.raises(ProblemError, match="float64"):
        write_problem([odd], tmp_path / "x.py")


def test_costs_are_those_of_the_problems_for_every_size() -> None:
    for problem in ALL:
        if problem.name in SEQUENCES or problem.name in ("adamw", "embedding_gradient"):
            case = problem.cases[0]
            need = cost(Found(problem.name, case.sizes, case.dtype))
            assert need.forward_bytes > 0
