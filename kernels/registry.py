"""Promoted kernels in a folder: each with its certificate, where it came from, and who let it in or out.

    REGISTRY/kernels/SHA256/certificate.json    the signed certificate; SHA256 is its own hash
    REGISTRY/kernels/SHA256/history.jsonl       one line per move: state, by, why, at, plan
    REGISTRY/demoted.json                       what jobs must not use any more; they read it (kernels.apply)
    REGISTRY/mismatches/*.json                  what jobs' shadow checks found; read by `collect_mismatches`

States: proposed → canary (some jobs, shadow-checked often) → active; from each to demoted, which is final: a kernel
that was wrong once needs a new certificate. Nothing here decides who may promote: that is the gate's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from kernels.apply.bundle import kernel_record
from kernels.envelope import CertificateError, certificate_sha256, read


class RegistryError(ValueError):
    """A move is not allowed, or the registry's folder is damaged. The message names the certificate or file."""


class State(StrEnum):
    proposed = "proposed"
    canary = "canary"
    active = "active"
    demoted = "demoted"


_MOVES = {
    State.proposed: {State.canary, State.demoted},
    State.canary: {State.active, State.demoted},
    State.active: {State.demoted},
    State.demoted: set(),
}


@dataclass(frozen=True)
class Move:
    """One line of a kernel's history. plan_sha256: the approved plan's, "" where none is needed (demotion)."""

    state: State
    by: str
    why: str
    at_s: float
    plan_sha256: str = ""


@dataclass(frozen=True)
class Entry:
    """One kernel of the registry."""

    certificate: str
    envelope: Mapping[str, Any]
    predicate: Mapping[str, Any]
    history: tuple[Move, ...]

    @property
    def state(self) -> State:
        return self.history[-1].state

    @property
    def problem(self) -> str:
        return str(self.predicate["problem"]["name"])

    @property
    def summary(self) -> str:
        """The verdict in words: status, speed-up on each case, GPU."""
        verdict = self.predicate["verdict"]
        cases: dict[str, Mapping[str, Any]] = {}
        for comparison in verdict["comparisons"]:
            known = cases.get(comparison["case"])
            if known is None or comparison["speedup"]["point"] < known["speedup"]["point"]:
                cases[comparison["case"]] = comparison
        told = [f"{c['speedup']['point']:.2f}× over {c['baseline']} on {name}" for name, c in cases.items()]
        return f"{verdict['status']}; {'; '.join(told) or 'not raced'}; {verdict['environment'].get('gpu', 'none')}"


