"""Promoted kernels in a folder: each with its certificate, where it came from, and who let it in or out.

    REGISTRY/kernels/SHA256/certificate.json    the signed certificate; SHA256 is its own hash
    REGISTRY/kernels/SHA256/history.jsonl       one line per move: state, by, why, at, plan
    REGISTRY/demoted.json                       what jobs must not use any more; they read it (kernels.apply)
    REGISTRY/mismatches/*.json                  what jobs' shadow checks found; read by `collect_mismatches`

States: proposed → canary (some jobs, shadow-checked often) → active; from each to demoted, which is final: a kernel
that was wrong once needs a new certificate. Nothing here decides who may promote: that is the gate's. Moves are
made one at a time, whoever makes them (`.lock`); a line that a crash tore is no move.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping
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


_NAME = re.compile(r"[0-9a-f]{64}")
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
        """Demoted once, demoted for good."""
        moves = [move.state for move in self.history]
        return State.demoted if State.demoted in moves else moves[-1]

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
        with self._alone():
            if not _history(folder):
                folder.mkdir(parents=True, exist_ok=True)
                _replace(folder / "certificate.json", json.dumps(envelope, indent=1) + "\n")
                self._append(sha256, Move(State.proposed, by, why, at_s))
        return self.entry(sha256)

    def check(self, envelope: Mapping[str, Any]) -> None:
        """Raises CertificateError where a certificate may not come in: by signature, content or verdict."""
        predicate, _ = read(envelope, self._trusted)
        try:
            kernel_record(envelope, self._trusted)
        except (KeyError, TypeError, AttributeError) as error:
            raise CertificateError(f"predicate.verdict: {type(error).__name__}: {error}") from error
        if predicate["verdict"]["status"] not in ("faster", "inconclusive", "correct"):
            raise CertificateError(f"status: {predicate['verdict']['status']} is not worth a place in the registry")

    def move(self, certificate: str, state: State, by: str, why: str, at_s: float, plan_sha256: str = "") -> Entry:
        """Moves a kernel on. Raises RegistryError where it cannot go there, or an approved plan is missing."""
        with self._alone():
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
            with self._alone():
                self._write_demotions()
            return entry
        return self.move(entry.certificate, State.demoted, by, why, at_s)

    def collect_mismatches(self, at_s: float) -> list[Entry]:
        """Demotes every kernel that a job's shadow check found wrong; those that were. What was demoted before, and
        did not come into the list for the jobs, comes into it now."""
        gone = []
        for path in sorted((self.folder / "mismatches").glob("*.json")):
            try:
                note = json.loads(path.read_text())
                certificate, why = str(note["certificate"]), str(note["why"])[:300]
                entry = self.entry(certificate)
            except (OSError, ValueError, KeyError, TypeError, RecursionError):
                continue  # half-written, or about a kernel that is not ours
            if entry.state is not State.demoted:
                gone.append(self.demote(certificate, "shadow check", f"rank {note.get('rank', '?')}: {why}", at_s))
        if not self._all_told():
            with self._alone():
                self._write_demotions()
        return gone

    def _all_told(self) -> bool:
        """Whether the list for the jobs names every demoted kernel: a crash or a full disk may come between."""
        try:
            listed = {item["certificate"] for item in json.loads((self.folder / "demoted.json").read_text())}
        except FileNotFoundError:
            listed = set()
        except (OSError, ValueError, TypeError, KeyError):
            return False
        for name in self._names():
            with contextlib.suppress(RegistryError):
                if self.entry(name).state is State.demoted and name not in listed:
                    return False
        return True

    def entry(self, certificate: str) -> Entry:
        """By the certificate's hash, or by the beginning of one. Raises RegistryError."""
        names = [p.name for p in (self.folder / "kernels").glob(f"{certificate}*")] if certificate.isalnum() else []
        if len(names) != 1:
            raise RegistryError(f"{certificate[:64]!r}: {len(names)} kernels of that name")
        folder = self.folder / "kernels" / names[0]
        try:
            envelope = json.loads((folder / "certificate.json").read_text())
            history = tuple(_move(json.loads(line)) for line in _history(folder))
            predicate, _ = read(envelope, self._trusted)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RegistryError(f"{folder}: {error}") from error
        if certificate_sha256(envelope) != names[0] or not history:
            raise RegistryError(f"{folder}: the certificate is not the one that was taken in")
        return Entry(names[0], envelope, predicate, history)

    def entries(self) -> list[Entry]:
        """All kernels, those in use first."""
        order = list(State)
        found = [self.entry(name) for name in self._names()]
        return sorted(found, key=lambda entry: (order.index(entry.state) % 3, entry.problem, entry.certificate))

    def _names(self) -> list[str]:
        """The kernels that were taken in. Where that broke off, or something else lies there, is none."""
        listed = sorted((self.folder / "kernels").iterdir())
        return [path.name for path in listed if _NAME.fullmatch(path.name) and _history(path)]

    def records(self, states: tuple[State, ...] = (State.canary, State.active)) -> list[dict[str, Any]]:
        """What a job's file takes of the kernels in these states, the newest first; of one case on one machine only
        the newest. A job takes the first that fits it, of matrix products one for each shape."""
        found: dict[tuple[Any, ...], dict[str, Any]] = {}
        entries = [entry for entry in self.entries() if entry.state in states]
        for entry in sorted(entries, key=lambda entry: -entry.history[-1].at_s):
            record = kernel_record(entry.envelope, self._trusted)
            where = (record[name] for name in ("problem", "dtype", "architecture", "torch", "triton"))
            found.setdefault((*where, *sorted(record["sizes"].items())), record)
        return list(found.values())

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """No other process moves a kernel meanwhile: what was demoted could be promoted past it."""
        try:
            with (self.folder / ".lock").open("a") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                yield
        except OSError as error:
            raise RegistryError(f"{self.folder}: cannot be written: {error.strerror}") from error

    def _append(self, certificate: str, move: Move) -> None:
        path = self.folder / "kernels" / certificate / "history.jsonl"
        with path.open("ab") as file:
            torn = path.read_bytes()
            file.truncate(torn.rfind(b"\n") + 1)
            file.write(json.dumps(asdict(move), sort_keys=True).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def _write_demotions(self) -> None:
        """All that are demoted, those too that were removed from the registry since, and those whose folder is
        damaged: no other's damage may keep a demotion from the jobs."""
        path = self.folder / "demoted.json"
        gone: dict[str, dict[str, Any]] = {}
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            gone = {str(item["certificate"]): item for item in json.loads(path.read_text())}
        for name in self._names():
            gone.pop(name, None)
            try:
                entry = self.entry(name)
            except RegistryError as error:
                gone[name] = {"certificate": name, "why": f"damaged: {error}"[:300], "at_s": 0.0}
                continue
            if entry.state is State.demoted:
                move = next(move for move in entry.history if move.state is State.demoted)
                gone[name] = {"certificate": name, "why": move.why, "at_s": move.at_s}
        _replace(path, json.dumps(list(gone.values()), indent=1) + "\n")


def _history(folder: Path) -> list[bytes]:
    """The whole lines of a kernel's history; none where there is none yet."""
    try:
        text = (folder / "history.jsonl").read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return []
    return text[: text.rfind(b"\n") + 1].splitlines()


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
