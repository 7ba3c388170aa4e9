"""Anchors: where the audit log ended at a time, one line each, outside the database, signed where a key is set.

    2026-11-21T02:00:00+00:00 4711:SHA256 [cut] [SIGNATURE]

A line with `cut` is written before retention removes the records up to there: who can only write the database
cannot remove its beginning and say that retention did.
Whoever can write both the database and the anchor file can rewrite both, so a line may carry an Ed25519 signature
(over the DSSE encoding of its other words). The key is read for each line: a renewed Secret is taken up without a
restart, and lines of the old key hold as long as its public half is trusted.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from nightshift.agent.store.audit import AuditHead
from nightshift.collectors.base import Permanent
from nightshift.collectors.seal import SealError, Signer, open_envelope

TYPE = "application/vnd.nightshift.anchor"


CUT = "cut"


@dataclass(frozen=True, slots=True)
class Anchor(AuditHead):
    """A line. `cut`: it says that retention removes the records up to this one."""

    cut: bool = False


def line(at_s: float, head: AuditHead, signer: Signer | None, *, cut: bool = False) -> str:
    """One line for the anchor file, without its end."""
    said = f"{datetime.fromtimestamp(at_s, UTC).isoformat(timespec='seconds')} {head}" + (f" {CUT}" if cut else "")
    if signer is None:
        return said
    return f"{said} {signer.seal(TYPE, said.encode())['signatures'][0]['sig']}"


def signer_of(file: Path | None) -> Signer | None:
    """The key of a file that `nightshift audit keygen` made. Raises Permanent where it is none."""
    try:
        return None if file is None else Signer.from_file(file)
    except SealError as error:
        raise Permanent(f"keeping.anchor_key: {error}") from error


def anchors(file: Path, trusted: Mapping[str, Ed25519PublicKey] | None = None) -> list[Anchor]:
    """The anchors of a file, oldest first. With trusted keys every line has to be signed by one of them. Raises
    Permanent naming the line that is none."""
    found = []
    try:
        lines = file.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Permanent(f"{file}: {error}") from error
    for number, text in enumerate(lines, 1):
        at, _, rest = text.strip().partition(" ")
        head, _, rest = rest.partition(" ")
        # a base64 signature is never the word "cut", so that both fields may be absent
        cut = rest.partition(" ")[0] == CUT
        signature = rest.partition(" ")[2] if cut else rest
        try:
            # a line without a time is an anchor that a person noted
            told = AuditHead.parse(head or at)
            found.append(Anchor(told.number, told.sha256, cut))
            if trusted is not None:
                _check(f"{at} {head}" + (f" {CUT}" if cut else ""), signature, trusted)
        except ValueError as error:
            raise Permanent(f"{file}:{number}: {error}") from error
    return found


def _check(said: str, signature: str, trusted: Mapping[str, Ed25519PublicKey]) -> None:
    """Raises SealError where no trusted key signed this."""
    if not signature:
        raise SealError("the anchor is not signed")
    payload = base64.b64encode(said.encode()).decode()
    open_envelope({"payloadType": TYPE, "payload": payload, "signatures": [{"sig": signature}]}, TYPE, trusted)


def make_key(private: Path, public: Path) -> str:
    """Writes a new key pair, hexadecimal, the private half for its owner alone; returns the key's id. Raises
    Permanent where a file is there already: a key is never overwritten."""
    signer = Signer.generate()
    halves = (private, signer.to_bytes()), (public, signer.public.public_bytes(Encoding.Raw, PublicFormat.Raw))
    try:
        for path, half in halves:
            # mode at creation: between open() and chmod() anybody could read the key
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                file.write(half.hex() + "\n")
    except OSError as error:
        raise Permanent(f"{error.filename}: {error.strerror}") from error
    return signer.key_id
