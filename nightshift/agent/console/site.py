"""What every page and form shares: who is asking, templates, messages shown once, errors as pages.

A page reads incidents through its visitor's `window` alone, and what is the whole cluster's through `of_cluster`:
both refuse whoever may not, so that no page decides that by itself. All text from outside (labels, log lines,
names) reaches HTML through Jinja's autoescape.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from fastapi import HTTPException, Request
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.exceptions import HTTPException as StarletteHTTPException

from nightshift.agent import units
from nightshift.agent.approvals.access import Permission, may
from nightshift.agent.approvals.gate import Gate
from nightshift.agent.approvals.people import Directory
from nightshift.agent.approvals.policy import Person, Role
from nightshift.agent.approvals.visibility import IncidentWindow
from nightshift.agent.clock import Clock
from nightshift.agent.console.members import Member
from nightshift.agent.console.sessions import Doorkeeper, Session, cookie_name
from nightshift.agent.console.settings import Settings
from nightshift.agent.goodput.records import Utilisation
from nightshift.agent.incidents.rollouts import Rollouts
from nightshift.agent.incidents.suppression import ActiveSuppressions, Suppressor
from nightshift.agent.presentation.line_chart import draw
from nightshift.agent.presentation.tour import stop
from nightshift.agent.rca.lookup import Lookup
from nightshift.agent.rca.summary import quotable
from nightshift.agent.store.incident import Incident, IncidentSummary
from nightshift.agent.store.incident_store import NoSuchIncident, Store
from nightshift.collectors.base import Temporary
from nightshift.collectors.history import History
from nightshift.collectors.subject import Inventory
from nightshift.detectors.base import Finding

STATIC = Path(__file__).parent / "static"
_NOBODY = Person("local visitor", frozenset({Role.VIEWER}), "console")


@dataclass(frozen=True)
class DaemonHealth:
    """Whether the daemon lives, and whether it is ready; `reasons` say why not."""

    alive: bool
    ready: bool
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class ConsoleParts:
    """What the console looks at, and the gate that it asks."""

    store: Store
    gate: Gate
    history: History
    inventory: Inventory
    clock: Clock
    doorkeeper: Doorkeeper
    directory: Directory
    health: Callable[[], DaemonHealth]
    metrics_page: Callable[[], bytes]
    cluster: str
    suppressor: Suppressor | None = None
    """Says what nobody is told of now; None: nothing is suppressed."""
    waiting: Callable[[], list[tuple[Finding, str]]] = list
    """Alarms that the false-alarm budget does not let page, and why, as this replica sees them."""
    lookup: Callable[[Incident, IncidentWindow], Lookup] | None = None
    """The look-ups around an incident, as far as a window shows things; None: there are none here."""
    rollouts: Rollouts | None = None
    """Versions by node, as this replica sees them."""
    utilisation: Callable[[], Mapping[str, Utilisation]] = dict
    """MFU by job, as this replica sees it."""
    gpu_hour_price: Callable[[], float | None] = lambda: None
    limits: Callable[[], Mapping[str, float]] = dict
    """Of the cluster's summary: `capacity_share`, `false_pages_left`, `false_pages_a_week`, `ettr`."""
    members: Callable[[], Sequence[Member]] = tuple
    """Other clusters' agents, as last heard."""
    wall_s: Callable[[], float] = time.time
    """Sessions last in the browser's time, whatever clock the fleet is watched by."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who is asking. `form`: the token that their forms carry; empty where they may write nothing."""

    person: Person
    session: Session | None
    form: str

    @property
    def name(self) -> str:
        return self.person.name


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Site:
    """The console as its pages and forms see it."""

    def __init__(self, parts: ConsoleParts, settings: Settings) -> None:
        self.parts = parts
        self.settings = settings
        # Behind a proxy, or with sign-in configured, loopback is not "this machine": the proxy connects from
        # there for everybody.
        alone = settings.oidc is None and settings.proxy is None
        self._on_this_machine = _is_loopback(settings.host) and not settings.behind_tls and alone
        self._templates = Environment(
            loader=PackageLoader("nightshift.agent.console"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
        )
        self._templates.filters.update(
            clock=units.clock_time,
            time=units.full_time,
            iso=units.iso_time,
            duration=units.duration,
            quantity=units.quantity,
            sentence=units.sentence,
            quotable=quotable,
            draw=draw,
        )

    @property
    def _open_reading(self) -> bool:
        """Whether whoever is on this machine may look without signing in."""
        return self._on_this_machine and not self.parts.directory.has_tenants

    # Who is asking ----------------------------------------------------------------------------------------------

    def visitor(self, request: Request) -> Visitor | None:
        """Who is signed in: by a session's cookie, a token (`Authorization: Bearer`), or a trusted proxy's word."""
        bearer = request.headers.get("authorization")
        if bearer is not None:
            return self._by_token(bearer)
        keeper, now_s = self.parts.doorkeeper, self.parts.wall_s()
        session = keeper.session(request.cookies.get(cookie_name(self.settings.behind_tls)), now_s)
        session = session or self._by_proxy(request)
        if session is None:
            return None
        # Asked at each request: a token whose roles were taken away stops working with the sessions that it
        # opened.
        account = keeper.account_named(session.name) if session.how == "token" else None
        if account is not None and account.roles:
            roles = frozenset(Role(role) for role in account.roles)
            person = Person(session.name, roles, "console", self._signed_in_s(session))
        else:
            signed_in_s = self._signed_in_s(session)
            person = self.parts.directory.person(session.name, "console", signed_in_s, session.groups)
        return Visitor(person, session, keeper.form_token(session))

    def _by_token(self, header: str) -> Visitor | None:
        """A program's token. It is no sign-in of a person, so what needs a fresh one is not approved with it."""
        scheme, _, token = header.partition(" ")
        account = self.parts.doorkeeper.account_of(token) if scheme.lower() == "bearer" else None
        if account is None:
            raise HTTPException(401, "unknown token")
        if account.roles:
            return Visitor(Person(account.name, frozenset(Role(role) for role in account.roles), "api"), None, "")
        return Visitor(self.parts.directory.person(account.name, "api"), None, "")

    def _by_proxy(self, request: Request) -> Session | None:
        """Somebody whom a trusted proxy names; its headers are nothing from any other address."""
        proxy = self.settings.proxy
        if proxy is None or request.client is None:
            return None
        try:
            address = ipaddress.ip_address(request.client.host)
        except ValueError:
            return None
        address = getattr(address, "ipv4_mapped", None) or address  # how a socket of both families names IPv4's
        if not any(address in network for network in proxy.addresses):
            return None
        names = request.headers.getlist(proxy.user_header)
        # Two headers: the client sent one of its own and the proxy added its; which counts would be a guess.
        if len(names) != 1 or not names[0].strip() or len(names[0]) > 320 or not names[0].isprintable():
            return None
        groups = request.headers.get(proxy.groups_header, "") if proxy.groups_header else ""
        named = tuple(group.strip() for group in groups.split(",") if group.strip())
        name = names[0].strip()
        return Session(name, "proxy", named, self.parts.doorkeeper.mac("proxy", name), 0.0, None, float("inf"))

    def _signed_in_s(self, session: Session) -> float | None:
        """When they last proved who they are, in the daemon's clock, which a demo runs faster."""
        if session.proved_s is None:
            return None
        # By age, since the two clocks share neither zero nor speed.
        return self.parts.clock.now_s() - (self.parts.wall_s() - session.proved_s)

    def window(self, request: Request) -> IncidentWindow:
        """What the visitor sees. Raises 401 where nobody is signed in, 403 where they have no role at all."""
        return self._window(self._reader(request))

    def of_cluster(self, request: Request) -> IncidentWindow:
        """The same for what belongs to no job. Raises 403 where the visitor's role is a team's."""
        person = self._reader(request)
        allowed = may(person, Permission.SEE_CLUSTER)
        if not allowed:
            raise HTTPException(403, allowed.reason)
        return self._window(person)

    def _reader(self, request: Request) -> Person:
        visitor = self.visitor(request)
        if visitor is None and not self._open_reading:
            raise HTTPException(401, "sign in first")
        person = _NOBODY if visitor is None else visitor.person
        if not self.parts.directory.knows(person):
            raise HTTPException(
                403, f"you are signed in as {person.name} and have no role yet: ask an administrator for one"
            )
        return person

    def _window(self, person: Person) -> IncidentWindow:
        return IncidentWindow(self.parts.store, person, self.parts.inventory, self.parts.clock.now_s())

    def may_write(self, request: Request, form: str) -> Person:
        """Who sends a form of ours. Raises 401 or 403."""
        visitor = self.visitor(request)
        if visitor is None:
            raise HTTPException(401, "sign in first")
        session = visitor.session
        # A token's request has no session and no form: programs write through the JSON API.
        if session is None or not self.parts.doorkeeper.form_is_ours(session, form):
            raise HTTPException(403, "this form is not ours or too old; load the page again")
        return visitor.person

    # Answers ----------------------------------------------------------------------------------------------------

    def suppressed(self, window: IncidentWindow, rows: Iterable[Incident | IncidentSummary]) -> dict[str, str]:
        """By incident: why nobody is told of it now, and until when. A team is not told who silenced what else."""
        suppressor = self.parts.suppressor
        standing = ActiveSuppressions((), (), lambda subject: ()) if suppressor is None else suppressor.standing()
        found = {row.id: standing.of(row) for row in rows}
        tenant = window.person.is_tenant
        return {
            name: f"{'told to nobody' if tenant else held.sentence()}, until {units.clock_time(held.until_s)} UTC"
            for name, held in found.items()
            if held is not None
        }

    def page(self, request: Request, template: str, status: int = 200, **values: Any) -> Response:
        """A page. Its template has the visitor as `session` (none: nobody) and what they may do as `can`."""
        visitor = self.visitor(request)
        said = request.cookies.get(self._flash, "")
        person = visitor.person if visitor is not None else None
        sees_cluster = bool(may(person or _NOBODY, Permission.SEE_CLUSTER)) and (
            person is not None or self._open_reading
        )
        halt = self.parts.gate.halted()
        html = self._templates.get_template(template).render(
            session=visitor,
            can={str(verb): bool(person and may(person, verb)) for verb in Permission},
            sees_cluster=sees_cluster,
            federated=bool(self.parts.members()),
            form=visitor.form if visitor else "",
            path=request.url.path,
            tour=stop(request.url.path) if "tour" in request.query_params else None,
            now_s=self.parts.clock.now_s(),
            cluster=self.parts.cluster,
            halted=halt.halted,
            stop=halt,
            held=self.parts.gate.held() if halt.halted and sees_cluster else [],
            health=self.parts.health(),
            said=unquote(said)[:500],
            **values,
        )
        response = HTMLResponse(html, status)
        if said:
            self.forget_cookie(response, self._flash)
        return response

    @property
    def _flash(self) -> str:
        return cookie_name(self.settings.behind_tls, "said")

    def said(self, path: str, message: str) -> Response:
        """Goes to a page that shows the message once, to this browser alone."""
        # 303: a reload of the page that follows does not send the form again.
        response = RedirectResponse(path, 303)
        self.set_cookie(response, self._flash, quote(message[:500]), 60.0)
        return response

    def set_cookie(self, response: Response, name: str, value: str, lasts_s: float) -> None:
        """One that no script reads and no other site's form sends. `lax`, since people come from links in a chat
        and back from the identity provider; what writes is guarded by form token, Origin and Fetch Metadata."""
        secure = self.settings.behind_tls
        response.set_cookie(
            name, value, max_age=round(lasts_s), path="/", httponly=True, samesite="lax", secure=secure
        )

    def forget_cookie(self, response: Response, name: str) -> None:
        response.delete_cookie(name, path="/", httponly=True, samesite="lax", secure=self.settings.behind_tls)

    async def failed(self, request: Request, error: Exception) -> Response:
        """An error as a page (of the API: as JSON): what happened, and a way to go on."""
        if isinstance(error, StarletteHTTPException):
            status, message = error.status_code, str(error.detail)
        else:
            status = 404 if isinstance(error, NoSuchIncident) else 503 if isinstance(error, Temporary) else 409
            message = str(error)
        if request.url.path.startswith("/api/") or "authorization" in request.headers:
            return JSONResponse({"detail": message}, status)
        if status == 401 and request.method == "GET" and "authorization" not in request.headers:
            return RedirectResponse(f"/sign-in?next={quote(request.url.path)}", 303)
        html = self._templates.get_template("error.html").render(
            status=status, message=message, path=request.url.path, cluster=self.parts.cluster
        )
        return HTMLResponse(html, status)


def local(path: str) -> str:
    """A path of this site: anything that could lead elsewhere becomes the front page."""
    return path if path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() else "/"
