"""Sign-in through an OpenID Connect provider: authorisation code with PKCE, and every check that the standards ask.

OpenID Connect Core 1.0 (ID token validation, section 3.1.3.7; `max_age`, `auth_time`, `acr`, section 3.1.2.1),
Discovery 1.0, Back-Channel Logout 1.0; PKCE (RFC 7636); the issuer in the answer (RFC 9207); the advice of RFC
9700.

What begins a sign-in travels in a signed cookie of that browser (`Beginning`), so nothing is kept for strangers
on the server, and an answer that another browser began is refused.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import ssl
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpx
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from nightshift.agent.console.settings import ALGORITHMS, SKEW_S, OidcSettings
from nightshift.agent.console.sign_in import given_secret
from nightshift.collectors.base import Permanent, Temporary

CALLBACK = "/oidc/callback"
BACK_CHANNEL = "/oidc/back-channel-logout"
# A sign-in that was begun has to end within this (s).
BEGUN_S = 600.0
_OLDEST_TOKEN_S = 600.0
_KEEP_S = 3600.0
# Keys are asked for again at most this often (s), whoever sends tokens with unknown ones.
_AGAIN_S = 10.0
_MOST_BYTES = 1_000_000
_LONGEST_NAME = 320  # of an e-mail address: 64 characters, @, 255 characters (RFC 3696)
_MOST_GROUPS = 1000
_LOGOUT_EVENT = "http://schemas.openid.net/event/backchannel-logout"


class SignInRefused(Permanent):
    """The provider's answer does not sign anybody in; says why, for the person."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """A sign-in under way, in the browser's own cookie. `fresh`: the person has to prove again who they are."""

    state: str
    nonce: str
    verifier: str
    next: str
    at_s: float
    fresh: bool


@dataclass(frozen=True, slots=True)
class Identity:
    """Who the provider says it is. `proved_s`: when they last proved it, None where the provider does not say."""

    name: str
    subject: str
    session: str | None
    groups: tuple[str, ...]
    proved_s: float | None


class Provider:
    """One provider. Thread-safe; asks for its metadata and keys when it needs them, never at start."""

    def __init__(
        self, settings: OidcSettings, public_url: str, key: bytes, client: httpx.Client | None = None
    ) -> None:
        self.settings = settings
        self._return_to = public_url.rstrip("/") + CALLBACK
        self._key = hmac.new(key, b"oidc", hashlib.sha256).digest()
        self._secret = given_secret(settings.client_secret_file) if settings.client_secret_file else None
        self._client = client or _client(settings)
        self._lock = threading.Lock()
        self._metadata: tuple[float, dict[str, Any]] | None = None
        self._keys: tuple[float, KeySet] | None = None

    def close(self) -> None:
        self._client.close()

    # There ------------------------------------------------------------------------------------------------------

    def begin(self, next_page: str, now_s: float, *, fresh: bool) -> tuple[str, str]:
        """Where to send the browser, and the cookie to send it with."""
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        begun = Beginning(state, nonce, verifier, next_page, now_s, fresh)
        # PKCE (RFC 7636) beside the client's secret: a code that leaks from a redirect is worth nothing without
        # the cookie.
        challenge = base64.urlsafe_b64encode(hashlib.sha256(begun.verifier.encode()).digest()).rstrip(b"=").decode()
        asked = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": self._return_to,
            "scope": " ".join(self.settings.scopes),
            "state": begun.state,
            "nonce": begun.nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        if fresh:
            # max_age also makes auth_time required in the answer (OpenID Connect Core, 3.1.2.1).
            asked |= {"prompt": "login", "max_age": "0"}
            if self.settings.acr_values:
                asked["acr_values"] = " ".join(self.settings.acr_values)
        where = self._endpoint("authorization_endpoint", now_s)
        return f"{where}{'&' if '?' in where else '?'}{urlencode(asked)}", self._seal(begun)

    # And back ---------------------------------------------------------------------------------------------------

    def finish(self, cookie: str | None, answer: Mapping[str, str], now_s: float) -> tuple[Identity, Beginning]:
        """Who it is. Raises SignInRefused, Temporary where the provider is away."""
        begun = self._unseal(cookie)
        if begun is None or not 0 <= now_s - begun.at_s <= BEGUN_S:
            raise SignInRefused("This sign-in started in another browser, or too long ago. Sign in again.")
        if not hmac.compare_digest(begun.state.encode(), answer.get("state", "").encode()):
            raise SignInRefused("This answer belongs to another sign-in. Sign in again.")
        self._check_issuer(answer.get("iss"), now_s)
        if "error" in answer:
            raise SignInRefused(f"The identity provider refused: {answer['error'][:60]}.")
        claims = self._claims(self._redeem(answer.get("code", ""), begun.verifier, now_s), now_s)
        if not hmac.compare_digest(begun.nonce.encode(), str(claims.get("nonce", "")).encode()):
            raise SignInRefused("The identity provider's token was not made for this sign-in.")
        return self._identity(claims, begun, now_s), begun

    def logged_out(self, token: str, now_s: float) -> tuple[str | None, str | None]:
        """(subject, session) that the provider says have ended. Raises SignInRefused for a token that proves
        nothing.

        A logout token has the event, no nonce, and `sub`, `sid` or both (Back-Channel Logout 1.0, section 2.6)."""
        claims = self._claims(token, now_s)
        events = claims.get("events")
        if not isinstance(events, dict) or _LOGOUT_EVENT not in events or "nonce" in claims:
            raise SignInRefused("not a logout token")
        subject, session = (claims.get(name) for name in ("sub", "sid"))
        if not (subject or session):
            raise SignInRefused("a logout token without a user")
        return (None if subject is None else str(subject)), (None if session is None else str(session))

    def _redeem(self, code: str, verifier: str, now_s: float) -> str:
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": self._return_to}
        form |= {"code_verifier": verifier, "client_id": self.settings.client_id}
        auth = None
        if self._secret is not None:
            methods = self._discovered(now_s).get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
            # The default where a provider's metadata say nothing (Discovery 1.0, section 3).
            if "client_secret_basic" in methods:
                auth = httpx.BasicAuth(self.settings.client_id, self._secret)
            else:
                form["client_secret"] = self._secret
        answer = self._ask("POST", self._endpoint("token_endpoint", now_s), data=form, auth=auth)
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise SignInRefused("The identity provider gave no ID token.")
        return token

    def _claims(self, token: str, now_s: float) -> dict[str, Any]:
        """The claims of a token that is signed by the provider, made for us, and of now."""
        claims = self._verified(token, now_s)
        audience = claims.get("aud")
        audiences = audience if isinstance(audience, list) else [audience]
        ours, skew_s = self.settings.client_id, SKEW_S
        if claims.get("iss") != self.settings.issuer:
            raise SignInRefused("The token is of another issuer.")
        # OpenID Connect Core 3.1.3.7: with several audiences, `azp` says for whom it was made.
        if ours not in audiences or ((len(audiences) > 1 or "azp" in claims) and claims.get("azp") != ours):
            raise SignInRefused("The token was made for another application.")
        made_s, ends_s = _time(claims, "iat"), _time(claims, "exp")
        if made_s is None or ends_s is None:
            raise SignInRefused("The token says no time.")
        early_s = max(made_s, _time(claims, "nbf") or made_s)
        if now_s > ends_s + skew_s or now_s > made_s + _OLDEST_TOKEN_S + skew_s:
            raise SignInRefused("The token is out of time; is one of the clocks wrong?")
        if now_s < early_s - skew_s:
            raise SignInRefused("The token is from the future; is one of the clocks wrong?")
        return claims

    def _verified(self, token: str, now_s: float) -> dict[str, Any]:
        if len(token) > _MOST_BYTES // 4:
            raise SignInRefused("The token is too large.")
        # A provider that rotates its keys signs with one that we have not seen yet: asked for once more, then
        # refused.
        for again in (False, True):
            try:
                keys = self._key_set(now_s, again)
                return dict(jwt.decode(token, keys, algorithms=list(ALGORITHMS)).claims)
            except (JoseError, ValueError, TypeError, KeyError, RecursionError) as error:
                if again:
                    raise SignInRefused(f"The token's signature does not hold ({type(error).__name__}).") from error
        raise AssertionError

    def _identity(self, claims: Mapping[str, Any], begun: Beginning, now_s: float) -> Identity:
        subject, session = claims.get("sub"), claims.get("sid")
        if not isinstance(subject, str) or not subject:
            raise SignInRefused("The token names no subject.")
        name = self._name(claims)
        proved_s = self._proved(claims, begun, now_s)
        return Identity(name, subject, str(session) if session else None, self._groups(claims), proved_s)

    def _name(self, claims: Mapping[str, Any]) -> str:
        settings = self.settings
        name = claims.get(settings.name_claim)
        # isprintable: control and direction characters could make one name look like another in the audit log.
        if not isinstance(name, str) or not name.strip() or len(name) > _LONGEST_NAME or not name.isprintable():
            raise SignInRefused(f"The identity provider says no {settings.name_claim}.")
        # An unverified address would be a way to sign in as another person.
        checked = claims.get("email_verified") is True or settings.unverified_email
        if settings.name_claim == "email" and not checked:
            raise SignInRefused("The identity provider does not call your e-mail address verified.")
        return name.strip()

    def _proved(self, claims: Mapping[str, Any], begun: Beginning, now_s: float) -> float | None:
        """When the person last proved who they are, as strongly as a fresh sign-in has to be; None where the
        provider does not say. Raises SignInRefused where a fresh sign-in was asked for and is not one."""
        levels = self.settings.acr_values
        strong = not levels or claims.get("acr") in levels
        proved_s = _time(claims, "auth_time")
        # `prompt=login` is a request that a provider may ignore: only auth_time shows that it did ask.
        if begun.fresh and (proved_s is None or proved_s < begun.at_s - SKEW_S):
            raise SignInRefused("The identity provider did not ask you again who you are.")
        if begun.fresh and not strong:
            raise SignInRefused(
                "The identity provider did not require a strong enough sign-in, e.g. a second factor."
            )
        if proved_s is not None and proved_s > now_s + SKEW_S:
            raise SignInRefused("The sign-in is from the future; is one of the clocks wrong?")
        return proved_s if strong else None  # signed in, but not as a fresh sign-in has to be

    def _groups(self, claims: Mapping[str, Any]) -> tuple[str, ...]:
        found: Any = claims.get(self.settings.groups_claim)
        if found is None:
            found = claims
            # Keycloak nests them (`realm_access.roles`); a claim whose own name has dots was looked for first.
            for part in self.settings.groups_claim.split("."):
                found = found.get(part) if isinstance(found, Mapping) else None
        named = [found] if isinstance(found, str) else found if isinstance(found, list) else []
        return tuple(name for name in named if isinstance(name, str) and 0 < len(name) <= 300)[:_MOST_GROUPS]

    def _check_issuer(self, said: str | None, now_s: float) -> None:
        """The `iss` of the answer (RFC 9207): where the provider sends one, it has to be its own."""
        needed = self._discovered(now_s).get("authorization_response_iss_parameter_supported") is True
        if (said is not None or needed) and said != self.settings.issuer:
            raise SignInRefused("This answer is of another identity provider.")

    # The provider's own words -----------------------------------------------------------------------------------

    def _endpoint(self, name: str, now_s: float) -> str:
        where = self._discovered(now_s).get(name)
        secure = urlsplit(self.settings.issuer).scheme
        # Metadata that point to http would send the client's secret in the clear.
        if not isinstance(where, str) or urlsplit(where).scheme not in ("https", secure):
            raise Temporary(f"the identity provider says no {name} that can be used")
        return where

    def _discovered(self, now_s: float) -> dict[str, Any]:
        with self._lock:
            if self._metadata is not None and 0 <= now_s - self._metadata[0] < _KEEP_S:
                return self._metadata[1]
        found = self._ask("GET", f"{self.settings.issuer.rstrip('/')}/.well-known/openid-configuration")
        if found.get("issuer") != self.settings.issuer:
            raise Temporary(f"console.oidc.issuer: the provider calls itself {str(found.get('issuer'))[:200]!r}")
        with self._lock:
            self._metadata = (now_s, found)
        return found

    def _key_set(self, now_s: float, again: bool) -> KeySet:
        """The provider's public keys: kept for an hour, asked for again when one is not known (it rotates them)."""
        with self._lock:
            known = self._keys
        keep_s = _AGAIN_S if again else _KEEP_S
        if known is not None and 0 <= now_s - known[0] < keep_s:
            return known[1]
        found = self._ask("GET", self._endpoint("jwks_uri", now_s)).get("keys")
        usable = [
            key
            for key in (found if isinstance(found, list) else [])
            # Public keys alone: a symmetric `oct` key in a public document would let anybody sign.
            if isinstance(key, dict) and key.get("kty") in ("RSA", "EC", "OKP") and key.get("use", "sig") == "sig"
        ]
        if not usable:
            raise Temporary("the identity provider has no public keys")
        try:
            keys = KeySet.import_key_set({"keys": usable})
        except (JoseError, ValueError, TypeError, KeyError) as error:
            raise Temporary(f"the identity provider's keys cannot be read ({type(error).__name__})") from error
        with self._lock:
            self._keys = (now_s, keys)
        return keys

    def _ask(self, method: str, url: str, **arguments: Any) -> dict[str, Any]:
        try:
            with self._client.stream(method, url, **arguments) as answer:
                body = b""
                for part in answer.iter_bytes():
                    body += part
                    # Counted while it comes: Content-Length is the sender's claim, and chunked answers have none.
                    if len(body) > _MOST_BYTES:
                        raise Temporary("the identity provider's answer is too large")
        except httpx.HTTPError as error:
            raise Temporary(f"the identity provider does not answer ({type(error).__name__})") from error
        try:
            read = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise Temporary(f"the identity provider answers {answer.status_code} and no JSON") from error
        if answer.status_code in (400, 401) and isinstance(read, dict) and "error" in read:
            raise SignInRefused(f"The identity provider refused: {str(read['error'])[:60]}.")
        if answer.status_code != 200 or not isinstance(read, dict):
            raise Temporary(f"the identity provider answers {answer.status_code}")
        return read

    # The cookie -------------------------------------------------------------------------------------------------

    def _seal(self, begun: Beginning) -> str:
        body = base64.urlsafe_b64encode(json.dumps(asdict(begun)).encode()).decode()
        return f"{body}.{self._mac(body)}"

    def _unseal(self, cookie: str | None) -> Beginning | None:
        body, _, mac = (cookie or "").partition(".")
        # The mac first: nothing of a cookie that is not ours is decoded.
        if len(body) > 4000 or not hmac.compare_digest(mac.encode(), self._mac(body).encode()):
            return None
        return Beginning(**json.loads(base64.urlsafe_b64decode(body)))

    def _mac(self, body: str) -> str:
        return hmac.new(self._key, body.encode(), hashlib.sha256).hexdigest()


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _client(settings: OidcSettings) -> httpx.Client:
    trust = ssl.create_default_context(cafile=str(settings.ca_file) if settings.ca_file else None)
    # No redirects: the client's secret goes to the host that the metadata name, and to no other.
    return httpx.Client(timeout=10.0, follow_redirects=False, verify=trust)
