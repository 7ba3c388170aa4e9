"""A registry's kernels as an OCI image layout: what registries, mirrors and signing tools of a cluster can carry.

    LAYOUT/oci-layout, index.json, blobs/sha256/…      (OCI image specification 1.1, image-layout.md)

Each kernel is an artifact: a manifest whose artifactType says so, with the signed certificate as its first layer
and the source as its second, and annotations that say where it came from. Its state is the tag's prefix
(`canary-…`, `active-…`, `demoted-…`). The folder stays what is written to; a layout is made of it and read into it,
so `oras copy --from-oci-layout` or `skopeo copy oci:…` move it between clusters. A certificate proves itself by its
signature; of the history only its last move travels.
"""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nightshift.collectors.seal import sha256_hex
from nightshift.kernels.certification.registry import CertificateState, Entry, Registry, RegistryError
from nightshift.kernels.loop.ledger import write_whole

ARTIFACT = "application/vnd.nightshift.kernel.v1+json"
CERTIFICATE = "application/vnd.in-toto+json"
SOURCE = "text/x-python"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
EMPTY = "application/vnd.oci.empty.v1+json"
TITLE = "org.opencontainers.image.title"
REFERENCE = "org.opencontainers.image.ref.name"
_PREFIX = "dev.nightshift.kernel."
_STATE = f"{_PREFIX}state"
# Of a file that is read: an index takes some 300 bytes a kernel.
_MOST_BYTES = 64 << 20


def write_layout(registry: Registry, folder: Path) -> int:
    """Makes the layout anew; blobs that are there stay. How many kernels. What is proposed only is not in it."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True, exist_ok=True)
    manifests = []
    for entry in registry.entries():
        if entry.state is CertificateState.proposed:
            continue
        text = _json(_manifest(entry, blobs))
        described = {**_blob(blobs, text, MANIFEST), "artifactType": ARTIFACT}
        tag = f"{entry.state}-{_component(entry.problem)}-{entry.certificate[:16]}"
        manifests.append({**described, "annotations": {REFERENCE: tag}})
    write_whole(folder / "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
    write_whole(folder / "index.json", _json({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}))
    return len(manifests)


def read_layout(registry: Registry, folder: Path, by: str, at_s: float) -> list[Entry]:
    """Takes a layout's kernels in, each as proposed: another cluster's approval is not this one's. The new ones.

    What is demoted there is demoted here. Raises RegistryError naming the file where a blob is missing, is not the
    one that its digest names, or holds no certificate of a trusted key (nothing is taken in then).
    """
    found: list[tuple[dict[str, Any], bool]] = []
    index = _read(folder / "index.json")
    for described in _listed(index, "manifests", folder / "index.json"):
        if described.get("artifactType", ARTIFACT) != ARTIFACT or described.get("mediaType") != MANIFEST:
            continue
        manifest = _object(_checked(folder, described), f"{folder}: {described.get('digest')}")
        if manifest.get("artifactType") != ARTIFACT:
            continue  # tools that copy layouts need not repeat it in the index
        layers = _listed(manifest, "layers", folder)
        certificate = next((layer for layer in layers if layer.get("mediaType") == CERTIFICATE), None)
        if certificate is None:
            raise RegistryError(f"{folder}: {described.get('digest')}: no certificate in it")
        told = (_annotation(described, REFERENCE).partition("-")[0], _annotation(manifest, _STATE))
        demoted = CertificateState.demoted in told
        found.append((_object(_checked(folder, certificate), f"{folder}: {certificate.get('digest')}"), demoted))
    for envelope, _ in found:
        registry.check(envelope)
    known = {entry.certificate for entry in registry.entries()}
    taken = []
    for envelope, demoted in found:
        entry = registry.propose(envelope, by, f"from {folder}", at_s)
        if demoted:
            entry = registry.demote(entry.certificate, by, f"demoted in {folder}", at_s)
        if entry.certificate not in known:
            taken.append(entry)
    return list({entry.certificate: entry for entry in taken}.values())  # two tags may name one kernel


def _manifest(entry: Entry, blobs: Path) -> dict[str, Any]:
    predicate, move = entry.predicate, entry.history[-1]
    environment = predicate["verdict"]["environment"]
    source = str(predicate["candidate"]["source"]).encode()
    layers = [
        {**_blob(blobs, _json(entry.envelope), CERTIFICATE), "annotations": {TITLE: "certificate.json"}},
        {**_blob(blobs, source, SOURCE), "annotations": {TITLE: f"{entry.problem.replace('/', '.')}.py"}},
    ]
    told = {
        "certificate": entry.certificate,
        "problem": entry.problem,
        "verdict": entry.summary,
        "state": entry.state.value,
        "by": move.by,
        "why": move.why,
        "plan-sha256": move.plan_sha256,
        "judge-commit": str(predicate["commit"]),
        "judge": str(predicate.get("judge", 1)),
        "gpu": str(environment.get("gpu", "none")),
        "driver": str(environment.get("driver", "none")),
        "torch": str(environment.get("torch", "none")),
        "triton": str(environment.get("triton", "none")),
        "container": str(environment.get("container", "none")),
    }
    return {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": ARTIFACT,
        "config": _blob(blobs, b"{}", EMPTY),
        "layers": layers,
        "annotations": {
            "org.opencontainers.image.created": str(predicate["issued_at"]),
            **{_PREFIX + name: value for name, value in told.items()},
        },
    }


def _blob(blobs: Path, content: bytes, kind: str) -> dict[str, Any]:
    digest = sha256_hex(content)
    path = blobs / digest
    if not path.exists() or path.read_bytes() != content:
        write_whole(path, content)
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}


def _checked(folder: Path, described: Mapping[str, Any]) -> bytes:
    """A blob's content. Raises RegistryError where it is not what the descriptor says."""
    kind, _, digest = str(described.get("digest", "")).partition(":")
    if kind != "sha256" or len(digest) != 64 or not digest.isalnum():
        raise RegistryError(f"{folder}: {described.get('digest')!r} is no SHA-256 digest")
    path = folder / "blobs" / "sha256" / digest
    content = _content(path)
    if sha256_hex(content) != digest or len(content) != described.get("size"):
        raise RegistryError(f"{path}: its content is not what its name says")
    return content


def _component(name: str) -> str:
    """A problem's name as a part of a tag: at most 128 characters in all, no two separators in a row."""
    return re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")[:80].strip("_") or "kernel"


def _read(path: Path) -> dict[str, Any]:
    return _object(_content(path), str(path))


def _content(path: Path) -> bytes:
    """Of a plain file of a size that ours can have: a layout comes from elsewhere, and a pipe has no end."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_BYTES:
            raise RegistryError(f"{path}: no plain file of at most {_MOST_BYTES >> 20} MiB")
        return path.read_bytes()
    except OSError as error:
        raise RegistryError(f"{path}: {error.strerror}") from error


def _object(content: bytes, place: str) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise RegistryError(f"{place}: {error}") from error
    if not isinstance(value, dict):
        raise RegistryError(f"{place}: no JSON object")
    return value


def _annotation(value: Mapping[str, Any], name: str) -> str:
    given = value.get("annotations")
    return str(given.get(name, "")) if isinstance(given, dict) else ""


def _listed(value: Mapping[str, Any], name: str, place: Path) -> list[dict[str, Any]]:
    found = value.get(name)
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise RegistryError(f"{place}: {name}: no list of descriptors")
    return found


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
