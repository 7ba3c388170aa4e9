"""Promoted kernels in a folder: each with its certificate, where it came from, and who let it in or out.

    REGISTRY/kernels/SHA256/certificate.json    the signed certificate; SHA256 is its own hash
    REGISTRY/kernels/SHA256/history.jsonl       one line per move: state, by, why, at, plan
    REGISTRY/demoted.json                       what jobs must not use any more; they read it (kernels.apply)
    REGISTRY/mismatches/*.json                  what jobs' shadow checks found; read by `collect_mismatches`

States: proposed → canary (some jobs, shadow-checked often) → active; from each to demoted, which is final: a kernel
that was wrong once needs a new certificate. `promotable` decides whether a kernel's evidence is enough for the next
state; who may promote is the gate's. Moves are made one at a time, whoever makes them (`.lock`); a line that a
crash tore is no move. Their order is the file's: a clock that was set back changes nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from nightshift.kernels.apply.bundle import kernel_record
from nightshift.kernels.certification.envelope import CertificateError, certificate_sha256, read
from nightshift.kernels.certification.evidence import (
    CHANGED,
    FIELDS,
    NO,
    UNKNOWN,
    EvidenceReason,
    JobEnvironment,
    Objection,
    has,
    measured,
    record_of,
    slowest,
)
from nightshift.kernels.loop.ledger import write_whole


class RegistryError(ValueError):
    """A move is not allowed, or the registry's folder is damaged. The message names the certificate or file."""


class Damaged(RegistryError):
    """One kernel's folder cannot be used. The message names the file; the others stand."""


class CertificateState(StrEnum):
    proposed = "proposed"
    canary = "canary"
    active = "active"
    demoted = "demoted"


# `at_s` of what is damaged, and was not demoted by anybody.
_UNKNOWN_S = 0.0
_NAME = re.compile(r"[0-9a-f]{64}")
_MOVES = {
    CertificateState.proposed: {CertificateState.canary, CertificateState.demoted},
    CertificateState.canary: {CertificateState.active, CertificateState.demoted},
    CertificateState.active: {CertificateState.demoted},
    CertificateState.demoted: set(),
}


_FIT = ("faster", "slower", "inconclusive", "correct")


def promotable(
    record: Mapping[str, Any], environment: JobEnvironment, to: CertificateState = CertificateState.canary
) -> tuple[Objection, ...]:
    """Why a kernel may not become canary or active, by its evidence (`evidence.record_of`) and by where
    its jobs run; empty where it may.

    A canary is how the environment of its jobs becomes known, and the job's file checks torch, Triton and
    architecture at its start: there an unknown environment is only told. An active kernel needs a known one.
    """
    if not record:
        return (Objection(EvidenceReason.no_record),)
    # every objection is listed, not the first: whoever certifies again should have to do so once
    found = [Objection(NO[name]) for name in FIELDS if not has(record, name)]
    found += _race_objections(record)
    if not _states_gaps(record.get("not_checked")):
        found.append(Objection(EvidenceReason.gaps_unstated))
    if record.get("judge") != environment.judge:
        told = f"judge {record.get('judge')}, this is {environment.judge}"
        found.append(Objection(EvidenceReason.other_judge, told))
    for name in FIELDS:
        others = [value for value in environment.of(name) if value != record.get(name)]
        if others and has(record, name):
            told = f"certified with {record[name]}, {_whose(environment)} {', '.join(others)}"
            found.append(Objection(CHANGED[name], told))
    if to is CertificateState.active and environment.unknown:
        found.append(Objection(EvidenceReason.environment_unknown, ", ".join(environment.unknown)))
    return tuple(found)


def _states_gaps(gaps: Any) -> bool:
    # no verdict answers for everything: a list without a sentence was not made by a judge of today
    told = isinstance(gaps, list | tuple) and len(gaps) > 0
    return told and all(isinstance(x, str) and x.strip() for x in gaps)


def _whose(environment: JobEnvironment) -> str:
    return f"{', '.join(environment.jobs[:3])}:" if environment.jobs else "the fleet has"


def _race_objections(record: Mapping[str, Any]) -> list[Objection]:
    status, races = record.get("status"), record.get("raced")
    if status not in _FIT:
        return [Objection(EvidenceReason.not_fit, str(status)[:40])]
    if not isinstance(races, list | tuple) or not races:
        return [Objection(EvidenceReason.no_race)]
    if not all(isinstance(race, Mapping) and measured(race) for race in races):
        return [Objection(EvidenceReason.no_interval)]
    worst = slowest(record)
    assert worst is not None, "every race was measured"
    interval = f"{worst['point']:.3f} [{worst['low']:.3f}, {worst['high']:.3f}]"
    told = f"{interval} over {worst['baseline']} on {worst['case']}"
    if status == "slower" or any(race["high"] < 1.0 for race in races):
        return [Objection(EvidenceReason.race_lost, told)]
    if status != "faster" or any(race["low"] <= 1.0 for race in races):
        return [Objection(EvidenceReason.race_undecided, told)]
    return []


