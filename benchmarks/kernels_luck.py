"""How often is each fixture judged rightly, over many secrets? A verdict must not depend on the luck of the draw.

    python -m benchmarks.kernels_luck [--secrets 40] [--parts mutants mutants_later …] [--only NAME …]
        [--until SECONDS] [--piece-s 60] [--commit COMMIT] [--out FILE]

On the CPU (Triton's interpreter, torch), without the static read and without a race, each with the secrets 0, 1, …
of one byte. Secrets that a file already holds for the same text of a piece and the same commit are not judged
again, so that a sweep may be run in parts. All pieces get a few secrets before any gets many; one that has used up
its `--piece-s` of time gets no more, and its row says how many it got. Writes after every piece, to
benchmarks/results/kernels_luck.json: per piece how many secrets, how many rightly judged, and by which reasons; per
part the misjudged share with its exact interval (Clopper and Pearson 1934), over all verdicts, and over pieces that
were ever misjudged. Verdicts over one piece are no independent draws of pieces: the first interval is about secrets
of these pieces, only the second about other pieces. Mutants that need a larger plan than the CPU's are told apart:
one that is never refused is out of the plan's reach, one that is refused sometimes is luck.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import time
from pathlib import Path
from typing import Any

from benchmarks.kernels_exploits import MUTANTS, ROOT, limits, pieces_of
from nightshift.detectors.contract.evaluate import exact_interval
from nightshift.kernels.judge.gallery import Piece, show
from nightshift.kernels.judge.judge import Judge
from nightshift.kernels.judge.probes.inputs import CPU, INTERPRETER

PARTS = (*MUTANTS, "exploits", "good")
Row = dict[str, Any]


def sweep(judge: Judge, piece: Piece, row: Row, secrets: int, deadline: float) -> Row:
    """The row with verdicts for further secrets, until there are so many or the deadline has passed."""
    scope = INTERPRETER if piece.file.candidate.language == "triton" else CPU
    reasons = collections.Counter(row.get("reasons", {}))
    right, wrong, done = row.get("right", 0), list(row.get("wrong", [])), row.get("secrets", 0)
    start = time.monotonic()
    while done < secrets and time.monotonic() < deadline:
        shown = show(judge, piece, scope, static=False, pace=None, secret=bytes([done]))
        reasons[f"{shown.verdict.reason}"] += 1
        right += shown.right
        if not shown.right:
            wrong.append({"secret": done, "detail": f"{shown.verdict.reason}: {shown.verdict.detail}"[:200]})
        done += 1
    return {
        "source_sha256": piece.file.candidate.source_sha256,
        "secrets": done,
        "right": right,
        "reasons": dict(sorted(reasons.items())),
        "wrong": wrong[:3],
        "wall_s": round(row.get("wall_s", 0.0) + time.monotonic() - start, 1),
    }


def summary(rows: dict[str, Row]) -> dict[str, Any]:
    """Pieces and verdicts; those always and never judged rightly, and those judged by luck; exact intervals."""
    verdicts, right = (sum(r[name] for r in rows.values()) for name in ("secrets", "right"))
    always = sum(r["right"] == r["secrets"] for r in rows.values())
    return {
        "pieces": len(rows),
        "verdicts": verdicts,
        "fewest_secrets": min((r["secrets"] for r in rows.values()), default=0),
        "always_right": always,
        "never_right": sum(not r["right"] for r in rows.values()),
        "by_luck": sum(0 < r["right"] < r["secrets"] for r in rows.values()),
        "misjudged_verdicts": verdicts - right,
        "misjudged_share_95": _interval(verdicts - right, verdicts),
        "misjudged_pieces_share_95": _interval(len(rows) - always, len(rows)),
    }


def _interval(found: int, of: int) -> list[float]:
    return [float(f"{bound:.3g}") for bound in exact_interval(found, of)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--secrets", type=int, default=40)
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--until", type=float, default=float("inf"), help="begin no verdict after so many seconds")
    parser.add_argument("--piece-s", type=float, default=60.0, help="spend no more on one piece")
    parser.add_argument("--commit", default="", help="the judge's commit: another one begins anew")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "kernels_luck.json")
    options = parser.parse_args()
    old: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    rows: dict[str, dict[str, Row]] = old.get("rows", {}) if old.get("commit") == options.commit else {}
    deadline = time.monotonic() + options.until
    goals = sorted({min(goal, options.secrets) for goal in (3, 10, 20, 40, 100, 250)})
    pieces = {part: pieces_of(part, "cpu") for part in options.parts}
    with Judge("cpu", interpret=True, limits=limits("cpu")) as judge:
        for goal, part in itertools.product(goals, options.parts):
            known = rows.setdefault(part, {})
            for piece in pieces[part]:
                row = known.get(piece.name, {})
                if row.get("source_sha256") != piece.file.candidate.source_sha256:
                    row = {}
                stop = min(deadline, time.monotonic() + options.piece_s - row.get("wall_s", 0.0))
                if (options.only and piece.name not in options.only) or row.get("secrets", 0) >= goal:
                    continue
                if (row and time.monotonic() >= stop) or time.monotonic() >= deadline:
                    continue
                known[piece.name] = made = sweep(judge, piece, row, goal, stop)
                print(part, piece.name, f"{made['right']} of {made['secrets']}", made["reasons"], flush=True)
                record = {
                    "environment": judge.environment.to_json(),
                    "commit": options.commit,
                    "summary": {name: summary(found) for name, found in rows.items() if found},
                    "rows": {name: dict(sorted(found.items())) for name, found in rows.items()},
                }
                options.out.write_text(json.dumps(record, indent=1) + "\n")
    return 1 if any(r["right"] < r["secrets"] for r in rows.get("good", {}).values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
