"""Eviction policies, as `nightshift policy train | evaluate` makes and judges them.

Trained on the first half of each trace, judged on the second, which the first half warms: how many leading blocks
of the requests are there, at a few sizes of the cache. Offline: what a request asks for does not depend on what was
evicted, so every trace tells of every policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nightshift.collectors.base import Permanent
from nightshift.controllers.cache.features import FEATURES, INTERFACE
from nightshift.controllers.cache.requests import CacheRequest, read
from nightshift.controllers.cache.shield import Shielded
from nightshift.controllers.cache.tree import EvictionPolicy, Learned, LeastFrequent, LeastRecent
from nightshift.controllers.drift import ranges
from nightshift.controllers.lab.cache.fit import EPOCHS, fit
from nightshift.controllers.lab.cache.trace import (
    Belady,
    CacheLessons,
    RememberedFrequent,
    distinct,
    hit_rate,
    lessons,
)
from nightshift.controllers.lab.learnable import environment_sha256
from nightshift.controllers.policy_file import Interface, Network, PolicyFile

SHARES = (0.01, 0.03, 0.1, 0.3)
"""Capacities, as shares of a trace's distinct blocks."""
SOURCES = ("cache/features.py", "cache/tree.py", "lab/cache/trace.py", "lab/cache/fit.py")


def rules(requests: Sequence[CacheRequest]) -> Mapping[str, Callable[[], EvictionPolicy]]:
    """What a learned policy is held against, and the bound of all."""
    return {
        "LRU": LeastRecent,
        "SLRU": lambda: LeastFrequent(protected=2),
        "LFU": LeastFrequent,
        "LFU, hits remembered": RememberedFrequent,
        "Belady (the future)": lambda: Belady(requests),
    }


def shielded(network: Network, capacity: int) -> Shielded:
    return Shielded(capacity, Learned(network), Learned(network))


class CacheLearnable:
    """See `controllers.lab.learnable.Learnable`."""

    @property
    def interface(self) -> Interface:
        return INTERFACE

    def train(
        self, seed: int, steps: int | None, say: Callable[[str], None], data: Sequence[Path] = ()
    ) -> PolicyFile:
        """`steps`: passes over the data."""
        traces = _traces(data)
        parts = [lessons(requests[: len(requests) // 2], seed) for requests in traces]
        given = CacheLessons(
            *(np.concatenate([getattr(p, name) for p in parts]) for name in CacheLessons.__dataclass_fields__)
        )
        say(f"{len(given.seen)} prefixes of {sum(len(requests) // 2 for requests in traces)} requests")
        network = fit(given, seed, steps or EPOCHS, say)
        training = {
            "algorithm": "censored likelihood of the next request's time, 8 bagged networks",
            "environment_sha256": environment_sha256(SOURCES),
            "seeds": [seed],
            "steps": steps or EPOCHS,
            "envelope": ranges(FEATURES, given.seen),
        }
        return PolicyFile(f"cache-density-{seed}", INTERFACE, network, training, {})

    def evaluate(self, policy: PolicyFile | None, data: Sequence[Path], seeds: Sequence[int]) -> Mapping[str, Any]:
        """Rows by trace, share and policy. Nothing here is drawn, so `seeds` change nothing."""
        rows = []
        for path, requests in zip(data, _traces(data), strict=True):
            after, blocks = len(requests) // 2, distinct(requests)
            for share in SHARES:
                capacity = max(1, int(share * blocks))
                made: dict[str, Callable[[], EvictionPolicy]] = dict(rules(requests))
                if policy is not None:
                    made["learned"] = lambda: Learned(policy.network)
                    made["learned, shielded"] = lambda size=capacity: shielded(policy.network, size)  # type: ignore[misc]
                for name, make in made.items():
                    found = hit_rate(requests, capacity, make(), after)
                    rows.append({"trace": path.name, "share": share, "policy": name, "hits": round(found, 4)})
        return {"rows": rows}


def _traces(data: Sequence[Path]) -> list[list[CacheRequest]]:
    if not data:
        raise Permanent("--data: give at least one trace of requests, JSON lines with timestamp and hash_ids")
    traces = [read(path) for path in data]
    for path, requests in zip(data, traces, strict=True):
        if len(requests) < 4:
            raise Permanent(f"{path}: {len(requests)} requests; two halves need at least 4")
    return traces


LEARNABLE = CacheLearnable()
