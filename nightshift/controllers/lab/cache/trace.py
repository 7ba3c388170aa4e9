"""What a prefix cache makes of a trace of requests, what of them a policy learns, and the bound of all policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nightshift.controllers.cache.features import BlockMemory, Floats
from nightshift.controllers.cache.requests import CacheRequest
from nightshift.controllers.cache.tree import EvictionPolicy, Ints, PrefixTree


def distinct(requests: Sequence[CacheRequest]) -> int:
    """Blocks that an unbounded cache would end up with."""
    return len({block for request in requests for block in request.blocks})


def hit_rate(
    requests: Sequence[CacheRequest], capacity: int, policy: EvictionPolicy, warm_up: int = 0, *, full: bool = True
) -> float:
    """Share of the blocks that were there with all blocks before them, over the requests after the
    first `warm_up`. `full`: blocks that are not full are not stored, as in vLLM and SGLang; they are missed."""
    tree = PrefixTree(capacity, policy)
    hits = total = 0
    for number, request in enumerate(requests):
        held = tree.request(request.blocks[: request.full] if full else request.blocks, request.at_s)
        if number >= warm_up:
            hits, total = hits + held, total + len(request.blocks)
    return hits / total if total else float("nan")


class _Foreseen:
    """When each block is asked for next, as the replay of a trace goes on."""

    def __init__(self, requests: Sequence[CacheRequest]) -> None:
        self._times: dict[int, list[float]] = {}
        for request in reversed(requests):
            for block in request.blocks:
                self._times.setdefault(block, []).append(request.at_s)

    def pass_by(self, request: CacheRequest) -> None:
        for block in request.blocks:
            self._times[block].pop()

    def next_s(self, block: int) -> float:
        times = self._times.get(block)
        return times[-1] if times else np.inf


class Belady:
    """The leaf that is asked for last leaves first: needs the future, and bounds every policy."""

    by_block = True

    def __init__(self, requests: Sequence[CacheRequest]) -> None:
        self._foreseen, self._requests = _Foreseen(requests), iter(requests)
        self._foreseen.pass_by(next(self._requests))
        self._next: dict[int, float] = {}

    def touched(self, tree: PrefixTree, slots: Ints, blocks: Sequence[int]) -> None:
        if (request := next(self._requests, None)) is not None:
            self._foreseen.pass_by(request)

    def ranks(self, tree: PrefixTree, slots: Ints) -> Floats:
        return -np.array([self._foreseen.next_s(tree.tail(int(slot))) for slot in slots])


class RememberedFrequent:
    """LFU that remembers the hits of blocks that left, which no bounded cache does."""

    by_block = True

    def __init__(self) -> None:
        self._hits: dict[int, int] = {}

    def touched(self, tree: PrefixTree, slots: Ints, blocks: Sequence[int]) -> None:
        for slot in slots:
            for block in tree.blocks(int(slot)):
                self._hits[block] = self._hits.get(block, 0) + 1

    def ranks(self, tree: PrefixTree, slots: Ints) -> Floats:
        hits = np.array([self._hits[tree.tail(int(slot))] for slot in slots], np.float64)
        return np.asarray(hits * 1e9 + tree.last_s[slots])


@dataclass(frozen=True)
class CacheLessons:
    """What a policy learns from: a few prefixes of each request. `gap_s`: until the last block of the prefix is
    asked for again; infinite where it is not within the trace, of which `left_s` is then left."""

    seen: Floats
    gap_s: Floats
    left_s: Floats
    weight: Floats


_PREFIXES = 6
"""Of each request: all blocks of one are alike but for their depth, and long requests would drown the others."""


def lessons(requests: Sequence[CacheRequest], seed: int = 0) -> CacheLessons:
    """From every request of a trace, in order."""
    memory, foreseen, random = BlockMemory(), _Foreseen(requests), np.random.default_rng(seed)
    end_s, rows = requests[-1].at_s, []
    for request in requests:
        foreseen.pass_by(request)
        full = request.blocks[: request.full]
        ends = np.sort(
            random.choice(np.arange(1, len(full) + 1), min(len(full), _PREFIXES), replace=False)
        ).tolist()
        seen = memory.visit(full, request.at_s, ends)
        gap = np.array([foreseen.next_s(full[end - 1]) for end in ends], np.float64) - request.at_s
        left, weight = end_s - request.at_s, (len(full) / max(len(ends), 1)) ** 0.5
        rows.append((seen, gap, np.full(len(ends), left), np.full(len(ends), weight)))
    return CacheLessons(*(np.concatenate(part) for part in zip(*rows, strict=True)))
