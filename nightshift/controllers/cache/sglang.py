"""The eviction policy of SGLang's radix cache: a strategy of its hook, written against SGLang 0.5.23.

SGLang asks a strategy for the priority of every leaf when it needs room (`srt/mem_cache/radix_cache.py`,
`RadixCache.evict`); the lowest leaves first. `register` adds ours to the strategies that
`--radix-eviction-policy` knows, and is the one place that imports SGLang. A serving host needs NumPy,
cryptography and structlog.

In shadow, the default, the answer is LRU's; two trees without KV data (`cache.shield`) count what LRU and the
policy would have had. With `act` the policy answers while it is ahead. A strategy must never stop the engine: what
fails here falls back to LRU for good, and the log says why.
"""

from __future__ import annotations

import json
import time
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from nightshift.collectors.base import Permanent
from nightshift.collectors.seal import key_id, trusted_keys
from nightshift.controllers.cache.features import AGES_S, BLOCK_TOKENS, INTERFACE, BlockMemory, densities
from nightshift.controllers.cache.shield import Duel
from nightshift.controllers.cache.tree import Learned
from nightshift.controllers.policy_file import PolicyFile, read

NAME = "nightshift"
SHIPPED = Path(__file__).parent / "conversation_policy.json"
SHIPPED_KEY = "f7ab1e134e67e2b5fc0bf3a73da0a654d9d1192819fcb47e3667cbe705939aad"
"""The policy that ships, and the public half of the key that signed it; the private half was not kept."""
_REPORT_S = 60.0


class RadixKey(Protocol):
    """SGLang's key of a node."""

    token_ids: Sequence[int]
    extra_key: str | None


class RadixNode(Protocol):
    """What is read of SGLang's `TreeNode`."""

    key: RadixKey
    parent: Any
    last_access_time: float
    creation_time: float


def shipped() -> PolicyFile:
    """The policy that ships, its signature checked."""
    public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(SHIPPED_KEY))
    return read(SHIPPED, INTERFACE, {key_id(public): public})


class EvictionStrategy:
    """SGLang's interface of a strategy, by shape; its arguments come from `--radix-eviction-policy-config`."""

    def __init__(
        self, capacity_tokens: int, policy: str = "", keys: Sequence[str] = (), act: bool = False, record: str = ""
    ) -> None:
        """`capacity_tokens`: SGLang's `max_total_num_tokens`. `policy`, `keys`: a signed file, and who may have
        signed it; none: the one that ships. `record`: requests are added to this file, in Mooncake's format."""
        self._log = structlog.get_logger("cache")
        found = read(Path(policy), INTERFACE, trusted_keys(map(Path, keys))) if policy else shipped()
        self._network, self._memory, self._act = found.network, BlockMemory(), act
        self.duel = Duel.between(max(1, capacity_tokens // BLOCK_TOKENS), Learned(found.network))
        self._record = open(record, "a", encoding="utf-8", buffering=1) if record else None  # noqa: SIM115  kept
        self._failed, self._reported_s = "", 0.0
        self._log.info("policy loaded", policy=found.name, sha256=found.sha256[:12], act=act)

    def get_priority(self, node: RadixNode) -> float:
        """LRU's in shadow; with `act`, the hit density, while the policy is ahead of LRU."""
        if self._failed:
            return node.last_access_time
        try:
            table = self._noticed(node)
        except Exception as error:  # noqa: BLE001  the engine serves on, whatever is wrong here
            self._failed = f"{type(error).__name__}: {error}"
            self._log.exception("policy failed")
            return node.last_access_time
        # It may turn between two calls of one eviction: that one mixes both orders, and no later one.
        return _worth(table, time.monotonic() - node.last_access_time) if self.acts else node.last_access_time

    @property
    def acts(self) -> bool:
        return self._act and not self._failed and self.duel.is_ahead

    def _noticed(self, node: Any) -> Sequence[float]:
        """The node's table of worths. A node that was asked for since it was last seen here is a new request."""
        stamp = getattr(node, "_nightshift", None)
        if stamp is not None and stamp[0] == node.last_access_time:
            return stamp[1]  # type: ignore[no-any-return]
        above = node.parent
        if above is not None and above.parent is not None and getattr(above, "_nightshift", None) is None:
            self._visit(above, above.creation_time)  # its turn came and went between two evictions
        return self._visit(node, node.last_access_time)

    def _visit(self, node: Any, at_s: float) -> Sequence[float]:
        blocks = _chain(node)[0]
        table: Sequence[float] = [0.0] * (len(AGES_S) - 1)  # shorter than a block: before all others
        if blocks:
            seen = self._memory.visit(blocks, at_s, [len(blocks)])
            table = densities(self._network.probabilities(seen))[0].tolist()
            self.duel.request(blocks, at_s)
            if self._record is not None:
                full = len(blocks) * BLOCK_TOKENS
                line = {"timestamp": at_s * 1e3, "input_length": full, "hash_ids": blocks}
                self._record.write(json.dumps(line) + "\n")
        node._nightshift = node.last_access_time, table
        self._report(at_s)
        return table

    def _report(self, at_s: float) -> None:
        if at_s - self._reported_s < _REPORT_S:
            return
        self._reported_s, duel = at_s, self.duel
        self._log.info(
            "evictions compared", requests=duel.requests, blocks=duel.blocks, lru_hits=duel.baseline_hits,
            policy_hits=duel.policy_hits, acts=self.acts,
        )  # fmt: skip


def _chain(node: Any) -> tuple[list[int], tuple[int, ...], int]:
    """Of the path to the node's end: hashes of its full blocks, the tokens after them, the hash so far. Kept at the
    node; a split changes where a node begins, never where it ends."""
    missing = []
    while (found := getattr(node, "_nightshift_chain", None)) is None and node.parent is not None:
        missing.append(node)
        node = node.parent
    blocks, rest, last = found or ([], (), 0)
    for each in reversed(missing):
        if not blocks and not rest:
            last = zlib.crc32(str(each.key.extra_key).encode())  # hash() of a string differs between processes
        tokens = (*rest, *each.key.token_ids)
        full = len(tokens) // BLOCK_TOKENS * BLOCK_TOKENS
        blocks = list(blocks)
        for begin in range(0, full, BLOCK_TOKENS):
            last = hash((last, tokens[begin : begin + BLOCK_TOKENS]))
            blocks.append(last)
        rest = tokens[full:]
        each._nightshift_chain = blocks, rest, last
    return blocks, rest, last


def _worth(table: Sequence[float], age_s: float) -> float:
    """`features.worth` of one row, without arrays: it is asked once per leaf and eviction."""
    last = len(table) - 1
    k = min(max(bisect_right(AGES_S, age_s) - 1, 0), last)
    part = min(max((age_s - AGES_S[k]) / (AGES_S[k + 1] - AGES_S[k]), 0.0), 1.0)
    return table[k] * (1.0 - part) + table[min(k + 1, last)] * part


def register() -> None:
    """Makes `--radix-eviction-policy nightshift` known to the SGLang of this process. Raises Permanent where its
    hook is not the one that this module was written against."""
    try:
        from sglang.srt.arg_groups.choices import add_radix_eviction_policy_choices
        from sglang.srt.mem_cache import utils

        utils._EVICTION_POLICY_FACTORIES[NAME] = EvictionStrategy
    except (ImportError, AttributeError) as error:
        raise Permanent(f"SGLang's eviction hook is not that of 0.5.23: {error}") from error
    add_radix_eviction_policy_choices([NAME])
