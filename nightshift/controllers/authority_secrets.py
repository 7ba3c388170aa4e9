"""Keeps the chart's own authority and what it signs in Secrets: made and renewed by one command, run often.

Three Secrets of one namespace: the authority with its key, which nobody mounts; the node agents' certificate; the
agent's client certificate. The authority's step is written first, and each write holds only for the version that
was read: a run that is cut short is completed by the next, and two at once cannot mix.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass

from nightshift.collectors.base import Permanent
from nightshift.controllers.actuators.kube_client import KubeClient, Object
from nightshift.controllers.authority import Authority, Pair, begin, is_good, issue, turn

_PAIRS = ("current", "following", "previous")


@dataclass(frozen=True)
class CertificateNames:
    """What is kept: names of the Secrets, names in the certificates, and lives (s)."""

    namespace: str
    authority: str
    server: str
    client: str
    server_names: tuple[str, ...]
    authority_life_s: float = 365 * 86_400.0
    life_s: float = 30 * 86_400.0
    settle_s: float = 3600.0


def keep(kube: KubeClient, certificate_names: CertificateNames, now_s: float) -> list[str]:
    """One turn; returns what was written, in words. Raises Temporary (run again) or Permanent."""
    said = []
    path = f"/api/v1/namespaces/{certificate_names.namespace}/secrets"
    found = kube.find(f"{path}/{certificate_names.authority}")
    if found is None:
        authority = begin(now_s, certificate_names.authority_life_s)
        said.append("a new authority")
    else:
        before = _authority(found, certificate_names.authority)
        authority = turn(before, now_s, certificate_names.authority_life_s, certificate_names.settle_s)
        if authority != before:
            step = "announced" if authority.following else "replaced" if authority.previous else "settled"
            said.append(f"the authority: {step}")
    if said:
        _write(kube, path, certificate_names.authority, found, _data(authority), "Opaque")
    for name, names, client in (
        (certificate_names.server, certificate_names.server_names, False),
        (certificate_names.client, ("nightshift",), True),
    ):
        secret = kube.find(f"{path}/{name}")
        data = _decoded(secret)
        pair = Pair(data.get("tls.crt", b""), data.get("tls.key", b""))
        if not is_good(pair, authority, names, now_s):
            pair = issue(authority, names, client=client, now_s=now_s, life_s=certificate_names.life_s)
            said.append(f"a certificate in {name}")
        fresh = {"tls.crt": pair.certificate, "tls.key": pair.key, "ca.crt": authority.trusted}
        if fresh != {key: data.get(key) for key in fresh}:
            _write(kube, path, name, secret, fresh, "kubernetes.io/tls")
    return said


def _decoded(secret: Object | None) -> dict[str, bytes]:
    return {key: base64.b64decode(value) for key, value in ((secret or {}).get("data") or {}).items()}


def _authority(secret: Object, name: str) -> Authority:
    data = _decoded(secret)
    pairs = {which: Pair(data[f"{which}.crt"], data[f"{which}.key"]) for which in _PAIRS if f"{which}.crt" in data}
    try:
        return Authority(**pairs, since_s=float(data["since"]))
    except (TypeError, KeyError, ValueError) as error:
        raise Permanent(
            f"Secret {name} is not an authority of Nightshift: {error}. Delete or rename it to create a new one"
        ) from error


def _data(authority: Authority) -> dict[str, bytes]:
    data = {"since": str(authority.since_s).encode()}
    for which in _PAIRS:
        pair = getattr(authority, which)
        if pair is not None:
            data |= {f"{which}.crt": pair.certificate, f"{which}.key": pair.key}
    return data


def _write(
    kube: KubeClient, path: str, name: str, before: Object | None, data: dict[str, bytes], kind: str
) -> None:
    encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
    meta: Object = {"name": name, "labels": {"app.kubernetes.io/part-of": "nightshift"}}
    if before is not None:
        meta = before["metadata"]
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "type": kind, "data": encoded}
    if before is None:
        kube.request("POST", path, body=body)
    else:
        kube.request("PUT", f"{path}/{name}", body=body)
