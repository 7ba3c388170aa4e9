"""A prefix tree without its KV data: which blocks an engine would hold under a policy, at a few bytes each.

It is what a policy is judged on, and the shadow that runs beside a real cache. Blocks are hashes in which a block's
whole prefix takes part (Mooncake, vLLM and SGLang's hashes are), a request is a row of them. Only the end of a leaf
leaves, as in SGLang's radix cache: a block is of no use without all blocks before it.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from nightshift.controllers.cache.features import AGES_S, BlockMemory, Floats, densities, worth
from nightshift.controllers.policy_file import Network

Ints = NDArray[np.int64]
_AGES = len(AGES_S) - 1


class EvictionPolicy(Protocol):
    """Ranks leaves. `by_block`: a leaf's rank changes with the block at its end, so it is ranked again for each."""

    by_block: bool

    def touched(self, tree: PrefixTree, slots: Ints, blocks: Sequence[int]) -> None:
        """A request for `blocks` came by; `slots`: the nodes on its path, from the root on, where any is stored."""
        ...

    def ranks(self, tree: PrefixTree, slots: Ints) -> Floats:
        """[n]: of the leaves in these slots, the lowest leaves first."""
        ...


class LeastRecent:
    """LRU: SGLang's default."""

    by_block = False

    def touched(self, tree: PrefixTree, slots: Ints, blocks: Sequence[int]) -> None: ...

    def ranks(self, tree: PrefixTree, slots: Ints) -> Floats:
        return tree.last_s[slots]


class LeastFrequent:
    """LFU, the least recent first among equals; with a `protected` number of hits: SLRU, as SGLang has it."""

    by_block = False

    def __init__(self, protected: int | None = None) -> None:
        self._protected = protected

    def touched(self, tree: PrefixTree, slots: Ints, blocks: Sequence[int]) -> None: ...

    def ranks(self, tree: PrefixTree, slots: Ints) -> Floats:
        hits = tree.hits[slots]
        group = hits if self._protected is None else hits >= self._protected
        return np.asarray(group * 1e9 + tree.last_s[slots])


class Learned:
    """By the network's hit density. It is asked once per node and request; its answer is a table over ages."""

    by_block = False

    def __init__(self, network: Network) -> None:
        self._network, self._memory = network, BlockMemory()
        self._tables: Floats = np.zeros((0, _AGES))

    def touched(self, tree: PrefixTree, slots: Ints, blocks: Sequence[int]) -> None:
        if len(self._tables) < len(tree.last_s):
            self._tables = np.concatenate([self._tables, np.zeros((len(tree.last_s) - len(self._tables), _AGES))])
        seen = self._memory.visit(blocks, tree.now_s, tree.depth[slots].astype(int).tolist())
        if len(slots):
            self._tables[slots] = densities(self._network.probabilities(seen))

    def ranks(self, tree: PrefixTree, slots: Ints) -> Floats:
        age_s = tree.now_s - tree.last_s[slots]
        return worth(self._tables[slots], age_s) - age_s * 1e-12  # the older one first among equals


