"""HTTP to an outlet: one request, and what its answer means for the courier (`agent.notify.delivery`)."""

from __future__ import annotations

import email.utils
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from nightshift.agent.notify.delivery import DeliveryRefused, NoAnswer, RateLimited
from nightshift.collectors.base import Permanent

_MAX_WAIT_S = 3600.0


# A call without an answer is given up after this; the courier sends it again, or fails over.
TIMEOUT_S = 10.0


class OutletWeb:
    """A client for one service. Redirects are not followed: a secret goes to the configured host alone."""

    def __init__(self, service: str, url: str, proxy: str = "", headers: Any = None) -> None:
        self._service = service
        self._client = httpx.Client(
            base_url=url.rstrip("/"), timeout=TIMEOUT_S, proxy=proxy or None, headers=headers, trust_env=False
        )

    def call(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        params: dict[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """The decoded answer, or None for one without JSON. Raises RateLimited, NoAnswer or Refused."""
        try:
            answer = self._client.request(method, path, json=json, params=params, headers=headers)
        except (httpx.HTTPError, OSError) as error:
            raise NoAnswer(f"{self._service} did not answer: {type(error).__name__}: {error}"[:300]) from error
        if answer.status_code == 429:
            raise RateLimited(f"{self._service} limits the call rate", _wait_s(answer.headers))
        # 408 is the server's own timeout: it may have read all of it.
        if answer.status_code >= 500 or answer.status_code == 408:
            raise NoAnswer(f"{self._service} answered {answer.status_code}")
        if answer.status_code >= 300:
            raise DeliveryRefused(f"{answer.status_code} {answer.text[:200]}".strip(), self._service)
        try:
            return answer.json() if answer.content else None
        except ValueError:
            return None

    def close(self) -> None:
        self._client.close()


def _wait_s(headers: Mapping[str, str]) -> float:
    """Retry-After: seconds, or a date (RFC 9110, 10.2.3); else ServiceNow's X-RateLimit-Reset (Unix s); without
    either, a few seconds."""
    header = headers.get("retry-after")
    reset = headers.get("x-ratelimit-reset", "")
    if header is None and reset.isdecimal() and len(reset) == 10:
        header = str(int(reset) - time.time())
    if header is None:
        return 5.0
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(header).timestamp() - time.time()
        except ValueError:
            return 5.0
    # A date in the past, or a year: neither a busy loop nor a pager that is given up.
    return min(max(seconds, 0.1), _MAX_WAIT_S)


def secret_of(setting: str, path: Path | None) -> str:
    """A secret from its file. Raises Permanent, naming the setting."""
    try:
        text = path.read_text().strip() if path is not None else ""
    except (OSError, UnicodeDecodeError) as error:
        raise Permanent(f"{setting}: {path}: {getattr(error, 'strerror', None) or error}") from error
    if not text:
        raise Permanent(f"{setting}: {path} is empty")
    return text
