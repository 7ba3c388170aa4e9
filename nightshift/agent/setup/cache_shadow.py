"""The cache lever in shadow: replays what a serving engine recorded, under LRU and under the policy, into receipts.

No coin is needed: what is asked of a cache does not depend on what it evicts, so both serve the same requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from nightshift.agent.setup.policies import stood_up
from nightshift.agent.store.incident_store import Store
from nightshift.agent.store.receipts import Receipts
from nightshift.collectors.base import Permanent
from nightshift.collectors.seal import fingerprint
from nightshift.controllers.cache.features import INTERFACE
from nightshift.controllers.cache.requests import CacheRequest, read
from nightshift.controllers.cache.shield import Shielded
from nightshift.controllers.cache.tree import Learned, LeastRecent, PrefixTree
from nightshift.controllers.decision import Clip, ControlDecision
from nightshift.controllers.outcome import ReceiptOutcome
from nightshift.controllers.policy_file import Network
from nightshift.controllers.promotion import PolicyStanding

WINDOW = 100
"""Requests of one receipt."""


def replay(
    store: Store,
    receipts: Receipts,
    policy: PolicyStanding,
    keys: Sequence[Path],
    data: Sequence[Path],
    capacity: int,
    now_s: float,
) -> int:
    """Keeps a receipt of each window; the same requests again add none. Returns how many there were."""
    file = stood_up(store, INTERFACE, keys)
    if file is None or file.sha256 != policy.manifest_sha256:
        raise Permanent(f"{policy.policy}: its file is not in the store, or no --key signed it")
    found = [each for path in data for each in _windows(read(path), file.network, policy, capacity, now_s)]
    receipts.keep_all([(decision, 0.0, False) for decision, _ in found])
    receipts.settle_all([outcome for _, outcome in found])
    return len(found)


def _windows(
    requests: Sequence[CacheRequest], network: Network, policy: PolicyStanding, capacity: int, now_s: float
) -> Iterator[tuple[ControlDecision, ReceiptOutcome]]:
    rule, shielded = LeastRecent(), Shielded(capacity, Learned(network), Learned(network))
    trees = PrefixTree(capacity, rule), PrefixTree(capacity, shielded)
    for begin in range(0, len(requests) - WINDOW + 1, WINDOW):
        window, hits, switches = requests[begin : begin + WINDOW], [0, 0], shielded.switches
        for request in window:
            for k, tree in enumerate(trees):
                hits[k] += tree.request(request.blocks[: request.full], request.at_s)
        blocks = sum(len(request.blocks) for request in window)
        theirs, mine = hits[0] / blocks, hits[1] / blocks
        name = fingerprint([window[0].at_s, window[-1].at_s, blocks, capacity])[:12]
        clips: tuple[Clip, ...] = ()
        if shielded.switches != switches or not shielded.duel.is_ahead:
            clips = (Clip("behind_lru", "policy", "lru", "LRU was ahead of the policy in this window"),)
        seen = {"requests": len(window), "blocks": blocks, "capacity": capacity}
        decision = ControlDecision(
            id="", kind=INTERFACE.kind, at_s=now_s, mode=policy.mode, unit="cache", job=f"window/{name}",
            policy=policy.policy, fallback="", seen=seen,
            proposed={"hit_rate": mine}, propensity=1.0, clips=clips, executed={"hit_rate": theirs},
            executed_propensity=1.0, baseline={"hit_rate": theirs}, baseline_policy="LRU",
            prediction={"slowdown_executed": 1.0}, why="replayed", arm="baseline",
        )  # fmt: skip
        # the name is of what was asked, so that a window counts once however often it is replayed
        decision = replace(decision, id=fingerprint([policy.manifest_sha256, policy.since_s, name])[:16])
        yield decision, ReceiptOutcome(decision.id, mine - theirs, 1.0)
