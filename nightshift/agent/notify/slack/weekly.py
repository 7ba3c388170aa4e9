"""The weekly report in the chat: where the GPU time of the last week went. One message a week, by the ledger."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime

from nightshift.agent.goodput.accounts import ACCOUNTS, HELD, SURVIVED, WAITING, Account
from nightshift.agent.goodput.report import HOUR_S, GoodputEstimate, GoodputReport, make
from nightshift.agent.notify.ledger import Delivery, DeliveryLedger
from nightshift.agent.notify.slack.blocks import Block, ChatMessage, fallback, line, link, paragraph, text
from nightshift.agent.notify.slack.settings import Settings
from nightshift.agent.store.incident_store import Store
from nightshift.agent.units import duration, gpu_hours, sentence

REPORT = "report"
DAY_S = 86_400.0
WEEK_S = 7 * DAY_S
# 1970-01-05 was a Monday. Sent on Mondays from 08:00 UTC on: the week's last hours are final by then.
_MONDAY_S, _AFTER_S = 4 * DAY_S, 8 * HOUR_S
# A daemon that starts later in the week does not send an old report.
_UNTIL_S = DAY_S
_LOSSES = 6
_LOOK_S = 60.0


class WeeklyReport:
    """Says whether the report of the last week is due. Sending is the courier's."""

    def __init__(self, store: Store, ledger: DeliveryLedger, settings: Settings, price: float | None) -> None:
        self._store, self._ledger, self._settings, self._price = store, ledger, settings, price
        self._looked_s = -math.inf

    def due(self, now_s: float, wall_s: float) -> Iterator[tuple[Delivery, ChatMessage]]:
        """The message, where it is due and not there; none for a week in which nothing was booked."""
        if wall_s < self._looked_s + _LOOK_S:
            return
        self._looked_s = wall_s
        end_s = (now_s - _MONDAY_S) // WEEK_S * WEEK_S + _MONDAY_S
        if not _AFTER_S <= now_s - end_s < _AFTER_S + _UNTIL_S:
            return
        year, week, _ = datetime.fromtimestamp(end_s - DAY_S, UTC).isocalendar()
        key = f"report/goodput/{year}-W{week:02d}"
        row = self._ledger.row(key)
        if row is not None and (row.ts is not None or row.tried_s is not None):
            return
        with self._store.database.read() as connection:
            report = make(connection, end_s - WEEK_S, end_s, self._price)
        if report.wall_gpu_s > 0:
            delivery = Delivery(key, "slack", REPORT, None, self._settings.channel, posted_s=now_s)
            yield delivery, message(report, f"{year}-W{week:02d}", self._settings.console_url)


def message(report: GoodputReport, week: str, console_url: str) -> ChatMessage:
    """The report in a dozen lines."""
    amounts, wall = report.amounts, report.wall_gpu_s
    head = f"GPU time in week {week}: {_percent(report.ettr.value)} of training time in surviving steps"
    lines = [line(text(head, bold=True))]
    lines.append(_fact("ETTR without queueing", _ratio(report.ettr)))
    lines.append(_fact("ETTR with queueing", _ratio(report.ettr_with_queueing)))
    held = sum(spent for account, spent in amounts.items() if account in HELD)
    total = f"{gpu_hours(wall / HOUR_S)}, {_percent(held / wall)} held by jobs{_cost(report, wall)}"
    lines.append(_fact("Wall time × GPUs", total))
    kept = SURVIVED - {Account.DATA_WAIT, Account.STRAGGLING, Account.EXPOSED_COMM}
    losses = [(a, spent) for a, spent in amounts.items() if a not in kept | WAITING and spent > 0]
    for account, spent in sorted(losses, key=lambda item: -item[1])[:_LOSSES]:
        figures = f"{_percent(spent / wall)} ({gpu_hours(spent / HOUR_S)}{_cost(report, spent)})"
        lines.append(_fact(sentence(account), f"{figures}. {ACCOUNTS[account].words}"))
    for fault in [fault for fault in report.faults if fault.lost_gpu_s > 0][:3]:
        spent = fault.lost_gpu_s
        words = f"{fault.count} incidents, {gpu_hours(spent / HOUR_S)} lost{_cost(report, spent)}"
        lines.append(_fact(sentence(fault.cause), words))
    saved = report.response.saved_s
    if not math.isnan(saved.value):
        words = f"{_span(saved.value)} ({_span(saved.low)} to {_span(saved.high)}) sooner over"
        lines.append(_fact("Incidents with our action", f"{words} than by people alone, median of {saved.n}"))
    if console_url:
        lines.append(line(link(f"{console_url.rstrip('/')}/goodput", "All accounts")))
    return ChatMessage(fallback(head), (paragraph(lines),))


def _span(span_s: float) -> str:
    return f"-{duration(-span_s)}" if span_s < 0 else duration(span_s)


def _fact(label: str, value: str) -> Block:
    return line(text(f"{label}: ", bold=True), text(value))


def _cost(report: GoodputReport, gpu_s: float) -> str:
    return "" if report.price is None else f", {report.money(gpu_s):,.0f} at {report.price:g} a GPU-hour"


def _ratio(found: GoodputEstimate) -> str:
    return f"{_percent(found.value)} ({_percent(found.low)} to {_percent(found.high)}, {found.n} jobs)"


def _percent(value: float) -> str:
    return "not known" if math.isnan(value) else f"{100 * value:.1f} %"
