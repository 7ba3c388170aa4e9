"""What stands before every route: which hosts we answer for, whose requests may write, and the security headers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, Response
from starlette.middleware.trustedhost import TrustedHostMiddleware

from agent.console.settings import Settings

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


def defend(app: FastAPI, settings: Settings) -> None:
    """Puts the defences before an application's routes."""
    hosts = [settings.host, *LOOPBACK_NAMES, *settings.allowed_hosts]
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=["*" if h in ("0.0.0.0", "::") else h for h in hosts])
    app.middleware("http")(_guarded)


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
