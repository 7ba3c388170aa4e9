"""What a language model makes of the incidents, through the product: right causes, unsupported sentences,
tokens, money and time.

    python -m benchmarks.rca_evals replay
    python -m benchmarks.rca_evals live --model Qwen3-32B --base-url http://vllm:8000/v1 --out qwen.json
    python -m benchmarks.rca_evals holmes --program holmes/bin/holmes --model Qwen3-32B --base-url …
    python -m benchmarks.rca_evals beside --program holmes/bin/holmes
    python -m benchmarks.rca_evals table qwen.json holmes.json
    python -m benchmarks.rca_evals feedback judged.jsonl --model Qwen3-32B --base-url …
    python -m benchmarks.rca_evals export aiopslab FOLDER

`replay` needs no network: two scripted readers answer at a local endpoint, one rightly, one wrongly. Their
answers are written by hand. It measures the scorer and the product, no language model; it writes
`results/rca_evals.json`. `beside` has HolmesGPT and Nightshift ask the same two readers about the same incidents;
it writes `results/rca_beside_holmes.json`. `live` asks a model of yours. docs/how-to/evaluate-a-model.md has the
rest: HolmesGPT with your model, the export to AIOpsLab and SREGym, and your own feedback as cases.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from string import Template
from typing import Any

from benchmarks.rca_evals import feedback, holmes, problems
from benchmarks.rca_evals.answers import HELD_OUT, HELD_OUT_AT_FIRST
from benchmarks.rca_evals.cases import Case, cases, truth_of
from benchmarks.rca_evals.evaluation import evaluate, filled
from benchmarks.rca_evals.reader import READERS, endpoint
from benchmarks.rca_evals.scorer import Truth, judge
from benchmarks.report import write
from nightshift.agent.rca.model import ModelSettings
from nightshift.version import commit

Row = dict[str, Any]
WRITTEN = "answers of two scripted readers, written by hand: no language model was asked"


def kept_rows(chosen: Sequence[Case], rows: Path | None, read: Callable[[Case], Any]) -> list[Any]:
    """What `read` makes of each case. rows: a file that keeps them, and from which an earlier run is continued."""
    known = {}
    if rows is not None and rows.exists():
        known = dict(json.loads(line) for line in rows.read_text().splitlines())
    found = []
    for case in chosen:
        if case.name not in known:
            known[case.name] = read(case)
            if rows is not None:
                with rows.open("a", encoding="utf-8") as out:
                    out.write(json.dumps([case.name, known[case.name]]) + "\n")
        found.append(known[case.name])
    return found


def replay(chosen: Sequence[Case], kept: Path | None = None) -> Row:
    """Every incident, read by both scripted readers."""
    read = kept_rows(chosen, kept, _read)
    rows: dict[str, list[Row]] = {which: [row[which] for row in read] for which in READERS}
    pairs = list(zip(rows["good"], rows["bad"], strict=True))
    told_apart = sum(
        one["answer_verdict"]["right"] and not other["answer_verdict"]["right"] for one, other in pairs
    )
    wanted = [row for row in rows["good"] if row.get("decides") is not None]
    held = [
        judge(Template(text).substitute(place="node n7"), Truth(cause, ("n7",))).right == right
        for cause, text, right in HELD_OUT
    ]
    return {
        "commit": commit(),
        "answers": WRITTEN,
        "incidents": len(chosen),
        "by_origin": _count(case.origin for case in chosen),
        "opened": sum(row["opened"] for row in rows["good"]),
        "told_apart": told_apart,
        "told_apart_share": round(told_apart / len(pairs), 4),
        "held_out_answers": len(held),
        "held_out_read_rightly": sum(held),
        "held_out_read_rightly_at_first": HELD_OUT_AT_FIRST,
        "with_a_deciding_line": len(wanted),
        "deciding_line_in_first_request": sum(row["decides"] for row in wanted),
        "request_tokens_most": max(row["request_tokens"] for row in rows["good"] if row["opened"]),
        "readers": {which: summary(rows[which]) for which in READERS},
        "missed": [{**row, "page": ""} for row in wanted if not row["decides"]],
        "rows": {which: [_short(row) for row in rows[which]] for which in READERS},
    }


def _read(case: Case) -> dict[str, Row]:
    """A case's row by reader. The second reads the same incident, in the same daemon."""
    with endpoint(case) as (reader, server):
        llm = {"provider": "openai", "model": "scripted reader", "base_url": f"{server.url}/v1"}
        others = [partial(reader.become, which) for which in list(READERS)[1:]]
        found = evaluate(case, llm, lambda: server.asked, reader.take, others)
        truth, rows = truth_of(case, reader.drawn), {}
        for which, row in zip(READERS, found, strict=True):
            reader.become(which)
            rows[which] = row | {"answer": reader.answer, "answer_verdict": asdict(judge(reader.answer, truth))}
    print(f"{'opened' if found[0]['opened'] else 'none':7} {case.name}", flush=True)
    return rows


