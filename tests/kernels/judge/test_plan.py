"""A launch plan survives its way over the line, and a malformed or overreaching one is refused."""

from __future__ import annotations

import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nightshift.kernels.candidate import Candidate, Launch
from nightshift.kernels.judge import cuda
from nightshift.kernels.judge.host.recorder import Recorder
from nightshift.kernels.judge.launch_plan import (
    MAX_STEPS,
    Clear,
    Fire,
    Plan,
    PlanError,
    Pointer,
    Scalar,
    TensorMap,
    check_reach,
    cuda_plan,
    scalar,
)

SHAPE = cuda.Shape((4, 1, 1), (128, 1, 1), 1024)
PLAN = Plan(
    (b"\x7fELF one", b"two"),
    (
        Clear(Pointer("tmp", 0), 64),
        Fire(
            0, "first", SHAPE, (Pointer("in", 0, 16), Pointer("tmp", 0), Scalar("i32", -7), Scalar("u32", 1 << 31))
        ),
        Fire(1, "second", SHAPE, (Pointer("tmp", 0, 32), Pointer("out", 0))),
    ),
    (64,),
)


def test_a_plan_comes_back_from_its_message_unchanged() -> None:
    body, blob = PLAN.to_message()
    assert Plan.from_message(body, blob) == PLAN
    assert PLAN.launches == 2


@pytest.mark.parametrize(
    "change",
    [
        {"sizes": [1, 2]},
        {"sizes": [-1, 12]},
        {"scratch": [1 << 40]},
        {"scratch": [-1]},
        {"steps": [["fire", 7, "k", [1] * 10, []]]},
        {"steps": [["fire", 0, "k", [1, 1, 1, 2048, 1, 1, 0, 1, 0, 0], []]]},
        {"steps": [["fire", 0, "k", [-1, 1, 1, 1, 1, 1, 0, 1, 0, 0], []]]},
        {"steps": [["clear", ["i32", "5"], 4]]},
        {"steps": [["clear", ["in", 0, 0], -4]]},
        {"steps": [["jump"]]},
        {"steps": [["fire", 0, "k", [1] * 10, [["secret", 0, 0]]]]},
        {"steps": [["fire", 0, "k", [1] * 10, [["in", -1, 0]]]]},
        {"steps": [["clear", ["tmp", 0, 0], 1]] * (MAX_STEPS + 1)},
        {"steps": None},
    ],
)
def test_a_malformed_plan_is_refused(change: dict[str, object]) -> None:
    body, blob = PLAN.to_message()
    with pytest.raises(PlanError, match="plan"):
        Plan.from_message({**body, **change}, blob)


def test_a_pointer_beyond_its_buffer_is_refused() -> None:
    check_reach(PLAN, [16], [0])
    with pytest.raises(PlanError, match="beyond in0"):
        check_reach(PLAN, [15], [0])
    with pytest.raises(PlanError, match="beyond out0"):
        check_reach(PLAN, [16], [])
    with pytest.raises(PlanError, match="beyond tmp0"):
        check_reach(Plan((), (Clear(Pointer("tmp", 0, 1), 64),), (64,)), [], [])


@given(value=st.floats(width=32, allow_nan=False))
def test_a_float32_scalar_keeps_its_bits(value: float) -> None:
    assert scalar("fp32", value).value == struct.unpack("<I", struct.pack("<f", value))[0]


def test_other_scalars_take_their_storage_form() -> None:
    assert scalar("bf16", 1.0) == Scalar("u16", 0x3F80)
    assert scalar("fp16", -2.0) == Scalar("u16", 0xC000)
    assert scalar("i1", True) == Scalar("i8", 1)
    assert scalar("i64", -1) == Scalar("i64", -1)
    with pytest.raises(PlanError):
        scalar("fp8", 1.0)


def cuda_candidate(*args: str, grid: str = "cdiv(n, 256)") -> Candidate:
    launch = Launch("k", (grid, "1", "1"), ("256", "1", "1"), args)
    source = 'extern "C" __global__ void k() {}'
    return Candidate(source, "k", "cuda", "own_kernel", "bitwise", launches=(launch,), scratch_bytes=("4 * n",))


