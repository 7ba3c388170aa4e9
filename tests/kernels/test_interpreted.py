"""Under Triton's interpreter bfloat16 is converted as torch and GPUs do it, so that a CPU's verdict is no other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from triton.language import bfloat16, float16, float32

from kernels.judge.interpreted import by_hardware

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
