"""What can be configured about the console."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field


class Settings(BaseModel):
    """The web console, with `/healthz`, `/readyz` and `/metrics` on the same port."""

    model_config = ConfigDict(extra="forbid")

    enabled: bool = Field(True, description="Whether the console and the health endpoints are served")
    host: str = Field(
        "127.0.0.1", description="Address to listen on; elsewhere than loopback, reading needs sign-in"
    )
    port: int = Field(8471, ge=0, le=65535, description="Port to listen on; 0: any free one")
    allowed_hosts: tuple[str, ...] = Field(
        (), description="Host names under which browsers may reach it, beside loopback's and `host`"
    )
    behind_tls: bool = Field(False, description="A proxy in front ends TLS: cookies are marked Secure")
    secrets_dir: Path | None = Field(
        None, description="Folder with operator.token and console.key, such as a mounted Secret; none: `state_dir`"
    )
    operator: str = Field("operator", min_length=1, max_length=80, description="Who holds the operator token")
    session_s: float = Field(12 * 3600.0, gt=60, description="A sign-in lasts this long (s)")
