"""Inputs: reproducible, of the promised shape in value, and the same however they are chunked."""

from __future__ import annotations

import pytest
import torch

import nightshift.kernels.draw as draw_module
from nightshift.kernels.draw import DISTRIBUTIONS, TWIN, Draw, hash64, mix


def test_hash64_is_splitmix64() -> None:
    """SplitMix64 seeded with 0 yields e220a8397b1dcdaf, 6e789e6aa1b965f4 (reference implementation by Vigna)."""
    got = hash64(torch.tensor([1, 2]), 0)
    assert [x & (1 << 64) - 1 for x in got.tolist()] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]


@pytest.mark.parametrize("distribution", sorted(DISTRIBUTIONS))
def test_the_same_seed_gives_the_same_bits_in_chunks_of_any_size(
    distribution: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Draw(7, distribution, "cpu").values((37, 29), torch.float16)
    monkeypatch.setattr(draw_module, "CHUNK", 100)
    parts = Draw(7, distribution, "cpu").values((37, 29), torch.float16)
    assert torch.equal(whole.view(torch.int16), parts.view(torch.int16))


def test_other_seeds_and_streams_give_other_values() -> None:
    draw = Draw(1, "normal", "cpu")
    first, second = draw.values((1000,), torch.float32), draw.values((1000,), torch.float32)
    other = Draw(2, "normal", "cpu").values((1000,), torch.float32)
    assert abs(float(torch.corrcoef(torch.stack([first, second, other]))[0, 1:].abs().max())) < 0.15


def test_normal_values_have_zero_mean_and_unit_variance() -> None:
    x = Draw(3, "normal", "cpu").values((1 << 18,), torch.float64)
    assert abs(float(x.mean())) < 0.01
    assert abs(float(x.var()) - 1) < 0.01


def test_a_masked_row_always_keeps_a_finite_value() -> None:
    x = Draw(3, "masked", "cpu").values((4096, 3), torch.float32)
    assert bool(torch.isinf(x).any())
    assert bool(torch.isfinite(x).any(dim=1).all())


def test_mix_separates_neighbouring_seeds() -> None:
    assert len({mix(seed, stream) for seed in range(100) for stream in range(100)}) == 10_000


def test_a_twin_differs_in_one_element_of_each_tensor() -> None:
    plain, twin = Draw(9, "normal", "cpu"), Draw(9 + TWIN, "normal", "cpu")
    for shape in ((1000,), (7, 11), (1,)):
        a, b = plain.values(shape, torch.float16), twin.values(shape, torch.float16)
        assert int((a != b).sum()) == 1
    assert torch.equal(plain.weights((50,), torch.float32), twin.weights((50,), torch.float32))
    assert twin.values((0, 3), torch.float32).shape == (0, 3)


@pytest.mark.parametrize("rows", [1, 2, 9])
def test_some_rows_hold_only_minus_infinity_and_others_none(rows: int) -> None:
    """Whatever the seed; a single row does."""
    for seed in range(60):
        hidden = Draw(seed, "masked_rows", "cpu").values((rows, 5), torch.float16) == -torch.inf
        assert bool(hidden.all(1).any())
        assert torch.equal(hidden.all(1), hidden.any(1))
        assert rows == 1 or not bool(hidden.all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_values_far_from_one_rows_of_zeros_and_least_numbers_are_what_they_say(dtype: torch.dtype) -> None:
    for seed in range(20):
        shape = (9, 40)
        far, zero, ramps, lowest, both = (
            Draw(seed, name, "cpu").values(shape, dtype).float()
            for name in ("far", "zero_rows", "ramps", "masked_lowest", "zeros_by_nan")
        )
        assert bool(far.isfinite().all())
        assert float(far.abs().max()) > 1e4
        for x in (zero, both):
            none = (x == 0).all(1)
            assert bool(none.any())
            assert not bool(none.all())
        least = lowest == torch.finfo(dtype).min
        assert bool(least.all(1).any())
        assert bool((least.any(1) & ~least.all(1)).any())
        assert bool(lowest.isfinite().all())
        assert bool(((ramps[:, 0] - 8.0) * (ramps[:, -1] - 8.0) < 0).all())


def test_what_zeros_are_multiplied_with_is_nan_somewhere() -> None:
    for seed in range(20):
        factor = Draw(seed, "zeros_by_nan", "cpu").normal((9, 40), torch.float16)
        assert bool(factor.isnan().any())
        assert not bool(Draw(seed, "nan", "cpu").normal((9, 40), torch.float16).isnan().any())
