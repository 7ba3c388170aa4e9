"""What stays in a KV cache: `python -m benchmarks.cache_eviction CONVERSATION SYNTHETIC AGENTS --name …`.

CONVERSATION and SYNTHETIC: `conversation_trace.jsonl` and `synthetic_trace.jsonl` of kvcache-ai/Mooncake (FAST'25;
anonymised requests of one hour, and Poisson arrivals of public conversations). AGENTS: the folder `traces`
of callanjfox/kv-cache-tester: sessions of a coding agent with real times within; every twelfth is taken, and when
it begins is drawn by us over an hour, so its figures are of our own making in part.

The networks are trained on the first half of CONVERSATION (five seeds) and on nothing else. Scored: the second half
of CONVERSATION, and the second halves of the two other traces, each warmed by its own first half. Figure: leading
blocks that were there, of all blocks. ARC, S3-FIFO, SLRU and W-TinyLFU are libCacheSim's (`pip install --no-deps
libcachesim`), block by block from a request's end to its beginning, so that ends leave first.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import write
from nightshift.controllers.cache.requests import CacheRequest, read
from nightshift.controllers.cache.tree import Learned, LeastRecent
from nightshift.controllers.lab.cache.fit import EPOCHS, fit
from nightshift.controllers.lab.cache.learn import SHARES, rules, shielded
from nightshift.controllers.lab.cache.trace import distinct, hit_rate, lessons

PEERS = ("LRU", "ARC", "S3FIFO", "SLRU", "WTinyLFU")
WHOLE = 0.03
"""Here all networks, the peers and the bound are measured; at the other shares the rules and one network."""


def agents(folder: Path, every: int = 12, hours: float = 1.0) -> list[CacheRequest]:
    """Sessions; when each begins is drawn. Eight blocks of 64 tokens make one of 512."""
    random, found = np.random.default_rng(0), []
    for number, path in enumerate(sorted(folder.glob("trace_*.json"))[::every]):
        begins = random.uniform(0.0, hours * 3600.0)
        for request in json.loads(path.read_text())["requests"]:
            ids, key, blocks = request.get("hash_ids") or [], hash(number), []
            for k in range(0, len(ids) - 7, 8):
                key = hash((key, *ids[k : k + 8]))
                blocks.append(key)
            if blocks:
                found.append(CacheRequest(begins + float(request["t"]), tuple(blocks), len(blocks)))
    return sorted((r for r in found if r.at_s < hours * 3600.0), key=lambda r: r.at_s)


def peer(requests: Sequence[CacheRequest], capacity: int, name: str, after: int) -> float:
    """libCacheSim's policy on single blocks."""
    import libcachesim  # type: ignore[import-untyped]  # it has no types

    cache = getattr(libcachesim, name)(capacity)
    ask, hits, total = libcachesim.Request(), 0, 0
    ask.obj_size = 1
    names = {block: k for k, block in enumerate({block for r in requests for block in r.blocks})}
    for number, request in enumerate(requests):
        there = []
        for block in reversed(request.blocks[: request.full]):
            ask.obj_id = names[block]
            there.append(cache.get(ask))
        if number >= after:
            there.reverse()
            hits += there.index(False) if False in there else len(there)
            total += len(request.blocks)
    return hits / total


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("conversation", type=Path)
    parser.add_argument("synthetic", type=Path)
    parser.add_argument("agents", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--name", default="cache_eviction")
    given = parser.parse_args()
    traces = {"conversation": read(given.conversation), "synthetic": read(given.synthetic)}
    traces["agents"] = agents(given.agents)
    first = traces["conversation"][: len(traces["conversation"]) // 2]
    began_s = time.monotonic()
    networks = [fit(lessons(first, seed), seed, EPOCHS, print) for seed in range(1, given.seeds + 1)]
    results: dict[str, Any] = {"train_s_each": round((time.monotonic() - began_s) / given.seeds, 1)}
    for name, requests in traces.items():
        after, blocks = len(requests) // 2, distinct(requests)
        about = results[name] = {"requests": len(requests), "distinct_blocks": blocks}
        about["unbounded"] = hit_rate(requests, blocks, LeastRecent(), after)
        for share in SHARES:
            row = about[f"{share:g}"] = {}
            measured = partial(hit_rate, requests, max(1, int(share * blocks)), warm_up=after)
            judged = networks if share == WHOLE else networks[:1]
            for rule, make in rules(requests).items():
                if share == WHOLE or not rule.startswith("Belady"):
                    row[rule] = measured(make())
            row["LRU, blocks that are not full too"] = measured(LeastRecent(), full=False)
            row["learned"] = [measured(Learned(network)) for network in judged]
            row["learned, shielded"] = []
            for network in judged[:2]:
                policy = shielded(network, max(1, int(share * blocks)))
                row["learned, shielded"].append(measured(policy))
                row.setdefault("switches", []).append(policy.switches)
            for each in PEERS if share == WHOLE else ():
                row[f"libCacheSim {each}"] = peer(requests, max(1, int(share * blocks)), each, after)
            row["s"] = round(time.monotonic() - began_s)
            print(name, share, {k: np.round(np.mean(v), 4) for k, v in row.items()}, flush=True)
            write(given.name, results)


if __name__ == "__main__":
    main()
