"""What a GPU binary says of its kernels: held to NVIDIA's own tool, and to bytes that are none."""

from __future__ import annotations

import random
import re
import subprocess
from pathlib import Path

import pytest
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from nightshift.kernels.judge import cuda
from nightshift.kernels.judge.cubin import usage_of
from nightshift.kernels.judge.launch_plan import Fire, Plan


def softmax(p, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * n + tl.arange(0, BLOCK)
    x = tl.load(p + i)
    x = tl.exp(x - tl.max(x, 0))
    tl.store(out + i, x / tl.sum(x, 0))


def cubin_of(block: int) -> bytes:
    signature = {"p": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}
    source = ASTSource(fn=triton.JITFunction(softmax), signature=signature, constexprs={"BLOCK": block})
    made: bytes = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4}).asm["cubin"]
    return made


@pytest.fixture(scope="module")
def cubins() -> dict[int, bytes]:
    """1,024 values fit into a block's registers; of 65,536 most lie in local memory."""
    return {block: cubin_of(block) for block in (1024, 65536)}


def test_registers_stack_and_shared_memory_are_those_that_nvidias_tool_prints(
    cubins: dict[int, bytes], tmp_path: Path
) -> None:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    for block, cubin in cubins.items():
        (tmp_path / "k.cubin").write_bytes(cubin)
        said = subprocess.run(
            [tool, "-res-usage", tmp_path / "k.cubin"], capture_output=True, text=True, check=True
        )
        told = re.search(r"Function softmax:\s+REG:(\d+) STACK:(\d+) SHARED:(\d+)", said.stdout)
        assert told is not None
        mine = usage_of(cubin)["softmax"]
        assert (mine.registers, mine.stack_bytes, mine.shared_bytes) == tuple(map(int, told.groups()))
        assert (mine.stack_bytes > 0) == (block > 1024)


def test_bytes_that_are_no_whole_binary_say_nothing_and_raise_nothing(cubins: dict[int, bytes]) -> None:
    rng = random.Random(1)
    assert usage_of(b"") == usage_of(b"\x7fELF\x02") == usage_of(bytes(range(256)) * 64) == {}
    for _ in range(2000):
        made = bytearray(cubins[1024])
        for _ in range(rng.randint(1, 40)):
            made[rng.randrange(len(made))] = rng.randrange(256)
        usage_of(bytes(made[: rng.randrange(len(made))] if rng.random() < 0.3 else made))


def test_a_plan_tells_the_most_that_one_of_its_kernels_takes(cubins: dict[int, bytes]) -> None:
    def fire(binary: int, name: str, shared: int) -> Fire:
        return Fire(binary, name, cuda.Shape((1, 1, 1), (128, 1, 1), shared), ())

    binaries = tuple(cubins.values())
    small, large = (usage_of(binary)["softmax"] for binary in binaries)
    told = Plan(binaries, (fire(0, "softmax", 4096), fire(1, "softmax", 16))).usage()
    assert told == {
        "registers": max(small.registers, large.registers),
        "stack_bytes": large.stack_bytes,
        "shared_bytes": small.shared_bytes + 4096,
    }
    assert Plan(binaries, (fire(0, "another", 0),)).usage() == {}
    assert Plan((b"no binary",), (fire(0, "softmax", 0),)).usage() == {}
