"""Power leases on their way to the nodes: one request per node, over mutual TLS, all at once, each with a deadline.

Agents that are pods are found anew as they move (`collectors.kubernetes.agent_pods`). A lease must not reach
another node:

- two agents that run on one node: neither is asked, neither gets a lease
- a certificate that is not of the agent's own pod: TLS ends the connection, and none is kept from one request to
  the next, since a kept one was checked for whoever had that address before
- an agent that says that it is another node's, or two that tell the same GPU: no lease for any of them
- where all share one certificate, the last line is the lease itself: it names GPUs by UUID, and a machine that has
  not all of them refuses it whole (`power_leases`)

What a node answers is not believed: whether a limit holds is read from telemetry (`controllers.power.shield`).
"""

from __future__ import annotations

import json
import math
import ssl
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, field_validator

from nightshift.collectors.base import Permanent
from nightshift.collectors.http import Connection, HttpSettings
from nightshift.collectors.kubernetes import agent_pods
from nightshift.collectors.kubernetes.agent_pods import AgentPods
from nightshift.collectors.shared_settings import stated_block
from nightshift.collectors.telemetry.certificate_rotation import Renewed

_PARALLEL = 32
_MAX_BYTES = 1 << 20
_MAX_MW = 100_000_000
"""No GPU takes that much: a node that says so is not believed."""
_NO_ANSWER = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""What reading an answer raises that is none."""


# Longest wait for one node: all are asked at once, and a turn of power control waits for the last.
TIMEOUT_S = 3.0


def _found_by(value: Any) -> Any:
    """What `agents: true` means: the block `node_agents`."""
    if not isinstance(value, bool):
        return value
    if value and (agents := stated_block("node_agents")) is None:
        raise ValueError("requires the block `node_agents`, with the namespace and selector of their pods")
    return agents if value else None


class Settings(BaseModel):
    """How the node agents that take power leases are reached."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    urls: dict[str, str] = Field(
        default_factory=dict, description="Address by node, e.g. `https://node-1:9400`; `/power-lease` is queried"
    )
    agents: Annotated[
        agent_pods.Settings | None, BeforeValidator(_found_by), WithJsonSchema({"type": "boolean"})
    ] = Field(
        None, description="Find the agents of all other nodes by `node_agents`; none: `urls` names every node"
    )
    connection: Connection = Field(
        default_factory=HttpSettings,
        description="Entry of `connections` with the authority of the nodes and a client certificate",
    )

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
    clocks_by_hand: frozenset[str] = frozenset()


@dataclass(frozen=True)
class LeaseAnswer:
    """What became of a lease: granted, or why not."""

    ok: bool
    said: str


class Nodes(Protocol):
    """The power leases of many nodes."""

    def status(self) -> Mapping[str, NodeStatus]: ...
    def grant(self, leases: Mapping[str, Mapping[str, Any]]) -> Mapping[str, LeaseAnswer]: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Address:
    """`pod`: empty where the address was configured; else its certificate has to be `certificate_name`'s."""

    url: str
    pod: str = ""
    certificate_name: str = ""

    def __str__(self) -> str:
        return f"{self.pod} at {self.url}" if self.pod else self.url

    @property
    def extensions(self) -> dict[str, Any]:
        return {"sni_hostname": self.certificate_name} if self.certificate_name else {}


