"""An OpenID Connect provider for tests: discovery, authorisation with PKCE, tokens, keys that rotate, and its lies.

It behaves as the standards say, remembers who is signed in by a cookie, and asks again for `prompt=login` or
`max_age=0`. `lie` changes what it signs, so that each check of ours can be seen to hold.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import FastAPI, Form, Request
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey

from nightshift.agent.console.server import Server

CLIENT, SECRET = "nightshift", "s" * 40
Claims = dict[str, Any]


@cache
def _some_keys() -> list[RSAKey]:
    """Made once: a key takes long to find."""
    return [RSAKey.generate_key(2048, {"kid": f"key-{n}", "use": "sig", "alg": "RS256"}) for n in range(2)]


@dataclass
class User:
    """Somebody whom the provider knows."""

    email: str
    groups: tuple[str, ...] = ()
    verified: bool = True


@dataclass
class _Code:
    user: User
    nonce: str
    challenge: str
    return_to: str
    auth_time_s: float
    acr: str | None


@dataclass
class OidcProvider:
    """Started by `start`, stopped by `stop`. Times are wall times of `now_s`."""

    users: dict[str, User]
    now_s: Callable[[], float] = time.time
    lie: Callable[[Claims], Claims] = lambda claims: claims
    header: dict[str, Any] = field(default_factory=dict)
    ignores_prompt: bool = False
    acr: str | None = None
    lie_discovery: Claims = field(default_factory=dict)
    key_calls: int = 0
    token_calls: int = 0
    logins: int = 0

    def __post_init__(self) -> None:
        self.keys = [_some_keys()[0]]
        self.sign_with: RSAKey | OctKey = self.keys[0]
        self._codes: dict[str, _Code] = {}
        self._sessions: dict[str, tuple[User, float]] = {}
        self._server = Server(self._app(), "127.0.0.1", 0)
        self.issuer = self._server.url

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        self._server.stop()

    def other_key(self) -> RSAKey:
        """A key that is not this provider's."""
        return next(key for key in _some_keys() if key not in self.keys)

    def rotate(self) -> None:
        """A new key signs from now on; the old one is gone."""
        self.keys = [self.other_key()]
        self.sign_with = self.keys[0]

    def _app(self) -> FastAPI:
        app = FastAPI(openapi_url=None)
        app.get("/.well-known/openid-configuration")(self.discovery)
        app.get("/keys")(self.jwks)
        app.get("/authorize", response_model=None)(self.authorize)
        app.post("/login", response_model=None)(self.login)
        app.post("/token", response_model=None)(self.token)
        return app

    def discovery(self) -> Claims:
        told = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
            "token_endpoint_auth_methods_supported": ["client_secret_basic"],
            "authorization_response_iss_parameter_supported": True,
        }
        return told | self.lie_discovery

    def jwks(self) -> Claims:
        self.key_calls += 1
        return {"keys": [key.as_dict(private=False) for key in self.keys]}

    def authorize(self, request: Request) -> Response:
        asked = dict(request.query_params)
        if asked.get("client_id") != CLIENT or asked.get("code_challenge_method") != "S256":
            return HTMLResponse("unknown client, or no PKCE", 400)
        known = self._sessions.get(request.cookies.get("idp", ""))
        again = asked.get("prompt") == "login" or asked.get("max_age") == "0"
        if known is not None and (self.ignores_prompt or not again):
            return self._back(asked, known[0], known[1])
        hidden = "".join(f'<input type="hidden" name="{k}" value="{v}">' for k, v in asked.items())
        return HTMLResponse(
            f'<!doctype html><title>Provider</title><form method="post" action="/login">{hidden}'
            '<label>User <input name="user"></label><button>Log in</button></form>'
        )

    async def login(self, request: Request) -> Response:
        form = {name: str(value) for name, value in (await request.form()).items()}
        user = self.users.get(form.pop("user"))
        if user is None:
            refusal = urlencode({"error": "access_denied", "state": form["state"], "iss": self.issuer})
            return RedirectResponse(f"{form['redirect_uri']}?{refusal}", 303)
        self.logins += 1
        session, at_s = secrets.token_hex(8), self.now_s()
        self._sessions[session] = (user, at_s)
        response = self._back(form, user, at_s)
        response.set_cookie("idp", session)
        return response

    def _back(self, asked: dict[str, str], user: User, auth_time_s: float) -> Response:
        code = secrets.token_hex(16)
        self._codes[code] = _Code(
            user, asked["nonce"], asked["code_challenge"], asked["redirect_uri"], auth_time_s, self.acr
        )
        answer = urlencode({"code": code, "state": asked["state"], "iss": self.issuer})
        return RedirectResponse(f"{asked['redirect_uri']}?{answer}", 303)

    def token(
        self,
        request: Request,
        code: Annotated[str, Form()],
        code_verifier: Annotated[str, Form()],
        redirect_uri: Annotated[str, Form()],
    ) -> Response:
        self.token_calls += 1
        known = self._codes.pop(code, None)
        digest = hashlib.sha256(code_verifier.encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        ours = "Basic " + base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        if request.headers.get("authorization") != ours:
            return JSONResponse({"error": "invalid_client"}, 401)
        if known is None or known.challenge != challenge or known.return_to != redirect_uri:
            return JSONResponse({"error": "invalid_grant"}, 400)
        claims: Claims = {
            "nonce": known.nonce,
            "auth_time": int(known.auth_time_s),
            "email": known.user.email,
            "email_verified": known.user.verified,
            "groups": list(known.user.groups),
            "sid": "session-1",
        }
        if known.acr:
            claims["acr"] = known.acr
        return JSONResponse(
            {"id_token": self.sign(known.user, claims), "token_type": "Bearer", "access_token": "x"}
        )

    def sign(self, user: User, claims: Claims) -> str:
        """A token of this provider for our client, as it is told to lie."""
        now_s = int(self.now_s())
        base = {"iss": self.issuer, "aud": CLIENT, "sub": f"sub-{user.email}", "iat": now_s, "exp": now_s + 300}
        header = {"alg": "RS256", "kid": self.sign_with.kid} | self.header
        return jwt.encode(header, self.lie(base | claims), self.sign_with, algorithms=[header["alg"]])

    def logout_token(self, user: User, **claims: Any) -> str:
        """What it sends when a person has signed out there, or was removed."""
        event = {"http://schemas.openid.net/event/backchannel-logout": {}}
        return self.sign(user, {"events": event, "jti": secrets.token_hex(8)} | claims)
