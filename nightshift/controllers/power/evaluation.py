"""The held-out evaluation that ships with the heuristic, signed: it stands in for the heuristic's shadow.

The heuristic has no training, so shadow on a cluster would show again what measured sweeps that it was not tuned on
show already. `python -m benchmarks.power_memory` judges it on those and writes the file; the project signs it. It
speaks for one set of constants, and for nothing learned.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from nightshift.collectors.base import Permanent
from nightshift.collectors.seal import SealError, key_id, open_envelope
from nightshift.controllers.decision import Mode
from nightshift.controllers.promotion import PromotionCheck, PromotionEvidence

PAYLOAD_TYPE = "application/vnd.nightshift.evaluation+json"
SHIPPED = Path(__file__).parent / "descent_evaluation.json"
SHIPPED_KEY = "8a1a149d534d32af4d5f67ad0b7e8a8ce06a48afd88067006fccf27796403784"
"""The public half of the key that signed the file; the private half was not kept."""
LEAST_WORKLOADS = 60
LIMITS = {"over": 0.005, "clearly": 0.001, "beyond": 0.0005}
"""Shares of windows over a slowdown budget, by a quarter of a point, and by one point. The last is not nought: a
curve may break off below the lowest level that was tried, and the next window takes it back."""
BUDGET = "5%"
"""The slowdown budget by default, at which the limits hold. Other budgets are shown beside it."""


def shipped(rule_sha256: str, path: Path = SHIPPED, key: str = SHIPPED_KEY) -> PromotionEvidence | None:
    """The evidence of the evaluation that ships; None where it is of other constants. Raises Permanent, naming the
    file, where it is not signed by the project or not of this form."""
    public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(key))
    try:
        envelope = json.loads(path.read_text(encoding="utf-8"))
        body = json.loads(open_envelope(envelope, PAYLOAD_TYPE, {key_id(public): public})[0])
        return _evidence(body) if body["rule_sha256"] == rule_sha256 else None
    except (OSError, SealError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Permanent(f"{path}: {type(error).__name__}: {error}") from error


def _evidence(body: Mapping[str, Any]) -> PromotionEvidence:
    """From the rows of each set of sweeps and budget. A figure that is missing raises KeyError."""
    held_out = body["held_out"]
    workloads = sum(budgets[BUDGET]["curves"] for budgets in held_out.values())
    least = min(row["node_saved_95"][0] for budgets in held_out.values() for row in budgets.values())
    checks = [
        _check("workloads", -workloads, -LEAST_WORKLOADS, f"{workloads} of {LEAST_WORKLOADS} measured workloads"),
        _check("gain", -least, 0.0, f"node energy saved per work: at least {least:.4f} in each set"),
    ]
    for name, limit in LIMITS.items():
        worst: dict[str, float] = {}
        for budget, row in (pair for budgets in held_out.values() for pair in budgets.items()):
            worst[budget] = max(worst.get(budget, 0.0), row[name])
        words = ", ".join(f"{share:.3%} of windows at {budget}" for budget, share in sorted(worst.items()))
        checks.append(_check(name, worst[BUDGET], limit, f"{name} the slowdown budget: {words}"))
    return PromotionEvidence(
        Mode.ACTIVE, math.nan, 0, workloads, workloads * body["windows"], tuple(checks), "held-out workloads"
    )


def _check(name: str, figure: float, limit: float, words: str) -> PromotionCheck:
    return PromotionCheck(name, bool(figure <= limit), float(figure), float(limit), words)
