"""A job's logs as evidence: all ranks condensed together to the lines that matter, and which rank spoke of trouble
first.

Ranks live on nodes whose clocks differ, so "first" is told as before, concurrent or after, by the clocks' stated
uncertainty; two lines of one clock need no margin.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from nightshift.agent.rca.bundle import Ledger
from nightshift.agent.rca.logmine import LogMiner, Settings, follows_only, grave
from nightshift.collectors.frame import Instant, LogRecord, Order
from nightshift.collectors.history import History
from nightshift.collectors.subject import Inventory, Subject, SubjectKind

_K = SubjectKind
BUDGET_TOKENS = 1500
MAX_LINES = 200_000
"""Most lines that are mined for one incident; each rank gets an equal share, those nearest the onset first."""
EARLIER_S = 120.0
"""Trouble that a rank told of so long before the onset may still be its beginning."""


@dataclass(frozen=True, slots=True)
class FirstLine:
    """The first grave line of one source that does not only follow from another's."""

    source: str
    at: Instant
    text: str


def sources_of(
    job: Subject, history: History, inventory: Inventory, when_s: float, ledger: Ledger
) -> dict[str, list[LogRecord]]:
    """The lines of everything that belongs to the job, by the name of who wrote them."""
    found: dict[str, list[LogRecord]] = {}
    members: Iterable[Subject] = [
        job,
        *(s for kind in (_K.RANK, _K.POD, _K.CONTAINER) for s in sorted(inventory.below(job, kind, when_s))),
    ]
    members = list(dict.fromkeys(members))[: 3 * ledger.limits.max_ranks]
    share = max(20, MAX_LINES // max(1, len(members)))
    for member in members:
        lines = history.logs(member, ledger.start_s, ledger.at_s)
        if lines:
            nearest = sorted(lines, key=lambda r: abs(r.at.t_s - ledger.onset_s))[:share]
            found[str(member)] = sorted(nearest, key=lambda r: (r.at.t_s, r.offset))
    return found


def condensed(sources: dict[str, list[LogRecord]], job: Subject, ledger: Ledger) -> None:
    """Adds the lines that matter, and how often each kind of line was seen and where."""
    if not sources:
        return
    miner = LogMiner(Settings(budget_tokens=BUDGET_TOKENS))
    by_text: dict[tuple[str, str], LogRecord] = {}
    for name, records in sources.items():
        rows = []
        for record in records:
            row = f"{record.at.t_s:.3f} {_flat(record.text)}"[: miner.settings.max_line]
            rows.append(row)
            by_text.setdefault((name, row), record)
        miner.add(name, ("\n".join(rows) + "\n").encode(errors="replace"))
    kept = miner.condense(ledger.onset_s)
    pairs = [(k, by_text.get((k.source, k.text))) for k in kept]
    records = [record for _, record in pairs if record is not None]
    title = f"lines that matter of {len(sources)} logs ({len(records)} of {miner.lines} lines)"
    ledger.log(("condensed", str(job)), records, title)
    templates = [
        {
            "first": _flat(record.text)[:200],
            "first_in": k.source,
            "first_s": k.t_s,
            "count": k.count,
            "sources": k.sources,
            "new": "yes" if k.t_s >= ledger.onset_s - EARLIER_S else "no",
        }
        for k, record in pairs
        if record is not None
    ]
    body = {"logs": len(sources), "lines": miner.lines, "templates": templates[:60]}
    ledger.facts(("templates", str(job)), "log mining", str(job), "kinds of lines, how often and where", body)


def first_lines(sources: dict[str, list[LogRecord]], job: Subject, ledger: Ledger) -> list[FirstLine]:
    """Adds each rank's first grave line, and how they lie in time to the very first. Answers them, first first."""
    found: list[FirstLine] = []
    records = []
    for name, lines in sources.items():
        for record in lines:
            text = _flat(record.text)
            if record.at.t_s >= ledger.onset_s - EARLIER_S and grave(text) and not follows_only(text):
                found.append(FirstLine(name, record.at, text))
                records.append(record)
                break
    if not found:
        return []
    found.sort(key=lambda line: (line.at.t_s, line.source))
    records.sort(key=lambda record: record.at.t_s)
    title = f"the first grave line of each of {len(found)} logs"
    ledger.log(("first_lines", str(job)), records, title)
    head = found[0]
    order = [
        {
            "source": line.source,
            "t_s": line.at.t_s,
            "uncertainty_s": line.at.uncertainty_s,
            "clock": line.at.clock,
            "to_first": "first" if line is head else _word(head.at, line.at),
            "text": line.text[:200],
        }
        for line in found[:64]
    ]
    rivals = [line.source for line in found[1:] if _word(head.at, line.at) == Order.CONCURRENT]
    body = {
        "first": head.source,
        "alone": "no" if rivals else "yes",
        "concurrent": " ".join(rivals[:20]),
        "logs_with_trouble": len(found),
        "order": order,
    }
    ledger.facts(("order", str(job)), "job logs", str(job), "which rank spoke of trouble first", body)
    return found


def _word(first: Instant, other: Instant) -> str:
    """How `other` lies to `first`: after or concurrent (never before: `first` has the smallest time)."""
    known = all(math.isfinite(i.t_s) and math.isfinite(i.uncertainty_s) for i in (first, other))
    return str(other.order(first)) if known else str(Order.CONCURRENT)


def _flat(text: str) -> str:
    return text.replace("\n", "\\n").replace("\r", "\\r")
