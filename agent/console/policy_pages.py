"""Learned policies: where each stands between shadow and active, on what evidence, and what waits for people."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Form, Request
from fastapi.responses import Response

from agent.console.site import Site
from agent.policy_gate import PolicyGate
from controllers.promotion import STEPS

_LISTED = 50


class PolicyPages:
    """The page, and its form."""

    def __init__(self, site: Site) -> None:
        self._site = site
        parts = site.parts
        self._gate = PolicyGate(parts.gate, parts.store, parts.clock, parts.cluster)

    def add_to(self, app: FastAPI) -> None:
        app.get("/policies", response_model=None)(self.policies)
        app.post("/policies/decide", response_model=None)(self.decide)

    def policies(self, request: Request) -> Response:
        """What stands, each with its newest evidence and its history; then the steps that wait or were decided."""
        self._site.of_cluster(request)
        rows = self._gate.proposals()[:_LISTED]
        return self._site.page(request, "policies.html", standings=self._gate.standings(), rows=rows, steps=STEPS)

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
