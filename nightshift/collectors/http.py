"""HTTP in, bounded: many addresses at once, each with a hard deadline and a hard size, and failures by name.

A drip of one byte a second beats a read timeout, and a small gzip body can hold gigabytes; so the deadline covers
the whole exchange and the size is counted after decompression. Redirects are not followed: they would carry
credentials elsewhere. One event loop per fetcher, used by one thread at a time.
"""

from __future__ import annotations

import asyncio
import email.utils
import math
import ssl
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import httpx
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, WithJsonSchema, model_validator
from pydantic_settings import NoDecode

from nightshift.collectors.base import Permanent, Temporary
from nightshift.collectors.frame import Reason
from nightshift.collectors.shared_settings import entry_of
from nightshift.collectors.telemetry.certificate_rotation import Renewed

_PARALLEL = 64
_KEEP_S = 60.0
_SAID_BYTES = 200
# Without a time of its own, as long as a scrape; a longer one than this would be an outage of ours.
_PAUSE_S, _LONGEST_PAUSE_S = 15.0, 600.0


class SourceError(Temporary):
    """A source gave no usable answer, with the reason from the closed set."""

    def __init__(self, reason: Reason, detail: str, retry_after_s: float | None = None) -> None:
        super().__init__(f"{reason}: {detail}", retry_after_s)
        self.reason = reason
        self.detail = detail[:300]


class HttpSettings(BaseModel):
    """How to reach a source: credentials are read from files, so that they can be rotated and mounted."""

    model_config = ConfigDict(extra="forbid")

    bearer_token_file: Path | None = Field(None, description="File with the bearer token, read at each tick")
    username: str | None = Field(None, description="User name for basic authentication")
    password_file: Path | None = Field(None, description="File with the password for basic authentication")
    ca_file: Path | None = Field(None, description="Certificate authorities (PEM) instead of the system's")
    certificate_file: Path | None = Field(None, description="Client certificate (PEM) for mutual TLS")
    key_file: Path | None = Field(None, description="Private key (PEM) of the client certificate")
    headers: dict[str, SecretStr] = Field(
        default_factory=dict, description="Further headers, e.g. X-Scope-OrgID for a Mimir tenant"
    )

    @model_validator(mode="after")
    def _belong_together(self) -> HttpSettings:
        if self.bearer_token_file and self.username:
            raise ValueError("bearer_token_file and username exclude each other")
        if (self.username is None) != (self.password_file is None):
            raise ValueError("username and password_file go together")
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file go together")
        return self


Connection = Annotated[HttpSettings, entry_of("connections"), WithJsonSchema({"type": "string"}), NoDecode]
"""A part's connection: in a configuration, the name of an entry of `connections`."""
CONNECTION = "Entry of `connections` with its credentials and TLS; none: no credentials"


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One address to fetch. `form` is sent as the body of a POST, which long queries need. `certificate_name`
    has to stand in the server's certificate, where that is not the address's host."""

    url: str
    form: Mapping[str, str] | None = None
    certificate_name: str | None = None


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A complete answer. `date_s` is the server's clock (Unix s, whole seconds; NaN where it did not say),
    `sent_s` our own when the request was sent (Unix s), `took_s` until the answer was complete."""

    body: bytes
    content_type: str
    took_s: float
    date_s: float
    sent_s: float = math.nan


