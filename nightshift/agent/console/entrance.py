"""Signing in and out: with a token, or through the identity provider, and again where a decision asks for it."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import structlog
from fastapi import FastAPI, Form, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response

from nightshift.agent.console.oidc import BACK_CHANNEL, BEGUN_S, CALLBACK, Provider, SignInRefused
from nightshift.agent.console.sessions import Session, cookie_name
from nightshift.agent.console.settings import OIDC_NAME
from nightshift.agent.console.site import Site, local
from nightshift.collectors.base import Temporary


class Entrance:
    """The sign-in page and what it leads to."""

    def __init__(self, site: Site, provider: Provider | None) -> None:
        self._site = site
        self._parts = site.parts
        self._provider = provider
        self._begun = cookie_name(site.settings.behind_tls, "oidc")
        self._log = structlog.get_logger("console")

    def add_to(self, app: FastAPI) -> None:
        app.get("/sign-in", response_model=None, include_in_schema=False)(self.sign_in_form)
        app.post("/sign-in", response_model=None, include_in_schema=False)(self.sign_in)
        app.post("/sign-out", response_model=None, include_in_schema=False)(self.sign_out)
        if self._provider is not None:
            app.get("/sign-in/oidc", response_model=None, include_in_schema=False)(self.begin)
            app.get(CALLBACK, response_model=None, include_in_schema=False)(self.come_back)
            app.post(BACK_CHANNEL, response_model=None, include_in_schema=False)(self.logged_out_there)

    def sign_in_form(self, request: Request, next: str = "/") -> Response:
        return self._form(request, next, "")

    def sign_in(
        self,
        request: Request,
        token: Annotated[str, Form(max_length=500)],
        next: Annotated[str, Form(max_length=2000)] = "/",
    ) -> Response:
        session = self._parts.doorkeeper.sign_in(token, self._parts.wall_s())
        if session is None:
            return self._form(request, next, "Unknown token. `nightshift token` prints the operator's.", 403)
        return self._let_in(request, session, next)

    def sign_out(self, request: Request, form: Annotated[str, Form()]) -> Response:
        self._site.may_write(request, form)
        self._end_old(request)
        response = self._site.said("/sign-in", "You are signed out.")
        self._site.forget_cookie(response, cookie_name(self._site.settings.behind_tls))
        return response

    # Through the provider ---------------------------------------------------------------------------------------

    def begin(self, request: Request, next: str = "/", fresh: bool = False) -> Response:
        """Sends the browser to the provider; `fresh`: to prove again who they are."""
        assert self._provider is not None
        where, cookie = self._provider.begin(local(next), self._parts.wall_s(), fresh=fresh)
        response = RedirectResponse(where, 303)
        self._site.set_cookie(response, self._begun, cookie, BEGUN_S)
        return response

    def come_back(self, request: Request) -> Response:
        """The provider's answer: a session, or the sign-in page, which says why not."""
        assert self._provider is not None
        now_s = self._parts.wall_s()
        # A code or an error of a provider's is short; this comes from the browser.
        answer = {name: value[:4000] for name, value in request.query_params.items()}
        try:
            who, begun = self._provider.finish(request.cookies.get(self._begun), answer, now_s)
        except (SignInRefused, Temporary) as error:
            self._log.warning("sign-in refused", why=str(error))
            # The cookie goes in either case: state and nonce are good for one answer.
            response = self._form(request, "/", str(error), 403 if isinstance(error, SignInRefused) else 503)
            self._site.forget_cookie(response, self._begun)
            return response
        session = self._parts.doorkeeper.open(
            who.name,
            "oidc",
            now_s,
            proved_s=who.proved_s,
            groups=who.groups,
            provider_subject=who.subject,
            provider_session=who.session,
        )
        self._log.info("sign-in succeeded", person=who.name, how="oidc", fresh=begun.fresh)
        response = self._let_in(request, session, begun.next)
        self._site.forget_cookie(response, self._begun)
        return response

    def logged_out_there(self, logout_token: Annotated[str, Form(max_length=50_000)]) -> Response:
        """The provider says that somebody has signed out, or was removed (Back-Channel Logout 1.0)."""
        assert self._provider is not None
        try:
            subject, session = self._provider.logged_out(logout_token, self._parts.wall_s())
        except SignInRefused as error:
            # Back-Channel Logout 1.0, section 2.8, has 400 for a logout that failed.
            return JSONResponse({"error": "invalid_request", "error_description": str(error)}, 400)
        ended = self._parts.doorkeeper.end_at_provider(subject, session)
        self._log.info("sessions ended", sessions=ended)
        return Response(status_code=200)

    # Shared -----------------------------------------------------------------------------------------------------

    def _let_in(self, request: Request, session: Session, next_page: str) -> Response:
        """A new session in place of the browser's old one, whatever id the browser brought."""
        self._end_old(request)
        response = RedirectResponse(local(next_page), 303)
        name = cookie_name(self._site.settings.behind_tls)
        self._site.set_cookie(response, name, session.id, self._site.settings.session_s)
        return response

    def _end_old(self, request: Request) -> None:
        name = cookie_name(self._site.settings.behind_tls)
        old = self._parts.doorkeeper.session(request.cookies.get(name), self._parts.wall_s())
        if old is not None:
            self._parts.doorkeeper.end(old)

    def _form(self, request: Request, next_page: str, wrong: str, status: int = 200) -> Response:
        settings = self._site.settings
        through = None
        if settings.oidc is not None:
            through = (OIDC_NAME, f"/sign-in/oidc?next={quote(local(next_page), safe='')}")
        return self._site.page(request, "sign_in.html", status, next=local(next_page), wrong=wrong, through=through)
