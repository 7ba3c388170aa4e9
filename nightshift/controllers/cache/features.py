"""What an eviction policy sees of a prefix, and what it answers: when the prefix is asked for next.

What it sees is a few numbers per block of 512 tokens, kept for longer than the block's KV data: a conversation that
comes back after its blocks left is no new one. Nothing of a request's text is kept, only hashes of its blocks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nightshift.controllers.policy_file import Interface

Floats = NDArray[np.float64]

BLOCK_TOKENS = 512
"""The block of Mooncake's traces, whatever the engine's page is."""
AGES_S = (0.0, 2.0, 20.0, 40.0, 60.0, 80.0, 110.0, 150.0, 200.0, 260.0, 340.0, 450.0, 600.0, 900.0, 1800.0)
"""Edges of the times until the next request. A person reads an answer for about a minute and a half."""
FEATURES = ("log_hits", "log_depth", "log_new", "log_turn", "log_gap", "is_first")
ACTIONS = (*(f"within_{age:g}s" for age in AGES_S[1:]), "later_or_never")
_LATER = np.triu(np.ones((len(AGES_S) - 1, len(AGES_S) - 1), np.bool_))
INTERFACE = Interface("cache", FEATURES, ACTIONS)
_REMEMBERED = 200_000
"""Blocks; some 40 MB, for the hashes of 100 million tokens."""


@dataclass(slots=True)
class _Visit:
    turn: int
    at_s: float
    blocks: int


class BlockMemory:
    """When each block was last asked for, how often, and in which turn of its conversation. Bounded: the block that
    was not asked for longest is forgotten first."""

    def __init__(self, remembered: int = _REMEMBERED) -> None:
        self._remembered = remembered
        self._blocks: OrderedDict[int, tuple[int, _Visit]] = OrderedDict()

    def visit(self, blocks: Sequence[int], at_s: float, ends: Sequence[int]) -> Floats:
        """Notes a request. Returns [n_ends, n_features]: of the prefixes that end after so many of its blocks."""
        seen, known = self._blocks, 0
        before = None
        for block in blocks:
            if (found := seen.get(block)) is None:
                break
            known, before = known + 1, found[1]
        # a new turn holds all of the turn before; what shares less only begins alike
        continued = before is not None and known >= before.blocks
        visit = _Visit(before.turn + 1 if continued and before else 1, at_s, len(blocks))
        gap_s = max(0.0, at_s - before.at_s) if continued and before else 0.0
        for block in blocks:
            hits = seen.pop(block)[0] + 1 if block in seen else 1
            seen[block] = hits, visit
        rows = [(seen[blocks[end - 1]][0], end, len(blocks) - known, visit.turn, gap_s) for end in ends]
        while len(seen) > self._remembered:
            seen.popitem(last=False)
        table = np.array(rows, np.float64).reshape(len(rows), len(FEATURES) - 1)
        return np.column_stack([np.log1p(table), np.full(len(rows), not continued)])


def densities(chances: Floats) -> Floats:
    """[n, n_actions] chances of the next request's time → [n, n_ages] worth of a leaf at the age `AGES_S[k]`.

    The worth is the best ratio, over how long it is kept from there, of the chance of a hit to the time that its
    blocks are occupied: a hit density (N. Beckmann et al., "LHD", NSDI 2018), of the leaf instead of its class.
    """
    ends = np.ones((len(chances), 1))
    left = np.maximum(1.0 - np.cumsum(chances[:, :-1], 1), 1e-9)
    held = (np.concatenate([ends, left[:, :-1]], 1) + left) / 2.0 * np.diff(AGES_S)
    hits, cost = (np.concatenate([0.0 * ends, np.cumsum(x, 1)], 1) for x in (chances[:, :-1], held))
    # [n, from, to]: nothing is won by keeping a leaf until before now
    won, paid = (x[:, None, 1:] - x[:, :-1, None] for x in (hits, cost))
    return np.asarray(np.where(_LATER, won / np.where(_LATER, paid, 1.0), 0.0).max(2))


def worth(table: Floats, age_s: Floats) -> Floats:
    """[n]: rows of `densities` between their ages."""
    k = np.clip(np.searchsorted(AGES_S, age_s, side="right") - 1, 0, len(AGES_S) - 2)
    beyond = np.minimum(k + 1, len(AGES_S) - 2)
    part = np.clip((age_s - np.asarray(AGES_S)[k]) / np.diff(AGES_S)[k], 0.0, 1.0)
    row = np.arange(len(table))
    return np.asarray(table[row, k] * (1.0 - part) + table[row, beyond] * part)
