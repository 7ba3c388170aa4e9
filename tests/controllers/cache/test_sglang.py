"""The adapter for SGLang's radix cache, on nodes of the shape of `TreeNode` (SGLang 0.5.23), and on the real hook
where it is installed."""

from __future__ import annotations

import heapq
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nightshift.collectors.base import Permanent
from nightshift.collectors.seal import Signer
from nightshift.controllers.cache import sglang
from nightshift.controllers.cache.features import ACTIONS, AGES_S, BLOCK_TOKENS, FEATURES, INTERFACE, worth
from nightshift.controllers.policy_file import Network, Normaliser, PolicyFile, PolicyRefused, write

BLOCK = list(range(BLOCK_TOKENS))


class Key:
    """As `RadixKey`."""

    def __init__(self, token_ids: list[int], extra_key: str | None = None) -> None:
        self.token_ids, self.extra_key = token_ids, extra_key

    def __len__(self) -> int:
        return len(self.token_ids)


class TreeNode:
    """As `TreeNode` of `srt/mem_cache/radix_cache.py`: what its strategies read, and `__lt__` for its heap."""

    def __init__(self, parent: TreeNode | None, tokens: list[int], at_s: float) -> None:
        self.parent, self.key = parent, Key(tokens)
        self.last_access_time = self.creation_time = at_s
        self.hit_count, self.children, self.lock_ref = 1, {}, 0

    def __lt__(self, other: TreeNode) -> bool:
        return self.last_access_time < other.last_access_time


@pytest.fixture
def policy(tmp_path: Path) -> dict[str, Any]:
    """A policy that expects every later turn within two seconds, and a first one never."""
    signer, wide = Signer.generate(), len(FEATURES)
    weight, bias = np.zeros((len(ACTIONS), wide)), np.zeros(len(ACTIONS))
    weight[0, FEATURES.index("is_first")], weight[-1, FEATURES.index("is_first")] = -20.0, 20.0
    bias[0] = 10.0
    network = Network(Normaliser(np.zeros(wide), np.ones(wide)), ((weight, bias),))
    training = {"environment_sha256": "0" * 64, "seeds": [1]}
    write(tmp_path / "policy.json", PolicyFile("test", INTERFACE, network, training, {}), signer)
    (tmp_path / "key.pub").write_text(signer.public.public_bytes_raw().hex())
    return {
        "capacity_tokens": 8 * BLOCK_TOKENS,
        "policy": str(tmp_path / "policy.json"),
        "keys": [str(tmp_path / "key.pub")],
    }


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(sglang.time, "monotonic", lambda: now[0])
    return now


def tree() -> tuple[TreeNode, TreeNode, TreeNode]:
    """The end of a conversation in its second turn, one in its first, and one shorter than a block."""
    root = TreeNode(None, [], 0.0)
    first = TreeNode(root, BLOCK + BLOCK, 10.0)
    second = TreeNode(first, BLOCK, 50.0)
    once = TreeNode(root, [7, *BLOCK, *BLOCK], 90.0)
    return second, once, TreeNode(root, [5] * 20, 95.0)


def order(strategy: sglang.EvictionStrategy, leaves: tuple[TreeNode, ...]) -> list[TreeNode]:
    """As `RadixCache.evict` does."""
    heap = [(strategy.get_priority(node), node) for node in leaves]
    heapq.heapify(heap)
    return [heapq.heappop(heap)[1] for _ in leaves]


def test_in_shadow_the_order_is_that_of_lru(policy: dict[str, Any], clock: list[float]) -> None:
    second, once, short = tree()
    strategy = sglang.EvictionStrategy(**policy)
    assert order(strategy, (once, short, second)) == [second, once, short]
    assert strategy.duel.requests == 3  # both turns of the first conversation, and the other one
    assert not strategy.acts


def test_acting_and_ahead_it_evicts_the_conversation_that_will_not_come_back(
    policy: dict[str, Any], clock: list[float]
) -> None:
    second, once, short = tree()
    strategy = sglang.EvictionStrategy(**policy, act=True)
    assert order(strategy, (once, short, second)) == [second, once, short]  # not ahead yet: LRU
    strategy.duel.recent = 1.0
    clock[0] = 51.0
    assert order(strategy, (once, short, second)) == [short, once, second]


