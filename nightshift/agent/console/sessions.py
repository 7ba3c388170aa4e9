"""Who is signed in: random session ids in the store, known to it by their hashes alone.

A session is made anew at every sign-in (so an id planted before it is worth nothing), ends on the server at
sign-out, and is looked up at every request: whoever is signed out, by themselves, by `nightshift sign-out` or by
the identity provider, is out at their next click. What a person may do is not kept here: the directory says it,
each time.

Each session has its own form token (OWASP's signed double-submit pattern), derived from its id, so that a page of
another origin cannot post in its name.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from nightshift.agent.approvals.policy import Person
from nightshift.agent.store.database import Database
from nightshift.agent.store.tables import sessions
from nightshift.collectors.base import Permanent
from nightshift.collectors.seal import sha256_hex

_ID = re.compile(r"[A-Za-z0-9_-]{43}\Z")
# Sessions of one person; the oldest is ended.
_MOST_EACH = 20


def cookie_name(secure: bool, what: str = "session") -> str:
    """`__Host-` makes browsers take it from us alone: over TLS, for this host, for all paths (RFC 6265bis)."""
    return f"{'__Host-' if secure else ''}nightshift_{what}"


@dataclass(frozen=True, slots=True)
class Session:
    """Somebody at a browser. `how`: token, oidc or proxy; `proved_s`: when they last proved who they are, None
    where that is not known; times are wall times (Unix s)."""

    name: str
    how: str
    groups: tuple[str, ...]
    id: str
    since_s: float
    proved_s: float | None
    until_s: float


@dataclass(frozen=True, slots=True)
class TokenAccount:
    """Who a token belongs to. Without `roles` the directory says what they may do."""

    name: str
    roles: tuple[str, ...] = ()


class Doorkeeper:
    """Checks tokens and keeps sessions. `tokens`: token → account; `key`: 32 secret bytes."""

    def __init__(
        self, key: bytes, tokens: Mapping[str, TokenAccount], session_s: float, database: Database
    ) -> None:
        if len(key) < 32:
            raise Permanent(f"the console's key has {len(key)} bytes, not 32")
        self._key = key
        self._accounts = {hashlib.sha256(token.encode()).digest(): account for token, account in tokens.items()}
        self._session_s = session_s
        self._database = database

    def account_of(self, token: str) -> TokenAccount | None:
        """Whom a token belongs to; every token is compared in full, so that time tells nothing."""
        # Hashes have one length: compare_digest tells the length of what it compares.
        given = hashlib.sha256(token.strip().encode()).digest()
        found = None
        for known, account in self._accounts.items():
            if hmac.compare_digest(known, given):
                # No break: where in the list a token stands is not for a clock to tell.
                found = account
        return found

    def account_named(self, name: str) -> TokenAccount | None:
        return next((account for account in self._accounts.values() if account.name == name), None)

    def sign_in(self, token: str, now_s: float) -> Session | None:
        """A new session for whom the token belongs to; None where it belongs to nobody."""
        account = self.account_of(token)
        return None if account is None else self.open(account.name, "token", now_s, proved_s=now_s)

    def open(
        self,
        name: str,
        how: str,
        now_s: float,
        *,
        proved_s: float | None,
        groups: tuple[str, ...] = (),
        provider_subject: str | None = None,
        provider_session: str | None = None,
    ) -> Session:
        """A new session with a new id, for somebody who has proved who they are."""
        made = Session(name, how, groups, secrets.token_urlsafe(32), now_s, proved_s, now_s + self._session_s)
        person = _identity(name)
        with self._database.write() as connection:
            # Here and nowhere else, since a sign-in is rare and writes anyway.
            connection.execute(sa.delete(sessions).where(sessions.c.until_s <= now_s))
            mine = sa.select(sessions.c.id_sha256).where(sessions.c.person == person)
            older = (
                connection.execute(mine.order_by(sessions.c.since_s.desc()).offset(_MOST_EACH - 1)).scalars().all()
            )
            connection.execute(sa.delete(sessions).where(sessions.c.id_sha256.in_(older)))
            row = {
                "id_sha256": sha256_hex(made.id.encode()),
                "person": person,
                "how": how,
                # The name as it is spelt is shown; `person` has it as it is compared.
                "groups": json.dumps([name, *groups]),
                "provider_subject": provider_subject,
                "provider_session": provider_session,
                "since_s": now_s,
                "proved_s": proved_s or 0.0,
                "until_s": made.until_s,
            }
            connection.execute(sa.insert(sessions).values(row))
        return made

    def session(self, cookie: str | None, now_s: float) -> Session | None:
        """The session of a cookie; None where it is absent, not ours, ended, out of time or of no account now."""
        # Before the database is asked: a cookie is whatever its sender likes, of any length.
        if not cookie or not _ID.match(cookie):
            return None
        query = sa.select(sessions).where(sessions.c.id_sha256 == sha256_hex(cookie.encode()))
        with self._database.read() as connection:
            row = connection.execute(query).one_or_none()
        if row is None or now_s >= row.until_s:
            return None
        name, *groups = json.loads(row.groups)
        # A token that was taken out of the configuration takes its sessions along.
        if row.how == "token" and self.account_named(name) is None:
            return None
        return Session(name, row.how, tuple(groups), cookie, row.since_s, row.proved_s or None, row.until_s)

    def end(self, session: Session) -> None:
        with self._database.write() as connection:
            gone = sessions.c.id_sha256 == sha256_hex(session.id.encode())
            connection.execute(sa.delete(sessions).where(gone))

    def end_at_provider(self, subject: str | None, provider_session: str | None) -> int:
        """Ends what the identity provider says has ended: a session of its own, or all of a person."""
        if not subject and not provider_session:
            return 0
        # A provider's word ends its own sessions alone, not the operator's by token.
        gone = sessions.c.how == "oidc"
        if provider_session:
            gone &= sessions.c.provider_session == provider_session
        if subject:
            gone &= sessions.c.provider_subject == subject
        with self._database.write() as connection:
            return connection.execute(sa.delete(sessions).where(gone)).rowcount

    def form_token(self, session: Session) -> str:
        return self.mac("form", session.id)

    def form_is_ours(self, session: Session, token: str) -> bool:
        return hmac.compare_digest(self.form_token(session).encode(), token.encode())

    def mac(self, purpose: str, text: str) -> str:
        """Binds a text to a purpose and to this console."""
        return hmac.new(self._key, f"{purpose}:{text}".encode(), hashlib.sha256).hexdigest()


def end_sessions(database: Database, person: str) -> int:
    """Signs a person out everywhere; returns of how many sessions."""
    with database.write() as connection:
        return connection.execute(sa.delete(sessions).where(sessions.c.person == _identity(person))).rowcount


def _identity(name: str) -> str:
    return Person(name, frozenset(), "").identity
