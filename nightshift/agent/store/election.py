"""Who elects the leader among replicas: the store's own row, or a Kubernetes Lease that the row then fences."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from nightshift.agent.config_file import ConfigError
from nightshift.agent.store.lease import LEASE_S, Election
from nightshift.collectors.base import Permanent
from nightshift.collectors.kubernetes.api import ACCESS, Access, AccessSettings
from nightshift.controllers.actuators.kube_client import KubeClient
from nightshift.controllers.actuators.kube_lease import KubeLease

_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class Settings(BaseModel):
    """How a leader is found among several replicas."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    by: Literal["store", "kubernetes"] = Field(
        default="store", description="`kubernetes`: by a Lease object, with the store's row as its fence"
    )
    name: str = Field(default="nightshift", min_length=1, max_length=253, description="Name of the Lease")
    namespace: str = Field(default="", description="Namespace of the Lease; empty: the pod's own")
    access: Access = Field(default_factory=AccessSettings, description=ACCESS)


def build(settings: Settings, replica: str, *, is_sqlite: bool) -> Election | None:
    """The election, or None where the store's row decides alone. Raises ConfigError, and Permanent where the API
    server cannot even be addressed."""
    if settings.by == "store":
        return None
    if is_sqlite:
        raise ConfigError(
            ["election.by: kubernetes: SQLite is for one daemon; several replicas need PostgreSQL (store.url)"]
        )
    # an answer later than a third of the lease is none: the mandate must be renewed within it
    kube = KubeClient.connect(settings.access, within_s=LEASE_S / 3)
    # a restarted replica is another holder: it must not take its predecessor's mandate for its own
    holder = f"{replica}_{uuid.uuid4()}"
    return KubeLease(kube, settings.namespace or _own_namespace(), settings.name, holder, LEASE_S)


def _own_namespace() -> str:
    try:
        return _OWN_NAMESPACE.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise Permanent(
            f"election.namespace: not in a pod ({error.strerror}: {_OWN_NAMESPACE}); name it"
        ) from error
