"""A certificate's outside: whose signature it bears, and whether it is one. Needs no torch, so the daemon can ask.

What it certifies, and whether that still holds, `kernels.certification.certificate` checks.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from nightshift.collectors.seal import SealError, fingerprint, open_envelope
from nightshift.kernels.candidate import Candidate, CandidateError
from nightshift.kernels.loop.ledger_chain import LedgerHead

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://nightshift.example/kernel-certificate/v1"
# The judge's version. Raise it whenever the judge refuses what it let pass before: certificates of others are read,
# and promote nothing. Certificates that name none are of version 1.
JUDGE = 2


class CertificateError(ValueError):
    """A certificate is malformed, not signed by a trusted key, or cannot be issued. The message names the field."""


def read(envelope: object, trusted: Mapping[str, Ed25519PublicKey]) -> tuple[dict[str, Any], str]:
    """(predicate, signer's key id) of a certificate. Raises CertificateError."""
    try:
        payload, key = open_envelope(envelope, PAYLOAD_TYPE, trusted)
        statement = json.loads(payload)
    except (SealError, ValueError) as error:
        raise CertificateError(str(error)) from error
    if not isinstance(statement, dict) or statement.get("_type") != STATEMENT_TYPE:
        raise CertificateError("_type: not an in-toto statement")
    if statement.get("predicateType") != PREDICATE_TYPE or not isinstance(statement.get("predicate"), dict):
        raise CertificateError(f"predicateType: {statement.get('predicateType')!r} is not a kernel certificate")
    predicate = statement["predicate"]
    for name in ("issued_at", "commit", "candidate", "problem", "anchors", "verdict"):
        if name not in predicate:
            raise CertificateError(f"predicate.{name}: missing")
    # a signature covers the statement, not what a reader takes from it: subject and predicate must be of one source
    digests = {entry.get("name"): entry.get("digest", {}).get("sha256") for entry in statement.get("subject", [])}
    try:
        candidate = Candidate.from_json(predicate["candidate"])
    except CandidateError as error:
        raise CertificateError(f"predicate.candidate: {error}") from error
    if digests.get("candidate") != candidate.sha256 or digests.get("source") != candidate.source_sha256:
        raise CertificateError("subject: the digests are not those of the candidate in the predicate")
    return predicate, key


def certificate_sha256(envelope: Mapping[str, Any]) -> str:
    """A certificate's identity: the hash of its canonical JSON."""
    return fingerprint(envelope)


def ledger_head(envelope: Mapping[str, Any]) -> LedgerHead | None:
    """The end of the search's ledger that a certificate names; None of one that names none. Whose signature it
    bears is not asked here. Raises ValueError where it is no certificate."""
    found = unsigned(envelope).get("ledger")
    return None if found is None else LedgerHead.of(found)


def unsigned(envelope: Mapping[str, Any]) -> Mapping[str, Any]:
    """A certificate's predicate, its signature unread. Raises ValueError where it is no certificate."""
    try:
        predicate = json.loads(base64.b64decode(envelope["payload"], validate=True))["predicate"]
        predicate.get("verdict")
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no certificate ({type(error).__name__}: {error})") from error
    return predicate  # type: ignore[no-any-return]
