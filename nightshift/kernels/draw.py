"""Values for a kernel's inputs: a counter-based generator whose bits are the same on every device and version.

torch's own generators give other numbers on CUDA than on CPU and promise nothing across releases, so a
certificate's anchors could not be re-checked elsewhere. Here every element is a hash of (seed, stream, index) in
64-bit integer arithmetic, and each float is made from it by exact or correctly rounded IEEE operations only
(+, −, ×, ÷), so the same seed gives the same bits on CPU and GPU.

The hash is SplitMix64's finaliser (Steele, Lea and Flood, OOPSLA 2014; constants of Stafford's variant 13). The
"normal" values are the centred sum of four 16-bit uniforms (Irwin–Hall, n = 4): unit variance, |x| ≤ 3.47.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch

CHUNK = 1 << 24
"""Elements made at a time, so that a tensor of more than 2³¹ elements needs little scratch memory."""

DISTRIBUTIONS: dict[str, str] = {
    "normal": "unit variance, zero mean",
    "uniform": "0 to 1",
    "large_mean": "unit variance around 100, where one-pass variances cancel",
    "large_negative": "unit variance around −100, below what a running maximum might start from",
    "heavy_tail": "ratio of a normal and a uniform: a few values ≈ 1,000 times the typical one",
    "wide": "magnitudes from 2⁻¹² to 2¹² at random signs",
    "ties": "five values only, so that maxima and ranks tie",
    "near_constant": "one value per tensor plus 2⁻⁸ noise: almost no variance",
    "tiny": "subnormal in float16, below 2⁻¹⁴ elsewhere",
    "ramps": "each row rises from 0 to 16 or falls, with noise: running sums and maxima change at every step",
    "zeros": "all zero, with random signs",
    "far": "unit variance times 2¹³ in float16, 2³⁰ elsewhere: beyond any bound that one might think large",
    "huge": "up to half of the dtype's largest number",
    "subnormal": "below the dtype's least normal number, where many flush to zero",
    "zero_rows": "some rows all zero, as padding is, others none",
    "zeros_by_nan": "some rows all zero; a few NaN in the others and in what they are multiplied with",
    "masked": "a quarter −inf, never a whole row",
    "masked_ends": "a run of −inf, in each row of another length, at its beginning, its end or both",
    "masked_rows": "some rows hold only −inf, others none",
    "masked_lowest": "a quarter the dtype's least finite number, as masks are that are added, and some whole rows",
    "infinite": "a few +inf and −inf",
    "nan": "a few NaN",
}


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)
_PIECES = 0x0000FFFF0000FFFF


def _shift_right(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical shift of int64 (torch's own is arithmetic)."""
    return (x >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def hash64(index: torch.Tensor, key: int) -> torch.Tensor:
    """SplitMix64's output number `index` (int64, any shape) of the stream that `key` (64 bits) names."""
    z = (index * _GOLDEN).add_(_signed(key & (1 << 64) - 1))
    for bits, factor in ((30, _MIX_1), (27, _MIX_2)):
        z.bitwise_xor_(_shift_right(z, bits)).mul_(factor)
    return z.bitwise_xor_(_shift_right(z, 31))


def mix(*parts: int) -> int:
    """One 64-bit key out of several integers (the scalar twin of `hash64`, chained)."""
    mask = (1 << 64) - 1
    state = 0
    for part in parts:
        state = (state ^ (part & mask)) + 0x9E3779B97F4A7C15 & mask
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & mask
        state = (state ^ state >> 27) * 0x94D049BB133111EB & mask
        state ^= state >> 31
    return state


def _unit(bits: torch.Tensor) -> torch.Tensor:
    """Float32 uniforms in [0, 1) from 24 bits, exactly."""
    return (bits & 0xFFFFFF).to(torch.float32) * 2.0**-24


def _normal(bits: torch.Tensor) -> torch.Tensor:
    """Float32, unit variance: the sum of four 16-bit pieces, centred, times sqrt(3)."""
    # two pairs of pieces are added side by side, then the two sums
    pairs = (bits >> 16).bitwise_and_(_PIECES).add_(bits & _PIECES)
    total = (pairs >> 32).add_(pairs.bitwise_and_(0xFFFFFFFF))
    return total.to(torch.float32).sub_(131070.0).mul_(1.7320508 / 65536.0)


def _sign(bits: torch.Tensor) -> torch.Tensor:
    return 1.0 - 2.0 * (bits >> 60 & 1).to(torch.float32)


def _make(distribution: str, bits: torch.Tensor, index: torch.Tensor, key: int) -> torch.Tensor:
    match distribution:
        case "normal":
            return _normal(bits)
        case "uniform":
            return _unit(bits)
        case "large_mean":
            return _normal(bits) + 100.0
        case "large_negative":
            return _normal(bits) - 100.0
        case "heavy_tail":
            return _normal(bits) / (_unit(hash64(index, mix(key, 1))) + 2.0**-10)
        case "wide":
            powers = torch.tensor([2.0**e for e in range(-12, 12)], device=bits.device)
            scale = powers[(bits >> 32 & 0xFFFFFFFF) % 24]
            return _sign(bits) * scale * (1.0 + _unit(bits))
        case "ties":
            return ((bits >> 20 & 0xFFFF) % 5 - 2).to(torch.float32) * 0.5
        case "near_constant":
            base = 0.5 + (mix(key, 2) & 0xFF) * 2.0**-8
            return base + _normal(bits) * 2.0**-8
        case "tiny":
            return _normal(bits) * 2.0**-16
        case "zeros":
            return _sign(bits) * 0.0
        case _:
            raise ValueError(f"distribution: {distribution!r} is none of {', '.join(DISTRIBUTIONS)}")


_SCALED = {"far": (2.0**13, 2.0**30), "huge": (2.0**12, 2.0**124), "subnormal": (2.0**-16, 2.0**-128)}
"""Factors of normal values: in float16, and in other dtypes."""
_PLACED = frozenset(
    [
        "ramps",
        "masked",
        "masked_ends",
        "masked_rows",
        "masked_lowest",
        "infinite",
        "nan",
        "zero_rows",
        "zeros_by_nan",
    ]
)
"""Normal values but for special ones at hashed places."""


TWIN = 1 << 64
"""Added to a seed: the same draw, but for one element of each tensor of values, at a place that the seed hides.
A result that was remembered under a fingerprint of a few elements is wrong for the twin."""


WHOLE: dict[torch.dtype, int] = {
    torch.float16: 1 << 11,
    torch.bfloat16: 1 << 8,
    torch.float32: 1 << 24,
    torch.float64: 1 << 53,
}
"""Up to here a dtype holds every integer."""


class Draw:
    """Deterministic inputs: each call takes the next stream of one (seed, distribution) on one device."""

    def __init__(self, seed: int, distribution: str, device: torch.device | str) -> None:
        if distribution not in DISTRIBUTIONS:
            raise ValueError(f"distribution: {distribution!r} is none of {', '.join(DISTRIBUTIONS)}")
        self.seed = seed % TWIN  # the twin has the same hidden values, but for its one element
        self.twin = seed >= TWIN
        self.distribution = distribution
        self.device = torch.device(device)
        self._streams = 0

    def _key(self) -> int:
        self._streams += 1  # or two inputs of one shape would be equal
        return mix(self.seed, self._streams)

    def _chunks(self, count: int) -> Iterator[tuple[int, int, torch.Tensor]]:
        for start in range(0, count, CHUNK):
            stop = min(count, start + CHUNK)
            yield start, stop, torch.arange(start, stop, dtype=torch.int64, device=self.device)

    def _fill(
        self, shape: Sequence[int], dtype: torch.dtype, make: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        out = torch.empty(tuple(shape), dtype=dtype, device=self.device)
        flat = out.view(-1)
        for start, stop, index in self._chunks(out.numel()):
            flat[start:stop] = make(index).to(dtype)
        return out

    def values(self, shape: Sequence[int], dtype: torch.dtype, distribution: str | None = None) -> torch.Tensor:
        """Data of the draw's distribution (or of a named one), rounded once to `dtype`."""
        name = distribution or self.distribution
        key = self._key()
        columns = int(shape[-1]) if len(shape) else 1
        rows = math.prod(shape[:-1])

        def make(index: torch.Tensor) -> torch.Tensor:
            bits = hash64(index, key)
            out = _make("normal" if name in _PLACED or name in _SCALED else name, bits, index, key)
            if name in _SCALED:
                out = out * _SCALED[name][dtype is not torch.float16]
            if name in _PLACED:
                return self._place(out, index, name, dtype, (rows, columns), key)
            return out

        filled = self._fill(shape, dtype, make)
        if self.twin and filled.numel():
            cell = filled.view(-1)[mix(key, 5) % filled.numel()]
            # by its sign, so that the element surely changes, and NaN does as well
            cell.copy_(torch.where(cell > 0, -2.0, 2.0))
        return filled

    def _place(
        self,
        out: torch.Tensor,
        index: torch.Tensor,
        name: str,
        dtype: torch.dtype,
        shape: tuple[int, int],
        key: int,
    ) -> torch.Tensor:
        """Special values in the place of some of `out`."""
        rows, columns = shape[0], max(1, shape[1])
        if name == "masked_ends":
            return torch.where(_runs(index, rows, columns, key), float("-inf"), out)
        spot = _shift_right(hash64(index, mix(key, 3)), 1)
        if name in ("masked", "infinite", "nan"):
            return _spots(out, spot, index, name, columns)
        if name == "ramps":
            across = (index % columns).to(torch.float32) * (16.0 / max(1, columns - 1))
            rises = _shift_right(hash64(index // columns, mix(key, 4)), 1) % 2 == 0
            return torch.where(rises, across, 16.0 - across) + 0.25 * out
        whole = _hidden(index // columns, rows, key)
        if name == "masked_lowest":
            return torch.where(whole | (spot % 4 == 0), torch.finfo(dtype).min, out)
        if name == "zeros_by_nan":
            out = _spots(out, spot, index, "nan", columns)
        return torch.where(whole, float("-inf") if name == "masked_rows" else 0.0, out)

    def weights(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Non-trivial affine weights in [0.5, 1.5) with random signs: ignoring them cannot pass. With the
        distribution "ties" a third are 0, so that nobody can divide by them."""
        key = self._key()

        def make(index: torch.Tensor) -> torch.Tensor:
            bits = hash64(index, key)
            made = _sign(bits) * (0.5 + _unit(bits))
            return torch.where(_shift_right(bits, 30) % 3 == 0, 0.0, made) if self.distribution == "ties" else made

        return self._fill(shape, dtype, make)

    def normal(self, shape: Sequence[int], dtype: torch.dtype, scale: float = 1.0) -> torch.Tensor:
        """Normal values whatever the distribution: for matrices and gradients, which specials would swamp. With
        "zeros_by_nan" a few are NaN: 0 · NaN is NaN, so that nobody may skip what is zero."""
        key = self._key()

        def make(index: torch.Tensor) -> torch.Tensor:
            made = _normal(hash64(index, key)) * scale
            if self.distribution == "zeros_by_nan":
                spot = _shift_right(hash64(index, mix(key, 3)), 1)
                made = _spots(made, spot, index, "nan", 1)
            return made

        return self._fill(shape, dtype, make)

    def uniform(
        self, shape: Sequence[int], dtype: torch.dtype, low: float = 0.0, high: float = 1.0
    ) -> torch.Tensor:
        key = self._key()
        return self._fill(shape, dtype, lambda index: low + _unit(hash64(index, key)) * (high - low))

    def integers(self, shape: Sequence[int], high: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        """Integers in [0, high). With the distribution "ties" only three values occur."""
        key = self._key()
        span = min(high, 3) if self.distribution == "ties" else high
        return self._fill(shape, dtype, lambda index: _shift_right(hash64(index, key), 1) % max(1, span))

    def whole(
        self,
        shape: Sequence[int],
        dtype: torch.dtype,
        terms: int = 1,
        factor: int = 1,
        axis: int = -1,
        reach: int = 8,
        limit: int = 0,
    ) -> torch.Tensor:
        """Integers of at most ±reach, so small that the magnitudes of `terms` of them along `axis`, each times
        `factor`, add up to no more than `limit` (0: the last integer up to which `dtype` holds all): a sum of them
        is exact in any order. Where even ±1 are too many, most are zero; no place along the axis is so in every
        line.
        """
        key, limit = self._key(), limit or WHOLE[dtype]
        most = min(reach, limit // max(1, terms * factor))
        inner, along = math.prod(shape[axis % len(shape) + 1 :]), max(1, shape[axis])
        step = -(-terms * factor // max(1, limit - factor))

        def make(index: torch.Tensor) -> torch.Tensor:
            bits = _shift_right(hash64(index, key), 1)
            if most:
                return (bits % (2 * most + 1) - most).to(torch.float32)
            line = index // (along * max(1, inner)) * max(1, inner) + index % max(1, inner)
            place = index // max(1, inner) % along + _shift_right(hash64(line, mix(key, 1)), 1) % step
            return torch.where(place % step == 0, _sign(bits), 0.0)

        return self._fill(shape, dtype, make)

    def mantissas(self, shape: Sequence[int]) -> torch.Tensor:
        """Float32 in [1, 2) that need all 24 bits: whoever rounds or cuts them to TF32 (11 bits) or bfloat16 (8)
        makes each smaller, by more than a fifth of that format's last place, so that errors of a sum add up."""
        key = self._key()

        def make(index: torch.Tensor) -> torch.Tensor:
            bits = _shift_right(hash64(index, key), 1)
            return 1.0 + ((bits & 0x7F2FFE) | 0x4C01).to(torch.float32) * 2.0**-23

        return self._fill(shape, torch.float32, make)

    def integer(self, low: int, high: int) -> int:
        """A Python integer in [low, high)."""
        return low + self._key() % (high - low)


def _hidden(row: torch.Tensor, rows: int, key: int) -> torch.Tensor:
    """A quarter of the rows; surely one, and, where there are more, surely not another."""
    one = mix(key, 6) % max(1, rows)
    drawn = _shift_right(hash64(row, mix(key, 7)), 1) % 4 == 0
    return (row == one) | (drawn & (row != (one + 1) % max(1, rows)))


def _runs(index: torch.Tensor, rows: int, columns: int, key: int) -> torch.Tensor:
    """A run at the row's beginning, its end, or both: short or long by a power of two of its own, and of one row
    surely three quarters at its beginning."""
    row, column = index // columns, index % columns
    drawn = _shift_right(hash64(row, mix(key, 8)), 1)
    room = columns - 1
    length = torch.minimum(1 + drawn % (1 << (drawn >> 40) % 15), 1 + drawn % max(1, room)).clamp(max=room)
    side = (drawn >> 20) % 3
    first = torch.where(side == 0, length, torch.where(side == 1, 0, length - length // 2))
    last = length - first
    sure = row == mix(key, 9) % max(1, rows)
    first = torch.where(sure, room - drawn % max(1, columns // 4), first)
    return (column < first) | (column >= columns - torch.where(sure, 0, last))


def _spots(out: torch.Tensor, spot: torch.Tensor, index: torch.Tensor, name: str, columns: int) -> torch.Tensor:
    """Special values at hashed places; column 0 of each row stays finite where a row must not be masked whole."""
    if name == "masked":
        return torch.where((spot % 4 == 0) & (index % max(1, columns) != 0), float("-inf"), out)
    hit = spot % 61 == 0
    if name == "nan":
        return torch.where(hit, float("nan"), out)
    return torch.where(hit, torch.where(spot % 2 == 0, float("inf"), float("-inf")), out)