def test_a_declared_launch_is_evaluated_at_the_case() -> None:
    made = cuda_plan(cuda_candidate("in0", "out0", "tmp0", "i32:n", "scalar:in1"), b"bin", {"n": 1000}, {1: 0.5})
    step = made.steps[0]
    assert isinstance(step, Fire)
    assert step.shape.grid == (4, 1, 1)
    assert step.arguments[3:] == (Scalar("i32", 1000), Scalar("u32", 0x3F000000))
    assert made.scratch_bytes == (4000,)


def test_a_declared_tile_descriptor_says_what_the_copy_engine_reads() -> None:
    """Innermost dimension first, and a swizzle as wide as the box where there is one (CUDA driver API)."""
    made = cuda_plan(cuda_candidate("map:in0:2:n:8 * n:16:64", "map:out0:4:n:n:8:4"), b"bin", {"n": 96}, {})
    step = made.steps[0]
    assert isinstance(step, Fire)
    assert step.arguments == (
        TensorMap(Pointer("in", 0), 1, (768, 96), (1536,), (64, 16), 3, False),
        TensorMap(Pointer("out", 0), 2, (96, 96), (384,), (4, 8), 0, False),
    )
    assert Plan.from_message(*made.to_message()) == made


@pytest.mark.parametrize(
    "arg",
    ["in", "i32", "f32:many", "scalar:in7", "out0:1", "map", "map:in0:2:n:n:8", "map:in0:3:n:n:8:8",
     "map:at0:2:n:n:8:8", "map:in0:2:n:k:8:8", "map:in0:2:n:open(n):8:8"],
)  # fmt: skip
def test_an_argument_that_means_nothing_is_refused(arg: str) -> None:
    with pytest.raises(PlanError, match="argument"):
        cuda_plan(cuda_candidate(arg), b"", {"n": 1}, {})


def test_a_tensor_map_comes_back_unchanged_and_must_point_into_its_buffer() -> None:
    tile = TensorMap(Pointer("in", 0, 16), 6, (64, 32), (128,), (64, 16), 3, False)
    plan = Plan((b"x",), (Fire(0, "k", SHAPE, (tile, Scalar("i32", 32))),))
    body, blob = plan.to_message()
    assert Plan.from_message(body, blob) == plan
    check_reach(plan, [4096], [])
    with pytest.raises(PlanError, match="points beyond in0"):
        check_reach(plan, [8], [])
    for change in ([[64], [128], [64]], [[64, 32], [128], [64]], [[64, -1], [128], [64, 16]], [[], [], []]):
        body["steps"][0][4][0] = ["map", ["in", 0, 16], change, [6, 3, False]]
        with pytest.raises(PlanError):
            Plan.from_message(body, blob)


@pytest.mark.parametrize("body", [{"sizes": ["x"]}, {"sizes": [float("nan")]}, {"sizes": 3}, [], None, "plan", 5])
def test_nonsense_instead_of_a_plan_is_refused_and_raises_nothing_else(body: object) -> None:
    with pytest.raises(PlanError):
        Plan.from_message(body, b"")


def test_an_input_that_is_a_view_of_a_larger_buffer_is_no_scratch() -> None:
    """A lent buffer may be larger than the input in it: only the candidate's own allocations count as scratch."""
    buffer = torch.empty(1000)
    given, own = buffer[:10], torch.empty(50)
    recorder = Recorder([(Pointer("in", 0), given.data_ptr(), 40)])
    arguments = [("*fp32", given.data_ptr()), ("*fp32", own.data_ptr())]
    recorder.fire(b"cubin", "kernel", cuda.Shape((1, 1, 1), (32, 1, 1)), arguments, [given, own])
    made = recorder.plan([])
    assert made.scratch_bytes == (200,)
    step = made.steps[0]
    assert isinstance(step, Fire)
    assert step.arguments[0] == Pointer("in", 0)
