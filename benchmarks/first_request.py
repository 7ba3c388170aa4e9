"""Whether the line that decides stands in the first request about an incident, within 8,000 tokens.

`python -m benchmarks.first_request [--half even|odd] [--noise N]` plays the public reports of `benchmarks.field`
(those that deserve an incident) through a daemon, builds for each incident the message that a language model would
get first, and looks for the report's deciding line in it. No model is needed. The deciding lines of a report are
those of its lines that match its right answer; where none does, its last line. A report counts as right if one of
them stands in the request of one of its incidents, byte for byte (white space and a cut in the middle of a long
line apart). `--noise N`: so many ordinary lines of other matters come with each tick around the fault.

Half `even` (by the MD5 of the report's source) is for tuning; each run on `odd` adds a line to results/scored.md.
Reports that open no incident have no request: they are counted by themselves. Tokens are characters by three, which
over-counts English text.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
import statistics
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import Any

from benchmarks.field.__main__ import DRAWN_BEFORE, Drawn, chunks, play, reports
from benchmarks.field.report import Channel, FieldReport
from benchmarks.report import RESULTS, write
from nightshift.agent.app import App
from nightshift.agent.rca.briefing import CHARS_PER_TOKEN, ROOM_TOKENS, first_room
from nightshift.agent.rca.bundle import Bundle
from nightshift.agent.rca.investigate import SYSTEM, tools_of
from nightshift.agent.rca.lookup import Lookup
from nightshift.agent.store.incident import Incident
from nightshift.collectors.history import History
from nightshift.collectors.prometheus.api import Matrix
from nightshift.collectors.subject import Inventory
from nightshift.version import commit

BATCHES = (1, 2, 3, 4)


def _no_prometheus(query: str, start_s: float, end_s: float, step_s: float) -> Matrix:
    raise NotImplementedError


_LOOKUPS = Lookup(Bundle((), {}), History(), Inventory(), 0.0, 0.0, promql=_no_prometheus).schemas
BESIDES = len(SYSTEM) + len(json.dumps(tools_of(_LOOKUPS)))
"""Characters that are sent with the first message: the rules of the house and the tools."""
_XID = re.compile(r"Xid (\d+)")
# Ordinary lines, some of which sound grave: what a healthy node and a healthy job write beside a fault.
_KERNEL_NOISE = (
    'audit: type=1400 audit({a}.{b}:{c}): apparmor="STATUS" operation="profile_load" name="cri-{c}" pid={c}',
    "IPv6: ADDRCONF(NETDEV_CHANGE): cali{a}: link becomes ready",
    "cni0: port {b}(veth{a}) entered disabled state",
    "perf: interrupt took too long ({c} > {b}), lowering kernel.perf_event_max_sample_rate to {a}",
    "systemd[1]: Started libcontainer container {a}{b}.",
    "TCP: request_sock_TCP: Possible SYN flooding on port {c}. Sending cookies.",
    "nfs: server 10.0.{b}.{b} OK",
    "EXT4-fs (dm-{b}): mounted filesystem with ordered data mode. Quota mode: none.",
)
_JOB_NOISE = (
    "[rank{b}] UserWarning: torch.utils.checkpoint: the use_reentrant parameter should be passed explicitly ({c})",
    "node{b}:{a}:{c} [0] NCCL INFO Channel {b}/0 : {b}[0] -> {b}[1] via P2P/CUMEM",
    "INFO: dataloader worker {b}: 0 errors, 0 retries, {c} samples",
    "DEBUG: GET /health 200 in {c} us, failures: 0",
    "validation: perplexity {c}.{b}, number of nan iterations: 0",
)


def deciding(report: FieldReport, drawn: Drawn) -> list[str]:
    """The report's lines that match its right answer, as they were written; else its last line."""
    words = report.words + "".join(rf"|Xid \(.*\): {code}\b|\b{code}$" for code in _XID.findall(report.words))
    parts: list[str] = []
    for text in (text for line in dict.fromkeys(report.lines) for text in drawn.filled.get(line, [line])):
        if report.channel is Channel.KUBERNETES:
            # messages, and how a container ended; names and kinds decide nothing
            parts += [value for value in _strings(json.loads(text)) if " " in value]
            parts += [f"exit code {code}" for code in re.findall(r'"exitCode": (\d+)', text)]
        else:
            parts += [part.strip() for part in text.split("\n") if part.strip()]
    found = [part for part in parts if re.search(words, part, re.IGNORECASE)]
    return found or parts[-1:]


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def stands_in(line: str, request: str) -> bool:
    """Whether a line stands in a request: whole, or the beginning and end of one that was cut in the middle."""
    flat = _flat(line)
    if flat in request:
        return True
    return len(flat) > 600 and flat[:250] in request and flat[-250:] in request


def _flat(text: str) -> str:
    return " ".join(text.replace("\\n", " ").replace('\\"', '"').split())


def shown_of(request: str) -> str:
    """A request's texts as a model reads them: JSON strings decoded."""
    found: list[str] = []
    for line in request.split("\n"):
        try:
            found += _strings(json.loads(line))
        except ValueError:
            found.append(line)
    return _flat("\n".join(found))


