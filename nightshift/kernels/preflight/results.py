"""Results of preflight: signed, bound to serial numbers, with an expiry; and the folder that keeps them.

A folder holds one file of JSON lines a serial number (each line a DSSE envelope), so that a folder which many nodes
share is the fleet's history, too. The key is made at the first run, readable by its owner alone.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from nightshift.collectors.seal import SealError, Signer, canonical_json, open_envelope, trusted_keys
from nightshift.kernels.preflight.gpu_tests import GpuRun, Wrong
from nightshift.kernels.preflight.verdict import EarlierPass, GpuVerdict, PreflightState

PAYLOAD = "application/vnd.nightshift.preflight+json"
_KEY, _PUBLIC, _ENDING = "preflight.key", "preflight.pub", ".jsonl"


@dataclass(frozen=True)
class PreflightResult:
    """What is known of one GPU from one run. Times: Unix s."""

    serial: str
    node: str
    level: str
    state: PreflightState
    at_s: float
    expires_s: float
    record: Mapping[str, Any]

    def counts(self, now_s: float) -> bool:
        """Whether it lets work start now."""
        return self.state is PreflightState.PASSED and self.at_s <= now_s < self.expires_s


class ResultFolder:
    """Raises OSError where the folder cannot be used."""

    def __init__(self, path: Path, trusted: Sequence[Path] = ()) -> None:
        """trusted: public keys of other nodes; results of unknown signers are not read."""
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self._signer = _own_key(path)
        self.keys: dict[str, Ed25519PublicKey] = {self._signer.key_id: self._signer.public, **trusted_keys(trusted)}

    def add(
        self, node: str, run: GpuRun, verdict: GpuVerdict, software: str, at_s: float, valid_s: float
    ) -> PreflightResult:
        """Signs a run's result and keeps it. Only a pass has a time in which it counts."""
        expires_s = at_s + valid_s if verdict.state is PreflightState.PASSED else at_s
        record = {
            "serial": run.facts["serial"], "node": node, "level": run.level, "state": str(verdict.state),
            "at_s": at_s, "expires_s": expires_s, "software": software, "facts": dict(run.facts),
            "reasons": list(verdict.reasons), "chance": verdict.chance, "figures": run.figures,
            "products": run.products, "memory_bytes": run.memory_bytes, "sms": [run.sms_covered, run.sms],
            "clock_mhz": _known(run.clock_mhz), "temperature_c": _known(run.temperature_c),
             "wrong": [_wrong(w) for w in run.wrong],
            "took_s": run.took_s,
        }  # fmt: skip
        envelope = self._signer.seal(PAYLOAD, canonical_json(record))
        with self._file(run.facts["serial"]).open("a", encoding="utf-8") as file:
            file.write(json.dumps(envelope) + "\n")
        return _result(record)

    def of(self, serial: str) -> list[PreflightResult]:
        """A GPU's results, oldest first; lines that no trusted key signed, or of another GPU, do not count."""
        return [result for result in self._read(self._file(serial)) if result.serial == serial]

    def passes(self) -> list[EarlierPass]:
        """Every pass of every GPU in the folder, oldest first."""
        return [
            EarlierPass(
                r.serial, str(r.record["facts"].get("model", "")), str(r.record["software"]), r.level,
                _number(r.record["clock_mhz"]), _number(r.record["temperature_c"]), r.record["figures"],
            )
            for path in sorted(self.path.glob(f"*{_ENDING}"))
            for r in self._read(path)
            if r.state is PreflightState.PASSED
        ]  # fmt: skip

    def _read(self, path: Path) -> list[PreflightResult]:
        found = []
        with suppress(FileNotFoundError):
            for line in path.read_text(encoding="utf-8").splitlines():
                with suppress(SealError, ValueError, KeyError, TypeError):
                    payload, _ = open_envelope(json.loads(line), PAYLOAD, self.keys)
                    found.append(_result(json.loads(payload)))
        return sorted(found, key=lambda result: result.at_s)

    def missing(self, serials: Iterable[str], now_s: float) -> list[str]:
        """Those of these GPUs that have no pass which counts now. What came after a pass and refused ends it."""
        return [serial for serial in serials if not _stands(self.of(serial), now_s)]

    def _file(self, serial: str) -> Path:
        return self.path / f"{re.sub(r'[^A-Za-z0-9._-]', '_', serial)}{_ENDING}"


def _stands(results: Sequence[PreflightResult], now_s: float) -> bool:
    told = [result for result in results if result.state is not PreflightState.BROKEN]
    return bool(told) and told[-1].counts(now_s)


def _own_key(folder: Path) -> Signer:
    path = folder / _KEY
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return Signer.from_file(path)
    signer = Signer.generate()
    with os.fdopen(descriptor, "w") as file:
        file.write(signer.to_bytes().hex() + "\n")
    (folder / _PUBLIC).write_text(signer.public.public_bytes(Encoding.Raw, PublicFormat.Raw).hex() + "\n")
    return signer


def _result(record: Mapping[str, Any]) -> PreflightResult:
    return PreflightResult(
        str(record["serial"]), str(record["node"]), str(record["level"]), PreflightState(record["state"]),
        float(record["at_s"]), float(record["expires_s"]), record,
    )  # fmt: skip


def _wrong(wrong: Wrong) -> dict[str, Any]:
    return asdict(wrong) | {"places": sorted(wrong.places), "temperature_c": _known(wrong.temperature_c)}


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)
