"""What can be configured about the console."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, IPvAnyNetwork, field_validator, model_validator

from nightshift.collectors.http import BaseAddress, Connection

# Signatures that are taken: every one with a key pair. `none` and a shared secret are refused.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
# What the button of the sign-in page calls it.
OIDC_NAME = "single sign-on"


# How far the provider's clock may be off: hosts that keep time by NTP differ by less, and more would let old
# tokens pass.
SKEW_S = 60.0


class OidcSettings(BaseModel):
    """Sign-in through an OpenID Connect provider: authorisation code with PKCE."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    issuer: str = Field(description="The provider's issuer URL, exactly as its discovery document says it")
    client_id: str = Field(min_length=1, description="Our client id at the provider")
    client_secret_file: Path | None = Field(
        None, description="File with the client secret; none: a public client, protected by PKCE alone"
    )
    scopes: tuple[str, ...] = Field(("openid", "email", "profile"), description="Scopes to request")
    name_claim: str = Field(
        "email", min_length=1, description="Claim that names a person over all channels, as in `people.roles`"
    )
    unverified_email: bool = Field(
        False, description="Take an e-mail address that the provider does not call verified"
    )
    groups_claim: str = Field("groups", description="Claim with a person's groups; dots lead into objects")
    acr_values: tuple[str, ...] = Field((), description="For a fresh sign-in: require one of these (`acr`)")
    ca_file: Path | None = Field(None, description="Authority (PEM) of its certificate; none: the system's")

    @field_validator("issuer")
    @classmethod
    def _safe(cls, issuer: str) -> str:
        parts = urlsplit(issuer)
        local = parts.hostname in ("127.0.0.1", "localhost", "::1")
        if parts.scheme != "https" and not (parts.scheme == "http" and local):
            raise ValueError(f"{issuer!r} is not an https address")
        if parts.query or parts.fragment or not parts.hostname:
            raise ValueError(f"{issuer!r} is not an issuer: no query, no fragment")
        return issuer


class ProxySettings(BaseModel):
    """Sign-in by a proxy in front, which has checked who it is and says so in a header."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    addresses: tuple[IPvAnyNetwork, ...] = Field(
        min_length=1, description="Addresses or networks of the proxies; from anywhere else the headers are nothing"
    )
    user_header: str = Field("X-Forwarded-Email", description="Header with the person's e-mail address or login")
    groups_header: str = Field("", description="Header with their groups, separated by commas; empty: none")


class Settings(BaseModel):
    """The web console, with `/healthz`, `/readyz` and `/metrics` on the same port."""

    model_config = ConfigDict(extra="forbid")

    enabled: bool = Field(True, description="Whether the console and the health endpoints are served")
    host: str = Field(
        "127.0.0.1",
        description="Address to listen on (`::`: every one, of IPv6 and IPv4); elsewhere than loopback, reading "
        "needs sign-in",
    )
    port: int = Field(8471, ge=0, le=65535, description="Port to listen on; 0: any free one")
    allowed_hosts: tuple[str, ...] = Field(
        (), description="Host names under which browsers may reach it, beside loopback's, `host` and `public_url`'s"
    )
    behind_tls: bool = Field(False, description="A proxy in front ends TLS: cookies are marked Secure")
    public_url: str = Field("", description="Address under which browsers reach it; OIDC needs it")
    secrets_dir: Path | None = Field(
        None, description="Folder with operator.token and console.key, e.g. a mounted Secret; none: `state_dir`"
    )
    operator: str = Field("operator", min_length=1, max_length=80, description="Who holds the operator token")
    tokens: dict[Annotated[str, Field(min_length=1, max_length=80)], Path] = Field(
        default_factory=dict,
        description="Further people and programs: name, and the file with their token; `people` gives their roles",
    )
    oidc: OidcSettings | None = Field(None, description="Sign-in through an OpenID Connect provider")
    proxy: ProxySettings | None = Field(None, description="Sign-in by a trusted proxy's headers")
    agents: dict[BaseAddress, Connection] = Field(
        default_factory=dict,
        description="Other clusters' agents to show on the page Clusters: address, and the entry of `connections` "
        "with a viewer's token",
    )
    session_s: float = Field(12 * 3600.0, gt=60, description="A sign-in lasts this long (s)")

    @model_validator(mode="after")
    def _complete(self) -> Settings:
        parts = urlsplit(self.public_url)
        if self.public_url and (
            parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/")
        ):
            raise ValueError(f"public_url {self.public_url!r} is not http(s)://HOST[:PORT]")
        if self.oidc is not None and not self.public_url:
            raise ValueError("oidc needs public_url: the provider sends people back there")
        if self.public_url.startswith("https:") and not self.behind_tls:
            raise ValueError("public_url is https, so behind_tls must be true")
        return self
