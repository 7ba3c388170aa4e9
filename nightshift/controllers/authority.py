"""A small certificate authority that renews itself without a gap, kept in Secrets by one command, run often.

Who trusts what is decided purely, turn by turn:

    one         trust: A          sign by A
    announced   trust: A and B    sign by A      B is known everywhere before anything is signed by it
    replaced    trust: B and A    sign by B      what A signed is still trusted until all of it was replaced
    one         trust: B          sign by B

Each step waits for `settle_s`, in which mounted Secrets reach every pod (a kubelet renews them within about two
minutes). So whoever holds what was written one turn ago, and whoever holds what is written now, trust each other. A
certificate is renewed at two thirds of its life (RFC 5280 profiles; as cert-manager does).

Three Secrets of one namespace: the authority with its key, which is never mounted; the node agents' certificate;
the agent's client certificate. The authority's step is written first, and each write holds only for the version
that was read: a run that is cut short is completed by the next, and two at once cannot mix.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from nightshift.collectors.base import Permanent
from nightshift.controllers.actuators.kube_client import KubeClient, Object

RENEW_AT = 2 / 3
_SKEW = timedelta(minutes=5)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as PEM."""

    certificate: bytes
    key: bytes

    @property
    def parsed(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self.certificate)

    def is_due(self, now_s: float) -> bool:
        """Whether two thirds of its life are over."""
        begins, ends = self.parsed.not_valid_before_utc.timestamp(), self.parsed.not_valid_after_utc.timestamp()
        return now_s >= begins + RENEW_AT * (ends - begins)


@dataclass(frozen=True)
class Authority:
    """The authority at one moment. `since_s`: when it came to what it is now."""

    current: Pair
    following: Pair | None = None
    previous: Pair | None = None
    since_s: float = 0.0

    @property
    def trusted(self) -> bytes:
        """What everybody has to trust now."""
        return b"".join(p.certificate for p in (self.current, self.following, self.previous) if p is not None)


def begin(now_s: float, life_s: float) -> Authority:
    """A new authority."""
    return Authority(_root(now_s, life_s), since_s=now_s)


def turn(authority: Authority, now_s: float, life_s: float, settle_s: float) -> Authority:
    """The authority after one look: at most one step further."""
    has_settled = now_s - authority.since_s >= settle_s
    if authority.following is not None:
        if not has_settled:
            return authority
        # the former stays trusted: what it signed is in use until its holders take up the next
        return Authority(authority.following, None, authority.current, now_s)
    if authority.previous is not None:
        return replace(authority, previous=None, since_s=now_s) if has_settled else authority
    if authority.current.is_due(now_s):
        return replace(authority, following=_root(now_s, life_s), since_s=now_s)
    return authority


def issue(authority: Authority, names: Sequence[str], *, client: bool, now_s: float, life_s: float) -> Pair:
    """A certificate for these DNS names, signed by the present authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    signer = load_pem_private_key(authority.current.key, None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    made = _build(names[0], authority.current.parsed.subject, key.public_key(), now_s, life_s)
    usage = ExtendedKeyUsageOID.CLIENT_AUTH if client else ExtendedKeyUsageOID.SERVER_AUTH
    made = (
        made.add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    return _pair(made.sign(signer, hashes.SHA256()), key)


def is_good(pair: Pair, authority: Authority, names: Sequence[str], now_s: float) -> bool:
    """Whether a certificate may stay: signed by the present authority, for these names, and not due."""
    try:
        found = pair.parsed
        found.verify_directly_issued_by(authority.current.parsed)
    except (ValueError, TypeError, x509.InvalidVersion):
        return False
    except Exception as error:  # cryptography's InvalidSignature is no ValueError
        if type(error).__name__ != "InvalidSignature":
            raise
        return False
    held = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return not pair.is_due(now_s) and held.get_values_for_type(x509.DNSName) == list(names)


def _root(now_s: float, life_s: float) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"nightshift {int(now_s)}")])
    made = (
        _build(f"nightshift {int(now_s)}", name, key.public_key(), now_s, life_s)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(False, False, False, False, False, True, True, False, False), critical=True)
    )
    return _pair(made.sign(key, hashes.SHA256()), key)


def _build(
    subject: str, issuer: x509.Name, public: ec.EllipticCurvePublicKey, now_s: float, life_s: float
) -> x509.CertificateBuilder:
    begins = datetime.fromtimestamp(now_s, UTC)
    return (
        x509.CertificateBuilder()
        # a common name has at most 64 characters (RFC 5280, ub-common-name); the names that count are the
        # alternative ones
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject[:64])]))
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins - _SKEW)
        .not_valid_after(begins + timedelta(seconds=life_s))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Pair(certificate.public_bytes(Encoding.PEM), private)


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
