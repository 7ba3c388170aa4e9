"""Power leases on their way to the nodes: one request per node, over mutual TLS, all at once, each with a deadline.

What a node answers is not believed: whether a limit holds is read from telemetry (`controllers.power.shield`).
"""

from __future__ import annotations

import json
import math
import ssl
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel, ConfigDict, Field, field_validator

from collectors.base import Permanent
from collectors.rotation import Renewed

_PARALLEL = 32
_MAX_BYTES = 1 << 20


class Settings(BaseModel):
    """How the node agents that take power leases are reached."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    urls: dict[str, str] = Field(
        default_factory=dict, description="Address by node, such as `https://node-1:9400`; `/power-lease` is asked"
    )
    ca_file: Path | None = Field(None, description="Certificate authority (PEM) of the nodes")
    certificate_file: Path | None = Field(None, description="Client certificate (PEM)")
    key_file: Path | None = Field(None, description="Its private key (PEM)")
    timeout_s: float = Field(3.0, gt=0, le=60, description="Longest wait for one node (s)")

    @field_validator("urls")
    @classmethod
    def _by_tls(cls, urls: dict[str, str]) -> dict[str, str]:
        for node, url in urls.items():
            if urlsplit(url).scheme != "https" or not urlsplit(url).hostname:
                raise ValueError(f"{node}: {url!r} is no https:// address; leases go by mutual TLS alone")
        return urls


@dataclass(frozen=True)
class NodeGpu:
    """What a node says of one of its GPUs (mW, MHz)."""

    min_mw: int
    max_mw: int
    default_mw: int
    fallback_mw: int
    now_mw: int
    max_clock_mhz: int


@dataclass(frozen=True)
class NodeStatus:
    """What a node said; `error` where it did not."""

    gpus: Mapping[str, NodeGpu] = field(default_factory=dict)
    left_s: float = math.nan
    error: str = ""


@dataclass(frozen=True)
class Grant:
    """What became of a lease: granted, or why not."""

    ok: bool
    said: str


class Nodes(Protocol):
    """The power leases of many nodes."""

    def status(self) -> Mapping[str, NodeStatus]: ...
    def grant(self, leases: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Grant]: ...
    def close(self) -> None: ...


class PowerNodes:
    """See `Nodes`. Certificates that are renewed in their files are taken up between two requests."""

    def __init__(self, settings: Settings) -> None:
        """Raises Permanent where a certificate is missing or unreadable."""
        files = (settings.ca_file, settings.certificate_file, settings.key_file)
        if any(file is None for file in files):
            raise Permanent(
                "power.nodes: ca_file, certificate_file and key_file are needed: leases go by mutual TLS"
            )
        self._settings = settings
        try:
            self._client: Renewed[httpx.Client] = Renewed([f for f in files if f is not None], self._connect)
        except (OSError, ValueError) as error:
            raise Permanent(f"power.nodes: certificate: {error}") from error
        self._pool = ThreadPoolExecutor(_PARALLEL, thread_name_prefix="power-node")

    def _connect(self) -> httpx.Client:
        s = self._settings
        context = ssl.create_default_context(cafile=s.ca_file)
        assert s.certificate_file is not None
        context.load_cert_chain(s.certificate_file, s.key_file)
        return httpx.Client(verify=context, timeout=s.timeout_s, follow_redirects=False, trust_env=False)

    def status(self) -> Mapping[str, NodeStatus]:
        """What every node says of its GPUs."""
        client = self._client.get()
        return self._each(self._settings.urls, lambda node: self._status(client, node))

    def grant(self, leases: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Grant]:
        """Sends node → lease (`power_leases.Lease` as JSON). A node that is not configured is refused."""
        client = self._client.get()
        return self._each(leases, lambda node: self._grant(client, node, leases[node]))

    def close(self) -> None:
        self._pool.shutdown(wait=True)
        self._client.get().close()

    def _each(self, nodes: Mapping[str, object], call: Callable[[str], Any]) -> dict[str, Any]:
        return dict(zip(nodes, self._pool.map(call, nodes), strict=True))

    def _status(self, client: httpx.Client, node: str) -> NodeStatus:
        try:
            answer = client.get(self._settings.urls[node] + "/power-lease")
            body = json.loads(answer.content[:_MAX_BYTES])
            if answer.status_code != 200 or "error" in body:
                return NodeStatus(error=f"HTTP {answer.status_code}: {answer.text[:200]}")
            fields = NodeGpu.__dataclass_fields__
            gpus = {str(u): NodeGpu(**{name: int(g[name]) for name in fields}) for u, g in body["gpus"].items()}
            return NodeStatus(gpus, float(body["left_s"]))
        except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError) as error:
            return NodeStatus(error=f"{type(error).__name__}: {error}"[:300])

    def _grant(self, client: httpx.Client, node: str, lease: Mapping[str, Any]) -> Grant:
        url = self._settings.urls.get(node)
        if url is None:
            return Grant(False, f"{node}: no address under power.nodes.urls")
        try:
            answer = client.post(url + "/power-lease", content=json.dumps(lease))
        except httpx.HTTPError as error:
            return Grant(False, f"{type(error).__name__}: {error}"[:300])
        return Grant(answer.status_code == 200, answer.text.strip()[:300])
