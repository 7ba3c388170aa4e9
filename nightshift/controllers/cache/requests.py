"""Requests to a serving engine, as published traces and `cache.sglang` record them.

The format is Mooncake's (kvcache-ai/Mooncake, FAST25-release): JSON lines with `timestamp` in ms, `input_length` in
tokens and `hash_ids`, a number for each block of 512 tokens and its whole prefix. The last block is seldom full.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from nightshift.collectors.base import Permanent
from nightshift.controllers.cache.features import BLOCK_TOKENS


@dataclass(frozen=True)
class CacheRequest:
    """One request: when it came, its blocks from the first one on, and how many of them are full."""

    at_s: float
    blocks: tuple[int, ...]
    full: int


def read(path: Path) -> list[CacheRequest]:
    """Raises Permanent naming file, line and field where a line is no request of the format."""
    found: list[CacheRequest] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Permanent(f"{path}: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            at_s = float(row["timestamp"]) / 1e3
            blocks = tuple(int(block) for block in row["hash_ids"])
            full = min(int(row["input_length"]) // BLOCK_TOKENS, len(blocks))
        except (ValueError, TypeError, KeyError) as error:
            raise Permanent(f"{path}:{number}: {type(error).__name__}: {error}") from error
        if not math.isfinite(at_s) or not blocks:
            raise Permanent(f"{path}:{number}: no time, or no hash_ids")
        found.append(CacheRequest(at_s, blocks, full))
    if not found:
        raise Permanent(f"{path}: no request")
    return sorted(found, key=lambda request: request.at_s)  # a record of an engine is nearly in order