class Fetcher:
    """Keeps connections between ticks. `timer` measures durations (s), `wall` is this machine's clock (Unix s)."""

    def __init__(
        self,
        settings: HttpSettings,
        *,
        max_bytes: int,
        accept: str = "*/*",
        compress: bool = True,
        parallel: int = _PARALLEL,
        timer: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._wall = wall
        self._settings = settings
        self._max_bytes = max_bytes
        self._accept = accept
        self._encoding = "gzip" if compress else "identity"
        self._parallel = parallel
        self._timer = timer
        self._runner: asyncio.Runner | None = None
        self._client: httpx.AsyncClient | None = None
        self._context: Renewed[ssl.SSLContext] | None = None
        self._limited: dict[str, float] = {}
        """By host and port, when it may be asked again (by the timer)."""
        self._trust: ssl.SSLContext | None = None

    def fetch(self, requests: Sequence[HttpRequest], timeout_s: float) -> list[HttpResponse | SourceError]:
        """One answer or error per request, in order, within `timeout_s` for all of them together."""
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(self._fetch_all(requests, timeout_s))

    def close(self) -> None:
        if self._runner is not None:
            if self._client is not None:
                self._runner.run(self._client.aclose())
            self._runner.close()
        self._runner = self._client = None

    async def _fetch_all(
        self, requests: Sequence[HttpRequest], timeout_s: float
    ) -> list[HttpResponse | SourceError]:
        try:
            headers = self._headers()
            trust = self._tls(any(r.url.startswith("https:") for r in requests))
            if self._client is not None and self._trust is not None and trust is not self._trust:
                await self._client.aclose()  # renewed certificates: new connections, before the old ones end
                self._client = None
            if self._client is None:
                self._trust = trust
                self._client = httpx.AsyncClient(
                    verify=trust,
                    limits=httpx.Limits(max_connections=self._parallel, keepalive_expiry=_KEEP_S),
                    timeout=None,
                    # a proxy or .netrc of the daemon's environment would send a cluster's credentials elsewhere
                    trust_env=False,
                )
        except (OSError, ValueError) as error:
            return [SourceError(Reason.UNAUTHORISED, f"credentials: {error}")] * len(requests)
        # one deadline for all: a thousand slow nodes must not each have their own, one after the other
        end = asyncio.get_running_loop().time() + timeout_s
        places = asyncio.Semaphore(self._parallel)
        return await asyncio.gather(*(self._guarded(r, headers, end, timeout_s, places) for r in requests))

    async def _guarded(
        self,
        request: HttpRequest,
        headers: Mapping[str, str],
        end: float,
        timeout_s: float,
        places: asyncio.Semaphore,
    ) -> HttpResponse | SourceError:
        try:
            async with asyncio.timeout_at(end), places:
                # here, and not before: the answer to the first query tells those that wait for a place
                self._heed_limit(request)
                return await self._fetch_one(request, headers)
        except SourceError as error:
            return error
        except (TimeoutError, httpx.TimeoutException):
            return SourceError(Reason.TIMEOUT, f"no complete answer within {timeout_s:g} s")
        except httpx.RemoteProtocolError as error:
            return SourceError(Reason.TRUNCATED, str(error))
        except (httpx.TransportError, OSError) as error:
            return SourceError(Reason.UNREACHABLE, str(error) or type(error).__name__)
        except (httpx.InvalidURL, httpx.HTTPError, zlib.error, ValueError) as error:
            return SourceError(Reason.MALFORMED, str(error) or type(error).__name__)

    async def _fetch_one(self, request: HttpRequest, headers: Mapping[str, str]) -> HttpResponse:
        assert self._client is not None
        started, sent_s = self._timer(), self._wall()
        method = "GET" if request.form is None else "POST"
        named = {"sni_hostname": request.certificate_name} if request.certificate_name else None
        async with self._client.stream(
            method, request.url, data=request.form, headers=headers, extensions=named
        ) as response:
            if response.status_code in (401, 403):
                raise SourceError(Reason.UNAUTHORISED, f"HTTP {response.status_code}")
            if response.status_code == 404:
                raise SourceError(Reason.NOT_FOUND, "HTTP 404")
            if wait_s := _wait_s(response, self._wall()):
                self._limited[_host(request)] = self._timer() + wait_s
                said = f"HTTP {response.status_code}: {await _excerpt(response)}"
                raise SourceError(Reason.LIMITED, f"{said} (asked again in {wait_s:.0f} s)", wait_s)
            if response.status_code != 200:
                raise SourceError(Reason.HTTP_STATUS, f"HTTP {response.status_code}: {await _excerpt(response)}")
            body = await self._read(response)
            return HttpResponse(
                body,
                response.headers.get("content-type", ""),
                self._timer() - started,
                _date_s(response.headers.get("date")),
                sent_s,
            )

    def _heed_limit(self, request: HttpRequest) -> None:
        """Raises SourceError while the host has asked to be left alone."""
        left_s = self._limited.get(_host(request), -math.inf) - self._timer()
        if left_s > 0:
            raise SourceError(Reason.LIMITED, f"the server's rate limit; next query in {left_s:.0f} s", left_s)

    async def _read(self, response: httpx.Response) -> bytes:
        encoding = response.headers.get("content-encoding", "identity").lower()
        if encoding not in ("identity", "gzip"):
            raise SourceError(Reason.UNSUPPORTED, f"content-encoding {encoding[:40]}")
        unzip = zlib.decompressobj(31) if encoding == "gzip" else None
        parts: list[bytes] = []
        size = 0
        async for raw in response.aiter_raw():
            while raw:
                if unzip is not None and unzip.eof:
                    if raw[:1] != b"\x1f":  # padding, and not another member (RFC 1952, 2.2)
                        break
                    unzip = zlib.decompressobj(31)
                # one byte beyond the limit tells a body of just that size from a larger one, and no more is ever
                # unpacked
                part = raw if unzip is None else unzip.decompress(raw, self._max_bytes - size + 1)
                size += len(part)
                if size > self._max_bytes:
                    raise SourceError(Reason.TOO_LARGE, f"more than {self._max_bytes} bytes")
                parts.append(part)
                raw = b"" if unzip is None else unzip.unused_data  # noqa: PLW2901
        if unzip is not None and not unzip.eof:
            raise SourceError(Reason.TRUNCATED, "the gzip stream ends early")
        return b"".join(parts)

    def _headers(self) -> dict[str, str]:
        settings = self._settings
        headers = {"Accept": self._accept, "Accept-Encoding": self._encoding, "User-Agent": "nightshift"}
        headers |= {name: value.get_secret_value() for name, value in settings.headers.items()}
        if settings.bearer_token_file is not None:
            # read at each tick: the kubelet replaces a projected token in its file every hour
            headers["Authorization"] = f"Bearer {settings.bearer_token_file.read_text().strip()}"
        if settings.username is not None and settings.password_file is not None:
            auth = httpx.BasicAuth(settings.username, settings.password_file.read_text().strip())
            signed = next(auth.auth_flow(httpx.Request("GET", "http://localhost")))
            headers["Authorization"] = signed.headers["Authorization"]
        return headers

    def _tls(self, needed: bool) -> ssl.SSLContext:
        """A context that trusts nobody where no address is https: loading authorities takes memory and time.

        Where files are named it is made again once they have changed.
        """
        if not needed:
            return self._trust or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self._context is None:
            named = (self._settings.ca_file, self._settings.certificate_file, self._settings.key_file)
            self._context = Renewed([file for file in named if file is not None], self._new_context)
        return self._context.get()

    def _new_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self._settings.ca_file)
        if self._settings.certificate_file is not None:
            context.load_cert_chain(self._settings.certificate_file, self._settings.key_file)
        return context


