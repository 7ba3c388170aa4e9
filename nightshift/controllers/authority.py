"""A small certificate authority that renews itself without a gap: who trusts what, decided purely, turn by turn.

    one         trust: A          sign by A
    announced   trust: A and B    sign by A      B is known everywhere before anything is signed by it
    replaced    trust: B and A    sign by B      what A signed is still trusted until all of it was replaced
    one         trust: B          sign by B

Each step waits for `settle_s`, in which mounted Secrets reach every pod (a kubelet renews them within about two
minutes). So whoever holds what was written one turn ago, and whoever holds what is written now, trust each other. A
certificate is renewed at two thirds of its life (RFC 5280 profiles; as cert-manager does).
"""

from __future__ import annotations

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
