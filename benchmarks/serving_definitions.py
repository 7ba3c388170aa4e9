"""Definitions in FlashInfer-Bench's format, read and judged: by their own references, and by mutants of these.

    python -m benchmarks.serving_definitions FOLDER --until 600 --out FILE.json    # a CPU; resumable

FOLDER is read as kernels.suites.definitions reads it. Every definition is read, and its problem made or refused by
name. Of those that a CPU affords (`AFFORDABLE`; constants are as published) the reference is judged as a solution,
which must pass; and every mutant of it that `MUTATIONS` makes, which must not. A definition counts as judged when
its reference has passed every probe.
"""

from __future__ import annotations

import argparse
import collections
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

AFFORDABLE = 1 << 23
"""Bytes of inputs and outputs of the smallest case."""
MUTATIONS: tuple[tuple[str, str, str], ...] = (
    ("another epsilon", "EPS = 1e-", "EPS = 1e3 * 1e-"),
    ("no residual", " + residual", " + 0 * residual"),
    ("no weight", " * weight", " * 1"),
    ("absolute values for squares", ".pow(2)", ".abs()"),
    ("no scale of logits", " * sm_scale", ""),
    ("logits one per cent larger", "torch.softmax(logits", "torch.softmax(1.01 * logits"),
    ("a natural logarithm", " / math.log(2.0)", ""),
    ("no logarithm of the sum", "torch.logsumexp(", "torch.amax("),
    ("the first sequence's pages", "kv_indptr[b].item()", "kv_indptr[0].item()"),
    ("the last token is dropped", "kv_indptr[b + 1].item())", "kv_indptr[b + 1].item()) - 1"),
    ("heads paired the other way", ".repeat_interleave(", ".tile("),
    ("the smallest for the largest", "descending=True", "descending=False"),
    ("no top-p", "if p < 1.0", "if False"),
    ("ReLU for softplus", "F.softplus(", "F.relu("),
    ("tanh for sigmoid", "torch.sigmoid(", "torch.tanh("),
    ("SiLU without its gate", "F.silu(", "F.relu("),
    ("no decay", "g_val * ", "1.0 * "),
    ("products in 16 bits", "torch.matmul(A, B.T)", "(A.bfloat16() @ B.T.bfloat16()).to(A.dtype)"),
    ("sine for cosine", "* cos", "* sin"),
    ("softmax over lines", "dim=-1", "dim=0"),
    ("rounded to 8 bits", ".to(torch.bfloat16)", ".to(torch.float8_e4m3fn).to(torch.bfloat16)"),
)
"""(name, text of a reference, what replaces it): each makes a mutant of every reference that has the text."""


def judged(court: Any, definition: Any, source: str, problem: Any) -> dict[str, Any]:
    """The verdict on one source for a definition."""
    from benchmarks.serving_solutions import in_words
    from nightshift.kernels.judge.judge import Request
    from nightshift.kernels.judge.probes.sizes import Scope
    from nightshift.kernels.suites.definitions import Solution
    from nightshift.kernels.suites.serving import candidate_of

    solution = Solution(definition.name, definition.name, "", "python", ("main.py", "run"), {"main.py": source})
    scope = Scope(2 * AFFORDABLE, 0, 0, 0, 0, benchmark=False, huge=False, repeats=3)
    verdict = court.verdict(candidate_of(definition, solution), problem, Request(scope, None, static=False))
    return {
        "status": str(verdict.status),
        "reason": str(verdict.reason),
        "detail": in_words(verdict.detail)[:200],
        "took_s": round(verdict.took_s, 1),
    }


def row_of(court: Any, folder: Path, definition: Any, mutants: bool) -> dict[str, Any]:
    """What came of a definition."""
    from nightshift.kernels.problem import Case, ProblemError
    from nightshift.kernels.suites.definitions import workloads_of
    from nightshift.kernels.suites.serving import problem_of

    row: dict[str, Any] = {"kind": definition.kind}
    try:
        problem = problem_of(definition, workloads_of(folder, definition))
    except ProblemError as error:
        return {**row, "read": False, "why": str(error)[:200]}
    small = Case.of(problem.dtypes[0], rows=2, regime=0, workload=0)
    row |= {"read": True, "workloads": len(problem.cases), "bytes": problem.compulsory_bytes(small)}
    if row["bytes"] > AFFORDABLE:
        return row
    row["reference"] = judged(court, definition, definition.reference, problem)
    if not mutants:
        return row
    row["mutants"] = {
        name: judged(court, definition, definition.reference.replace(one, other), problem)
        for name, one, other in MUTATIONS
        if one in definition.reference
    }
    return row


def save(out: Path, rows: Mapping[str, Any], refused: Mapping[str, str]) -> dict[str, Any]:
    from nightshift.kernels.judge.environment import environment
    from nightshift.version import commit

    read = [row for row in rows.values() if row["read"]]
    references = [row["reference"] for row in read if "reference" in row]
    mutants = [(name, mutant) for row in read for name, mutant in row.get("mutants", {}).items()]
    result = {
        "benchmark": "serving_definitions",
        "commit": commit() or "unknown",
        "environment": environment("cpu").to_json(),
        "definitions": len(rows) + len(refused),
        "read": len(read),
        "refused_by_name": {**refused, **{name: row["why"] for name, row in rows.items() if not row["read"]}},
        "judged": sum(x["status"] == "correct" for x in references),
        "judged_by_kind": dict(
            collections.Counter(r["kind"] for r in read if r.get("reference", {}).get("status") == "correct")
        ),
        "references_refused": sum(x["status"] != "correct" for x in references),
        "mutants": len(mutants),
        "mutants_accepted": sorted({name for name, x in mutants if x["status"] == "correct"}),
        "mutants_accepted_count": sum(x["status"] == "correct" for _, x in mutants),
        "rows": dict(sorted(rows.items())),
    }
    out.write_text(json.dumps(result, indent=1) + "\n")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--until", type=float, default=1e9, help="seconds")
    parser.add_argument("--mutants", action=argparse.BooleanOptionalAction, default=True)
    args = parser.parse_args()
    from nightshift.kernels.judge.judge import Judge
    from nightshift.kernels.suites.definitions import definitions_in

    start = time.monotonic()
    definitions, refused = definitions_in(args.folder)
    rows: dict[str, Any] = json.loads(args.out.read_text())["rows"] if args.out.exists() else {}
    turn = collections.Counter[str]()
    order = sorted(definitions.values(), key=lambda d: (turn.update([d.kind]), turn[d.kind], d.kind)[1:])
    with Judge("cpu") as court:
        for definition in order:  # each kind in turn
            if definition.name not in rows and time.monotonic() - start < args.until:
                rows[definition.name] = row_of(court, args.folder, definition, args.mutants)
                save(args.out, rows, refused)
    made = save(args.out, rows, refused)
    print(json.dumps({name: value for name, value in made.items() if name not in ("rows", "environment")}))


if __name__ == "__main__":
    main()
