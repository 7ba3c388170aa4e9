"""Pipeline stages that nobody named: a first or last block of ranks that works more or less as one, by design.

Where the inventory does not say which stage a rank holds, ranks of all stages are compared. The stage that carries
the loss and the vocabulary (the last) or the embedding (the first) then looks like a crowd of slow workers: in the
traces that Lin et al. published (OSDI 2025) by a factor of 1.5 and 1.6. Where both hold fewer layers instead, the
stages between look like one; and where only the first stage loads data, like slow loaders. Slow workers are few and
seldom alike; a stage is a whole block of consecutive ranks, at an edge of the job, of a size that divides it, with
ranks much more alike than the block differs from the rest. Two workers that are alike slow and happen to fill the
last block are taken for a stage too: whoever wants them told apart says `pipeline_stage`.

Slow workers are few, and there is a gap between them and everybody else (`few_and_apart`); uneven work has none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nightshift.collectors.frame import Floats

APART = 0.04
"""A block this much slower than the rest may be a stage; less is no news to anybody."""
ALIKE = 0.5
"""Ranks of a stage differ by less than this share of the gap between the stages."""
FEW = 1.0 / 3.0
"""Slow workers are at most this share of a group, but for one, which may be one of two."""
GAP = 0.5
"""From the slowest of the others to the least slow worker, as a share of what that one is slower."""


def by_stage(own_s: Floats) -> list[list[int]]:
    """Groups of ranks that are to be compared with each other; own_s [n] are typical own times by rank (s).

    One group of all where no stage shows. The largest blocks win: of four equal stages with a slow last one, that
    one. First and last stage may both be apart, and may be faster too: they hold fewer layers where they also hold
    the embedding or the loss.
    """
    n = len(own_s)
    everyone = [list(range(n))]
    if n < 4 or not (np.isfinite(own_s).all() and (own_s > 0).all()):
        return everyone
    for size in range(n // 2, 1, -1):
        if n % size:
            continue
        last, first = list(range(n - size, n)), list(range(size))
        for blocks in ([first, last], [last], [first]):
            rest = [rank for rank in range(n) if not any(rank in block for block in blocks)]
            if rest and all(_apart(own_s[block], own_s[rest]) for block in blocks):
                return [*blocks, rest]
    return everyone


def _apart(block: Floats, rest: Floats) -> bool:
    """Whether all of `block` is slower, or all of it faster, than all of the rest, and alike in itself."""
    gap = max(float(block.min() - rest.max()), float(rest.min() - block.max()))
    fastest = min(float(rest.max()), float(block.max()))
    return gap > APART * fastest and float(np.ptp(block)) < ALIKE * gap


def few_and_apart(ratio: Sequence[float], slow: Sequence[bool]) -> set[int]:
    """Which of the `slow` ranks stand apart from all others, as slow workers do, and are few; ratio [n] is a rank's
    own time over its peers' (NaN where not known). As many as possible."""
    order = sorted((n for n in range(len(ratio)) if np.isfinite(ratio[n])), key=lambda n: -ratio[n])
    for count in range(min(sum(slow), int(max(1.0, FEW * len(ratio)))), 0, -1):
        if not all(slow[n] for n in order[:count]):
            continue
        least = ratio[order[count - 1]]
        others = max(ratio[order[count]], 1.0) if count < len(order) else 1.0
        if least - others >= GAP * (least - 1.0):
            return set(order[:count])
    return set()