def live(chosen: Sequence[Case], llm: Mapping[str, Any], kept: Path | None = None) -> Row:
    """Every incident, read by the configured model."""

    def read(case: Case) -> Row:
        (row,) = evaluate(case, llm)
        print(f"{'right' if (row.get('verdict') or {}).get('right') else '-':6} {case.name}", flush=True)
        return row

    rows = kept_rows(chosen, kept, read)
    return {"commit": commit(), "by": f"{llm['provider']} {llm['model']}", **summary(rows), "rows": rows}


def summary(rows: Sequence[Row]) -> Row:
    """A table's row: right causes, unsupported sentences, tokens, money, time."""
    asked = [row for row in rows if row["opened"]]
    seconds = sorted(row["seconds"] for row in asked)
    return {
        "incidents": len(rows),
        "opened": len(asked),
        "right": sum(row["verdict"]["right"] for row in asked),
        "shown": sum(bool(row.get("shown")) for row in asked),
        "shown_marked": sum(row.get("marked", False) for row in asked),
        "unsupported": sum(row["unsupported"] for row in asked),
        "failed": _count(row["failure"] for row in asked if row["failure"]),
        "tokens_median": statistics.median(row["tokens"] for row in asked) if asked else None,
        "usd": round(sum(row["usd"] for row in asked), 4),
        "seconds_p50": _quantile(seconds, 0.5),
        "seconds_p95": _quantile(seconds, 0.95),
    }


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


