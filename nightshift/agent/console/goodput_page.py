"""What the cluster really delivered: every GPU-second's account, as a waterfall, tables and CSV."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Literal

import sqlalchemy as sa
from fastapi import FastAPI, Query, Request
from fastapi.responses import Response
from markupsafe import Markup

from nightshift.agent import units
from nightshift.agent.console.site import Site
from nightshift.agent.goodput.accounts import ACCOUNTS, SURVIVED, Account, Nest
from nightshift.agent.goodput.records import Utilisation
from nightshift.agent.goodput.report import HOUR_S, GoodputEstimate, GoodputReport, as_csv, lost, make
from nightshift.agent.goodput.sums import BY
from nightshift.agent.presentation.waterfall_chart import Bar, waterfall
from nightshift.agent.store.tables import goodput

Days = Annotated[int, Query(ge=1, le=366)]
By = Literal["job", "team", "node", "cause", "incident"]
_NEST_WORDS = {Nest.NOT_HELD: "Held by jobs", Nest.NO_STEP: "In steps", Nest.REPEATED: "In surviving steps"}
"""The total that is left once a nest is taken off."""


class GoodputPage:
    """The page and the file behind it."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def add_to(self, app: FastAPI) -> None:
        app.get("/goodput", response_model=None)(self.page)
        app.get("/goodput.csv", response_model=None)(self.file)

    def page(self, request: Request, days: Days = 7, by: By = "job") -> Response:
        """The last days' accounts; a team sees those of its own jobs."""
        report, whole = report_seen(self._site, request, days)
        utilisation: Mapping[str, Utilisation] = self._site.parts.utilisation()
        rows = report.by(by)
        return self._site.page(
            request, "goodput.html", report=report, days=days, by=by, keys=tuple(BY), whole=whole,
            chart=chart(report), accounts=ACCOUNTS, nests=report.nests(), lost=lost, survived=in_steps, rows=rows,
            estimate=estimate, share=share, spans=units.duration,
            hours=lambda gpu_s: units.gpu_hours(gpu_s / HOUR_S),
            money=lambda gpu_s: units.quantity(report.money(gpu_s)),
            mfu={job: utilisation[job] for job, _ in rows if by == "job" and job in utilisation},
        )  # fmt: skip

    def file(self, request: Request, days: Days = 7) -> Response:
        """Every entry as CSV."""
        report, _ = report_seen(self._site, request, days)
        headers = {"Content-Disposition": f'attachment; filename="goodput-{days}d.csv"'}
        return Response(as_csv(report), media_type="text/csv; charset=utf-8", headers=headers)


def report_seen(site: Site, request: Request, days: int) -> tuple[GoodputReport, bool]:
    """The report of the last days as far as the visitor may see it, and whether that is the whole cluster."""
    window, parts = site.window(request), site.parts
    now_s = parts.clock.now_s()
    with parts.store.database.read() as connection:
        teams = [team for (team,) in connection.execute(sa.select(goodput.c.team).distinct())]
        mine = window.own(teams)
        report = make(connection, now_s - days * 86_400.0, now_s, parts.gpu_hour_price(), mine)
    return report, mine is None


def in_steps(amounts: Mapping[Account, float]) -> float:
    """GPU-seconds in surviving steps."""
    return sum(amounts.get(account, 0.0) for account in SURVIVED)


def chart(report: GoodputReport) -> Markup:
    """Wall time, then what goes off it nest by nest, down to what jobs measured as computing."""
    amounts, wall = report.amounts, report.wall_gpu_s

    def words(gpu_s: float) -> str:
        return f"{100 * gpu_s / wall:.1f} %" if wall else units.UNKNOWN

    bars = [Bar("Wall time × GPUs", wall, words(wall), "total")]
    left = wall
    for nest in (Nest.NOT_HELD, Nest.NO_STEP, Nest.REPEATED, Nest.SURVIVED):
        for account, row in ACCOUNTS.items():
            if row.nest is nest and amounts[account] > 0:
                kind = "kept" if account in (Account.PRODUCTIVE, Account.UNATTRIBUTED) else "lost"
                kind = "unknown" if account in (Account.UNOBSERVED, Account.UNEXPLAINED, Account.NO_STEPS) else kind
                name = units.sentence(account)
                bars.append(Bar(name, amounts[account], words(amounts[account]), kind, row.words))
                left -= amounts[account]
        if nest in _NEST_WORDS:
            bars.append(Bar(_NEST_WORDS[nest], max(left, 0.0), words(max(left, 0.0)), "total"))
    return waterfall("Where GPU time went", bars)


def estimate(figure: GoodputEstimate, show: Callable[[float], str]) -> str:
    """A figure with its interval: `12 min (9 min to 15 min, n = 14)`."""
    if math.isnan(figure.value):
        return units.UNKNOWN if math.isnan(figure.low) else f"more than {show(figure.low)}"
    count = f"n = {figure.n}" if figure.n else ""
    if math.isnan(figure.low):
        return f"{show(figure.value)} ({count})" if count else show(figure.value)
    return f"{show(figure.value)} ({show(figure.low)} to {show(figure.high)}{f', {count}' if count else ''})"


def share(value: float) -> str:
    return units.UNKNOWN if math.isnan(value) else f"{100 * value:.1f} %"
