"""A search's memory on disk: one JSON line for every trial, the refused, the crashed and the slow ones too.

A run is a folder. `ledger.jsonl` is the truth: a line is on the disk (fsync) before the search acts on it, and one
torn by a crash is cut off when the run is opened again. Lines are chained (`kernels.loop.ledger_chain`), and
`head.json` names the last one: a line that was changed, removed, moved or cut off is found.
`candidates/SHA256.json` holds what was judged, written before its line. `run.json` holds what the search was asked.
One process at a time: the ledger is locked while it is open.

Two more forms are written from it. `results.tsv` is the same for eyes and spreadsheets, written anew on opening.
`git/` (where asked for) is the same as commits, for `git log`, `git show` and `git bisect`: every trial commits the
candidate's source and its ledger line; a trial that was not kept is followed by a commit that takes the source back
to the best. A trial whose commit is missing (the process was killed between the two) is written with the next one.
All goes to the branch `search`, wherever people left HEAD (a bisect, a branch of theirs), which comes back to it.
Their commits on it and their other files stay; of the two files that are ours, what is not committed goes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import IO, Any, Literal, get_args

from nightshift.collectors.base import Permanent
from nightshift.collectors.seal import SealError, canonical_json
from nightshift.kernels.candidate import Candidate, CandidateError
from nightshift.kernels.judge.verdict import Status
from nightshift.kernels.loop import ledger_chain
from nightshift.kernels.loop.ledger_chain import LINKS, Audit, LedgerHead

HEAD = "head.json"
SCHEMA = 1
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EIO,
            errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG)  # fmt: skip
"""The disk is full or cannot be written, or something else lies in a file's place."""
Decision = Literal["keep", "revert", "discard", "crash"]
"""keep: the best so far. revert: fit, but not better. discard: refused by the judge. crash: the machine's fault."""

_COLUMNS = ("trial", "generator", "rung", "decision", "status", "reason", "seconds", "speedup", "best_baseline",
            "candidate_sha256", "config", "hypothesis", "detail")  # fmt: skip


class LedgerError(ValueError):
    """A run's folder cannot be used. The message names the file and the line."""


@dataclass(frozen=True)
class Provenance:
    """What a trial's figures depend on beside the candidate. "none" or "unknown" where there is nothing to name."""

    commit: str
    gpu: str
    container: str


@dataclass(frozen=True)
class Line:
    """One trial. seconds: the candidate's median; baselines: seconds of each baseline raced in the same rounds.

    trial counts from 1 in a run. rung: how precisely it was timed; full: by a whole verdict. of: the trial that
    first judged the same candidate (0: this one). speedup: (low, point, high) over the race's fastest baseline.
    took_s: the judge's time. at_s: Unix time. tokens: what its author used to write it. work: `Verdict.work` of its
    case.
    """

    trial: int
    at_s: float
    seed: int
    commit: str
    gpu: str
    container: str
    generator: str
    problem: str
    case: Mapping[str, Any]
    config: Mapping[str, int | str]
    hypothesis: str
    candidate_sha256: str
    rung: int
    decision: Decision
    status: str
    reason: str
    detail: str
    stage: str = ""
    of: int = 0
    seconds: float = math.nan
    baselines: Mapping[str, float] = field(default_factory=dict)
    speedup: tuple[float, float, float] = (math.nan, math.nan, math.nan)
    floor_s: float = math.nan
    took_s: float = math.nan
    secret: str = ""
    tokens: int = 0
    full: bool = False
    work: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        plain = {k: _plain(v) for k, v in asdict(self).items() if k != "work" or v}  # older lines have none
        return {"schema": SCHEMA, **plain}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Line:
        """Raises LedgerError that names the field."""
        if value.get("schema") != SCHEMA:
            raise LedgerError(f"schema: {value.get('schema')!r}, this version reads {SCHEMA}")
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(value) - known - {"schema"})
        if unknown:
            raise LedgerError(f"unknown field {unknown[0]!r}")
        record = {k: v for k, v in value.items() if k != "schema"}
        for name, (fits, what) in _CHECKS.items():
            if name in record and not fits(record[name]):
                raise LedgerError(f"{name}: {str(record[name])[:80]!r} {what}")
        for name in ("seconds", "floor_s", "took_s"):
            record[name] = _number(record.get(name))
        record["speedup"] = tuple(_number(x) for x in record.get("speedup", (None,) * 3))
        record["baselines"] = {k: _number(v) for k, v in record.get("baselines", {}).items()}
        try:
            return cls(**record)
        except TypeError as error:
            raise LedgerError(str(error)) from error


