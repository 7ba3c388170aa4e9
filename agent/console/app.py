"""The console, put together: defences, pages, forms, and what an orchestrator asks.

Reading is open on loopback and needs a sign-in elsewhere; every write needs a sign-in, a form token and a request
from our own pages. Only the gate is ever asked to do anything.
"""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.staticfiles import StaticFiles

from agent.console.decisions import Decisions
from agent.console.defence import defend
from agent.console.entrance import Entrance
from agent.console.pages import Pages
from agent.console.settings import Settings
from agent.console.site import Parts, Site
from agent.metrics import CONTENT_TYPE
from agent.store import NoSuchIncident
from collectors.base import Permanent, Temporary

_HERE = Path(__file__).parent


def build_console(parts: Parts, settings: Settings) -> FastAPI:
    """The ASGI application; it holds no state beside its parts."""
    app = FastAPI(title="Nightshift", docs_url=None, redoc_url=None, openapi_url=None)
    defend(app, settings)
    app.mount("/static", StaticFiles(directory=_HERE / "static"), name="static")
    site = Site(parts, settings)
    for kind in (StarletteHTTPException, NoSuchIncident, Permanent, Temporary):
        app.add_exception_handler(kind, site.failed)
    for room in (Pages(site), Decisions(site), Entrance(site), _Probes(parts)):
        room.add_to(app)
    return app


class _Probes:
    """What an orchestrator and Prometheus ask; open to everybody who reaches the port."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def add_to(self, app: FastAPI) -> None:
        app.get("/healthz", response_model=None)(self.healthz)
        app.get("/readyz", response_model=None)(self.readyz)
        app.get("/metrics", response_model=None)(self.metrics)

    def healthz(self) -> Response:
        health = self._parts.health()
        return JSONResponse({"alive": health.alive, "reasons": health.reasons}, 200 if health.alive else 503)

    def readyz(self) -> Response:
        health = self._parts.health()
        return JSONResponse({"ready": health.ready, "reasons": health.reasons}, 200 if health.ready else 503)

    def metrics(self) -> Response:
        return Response(self._parts.metrics_page(), media_type=CONTENT_TYPE)
