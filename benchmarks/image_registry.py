"""A registry on this machine, and what is published there: pushed, signed, and verified before it is pulled.

The registry is Debian's docker-registry, behind TLS. Debian has no cosign, and its skopeo is built without cosign's
signatures: what is tried is a GPG signature, by skopeo, which podman and CRI-O verify by the same policy file.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.certificates import Authority
from tests.processes import end, free_port


@dataclass(frozen=True)
class Registry:
    """Its `host:port`; `trust`: a folder with the authority that signs it, as buildah and skopeo take one."""

    place: str
    trust: Path


@contextmanager
def registry(folder: Path) -> Iterator[Registry]:
    """Empty, and gone afterwards, with what was pushed."""
    authority, port, trust = Authority.new("registry"), free_port(), folder / "trust"
    trust.mkdir(parents=True)
    (trust / "ca.crt").write_bytes(authority.pem)
    for name, data in zip(("tls.pem", "tls.key"), authority.issue("127.0.0.1"), strict=True):
        (folder / name).write_bytes(data)
    told = {
        "version": "0.1",
        "storage": {"filesystem": {"rootdirectory": str(folder / "blobs")}},
        "http": {
            "addr": f"127.0.0.1:{port}",
            "tls": {"certificate": str(folder / "tls.pem"), "key": str(folder / "tls.key")},
        },
    }
    (folder / "registry.yaml").write_text(yaml.safe_dump(told))
    with (folder / "registry.log").open("wb") as out:
        command = ["docker-registry", "serve", str(folder / "registry.yaml")]
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield Registry(f"127.0.0.1:{port}", trust)
    finally:
        end(process)


class Signer:
    """A person's GPG key, in a home of its own."""

    def __init__(self, home: Path, name: str) -> None:
        home.mkdir(mode=0o700)
        self.home, self.name = home, name
        self._gpg("--passphrase", "", "--quick-generate-key", name, "ed25519", "sign", "1d")
        self.public = home / "public.gpg"
        self._gpg("--output", str(self.public), "--export", name)

    def _gpg(self, *words: str) -> None:
        command = ["gpg", "--homedir", str(self.home), "--batch", "--quiet", *words]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr


class Publisher:
    """skopeo against one registry: signs what is there, and pulls only what a key signed."""

    def __init__(self, folder: Path, at: Registry) -> None:
        self._folder, self._at = folder, at
        self._signatures = folder / "registries.d"
        self._signatures.mkdir()
        beside = {"docker": {at.place: {"lookaside": (folder / "signatures").as_uri()}}}
        (self._signatures / "registry.yaml").write_text(yaml.safe_dump(beside))

    def digest(self, name: str) -> str:
        """Of what the registry has under `REPOSITORY:TAG`."""
        words = ["inspect", "--cert-dir", str(self._at.trust), "--format", "{{.Digest}}"]
        return self._skopeo(*words, f"docker://{self._at.place}/{name}").stdout.strip()

    def sign(self, name: str, signer: Signer) -> None:
        """Signs an image where it is: it is copied onto itself, and no layer is sent again."""
        at = f"docker://{self._at.place}/{name}"
        words = ["copy", "--src-cert-dir", str(self._at.trust), "--dest-cert-dir", str(self._at.trust)]
        ran = self._skopeo(*words, "--preserve-digests", "--sign-by", signer.name, at, at, home=signer.home)
        assert ran.returncode == 0, ran.stderr

    def refusal(self, repository: str, digest: str, signer: Signer) -> str:
        """Why an image may not be pulled where only what this person signed may; empty: it was pulled."""
        signed: dict[str, Any] = {"type": "signedBy", "keyType": "GPGKeys", "keyPath": str(signer.public)}
        signed |= {"signedIdentity": {"type": "matchRepository"}}
        policy = {"default": [{"type": "reject"}], "transports": {"docker": {self._at.place: [signed]}}}
        (self._folder / "policy.json").write_text(json.dumps(policy))
        words = ["--policy", str(self._folder / "policy.json"), "copy", "--src-cert-dir", str(self._at.trust)]
        words += ["--remove-signatures"]  # a folder has no place for them; they were verified by then
        into = f"oci:{self._folder / 'pulled'}:{digest[-8:]}"
        ran = self._skopeo(*words, f"docker://{self._at.place}/{repository}@{digest}", into)
        return ran.stderr.strip() if ran.returncode else ""

    def _skopeo(self, *words: str, home: Path | None = None) -> subprocess.CompletedProcess[str]:
        command = ["skopeo", "--registries.d", str(self._signatures), *words]
        environment = {"PATH": os.environ["PATH"], "HOME": str(self._folder), "TMPDIR": "/var/tmp"}
        environment |= {"GNUPGHOME": str(home)} if home else {}
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
