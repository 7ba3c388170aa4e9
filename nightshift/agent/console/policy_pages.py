"""Learned policies: where each stands between shadow and active, on what evidence, what waits for people; what was
decided lately, and any one decision's receipt."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Form, HTTPException, Request
from fastapi.responses import Response

from nightshift.agent.approvals.policy_gate import PolicyGate
from nightshift.agent.console.site import Site
from nightshift.agent.store.receipts import LEVERS, Receipts, told
from nightshift.collectors.base import Permanent
from nightshift.controllers.promotion import STEPS, least_jobs

_LISTED = 50
_NEWEST = 12


class PolicyPages:
    """The page, and its form."""

    def __init__(self, site: Site) -> None:
        self._site = site
        parts = site.parts
        self._gate = PolicyGate(parts.gate, parts.store, parts.clock, parts.cluster)
        self._receipts = Receipts(parts.store.database)

    def add_to(self, app: FastAPI) -> None:
        app.get("/policies", response_model=None)(self.policies)
        app.get("/policies/decisions/{decision}", response_model=None)(self.decision)
        app.post("/policies/decide", response_model=None)(self.decide)
        app.post("/policies/take-back", response_model=None)(self.take_back)

    def policies(self, request: Request) -> Response:
        """What stands, each with its newest evidence and its history; then the steps that wait or were decided."""
        self._site.of_cluster(request)
        rows = self._gate.proposals()[:_LISTED]
        standings = self._gate.standings()
        settled = {s.kind: self._receipts.jobs(s.kind, s.policy, s.mode, s.since_s) for s in standings}
        needed = {s.kind: least_jobs(s, self._gate.criteria_of(s.kind)) << s.looks for s in standings}
        newest = {s.kind: self._receipts.newest(s.kind, _NEWEST) for s in standings}
        return self._site.page(
            request, "policies.html", standings=standings, rows=rows, steps=STEPS, settled=settled, needed=needed,
            units={s.kind: self._gate.criteria_of(s.kind).unit for s in standings},
            newest=newest, levers=LEVERS,
            summaries={s.kind: self._receipts.summary(s.kind, s.policy, s.mode, s.since_s) for s in standings},
        )  # fmt: skip

    def decision(self, request: Request, decision: str) -> Response:
        """One receipt: what was seen, proposed, clipped, executed, the baseline's answer, and what came of it."""
        self._site.of_cluster(request)
        try:
            found = self._receipts.find(decision)
        except Permanent as error:
            raise HTTPException(404, str(error)) from error
        lines = list(told(found, self._receipts.came(found.id)))
        return self._site.page(request, "decision.html", found=found, lines=lines)

    def take_back(
        self,
        request: Request,
        form: Annotated[str, Form()],
        kind: Annotated[str, Form(max_length=40)],
        reason: Annotated[str, Form(max_length=2000)] = "",
    ) -> Response:
        person = self._site.may_write(request, form)
        try:
            answer = self._gate.undo(kind, person, reason)
        except Permanent as error:
            raise HTTPException(404, str(error)) from error
        return self._site.said("/policies", answer.message)

    def decide(
        self,
        request: Request,
        form: Annotated[str, Form()],
        id: Annotated[str, Form(max_length=300)],
        plan: Annotated[str, Form(max_length=64)],
        word: Annotated[str, Form()] = "reject",
        reason: Annotated[str, Form(max_length=2000)] = "",
    ) -> Response:
        person = self._site.may_write(request, form)
        approve = word == "approve"
        answer = self._gate.approve(id, plan, person) if approve else self._gate.reject(id, plan, person, reason)
        return self._site.said("/policies", answer.message)
