"""A run's folder: one process at a time, one question, the key that signs for it, and the peaks of its GPU.

    RUN/run.json     what was asked: a folder goes on with that, and with nothing else
    RUN/signer.key   made where no key was named; signer.pub beside it
    RUN/peaks.json   the GPU's measured peaks

Each file is there whole or not at all, so a run that was killed anywhere can be taken up again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from nightshift.collectors.base import Permanent
from nightshift.collectors.seal import SealError, Signer
from nightshift.kernels.loop.ledger import LedgerError, asked_the_same, locked, on_disk, write_whole
from nightshift.kernels.profile.roofline import Peaks

ASKED = "run.json"


@contextlib.contextmanager
def held(run: Path, question: Mapping[str, Any]) -> Iterator[bool]:
    """The folder for this process alone; whether it was asked the same before. Raises Permanent."""
    try:
        run.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Permanent(f"--run {run}: {error.strerror}") from error
    with on_disk(run):
        try:
            with locked(run / "run.lock", run):
                yield asked_the_same(run / ASKED, question)
        except LedgerError as error:
            raise Permanent(str(error)) from error


def keep_question(run: Path, question: Mapping[str, Any]) -> None:
    """From here on the folder holds answers to this."""
    write_json(run / ASKED, question)


def question(kind: str, what: str, **more: str) -> dict[str, str]:
    """What a run is asked; a trace and a model's file by their content too. Raises Permanent."""
    asked = {kind: what, **more}
    path = Path(what.partition(":")[0] if kind == "model" else what)
    if kind in ("trace", "model"):
        try:
            with path.open("rb") as file:
                asked["content"] = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise Permanent(f"{path}: {error.strerror}") from error
    return asked


def signer_of(key: Path | None, run: Path) -> Signer:
    """The named key's, or the run's own, made where it has none. Raises Permanent."""
    path = key if key is not None else run / "signer.key"
    if key is None and not path.exists():
        write_whole(path, Signer.generate().to_bytes().hex() + "\n", mode=0o600)
    try:
        signer = Signer.from_bytes(bytes.fromhex(path.read_text().strip()))
    except (OSError, ValueError, SealError) as error:
        raise Permanent(f"{path}: not a private key ({error})") from error
    if key is None:
        public = signer.public.public_bytes(Encoding.Raw, PublicFormat.Raw).hex()
        write_whole(run / "signer.pub", public + "\n")
    return signer


def peaks_of(run: Path, file: Path | None, device: str, probe: Callable[[str], Peaks]) -> Peaks | None:
    """The given peaks, this run's own, or a probe of this GPU; None on a CPU, whose peaks would mean nothing."""
    path = file if file is not None else run / "peaks.json"
    if path.exists() or file is not None:
        return Peaks.read(path)
    if device != "cuda":
        return None
    found = probe(device)
    write_json(path, found.to_json())
    return found


def write_json(path: Path, value: Any) -> None:
    write_whole(path, json.dumps(value, indent=1) + "\n")
