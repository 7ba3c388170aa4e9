"""The forms: each asks the gate, which decides, and shows its answer to the clicker alone."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import FastAPI, Form, Request
from fastapi.responses import Response

from nightshift.agent.approvals.answer import GateAnswer
from nightshift.agent.approvals.kernel_gate import KernelGate
from nightshift.agent.approvals.questions import Questions
from nightshift.agent.console.site import Site


class Decisions:
    """One method per form."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._parts = site.parts
        self._kernel_gate = KernelGate(site.parts.gate, site.parts.store, site.parts.clock)

    def add_to(self, app: FastAPI) -> None:
        for path, form in (
            ("/incidents/{incident_id}/approve", self.approve),
            ("/incidents/{incident_id}/reject", self.reject),
            ("/incidents/{incident_id}/resume", self.carry_on),
            ("/incidents/{incident_id}/not-a-fault", self.not_a_fault),
            ("/incidents/{incident_id}/ask", self.ask),
            ("/incidents/{incident_id}/judge", self.judge),
            ("/kernels/decide", self.decide_kernel),
            ("/halt", self.halt),
            ("/resume", self.resume),
        ):
            app.post(path, response_model=None)(form)

    def approve(
        self, request: Request, incident_id: str, form: Annotated[str, Form()], plan: Annotated[str, Form()]
    ) -> Response:
        person = self._site.may_write(request, form)
        answer = self._parts.gate.approve(incident_id, plan, person)
        return self._answered(incident_id, answer)

    def reject(
        self,
        request: Request,
        incident_id: str,
        form: Annotated[str, Form()],
        plan: Annotated[str, Form()],
        reason: Annotated[str, Form(max_length=2000)] = "",
    ) -> Response:
        person = self._site.may_write(request, form)
        answer = self._parts.gate.reject(incident_id, plan, person, reason)
        return self._answered(incident_id, answer)

    def not_a_fault(self, request: Request, incident_id: str, form: Annotated[str, Form()]) -> Response:
        person = self._site.may_write(request, form)
        answer = self._parts.gate.close(incident_id, person, "not a fault", not_a_fault=True)
        return self._answered(incident_id, answer)

    def judge(
        self,
        request: Request,
        incident_id: str,
        form: Annotated[str, Form()],
        verdict: Annotated[Literal["right", "wrong"], Form()],
        note: Annotated[str, Form(max_length=1000)] = "",
    ) -> Response:
        person = self._site.may_write(request, form)
        answer = self._parts.gate.judge(incident_id, person, right=verdict == "right", note=note)
        return self._answered(incident_id, answer)

    def ask(
        self,
        request: Request,
        incident_id: str,
        form: Annotated[str, Form()],
        question: Annotated[str, Form(max_length=2000)],
    ) -> Response:
        person = self._site.may_write(request, form)
        incident = self._site.window(request).incident(incident_id)
        Questions(self._parts.store.database, self._parts.clock).ask(incident, question, person)
        return self._site.said(f"/incidents/{quote(incident_id, safe='')}", "Asked. The answer comes below.")

    def carry_on(
        self,
        request: Request,
        incident_id: str,
        form: Annotated[str, Form()],
        choice: Annotated[str, Form()] = "finish",
    ) -> Response:
        person = self._site.may_write(request, form)
        answer = self._parts.gate.carry_on(incident_id, person, give_back=choice == "give back")
        return self._answered(incident_id, answer)

    def decide_kernel(
        self,
        request: Request,
        form: Annotated[str, Form()],
        id: Annotated[str, Form(max_length=300)],
        plan: Annotated[str, Form(max_length=64)],
        word: Annotated[str, Form()] = "reject",
        reason: Annotated[str, Form(max_length=2000)] = "",
    ) -> Response:
        person = self._site.may_write(request, form)
        gate = self._kernel_gate
        approve = word == "approve"
        answer = gate.approve(id, plan, person) if approve else gate.reject(id, plan, person, reason)
        return self._site.said("/kernels", answer.message)

    def halt(self, request: Request, form: Annotated[str, Form()]) -> Response:
        person = self._site.may_write(request, form)
        return self._site.said("/", self._parts.gate.halt(person).message)

    def resume(self, request: Request, form: Annotated[str, Form()]) -> Response:
        person = self._site.may_write(request, form)
        return self._site.said("/", self._parts.gate.resume(person).message)

    def _answered(self, incident_id: str, answer: GateAnswer) -> Response:
        return self._site.said(f"/incidents/{quote(incident_id, safe='')}", answer.message)
