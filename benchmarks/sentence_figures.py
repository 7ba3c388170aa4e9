"""Evaluates every number of every sentence of a diagnosis, and of every finding's summary, from its evidence.

`python -m benchmarks.sentence_figures [--draws 1000] [--seed 1] [--jobs 2]` writes `results/sentence_figures.json`.
The incidents: those of the demo (seeds 7, 1 and 2, also as their diagnoses are renewed), of the written and drawn
incident benchmark, of every public report of `benchmarks.field`, of drawn reports through a daemon, and drawn ones
(faults, noise, gaps, windows and clocks) that the rules diagnose.

A number of a claim is read again here, from the bytes of the one evidence item that the claim names for it, by code
that shares nothing with `agent.rca.figures`. It counts as `contradicted` where the evidence says another value, and
as `unproven` where no item is named for it and no cited text or quote holds it. A number of a finding's summary is
looked for in what the finding itself keeps: facts, score, threshold, times, exhibits.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import structlog

from benchmarks.field.__main__ import DRAWN_BEFORE, Drawn, reports
from benchmarks.field.__main__ import play as play_report
from benchmarks.field.report import FieldReport
from benchmarks.incidents.__main__ import cases
from benchmarks.incidents.play import play as play_case
from benchmarks.report import write
from examples.demo.run import Demo
from examples.demo.scenario import TICK_S
from nightshift.agent.app import App
from nightshift.agent.rca.evidence import gather
from nightshift.agent.rca.rules import diagnose
from nightshift.agent.store.diagnosis import FACTS, Claim, Diagnosis, Evidence
from nightshift.agent.store.incident import Incident
from nightshift.collectors.frame import Instant
from nightshift.collectors.history import History
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.detectors.base import Fault, Finding, LogExhibit, SeriesExhibit, Severity, State
from nightshift.version import commit

DEMO_SEEDS = (7, 1, 2)
BATCHES = ("1", "2", "3", "4", "5")
SHOWN = 40
_NUMBER = re.compile(
    r"(?<![\w./#:@+-])(\d\d:\d\d:\d\d|[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?)(?!\w)(?![.:/-]\w)"
    r"(?: ?(GiB/h|MiB/h|GiB|MiB|min|ms|h|s|%)(?![\w/]))?"
)
_SCALE = {"GiB": 2**30, "GiB/h": 2**30, "MiB": 2**20, "MiB/h": 2**20, "min": 60, "h": 3600, "ms": 0.001, "%": 0.01}


def numbers(text: str) -> list[tuple[str, float, float]]:
    """(as written, value, half of its last digit) of each number; a time of day is in seconds of its day."""
    read = []
    for match in _NUMBER.finditer(text):
        digits, unit = match[1], match[2] or ""
        if ":" in digits:
            hours, minutes, seconds = map(int, digits.split(":"))
            read.append((match[0], 3600.0 * hours + 60.0 * minutes + seconds, 1.0))
            continue
        plain = digits.replace(",", "")
        mantissa, _, power = plain.partition("e")
        scale = _SCALE.get(unit, 1)
        half = 0.5 * 10.0 ** (int(power or 0) - len(mantissa.partition(".")[2])) * scale
        read.append((match[0], float(plain) * scale, half))
    return read


def is_close(written: tuple[str, float, float], value: float) -> bool:
    text, said, half = written
    if ":" in text:
        off = abs(value % 86_400.0 - said)
        return min(off, 86_400.0 - off) <= half
    return abs(said - value) <= half * 1.000001 + 1e-9 * abs(value)


def value_of(how: str, evidence: Mapping[str, Evidence]) -> float:
    """The value that a line of a claim's figures names, from the bytes."""
    verb, item, argument = how.split(" ")
    body = json.loads(evidence[item].content)
    if verb == "fact":
        for key in argument.split("."):
            body = body[key]
        return float(body)
    pairs = zip(body["t_s"], body["values"], strict=True)
    points = [(t, v) for t, v in pairs if t is not None and v is not None]
    at = float(argument)
    high = [v for _, v in points if v >= at]
    if verb in ("count", "top"):
        return float(len(high)) if verb == "count" else max(high)
    if verb == "time":
        return min((t for t, _ in points), key=lambda t: abs(t - at))
    old, new = [v for t, v in points if t <= at], [v for t, v in points if t > at]
    usual, now, end_s = statistics.median(old), statistics.median(new[-5:]), points[-1][0]
    values = {"first": usual, "last": now, "change": now - usual, "start": old[-1], "end": new[-1]}
    values |= {
        "growth": new[-1] - old[-1],
        "lasted": end_s - at,
        "pace": (new[-1] - old[-1]) / (end_s - at) * 3600.0,
    }
    return float(values[verb])


