"""Canonical JSON, hashes and signatures: one small room for audit records, plans, evidence and certificates.

Canonical JSON follows RFC 8785 (JCS) for the values that we use: UTF-8, keys sorted by UTF-16 code unit, no white
space, integers within ±2^53, finite floats in the shortest form that ECMAScript prints. A value that has no
canonical form (NaN, infinity, a set, bytes) is refused, never guessed.

Signatures are Ed25519 (RFC 8032) in a DSSE envelope (https://github.com/secure-systems-lab/dsse, protocol v1.0.2).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from json.encoder import encode_basestring
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

_MAX_SAFE_INTEGER = 2**53


class SealError(ValueError):
    """A value has no canonical form, or an envelope does not verify. The message names the place."""


def canonical_json(value: object) -> bytes:
    """The RFC 8785 bytes of a value made of dict (text keys), list, tuple, str, int, float, bool and None.

    >>> canonical_json({"b": 1.0, "a": [True, None, "é"]}).decode()
    '{"a":[true,null,"é"],"b":1}'
    >>> canonical_json({"a": float("nan")})
    Traceback (most recent call last):
        ...
    nightshift.collectors.seal.SealError: $.a: nan has no canonical form; write null where a value is missing
    """
    try:
        return _quick(value).encode()
    except (SealError, TypeError, ValueError):  # says where, or that it is only less usual
        return _canonical(value, "$").encode()


def _quick(value: Any) -> str:
    """What `_canonical` gives, for what nearly all records are made of; raises SealError for anything else. There
    are tens of thousands of receipts a minute."""
    kind = type(value)
    if kind is str:
        return encode_basestring(value)
    if kind is float:
        size = abs(value)
        if 1e-4 <= size < 1e16:  # Python and ECMAScript both write it without an exponent
            text = repr(value)
            return text[:-2] if text.endswith(".0") else text
        return _number(value, "$")
    if kind is dict:
        return "{" + ",".join([_name(key) + _quick(value[key]) for key in sorted(value)]) + "}"
    if value is None:
        return "null"
    if kind is bool:
        return "true" if value else "false"
    if kind is int and -_MAX_SAFE_INTEGER <= value <= _MAX_SAFE_INTEGER:
        return str(value)
    if kind is list or kind is tuple:
        return "[" + ",".join([_quick(item) for item in value]) + "]"
    raise SealError(f"{kind.__name__} is written with more care")


@lru_cache(4096)
def _name(key: object) -> str:
    """A key of ASCII, which sorts the same by code point and by UTF-16 unit, and its colon."""
    if type(key) is not str or not key.isascii():
        raise SealError(f"key {key!r} is written with more care")
    return encode_basestring(key) + ":"


def _canonical(value: object, path: str) -> str:
    match value:
        case str():
            if not value.isascii():
                try:
                    value.encode()
                except UnicodeEncodeError as error:
                    raise SealError(f"{path}: text with a lone surrogate has no canonical form") from error
            return encode_basestring(str(value))
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            if abs(value) > _MAX_SAFE_INTEGER:
                raise SealError(f"{path}: integer {value} is beyond ±2^53; write it as text")
            return str(int(value))
        case float():
            return _number(value, path)
        case dict() | Mapping():
            return _object(value, path)
        case list() | tuple():
            return "[" + ",".join(_canonical(item, f"{path}[{i}]") for i, item in enumerate(value)) + "]"
        case _:
            raise SealError(f"{path}: {type(value).__name__} has no canonical form")


def _object(value: Mapping[Any, object], path: str) -> str:
    for key in value:
        # json.dumps would write 1 and "1" as the same key: two objects, one signature
        if not isinstance(key, str):
            raise SealError(f"{path}: key {key!r} is not text")
    if all(map(str.isascii, value)):
        keys = sorted(value)
    else:
        # RFC 8785 sorts by UTF-16 unit; Python's order by code point differs beyond U+FFFF
        keys = sorted(value, key=lambda key: key.encode("utf-16-be", "surrogatepass"))
    pairs = (f"{_canonical(k, path)}:{_canonical(value[k], f'{path}.{k}')}" for k in keys)
    return "{" + ",".join(pairs) + "}"


def _number(value: float, path: str) -> str:
    """ECMAScript's Number::toString (ECMA-262 §6.1.6.1.20), from Python's shortest round-trip digits."""
    if not math.isfinite(value):
        raise SealError(f"{path}: {value} has no canonical form; write null where a value is missing")
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    digits, _, exponent = float.__repr__(abs(value)).lower().partition("e")
    whole, _, fraction = digits.partition(".")
    point = len(whole) + int(exponent or 0)
    figures = (whole + fraction).rstrip("0")
    leading = len(figures) - len(figures.lstrip("0"))
    figures, point = figures[leading:], point - leading
    count = len(figures)
    if count <= point <= 21:
        return sign + figures + "0" * (point - count)
    if 0 < point <= 21:
        return f"{sign}{figures[:point]}.{figures[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{figures}"
    power = point - 1
    tail = f".{figures[1:]}" if count > 1 else ""
    return f"{sign}{figures[0]}{tail}e{'+' if power >= 0 else '-'}{abs(power)}"


def sha256_hex(data: bytes) -> str:
    """SHA-256 of bytes as 64 lower-case hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def fingerprint(value: object) -> str:
    """SHA-256 of a value's canonical JSON: the identity of a plan, a claim or a record."""
    return sha256_hex(canonical_json(value))


