"""Plays and scores every case and writes the result: `python -m benchmarks.incidents [--half written|drawn]`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.incidents.play import play
from benchmarks.incidents.score import Score, score
from benchmarks.incidents.written import CASES

FOLDER = Path(__file__).parent
TARGETS = {"detected": 1.0, "located": 0.9, "caused": 0.8, "mitigated": 0.85}


def cases(half: str | None, only: str) -> list[dict[str, Any]]:
    drawn = FOLDER / "drawn.json"
    found = [*CASES, *(json.loads(drawn.read_text()) if drawn.exists() else [])]
    return [case for case in found if half in (None, case["half"]) and only in case["name"]]


def run(case: Mapping[str, Any]) -> dict[str, Any]:
    """One case's scores and what stands behind them."""
    played = play(case)
    result: Score = score(case, played)
    incidents = [
        {
            "id": entry.incident.id,
            "headline": entry.incident.diagnosis.headline if entry.incident.diagnosis else "",
            "confidence": str(entry.incident.diagnosis.confidence) if entry.incident.diagnosis else "",
            "actions": [f"{action.kind} {action.target.name}" for _, action in entry.acted],
            "reason": entry.reason,
            "resolved": entry.resolved_s is not None,
        }
        for entry in played.entries
    ]
    return {
        "name": case["name"],
        "half": case["half"],
        "faults": len(result.detected),
        **asdict(result),
        "incidents": incidents,
        "claims": played.claims,
        "ungrounded": played.ungrounded,
        "wall_s": round(played.wall_s, 2),
    }


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Shares over all faults of these cases, and what was done that was not needed."""

    def share(name: str) -> float | None:
        values = [value for row in rows for value in row[name]]
        return round(sum(values) / len(values), 4) if values else None

    delays = sorted(value for row in rows for value in row["delays_s"])
    no_ops = [row for row in rows if not row["faults"]]
    return {
        "cases": len(rows),
        "faults": sum(row["faults"] for row in rows),
        "no_ops": len(no_ops),
        **{name: share(name) for name in TARGETS},
        "median_delay_s": delays[len(delays) // 2] if delays else None,
        "no_ops_acted_on": sum(any(i["actions"] for i in row["incidents"]) for row in no_ops),
        "no_ops_with_incident": sum(bool(row["incidents"]) for row in no_ops),
        "unneeded_actions": sum(len(row["unneeded"]) for row in rows),
        "extra_incidents": sum(row["extra_incidents"] for row in rows),
        "claims_shown": sum(row["claims"] for row in rows),
        "ungrounded_claims_shown": sum(row["ungrounded"] for row in rows),
        "tokens": 0,
    }


def show(rows: Iterable[Mapping[str, Any]]) -> None:
    for row in rows:
        marks = "".join("✓" if value == 1 else "✗" for name in TARGETS for value in row[name])
        bad = [*row["notes"], *(f"unneeded: {what}" for what in row["unneeded"])]
        extra = f" +{row['extra_incidents']} incidents" if row["extra_incidents"] else ""
        print(f"{marks or '–':8} {row['name']}{extra}  {'; '.join(bad)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--half", choices=("written", "drawn"))
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=FOLDER.parent / "results" / "incidents.json")
    arguments = parser.parse_args()
    rows = []
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for row in pool.map(run, cases(arguments.half, arguments.only)):
            rows.append(row)
            show([row])
    halves = {
        half: summary([r for r in rows if r["half"] == half]) for half in dict.fromkeys(r["half"] for r in rows)
    }
    result = {"targets": TARGETS, "author": "rules", "halves": halves, "cases": rows}
    print(json.dumps(halves, indent=1))
    if not arguments.only and arguments.half is None:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