def _count(names: Iterator[str] | Sequence[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in names:
        found[name] = found.get(name, 0) + 1
    return dict(sorted(found.items()))


def _short(row: Row) -> Row:
    """What is kept of a replayed row; the page is ours to make again."""
    right = (row.get("verdict") or {}).get("right", False)
    return {
        "case": row["case"],
        "answer": row["answer"],
        "read_as_right": row["answer_verdict"]["right"],
        "shown_right": right,
        "shown": bool(row.get("shown")),
        "marked": row.get("marked", False),
    }


def by_holmes(
    chosen: Sequence[Case], program: Path, llm: Mapping[str, Any], folder: Path, kept: Path | None
) -> Row:
    """The incidents that have a log, through HolmesGPT."""
    name = f"HolmesGPT {holmes.version(program)}, {llm['model']}"
    written = [case for case in chosen if case.report is not None]
    rows = kept_rows(written, kept, lambda case: holmes.ask(case, program, llm, folder))
    # it gives no quotes to check
    return {"commit": commit(), "by": name, **summary(rows), "unsupported": "not measured", "rows": rows}


def beside(chosen: Sequence[Case], program: Path, folder: Path, kept: Path | None) -> Row:
    """The incidents that have a log, through HolmesGPT and through Nightshift, with the same scripted readers."""

    def theirs(case: Case) -> dict[str, Row]:
        rows = {}
        with endpoint(case) as (reader, server):
            reader.take(filled(case))
            llm = {"model": "scripted-reader", "base_url": f"{server.url}/v1"}
            for which in READERS:
                reader.become(which)
                rows[which] = holmes.ask(case, program, llm, folder)
        print(f"{rows['good']['seconds']:6.1f} s {rows['good']['failure'] or 'ok'} {case.name}", flush=True)
        return rows

    written = [case for case in chosen if case.report is not None]
    read = {"holmes": kept_rows(written, kept, theirs), "nightshift": [_read(case) for case in written]}
    return {
        "commit": commit(),
        "answers": WRITTEN,
        "holmes": holmes.version(program),
        "incidents_with_a_log": sum(case.report is not None for case in cases()),
        "incidents": len(written),
        "read_by": {
            name: {which: _beside([row[which] for row in rows], name) for which in READERS}
            for name, rows in read.items()
        },
        "rows": [
            {"case": case.name}
            | {
                f"{name}_{which}": (rows[at][which].get("verdict") or {}).get("right", False)
                for name, rows in read.items()
                for which in READERS
            }
            for at, case in enumerate(written)
        ],
    }


def _beside(rows: Sequence[Row], name: str) -> Row:
    # it gives no quotes to check
    return summary(rows) | ({"unsupported": "not measured", "shown_marked": None} if name == "holmes" else {})


def by_feedback(path: Path, llm: Mapping[str, Any]) -> Row:
    """The diagnoses that people judged, read by the configured model."""
    judged = list(feedback.read(path))
    usable = [one for one in judged if one.truth is not None and one.evidence]
    rows = [feedback.ask(one, ModelSettings.model_validate(llm)) for one in usable]
    print(f"{len(usable)} of {len(judged)} judged diagnoses have evidence and name a cause", flush=True)
    return {"commit": commit(), "by": f"{llm['provider']} {llm['model']}, feedback", **summary(rows), "rows": rows}


def table(files: Sequence[Path]) -> str:
    """The results of several models side by side, as Markdown."""
    lines = ["| read by | incidents | right | unsupported | tokens (median) | USD | P50 (s) | P95 (s) |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for file in files:
        row = json.loads(file.read_text())
        cells = [row["by"], row["incidents"], row["right"], row["unsupported"], row["tokens_median"], row["usd"]]
        lines.append("| " + " | ".join(map(str, [*cells, row["seconds_p50"], row["seconds_p95"]])) + " |")
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Evaluate what a language model makes of incidents")
    commands = parser.add_subparsers(dest="command", required=True)
    helps = {
        "replay": "Replay the scripted readers; needs no network",
        "live": "Ask a model of yours",
        "holmes": "Ask HolmesGPT with a model of yours",
        "beside": "Have HolmesGPT and Nightshift ask the same scripted readers",
        "feedback": "Ask a model about diagnoses that your people judged",
        "export": "Write the incidents as problems of another benchmark",
    }
    made = {name: commands.add_parser(name, help=what) for name, what in helps.items()}
    for name in ("replay", "live", "holmes", "beside", "export"):
        made[name].add_argument("--limit", type=int, default=0, help="Only so many incidents, spread over all")
        made[name].add_argument("--only", default="", help="Only incidents of which the name holds this text")
    for name in ("replay", "live", "holmes", "beside"):
        made[name].add_argument(
            "--rows", type=Path, help="File that keeps finished incidents; a next run continues it"
        )
    for name in ("live", "holmes", "feedback"):
        made[name].add_argument("--provider", default="openai", help="Provider, as in llm.provider")
        made[name].add_argument("--model", required=True, help="Name of the model, as its server knows it")
        made[name].add_argument("--base-url", default="", help="Address of the server")
        made[name].add_argument("--api-key-file", help="File that holds the key")
        made[name].add_argument("--usd-in", type=float, default=0.0, help="Price of a million tokens sent (USD)")
        made[name].add_argument(
            "--usd-out", type=float, default=0.0, help="Price of a million tokens answered (USD)"
        )
    for name in ("replay", "live", "holmes", "feedback"):
        made[name].add_argument("--out", type=Path, help="File for the result")
    for name in ("holmes", "beside"):
        made[name].add_argument("--program", type=Path, required=True, help="HolmesGPT's `holmes`")
        made[name].add_argument("--folder", type=Path, default=Path("holmes-evals"), help="Folder for its files")
    made["feedback"].add_argument("file", type=Path, help="Written by `nightshift feedback --export FILE`")
    made["export"].add_argument("form", choices=["aiopslab", "sregym"])
    made["export"].add_argument("folder", type=Path)
    shown = commands.add_parser("table", help="Print results side by side")
    shown.add_argument("files", type=Path, nargs="+")
    return parser


def main() -> None:
    args = _parser().parse_args()
    if args.command == "table":
        print(table(args.files))
        return
    if args.command == "feedback":
        _finish(by_feedback(args.file, _llm(args)), args)
        return
    chosen = chosen_cases(args.only, args.limit)
    if args.command == "export":
        print(f"{problems.export(args.form, chosen, args.folder)} problems in {args.folder}")
    elif args.command == "live":
        _finish(live(chosen, _llm(args), args.rows), args)
    elif args.command == "holmes":
        _finish(by_holmes(chosen, args.program, _llm(args), args.folder.absolute(), args.rows), args)
    elif args.command == "beside":
        write("rca_beside_holmes", beside(chosen, args.program, args.folder.absolute(), args.rows))
    elif args.only or args.limit or args.out:
        print(json.dumps(result := replay(chosen, args.rows), indent=1))
        if args.out:
            args.out.write_text(json.dumps(result, indent=1) + "\n")
    else:
        write("rca_evals", replay(chosen, args.rows))


def _finish(result: Row, args: argparse.Namespace) -> None:
    out = args.out or Path(f"rca_evals_{args.command}_{args.model.replace('/', '_')}.json")
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{table([out])}\n\n{out}")


def chosen_cases(only: str, limit: int) -> list[Case]:
    found = [case for case in cases() if only in case.name]
    return sorted(found, key=lambda case: case.number)[:limit] if limit else found


def _llm(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "provider": args.provider,
        "model": args.model,
        "base_url": args.base_url,
        **({"api_key_file": args.api_key_file} if args.api_key_file else {}),
        "usd_per_million_input": args.usd_in,
        "usd_per_million_output": args.usd_out,
    }


if __name__ == "__main__":
    main()
