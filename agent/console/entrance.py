"""Signing in and out with a token."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Form, Request
from fastapi.responses import RedirectResponse, Response

from agent.console.sign_in import COOKIE
from agent.console.site import Site, local


class Entrance:
    """The sign-in page and what it leads to."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._parts = site.parts

    def add_to(self, app: FastAPI) -> None:
        app.get("/sign-in", response_model=None)(self.sign_in_form)
        app.post("/sign-in", response_model=None)(self.sign_in)
        app.post("/sign-out", response_model=None)(self.sign_out)

    def sign_in_form(self, request: Request, next: str = "/") -> Response:
        return self._site.page(request, "sign_in.html", next=local(next), wrong=False)

    def sign_in(self, request: Request, token: Annotated[str, Form(max_length=500)],
                next: Annotated[str, Form()] = "/") -> Response:  # fmt: skip
        session = self._parts.doorkeeper.sign_in(token, self._parts.wall_s())
        if session is None:
            return self._site.page(request, "sign_in.html", status=403, next=local(next), wrong=True)
        response = RedirectResponse(local(next), 303)
        response.set_cookie(
            COOKIE,
            self._parts.doorkeeper.cookie(session),
            max_age=round(self._site.settings.session_s),
            httponly=True,
            samesite="strict",
            secure=self._site.settings.behind_tls,
        )
        return response

    def sign_out(self, request: Request, form: Annotated[str, Form()]) -> Response:
        self._site.may_write(request, form)
        response = RedirectResponse("/", 303)
        response.delete_cookie(COOKIE)
        return response
