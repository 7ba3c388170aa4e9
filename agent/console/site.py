"""What every page and form shares: who is at the browser, templates, messages shown once, errors as pages.

All text from outside (labels, log lines, names) reaches HTML through Jinja's autoescape.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from fastapi import HTTPException, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.exceptions import HTTPException as StarletteHTTPException

from agent.clock import Clock
from agent.console import words
from agent.console.chart import draw
from agent.console.settings import Settings
from agent.console.sign_in import COOKIE, Doorkeeper, Session
from agent.gate import Gate
from agent.incident import Incident, IncidentSummary
from agent.policy import Person, Role
from agent.store import NoSuchIncident, Store
from agent.suppression import Standing, Suppressor
from collectors.base import Temporary
from collectors.history import History
from collectors.subject import Inventory

_FLASH = "nightshift_said"


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
    suppressor: Suppressor | None = None
    """Says what nobody is told of now; None: nothing is suppressed."""
    wall_s: Callable[[], float] = time.time
    """Sessions last in the browser's time, whatever clock the fleet is watched by."""


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Site:
    """The console as its pages and forms see it."""

    def __init__(self, parts: Parts, settings: Settings) -> None:
        self.parts = parts
        self.settings = settings
        self._open_reading = _is_loopback(settings.host) and not settings.behind_tls
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

    def session(self, request: Request) -> Session | None:
        return self.parts.doorkeeper.session(request.cookies.get(COOKIE), self.parts.wall_s())

    def may_read(self, request: Request) -> None:
        if not self._open_reading and self.session(request) is None:
            raise HTTPException(401, "sign in first")

    def may_write(self, request: Request, form: str) -> Session:
        session = self.session(request)
        if session is None:
            raise HTTPException(401, "sign in first")
        if not self.parts.doorkeeper.form_is_ours(session, form):
            raise HTTPException(403, "this form is not ours or too old; load the page again")
        return session

    def person(self, session: Session) -> Person:
        """Whom the gate sees. The sign-in's age is told in the daemon's clock, which a demo runs faster."""
        age_s = self.parts.wall_s() - session.since_s
        roles = frozenset(Role(role) for role in session.roles)
        return Person(session.name, roles, "console", self.parts.clock.now_s() - age_s)

    def suppressed(self, rows: Iterable[Incident | IncidentSummary]) -> dict[str, str]:
        """By incident: why nobody is told of it now, and until when."""
        suppressor = self.parts.suppressor
        standing = Standing((), (), lambda subject: ()) if suppressor is None else suppressor.standing()
        found = {row.id: standing.of(row) for row in rows}
        return {
            name: f"{held.sentence()}, until {words.clock_time(held.until_s)} UTC"
            for name, held in found.items()
            if held is not None
        }

    def page(self, request: Request, template: str, status: int = 200, **values: Any) -> Response:
        session = self.session(request)
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

    def said(self, where: str, message: str) -> Response:
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


def local(path: str) -> str:
    """A path of this site: anything that could lead elsewhere becomes the front page."""
    return path if path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() else "/"
