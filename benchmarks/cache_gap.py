"""What the gap to Belady is made of: `python -m benchmarks.cache_gap CONVERSATION --name …`.

CONVERSATION: Mooncake's `conversation_trace.jsonl`, of which only the first half is replayed: the second is for the
score. Fitted on the first quarter, measured on the second, with as many blocks as `cache_eviction` has at 3 %.
A class is ranked by the hit density of its censored gaps; an oracle's class knows one thing of the future.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cache_eviction import WHOLE
from benchmarks.report import write
from nightshift.controllers.cache.features import AGES_S, BlockMemory, Floats, densities, worth
from nightshift.controllers.cache.requests import CacheRequest, read
from nightshift.controllers.cache.tree import EvictionPolicy, Ints, Learned, LeastRecent, PrefixTree
from nightshift.controllers.lab.cache.fit import EPOCHS, fit
from nightshift.controllers.lab.cache.trace import Belady, _Foreseen, distinct, hit_rate, lessons

Classes = Callable[[Floats, Floats, int], Ints]
"""Features, seconds until asked again (infinite: never) and the request's number of blocks → a class each."""


def by_turn(seen: Floats, gap_s: Floats, length: int) -> Ints:
    turn, hits = np.expm1(seen[:, 3]).round(), np.expm1(seen[:, 0]).round()
    return (np.minimum(turn, 4) * 4 + np.minimum(hits, 3)).astype(np.int64) * 4


def by_length(seen: Floats, gap_s: Floats, length: int) -> Ints:
    return by_turn(seen, gap_s, length) + int(np.searchsorted((4, 16, 40), length))


def again(within_s: float) -> Classes:
    return lambda seen, gap_s, length: by_turn(seen, gap_s, length) + (gap_s < within_s)


def again_with_errors(share: float) -> Classes:
    random = np.random.default_rng(0)
    return lambda seen, gap_s, length: (
        by_turn(seen, gap_s, length) + (np.isfinite(gap_s) ^ bool(random.random() < share))
    )


def moment(seen: Floats, gap_s: Floats, length: int) -> Ints:
    """Within a factor of two, where it is asked again."""
    return np.log2(np.clip(gap_s, 2.0, 2.0**20)).astype(np.int64)


class Classed:
    """A hit density per class."""

    by_block = False

    def __init__(self, requests: Sequence[CacheRequest], classes: Classes, quarter: int, censored: bool) -> None:
        """`censored`: gaps that end after the first quarter are not seen when it is fitted."""
        self._requests, self._classes, self._end_s = requests, classes, requests[quarter - 1].at_s
        self._events: dict[int, Floats] = {}
        self._censored = censored
        self._tables: dict[int, Floats] = {}
        self._start()
        for request in requests[:quarter]:
            self._count(request)
        self._tables = {each: densities(_chances(counts)[None])[0] for each, counts in self._events.items()}
        self._start()
        self._rows: Floats = np.zeros((0, len(AGES_S) - 1))

    def _start(self) -> None:
        self._memory, self._foreseen, self._passed = BlockMemory(), _Foreseen(self._requests), 0

    def _seen(self, blocks: Sequence[int], at_s: float, ends: Sequence[int]) -> tuple[Ints, Floats]:
        gap = np.array([self._foreseen.next_s(blocks[end - 1]) for end in ends], np.float64) - at_s
        return self._classes(self._memory.visit(blocks, at_s, ends), gap, len(blocks)), gap

    def _count(self, request: CacheRequest) -> None:
        self._foreseen.pass_by(request)
        blocks, left_s = request.blocks[: request.full], self._end_s - request.at_s
        found, gap_s = self._seen(blocks, request.at_s, range(1, len(blocks) + 1))
        for each, gap in zip(found.tolist(), gap_s.tolist(), strict=True):
            known_s = left_s if self._censored else np.inf
            counts = self._events.setdefault(each, np.zeros((2, len(AGES_S) - 1)))
            counts[1] += np.minimum(gap, known_s) >= np.array(AGES_S[:-1])
            if gap <= known_s and gap < AGES_S[-1]:
                counts[0, np.searchsorted(AGES_S, gap, side="right") - 1] += 1

    def touched(self, tree: PrefixTree, slots: Ints, blocks: Sequence[int]) -> None:
        self._foreseen.pass_by(self._requests[self._passed])
        self._passed += 1
        if len(self._rows) < len(tree.last_s):
            more = np.zeros((len(tree.last_s) - len(self._rows), len(AGES_S) - 1))
            self._rows = np.concatenate([self._rows, more])
        if blocks:
            found, _ = self._seen(blocks, tree.now_s, tree.depth[slots].astype(int).tolist())
            self._rows[slots] = [self._tables.get(each, np.zeros(len(AGES_S) - 1)) for each in found.tolist()]

    def ranks(self, tree: PrefixTree, slots: Ints) -> Floats:
        age_s = tree.now_s - tree.last_s[slots]
        return worth(self._rows[slots], age_s) - age_s * 1e-12


def _chances(counts: Floats) -> Floats:
    """Kaplan and Meier's, of events and those at risk."""
    hazard = counts[0] / np.maximum(counts[1], 1.0)
    left = np.concatenate([[1.0], np.cumprod(1.0 - hazard)])
    return np.concatenate([left[:-1] * hazard, left[-1:]])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("conversation", type=Path)
    parser.add_argument("--name", default="cache_gap")
    given = parser.parse_args()
    whole = read(given.conversation)
    capacity, half = int(WHOLE * distinct(whole)), whole[: len(whole) // 2]
    quarter = len(half) // 2
    rows: dict[str, float] = {}
    results: dict[str, Any] = {"requests": len(half), "scored_after": quarter, "blocks": capacity, "hits": rows}
    network = fit(lessons(half[:quarter], 1), 1, EPOCHS, print)
    policies: dict[str, Callable[[], EvictionPolicy]] = {
        "LRU": LeastRecent,
        "learned": lambda: Learned(network),
        "class: turn, hits": lambda: Classed(half, by_turn, quarter, True),
        "class: turn, hits, length": lambda: Classed(half, by_length, quarter, True),
        "oracle: again at all": lambda: Classed(half, again(np.inf), quarter, False),
        "oracle: again at all, wrong for 20 %": lambda: Classed(half, again_with_errors(0.2), quarter, False),
        "oracle: again at all, wrong for 30 %": lambda: Classed(half, again_with_errors(0.3), quarter, False),
        "oracle: again within 110 s": lambda: Classed(half, again(110.0), quarter, False),
        "oracle: when, within a factor of two": lambda: Classed(half, moment, quarter, False),
        "Belady": lambda: Belady(half),
    }
    for name, make in policies.items():
        rows[name] = hit_rate(half, capacity, make(), quarter)
        print(name, round(rows[name], 4), flush=True)
    write(given.name, results)


if __name__ == "__main__":
    main()
