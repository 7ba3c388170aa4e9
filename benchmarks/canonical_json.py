"""Our canonical JSON beside the `rfc8785` package: `python -m benchmarks.canonical_json`.

Bytes are compared on drawn values; what only one of the two accepts is listed; time is that of one receipt of power
control, of which a large fleet writes tens of thousands a minute. Decision 011 rests on it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import rfc8785

from benchmarks.report import write
from nightshift.collectors.seal import SealError, canonical_json

DRAWN = 20_000
LETTERS = 'abcé€😀\u2028"\\\n\x01zß𝄞'
EDGES: dict[str, Any] = {
    "NaN": float("nan"),
    "2**53": 2**53,
    "-2**53": -(2**53),
    "2**60": 2**60,
    "-0.0": -0.0,
    "a lone surrogate": "\ud800",
    "a key that is no text": {1: 2},
    "bytes": b"x",
}
RECEIPT = {
    "id": "d-1",
    "at_s": 1764000000.25,
    "job": "ml/llm",
    "seen": {f"gpu{i}": {"power_w": 412.5 + i, "util": 0.93, "clock_mhz": 1755} for i in range(8)},
    "proposed": [330.0] * 8,
    "executed": [330.0] * 8,
    "reason": "ok",
}


def drawn(source: random.Random, depth: int = 0) -> Any:
    text = "".join(source.choice(LETTERS) for _ in range(source.randrange(6)))
    match source.randrange(8 if depth < 4 else 6):
        case 0:
            return None
        case 1:
            return source.random() < 0.5
        case 2:
            return text
        case 3:
            return source.randrange(-(2**53) + 1, 2**53)
        case 4:
            return source.uniform(-1, 1) * 10.0 ** source.randrange(-320, 308)
        case 5:
            return float(source.randrange(-(10**6), 10**6))
        case 6:
            return [drawn(source, depth + 1) for _ in range(source.randrange(5))]
        case _:
            return {f"{text}{i}": drawn(source, depth + 1) for i in range(source.randrange(5))}


def outcome(write_json: Callable[[Any], bytes], value: Any) -> str:
    try:
        return repr(write_json(value))
    except (SealError, rfc8785.CanonicalizationError) as error:
        return f"refused: {error}"


def microseconds(write_json: Callable[[Any], bytes]) -> float:
    """CPU time of one receipt: the best of seven, since others only add to it."""
    best = float("inf")
    for _ in range(7):
        began = time.process_time()
        for _ in range(2000):
            write_json(RECEIPT)
        best = min(best, (time.process_time() - began) / 2000)
    return round(best * 1e6, 1)


def main() -> None:
    source = random.Random(8785)
    values = [drawn(source) for _ in range(DRAWN)]
    write(
        "canonical_json",
        {
            "drawn": DRAWN,
            "byte_equal": sum(canonical_json(value) == rfc8785.dumps(value) for value in values),
            "edges": {
                name: {"ours": outcome(canonical_json, value), "rfc8785": outcome(rfc8785.dumps, value)}
                for name, value in EDGES.items()
            },
            "receipt_us": {"ours": microseconds(canonical_json), "rfc8785": microseconds(rfc8785.dumps)},
        },
    )


if __name__ == "__main__":
    main()
