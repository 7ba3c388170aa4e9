"""Power and scheduling as they are now: what each job draws or waits for, what was proposed, and what the shield
made of it. The receipts are the source; nothing here decides."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from fastapi import FastAPI, Request
from fastapi.responses import Response

from nightshift.agent.console.site import Site
from nightshift.agent.presentation.line_chart import Chart
from nightshift.agent.store.receipts import Receipts
from nightshift.collectors.history import History
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.controllers.decision import ControlDecision
from nightshift.controllers.power.curves import LEVELS
from nightshift.controllers.scheduling.steer import SteerVerb

_READ = 1000
_SPAN_S = 3600.0
_RECENT_S = 300.0


@dataclass(frozen=True, slots=True)
class PowerRow:
    """One job. Watts are sums over its GPUs: `drawn_w` now, `before_w` and `after_w` as `limits_w` says.
    `tokens_per_joule`, `steps_per_kilojoule`: of the last minutes. NaN: not known."""

    decision: ControlDecision
    drawn_w: float
    before_w: float
    after_w: float
    tokens_per_joule: float
    steps_per_kilojoule: float


def newest_by_job(receipts: Iterable[ControlDecision]) -> list[ControlDecision]:
    """The newest decision on each job, of receipts that are sorted newest first."""
    found: dict[str, ControlDecision] = {}
    for decision in receipts:
        found.setdefault(decision.job, decision)
    return list(found.values())


def limits_w(decision: ControlDecision, now_w: float) -> tuple[float, float]:
    """The limits of a job's GPUs together (W) by the baseline, and by the decision: what it set, or in shadow what
    it proposed. `now_w`: what is enforced now. Actions are levels, which are shares of the highest limit."""
    orders = decision.executed.get("limits_mw") if isinstance(decision.executed, Mapping) else None
    highest_w = now_w / (_share(decision.executed) if orders else 1.0)
    after_w = sum(orders.values()) / 1e3 if orders else _share(decision.proposed) * highest_w
    return _share(decision.baseline) * highest_w, after_w


def _share(action: Any) -> float:
    level = action.get("level") if isinstance(action, Mapping) else action
    return float(LEVELS[level]) if isinstance(level, int) and 0 <= level < len(LEVELS) else math.nan


def power_rows(
    receipts: Iterable[ControlDecision], history: History, inventory: Inventory, now_s: float
) -> list[PowerRow]:
    """Each job with what it draws and what it gets done for it, the largest draw first."""
    rows = []
    by_gpu = [_means(history, metric, now_s) for metric in ("gpu_power_w", "gpu_power_limit_w")]
    for decision in newest_by_job(receipts):
        job = Subject(SubjectKind.JOB, decision.job)
        gpus = inventory.gpus(job, now_s)
        watts, limit_w = (
            math.fsum(means.get(gpu, math.nan) for gpu in gpus) if gpus else math.nan for means in by_gpu
        )
        ranks = [job, *inventory.below(job, SubjectKind.RANK, now_s)]
        tokens = [_mean(history, rank, "tokens_per_s", now_s) for rank in ranks]
        took_s = [_mean(history, rank, "step_time_s", now_s) for rank in ranks]
        # every rank reports the rate of the whole job: their median is the job's, their sum too much
        rows.append(
            PowerRow(
                decision, watts, *limits_w(decision, limit_w),
                _median(tokens) / watts, 1e3 / _median(took_s) / watts,
            )
        )  # fmt: skip
    return sorted(rows, key=lambda row: -row.drawn_w if math.isfinite(row.drawn_w) else 1.0)


def draw_of_fleet(history: History, now_s: float) -> Chart:
    """What all GPUs draw together over the last hour."""
    seen = history.columns(SubjectKind.GPU, "gpu_power_w", now_s - _SPAN_S, now_s)
    known = np.isfinite(seen.values).any(axis=1) if seen.values.size else np.zeros(len(seen.t_s), dtype=bool)
    drawn = np.where(known, np.nansum(seen.values, axis=1), np.nan) if seen.values.size else np.empty(0)
    return Chart("Draw of all GPUs", "W", seen.t_s, drawn)


def _means(history: History, metric: str, now_s: float) -> dict[Subject, float]:
    """Of the last minutes, by GPU; at once, since a window per GPU takes half a second over 10,000."""
    seen = history.columns(SubjectKind.GPU, metric, now_s - _RECENT_S, now_s)
    known = np.isfinite(seen.values)
    sums = np.where(known, seen.values, 0.0).sum(axis=0)
    counts = known.sum(axis=0)
    means = np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)
    return dict(zip(seen.subjects, means.tolist(), strict=True))


def _mean(history: History, subject: Subject, metric: str, now_s: float) -> float:
    _, values = history.window(subject, metric, now_s - _RECENT_S, now_s)
    return float(values.mean()) if values.size else math.nan


def _median(values: Iterable[float]) -> float:
    known = [value for value in values if value > 0]
    return float(np.median(known)) if known else math.nan


class ControlPages:
    """One page per lever that moves jobs."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._parts = site.parts
        self._receipts = Receipts(site.parts.store.database)

    def add_to(self, app: FastAPI) -> None:
        app.get("/power", response_model=None)(self.power)
        app.get("/scheduling", response_model=None)(self.scheduling)

    def power(self, request: Request) -> Response:
        """Watts before and after by job, tokens per joule, and what the shield clipped."""
        self._site.of_cluster(request)
        parts, now_s = self._parts, self._parts.clock.now_s()
        rows = power_rows(self._receipts.newest("power", _READ), parts.history, parts.inventory, now_s)
        pairs = [(row.before_w, row.after_w) for row in rows if math.isfinite(row.before_w + row.after_w)]
        return self._site.page(
            request, "power.html", rows=rows, chart=draw_of_fleet(parts.history, now_s),
            before_w=math.fsum(before for before, _ in pairs), after_w=math.fsum(after for _, after in pairs),
            drawn_w=math.fsum(row.drawn_w for row in rows if math.isfinite(row.drawn_w)), known=math.isfinite,
        )  # fmt: skip

    def scheduling(self, request: Request) -> Response:
        """The queue: who waits, in which order, and why."""
        self._site.of_cluster(request)
        rows = newest_by_job(self._receipts.newest("scheduling", _READ))
        rows.sort(key=lambda row: (row.seen.get("place", 0), row.job))
        waits = [row for row in rows if _verb(row.proposed) == SteerVerb.HOLD]
        starts = [row for row in rows if _verb(row.proposed) != SteerVerb.HOLD]
        return self._site.page(request, "scheduling.html", waits=waits, starts=starts, why=reason, verb=_verb)


def _verb(action: Any) -> str:
    return str(action.get("verb", "") if isinstance(action, Mapping) else action)


def reason(decision: ControlDecision) -> str:
    """Why a job starts or waits, in the policy's words, and what the shield changed."""
    return "; ".join([decision.why or "no reason given", *(f"shield: {clip.why}" for clip in decision.clips)])
