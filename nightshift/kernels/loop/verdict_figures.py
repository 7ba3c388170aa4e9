"""What people ask of a verdict first, from its JSON form: largest error, times, rates, memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def figures(verdict: Mapping[str, Any]) -> dict[str, Any]:
    """Rates are of the least work that the operation needs, `scratch_bytes` is memory beside inputs and outputs,
    `registers` and `stack_bytes` (spilled registers with it) are of a thread, `shared_bytes` is of a block,
    `rmse_to_eager` is over eager's own error; null: not known. An older verdict has no rates.

    >>> race = {"case": "m=4", "baseline": "eager", "candidate_s": 2e-6, "baseline_s": 4e-6, "floor_s": 1e-6,
    ...         "speedup": {"low": 1.9, "point": 2.0, "high": 2.1}}
    >>> work = {"m=4": {"moved_bytes": 4_000_000, "flops": 8_000_000, "scratch_bytes": 64}}
    >>> found = figures({"status": "faster", "errors": {"max_ulp": 1.5}, "comparisons": [race], "work": work})
    >>> found["largest_error_ulp"], found["races"][0]["gb_per_s"], found["races"][0]["of_roofline"]
    (1.5, 2000.0, 0.5)
    """
    errors, work = verdict.get("errors") or {}, verdict.get("work") or {}
    return {
        "sha256": verdict.get("candidate_sha256"),
        **{name: verdict.get(name) for name in ("status", "reason", "detail", "stages")},
        "largest_error_ulp": errors.get("max_ulp"),
        "rmse_to_eager": errors.get("rmse_to_eager"),
        "races": [_race(one, work.get(one["case"]) or {}) for one in verdict.get("comparisons") or ()],
        "not_raced": [f"{one['baseline']}, {one['case']}: {one['why']}" for one in verdict.get("left_out") or ()],
        "not_checked": verdict.get("not_checked"),
    }


def _race(one: Mapping[str, Any], work: Mapping[str, int]) -> dict[str, Any]:
    seconds, floor_s = one["candidate_s"], one.get("floor_s")

    def rate(name: str) -> float | None:
        return round(work[name] / seconds / 1e9, 1) if name in work and seconds else None

    return {
        "case": one["case"],
        "baseline": one["baseline"],
        "speedup": [one["speedup"][name] for name in ("low", "point", "high")],
        "us": round(seconds * 1e6, 2),
        "baseline_us": round(one["baseline_s"] * 1e6, 2),
        "gb_per_s": rate("moved_bytes"),
        "gflop_per_s": rate("flops"),
        "of_roofline": round(floor_s / seconds, 3) if floor_s and seconds else None,
        **{name: work.get(name) for name in ("scratch_bytes", "registers", "stack_bytes", "shared_bytes")},
    }