def texts_of(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from texts_of(part)
    elif isinstance(value, list):
        for part in value:
            yield from texts_of(part)


def of_claim(claim: Claim, diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    """(verdict, why) of each number of a claim's sentence."""
    evidence = {item.id: item for item in diagnosis.evidence}
    cited = [evidence[name] for name in claim.evidence_ids]
    words = [text for item in cited if item.media_type == FACTS for text in texts_of(json.loads(item.content))]
    words += [value for name, value in claim.arguments.items() if isinstance(value, str) and name != "figures"]
    words += [item.title for item in cited]
    rest = claim.sentence
    for text in sorted({text for text in words if _NUMBER.search(text)}, key=len, reverse=True):
        rest = re.sub(rf"(?<!\w){re.escape(text)}(?!\w)", "…", rest)
    lines = [line.partition("=") for line in str(claim.arguments.get("figures", "")).split("\n") if line]
    quotes = " ".join(quote.text for quote in claim.quotes)
    own = claim.arguments.get("value")
    for written in numbers(rest):
        text = written[0].strip()
        if lines and lines[0][0].strip() in (text, text.removesuffix(" s")):
            how = lines.pop(0)[2]
            value = value_of(how, evidence)
            yield ("right", "") if is_close(written, value) else ("contradicted", f"{how} is {value:g}")
        elif (
            (isinstance(own, float) and is_close(written, own))
            or re.search(rf"(?<!\d){re.escape(text)}(?!\d)", quotes)
            or any(f"#{text}" in word for word in words)
        ):
            yield "right", ""
        else:
            yield "unproven", text


def of_summary(finding: Finding) -> Iterator[tuple[str, str]]:
    """(verdict, why) of each number of a finding's own summary."""
    values = [
        finding.score,
        finding.threshold,
        finding.since.t_s,
        finding.at.t_s,
        finding.at.t_s - finding.since.t_s,
    ]
    values += [float(v) for v in finding.facts.values() if isinstance(v, int | float)]
    said = [str(v) for v in finding.facts.values() if isinstance(v, str)] + [finding.subject.name]
    for exhibit in finding.evidence:
        if isinstance(exhibit, LogExhibit):
            said.append(exhibit.record.text)
        elif isinstance(exhibit, SeriesExhibit) and exhibit.values:
            values += [exhibit.values[0], exhibit.values[-1], max(exhibit.values), min(exhibit.values)]
            values += [float(len(exhibit.values)), exhibit.values[-1] - exhibit.values[0]]
    rest = finding.summary
    for text in sorted({text for text in said if _NUMBER.search(text)}, key=len, reverse=True):
        rest = re.sub(rf"(?<!\w){re.escape(text)}(?!\w)", "…", rest)
    for written in numbers(rest):
        text = written[0].strip()
        near = any(is_close(written, v) or is_close((text, abs(written[1]), written[2]), abs(v)) for v in values)
        quoted = any(re.search(rf"(?<!\d){re.escape(text.split(' ')[0])}(?!\d)", other) for other in said)
        yield ("right", "") if near or quoted else ("unproven", text)


def planted(claim: Claim) -> Claim | None:
    """The claim with its first figure half as large again, in its sentence and in its lines; None without one. What
    this benchmark is worth: each such must be found."""
    first, _, how = str(claim.arguments.get("figures", "")).partition("\n")[0].partition("=")
    if not how or ":" in first:
        return None
    digits = re.match(r"[-+]?[\d,.]+", first)
    assert digits is not None, first
    value = float(digits[0].replace(",", ""))
    other = f"{1.5 * value + 1:.6g}{first[digits.end() :]}"
    lines = str(claim.arguments["figures"]).replace(f"{first}=", f"{other}=", 1)
    sentence = claim.sentence.replace(first, other, 1)
    return replace(claim, sentence=sentence, arguments={**claim.arguments, "figures": lines})


def audit(diagnosis: Diagnosis | None, findings: Iterable[Finding], of: str) -> dict[str, Any]:
    """Counts of one incident, and what was wrong."""
    counts: Counter[str] = Counter(dropped=0 if diagnosis is None else diagnosis.dropped)
    wrong = []
    for claim in diagnosis.claims if diagnosis is not None else ():
        if (forged := planted(claim)) is not None:
            assert diagnosis is not None
            counts["planted"] += 1
            counts["planted_found"] += any(verdict != "right" for verdict, _ in of_claim(forged, diagnosis))
    for claim in diagnosis.claims if diagnosis is not None else ():
        for verdict, why in of_claim(claim, diagnosis):  # type: ignore[arg-type]
            counts[f"claims_{verdict}"] += 1
            wrong += [] if verdict == "right" else [f"{verdict}: {claim.sentence} ({why})"]
    for finding in findings:
        for verdict, why in of_summary(finding):
            counts[f"summaries_{verdict}"] += 1
            wrong += [] if verdict == "right" else [f"{verdict}: {finding.detector}: {finding.summary} ({why})"]
    return {"of": of, "incidents": 1, **counts, "wrong": wrong}


def of_incident(incident: Incident, of: str) -> dict[str, Any]:
    return audit(incident.diagnosis, [stored.finding for stored in incident.findings], of)


def of_demo(seed: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    seen: dict[str, Diagnosis | None] = {}

    def watch(demo: Demo) -> None:
        # every simulated minute: reading each incident at each tick would take most of the time
        if demo.world.elapsed_s % 60.0 >= TICK_S:
            return
        for incident in demo.incidents():
            if incident.diagnosis is not None and incident.diagnosis != seen.get(incident.id):
                seen[incident.id] = incident.diagnosis
                rows.append(of_incident(incident, "demo"))

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with tempfile.TemporaryDirectory() as folder:
        demo = Demo(seed, Path(folder), approve=True, watch=watch)
        try:
            demo.run()
        finally:
            demo.close()
    return rows


def of_case(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    entries = play_case(case).entries
    return [audit(entry.incident.diagnosis, entry.known.findings, "incident benchmark") for entry in entries]


def of_report(report: FieldReport, seed: int, of: str) -> list[dict[str, Any]]:
    def ask(app: App, drawn: Drawn) -> dict[str, Any]:
        return {"rows": [of_incident(app.store.incident(row.id), of) for row in app.store.incidents()]}

    before = DRAWN_BEFORE if of == "drawn reports" else 120
    return list(play_report(report, seed, before=before, until_right=of == "drawn reports", ask=ask)["rows"])


NODE, JOB = Subject(SubjectKind.NODE, "n1"), Subject(SubjectKind.JOB, "ml/a")
GPUS = tuple(Subject(SubjectKind.GPU, f"GPU-{n:08x}-0000") for n in range(4))
RANKS = tuple(Subject(SubjectKind.RANK, f"ml/a#{n}") for n in range(4))
ONSET_S = 1_795_500_000.0
# fault: where it is, the series that shows it, how that moves (from, to), and facts (name: from, to)
SHAPES: dict[Fault, tuple[Subject, str, tuple[float, float], dict[str, tuple[float, float]]]] = {
    Fault.GPU_MEMORY_LEAK: (
        GPUS[1], "gpu_memory_used_bytes", (2e10, 7e10),
        {"growth_bytes": (1e8, 5e10), "slope_bytes_per_h": (1e8, 2e11), "eta_s": (60, 9e4),
         "peer_growth_bytes": (0, 1e9), "peers": (1, 7)},
    ),
    Fault.HOST_MEMORY_LEAK: (
        RANKS[1], "container_memory_anonymous_bytes", (1e9, 3e10),
        {"growth_bytes": (1e8, 2e10), "slope_bytes_per_h": (1e7, 2e11), "eta_s": (60, 9e4)},
    ),
    Fault.LOSS_DIVERGED: (
        RANKS[1], "loss", (1.5, 9.0), {"baseline_loss": (1, 2), "loss": (3, 40), "onset_step": (9, 9e5)}
    ),
    Fault.LOSS_NONFINITE: (RANKS[1], "loss", (1.5, 2.0), {"nonfinite_steps": (1, 500), "onset_step": (9, 9e5)}),
    Fault.THROTTLE: (
        GPUS[1], "gpu_sm_clock_mhz", (1980.0, 900.0),
        {"lost_share": (0.05, 0.9), "sm_clock_mhz": (300, 1500), "reference_mhz": (1900, 1980),
         "temperature_c": (60, 99)},
    ),
    Fault.NVLINK_DEGRADED: (
        GPUS[1], "gpu_nvlink_crc_errors_total", (3.0, 9e5),
        {"errors_per_min": (10, 9e4), "limit_per_min": (1, 9e3)},
    ),
    Fault.PCIE_DEGRADED: (GPUS[1], "gpu_pcie_link_width", (16.0, 4.0), {"level": (1, 8), "best": (16, 16)}),
    Fault.GPU_LOST: (NODE, "gpus_seen", (8.0, 6.0), {"gpus_before": (8, 8), "gpus_now": (6, 7)}),
    Fault.STRAGGLER: (RANKS[2], "step_time_s", (1.0, 1.6), {"ratio": (1.05, 4), "often": (0.5, 1)}),
    Fault.DATA_STALL: (
        RANKS[0], "step_time_s", (1.0, 40.0),
        {"lost_share": (0.05, 0.9), "stalls": (2, 60), "longest_stall_s": (5, 90), "typical_step_s": (0.2, 3),
         "wait_s_per_step": (0.01, 9), "gpu_idle_share": (0.1, 1)},
    ),
    Fault.HANG: (JOB, "step_time_s", (1.0, 1.0), {"silent_s": (60, 9e4), "last_step": (1, 9e6)}),
    Fault.HBM_DEGRADED: (GPUS[1], "gpu_ecc_sbe_total", (0.0, 330.0), {"active_bins": (1, 90), "bin_s": (60, 900)}),
    Fault.HBM_IMMINENT: (
        GPUS[1], "gpu_ecc_dbe_total", (0.0, 9.0),
        {"active_bins": (1, 90), "bin_s": (60, 900), "error_moments_24h": (1, 9), "next_error_24h": (0, 1),
         "next_error_low": (0, 0.4), "next_error_high": (0.4, 1)},
    ),
    Fault.SOURCE_LOST: (NODE, "gpus_seen", (8.0, 8.0), {"silent_s": (60, 9e4)}),
    Fault.NODE_CONDITION: (NODE, "gpus_seen", (8.0, 8.0), {"events": (1, 40)}),
}  # fmt: skip


def drawn_finding(rng: Random, fault: Fault) -> Finding:
    """A finding of a fault with a noisy series, sampled unevenly, and facts of windows of its own."""
    subject, metric, (before, after), ranges = SHAPES[fault]
    since_s = ONSET_S + rng.uniform(-30, 30)
    lead, tail = rng.randint(0, 40), rng.randint(1, 200)
    every, noise = rng.uniform(1, 90), rng.choice((0.0, 0.0, 0.01, 0.1)) * abs(after - before)
    t_s = tuple(round(since_s + every * (n - lead) + rng.uniform(0, 0.4) * every, 3) for n in range(lead + tail))
    shape = rng.choice(("step", "ramp"))

    def level(n: int) -> float:
        share = 0.0 if n < lead else 1.0 if shape == "step" else (n - lead + 1) / tail
        return before + (after - before) * share * rng.uniform(0.2, 1.0) ** (noise > 0) + rng.gauss(0, noise)

    values = tuple(level(n) for n in range(lead + tail))
    facts: dict[str, float | str] = {
        name: float(rng.randint(int(low), int(high))) if low >= 1 and rng.random() < 0.5 else rng.uniform(low, high)
        for name, (low, high) in ranges.items()
        if rng.random() < 0.9
    }
    facts |= {"signal": metric, "unit": "HBM"} | (
        {"meaning": "Ready is False"} if fault is Fault.NODE_CONDITION else {}
    )
    at_s = since_s + rng.uniform(0, 9e3)
    exhibit = SeriesExhibit(subject, metric, "bytes" if "bytes" in metric else "", t_s, values, before, "")
    words = f"{fault.value.replace('_', ' ')} on {subject.name}"
    times = Instant(since_s, rng.choice((0.0, 2.0)), rng.choice(("", "n1"))), Instant(at_s)
    return Finding(
        f"d_{fault.value}", fault, subject, State.FIRING, *times, Severity.WARNING, words, 2.0, 1.0,
        evidence=(exhibit,), facts=facts,
    )  # fmt: skip


def drawn_incidents(seeds: range) -> list[dict[str, Any]]:
    """Incidents of one to four findings, diagnosed by the rules over what the findings and a short history keep."""
    inventory = Inventory("drawn")
    for number, (gpu, rank) in enumerate(zip(GPUS, RANKS, strict=True)):
        pod = Subject(SubjectKind.POD, f"ml/a-{number}")
        for child, parent in ((gpu, NODE), (gpu, pod), (rank, pod), (pod, JOB), (pod, NODE)):
            inventory.observe(child, parent, 0.0)
    rows = []
    for seed in seeds:
        rng = Random(seed)
        found = [drawn_finding(rng, fault) for fault in rng.sample(sorted(SHAPES), rng.choice((1, 1, 2, 4)))]
        at_s = ONSET_S + rng.uniform(60, 9e3)
        told = diagnose(found, gather(found, History(), inventory, at_s), inventory)
        rows.append(audit(told, [], "drawn incidents"))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Evaluate every number of every sentence from its evidence")
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--reports", type=int, default=100, help="drawn reports through a daemon")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", choices=["demo", "incidents", "reports", "drawn", "daemon"])
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(args.jobs) as pool:
        parts: list[Iterable[list[dict[str, Any]]]] = []
        if args.only in (None, "demo"):
            parts.append(pool.map(of_demo, DEMO_SEEDS))
        if args.only in (None, "incidents"):
            parts.append(pool.map(of_case, cases(None, "")))
        if args.only in (None, "reports"):
            batch = [report for number in BATCHES for report in reports(number, 0, args.seed, None)]
            parts.append(pool.map(partial(of_report, seed=args.seed, of="public reports"), batch))
        if args.only in (None, "drawn"):
            first = args.seed * 1_000_000
            blocks = [range(first + n, first + min(n + 50, args.draws)) for n in range(0, args.draws, 50)]
            parts.append(pool.map(drawn_incidents, blocks))
        if args.only in (None, "daemon"):
            drawn = reports("drawn", args.reports, args.seed, None)
            parts.append(pool.map(partial(of_report, seed=args.seed, of="drawn reports"), drawn))
        for part in parts:
            for found in part:
                rows += found
    by: dict[str, Counter[str]] = {}
    for row in rows:
        by.setdefault(row["of"], Counter()).update({k: v for k, v in row.items() if isinstance(v, int)})
    total = sum(by.values(), Counter())
    kept = ("contradicted", "unproven")
    wrong = Counter(text for row in rows for text in row["wrong"])
    write(
        "sentence_figures",
        {
            "commit": commit(), "seed": args.seed, "part": args.only or "all",
            "incidents": total["incidents"],
            "numbers": sum(v for k, v in total.items() if k.startswith(("claims_", "summaries_"))),
            "planted": total["planted"], "planted_found": total["planted_found"],
            # a part that read no summaries says nothing of them
            **{
                f"{part}_{kind}": total[f"{part}_{kind}"] if any(k.startswith(part) for k in total) else None
                for part in ("claims", "summaries")
                for kind in kept
            },
            "by_source": {name: dict(sorted(counts.items())) for name, counts in sorted(by.items())},
            "wrong": dict(wrong.most_common(SHOWN)),
        },
    )  # fmt: skip


if __name__ == "__main__":
    main()