def _is_case(value: Any) -> bool:
    whole = isinstance(value, Mapping) and {"params", "dtype", "layout"} <= value.keys()
    return whole and isinstance(value["params"], Mapping)


_TEXTS = ("commit", "gpu", "container", "generator", "problem", "hypothesis", "candidate_sha256", "reason",
          "detail", "stage")  # fmt: skip
_BYTES = re.compile("([0-9a-fA-F]{2})*")
_CHECKS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "decision": (lambda value: value in get_args(Decision), f"is none of {', '.join(get_args(Decision))}"),
    # type(), not isinstance(): True would pass for 1
    **dict.fromkeys(("trial", "seed", "rung", "of", "tokens"), (lambda value: type(value) is int, "is none")),
    **dict.fromkeys(_TEXTS, (lambda value: isinstance(value, str), "is none")),
    "at_s": (lambda value: type(value) in (int, float), "is none"),
    **dict.fromkeys(("config", "baselines", "work"), (lambda value: isinstance(value, Mapping), "is none")),
    "status": (lambda value: value in list(Status), "is none"),
    "full": (lambda value: isinstance(value, bool), "is neither true nor false"),
    "case": (_is_case, "is none"),
    "speedup": (lambda value: isinstance(value, list | tuple) and len(value) == 3, "is none"),
    "secret": (lambda value: isinstance(value, str) and bool(_BYTES.fullmatch(value)), "is no hexadecimal number"),
}
"""Field → what it has to be, and what to say where it is not. A field that is missing is `Line`'s to refuse."""


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str) and not value.isascii():  # half a character, of a model's text, has no canonical form
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    return value


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


