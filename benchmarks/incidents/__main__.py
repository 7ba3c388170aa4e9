"""Plays and scores the cases: `python -m benchmarks.incidents [--half written|drawn]`.

Results of the two halves stand apart in one file, each with the commit of the rules that it was run on. With a
model configured (`NIGHTSHIFT_LLM__PROVIDER`, `…__MODEL`, `…__BASE_URL`) the same cases are played with it, and the
result goes to a file of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.incidents.calibrate import reliability
from benchmarks.incidents.play import play
from benchmarks.incidents.score import Score, score
from benchmarks.incidents.written import CASES
from benchmarks.report import environment
from nightshift.agent.rca.model import ModelSettings
from nightshift.agent.settings import load

FOLDER = Path(__file__).parent
RESULTS = FOLDER.parent / "results"
TARGETS = {"detected": 1.0, "located": 0.9, "caused": 0.8, "mitigated": 0.85}
RULES = (
    "nightshift/agent/rca",
    ":(exclude)nightshift/agent/rca/calibration.json",
    "nightshift/agent/correlation/correlate.py",
    "nightshift/agent/correlation/kinship.py",
    "nightshift/agent/incidents/advisor.py",
    "nightshift/controllers",
    "nightshift/detectors",
)
"""What is frozen before a half is drawn: all that decides, but not the measured shares that are told beside it."""


def cases(half: str | None, only: str) -> list[dict[str, Any]]:
    drawn = json.loads((FOLDER / "drawn.json").read_text())["cases"]
    return [case for case in [*CASES, *drawn] if half in (None, case["half"]) and only in case["name"]]


def run(case: Mapping[str, Any], model: ModelSettings | None = None) -> dict[str, Any]:
    """One case's scores and what stands behind them."""
    played = play(case, model)
    result: Score = score(case, played)
    incidents = [
        {
            "id": entry.incident.id,
            "headline": entry.incident.diagnosis.headline if entry.incident.diagnosis else "",
            "confidence": str(entry.incident.diagnosis.confidence) if entry.incident.diagnosis else "",
            "actions": [f"{action.kind} {action.target.name}" for _, action in entry.acted],
            "reason": entry.reason,
            "resolved": entry.resolved_s is not None,
            **({"model": _said(entry.incident.diagnosis.facts)} if model and entry.incident.diagnosis else {}),
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
        "claims_dropped": played.dropped,
        "ungrounded": played.ungrounded,
        "tokens": played.tokens,
        "cpu_s": round(played.cpu_s, 2),
    }


def _said(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix("model_"): value for name, value in facts.items() if name.startswith("model_")}


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
        "not_judged": sum(len(row["not_judged"]) for row in rows),
        "suspects_named": [sum(v == n for row in rows for v in row["suspects"]) for n in (1.0, 0.0, -1.0)],
        "two_faults": sum(row["faults"] > 1 for row in rows),
        "no_ops": len(no_ops),
        **{name: share(name) for name in TARGETS},
        "median_delay_s": delays[len(delays) // 2] if delays else None,
        "no_ops_acted_on": sum(any(i["actions"] for i in row["incidents"]) for row in no_ops),
        "no_ops_with_incident": sum(bool(row["incidents"]) for row in no_ops),
        "unneeded_actions": sum(len(row["unneeded"]) for row in rows),
        "actions": sum(len(i["actions"]) for row in rows for i in row["incidents"]),
        "extra_incidents": sum(row["extra_incidents"] for row in rows),
        "claims_shown": sum(row["claims"] for row in rows),
        "ungrounded_claims_shown": sum(row["ungrounded"] for row in rows),
        "claims_dropped": sum(row["claims_dropped"] for row in rows),
        "tokens": sum(row["tokens"] for row in rows),
        "cpu_s": round(sum(row["cpu_s"] for row in rows), 1),
        "confidence": reliability(rows),
    }


def show(rows: Iterable[Mapping[str, Any]]) -> None:
    for row in rows:
        marks = "".join("✓" if value == 1 else "✗" for name in TARGETS for value in row[name])
        bad = [*row["notes"], *(f"unneeded: {what}" for what in row["unneeded"])]
        extra = f" +{row['extra_incidents']} incidents" if row["extra_incidents"] else ""
        print(f"{marks or '–':8} {row['name']}{extra}  {'; '.join(bad)}", flush=True)


def rules_commit() -> str:
    """The last commit that changed what is frozen, with a mark where the working tree differs from it."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=FOLDER.parents[1], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", *RULES)
    return git("log", "-1", "--format=%h", "--", *RULES) + (" and uncommitted changes" if changed else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--half", choices=("written", "drawn"))
    parser.add_argument("--only", default="", help="cases whose name holds this text; nothing is kept")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, help="where the result goes; `-`: nowhere")
    arguments = parser.parse_args()
    model = load(None, os.environ).llm
    commit, rows = rules_commit(), []
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for row in pool.map(
            partial(run, model=model if model.enabled else None), cases(arguments.half, arguments.only)
        ):
            rows.append(row)
            show([row])
    told = {}
    for half in dict.fromkeys(row["half"] for row in rows):
        of_half = [row for row in rows if row["half"] == half]
        seed = {"seed": json.loads((FOLDER / "drawn.json").read_text())["seed"]} if half == "drawn" else {}
        told[half] = {"rules": commit, **seed, **summary(of_half), "rows": of_half}
    print(json.dumps({half: {k: v for k, v in t.items() if k != "rows"} for half, t in told.items()}, indent=1))
    if arguments.only or str(arguments.out) == "-":
        return
    name = f"incidents_{model.provider}.json" if model.enabled else "incidents.json"
    path = arguments.out or RESULTS / name
    kept = json.loads(path.read_text()) if path.exists() else {"halves": {}}
    author = f"rules and {model.provider} {model.model}" if model.enabled else "rules"
    result = {
        **kept, "author": author, "targets": TARGETS, "environment": environment(),
        "halves": {**kept["halves"], **told},
    }  # fmt: skip
    path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
