"""The JSON API: the console's verbs for programs, through the same window and the same gate.

A program sends a token (`Authorization: Bearer`); a script of our own pages sends the session's cookie and, to
write, the form token in `X-Nightshift-Form`. Bodies have the stated fields and no other. `openapi.json` describes
it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import FastAPI, HTTPException, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException as StarletteHTTPException

from nightshift.agent.approvals.access import Permission, may
from nightshift.agent.approvals.answer import GateAnswer
from nightshift.agent.approvals.kernel_gate import KernelGate, not_promotable
from nightshift.agent.approvals.kernel_search import fleet_view
from nightshift.agent.approvals.policy import Person
from nightshift.agent.approvals.questions import Questions
from nightshift.agent.approvals.visibility import IncidentWindow
from nightshift.agent.console.federation import FederationPages
from nightshift.agent.console.goodput_page import By, Days, report_seen
from nightshift.agent.console.members import ClusterSummary
from nightshift.agent.console.site import Site, Visitor
from nightshift.agent.correlation.outside_reports import (
    ALERT,
    alerts_of,
    asked_for_alert,
    opened_by,
    subject_named,
)
from nightshift.agent.goodput.report import as_json as goodput_json
from nightshift.agent.presentation.incident_text import incident_json
from nightshift.agent.presentation.overview import Fresh, Overview, overview
from nightshift.agent.rca.question import asked_json
from nightshift.agent.rca.summary import as_shown
from nightshift.agent.store.incident import IncidentState
from nightshift.agent.store.incident_store import NoSuchIncident
from nightshift.agent.store.records import plain
from nightshift.agent.store.reports import Reports
from nightshift.agent.store.tenancy import Tenancy
from nightshift.collectors.base import Permanent, Temporary
from nightshift.detectors.base import Severity
from nightshift.version import line

PREFIX = "/api/v1"
FORM_HEADER = "X-Nightshift-Form"
_PAGE = 100
MOST_COUNTED = 1000
_NAMED = (*IncidentState,)


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Approve(_Body):
    """The plan that is approved, as it was shown."""

    plan_sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Reject(Approve):
    """The plan that is declined, and why."""

    reason: str = Field(min_length=1, max_length=2000)


class Note(_Body):
    """Why, in words."""

    note: str = Field("", max_length=2000)


class Judgement(Note):
    """Whether the diagnosis was right, and what it was if not."""

    right: bool


class Close(Note):
    """What was done, and whether nothing was wrong."""

    not_a_fault: bool = False


class Resume(BaseModel):
    """Whether what the action left is taken back, rather than finished."""

    give_back: bool = False


class Ask(_Body):
    """What a person wants to know about an incident."""

    question: str = Field(min_length=1, max_length=2000)


class Investigate(_Body):
    """The subject of a case: a pod, job or node by its name, a GPU by its UUID, or firing alerts by theirs."""

    kind: Literal["pod", "job", "node", "gpu", "alert"]
    name: str = Field(min_length=1, max_length=300)
    note: str = Field("", max_length=500)


class ApiAnswer(BaseModel):
    """What the gate said. `changed` is false where the call did nothing."""

    ok: bool
    changed: bool
    message: str


class ApiProblem(BaseModel):
    """What went wrong, for a person."""

    detail: str


class Mistakes(BaseModel):
    """What is wrong with the request, place by place; what was sent is not repeated."""

    detail: list[dict[str, Any]]


class Me(BaseModel):
    """Who is asking, and what they may do to the cluster's own; `namespaces` are their teams'."""

    name: str
    role: str
    can: list[str]
    namespaces: list[str]


_ERRORS: dict[int | str, dict[str, Any]] = {
    **{status: {"model": ApiProblem} for status in (400, 401, 403, 404, 409, 413, 503)},
    422: {"model": Mistakes},
}
_DECIDED: dict[int | str, dict[str, Any]] = _ERRORS | {409: {"model": ApiAnswer}}
IncidentId = Annotated[str, Path(max_length=20, examples=["INC-7"])]


class Api:
    """One method per call."""

    def __init__(self, site: Site, federation: FederationPages) -> None:
        self._site, self._federation = site, federation
        self._parts = site.parts
        self._kernels = KernelGate(site.parts.gate, site.parts.store, site.parts.clock)
        self._reports = Reports(site.parts.store.database)
        self._questions = Questions(site.parts.store.database, site.parts.clock)
        self._version = line()
        self._fleet: Fresh[Overview] = Fresh()

    def add_to(self, app: FastAPI) -> None:
        """Mounts the API as an application of its own, so that its description has no pages in it."""
        # No docs pages: they load scripts from a CDN, which the content security policy refuses.
        own = FastAPI(title="Nightshift", version="1", docs_url=None, redoc_url=None, openapi_url="/openapi.json")
        for kind in (StarletteHTTPException, NoSuchIncident, Permanent, Temporary):
            own.add_exception_handler(kind, self._site.failed)
        own.add_exception_handler(RequestValidationError, mistaken)
        self._fill(own)
        app.mount(PREFIX, own)

    def _fill(self, own: FastAPI) -> None:
        own.get("/me", response_model=Me, responses=_ERRORS)(self.me)
        for path, call in (
            ("/status", self.status),
            ("/summary", self.summary),
            ("/clusters", self.clusters),
            ("/incidents", self.incidents),
            ("/incidents/{incident_id}", self.incident),
            ("/incidents/{incident_id}/approvals", self.approvals),
            ("/incidents/{incident_id}/questions", self.questions),
            ("/audit", self.audit),
            ("/kernels", self.kernels),
            ("/halt", self.halted),
            ("/goodput", self.goodput),
        ):
            own.get(path, responses=_ERRORS)(call)
        own.post("/investigate", responses=_ERRORS)(self.investigate)
        own.post("/webhooks/alertmanager", responses=_ERRORS)(self.alertmanager)
        own.post("/incidents/{incident_id}/questions", responses=_ERRORS)(self.ask)
        content: dict[int | str, dict[str, Any]] = {200: {"content": {"application/octet-stream": {}}}}
        path = "/incidents/{incident_id}/evidence/{evidence_id}"
        own.get(path, response_class=Response, responses=_ERRORS | content)(self.evidence)
        for path, decide in (
            ("/incidents/{incident_id}/approve", self.approve),
            ("/incidents/{incident_id}/reject", self.reject),
            ("/incidents/{incident_id}/close", self.close),
            ("/incidents/{incident_id}/feedback", self.judge),
            ("/incidents/{incident_id}/resume", self.carry_on),
            ("/halt", self.halt),
            ("/resume", self.resume),
        ):
            own.post(path, response_model=ApiAnswer, responses=_DECIDED)(decide)

    # Reading ----------------------------------------------------------------------------------------------------

    def me(self, request: Request) -> Me:
        person = self._site.window(request).person
        can = [str(verb) for verb in Permission if may(person, verb)]
        spaces = sorted({name for grant in person.grants for name in grant.namespaces})
        return Me(name=person.name, role=str(person.role), can=can, namespaces=spaces)

    def goodput(self, request: Request, days: Days = 7, by: By = "job") -> dict[str, Any]:
        """Where the GPU time of the last days went; of the caller's own jobs alone where they see no more."""
        report, whole = report_seen(self._site, request, days)
        return {"whole": whole, **goodput_json(report, by)}

    def status(self, request: Request) -> dict[str, Any]:
        """Whether the daemon works, what each source answered last, what is open by severity (of the newest
        thousand), and what waits."""
        window = self._site.of_cluster(request)
        health, halt = self._parts.health(), self._parts.gate.halted()
        rows = window.incidents([s for s in _NAMED if s is not IncidentState.RESOLVED], limit=MOST_COUNTED)
        waiting = [row.id for row in rows if row.state is IncidentState.AWAITING_APPROVAL]
        fleet = self._fleet.get("", lambda: self._overview(window))
        sources = sorted(self._parts.history.sources(), key=lambda status: (status.ok, status.source.name))
        return {
            "version": self._version, "cluster": self._parts.cluster, "now_s": self._parts.clock.now_s(),
            "alive": health.alive, "ready": health.ready, "reasons": health.reasons,
            "halted": halt.halted, "halted_by": halt.by, "halted_because": halt.reason,
            "open": {str(severity): sum(row.severity is severity for row in rows) for severity in Severity},
            "waiting": waiting,
            "gpus": dict(fleet.counts), "nodes": fleet.nodes,
            "racks": [{"name": rack.name, "worst": rack.worst, "told": rack.said} for rack in fleet.groups],
            "sources": [
                {"name": one.source.name, "ok": one.ok, "at_s": one.at_s, "samples": one.samples,
                 "problem": "" if one.ok else str(one.reason or "failed"), "detail": one.detail or one.partly}
                for one in sources
            ],
        }  # fmt: skip

    def _overview(self, window: IncidentWindow) -> Overview:
        parts = self._parts
        return overview(parts.history, parts.inventory, window.open_incidents(), parts.clock.now_s()).front

    def summary(self, request: Request) -> ClusterSummary:
        """This cluster in short, as another agent's page of clusters reads it."""
        return self._federation.own(self._site.of_cluster(request))

    def clusters(self, request: Request) -> dict[str, Any]:
        """Every cluster that this console shows: how it answers, its figures where the caller sees the whole
        cluster, and the most urgent incidents."""
        return self._federation.as_json(self._site.window(request))

    def incidents(
        self,
        request: Request,
        state: Literal["all", "open", "waiting", "resolved"] = "open",
        page: Annotated[int, Query(ge=1, le=100_000)] = 1,
    ) -> list[dict[str, Any]]:
        """Summaries, newest first, a hundred a page."""
        states: dict[str, Sequence[IncidentState] | None] = {
            "all": None,
            "open": [s for s in _NAMED if s is not IncidentState.RESOLVED],
            "waiting": [IncidentState.AWAITING_APPROVAL],
            "resolved": [IncidentState.RESOLVED],
        }
        rows = self._site.window(request).incidents(states[state], limit=_PAGE, offset=(page - 1) * _PAGE)
        return [incident_json(row) for row in rows]

    def incident(self, request: Request, incident_id: IncidentId) -> dict[str, Any]:
        """Everything that the caller may see of one incident."""
        found: dict[str, Any] = incident_json(as_shown(self._site.window(request).incident(incident_id)))
        return found

    def approvals(self, request: Request, incident_id: IncidentId) -> list[dict[str, Any]]:
        window = self._site.window(request)
        window.incident(incident_id)
        return [plain(item) for item in window.approvals(self._parts.gate, incident_id)]

    def questions(self, request: Request, incident_id: IncidentId) -> list[dict[str, Any]]:
        """What was asked about an incident, the oldest first, with the answers so far."""
        return [asked_json(asked) for asked in self._site.window(request).questions(incident_id)]

    def ask(self, request: Request, incident_id: IncidentId, body: Ask) -> dict[str, Any]:
        """Stores a question; its answer comes to `questions` under the number that is returned."""
        person = self._writer(request)
        incident = self._site.window(request).incident(incident_id)
        return asked_json(self._questions.ask(incident, body.question, person))

    def investigate(self, request: Request, body: Investigate) -> dict[str, Any]:
        """Opens a case by hand; the next look gives it an incident, or adds it to the one that is there."""
        person, now_s = self._writer(request), self._parts.clock.now_s()
        if body.kind == ALERT:
            found = asked_for_alert(body.name, person.identity, body.note, self._parts.cluster, now_s)
        else:
            # another team's names are never shown, not even as a similar name
            may_name = self._site.window(request).may_name
            subject = subject_named(body.kind, body.name, self._parts.inventory, may_name)
            found = opened_by(subject, person.identity, body.note, now_s)
        touched = Tenancy(self._parts.inventory).of(found.subject, now_s)
        if not (allowed := may(person, Permission.INVESTIGATE, touched)):
            raise HTTPException(403, allowed.reason)
        self._reports.put([found], now_s, person.identity)
        return {"episode": found.episode, "subject": str(found.subject)}

    async def alertmanager(self, request: Request) -> dict[str, int]:
        """Takes a webhook of Alertmanager (version 4). The same alert again changes nothing."""
        person = await run_in_threadpool(self._writer, request)
        if not (allowed := may(person, Permission.INVESTIGATE)):
            raise HTTPException(403, allowed.reason)
        try:
            payload = json.loads(await request.body())
        except (ValueError, RecursionError) as error:
            raise HTTPException(400, "the webhook's body is no JSON") from error
        now_s = self._parts.clock.now_s()
        try:
            found, ours = alerts_of(payload, self._parts.cluster, now_s)
        except Permanent as error:
            raise HTTPException(400, str(error)) from error
        taken = await run_in_threadpool(self._reports.put, found, now_s)
        return {"taken": taken, "ours": ours}

    def evidence(self, request: Request, incident_id: IncidentId, evidence_id: str) -> Response:
        """An evidence item's bytes."""
        diagnosis = self._site.window(request).incident(incident_id).diagnosis
        for item in diagnosis.evidence if diagnosis else ():
            if item.id == evidence_id:
                headers = {"Content-Disposition": "attachment"}
                return Response(item.content, media_type="application/octet-stream", headers=headers)
        raise HTTPException(404, "there is no such evidence")

    def audit(self, request: Request, limit: Annotated[int, Query(ge=1, le=1000)] = 200) -> list[dict[str, Any]]:
        """The newest records that the caller may see."""
        return [plain(record) for record in self._site.window(request).audit(limit)]

    def kernels(self, request: Request) -> list[dict[str, Any]]:
        """Searches and promotions of kernels; of a promotion also why it is refused now, "" where it is not."""
        found = self._kernels.proposals(self._site.window(request).person)[:_PAGE]
        view = fleet_view(self._parts.store, self._parts.clock.now_s())
        return [{**plain(item), "not_promotable": not_promotable(item, view)} for item in found]

    def halted(self, request: Request) -> dict[str, Any]:
        """The emergency stop as it stands; who, why and what it holds half-way is the cluster's."""
        person = self._site.window(request).person
        halt = self._parts.gate.halted()
        if not may(person, Permission.SEE_CLUSTER):
            return {"halted": halt.halted}
        return {**asdict(halt), "held": self._parts.gate.held() if halt.halted else []}

    # Deciding ---------------------------------------------------------------------------------------------------

    def approve(self, request: Request, incident_id: IncidentId, body: Approve) -> JSONResponse:
        return _told(self._parts.gate.approve(incident_id, body.plan_sha256, self._writer(request)))

    def reject(self, request: Request, incident_id: IncidentId, body: Reject) -> JSONResponse:
        return _told(self._parts.gate.reject(incident_id, body.plan_sha256, self._writer(request), body.reason))

    def close(self, request: Request, incident_id: IncidentId, body: Close) -> JSONResponse:
        gate = self._parts.gate
        return _told(gate.close(incident_id, self._writer(request), body.note, not_a_fault=body.not_a_fault))

    def judge(self, request: Request, incident_id: IncidentId, body: Judgement) -> JSONResponse:
        """Says whether the diagnosis was right."""
        gate = self._parts.gate
        return _told(gate.judge(incident_id, self._writer(request), right=body.right, note=body.note))

    def carry_on(self, request: Request, incident_id: IncidentId, body: Resume) -> JSONResponse:
        """Finishes, or takes back, an action whose outcome is unknown."""
        gate = self._parts.gate
        return _told(gate.carry_on(incident_id, self._writer(request), give_back=body.give_back))

    def halt(self, request: Request, body: Note) -> JSONResponse:
        return _told(self._parts.gate.halt(self._writer(request), body.note))

    def resume(self, request: Request) -> JSONResponse:
        return _told(self._parts.gate.resume(self._writer(request)))

    def _writer(self, request: Request) -> Person:
        """Who decides: a program by its token, or a page of ours with the form's token. A cookie alone is not
        enough, since browsers send it for anybody."""
        visitor: Visitor | None = self._site.visitor(request)
        if visitor is None:
            raise HTTPException(401, "sign in first")
        if visitor.session is None:
            return visitor.person
        return self._site.may_write(request, request.headers.get(FORM_HEADER, ""))


def _told(answer: GateAnswer) -> JSONResponse:
    return JSONResponse(asdict(answer), 200 if answer.ok else 409)


async def mistaken(request: Request, error: Exception) -> Response:
    """Says where the mistake is, and repeats nothing of what was sent."""
    assert isinstance(error, RequestValidationError)
    places = [{"loc": [str(part)[:100] for part in e["loc"]], "msg": str(e["msg"])[:200]} for e in error.errors()]
    return JSONResponse({"detail": places[:20]}, 422)