def test_a_turn_that_came_between_two_evictions_is_counted(policy: dict[str, Any], clock: list[float]) -> None:
    second, _, _ = tree()
    strategy = sglang.EvictionStrategy(**policy)
    strategy.get_priority(second)
    strategy.get_priority(second)
    assert strategy.duel.requests == 2
    second.last_access_time = 80.0
    strategy.get_priority(second)
    assert strategy.duel.requests == 3


def test_a_split_leaves_the_hashes_of_the_lower_node_as_they_were(policy: dict[str, Any]) -> None:
    root = TreeNode(None, [], 0.0)
    low = TreeNode(root, BLOCK + BLOCK + BLOCK, 1.0)
    before = sglang._chain(low)[0]
    high = TreeNode(root, BLOCK, 2.0)
    low.parent, low.key = high, Key(BLOCK + BLOCK)
    assert sglang._chain(low)[0] == before
    assert sglang._chain(high)[0] == before[:1]
    assert sglang._chain(TreeNode(root, BLOCK, 3.0))[0] == before[:1]


def test_another_namespace_has_other_hashes() -> None:
    root = TreeNode(None, [], 0.0)
    mine, theirs = TreeNode(root, BLOCK, 0.0), TreeNode(root, BLOCK, 0.0)
    theirs.key.extra_key = "lora-2"
    assert sglang._chain(mine)[0] != sglang._chain(theirs)[0]


def test_what_is_recorded_can_be_trained_on(policy: dict[str, Any], clock: list[float], tmp_path: Path) -> None:
    from nightshift.controllers.cache.requests import read

    strategy = sglang.EvictionStrategy(**policy, record=str(tmp_path / "mine.jsonl"))
    order(strategy, tree())
    found = read(tmp_path / "mine.jsonl")
    assert [(request.at_s, request.full) for request in found] == [(10.0, 2), (50.0, 3), (90.0, 2)]
    assert found[1].blocks[:2] == found[0].blocks
    assert set(json.loads((tmp_path / "mine.jsonl").read_text().splitlines()[0])) == {
        "timestamp", "input_length", "hash_ids",
    }  # fmt: skip


def test_a_failure_leaves_the_engine_with_lru(policy: dict[str, Any], clock: list[float]) -> None:
    second, once, short = tree()
    strategy = sglang.EvictionStrategy(**policy, act=True)
    strategy.duel.recent = 1.0
    second.key = None  # type: ignore[assignment]  # another SGLang, another shape
    assert order(strategy, (once, short, second)).count(second) == 1
    assert not strategy.acts
    assert order(strategy, (once, short, second)) == [second, once, short]
    assert "AttributeError" in strategy._failed


def test_a_file_that_no_trusted_key_signed_is_refused(policy: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "other.pub").write_text(Signer.generate().public.public_bytes_raw().hex())
    with pytest.raises(PolicyRefused):
        sglang.EvictionStrategy(**{**policy, "keys": [str(tmp_path / "other.pub")]})


def test_the_policy_that_ships_is_signed_and_loads_in_shadow() -> None:
    strategy = sglang.EvictionStrategy(capacity_tokens=100_000)
    assert not strategy.acts


@pytest.mark.parametrize("age_s", [0.0, 1.0, 39.9, 1799.0, 1e6])
def test_the_worth_of_one_node_is_that_of_a_row(age_s: float) -> None:
    table = np.random.default_rng(0).random(len(AGES_S) - 1)
    assert sglang._worth(table.tolist(), age_s) == pytest.approx(worth(table[None], np.array([age_s]))[0])


def test_without_sglang_registering_says_what_is_missing() -> None:
    try:
        from sglang.srt.mem_cache import utils
    except ImportError:
        with pytest.raises(Permanent, match="eviction hook"):
            sglang.register()
    else:
        sglang.register()
        strategy = utils.get_eviction_strategy("nightshift", {"capacity_tokens": 1000})
        assert isinstance(strategy, sglang.EvictionStrategy)
