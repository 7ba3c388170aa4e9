"""How often each confidence was right: fitted on the written half, and shown again on the drawn one.

`python -m benchmarks.incidents.calibrate` reads the written half of the result and writes
`agent/rca/calibration.json`: for each level the share of first causes that were right, as the mean of a Beta(1, 1)
posterior, (right + 1) / (shown + 2), so that a handful of cases never reads as certainty.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
LEVELS = ("high", "medium", "low")


def outcomes(rows: Iterable[Mapping[str, Any]]) -> list[tuple[str, bool]]:
    """(confidence, right) of every matched incident; an incident without a fault behind it was wrong."""
    found = []
    for row in rows:
        matched = row["matched"]
        for incident in row["incidents"]:
            found.append((str(incident["confidence"]), bool(matched.get(incident["id"], False))))
    return found


def reliability(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """By level: how many were shown, how many of them right, and the share stated for that level."""
    told = outcomes(rows)
    table = {}
    stated = fitted()
    for level in (*LEVELS, "unknown"):
        shown = [right for confidence, right in told if confidence == level]
        if shown:
            table[level] = {
                "shown": len(shown),
                "right": sum(shown),
                "share": round(sum(shown) / len(shown), 3),
                **({"stated": stated[level]} if level in stated else {}),
            }
    return table


def fitted() -> dict[str, float]:
    """What is stated per level now."""
    path = FOLDER.parent.parent / "nightshift" / "agent" / "rca" / "calibration.json"
    return dict(json.loads(path.read_text())["right"]) if path.exists() else {}


def main() -> None:
    result = json.loads((FOLDER.parent / "results" / "incidents.json").read_text())
    told = outcomes(result["halves"]["written"]["rows"])
    right = {}
    counts = {}
    for level in LEVELS:
        shown = [ok for confidence, ok in told if confidence == level]
        right[level] = round((sum(shown) + 1) / (len(shown) + 2), 3)
        counts[level] = [sum(shown), len(shown)]
    body = {"right": right, "counts": counts, "cases": "the written half of benchmarks/incidents"}
    path = FOLDER.parent.parent / "nightshift" / "agent" / "rca" / "calibration.json"
    path.write_text(json.dumps(body, indent=1) + "\n")
    print(path.read_text())


if __name__ == "__main__":
    main()
