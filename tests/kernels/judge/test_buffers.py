"""Lent memory: the judge and the borrower see the same tensors, and writes beside them are found."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nightshift.kernels.judge.host.footprint import Footprint
from nightshift.kernels.judge.host.service import Host
from nightshift.kernels.judge.probes.buffers import GUARD_BYTES, Borrower, CpuLender, View
from nightshift.kernels.judge.probes.layouts import place


@pytest.fixture
def lender() -> CpuLender:
    made = CpuLender(64 << 20)
    yield made
    made.close()


def test_both_sides_see_one_tensor(lender: CpuLender) -> None:
    lent = lender.ensure(0, 4096)
    assert lent is not None
    borrower = Borrower("cpu", lender.descriptor)
    borrower.attach(lent)
    view = View(0, "float32", (8, 16), (1, 8), 3)
    view.of(lender.payload(0)).copy_(torch.arange(128.0).reshape(8, 16))
    assert torch.equal(borrower.tensor(view), torch.arange(128.0).reshape(8, 16))


def test_a_fresh_buffer_holds_nan_everywhere(lender: CpuLender) -> None:
    lender.ensure(0, 1024)
    assert torch.isnan(lender.payload(0).view(torch.float16)).all()


@pytest.mark.parametrize("offset", [-1, 4096])
def test_a_write_beside_the_payload_is_found(lender: CpuLender, offset: int) -> None:
    lender.ensure(0, 4096)
    assert lender.guards_intact(0)
    payload = lender.payload(0)
    whole = payload.as_strided((payload.numel() + 2,), (1,), payload.storage_offset() - 1)
    whole[offset + 1] = 7
    assert not lender.guards_intact(0)


def test_a_buffer_that_is_large_enough_stays_where_it_is(lender: CpuLender) -> None:
    lender.ensure(0, 4096)
    before = lender.payload(0).data_ptr()
    assert lender.ensure(0, 100) is None
    assert lender.payload(0).data_ptr() == before
    moved = lender.ensure(0, 8192)
    assert moved is not None
    assert moved.size_bytes >= 8192 + 2 * GUARD_BYTES


def test_buffers_do_not_overlap(lender: CpuLender) -> None:
    for index in range(4):
        lender.ensure(index, 1000)
        lender.payload(index).fill_(index)
    assert all((lender.payload(index) == index).all() for index in range(4))
    assert all(lender.guards_intact(index) for index in range(4))


def test_the_arena_has_an_end(lender: CpuLender) -> None:
    with pytest.raises(MemoryError, match="arena"):
        lender.ensure(0, 1 << 30)


@given(
    shape=st.lists(st.integers(0, 5), max_size=3).map(tuple),
    layout=st.sampled_from(["contiguous", "padded", "transposed", "offset"]),
    dtype=st.sampled_from([torch.float16, torch.float32, torch.int8]),
)
def test_a_view_lies_inside_the_bytes_that_its_placement_asks_for(
    shape: tuple[int, ...], layout: str, dtype: torch.dtype
) -> None:
    where = place(shape, layout)
    payload = torch.full((where.elements * dtype.itemsize,), 0xFF, dtype=torch.uint8)
    view = View(0, str(dtype).removeprefix("torch."), where.shape, where.strides, where.offset)
    again = View.from_json(view.to_json())
    assert again == replace(view)
    again.of(payload).copy_(torch.ones(shape, dtype=dtype))
    assert torch.equal(again.of(payload), torch.ones(shape, dtype=dtype))


def test_what_is_lent_is_no_memory_that_a_candidate_keeps(lender: CpuLender) -> None:
    """Each buffer and each slot's input is two tensors, and there are more of them than may be kept."""
    host = Host("cpu", Borrower("cpu", lender.descriptor))
    buffers = [asdict(lent) for index in range(40) if (lent := lender.ensure(index, 64)) is not None]
    host._footprint = Footprint("cpu")
    host.answer({"op": "attach", "buffers": buffers})
    views = [View(index, "float32", (16,), (1,)).to_json() for index in range(40)]
    host.answer({"op": "slots", "slots": [{"in": views, "out": []}]})
    assert host.answer({"op": "left"})[0]["outlived"] == 0
    kept = [torch.empty(1) for _ in range(40)]
    assert host.answer({"op": "left"})[0]["outlived"] > len(kept) // 2  # others' may go meanwhile