class Ledger:
    """A run's folder, open for writing. Use as a context manager."""

    def __init__(self, folder: Path, run: Mapping[str, Any] | None = None) -> None:
        """`run`: what the search was asked, for a new run; an old one must have been asked the same.

        Raises LedgerError: another process has it open, it was asked something else, or a line is malformed or not
        as it was written.
        """
        self.folder = folder
        (folder / "candidates").mkdir(parents=True, exist_ok=True)
        self._file = _locked(folder / "ledger.jsonl", folder)
        try:
            if run is not None and not asked_the_same(folder / "run.json", run):
                write_whole(folder / "run.json", json.dumps(run, indent=1) + "\n")
            # before anything is written: a search does not go on from a ledger that was changed
            self.lines, found = _sound(folder)
            _cut_torn(folder / "ledger.jsonl")
            self.head = found.head
            self._table()
        except (LedgerError, OSError):
            self._file.close()
            raise

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *details: object) -> None:
        self._file.close()

    def keep(self, candidate: Candidate) -> None:
        """Put a candidate's whole text on the disk; the same one twice is one file."""
        path = self.folder / "candidates" / f"{candidate.sha256}.json"
        if not path.exists():
            write_whole(path, json.dumps(candidate.to_json(), indent=1) + "\n")

    def add(self, line: Line) -> None:
        """One more trial; on the disk when this returns."""
        if line.trial != len(self.lines) + 1:
            raise LedgerError(f"trial: {line.trial} follows {len(self.lines)}")
        try:
            record = ledger_chain.sealed(line.to_json(), self.head.hash)
        except SealError as error:
            raise LedgerError(f"trial {line.trial}: {error}") from error
        self._file.write(canonical_json(record) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.lines.append(line)
        self.head = LedgerHead(line.trial, record["hash"])
        write_whole(
            self.folder / HEAD, json.dumps(self.head.to_json()) + "\n"
        )  # behind the line: never ahead of it
        with (self.folder / "results.tsv").open("a", encoding="utf-8", errors="replace") as table:
            table.write(_row(line))

    def _table(self) -> None:
        text = "\t".join(_COLUMNS) + "\n" + "".join(_row(line) for line in self.lines)
        write_whole(self.folder / "results.tsv", text)


def asked_the_same(path: Path, question: Mapping[str, Any]) -> bool:
    """Whether a folder was asked this before; False where it was asked nothing. Raises LedgerError."""
    if not path.exists():
        return False
    before = _asked_of(path)
    # as it would be read again: tuples come back as lists
    if before != json.loads(json.dumps(question)):
        changed = sorted(k for k in {*before, *question} if before.get(k) != question.get(k))
        raise LedgerError(f"{path}: this run was asked something else ({', '.join(changed)})")
    return True


def _locked(path: Path, folder: Path) -> IO[bytes]:
    """A file that nobody else has open so; the lock ends with the process. Raises LedgerError."""
    file = path.open("a+b")
    try:
        # the kernel gives it back when the process ends, however it ends: a lock file would outlive a kill
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise LedgerError(f"{folder}: another search has this run open") from error
    return file


@contextlib.contextmanager
def locked(path: Path, folder: Path) -> Iterator[None]:
    """Holds a file's lock. Raises LedgerError where another process does."""
    with _locked(path, folder):
        yield


@contextlib.contextmanager
def on_disk(folder: Path) -> Iterator[None]:
    """Tells where the disk gave out, as Permanent. What was judged until then stands in the ledgers."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        place = error.filename or folder
        raise Permanent(f"{place}: {error.strerror}; run it again, and it goes on where it was") from error


def read_run(folder: Path) -> tuple[dict[str, Any], list[Line]]:
    """What a run was asked and its trials, without locking or changing it. Raises LedgerError."""
    return _asked(folder), _sound(folder)[0]


def read_audit(
    folder: Path, heads: Mapping[str, LedgerHead] | None = None
) -> tuple[dict[str, Any], list[Line], Audit]:
    """The same for a report: lines that are not as they were written are read all the same, and named. heads: what
    other places name as the ledger's end. Raises LedgerError where a line cannot be read; it names all such."""
    path = folder / "ledger.jsonl"
    found = _audit(folder, heads or {})
    try:
        return _asked(folder), _read(path), found
    except LedgerError as error:
        listed = [f"{path}: {one}" for one in found.findings]
        raise LedgerError("\n".join([*listed, str(error)])) from error


def _sound(folder: Path) -> tuple[list[Line], Audit]:
    path = folder / "ledger.jsonl"
    if not path.exists():
        raise LedgerError(f"{folder}: holds no ledger.jsonl")
    lines, found = _read(path), _audit(folder, {})
    if found.findings:
        raise LedgerError(f"{path}: {'; '.join(map(str, found.findings))}: restore the file, or use another folder")
    return lines, found


def _audit(folder: Path, heads: Mapping[str, LedgerHead]) -> Audit:
    asked, path = _asked(folder), folder / HEAD
    if path.exists():
        try:
            heads = {HEAD: LedgerHead.of(json.loads(path.read_text())), **heads}
        except (OSError, ValueError, RecursionError) as error:
            raise LedgerError(f"{path}: {error}") from error
    names = {"schema", *(f.name for f in fields(Line))}
    try:
        return ledger_chain.audit((folder / "ledger.jsonl").read_bytes(), asked, heads, names)
    except SealError as error:
        raise LedgerError(f"{folder / 'run.json'}: {error}") from error


def _asked(folder: Path) -> dict[str, Any]:
    path = folder / "run.json"
    return _asked_of(path) if path.exists() else {}


def _asked_of(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise LedgerError(f"{path}: {error}") from error
    if not isinstance(value, dict):
        raise LedgerError(f"{path}: no JSON object")
    return value


def read_candidate_of(folder: Path, sha256: str) -> Candidate:
    """A judged candidate by its hash. Raises LedgerError where it is missing or was changed."""
    path = folder / "candidates" / f"{sha256}.json"
    try:
        found = Candidate.from_json(json.loads(path.read_text()))
    except (OSError, ValueError, CandidateError) as error:
        raise LedgerError(f"{path}: {error}") from error
    if found.sha256 != sha256:
        raise LedgerError(f"{path}: its content has another hash ({found.sha256[:16]}…)")
    return found


def _cut_torn(path: Path) -> None:
    """Takes off a last line that a crash tore: it was never acted on."""
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        with path.open("r+b") as file:
            file.truncate(whole)
            os.fsync(file.fileno())


def _read(path: Path) -> list[Line]:
    lines = []
    for number, text in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        try:
            record = json.loads(text)
            line = Line.from_json({name: value for name, value in record.items() if name not in LINKS})
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise LedgerError(f"{path}:{number}: {error}") from error
        # a ledger of an older version has no chain: its numbers are all that shows a missing line
        if line.trial != number:
            raise LedgerError(f"{path}:{number}: trial {line.trial}")
        lines.append(line)
    return lines


def _row(line: Line) -> str:
    best = min(line.baselines, key=lambda k: line.baselines[k], default="")
    config = " ".join(f"{k}={v}" for k, v in line.config.items())
    cells = {
        **asdict(line),
        "rung": "full" if line.full else line.rung,
        "seconds": f"{line.seconds:.9f}" if math.isfinite(line.seconds) else "",
        "speedup": f"{line.speedup[1]:.4f}" if math.isfinite(line.speedup[1]) else "",
        "best_baseline": best,
        "config": config,
    }
    return "\t".join(" ".join(str(cells[name]).split()) for name in _COLUMNS) + "\n"


def write_whole(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Writes a file whole or not at all; it is on the disk when this returns."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(partial, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(content if isinstance(content, bytes) else content.encode(errors="replace"))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


_IDENTITY = ("-c", "user.name=nightshift", "-c", "user.email=nightshift@localhost", "-c", "commit.gpgsign=false",
             "-c", "core.hooksPath=/dev/null")  # fmt: skip
_BRANCH = "refs/heads/search"
_SUBJECT = re.compile(r"(Trial|Revert) ([0-9]+): ")
_FILES = ("candidate", "trial.json")


class GitBook:
    """The repository beside a ledger. Raises LedgerError where git is missing or fails."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._folder = ledger.folder / "git"
        self._folder.mkdir(exist_ok=True)
        self._git("init", "-q", "-b", "search")  # also where one was broken off; the same again changes nothing
        for lock in (self._folder / ".git").rglob("*.lock"):
            lock.unlink()  # of a git that was killed: the ledger is open here alone
        self._git("symbolic-ref", "HEAD", _BRANCH)
        (self._folder / ".git" / "index").unlink(missing_ok=True)  # a kill or a crash may have damaged it
        self._git("reset", "-q")  # made anew of the branch; files stay

    def write(self) -> None:
        """Commit every trial of the ledger that has no commit yet."""
        done = self._written()
        best: Line | None = None
        for line in self._ledger.lines:
            if line.trial > done:
                self._commit(line)
                if line.decision != "keep":
                    self._take_back(line, best)
            if line.decision == "keep":
                best = line

    def _written(self) -> int:
        """The last trial with a commit, and its way back where it needed one."""
        if not self._git("for-each-ref", _BRANCH):
            return 0
        subjects = self._git("log", "--first-parent", "--format=%s", _BRANCH).splitlines()
        told = next((found for text in subjects if (found := _SUBJECT.match(text))), None)
        if told is None:
            return 0
        number = int(told[2])
        if not 0 < number <= len(self._ledger.lines):
            raise LedgerError(f"{self._folder}: tells of trial {number}, the ledger of {len(self._ledger.lines)}")
        line = self._ledger.lines[number - 1]
        if line.decision != "keep" and told[1] != "Revert":
            kept = [x for x in self._ledger.lines[: number - 1] if x.decision == "keep"]
            self._take_back(line, kept[-1] if kept else None)
        return number

    def _commit(self, line: Line) -> None:
        self._put(line)
        (self._folder / "trial.json").write_text(json.dumps(line.to_json(), indent=1) + "\n")
        said = f"Trial {line.trial}: {line.decision}, {line.status} ({line.reason})"
        self._save(said, f"{line.hypothesis}\n\n{line.detail}")

    def _take_back(self, line: Line, best: Line | None) -> None:
        if best is None:
            (self._folder / "candidate").unlink(missing_ok=True)
        else:
            self._put(best)
        self._save(f"Revert {line.trial}: back to {f'trial {best.trial}' if best else 'nothing'}", "")

    def _put(self, line: Line) -> None:
        candidate = read_candidate_of(self._ledger.folder, line.candidate_sha256)
        (self._folder / "candidate").write_text(candidate.source)

    def _save(self, subject: str, body: str) -> None:
        self._git("update-index", "--add", "--remove", *_FILES)  # whatever the user's settings ignore
        # git ends a message at a NUL, which a candidate's error may hold
        said = f"{subject}\n\n{body or '-'}".replace("\0", "\ufffd")
        self._git(*_IDENTITY, "commit", "-q", "--allow-empty", "--cleanup=whitespace", "-F", "-", said=said)

    def _git(self, *words: str, said: str = "") -> str:
        outer = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # of a hook
        outer["GIT_DIR"] = ".git"  # where it is damaged, git would look for one around it: the user's own project
        try:
            done = subprocess.run(
                ["git", *words], cwd=self._folder, env=outer, input=said, capture_output=True, encoding="utf-8",
                errors="replace", check=True, timeout=60,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            said = getattr(error, "stderr", "") or str(error)
            raise LedgerError(f"{self._folder}: git {words[0]}: {said.strip()[:300]}") from error
        return done.stdout.strip()
