"""A look-back as text for a terminal, and as JSON: the answer first, then what it rests on."""

from __future__ import annotations

import math
from typing import Any

from nightshift.agent.history.lookback import LEAD_S, LookbackReport, PastSighting, Warned
from nightshift.agent.store.records import plain
from nightshift.agent.units import duration, full_time
from nightshift.collectors.prometheus.range import RangeCost


def as_text(report: LookbackReport, reading: RangeCost) -> str:
    """Everything on a page or two."""
    days = (report.end_s - report.start_s) / 86400.0
    cost = f"{reading.queries} queries, {reading.samples:,} samples, {reading.busy_s:.0f} s of the server's time"
    lines = [
        f"{days:.3g} days to {full_time(report.end_s)}: {report.gpus} GPUs, {len(report.incidents)} incidents",
        f"GPU-hours affected, at most: {sum(seen.gpu_hours(report.end_s) for seen in report.incidents):,.1f}",
        f"({cost}, {reading.rested_s:.0f} s rested between them)",
        *_little(report, days),
        "",
        "INCIDENTS THAT NIGHTSHIFT WOULD HAVE OPENED",
    ]
    lines += [f"  {_seen(seen)}" for seen in report.incidents] or ["  None."]
    lines += ["", *_own_record(report), "", *_false_alarms(report), "", *_blind(report)]
    if report.memory_signals:
        lines += ["", "MEMORY ERRORS: what each model of GPU can tell, and what of it is read here"]
        lines += [f"  {line}" for line in report.memory_signals]
    if report.gaps:
        lines += ["", f"NOT READ ({len(report.gaps)} queries failed): what is said above knows nothing of these"]
        lines += [f"  {gap}" for gap in report.gaps[:10]]
    return "\n".join(lines) + "\n"


def _own_record(told: LookbackReport) -> list[str]:
    lines = ["YOUR OWN RECORD: nodes that were cordoned or not ready, and the earliest alarm before"]
    if told.own_record is None:
        lines.append("  Not known: the queries failed (below).")
    elif not told.own_record:
        lines.append("  Not known: this Prometheus has no kube-state-metrics.")
    elif not told.warned:
        lines.append("  No node was cordoned or not ready.")
    lines += [f"  {_warned(w, w.event in told.unseen)}" for w in told.warned]
    if told.warned:
        early = sum(w.lead_s > 0 for w in told.warned)
        unseen = f"; nothing was read before {len(told.unseen)}" if told.unseen else ""
        lines.append(f"  Warned before {early} of {len(told.warned)}; missed {len(told.missed)}{unseen}.")
    return lines


def _false_alarms(told: LookbackReport) -> list[str]:
    low, high = told.interval
    rate = "over no time at all"
    if not math.isnan(told.per_week):
        rate = f"which is {told.per_week:.2g} per week (95 % interval {low:.2g} to {high:.2g})"
    return [
        "FALSE ALARMS: pages by statistics that no event of yours explains; an upper bound, some may be true",
        f"  {len(told.unexplained)}, {rate}; the budget is {told.budget_per_week:g}",
        f"  {told.waited} alarms would be tickets or in the digest, no page (docs: the alarm budget)",
    ]


def _blind(told: LookbackReport) -> list[str]:
    """Signals that are missing, by what enables them: one remedy often enables several."""
    lines = ["BLIND: signals that this Prometheus does not have, and how to enable them"]
    # in their order, each once: a counters file enables many signals by one edit
    for how in dict.fromkeys(blind.how for blind in told.blind):
        alike = [blind for blind in told.blind if blind.how == how]
        wide = max(len(blind.line) for blind in alike)
        for blind in alike:
            head = f"    {blind.line:{wide}}  # " if blind.line else "  "
            lines.append(head + f"{blind.signal}: {', '.join(blind.detectors)}")
        lines.append(f"  ↑ {how}" if wide else f"    {how}")
    if not told.blind:
        lines.append("  None.")
    return lines


def _seen(seen: PastSighting) -> str:
    where = " · ".join(part for part in (seen.node, seen.job) if part) or seen.cause.subject.name
    quiet = "" if seen.pages else " [no page]"
    return f"{full_time(seen.opened_s)}  {seen.cause.fault}  {where}\n      {seen.cause.summary}{quiet}"


def _little(told: LookbackReport, days: float) -> list[str]:
    """What a newcomer must know before the answer: that there was little, or nothing, to look at."""
    found = []
    if told.gpus == 0:
        found.append(
            "NO GPU WAS SEEN: nothing exports DCGM_FI_DEV_FB_USED or its like. Scrape dcgm-exporter, or run "
            "`nightshift node`; under recorded names nothing is known of the metrics behind them."
        )
    # a few missed scrapes are no gap worth a warning at the top
    if told.read_days < 0.99 * days:
        found.append(
            f"Telemetry was read of {told.read_days:.3g} of {days:.3g} days only; what is said is of those."
        )
    return found


def _warned(w: Warned, unseen: bool) -> str:
    head = f"{full_time(w.event.at_s)}  {w.event.node} {w.event.kind}: "
    if unseen:
        return head + "not known: no telemetry was read in the day before"
    if w.first is None:
        return head + f"MISSED: no alarm on it in the {LEAD_S / 3600:.0f} h before"
    when = f"{duration(w.lead_s)} before" if w.lead_s >= 0 else f"only {duration(-w.lead_s)} after"
    return head + f"{w.first.cause.fault} told {when}"


def as_json_values(report: LookbackReport, reading: RangeCost) -> dict[str, Any]:
    """Plain JSON values; NaN becomes null."""
    return {
        "start_s": report.start_s,
        "end_s": report.end_s,
        "gpus": report.gpus,
        "incidents": [_seen_json(seen, report.end_s) for seen in report.incidents],
        "gpu_hours_affected": sum(seen.gpu_hours(report.end_s) for seen in report.incidents),
        "own_record": report.own_record,
        "own_events": [
            {
                "kind": w.event.kind,
                "node": w.event.node,
                "at_s": w.event.at_s,
                "first_alarm": None if w.first is None else _seen_json(w.first, report.end_s),
                "lead_s": _null(w.lead_s),
            }
            for w in report.warned
        ],
        "missed": len(report.missed),
        "unseen": len(report.unseen),
        "read_days": _null(report.read_days),
        "unexplained": len(report.unexplained),
        "false_pages_per_week": _null(report.per_week),
        "false_pages_per_week_interval": [_null(end) for end in report.interval],
        "budget_per_week": report.budget_per_week,
        "alarms_that_waited": report.waited,
        "blind": [plain(blind) for blind in report.blind],
        "memory_signals": list(report.memory_signals),
        "gaps": list(report.gaps),
        "queries": reading.queries,
        "samples": reading.samples,
        "server_busy_s": reading.busy_s,
        "rested_s": reading.rested_s,
    }


def _null(value: float) -> float | None:
    # JSON has no NaN, and readers would refuse the whole file
    return None if math.isnan(value) else value


def _seen_json(seen: PastSighting, end_s: float) -> dict[str, Any]:
    return {
        "opened_s": seen.opened_s,
        "fault": str(seen.cause.fault),
        "subject": str(seen.cause.subject),
        "since_s": seen.cause.since.t_s,
        "node": seen.node,
        "job": seen.job,
        "summary": seen.cause.summary,
        "pages": seen.pages,
        "gpus": seen.gpus,
        "ended_s": _null(seen.ended_s),
        "gpu_hours": seen.gpu_hours(end_s),
        "by_event": seen.event,
        "detectors": sorted({f.detector for f in seen.findings}),
    }
