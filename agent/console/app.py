"""The console's routes. Pages read the store and the history; only the gate is ever asked to do anything.

Reading is open on loopback and needs a sign-in elsewhere; every write needs a sign-in, a form token and a request
from our own pages. All text from outside (labels, log lines, names) reaches HTML through Jinja's autoescape.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, unquote, urlsplit

from fastapi import FastAPI, Form, HTTPException, Request
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.staticfiles import StaticFiles

from agent.clock import Clock
from agent.console import incident_page, words
from agent.console.chart import Chart, draw
from agent.console.fleet import fleet
from agent.console.settings import Settings
from agent.console.sign_in import COOKIE, Doorkeeper, Session
from agent.gate import Gate, GateAnswer
from agent.incident import IncidentState
from agent.kernel_gate import KernelGate
from agent.metrics import CONTENT_TYPE
from agent.policy import Person, Role
from agent.rca.diagnosis import Evidence
from agent.rca.summary import as_shown
from agent.store import NoSuchIncident, Store
from collectors.base import Permanent, Temporary
from collectors.history import History
from collectors.metrics import METRICS
from collectors.subject import Inventory, Subject, SubjectKind

_HERE = Path(__file__).parent
_PAGE = 100
_FLASH = "nightshift_said"
_GPU_SPAN_S = 3600.0
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True)
class Health:
    """Whether the daemon lives, and whether it is ready; `reasons` say why not."""

    alive: bool
    ready: bool
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Parts:
    """What the console looks at, and the gate that it asks."""

    store: Store
    gate: Gate
    history: History
    inventory: Inventory
    clock: Clock
    doorkeeper: Doorkeeper
    health: Callable[[], Health]
    metrics_page: Callable[[], bytes]
    cluster: str
    wall_s: Callable[[], float] = time.time
    """Sessions last in the browser's time, whatever clock the fleet is watched by."""


def build_console(parts: Parts, settings: Settings) -> FastAPI:
    """The ASGI application; it holds no state beside its parts."""
    app = FastAPI(title="Nightshift", docs_url=None, redoc_url=None, openapi_url=None)
    hosts = [settings.host, *LOOPBACK_NAMES, *settings.allowed_hosts]
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=["*" if h in ("0.0.0.0", "::") else h for h in hosts])
    app.mount("/static", StaticFiles(directory=_HERE / "static"), name="static")
    pages = _Pages(parts, settings)
    app.middleware("http")(_guarded)
    for kind in (StarletteHTTPException, NoSuchIncident, Permanent, Temporary):
        app.add_exception_handler(kind, pages.failed)
    pages.add_to(app)
    return app


