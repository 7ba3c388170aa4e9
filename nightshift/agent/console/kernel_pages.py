"""Kernels: what was proposed, what is in use, and how each search came to its result."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import numpy as np
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import RedirectResponse, Response

from nightshift.agent.approvals.access import Permission, may
from nightshift.agent.approvals.kernel_gate import KernelGate, not_promotable
from nightshift.agent.approvals.kernel_search import SHOWN, fleet_view
from nightshift.agent.console.site import Site
from nightshift.agent.kernels.delivery import standings
from nightshift.agent.kernels.runner import ledger_of
from nightshift.agent.presentation.line_chart import Chart
from nightshift.agent.presentation.tour import NEWEST_RUN

_PAGE = 100
_MICRO = 1e6


@dataclass(frozen=True, slots=True)
class KernelRun:
    """One problem of a search. Times in µs, NaN: not known. `floor_us`: the least that the GPU's memory or
    arithmetic allows (the roofline)."""

    problem: str
    trials: int
    best_us: float
    baseline: str
    baseline_us: float
    floor_us: float
    speedup: str
    outcome: str
    chart: Chart

    @property
    def of_roofline(self) -> float:
        """Share of the roofline that the best one reaches."""
        return self.floor_us / self.best_us

    @property
    def baseline_of_roofline(self) -> float:
        return self.floor_us / self.baseline_us


def kernel_run(problem: str, lines: Sequence[Mapping[str, Any]]) -> KernelRun:
    """What the ledger's lines of one problem tell, in the order of their trials."""
    best, at_s, bests = math.inf, [], []
    last: Mapping[str, Any] = {}
    for line in lines:
        took = _number(line.get("seconds"))
        if line.get("decision") == "keep" and took < best:
            best, last = took, line
        at_s.append(_number(line.get("at_s")))
        bests.append(best * _MICRO if math.isfinite(best) else math.nan)
    baselines = {str(name): _number(value) for name, value in (last.get("baselines") or {}).items()}
    name = min(baselines, key=lambda key: baselines[key], default="")
    baseline_us = baselines.get(name, math.nan) * _MICRO
    low, point, high = (_number(value) for value in last.get("speedup") or (None, None, None))
    chart = Chart(
        f"Best time so far · {problem}", "µs", np.array(at_s), np.array(bests), None, baseline_us,
        note=f"the dashed line is the fastest baseline, {name}" if name else "",
    )  # fmt: skip
    return KernelRun(
        problem, len(lines), best * _MICRO, name, baseline_us, _number(last.get("floor_s")) * _MICRO,
        f"{point:.2f} ({low:.2f} to {high:.2f})" if math.isfinite(point) else "",
        f"{last.get('status', '')}: {last.get('reason', '')}".strip(": "), chart,
    )  # fmt: skip


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else math.nan


class KernelPages:
    """The list, and one search."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._parts = site.parts
        self._gate = KernelGate(site.parts.gate, site.parts.store, site.parts.clock)

    def add_to(self, app: FastAPI) -> None:
        app.get("/kernels", response_model=None)(self.kernels)
        app.get(NEWEST_RUN, response_model=None)(self.newest_run)
        app.get("/kernels/runs/{run}", response_model=None)(self.run)

    def kernels(self, request: Request) -> Response:
        """Searches and promotions of kernels: what waits, with its evidence, and what was decided."""
        person = self._site.window(request).person
        rows = self._gate.proposals(person)[:_PAGE]
        view = fleet_view(self._parts.store, self._parts.clock.now_s())
        refused = {row.id: not_promotable(row, view) for row in rows}
        sees_cluster = may(person, Permission.SEE_CLUSTER)
        in_use = standings(self._parts.store) if sees_cluster else []
        runs = self._gate.searches()[:_PAGE] if sees_cluster else []
        return self._site.page(
            request, "kernels.html", rows=rows, refused=refused, shown=SHOWN, in_use=in_use, runs=runs
        )

    def newest_run(self, request: Request) -> Response:
        """Leads to the newest search, on a tour or not."""
        self._site.of_cluster(request)
        searches = self._gate.searches()
        if not searches:
            raise HTTPException(404, "no kernel search was begun yet")
        newest = max(searches, key=lambda one: one.begun_at_s)
        tour = "?tour" if "tour" in request.query_params else ""
        return RedirectResponse(f"{NEWEST_RUN}/{quote(newest.name, safe='')}{tour}", 303)

    def run(self, request: Request, run: str) -> Response:
        """One search: convergence, share of the roofline, and the certificates that it brought."""
        self._site.of_cluster(request)
        search = next((one for one in self._gate.searches() if one.name == run), None)
        if search is None:
            raise HTTPException(404, f"no kernel search {run[:_PAGE]} was begun")
        by_problem: dict[str, list[Mapping[str, Any]]] = {}
        for (problem, _), line in sorted(ledger_of(self._parts.store, search).items()):
            by_problem.setdefault(problem, []).append(line)
        told = [kernel_run(problem, lines) for problem, lines in by_problem.items()]
        return self._site.page(request, "kernel_run.html", search=search, told=told, known=math.isfinite)
