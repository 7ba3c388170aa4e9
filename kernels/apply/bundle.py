"""Writes the file for the job: `runtime.py` and `folds.py` with certified kernels, checked as they go in."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from collectors.seal import fingerprint
from kernels.candidate import Candidate
from kernels.certificate import CertificateError, read

FILE = "nightshift_kernels.py"
_IMPORT = "from kernels.apply.folds import FoldCasts\n"
_LAST_IMPORT = "import torch\n"
_PLACE = "KERNELS: list[dict[str, Any]] = []\n"


def kernel_record(envelope: Mapping[str, Any], trusted: Mapping[str, Ed25519PublicKey]) -> dict[str, Any]:
    """What the runtime needs of one certificate. Raises CertificateError where its signature or content is bad."""
    predicate, _ = read(envelope, trusted)
    candidate = Candidate.from_json(predicate["candidate"])
    if candidate.language == "cuda":
        raise CertificateError("candidate: CUDA C++ kernels have no Python entry to apply")
    verdict = predicate["verdict"]
    timed = verdict["domain"].get("timed") or []
    case = timed[0] if timed else _first_case(verdict)
    environment = verdict["environment"]
    return {
        "problem": predicate["problem"]["name"],
        "certificate": certificate_sha256(envelope),
        "candidate": candidate.sha256,
        "source": candidate.source,
        "source_sha256": candidate.source_sha256,
        "entry": candidate.entry,
        "dtype": case["dtype"],
        "sizes": case["params"],
        "bounds": [
            {"name": b.name, "low": b.low, "high": b.high, "multiple": b.multiple} for b in candidate.domain.bounds
        ],
        "status": verdict["status"],
        "architecture": environment.get("capability", "none"),
        "torch": environment.get("torch", "none"),
        "triton": environment.get("triton", "none"),
    }


def _first_case(verdict: Mapping[str, Any]) -> dict[str, Any]:
    raise CertificateError(f"verdict: {verdict.get('status')} names no case that was asked for")


def certificate_sha256(envelope: Mapping[str, Any]) -> str:
    """A certificate's identity: the hash of its canonical JSON."""
    return fingerprint(envelope)


def bundle(records: Sequence[Mapping[str, Any]]) -> str:
    """The text of the standalone file."""
    text = (Path(__file__).parent / "runtime.py").read_text(encoding="utf-8")
    if text.count(_PLACE) != 1:
        raise ValueError("runtime.py: the place for the kernels is not there")
    if text.count(_IMPORT) != 1:
        raise ValueError("runtime.py: the place for the graph pass is not there")
    folds = (Path(__file__).parent / "folds.py").read_text(encoding="utf-8")
    text = text.replace(_IMPORT, folds.partition(_LAST_IMPORT)[2])
    listed = json.dumps(json.dumps(list(records), sort_keys=True))
    return text.replace(_PLACE, f"KERNELS: list[dict[str, Any]] = json.loads(\n    {listed}\n)\n")


def write_bundle(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(bundle(records), encoding="utf-8")
    partial.replace(path)