class Registry:
    """The folder. `trusted`: whose certificates it takes."""

    def __init__(self, folder: Path, trusted: Mapping[str, Ed25519PublicKey]) -> None:
        self.folder = folder
        self._trusted = trusted
        try:
            (folder / "kernels").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RegistryError(f"{folder}: cannot hold a registry: {error.strerror}") from error

    def propose(self, envelope: Mapping[str, Any], by: str, why: str, at_s: float) -> Entry:
        """Takes a certificate in. The same one again changes nothing. Raises CertificateError."""
        self.check(envelope)
        sha256 = certificate_sha256(envelope)
        folder = self.folder / "kernels" / sha256
        if not (folder / "history.jsonl").exists():
            folder.mkdir(parents=True, exist_ok=True)
            _replace(folder / "certificate.json", json.dumps(envelope, indent=1) + "\n")
            self._append(sha256, Move(State.proposed, by, why, at_s))
        return self.entry(sha256)

    def check(self, envelope: Mapping[str, Any]) -> None:
        """Raises CertificateError where a certificate may not come in: by signature, content or verdict."""
        predicate, _ = read(envelope, self._trusted)
        kernel_record(envelope, self._trusted)
        if predicate["verdict"]["status"] not in ("faster", "inconclusive", "correct"):
            raise CertificateError(f"status: {predicate['verdict']['status']} is not worth a place in the registry")

    def move(self, certificate: str, state: State, by: str, why: str, at_s: float, plan_sha256: str = "") -> Entry:
        """Moves a kernel on. Raises RegistryError where it cannot go there, or an approved plan is missing."""
        entry = self.entry(certificate)
        if state not in _MOVES[entry.state]:
            raise RegistryError(f"{certificate[:16]}: it is {entry.state}, and cannot become {state}")
        if state is not State.demoted and len(plan_sha256) != 64:
            raise RegistryError(f"{certificate[:16]}: becoming {state} needs an approved plan")
        self._append(entry.certificate, Move(state, by, why, at_s, plan_sha256))
        if state is State.demoted:
            self._write_demotions()
        return self.entry(entry.certificate)

    def demote(self, certificate: str, by: str, why: str, at_s: float) -> Entry:
        """Out, for good. Jobs notice at their next start or step boundary. Already demoted: nothing changes."""
        entry = self.entry(certificate)
        if entry.state is State.demoted:
            self._write_demotions()
            return entry
        return self.move(entry.certificate, State.demoted, by, why, at_s)

    def collect_mismatches(self, at_s: float) -> list[Entry]:
        """Demotes every kernel that a job's shadow check found wrong; those that were."""
        gone = []
        for path in sorted((self.folder / "mismatches").glob("*.json")):
            try:
                note = json.loads(path.read_text())
                certificate, why = str(note["certificate"]), str(note["why"])[:300]
                entry = self.entry(certificate)
            except (OSError, ValueError, KeyError, TypeError):
                continue  # half-written, or about a kernel that is not ours
            if entry.state is not State.demoted:
                gone.append(self.demote(certificate, "shadow check", f"rank {note.get('rank', '?')}: {why}", at_s))
        return gone

    def entry(self, certificate: str) -> Entry:
        """By the certificate's hash, or by the beginning of one. Raises RegistryError."""
        names = [p.name for p in (self.folder / "kernels").glob(f"{certificate}*")] if certificate.isalnum() else []
        if len(names) != 1:
            raise RegistryError(f"{certificate[:64]!r}: {len(names)} kernels of that name")
        folder = self.folder / "kernels" / names[0]
        try:
            envelope = json.loads((folder / "certificate.json").read_text())
            lines = (folder / "history.jsonl").read_text().splitlines()
            history = tuple(_move(json.loads(line)) for line in lines)
            predicate, _ = read(envelope, self._trusted)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RegistryError(f"{folder}: {error}") from error
        if certificate_sha256(envelope) != names[0] or not history:
            raise RegistryError(f"{folder}: the certificate is not the one that was taken in")
        return Entry(names[0], envelope, predicate, history)

    def entries(self) -> list[Entry]:
        """All kernels, those in use first."""
        order = list(State)
        found = [self.entry(path.name) for path in sorted((self.folder / "kernels").iterdir())]
        return sorted(found, key=lambda entry: (order.index(entry.state) % 3, entry.problem, entry.certificate))

    def records(self, states: tuple[State, ...] = (State.canary, State.active)) -> list[dict[str, Any]]:
        """What a job's file takes of the kernels in these states; of one problem the newest."""
        newest: dict[tuple[str, str], Entry] = {}
        for entry in self.entries():
            if entry.state in states:
                record = kernel_record(entry.envelope, self._trusted)
                key = (entry.problem, record["architecture"])
                if key not in newest or newest[key].history[-1].at_s < entry.history[-1].at_s:
                    newest[key] = entry
        return [kernel_record(entry.envelope, self._trusted) for entry in newest.values()]

    def _append(self, certificate: str, move: Move) -> None:
        path = self.folder / "kernels" / certificate / "history.jsonl"
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(move), sort_keys=True) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _write_demotions(self) -> None:
        gone = [
            {"certificate": entry.certificate, "why": entry.history[-1].why, "at_s": entry.history[-1].at_s}
            for entry in self.entries()
            if entry.state is State.demoted
        ]
        _replace(self.folder / "demoted.json", json.dumps(gone, indent=1) + "\n")


def _move(value: Mapping[str, Any]) -> Move:
    return Move(
        State(value["state"]), str(value["by"]), str(value["why"]), float(value["at_s"]), value["plan_sha256"]
    )


def _replace(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