async def _guarded(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    """Refuses writes that another site started, and puts the security headers on every answer."""
    if request.method not in ("GET", "HEAD") and not _from_our_pages(request):
        response: Response = PlainTextResponse("this request came from another site", 403)
    else:
        response = await call_next(request)
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    if request.url.path.startswith("/static/"):
        response.headers["Cache-Control"] = "public, max-age=3600"
    return response


def _from_our_pages(request: Request) -> bool:
    """By what browsers say of a request and no script can forge: Sec-Fetch-Site (W3C Fetch Metadata) and Origin."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None and site not in ("same-origin", "none"):
        return False
    return origin is None or urlsplit(origin).netloc == request.headers.get("host")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _Pages:
    """One method per route."""

    def __init__(self, parts: Parts, settings: Settings) -> None:
        self.parts = parts
        self.settings = settings
        self._open_reading = _is_loopback(settings.host) and not settings.behind_tls
        self._kernel_gate = KernelGate(parts.gate, parts.store, parts.clock)
        self._templates = Environment(
            loader=PackageLoader("agent.console"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
        )
        self._templates.filters.update(
            clock=words.clock_time,
            time=words.full_time,
            iso=words.iso_time,
            duration=words.duration,
            quantity=words.quantity,
            sentence=words.sentence,
            draw=draw,
        )

    def add_to(self, app: FastAPI) -> None:
        for path, method in (
            ("/", self.fleet),
            ("/incidents", self.incidents),
            ("/incidents/{incident_id}", self.incident),
            ("/incidents/{incident_id}/evidence/{evidence_id}", self.evidence),
            ("/gpus/{uuid}", self.gpu),
            ("/kernels", self.kernels),
            ("/sources", self.sources),
            ("/audit", self.audit),
            ("/sign-in", self.sign_in_form),
            ("/healthz", self.healthz),
            ("/readyz", self.readyz),
            ("/metrics", self.metrics),
        ):
            app.get(path, response_model=None)(method)
        for path, post in (
            ("/incidents/{incident_id}/approve", self.approve),
            ("/incidents/{incident_id}/reject", self.reject),
            ("/kernels/decide", self.decide_kernel),
            ("/halt", self.halt),
            ("/resume", self.resume),
            ("/sign-in", self.sign_in),
            ("/sign-out", self.sign_out),
        ):
            app.post(path, response_model=None)(post)

    # Reading ----------------------------------------------------------------------------------------------------

    def fleet(self, request: Request) -> Response:
        """Every GPU, the open incidents and those resolved lately."""
        self._may_read(request)
        now_s = self.parts.clock.now_s()
        opened = self.parts.store.open_incidents()
        closed = self.parts.store.incidents([IncidentState.RESOLVED], limit=8)
        view = fleet(self.parts.history, self.parts.inventory, opened, now_s)
        return self._page(request, "fleet.html", fleet=view, opened=opened, closed=closed)

    def incidents(self, request: Request, state: str = "all", page: int = 1) -> Response:
        """The list, newest first."""
        self._may_read(request)
        states = {
            "all": None,
            "open": [s for s in IncidentState if s is not IncidentState.RESOLVED],
            "waiting": [IncidentState.AWAITING_APPROVAL],
            "resolved": [IncidentState.RESOLVED],
        }
        if state not in states or not 1 <= page <= 100_000:
            raise HTTPException(404, "there is no such list of incidents")
        rows = self.parts.store.incidents(states[state], limit=_PAGE + 1, offset=(page - 1) * _PAGE)
        return self._page(
            request,
            "incidents.html",
            rows=rows[:_PAGE],
            chosen=state,
            page=page,
            more=len(rows) > _PAGE,
            lists=states,
        )

    def incident(self, request: Request, incident_id: str, seen: int | None = None) -> Response:
        """One incident. `seen` is the version that a page shows: 204 while it is current, else it loads again."""
        self._may_read(request)
        incident = as_shown(self.parts.store.incident(incident_id))
        if seen is not None:
            headers = {} if seen == incident.version else {"HX-Refresh": "true"}
            return Response(status_code=204, headers=headers)
        now_s = self.parts.clock.now_s()
        onset_s = incident_page.onset_s(incident)
        shown = incident_page.charts(incident, self.parts.history, now_s)
        cited: list[tuple[Evidence, Chart | None, str]] = []
        others: list[tuple[Evidence, Chart | None, str]] = []
        if incident.diagnosis is not None:
            ids = {id_ for claim in incident.diagnosis.claims for id_ in claim.evidence_ids}
            for item in incident.diagnosis.evidence:
                chart = incident_page.evidence_chart(item, onset_s)
                row = (item, chart, "" if chart else _text(item.content))
                (cited if item.id in ids else others).append(row)
        return self._page(
            request,
            "incident.html",
            incident=incident,
            onset_s=onset_s,
            charts=shown,
            cited=cited,
            others=others,
            plan=incident_page.plan(incident, now_s),
            signals=incident_page.signals(incident),
        )

    def evidence(self, request: Request, incident_id: str, evidence_id: str) -> Response:
        """An evidence item's bytes, as a download that no browser renders."""
        self._may_read(request)
        diagnosis = self.parts.store.incident(incident_id).diagnosis
        for item in diagnosis.evidence if diagnosis else ():
            if item.id == evidence_id:
                headers = {"Content-Disposition": f'attachment; filename="{quote(incident_id)}-{quote(item.id)}"'}
                return Response(item.content, media_type="application/octet-stream", headers=headers)
        raise HTTPException(404, f"{incident_id} has no evidence {evidence_id}")

    def gpu(self, request: Request, uuid: str) -> Response:
        """The last hour of one GPU's signals and its incidents."""
        self._may_read(request)
        gpu = Subject(SubjectKind.GPU, uuid)
        now_s = self.parts.clock.now_s()
        charts = []
        for metric in METRICS:
            if metric.kind is SubjectKind.GPU:
                t_s, values = self.parts.history.window(gpu, metric.name, now_s - _GPU_SPAN_S, now_s)
                if values.size and metric.name != "gpu_xid_last":
                    charts.append(Chart(metric.help, metric.unit, t_s, values))
        above = [s for s in self.parts.inventory.ancestors(gpu, now_s) if s != gpu]
        if not charts and not above:
            raise HTTPException(404, f"no GPU {uuid} was seen")
        rows = [
            incident
            for incident in self.parts.store.incidents(limit=500)
            if any(
                gpu in self.parts.inventory.gpus(finding.subject, finding.since_s) for finding in incident.findings
            )
        ]
        return self._page(request, "gpu.html", gpu=gpu, charts=charts, above=above, rows=rows)

    def sources(self, request: Request) -> Response:
        """What the newest look got from each source."""
        self._may_read(request)
        rows = sorted(self.parts.history.sources(), key=lambda status: (status.ok, status.source.name))
        return self._page(request, "sources.html", rows=rows)

    def kernels(self, request: Request) -> Response:
        """Searches and promotions of kernels: what waits, with its evidence, and what was decided."""
        self._may_read(request)
        return self._page(request, "kernels.html", rows=self._kernel_gate.proposals()[:_PAGE])

    def audit(self, request: Request) -> Response:
        """The newest records of the audit log."""
        self._may_read(request)
        return self._page(request, "audit.html", rows=self.parts.store.audit.records(limit=200, newest_first=True))

    def healthz(self) -> Response:
        health = self.parts.health()
        return JSONResponse({"alive": health.alive, "reasons": health.reasons}, 200 if health.alive else 503)

    def readyz(self) -> Response:
        health = self.parts.health()
        return JSONResponse({"ready": health.ready, "reasons": health.reasons}, 200 if health.ready else 503)

    def metrics(self) -> Response:
        return Response(self.parts.metrics_page(), media_type=CONTENT_TYPE)

    # Writing ----------------------------------------------------------------------------------------------------

    def approve(
        self, request: Request, incident_id: str, form: Annotated[str, Form()], plan: Annotated[str, Form()]
    ) -> Response:
        session = self._may_write(request, form)
        answer = self.parts.gate.approve(incident_id, plan, self._person(session))
        return self._answered(incident_id, answer)

    def reject(
        self,
        request: Request,
        incident_id: str,
        form: Annotated[str, Form()],
        plan: Annotated[str, Form()],
        reason: Annotated[str, Form(max_length=2000)] = "",
    ) -> Response:
        session = self._may_write(request, form)
        answer = self.parts.gate.reject(incident_id, plan, self._person(session), reason)
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
        session = self._may_write(request, form)
        gate, person = self._kernel_gate, self._person(session)
        approve = word == "approve"
        answer = gate.approve(id, plan, person) if approve else gate.reject(id, plan, person, reason)
        return self._said("/kernels", answer.message)

    def halt(self, request: Request, form: Annotated[str, Form()]) -> Response:
        session = self._may_write(request, form)
        return self._said("/", self.parts.gate.halt(self._person(session)).message)

    def resume(self, request: Request, form: Annotated[str, Form()]) -> Response:
        session = self._may_write(request, form)
        return self._said("/", self.parts.gate.resume(self._person(session)).message)

    def sign_in_form(self, request: Request, next: str = "/") -> Response:
        return self._page(request, "sign_in.html", next=_local(next), wrong=False)

    def sign_in(self, request: Request, token: Annotated[str, Form(max_length=500)],
                next: Annotated[str, Form()] = "/") -> Response:  # fmt: skip
        session = self.parts.doorkeeper.sign_in(token, self.parts.wall_s())
        if session is None:
            return self._page(request, "sign_in.html", status=403, next=_local(next), wrong=True)
        response = RedirectResponse(_local(next), 303)
        response.set_cookie(
            COOKIE,
            self.parts.doorkeeper.cookie(session),
            max_age=round(self.settings.session_s),
            httponly=True,
            samesite="strict",
            secure=self.settings.behind_tls,
        )
        return response

    def sign_out(self, request: Request, form: Annotated[str, Form()]) -> Response:
        self._may_write(request, form)
        response = RedirectResponse("/", 303)
        response.delete_cookie(COOKIE)
        return response

    # Shared -----------------------------------------------------------------------------------------------------

    def _session(self, request: Request) -> Session | None:
        return self.parts.doorkeeper.session(request.cookies.get(COOKIE), self.parts.wall_s())

    def _may_read(self, request: Request) -> None:
        if not self._open_reading and self._session(request) is None:
            raise HTTPException(401, "sign in first")

    def _may_write(self, request: Request, form: str) -> Session:
        session = self._session(request)
        if session is None:
            raise HTTPException(401, "sign in first")
        if not self.parts.doorkeeper.form_is_ours(session, form):
            raise HTTPException(403, "this form is not ours or too old; load the page again")
        return session

    def _person(self, session: Session) -> Person:
        """Whom the gate sees. The sign-in's age is told in the daemon's clock, which a demo runs faster."""
        age_s = self.parts.wall_s() - session.since_s
        roles = frozenset(Role(role) for role in session.roles)
        return Person(session.name, roles, "console", self.parts.clock.now_s() - age_s)

    def _page(self, request: Request, template: str, status: int = 200, **values: Any) -> Response:
        session = self._session(request)
        said = request.cookies.get(_FLASH, "")
        health = self.parts.health()
        html = self._templates.get_template(template).render(
            session=session,
            form=self.parts.doorkeeper.form_token(session) if session else "",
            path=request.url.path,
            now_s=self.parts.clock.now_s(),
            cluster=self.parts.cluster,
            halted=self.parts.gate.halted().halted,
            health=health,
            said=unquote(said)[:500],
            **values,
        )
        response = HTMLResponse(html, status)
        if said:
            response.delete_cookie(_FLASH)
        return response

    def _answered(self, incident_id: str, answer: GateAnswer) -> Response:
        return self._said(f"/incidents/{quote(incident_id, safe='')}", answer.message)

    def _said(self, where: str, message: str) -> Response:
        """Goes to a page that shows the message once, to this browser alone."""
        response = RedirectResponse(where, 303)
        response.set_cookie(_FLASH, quote(message[:500]), max_age=60, httponly=True, samesite="strict")
        return response

    async def failed(self, request: Request, error: Exception) -> Response:
        """An error as a page: what happened, and a way to go on."""
        if isinstance(error, StarletteHTTPException):
            status, message = error.status_code, str(error.detail)
        else:
            status = 404 if isinstance(error, NoSuchIncident) else 503 if isinstance(error, Temporary) else 409
            message = str(error)
        if status == 401 and request.method == "GET":
            return RedirectResponse(f"/sign-in?next={quote(request.url.path)}", 303)
        html = self._templates.get_template("error.html").render(
            status=status, message=message, path=request.url.path, cluster=self.parts.cluster
        )
        return HTMLResponse(html, status)


def _local(path: str) -> str:
    """A path of this site: anything that could lead elsewhere becomes the front page."""
    return path if path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() else "/"


def _text(content: bytes) -> str:
    return content[:20_000].decode("utf-8", "replace")
