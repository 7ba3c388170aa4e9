"""The shield of eviction: a learned policy evicts only while it is ahead of LRU, and shadows show whether it is.

Two trees without KV data serve every request beside the engine's: one under LRU, one under the policy. Each counts
the blocks that it would have had. Their difference, over about the last thousand requests, decides who evicts, and
is the regret that a receipt states. What is lost before a switch is bounded by that window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nightshift.controllers.cache.features import Floats
from nightshift.controllers.cache.tree import EvictionPolicy, Ints, LeastRecent, PrefixTree

_KEPT = 0.999
"""Of what was counted, at each request: its weight is down to a third after a thousand."""


@dataclass
class Duel:
    """What both would have hit. Counts since the start, and recent ones that fade."""

    baseline: PrefixTree
    policy: PrefixTree
    requests: int = 0
    blocks: int = 0
    baseline_hits: int = 0
    policy_hits: int = 0
    recent: float = 0.0
    """Blocks that the policy is ahead by; below 0: behind."""

    @classmethod
    def between(cls, capacity: int, policy: EvictionPolicy) -> Duel:
        return cls(PrefixTree(capacity, LeastRecent()), PrefixTree(capacity, policy))

    @property
    def is_ahead(self) -> bool:
        return self.recent > 0.0

    def request(self, blocks: Sequence[int], at_s: float) -> None:
        theirs, mine = self.baseline.request(blocks, at_s), self.policy.request(blocks, at_s)
        self.requests, self.blocks = self.requests + 1, self.blocks + len(blocks)
        self.baseline_hits, self.policy_hits = self.baseline_hits + theirs, self.policy_hits + mine
        self.recent = self.recent * _KEPT + mine - theirs


class Shielded:
    """A learned policy while it is ahead, else LRU. `switches`: how often the one gave way to the other."""

    by_block = False

    def __init__(self, capacity: int, policy: EvictionPolicy, shadow: EvictionPolicy) -> None:
        """`policy` ranks the real leaves, `shadow` those of its own tree: the same network twice."""
        self._policy, self._baseline = policy, LeastRecent()
        self.duel = Duel.between(capacity, shadow)
        self.switches, self._acts = 0, False

    def touched(self, tree: PrefixTree, slots: Ints, blocks: Sequence[int]) -> None:
        self._policy.touched(tree, slots, blocks)
        self.duel.request(blocks, tree.now_s)
        self.switches += self._acts is not self.duel.is_ahead
        self._acts = self.duel.is_ahead

    def ranks(self, tree: PrefixTree, slots: Ints) -> Floats:
        return (self._policy if self._acts else self._baseline).ranks(tree, slots)
