"""Certificates for tests: authorities, and what they sign for servers, nodes and clients."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


@dataclass(frozen=True)
class Authority:
    """Signs certificates. `pem` is what others trust."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    @classmethod
    def new(cls, name: str = "test authority") -> Authority:
        key = ec.generate_private_key(ec.SECP256R1())
        return cls(_sign(name, key.public_key(), name, key, authority=True), key)

    def issue(
        self, name: str, *, client: bool = False, valid: timedelta = timedelta(days=1)
    ) -> tuple[bytes, bytes]:
        """(certificate, key) for a name or an address."""
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = self.certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
        made = _sign(name, key.public_key(), str(issuer), self.key, client=client, valid=valid)
        return made.public_bytes(Encoding.PEM), _pem(key)


def self_signed(name: str) -> tuple[bytes, bytes]:
    """(certificate, key) of a server that is its own authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    return _sign(name, key.public_key(), name, key, authority=True).public_bytes(Encoding.PEM), _pem(key)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _sign(
    name: str,
    public: ec.EllipticCurvePublicKey,
    issuer: str,
    key: ec.EllipticCurvePrivateKey,
    *,
    authority: bool = False,
    client: bool = False,
    valid: timedelta = timedelta(days=1),
) -> x509.Certificate:
    now = datetime.now(UTC)
    try:
        other: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        other = x509.DNSName(name.replace(" ", "-"))
    usage = ExtendedKeyUsageOID.CLIENT_AUTH if client else ExtendedKeyUsageOID.SERVER_AUTH
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + valid)
        .add_extension(x509.SubjectAlternativeName([other]), critical=False)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
    )
    if not authority:
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    return builder.sign(key, hashes.SHA256())
