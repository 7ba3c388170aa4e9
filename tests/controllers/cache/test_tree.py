"""The prefix tree without KV data: it holds what an engine would hold, and evicts only from the ends of leaves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.controllers.cache.features import (
    ACTIONS,
    AGES_S,
    FEATURES,
    INTERFACE,
    BlockMemory,
    densities,
    worth,
)
from nightshift.controllers.cache.shield import Shielded
from nightshift.controllers.cache.tree import EvictionPolicy, Learned, LeastFrequent, LeastRecent, PrefixTree
from nightshift.controllers.policy_file import Network, Normaliser

Requests = list[tuple[tuple[int, ...], float]]


def network(seed: int = 0) -> Network:
    random = np.random.default_rng(seed)
    weight, wide = random.normal(size=(len(ACTIONS), len(FEATURES))), len(FEATURES)
    return Network(Normaliser(np.zeros(wide), np.ones(wide)), ((weight, np.zeros(len(ACTIONS))),))


@st.composite
def requests(draw: st.DrawFn) -> Requests:
    """Conversations that grow, begin alike and come back; a block's number stands for its whole prefix."""
    rows = draw(
        st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9), st.integers(0, 90)), min_size=1, max_size=40)
    )
    found, at_s = [], 0.0
    for chat, length, gap in rows:
        at_s += gap
        found.append((tuple(k if k < 2 else chat * 100 + k for k in range(length)), at_s))
    return found


POLICIES = {
    "lru": lambda _: LeastRecent(),
    "lfu": lambda _: LeastFrequent(),
    "slru": lambda _: LeastFrequent(2),
    "learned": lambda _: Learned(network()),
    "shielded": lambda capacity: Shielded(capacity, Learned(network()), Learned(network())),
}


@pytest.mark.parametrize("name", POLICIES)
@given(asked=requests(), capacity=st.integers(1, 25))
@settings(max_examples=20, deadline=None)
def test_a_tree_never_exceeds_its_capacity_and_its_hits_are_blocks_that_were_asked_for_before(
    name: str, asked: Requests, capacity: int
) -> None:
    tree, seen = PrefixTree(capacity, POLICIES[name](capacity)), set[int]()
    for blocks, at_s in asked:
        held = tree.request(blocks, at_s)
        assert 0 <= held <= min(len(blocks), capacity)
        assert set(blocks[:held]) <= seen
        seen |= set(blocks)
        assert tree.size <= capacity
        # at once again: nothing was evicted in between, so all that fitted is there
        assert tree.request(blocks, at_s) == min(len(blocks), capacity)


@given(asked=requests())
@settings(max_examples=20, deadline=None)
def test_in_a_tree_with_room_for_all_every_policy_hits_the_same(asked: Requests) -> None:
    def held(policy: EvictionPolicy) -> list[int]:
        tree = PrefixTree(10_000, policy)
        return [tree.request(blocks, at_s) for blocks, at_s in asked]

    first = held(LeastRecent())
    assert all(held(POLICIES[name](10_000)) == first for name in POLICIES)


def test_the_end_of_the_least_recent_conversation_leaves_first() -> None:
    tree = PrefixTree(6, LeastRecent())
    tree.request((1, 2, 3), 0.0)
    tree.request((1, 7, 8), 1.0)
    tree.request((1, 20, 21), 2.0)  # one block too many: 3, the end of the oldest
    assert tree.size == 6
    assert tree.request((1, 2, 3), 3.0) == 2


def test_no_capacity_is_refused() -> None:
    with pytest.raises(ValueError, match="capacity: 0 blocks"):
        PrefixTree(0, LeastRecent())


def test_a_memory_tells_a_next_turn_from_a_conversation_that_only_begins_alike() -> None:
    memory, named = BlockMemory(), FEATURES.index
    first = memory.visit([1, 2, 3], 0.0, [3])[0]
    turn = memory.visit([1, 2, 3, 4], 60.0, [4])[0]
    other = memory.visit([1, 9], 90.0, [2])[0]
    assert first[named("is_first")] == other[named("is_first")] == 1.0
    assert turn[named("is_first")] == 0.0
    assert np.expm1(turn[[named("log_turn"), named("log_gap"), named("log_new")]]) == pytest.approx([2, 60, 1])


def test_a_memory_forgets_the_block_that_was_not_asked_for_longest() -> None:
    memory, hits = BlockMemory(remembered=4), FEATURES.index("log_hits")
    memory.visit([1, 2, 3, 4], 0.0, [4])
    memory.visit([5], 1.0, [1])
    assert memory.visit([1], 2.0, [1])[0, hits] == pytest.approx(np.log1p(1))
    assert memory.visit([5], 3.0, [1])[0, hits] == pytest.approx(np.log1p(2))


@given(st.lists(st.floats(0.01, 1.0), min_size=len(ACTIONS), max_size=len(ACTIONS)))
def test_a_hit_density_is_positive_and_no_higher_than_the_best_rate_of_its_intervals(weights: list[float]) -> None:
    chances = np.array([weights]) / sum(weights)
    table = densities(chances)
    left = np.maximum(1.0 - np.cumsum(chances[:, :-1], 1), 1e-9)
    assert (table > 0).all()
    assert (table <= (chances[:, :-1] / (left * np.diff(AGES_S))).max() * (1 + 1e-9)).all()
    assert worth(table, np.array([0.0]))[0] == pytest.approx(table[0, 0])


def test_a_leaf_whose_next_request_is_near_is_worth_more_than_one_that_is_asked_for_late_or_never() -> None:
    soon, late = np.full((2, len(ACTIONS)), 1e-6)
    soon[4], late[-1] = 1.0, 1.0
    table = densities(np.array([soon, late]) / np.array([soon, late]).sum(1, keepdims=True))
    assert (table[0, :4] > 100 * table[1, :4]).all()


def test_the_interface_is_of_features_and_intervals() -> None:
    assert (INTERFACE.kind, len(INTERFACE.actions)) == ("cache", len(AGES_S))


class Newest:
    """Evicts what was just asked for: the worst there is for a conversation."""

    by_block = False

    def touched(self, tree: PrefixTree, slots: np.ndarray, blocks: Sequence[int]) -> None: ...

    def ranks(self, tree: PrefixTree, slots: np.ndarray) -> np.ndarray:
        return -tree.last_s[slots]


def test_behind_the_shield_a_policy_that_is_behind_evicts_nothing() -> None:
    rounds = [((100 * k, 100 * k + 1, 100 * k + 2), float(n)) for n in range(1, 50) for k in (n, n - 1)]

    def hits(policy: EvictionPolicy) -> int:
        tree = PrefixTree(9, policy)
        return sum(tree.request(blocks, at_s) for blocks, at_s in rounds)

    shielded = Shielded(9, Newest(), Newest())
    assert hits(Newest()) < hits(LeastRecent())
    assert hits(shielded) == hits(LeastRecent())
    assert shielded.switches == 0
    assert shielded.duel.baseline_hits - shielded.duel.policy_hits > 0
