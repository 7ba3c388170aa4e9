"""Pipeline stages that nobody named: a first or last block of ranks that is slower as one, by design.

Where the inventory does not say which stage a rank holds, ranks of all stages are compared. The stage that carries
the loss and the vocabulary (the last) or the embedding (the first) then looks like a crowd of slow workers: in the
traces that Lin et al. published (OSDI 2025) by a factor of 1.5 and 1.6. Slow workers are few and seldom alike; a
stage is a whole block of consecutive ranks, at an edge of the job, of a size that divides it, with ranks much more
alike than the block differs from the rest. Two workers that are alike slow and happen to fill the last block are
taken for a stage too: whoever wants them told apart says `pipeline_stage`.
"""

from __future__ import annotations

import numpy as np

from collectors.frame import Floats

APART = 0.04
"""A block this much slower than the rest may be a stage; less is no news to anybody."""
ALIKE = 0.5
"""Ranks of a stage differ by less than this share of the gap between the stages."""


def edge_block(own_s: Floats) -> tuple[int, int] | None:
    """(first, past the last) of the block that is slower as one; own_s [n] are typical own times by rank (s).

    None where there is none. The largest block wins: of four equal stages with a slow last one, that one.
    """
    n = len(own_s)
    if n < 4 or not (np.isfinite(own_s).all() and (own_s > 0).all()):
        return None
    for size in range(n // 2, 1, -1):
        if n % size:
            continue
        for first in (n - size, 0):
            block = own_s[first : first + size]
            rest = np.delete(own_s, slice(first, first + size))
            gap = float(block.min() - rest.max())
            if gap > APART * float(rest.max()) and float(np.ptp(block)) < ALIKE * gap:
                return first, first + size
    return None
