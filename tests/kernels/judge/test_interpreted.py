"""Under Triton's interpreter bfloat16 is converted as torch and GPUs do it, so that a CPU's verdict is no other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.language import bfloat16, float16, float32
from triton.runtime import interpreter

from nightshift.kernels.judge.host.recorder import by_hardware, remember_builtins, widened

TOWARDS_ZERO = "rtz"
convert = by_hardware(lambda *asked: asked, TOWARDS_ZERO)


def _torch(bits: Any) -> torch.Tensor:
    return torch.from_numpy(bits.astype(np.int64).copy())


def test_every_number_of_16_bits_becomes_itself() -> None:
    """The 254 subnormal ones too, of which the interpreter itself makes others."""
    narrow = np.arange(1 << 16, dtype=np.uint16)
    made = _torch(convert(narrow, bfloat16, float32, None)).to(torch.int32).view(torch.float32)
    want = _torch(narrow).to(torch.int16).view(torch.bfloat16).float()
    assert torch.equal(made.isnan(), want.isnan())
    assert torch.equal(made[~want.isnan()], want[~want.isnan()])


@pytest.mark.parametrize("rounding", [None, "rtne"])
def test_a_number_of_32_bits_becomes_the_nearest_of_16(rounding: str | None) -> None:
    """Ties, carries into the exponent, what overflows and what is not a number included."""
    drawn = np.random.default_rng(7).integers(0, 1 << 32, 1 << 16, dtype=np.uint64)
    edges = np.array(
        [0x3FFF8000, 0x3FFFFFFF, 0x3F808000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0xFF800000, 0x00008000, 1]
    )
    wide = np.concatenate([drawn, edges.astype(np.uint64)]).astype(np.uint32)
    made = _torch(convert(wide.view(np.float32), float32, bfloat16, rounding)).to(torch.int16).view(torch.bfloat16)
    want = torch.from_numpy(wide.view(np.float32).copy()).to(torch.bfloat16)
    assert torch.equal(made.isnan(), want.isnan())
    assert torch.equal(made[~want.isnan()], want[~want.isnan()])


def test_other_conversions_are_the_interpreters_own() -> None:
    for asked in ((float32, bfloat16, TOWARDS_ZERO), (float16, float32, None), (bfloat16, float16, None)):
        values = np.zeros(3, np.float32)
        assert convert(values, *asked) == (values, *asked)


@pytest.mark.parametrize("count", [2, 3])
def test_bfloat16_is_computed_with_and_not_its_bits(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """A product, and one that is added to, of numbers as torch has them."""
    monkeypatch.setattr(interpreter, "_convert_float", by_hardware(interpreter._convert_float, TOWARDS_ZERO))
    drawn = [torch.randn(64, generator=torch.manual_seed(n)).to(torch.bfloat16) for n in range(count)]
    handles = [interpreter.TensorHandle(x.view(torch.int16).numpy().view(np.uint16), bfloat16) for x in drawn]
    builder = interpreter.InterpreterBuilder()
    if count == 2:
        made = widened(interpreter.InterpreterBuilder.binary_op)(builder, *handles, np.multiply)
        want = drawn[0] * drawn[1]
    else:
        made = widened(interpreter.InterpreterBuilder.create_fma)(builder, *handles)
        want = torch.addcmul(*(x.float() for x in (drawn[2], drawn[0], drawn[1]))).to(torch.bfloat16)
    assert made.dtype == bfloat16
    assert torch.equal(torch.from_numpy(made.data.view(np.int16)).view(torch.bfloat16), want)


def test_what_compares_bfloat16_says_so_and_what_chooses_of_it_keeps_its_bits() -> None:
    few = [
        interpreter.TensorHandle(np.array(bits, np.uint16), bfloat16) for bits in ([0xBF80, 0x3F80], [1, 0x3F80])
    ]
    binary, ternary = (
        widened(getattr(interpreter.InterpreterBuilder, name)) for name in ("binary_op", "ternary_op")
    )
    builder = interpreter.InterpreterBuilder()
    less = binary(builder, *few, np.less)
    assert less.data.tolist() == [True, False]
    assert ternary(builder, less, *few, np.where).data.tolist() == [0xBF80, 0x3F80]


def test_what_is_patched_for_a_launch_is_what_triton_patches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while all of it is patched already, as at the call of one function by another."""
    original = interpreter._patch_builtin
    monkeypatch.setattr(interpreter, "_patch_builtin", original)  # put back at the end
    remember_builtins()
    for package in (tl, tl.core, tl.tensor, tl.math, tl.core.tensor_descriptor_base):
        patched = []
        for patch in (original, interpreter._patch_builtin):
            scope, within = interpreter._LangPatchScope(), interpreter._LangPatchScope()
            patch(package, interpreter.interpreter_builder, scope)
            patch(package, interpreter.interpreter_builder, within)
            patched.append(([change[:2] for change in scope._changes], within._changes))
            scope.restore()
        assert patched[0] == patched[1]
        assert patched[1][1] == []
