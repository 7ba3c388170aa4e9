"""Definitions in FlashInfer-Bench's format, read and judged: by their own references, and by mutants of these.

    python -m benchmarks.serving_definitions FOLDER --until 600 --out FILE.json    # a CPU; resumable

FOLDER is read as kernels.suites.definitions reads it; `benchmarks.serving_folder` makes one of the public history.
First every definition is read, and its problem made or refused by name: all that `--until 0` does. Then, of those
that a CPU affords (`AFFORDABLE`; constants are as published), the reference is judged as a solution, which must
pass; and every mutant of it that `MUTATIONS` makes, which must not. A definition counts as judged when its
reference has passed every probe.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import serving_rows

AFFORDABLE = 1 << 23
"""Bytes of inputs and outputs of the smallest case."""
FAULT = {"status": "machine_fault"}
"""What says nothing of a reference: it is judged again."""
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


def read(folder: Path, definition: Any) -> dict[str, Any]:
    """Whether a definition becomes a problem; else why not, in words and as a kind of reason."""
    from nightshift.kernels.problem import ProblemError
    from nightshift.kernels.suites.definitions import workloads_of
    from nightshift.kernels.suites.serving import problem_of

    try:
        problem = problem_of(definition, workloads_of(folder, definition))
    except ProblemError as error:
        return {"kind": definition.kind, "read": False, "why": str(error)[:200]}
    workloads = sum(case["workload"] > 0 for case in problem.cases)
    return {"kind": definition.kind, "read": True, "workloads": workloads, "bytes": _small_bytes(problem)}


def _small_bytes(problem: Any) -> int:
    from nightshift.kernels.problem import Case

    return int(problem.compulsory_bytes(Case.of(problem.dtypes[0], rows=2, regime=0, workload=0)))


def judge(court: Any, folder: Path, definition: Any, mutants: bool) -> dict[str, Any]:
    """What came of a definition's reference, and of its mutants."""
    from nightshift.kernels.suites.definitions import workloads_of
    from nightshift.kernels.suites.serving import problem_of

    problem = problem_of(definition, workloads_of(folder, definition))
    row: dict[str, Any] = {"reference": judged(court, definition, definition.reference, problem)}
    if mutants:
        row["mutants"] = {
            name: judged(court, definition, definition.reference.replace(one, other), problem)
            for name, one, other in MUTATIONS
            if one in definition.reference
        }
    return row


REASONS: tuple[tuple[str, str], ...] = (
    ("a dtype that torch lacks", ".dtype:"),
    ("an axis of no known meaning", "an axis of no known meaning"),
    ("an input of no known meaning", "an input of no known meaning"),
    ("a shape that is no axis", "is no axis"),
    ("a reference with other inputs than the definition", "reference: run takes"),
    ("a reference that needs an absent library", "No module named"),
)
"""(name, a part of the words) of why a definition is refused; the first that fits."""


def reason_of(why: str) -> str:
    return next((name for name, part in REASONS if part in why), "malformed")


def figures(folder: Path, rows: Mapping[str, Any], refused: Mapping[str, str]) -> dict[str, Any]:
    whys = {**refused, **{name: row["why"] for name, row in rows.items() if not row["read"]}}
    known = [row for row in rows.values() if row["read"]]
    references = [row["reference"] for row in known if "reference" in row]
    mutants = [(name, mutant) for row in known for name, mutant in row.get("mutants", {}).items()]
    right = [row["kind"] for row in known if row.get("reference", {}).get("status") == "correct"]
    return {
        "source": serving_rows.source(folder),
        "definitions": len(rows) + len(refused),
        "read": len(known),
        "read_by_kind": dict(sorted(collections.Counter(row["kind"] for row in known).items())),
        "refused": len(whys),
        "refused_by_reason": dict(collections.Counter(map(reason_of, whys.values())).most_common()),
        "refused_by_name": {name: why.replace(str(folder), "FOLDER") for name, why in sorted(whys.items())},
        "judged": len(right),
        "judged_by_kind": dict(sorted(collections.Counter(right).items())),
        "references_refused": len(references) - len(right),
        "mutants": len(mutants),
        "mutants_accepted": sorted({name for name, x in mutants if x["status"] == "correct"}),
        "mutants_accepted_count": sum(x["status"] == "correct" for _, x in mutants),
    }


def main() -> None:
    parser = serving_rows.parser(__doc__)
    parser.add_argument("--mutants", action=argparse.BooleanOptionalAction, default=True)
    args = parser.parse_args()
    from nightshift.kernels.judge.judge import Judge
    from nightshift.kernels.suites.definitions import definitions_in

    start = time.monotonic()
    definitions, refused = definitions_in(args.folder)
    earlier = serving_rows.rows_in(args.out)
    rows = {name: {**earlier.get(name, {}), **read(args.folder, d)} for name, d in definitions.items()}
    made = figures(args.folder, rows, refused)
    serving_rows.save(args.out, "serving_definitions", "cpu", made, rows=rows)
    affordable = [definitions[name] for name, row in rows.items() if row.get("bytes", AFFORDABLE + 1) <= AFFORDABLE]
    unsure = [d for d in affordable if rows[d.name].get("reference", FAULT)["status"] == FAULT["status"]]
    waiting = serving_rows.in_turn(unsure, lambda d: d.kind)
    waiting.sort(key=lambda d: "reference" not in rows[d.name])
    with Judge("cpu") if args.until else contextlib.nullcontext() as court:
        for definition in waiting:
            if time.monotonic() - start >= args.until:
                break
            rows[definition.name] |= judge(court, args.folder, definition, args.mutants)
            made = figures(args.folder, rows, refused)
            serving_rows.save(args.out, "serving_definitions", "cpu", made, rows=rows)
    print(json.dumps(made))


if __name__ == "__main__":
    main()
