"""How sure a diagnosis is: a level by the kind of proof that stands, and how often that level was right.

The levels are ordered by what was proven: a measured change, an order in time, or a log's own line weighs more than
what a detector says of itself; with no claim that holds, the cause is unknown, and nothing is done about it. What a
level is worth is measured: `calibration.json` holds the share of first causes that were right at each level, fitted
on the written half of the incident benchmark and checked on the drawn half (docs/reference/figures.md).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from nightshift.agent.correlation.kinship import HARDWARE, Kin, kin_of
from nightshift.agent.rca.case import Case
from nightshift.agent.store.diagnosis import Claim, Confidence, Predicate
from nightshift.detectors.base import Fault

_STRONG = frozenset({Predicate.ROSE, Predicate.FELL, Predicate.REPEATED, Predicate.PRECEDED})


def confidence_of(case: Case, held: Sequence[Claim]) -> Confidence:
    """The level of a case's first cause, given the claims that held."""
    strong = sum(claim.predicate in _STRONG for claim in held)
    quoted = any(claim.quotes for claim in held)
    if not held or case.cause.fault is Fault.ANOMALY:
        return Confidence.UNKNOWN
    kin = kin_of(case.cause)
    if kin is Kin.LOSS:
        return Confidence.HIGH if jumped(held) else Confidence.MEDIUM if strong else Confidence.LOW
    if kin is Kin.FOLLOWER:
        return Confidence.LOW
    if kin in HARDWARE or kin in (Kin.OOM, Kin.GONE, Kin.APPLICATION):
        return Confidence.HIGH if quoted else Confidence.MEDIUM if strong else Confidence.LOW
    alone = kin in (Kin.GPU_LEAK, Kin.HOST_LEAK) and not any("peer" in str(c.arguments.get("path")) for c in held)
    if strong and not alone:
        return Confidence.HIGH
    return Confidence.MEDIUM if strong or kin in (Kin.SOURCE, Kin.HANG, Kin.THROTTLE) else Confidence.LOW


def jumped(held: Sequence[Claim]) -> bool:
    """Whether it was proven that the learning rate jumped."""
    return any(c.arguments.get("path") == "jumped" and c.arguments.get("value") == "yes" for c in held)


def right_share(level: Confidence) -> float | None:
    """How often a first cause of this level was right, in [0, 1]; None where that was not measured."""
    return _measured().get(level.value)


@cache
def _measured() -> dict[str, float]:
    path = Path(__file__).with_name("calibration.json")
    return {str(k): float(v) for k, v in json.loads(path.read_text())["right"].items()} if path.exists() else {}