class PrefixTree:
    """Nodes live in slots of arrays, so that all leaves are ranked in one step. `capacity`: blocks.

    Times are what the caller says they are, in seconds, and never run backwards.
    """

    def __init__(self, capacity: int, policy: EvictionPolicy) -> None:
        if capacity < 1:
            raise ValueError(f"capacity: {capacity} blocks; at least 1 is needed")
        self.capacity, self.policy, self.size, self.now_s = capacity, policy, 0, 0.0
        self._free: list[int] = []
        self._blocks: list[list[int]] = []
        self._children: list[dict[int, int]] = []
        self._first: list[int] = []
        self._leaf = np.zeros(0, np.bool_)
        self.parent = np.zeros(0, np.int64)
        self.last_s, self.hits, self.length, self.depth = np.zeros(0), np.zeros(0), np.zeros(0), np.zeros(0)
        self._root = self._node(-1, [])

    def request(self, blocks: Sequence[int], at_s: float) -> int:
        """Serves a request: how many of its leading blocks were there. Afterwards all of it is, where it fits."""
        self.now_s = max(at_s, self.now_s)
        path, held = self._match(blocks)
        rest = list(blocks[held:])
        self._evict(self.size + len(rest) - self.capacity, path)
        rest = rest[: self.capacity - self.size]
        if rest:
            path.append(self._grow(path[-1] if path else self._root, rest))
        slots = np.array(path, np.int64)
        self.last_s[slots] = self.now_s
        self.hits[slots] += 1.0
        self.policy.touched(self, slots, blocks)
        return held

    def tail(self, slot: int) -> int:
        """The last block of a node."""
        return self._blocks[slot][-1]

    def blocks(self, slot: int) -> Sequence[int]:
        """The blocks of a node."""
        return self._blocks[slot]

    def _match(self, blocks: Sequence[int]) -> tuple[list[int], int]:
        """Nodes on the path, a node that is matched in part split before; and how many blocks they hold."""
        path: list[int] = []
        node, held = self._root, 0
        while held < len(blocks) and (child := self._children[node].get(blocks[held])) is not None:
            mine = self._blocks[child]
            run = len(mine)
            if mine != list(blocks[held : held + run]):
                run = next(
                    i for i, block in enumerate(mine) if held + i >= len(blocks) or block != blocks[held + i]
                )
                child = self._split(child, run)
            path.append(child)
            node, held = child, held + run
        return path, held

    def _split(self, low: int, at: int) -> int:
        """The upper part as a node of its own."""
        blocks, above = self._blocks[low], int(self.parent[low])
        high = self._node(above, blocks[:at])
        self.hits[high], self.last_s[high] = self.hits[low], self.last_s[low]
        self._children[above][blocks[0]] = high
        self._children[high][blocks[at]] = low
        self._blocks[low], self.parent[low], self._first[low] = blocks[at:], high, blocks[at]
        self.length[low] -= at
        return high

    def _grow(self, above: int, blocks: list[int]) -> int:
        node = self._node(above, blocks)
        self._children[above][blocks[0]] = node
        self._leaf[above], self._leaf[node] = False, True
        self.size += len(blocks)
        return node

    def _node(self, above: int, blocks: list[int]) -> int:
        if not self._free:
            self._widen()
        slot = self._free.pop()
        self._blocks[slot], self._children[slot] = blocks, {}
        self._first[slot] = blocks[0] if blocks else -1
        self.parent[slot], self.last_s[slot] = above, self.now_s
        self.hits[slot], self.length[slot] = 0.0, len(blocks)
        self.depth[slot] = len(blocks) + (self.depth[above] if above >= 0 else 0.0)
        return slot

    def _widen(self) -> None:
        old, more = len(self.last_s), max(64, len(self.last_s))
        for name in ("parent", "last_s", "hits", "length", "depth", "_leaf"):
            array = getattr(self, name)
            setattr(self, name, np.concatenate([array, np.zeros(more, array.dtype)]))
        self._blocks += [[] for _ in range(more)]
        self._children += [{} for _ in range(more)]
        self._first += [-1] * more
        self._free += range(old + more - 1, old - 1, -1)

    def _evict(self, need: int, pinned: Sequence[int]) -> None:
        """Frees so many blocks from the ends of leaves, or all that no request on its way needs."""
        if need <= 0:
            return
        open_ = self._leaf.copy()
        open_[list(pinned)] = False
        slots = np.flatnonzero(open_)
        ranks = self.policy.ranks(self, slots) if len(slots) else np.zeros(0)
        if (
            len(slots) > need and not self.policy.by_block
        ):  # each leaf has a block at least, so no other can be among those that leave
            few = np.argpartition(ranks, need - 1)[:need]
            ranks, slots = ranks[few], slots[few]
        order = list(zip(ranks.tolist(), slots.tolist(), strict=True))
        heapq.heapify(order)
        while need > 0 and order:
            _, leaf = heapq.heappop(order)
            mine = self._blocks[leaf]
            cut = 1 if self.policy.by_block else min(need, len(mine))
            need -= cut
            self.size -= cut
            if cut < len(mine):
                del mine[len(mine) - cut :]
                self.depth[leaf] -= cut
                self.length[leaf] -= cut
                rank = self.policy.ranks(self, np.array([leaf], np.int64))[0]
                heapq.heappush(order, (float(rank), leaf))
                continue
            above = self._remove(leaf)
            if above != self._root and not self._children[above]:
                self._leaf[above] = True
                if above not in pinned:
                    rank = self.policy.ranks(self, np.array([above], np.int64))[0]
                    heapq.heappush(order, (float(rank), above))

    def _remove(self, leaf: int) -> int:
        above = int(self.parent[leaf])
        del self._children[above][self._first[leaf]]
        self._leaf[leaf] = False
        self._blocks[leaf] = []
        self._free.append(leaf)
        return above
