"""Who is at the browser: the operator token, signed session cookies, and the token that forms carry.

The operator token is 256 random bits in a file that only the daemon's user can read; it is made at the first start.
A session is a cookie signed with a key of the same folder (HMAC-SHA256), so it survives a restart of the daemon and
nothing is kept on the server. Each session has its own form token (OWASP's signed double-submit pattern), derived
from its random id, so a page of another origin cannot post in its name.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from collectors.base import Permanent

COOKIE = "nightshift_session"
MAX_COOKIE_CHARS = 2048


@dataclass(frozen=True, slots=True)
class Session:
    """Somebody signed in: name, roles, a random id, since when and until when (Unix s)."""

    name: str
    roles: tuple[str, ...]
    id: str
    since_s: float
    until_s: float


@dataclass(frozen=True, slots=True)
class Account:
    """Who a token belongs to."""

    name: str
    roles: tuple[str, ...]


class Doorkeeper:
    """Checks tokens and makes sessions. `tokens`: token → account; `key`: 32 secret bytes."""

    def __init__(self, key: bytes, tokens: Mapping[str, Account], session_s: float) -> None:
        if len(key) < 32:
            raise Permanent(f"the console's key has {len(key)} bytes, not 32")
        self._key = key
        self._accounts = {hashlib.sha256(token.encode()).digest(): account for token, account in tokens.items()}
        self._session_s = session_s

    def sign_in(self, token: str, now_s: float) -> Session | None:
        """A new session for whom the token belongs to; None where it belongs to nobody."""
        given = hashlib.sha256(token.strip().encode()).digest()
        found = None
        for known, account in self._accounts.items():
            if hmac.compare_digest(known, given):
                found = account
        if found is None:
            return None
        return Session(found.name, found.roles, secrets.token_hex(16), now_s, now_s + self._session_s)

    def cookie(self, session: Session) -> str:
        """The signed value of a session's cookie."""
        fields = [session.name, list(session.roles), session.id, session.since_s, session.until_s]
        body = base64.urlsafe_b64encode(json.dumps(fields).encode()).decode()
        return f"{body}.{self._mac('session', body)}"

    def session(self, cookie: str | None, now_s: float) -> Session | None:
        """The session of a cookie; None where it is absent, forged, damaged, out of time or of no account now."""
        if not cookie or len(cookie) > MAX_COOKIE_CHARS:
            return None
        body, _, mac = cookie.partition(".")
        if not hmac.compare_digest(mac.encode(), self._mac("session", body).encode()):
            return None
        name, roles, session_id, since_s, until_s = json.loads(base64.urlsafe_b64decode(body))
        if now_s >= until_s or Account(name, tuple(roles)) not in self._accounts.values():
            return None
        return Session(name, tuple(roles), session_id, since_s, until_s)

    def form_token(self, session: Session) -> str:
        return self._mac("form", session.id)

    def form_is_ours(self, session: Session, token: str) -> bool:
        return hmac.compare_digest(self.form_token(session).encode(), token.encode())

    def _mac(self, purpose: str, text: str) -> str:
        return hmac.new(self._key, f"{purpose}:{text}".encode(), hashlib.sha256).hexdigest()


def secret_file(path: Path, make_text: str) -> str:
    """The text of a secret file; written with `make_text`, readable by its owner alone, where it is absent.

    Raises Permanent where others can read it or it is empty.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        if path.stat().st_mode & 0o077:
            raise Permanent(f"{path} can be read by others; chmod 600 {path}") from None
        text = path.read_text().strip()
        if not text:
            raise Permanent(f"{path} is empty; remove it and a new one is made") from None
        return text
    except OSError as error:
        raise Permanent(f"{path}: {error.strerror}") from error
    with os.fdopen(descriptor, "w") as file:
        file.write(make_text + "\n")
    return make_text


def given_secret(path: Path) -> str:
    """The text of a secret that somebody else provides, such as a mounted Secret, whose group may read it.

    Raises Permanent where it is absent, empty or readable by everybody.
    """
    try:
        mode, text = path.stat().st_mode, path.read_text().strip()
    except OSError as error:
        raise Permanent(f"{path}: {error.strerror}") from error
    if mode & 0o007:
        raise Permanent(f"{path} can be read by everybody; mount it with mode 0440")
    if not text:
        raise Permanent(f"{path} is empty; put the secret into it")
    return text


def operator_token(state_dir: Path, secrets_dir: Path | None = None) -> str:
    """The token that signs the operator in: `operator.token`, given, or made in the state folder."""
    if secrets_dir is not None:
        return given_secret(secrets_dir / "operator.token")
    return secret_file(state_dir / "operator.token", secrets.token_urlsafe(32))


def console_key(state_dir: Path, secrets_dir: Path | None = None) -> bytes:
    """The key that signs sessions: `console.key`, given, or made in the state folder."""
    path = (secrets_dir or state_dir) / "console.key"
    try:
        return bytes.fromhex(given_secret(path) if secrets_dir else secret_file(path, secrets.token_hex(32)))
    except ValueError as error:
        raise Permanent(f"{path} is not hexadecimal; 64 digits are needed") from error
