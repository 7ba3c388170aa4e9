"""What stands before every route: which hosts we answer for, whose requests may write, and the security headers."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nightshift.agent.console.settings import Settings

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
PROBES = ("/healthz", "/readyz", "/metrics")
# Of a form or a JSON body; ours have a few hundred.
MOST_BYTES = 65_536
MOST_BYTES_OF_CHAT = 1_048_576
_LARGE = ("/slack/", "/outlets/", "/api/v1/webhooks/")
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")


def defend(app: FastAPI, settings: Settings) -> None:
    """Puts the defences before an application's routes."""
    app.add_middleware(_Guarded)
    app.add_middleware(_Compressed)
    app.add_middleware(_Bounded)
    app.add_middleware(_OurHosts, hosts=_hosts(settings))


def _hosts(settings: Settings) -> frozenset[str] | None:
    """Names that we answer for; None: any, where it listens on all addresses and nobody has said under which
    name."""
    named = {*settings.allowed_hosts, urlsplit(settings.public_url).hostname or ""} - {""}
    if settings.host in ("0.0.0.0", "::") and not named:
        return None
    return frozenset(name.lower() for name in (settings.host, *LOOPBACK_NAMES, *named))


class _OurHosts:
    """Refuses requests for another host's name: a site that points its name here (DNS rebinding) reads nothing.
    Probes come to the pod's address."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str] | None) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._hosts is not None and scope["path"] not in PROBES:
            host = Headers(scope=scope).get("host", "")
            name = host.rpartition(":")[0] if re.search(r":\d*\Z", host) else host
            if name.lower() not in self._hosts:
                await PlainTextResponse("this host is not ours", 400, headers=HEADERS)(scope, receive, send)
                return
        await self._app(scope, receive, send)


class _Compressed:
    """Compresses answers to requests without a query. A page that echoes what was asked beside a form's token would
    tell of the token by its compressed length (BREACH), to whoever can see lengths and send people links."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._compressing = GZipMiddleware(app, minimum_size=1000, compresslevel=5)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        plain = scope["type"] != "http" or scope.get("query_string")
        await (self._app if plain else self._compressing)(scope, receive, send)


class _Bounded:
    """Reads a request's body up to a limit before anything else sees it, however its length is announced."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        most = MOST_BYTES_OF_CHAT if scope["path"].startswith(_LARGE) else MOST_BYTES
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            if len(body) > most:
                await PlainTextResponse("the request is too large", 413, headers=HEADERS)(scope, receive, send)
                return
            if not message.get("more_body", False):
                break
        whole: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def replay() -> Message:
            return whole.pop() if whole else await receive()

        await self._app(scope, replay, send)


class _Guarded:
    """Refuses writes that another site started, and puts the security headers on every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if scope["path"].startswith("/static/"):
                    headers["Cache-Control"] = "public, max-age=3600"
            await send(message)

        app = self._app
        if scope["method"] not in ("GET", "HEAD") and not _from_our_pages(Headers(scope=scope)):
            app = PlainTextResponse("this request came from another site", 403)
        await app(scope, receive, guarded)


def _from_our_pages(headers: Headers) -> bool:
    """By what browsers say of a request and no script can forge: Sec-Fetch-Site (W3C Fetch Metadata) and Origin."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None and site not in ("same-origin", "none"):
        return False
    return origin is None or urlsplit(origin).netloc == headers.get("host")
