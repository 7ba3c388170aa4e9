"""The console, put together: defences, pages, forms, and what an orchestrator asks.

Reading is open on loopback and needs a sign-in elsewhere; every write needs a sign-in, a form token and a request
from our own pages. Only the gate is ever asked to do anything.
"""

from __future__ import annotations

from importlib.util import find_spec

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.staticfiles import StaticFiles

from nightshift.agent.console.api import Api, mistaken
from nightshift.agent.console.control_pages import ControlPages
from nightshift.agent.console.decisions import Decisions
from nightshift.agent.console.defence import defend
from nightshift.agent.console.entrance import Entrance
from nightshift.agent.console.federation import FederationPages
from nightshift.agent.console.fleet_pages import FleetPages
from nightshift.agent.console.goodput_page import GoodputPage
from nightshift.agent.console.kernel_pages import KernelPages
from nightshift.agent.console.oidc import Provider
from nightshift.agent.console.pages import Pages
from nightshift.agent.console.policy_pages import PolicyPages
from nightshift.agent.console.settings import Settings
from nightshift.agent.console.site import STATIC, ConsoleParts, Site
from nightshift.agent.metrics import CONTENT_TYPE
from nightshift.agent.store.incident_store import NoSuchIncident
from nightshift.collectors.base import Permanent, Temporary


def build_console(parts: ConsoleParts, settings: Settings) -> FastAPI:
    """The ASGI application; it holds no state beside its parts."""
    app = FastAPI(title="Nightshift", docs_url=None, redoc_url=None, openapi_url=None)
    defend(app, settings)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    site = Site(parts, settings)
    oidc = settings.oidc
    provider = (
        None if oidc is None else Provider(oidc, settings.public_url, parts.doorkeeper.mac("key", "oidc").encode())
    )
    for kind in (StarletteHTTPException, NoSuchIncident, Permanent, Temporary):
        app.add_exception_handler(kind, site.failed)
    app.add_exception_handler(RequestValidationError, mistaken)
    federation = FederationPages(site)
    for room in (
        FleetPages(site),
        federation,
        PolicyPages(site),
        ControlPages(site),
        KernelPages(site),
        GoodputPage(site),
        Pages(site),
        Decisions(site),
        Entrance(site, provider),
        Api(site, federation),
        _Probes(site),
    ):
        room.add_to(app)
    # an extra: whoever serves no agents needs no package for it
    if find_spec("mcp") is not None:
        from nightshift.agent.console.mcp_server import McpServer

        McpServer(site).add_to(app)
    return app


class _Probes:
    """What an orchestrator and Prometheus ask; open to everybody who reaches the port, so it says why not only to
    those who may read everything."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._parts = site.parts

    def add_to(self, app: FastAPI) -> None:
        app.get("/healthz", response_model=None)(self.healthz)
        app.get("/readyz", response_model=None)(self.readyz)
        app.get("/metrics", response_model=None)(self.metrics)

    def healthz(self, request: Request) -> Response:
        health = self._parts.health()
        return JSONResponse(
            {"alive": health.alive, "reasons": self._reasons(request)}, 200 if health.alive else 503
        )

    def readyz(self, request: Request) -> Response:
        health = self._parts.health()
        return JSONResponse(
            {"ready": health.ready, "reasons": self._reasons(request)}, 200 if health.ready else 503
        )

    def metrics(self) -> Response:
        return Response(self._parts.metrics_page(), media_type=CONTENT_TYPE)

    def _reasons(self, request: Request) -> tuple[str, ...]:
        try:
            self._site.of_cluster(request)
        # A probe asks without signing in, and is answered while the store is away.
        except (HTTPException, Temporary, Permanent):
            return ()
        return self._parts.health().reasons