async def _excerpt(response: httpx.Response) -> str:
    """The beginning of what an error says, in one line; unpacked where it came packed."""
    unzip = zlib.decompressobj(31) if response.headers.get("content-encoding", "").lower() == "gzip" else None
    said = b""
    async for raw in response.aiter_raw():
        try:
            said += raw if unzip is None else unzip.decompress(raw, _SAID_BYTES)
        except zlib.error:
            break
        if len(said) >= _SAID_BYTES:
            break
    text = said[:_SAID_BYTES].decode(errors="replace")
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _host(request: HttpRequest) -> str:
    return httpx.URL(request.url).netloc.decode(errors="replace")


def _wait_s(response: httpx.Response, wall_s: float) -> float:
    """How long the server asks not to be asked (RFC 9110, 10.2.3: seconds or a date), 0 where it does not. Mimir's
    and Thanos' front ends say 429, some without a time."""
    status, header = response.status_code, response.headers.get("retry-after", "")
    if status != 429 and not (status == 503 and header):
        return 0.0
    seconds = float(header) if header.isdecimal() and len(header) < 9 else _date_s(header or None) - wall_s
    return min(max(seconds, 1.0), _LONGEST_PAUSE_S) if math.isfinite(seconds) else _PAUSE_S


def _date_s(header: str | None) -> float:
    if header is None:
        return math.nan
    try:
        return email.utils.parsedate_to_datetime(header).timestamp()
    except (ValueError, OverflowError):
        return math.nan


def checked_url(url: str) -> str:
    """The address, if it is http(s) with a host and without credentials. Raises Permanent naming it.

    >>> checked_url("http://prometheus:9090/")
    'http://prometheus:9090/'
    >>> checked_url("ftp://prometheus")
    Traceback (most recent call last):
        ...
    nightshift.collectors.base.Permanent: url 'ftp://prometheus': expected http://host… or https://host…
    """
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, TypeError) as error:
        raise Permanent(f"url {url!r}: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise Permanent(f"url {url!r}: expected http://host… or https://host…")
    if parsed.userinfo:
        raise Permanent(f"url of {parsed.host}: credentials belong in username and password_file")
    return url


def _setting(url: str) -> str:
    try:
        return checked_url(url)
    except Permanent as error:
        raise ValueError(str(error)) from error


Address = Annotated[str, AfterValidator(_setting)]
"""A setting that is checked by `checked_url`."""
BaseAddress = Annotated[Address, AfterValidator(lambda url: url.rstrip("/"))]
"""The same, of an API: paths are added to it."""