def metric_of(line: str, request: str) -> bool:
    """Whether a series of an exporter's page is told: its value with an Xid, or its own name."""
    name, value = line.partition("{")[0], line.rpartition(" ")[2]
    short = name.removeprefix("DCGM_FI_DEV_").removeprefix("DCGM_EXP_").lower()
    code = re.search(r'xid="(\d+)"', line)
    if "xid" in short:
        return re.search(rf"\b[Xx]id {code.group(1) if code else value}\b", request) is not None
    return any(word in request.lower() for word in re.findall(r"[a-z]{4,}", short))


def ask(report: FieldReport, app: App, drawn: Drawn, whole: bool) -> dict[str, Any]:
    requests = [_request(app, app.store.incident(row.id)) for row in app.store.incidents()]
    lines, shown = deciding(report, drawn), [shown_of(request) for request in requests]
    found = metric_of if report.channel is Channel.EXPORTER else stands_in
    return {
        "decides": any(found(line, text) for line in lines for text in shown),
        "tokens": [round((BESIDES + len(request)) / CHARS_PER_TOKEN) for request in requests],
        "lines": lines[:2],
        **({"requests": requests} if whole else {}),
    }


def _request(app: App, incident: Incident) -> str:
    return app.practice.advisor_of(incident).brief(incident, first_room(ROOM_TOKENS, BESIDES)).text


def noisy(report: FieldReport, before: int, noise: int) -> Iterator[list[str]]:
    """What the source gets in each tick, with ordinary lines of other matters around the fault."""
    draw = random.Random(report.source)
    kinds = {Channel.KERNEL: _KERNEL_NOISE, Channel.JOB: _JOB_NOISE}.get(report.channel, ())
    last = before // 2 if report.before else 2
    for number, lines in enumerate(chunks(report, before)):
        extra = []
        # what a job writes after its crash says that it lives: its noise ends at the fault
        if kinds and -12 <= number - last <= (0 if report.channel is Channel.JOB else 12):
            extra = [
                draw.choice(kinds).format(a=draw.randrange(10**6), b=draw.randrange(8), c=draw.randrange(10**5))
                for _ in range(noise)
            ]
        yield [*extra, *lines] if report.channel is Channel.JOB else [*extra[::2], *lines, *extra[1::2]]


def one(report: FieldReport, noise: int, whole: bool = False) -> dict[str, Any]:
    """One report's row. whole: with the requests themselves. The request is that of the look that opened the right
    incident, since the model is asked at once; where none is right, of the end."""
    return play(
        report,
        1,
        DRAWN_BEFORE,
        until_right=True,
        fed=partial(noisy, noise=noise),
        ask=partial(ask, report, whole=whole),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Look for the deciding line in the first request")
    parser.add_argument("--half", choices=["even", "odd"], default="even")
    parser.add_argument("--noise", type=int, default=30, help="ordinary lines with each tick around the fault")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=int, default=0, help="only so many reports, in the order of their MD5")
    parser.add_argument("--only", help="part of a source's name: plays those, prints them, writes nothing")
    args = parser.parse_args()
    wanted = [
        r for batch in BATCHES for r in reports(str(batch), 0, 1, None) if r.opens and half_of(r) == args.half
    ]
    if args.only:
        for report in wanted:
            if args.only in report.source:
                print(json.dumps(one(report, args.noise, whole=True), indent=1))
        return
    if args.limit:
        wanted = sorted(wanted, key=lambda report: hashlib.md5(report.source.encode()).digest())[: args.limit]
    with ProcessPoolExecutor(args.jobs) as pool:
        rows = list(pool.map(partial(one, noise=args.noise), wanted))
    asked = [row for row in rows if row["tokens"]]
    right = sum(row["decides"] for row in asked)
    tokens = [most for row in asked for most in row["tokens"]]
    result = {
        "commit": commit(), "half": args.half, "noise": args.noise, "reports": len(rows),
        "with_an_incident": len(asked), "deciding_line_in_first_request": right,
        "share": round(right / max(1, len(asked)), 4),
        "tokens_median": statistics.median(tokens), "tokens_most": max(tokens),
        "by_channel": by_channel(asked),
        # the odd half's cases are for the score only
        "missed": [row for row in asked if not row["decides"]] if args.half == "even" else [],
        "no_incident": [row["source"] for row in rows if not row["tokens"]] if args.half == "even" else [],
    }  # fmt: skip
    write(f"first_request_{args.half}", result)
    if args.half == "odd":
        with (RESULTS / "scored.md").open("a", encoding="utf-8") as scored:
            scored.write(
                f"| {datetime.now(UTC):%Y-%m-%d} | first request: public reports with an incident, odd half |"
                f" {commit()[:10]} | deciding line in {right} of {len(asked)}; at most {max(tokens)} tokens |\n"
            )


def half_of(report: FieldReport) -> str:
    return "odd" if hashlib.md5(report.source.encode()).digest()[-1] % 2 else "even"


def by_channel(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    channels = sorted({row["channel"] for row in rows})
    counts = {name: [row["decides"] for row in rows if row["channel"] == name] for name in channels}
    return {name: f"{sum(found)} of {len(found)}" for name, found in counts.items()}


if __name__ == "__main__":
    main()