class PowerNodes:
    """See `Nodes`. Certificates that are renewed in their files are taken up between two requests."""

    def __init__(
        self, settings: Settings, wanted: Iterable[str] = (), *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`wanted`: nodes whose agents are looked for. Raises Permanent where a certificate is missing or
        unreadable."""
        tls = settings.connection
        files = (tls.ca_file, tls.certificate_file, tls.key_file)
        if any(file is None for file in files):
            raise Permanent(
                "power.nodes.connection: requires ca_file, certificate_file and key_file: leases go by mutual TLS"
            )
        self._settings, self._wanted = settings, frozenset(wanted)
        try:
            self._client: Renewed[httpx.Client] = Renewed([f for f in files if f is not None], self._connect)
        except (OSError, ValueError) as error:
            raise Permanent(f"power.nodes: certificate: {error}") from error
        self._pods = None if settings.agents is None else AgentPods(settings.agents, clock=clock)
        self._addresses = {node: _Address(url) for node, url in settings.urls.items()}
        self._refused: dict[str, str] = {}
        self._claims: dict[str, tuple[_Address, frozenset[str]]] = {}
        self._pool = ThreadPoolExecutor(_PARALLEL, thread_name_prefix="power-node")

    def _connect(self) -> httpx.Client:
        s = self._settings.connection
        context = ssl.create_default_context(cafile=s.ca_file)
        assert s.certificate_file is not None
        context.load_cert_chain(s.certificate_file, s.key_file)
        # a kept connection was checked for whoever had that address before: pods' addresses are given out again
        limits = httpx.Limits(max_connections=_PARALLEL, max_keepalive_connections=0)
        # a redirect, or a proxy from the environment, would carry a lease to another machine than the one that was
        # named
        return httpx.Client(
            verify=context, timeout=TIMEOUT_S, limits=limits, follow_redirects=False, trust_env=False
        )

    def status(self) -> Mapping[str, NodeStatus]:
        """What every node says of its GPUs; looks for the agents first."""
        self._find()
        client = self._client.get()
        told: dict[str, NodeStatus] = self._each(self._addresses, lambda node: self._status(client, node))
        self._refused |= self._claimed_twice(told)
        return told | {node: NodeStatus(error=why) for node, why in self._refused.items()}

    def grant(self, leases: Mapping[str, Mapping[str, Any]]) -> Mapping[str, LeaseAnswer]:
        """Sends node → lease (`power_leases.Lease` as JSON). A node that has no address, or whose agent was refused
        at the last `status`, gets none."""
        client = self._client.get()
        return self._each(leases, lambda node: self._grant(client, node, leases[node]))

    def close(self) -> None:
        self._pool.shutdown(wait=True)
        self._client.get().close()

    def _each(self, nodes: Iterable[str], call: Callable[[str], Any]) -> dict[str, Any]:
        names = list(nodes)
        return dict(zip(names, self._pool.map(call, names), strict=True))

    def _find(self) -> None:
        """Takes up where the agents are by now. An address in `urls` goes before what is found."""
        self._refused = {}
        if self._pods is None or self._settings.agents is None:
            return
        self._pods.refresh()
        twice = self._pods.claimed_twice()
        found = {
            agent.node: _Address(f"https://{agent.place}", agent.pod, agent.certificate_name)
            for agent in self._pods.found
            if agent.node in self._wanted and agent.node not in twice
        }
        self._addresses = found | {node: _Address(url) for node, url in self._settings.urls.items()}
        for node in self._wanted - self._addresses.keys():
            if node in twice:
                self._refused[node] = f"{node}: more than one agent runs there, none is believed: {twice[node]}"
            elif self._pods.fault is not None:
                self._refused[node] = f"{node}: its agent was not found: {self._pods.fault[1]}"
            else:
                where = f"pods {self._settings.agents.selector} in {self._settings.agents.namespace}"
                self._refused[node] = f"{node}: no agent runs there ({where})"

    def _claimed_twice(self, told: Mapping[str, NodeStatus]) -> dict[str, str]:
        """Node → why, of nodes that tell a GPU that another one tells too. What an agent told counts until it tells
        something else or is gone: silence alone does not settle whose the GPU is."""
        # an agent that moved begins anew: what its former address told says nothing of this one
        now = {n: (self._addresses[n], frozenset(s.gpus)) for n, s in told.items() if not s.error}
        before = {n: claim for n, claim in self._claims.items() if self._addresses.get(n) == claim[0]}
        self._claims = before | now
        nodes_of: dict[str, list[str]] = defaultdict(list)
        for node, (_, uuids) in sorted(self._claims.items()):
            for uuid in uuids:
                nodes_of[uuid].append(node)
        return {
            node: f"{node}: {uuid} is reported by {' and by '.join(nodes)}: none of the reports is used"
            for uuid, nodes in sorted(nodes_of.items())
            if len(nodes) > 1
            for node in nodes
        }

    def _status(self, client: httpx.Client, node: str) -> NodeStatus:
        address = self._addresses[node]
        try:
            answer = client.get(address.url + "/power-lease", extensions=address.extensions)
            body = json.loads(answer.content[:_MAX_BYTES])
            if answer.status_code != 200 or "error" in body:
                return NodeStatus(error=f"{address}: HTTP {answer.status_code}: {answer.text[:200]}")
            # an address under `urls` was named by the operator, and an older agent does not say its node
            if address.pod and (said := str(body.get("node") or node)) != node:
                self._refused[node] = f"{node}: {address} says that it is the agent of {said}"
                return NodeStatus(error=self._refused[node])
            fields = NodeGpu.__dataclass_fields__
            gpus = {str(u): NodeGpu(**{name: int(g[name]) for name in fields}) for u, g in body["gpus"].items()}
            for uuid, gpu in gpus.items():
                if (
                    not 0 < gpu.min_mw <= gpu.default_mw <= gpu.max_mw <= _MAX_MW
                    or not 0 < gpu.fallback_mw <= _MAX_MW
                ):
                    raise ValueError(
                        f"{uuid}: takes {gpu.min_mw} to {gpu.max_mw} mW, {gpu.default_mw} mW by default"
                    )
            by_hand = frozenset(map(str, body.get("clocks_by_hand", ())))
            return NodeStatus(gpus, float(body["left_s"]), clocks_by_hand=by_hand)
        except (httpx.HTTPError, *_NO_ANSWER) as error:
            return NodeStatus(error=f"{address}: {type(error).__name__}: {error}"[:300])

    def _grant(self, client: httpx.Client, node: str, lease: Mapping[str, Any]) -> LeaseAnswer:
        address = self._addresses.get(node)
        if node in self._refused:
            return LeaseAnswer(False, self._refused[node])
        if address is None:
            return LeaseAnswer(False, f"{node}: no address under power.nodes, and no agent was found there")
        try:
            answer = client.post(
                address.url + "/power-lease", content=json.dumps(lease), extensions=address.extensions
            )
        except httpx.HTTPError as error:
            return LeaseAnswer(False, f"{address}: {type(error).__name__}: {error}"[:300])
        return LeaseAnswer(answer.status_code == 200, answer.text.strip()[:300])