@dataclass(frozen=True)
class Move:
    """One line of a kernel's history. plan_sha256: the approved plan's, "" where none is needed (demotion)."""

    state: CertificateState
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
    def state(self) -> CertificateState:
        return _state(self.history)

    @property
    def problem(self) -> str:
        return str(self.predicate["problem"]["name"])

    @property
    def record(self) -> dict[str, Any]:
        """Its evidence."""
        return record_of(self.predicate)

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

    def propose(self, envelope: Mapping[str, Any], by: str, reason: str, at_s: float) -> Entry:
        """Takes a certificate in. The same one again changes nothing. Raises CertificateError."""
        self.check(envelope)
        sha256 = certificate_sha256(envelope)
        folder = self.folder / "kernels" / sha256
        with self._alone():
            if not _history(folder):
                folder.mkdir(parents=True, exist_ok=True)
                write_whole(folder / "certificate.json", json.dumps(envelope, indent=1) + "\n")
                self._append(sha256, Move(CertificateState.proposed, by, reason, at_s))
                told = self._told().get(sha256, {})
                if told.get("at_s", _UNKNOWN_S) != _UNKNOWN_S:  # its folder was removed since; a demotion is final
                    self._append(sha256, Move(CertificateState.demoted, by, str(told.get("why", "")), at_s))
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

    def move(
        self,
        certificate: str,
        state: CertificateState,
        by: str,
        reason: str,
        at_s: float,
        plan_sha256: str = "",
        environment: JobEnvironment = UNKNOWN,
    ) -> Entry:
        """Moves a kernel on. Raises RegistryError where it cannot go there, it is not promotable, or an approved
        plan is missing."""
        with self._alone():
            entry = self.entry(certificate)
            if state not in _MOVES[entry.state]:
                raise RegistryError(f"{certificate[:16]}: it is {entry.state}, and cannot become {state}")
            if state is not CertificateState.demoted and len(plan_sha256) != 64:
                raise RegistryError(f"{certificate[:16]}: becoming {state} needs an approved plan")
            objections = (
                promotable(entry.record, environment, state) if state is not CertificateState.demoted else ()
            )
            if objections:
                raise RegistryError(f"{certificate[:16]}: not promotable: {'; '.join(map(str, objections))}")
            self._append(entry.certificate, Move(state, by, reason, at_s, plan_sha256))
            if state is CertificateState.demoted:
                self._write_demotions()
            return self.entry(entry.certificate)

    def demote(self, certificate: str, by: str, reason: str, at_s: float) -> Entry:
        """Out, for good. Jobs notice at their next start or step boundary. Already demoted: nothing changes.

        A damaged kernel goes out as well, and its damage is raised once the jobs are told.
        """
        name = self._name(certificate)
        try:
            entry = self.entry(name)
        except Damaged as error:
            with self._alone():
                self._write_demotions()  # first: its history may be what is damaged
                self._append(name, Move(CertificateState.demoted, by, reason, at_s))
                self._write_demotions()
            raise Damaged(f"{error}; it is demoted, and jobs are told") from error
        if entry.state is CertificateState.demoted:
            with self._alone():
                self._write_demotions()
            return entry
        return self.move(entry.certificate, CertificateState.demoted, by, reason, at_s)

    def collect_mismatches(self, at_s: float) -> list[Entry]:
        """Demotes every kernel that a job's shadow check found wrong; those that were. What was demoted before, and
        did not come into the list for the jobs, comes into it now."""
        gone = []
        for path in sorted((self.folder / "mismatches").glob("*.json")):
            try:
                note = json.loads(path.read_text())
                name, why = self._name(str(note["certificate"])), str(note["why"])[:300]
            except (OSError, ValueError, KeyError, TypeError, RecursionError):
                continue  # half-written, or about a kernel that is not ours
            try:
                demoted = self.entry(name).state is CertificateState.demoted
            except RegistryError:
                demoted = name in self._told()
            if not demoted:
                with contextlib.suppress(Damaged):  # the jobs are told; `damaged` says why
                    gone.append(self.demote(name, "shadow check", f"rank {note.get('rank', '?')}: {why}", at_s))
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
            with contextlib.suppress(Damaged):
                if _state(self._moves(name)) is CertificateState.demoted and name not in listed:
                    return False
        return True

    def entry(self, certificate: str) -> Entry:
        """By the certificate's hash, or by the beginning of one. Raises RegistryError."""
        name = self._name(certificate)
        envelope, history = self._held(name)
        try:
            predicate, _ = read(envelope, self._trusted)
        except CertificateError as error:
            raise Damaged(f"{self.folder / 'kernels' / name / 'certificate.json'}: {error}") from error
        return Entry(name, envelope, predicate, history)

    def entries(self) -> list[Entry]:
        """All kernels whose folders are sound, those in use first. What is damaged, `damaged` names."""
        order = [
            CertificateState.active,
            CertificateState.canary,
            CertificateState.proposed,
            CertificateState.demoted,
        ]
        found = []
        for name in self._names():
            with contextlib.suppress(Damaged):
                found.append(self.entry(name))
        return sorted(found, key=lambda entry: (order.index(entry.state), entry.problem, entry.certificate))

    def damaged(self) -> dict[str, str]:
        """Kernels whose folder cannot be used, or whose certificate no trusted key signed: the file and why."""
        found = {}
        for name in self._names():
            try:
                self.entry(name)
            except Damaged as error:
                found[name] = str(error)
        return found

    def _held(self, name: str) -> tuple[Mapping[str, Any], tuple[Move, ...]]:
        """A kernel's certificate as it was taken in, whoever signed it, and its moves. Raises Damaged."""
        path = self.folder / "kernels" / name / "certificate.json"
        with _named(path):
            envelope = json.loads(path.read_text())
            if certificate_sha256(envelope) != name:
                raise ValueError("the certificate is not the one that was taken in")
        return envelope, self._moves(name)

    def _moves(self, name: str) -> tuple[Move, ...]:
        folder = self.folder / "kernels" / name
        with _named(folder / "history.jsonl"):
            history = tuple(_move(json.loads(line)) for line in _history(folder))
            if not history:
                raise ValueError("no move in it")
        return history

    def _name(self, certificate: str) -> str:
        names = [p.name for p in (self.folder / "kernels").glob(f"{certificate}*")] if certificate.isalnum() else []
        if len(names) != 1:
            raise RegistryError(f"{certificate[:64]!r}: {len(names)} kernels of that name")
        return names[0]

    def _names(self) -> list[str]:
        """The kernels that were taken in. Where that broke off, or something else lies there, is none."""
        listed = sorted((self.folder / "kernels").iterdir())
        return [path.name for path in listed if _NAME.fullmatch(path.name) and _begun(path)]

    def records(
        self, states: tuple[CertificateState, ...] = (CertificateState.canary, CertificateState.active)
    ) -> list[dict[str, Any]]:
        """What a job's file takes of the kernels in these states, the newest first; of one case on one machine only
        the newest. A job takes the first that fits it, of matrix products one for each shape."""
        found: dict[tuple[Any, ...], dict[str, Any]] = {}
        entries = [entry for entry in self.entries() if entry.state in states]
        for entry in sorted(entries, key=lambda entry: -entry.history[-1].at_s):
            record = kernel_record(entry.envelope, self._trusted)
            where = (record[name] for name in ("problem", "dtype", "gpu", "architecture", "torch", "triton"))
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
            # the half line of a crash was no move; left there, it would spoil the line that follows
            torn = path.read_bytes()
            file.truncate(torn.rfind(b"\n") + 1)
            file.write(json.dumps(asdict(move), sort_keys=True).encode() + b"\n")
            # on disk before anybody acts on it: a power cut must not take a demotion back
            file.flush()
            os.fsync(file.fileno())

    def _told(self) -> dict[str, dict[str, Any]]:
        """The list that the jobs read, by certificate; empty where it is not there or not to be read."""
        try:
            listed = json.loads((self.folder / "demoted.json").read_text())
            return {str(item["certificate"]): dict(item) for item in listed}
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return {}

    def _write_demotions(self) -> None:
        """All that are demoted, those too that were removed from the registry since, and those whose folder is
        damaged: no other's damage may keep a demotion from the jobs. Whose keys are trusted here is no matter."""
        gone = self._told()
        for name in self._names():
            try:
                moves = self._moves(name)
                if _state(moves) is CertificateState.demoted:
                    move = next(move for move in moves if move.state is CertificateState.demoted)
                    gone[name] = {"certificate": name, "why": move.why, "at_s": move.at_s}
                    continue
                self._held(name)
            except Damaged as error:
                gone.setdefault(name, {"certificate": name, "why": f"damaged: {error}"[:300], "at_s": _UNKNOWN_S})
            else:
                gone.pop(name, None)
        write_whole(self.folder / "demoted.json", json.dumps(list(gone.values()), indent=1) + "\n")


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """What is wrong with a file is told with its path, as Damaged."""
    try:
        yield
    except OSError as error:
        raise Damaged(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damaged(f"{path}: {type(error).__name__}: {error}") from error


def _begun(folder: Path) -> bool:
    try:
        return bool(_history(folder))
    except OSError:
        return True  # it is there, and cannot be read


def _state(history: Sequence[Move]) -> CertificateState:
    """Demoted once, demoted for good."""
    moves = [move.state for move in history]
    return CertificateState.demoted if CertificateState.demoted in moves else moves[-1]


def _history(folder: Path) -> list[bytes]:
    """The whole lines of a kernel's history; none where there is none yet."""
    try:
        text = (folder / "history.jsonl").read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return []
    return text[: text.rfind(b"\n") + 1].splitlines()


def _move(value: Mapping[str, Any]) -> Move:
    return Move(
        CertificateState(value["state"]),
        str(value["by"]),
        str(value["why"]),
        float(value["at_s"]),
        value["plan_sha256"],
    )
