"""A look-back as a report to pass on: one HTML file, or Markdown. Both are written from the same tables."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass, field

from nightshift.agent.history.lookback import LookbackReport, PastSighting, Warned
from nightshift.agent.units import duration, full_time, sentence
from nightshift.collectors.prometheus.range import RangeCost

_STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#16202a}
table{border-collapse:collapse;width:100%;margin:.5rem 0 1.5rem}th,td{text-align:left;vertical-align:top;
padding:.35rem .6rem;border-bottom:1px solid #d5dbe1}th{background:#f2f5f7}h1{font-size:1.6rem}h2{font-size:1.2rem}
code{background:#f2f5f7;padding:.1rem .3rem;overflow-wrap:anywhere}.scroll{overflow-x:auto}
@media(prefers-color-scheme:dark){body{background:#12181e;color:#e6ebf0}th,code{background:#1e2730}
th,td{border-color:#33404c}}"""


@dataclass(frozen=True)
class Section:
    """A heading, what to know, and a table; `code` are the columns of what to type."""

    title: str
    text: str
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    code: frozenset[int] = field(default_factory=frozenset)


def as_markdown(report: LookbackReport, reading: RangeCost, cluster: str) -> str:
    """Text as GitHub and GitLab show it. What comes from outside cannot end a cell or begin markup."""
    parts = [f"# {_plain(_title(cluster))}"]
    for part in sections(report, reading):
        parts += [f"## {part.title}"] if part.title else []
        parts.append(part.text)
        if part.rows:
            rows = [part.head, ("---",) * len(part.head)]
            rows += [
                tuple(_code(cell) if n in part.code else _plain(cell) for n, cell in enumerate(row))
                for row in part.rows
            ]
            parts.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
    return "\n\n".join(parts) + "\n"


def as_html(report: LookbackReport, reading: RangeCost, cluster: str) -> str:
    """One page that loads nothing, for a browser, a mail or a printer."""
    title = html.escape(_title(cluster))
    parts = [f"<h1>{title}</h1>"]
    for part in sections(report, reading):
        parts += [f"<h2>{html.escape(part.title)}</h2>"] if part.title else []
        parts.append(f"<p>{html.escape(part.text)}</p>")
        if part.rows:
            head = "".join(f"<th>{html.escape(cell)}</th>" for cell in part.head)
            rows = "".join(f"<tr>{_cells(row, part.code)}</tr>" for row in part.rows)
            parts.append(f'<div class="scroll"><table><tr>{head}</tr>{rows}</table></div>')
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}<title>{title}</title><style>{_STYLE}</style></head>\n'
        f"<body>\n{body}\n</body></html>\n"
    )


FORMATS = {".html": as_html, ".md": as_markdown}


def sections(report: LookbackReport, reading: RangeCost) -> list[Section]:
    """The report's parts, the answer first."""
    hours = sum(seen.gpu_hours(report.end_s) for seen in report.incidents)
    incidents = [_incident(seen, report.end_s) for seen in report.incidents]
    blind = [(b.signal, ", ".join(b.detectors), b.line, b.how) for b in report.blind]
    found = [
        Section("", _span(report), ("", ""), tuple(_summary(report, hours))),
        Section(
            "Incidents",
            "What Nightshift would have opened, by the rules of the daemon. GPU-hours: GPUs of the job, from the "
            "onset until it was over. They bound the loss from above: a slow job still does some work.",
            ("opened", "fault", "where", "lasted", "GPU-hours", "page", "what was seen"),
            tuple(incidents),
        ),
        Section("Your own record", _own(report), ("when", "node", "what", "earliest alarm"),
                tuple(_event(w, w.event in report.unseen) for w in report.warned)),
        Section("False pages", _false(report)),
        Section(
            "Blind spots",
            "Signals that this Prometheus does not have, what they would show, and how to add them."
            if blind else "None: every signal that a Prometheus can hold is there.",
            ("signal", "detectors", "line to add", "where"),
            tuple(blind),
            frozenset({2}),
        ),
    ]  # fmt: skip
    if report.gaps:
        told = "These queries failed. The report says nothing about what they would have shown."
        found.append(Section("Not read", told, ("query",), tuple((gap,) for gap in report.gaps[:20])))
    cost = f"{reading.queries} queries, {reading.samples:,} samples, {reading.busy_s:.0f} s of the server's time."
    found.append(
        Section("How it was made", f"`nightshift lookback` read the Prometheus: {cost} It changed nothing.")
    )
    return found


