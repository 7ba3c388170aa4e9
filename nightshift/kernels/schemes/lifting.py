"""Hensel lifting: a scheme modulo 2 becomes one modulo 4, 8, … and, where it can, one over the integers.

Each step solves one linear system modulo 2, always with the same matrix: the derivative of the scheme's equations
(Kauers and Moosbauer, arXiv 2212.01175). Where it has no solution, this scheme exists modulo 2 alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nightshift.kernels.schemes.scheme import Scheme, definition, fault_of

STEPS = 12
"""Binary digits of a coefficient before a lift is given up."""

Factors = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


def _tensor(factors: Factors) -> NDArray[np.int64]:
    """Sum of the terms, (A, B, C) entries."""
    left, right, out = factors
    pairs = left[:, :, None] * right[:, None, :]
    total: NDArray[np.int64] = np.einsum("rp,rc->pc", pairs.reshape(len(left), -1), out)
    return total.reshape(*pairs.shape[1:], -1)


class _System:
    """The derivative's matrix modulo 2, eliminated once: rows of bits in Python's integers."""

    def __init__(self, factors: Factors) -> None:
        left, right, out = factors
        rank, (a, b, c) = len(left), (part.shape[1] for part in factors)
        self.shape, self.widths = (a, b, c), (rank * a, rank * b, rank * c)
        columns: list[NDArray[np.uint8]] = []
        for t in range(rank):
            block = np.einsum("b,c,ax->xabc", right[t], out[t], np.eye(a, dtype=np.int64))
            columns.append(block.reshape(a, -1).astype(np.uint8) & 1)
        for t in range(rank):
            block = np.einsum("a,c,bx->xabc", left[t], out[t], np.eye(b, dtype=np.int64))
            columns.append(block.reshape(b, -1).astype(np.uint8) & 1)
        for t in range(rank):
            block = np.einsum("a,b,cx->xabc", left[t], right[t], np.eye(c, dtype=np.int64))
            columns.append(block.reshape(c, -1).astype(np.uint8) & 1)
        # a row for each unknown: its column of the matrix, packed; the low bits record which unknowns were added
        self.unknowns = sum(self.widths)
        rows = np.packbits(np.concatenate(columns), axis=1, bitorder="little")
        self.pivots: dict[int, tuple[int, int]] = {}
        for unknown, row in enumerate(rows):
            value, used = int.from_bytes(row.tobytes(), "little"), 1 << unknown
            while value:
                high = value.bit_length() - 1
                if high not in self.pivots:
                    self.pivots[high] = (value, used)
                    break
                value ^= self.pivots[high][0]
                used ^= self.pivots[high][1]

    def solve(self, target: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """0 or 1 for each unknown; None where there is no solution."""
        bits = np.packbits((target.reshape(-1) & 1).astype(np.uint8), bitorder="little")
        value, used = int.from_bytes(bits.tobytes(), "little"), 0
        while value:
            high = value.bit_length() - 1
            if high not in self.pivots:
                return None
            value ^= self.pivots[high][0]
            used ^= self.pivots[high][1]
        return np.array([used >> i & 1 for i in range(self.unknowns)], np.int64)


def _signed(factors: Factors, modulus: int) -> Factors:
    """Each coefficient as the integer of least size that it is congruent to."""
    low, middle, high = (np.where(part > modulus // 2, part - modulus, part) for part in factors)
    return low, middle, high


def lifted(scheme: Scheme) -> Scheme | None:
    """The scheme over the integers, exact; None where it has no lift, or none of so few digits."""
    factors = scheme.factors()
    goal = _tensor(definition(scheme.format).factors())
    system = _System(factors)
    modulus = 2
    for _ in range(STEPS):
        signed = _signed(factors, modulus)
        terms = tuple(
            (tuple(map(int, a)), tuple(map(int, b)), tuple(map(int, c))) for a, b, c in zip(*signed, strict=True)
        )
        whole = Scheme(scheme.format, "Z", terms, {**scheme.origin, "lifted": f"from GF(2), by {modulus}"})
        if np.array_equal(_tensor(signed), goal) and not fault_of(whole):
            return whole
        step = system.solve((goal - _tensor(factors)) // modulus)
        if step is None:
            return None
        first, second, third = np.split(step, np.cumsum(system.widths)[:-1])
        changes = (part.reshape(len(scheme.terms), -1) for part in (first, second, third))
        left, right, out = (part + modulus * change for part, change in zip(factors, changes, strict=True))
        factors, modulus = (left, right, out), 2 * modulus
    return None