def _pae(payload_type: str, payload: bytes) -> bytes:
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def key_id(public: Ed25519PublicKey) -> str:
    """SHA-256 of the raw public key: how an envelope names its signer."""
    return sha256_hex(public.public_bytes(Encoding.Raw, PublicFormat.Raw))


def trusted_keys(paths: Iterable[Path]) -> dict[str, Ed25519PublicKey]:
    """Key id → public key, from files of 32 bytes in hexadecimal. Raises SealError naming the file."""
    keys = {}
    for path in paths:
        try:
            raw = bytes.fromhex(path.read_text(encoding="utf-8").strip())
            public = Ed25519PublicKey.from_public_bytes(raw)
        except (OSError, ValueError) as error:
            raise SealError(f"{path}: not a public key ({error})") from error
        keys[key_id(public)] = public
    return keys


@dataclass(frozen=True)
class Signer:
    """An Ed25519 key that signs DSSE envelopes."""

    private: Ed25519PrivateKey

    @classmethod
    def generate(cls) -> Signer:
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_bytes(cls, raw: bytes) -> Signer:
        """From the 32 raw bytes of RFC 8032's private key."""
        if len(raw) != 32:
            raise SealError(f"an Ed25519 private key has 32 bytes, not {len(raw)}")
        return cls(Ed25519PrivateKey.from_private_bytes(raw))

    @classmethod
    def from_file(cls, path: Path) -> Signer:
        """From a file that holds the private key's 32 bytes in hexadecimal."""
        try:
            return cls.from_bytes(bytes.fromhex(path.read_text(encoding="utf-8").strip()))
        except (OSError, ValueError) as error:
            raise SealError(f"{path}: not a private key ({error})") from error

    def to_bytes(self) -> bytes:
        return self.private.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())

    @property
    def public(self) -> Ed25519PublicKey:
        return self.private.public_key()

    @property
    def key_id(self) -> str:
        return key_id(self.public)

    def seal(self, payload_type: str, payload: bytes) -> dict[str, Any]:
        """A DSSE envelope over the payload; JSON-serialisable."""
        signature = self.private.sign(_pae(payload_type, payload))
        return {
            "payloadType": payload_type,
            "payload": base64.b64encode(payload).decode(),
            "signatures": [{"keyid": self.key_id, "sig": base64.b64encode(signature).decode()}],
        }


def open_envelope(
    envelope: object, payload_type: str, trusted: Mapping[str, Ed25519PublicKey]
) -> tuple[bytes, str]:
    """The payload of an envelope and the id of the trusted key that signed it.

    Raises SealError where the envelope is malformed, of another type, or no trusted key's signature holds. The
    key id inside the envelope is only a hint: each trusted key is tried under its own id.
    """
    if not isinstance(envelope, Mapping):
        raise SealError("envelope: not a JSON object")
    if envelope.get("payloadType") != payload_type:
        raise SealError(f"envelope.payloadType: {envelope.get('payloadType')!r}, expected {payload_type!r}")
    signatures = envelope.get("signatures")
    if not isinstance(signatures, list) or not signatures:
        raise SealError("envelope.signatures: none")
    try:
        payload = base64.b64decode(envelope["payload"], validate=True)
        found = [base64.b64decode(entry["sig"], validate=True) for entry in signatures]
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise SealError(f"envelope: malformed payload or signature ({error})") from error
    message = _pae(payload_type, payload)
    for name, public in trusted.items():
        for signature in found:
            try:
                public.verify(signature, message)
            except InvalidSignature:
                continue
            return payload, name
    raise SealError("envelope.signatures: none is by a trusted key")