def _title(cluster: str) -> str:
    return f"What Nightshift would have reported · {cluster}"


def _span(report: LookbackReport) -> str:
    days = (report.end_s - report.start_s) / 86400.0
    return f"{days:.3g} days, {full_time(report.start_s)} to {full_time(report.end_s)}."


def _summary(report: LookbackReport, hours: float) -> list[tuple[str, str]]:
    pages = sum(seen.pages for seen in report.incidents)
    early = sum(w.lead_s > 0 for w in report.warned)
    rows = [
        ("GPUs seen", str(report.gpus)),
        ("days with telemetry", f"{report.read_days:.3g}"),
        ("incidents", f"{len(report.incidents)}, of which {pages} would have paged"),
        ("GPU-hours affected", f"{hours:,.1f} (upper bound of the loss)"),
        ("pages that no event of yours explains", f"{len(report.unexplained)} (upper bound of the false ones)"),
        ("signals missing", str(len(report.blind))),
    ]
    if report.warned:
        rows.insert(4, ("your cordoned or unready nodes", f"{len(report.warned)}: {early} with an alarm before"))
    return rows


def _incident(seen: PastSighting, end_s: float) -> tuple[str, ...]:
    where = " · ".join(part for part in (seen.node, seen.job) if part) or seen.cause.subject.name
    lasted = "still open" if math.isnan(seen.ended_s) else duration(seen.ended_s - seen.cause.since.t_s)
    hours, page = f"{seen.gpu_hours(end_s):.1f}", "page" if seen.pages else "no page"
    return (full_time(seen.opened_s), sentence(seen.cause.fault), where, lasted, hours, page, seen.cause.summary)


def _own(report: LookbackReport) -> str:
    if report.own_record is None:
        return "Unknown: the queries failed."
    if not report.own_record:
        return "Unknown: this Prometheus has no kube-state-metrics."
    if not report.warned:
        return "No node was cordoned or not ready."
    return f"Nodes that were cordoned or not ready: {len(report.warned)}. Missed: {len(report.missed)}."


def _event(w: Warned, unseen: bool) -> tuple[str, ...]:
    first = "unknown: no telemetry in the day before" if unseen else "missed"
    if w.first is not None:
        when = f"{duration(w.lead_s)} before" if w.lead_s >= 0 else f"{duration(-w.lead_s)} after"
        first = f"{sentence(w.first.cause.fault)}, {when}"
    return (full_time(w.event.at_s), w.event.node, w.event.kind, first)


def _false(report: LookbackReport) -> str:
    rate = "No rate: no telemetry was read."
    if not math.isnan(report.per_week):
        low, high = report.interval
        rate = f"That is {report.per_week:.2g} per week (95 % interval {low:.2g} to {high:.2g})."
    return (
        f"{len(report.unexplained)} pages by statistics, without an event of yours near them. {rate} "
        f"The budget is {report.budget_per_week:g} per week. {report.waited} weaker alarms would be tickets."
    )


def _plain(cell: str) -> str:
    for sign in "\\`*_<|[":
        cell = cell.replace(sign, f"\\{sign}")
    return " ".join(cell.split())


def _code(cell: str) -> str:
    text = " ".join(cell.split()).replace("`", "'").replace("|", "\\|")
    return f"`{text}`" if text else ""


def _cells(row: tuple[str, ...], code: frozenset[int]) -> str:
    cells = (f"<code>{html.escape(c)}</code>" if n in code and c else html.escape(c) for n, c in enumerate(row))
    return "".join(f"<td>{cell}</td>" for cell in cells)
