"""Asks Slurm by its own commands: each with a limit of time, and each failure with a reason and what to do.

The commands are the interface that every site has. They find their controller, and its backup, by slurm.conf, and
prove who asks by munge. JSON is read where a release has it; else the text of `scontrol show`, with times in Unix
s.
"""

from __future__ import annotations

import os
import re
import selectors
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from nightshift.collectors.base import Permanent, Temporary
from nightshift.collectors.frame import Reason
from nightshift.collectors.shared_settings import completed
from nightshift.collectors.slurm.answers import (
    ENDED_FIELDS,
    AnswerError,
    SlurmFailure,
    SlurmJob,
    SlurmNode,
    ended_of_text,
    jobs_of_text,
    nodes_of_text,
    read_jobs,
    read_nodes,
)

TIMEOUT_S = 20.0
"""A client waits for `MessageTimeout` (10 s) on each of two controllers before it gives up by itself."""
_ENDED_BADLY = (*("BOOT_FAIL", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"),)
_END = "nightshift-end"
_ASK_END = f"show hostnames {_END}[0-499]"
"""Ends an answer of a scontrol that reads lines. It asks no controller, and is longer than the buffer (4 KiB) in
which a scontrol without readline keeps what it says."""
_T = TypeVar("_T")


class SlurmAccess(BaseModel):
    """Which Slurm is asked, and by which commands."""

    model_config = ConfigDict(extra="forbid")

    commands: Path | None = Field(None, description="Folder with scontrol, sinfo and squeue; none: by PATH")
    conf: Path | None = Field(None, description="slurm.conf; none: where the commands look for it")

    def missing(self) -> list[str]:
        """What of it this machine does not have, without asking Slurm."""
        folder, found = self.commands and str(self.commands), []
        if none := [name for name in ("scontrol", "sinfo", "squeue") if shutil.which(name, path=folder) is None]:
            found.append(f"commands: no {', '.join(none)} in {folder or 'PATH'}")
        if self.conf is not None and not os.access(self.conf, os.R_OK):
            found.append(f"conf: {self.conf} cannot be read")
        return found


SlurmReach = Annotated[SkipJsonSchema[SlurmAccess], completed("slurm")]


class SlurmSilent(Temporary):
    """Slurm gives no answer: `reason` is for the source's status."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class SlurmRefused(Permanent):
    """Slurm answers, and says no: a right is missing, or what was asked for does not exist."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class NoJson(Exception):
    """This release, or its build, has no JSON for what was asked."""


_SILENT: tuple[tuple[str, Reason, str], ...] = (
    (
        r"[Mm]unge|auth_g_|authentication error|Invalid authentication credential",
        Reason.UNAUTHORISED,
        "munge gives or gets no valid credential: is munged running, are keys and clocks the same everywhere?",
    ),
    (
        r"Zero Bytes were transmitted",
        Reason.UNAUTHORISED,
        "slurmctld did not answer an expired or foreign munge credential: compare clocks and keys",
    ),
    (
        r"Problem talking to the database|slurmdbd",
        Reason.UNREACHABLE,
        "slurmdbd does not answer",
    ),
    (
        r"standby|Unable to (?:contact|establish)|[Cc]onnection (?:refused|timed out)|timed out|shutting down",
        Reason.UNREACHABLE,
        "no slurmctld answers: it is down or is failing over",
    ),
)
_REFUSED = re.compile(
    r"Invalid user id|[Pp]ermission denied|Access.*denied|not authorized|Only .*(?:root|operator)"
)
_NO_JSON = re.compile(r"unrecognized option '?--json|serializer|Unable to find plugin|invalid option.*json", re.I)


class SlurmClient:
    """Reads. Every method raises SlurmSilent where Slurm does not answer, and SlurmRefused where it says no."""

    def __init__(self, access: SlurmAccess, timeout_s: float = TIMEOUT_S) -> None:
        self._access, self._timeout_s = access, timeout_s
        self._release: tuple[int, int] | None = None
        self._last_said = ""
        self.without_json: str = ""
        """Why text is read instead of JSON; empty where JSON is read."""

    def nodes(self) -> list[SlurmNode]:
        argv = ("scontrol", "show", "nodes") if self.release() >= (23, 2) else ("sinfo",)
        found = self._either(argv, read_nodes, ("scontrol", "show", "nodes"), nodes_of_text)
        if not found:
            text = "Slurm names no node: does PrivateData hide nodes from this account, or slurm.conf name another?"
            raise SlurmRefused(Reason.NOT_FOUND, text)
        return found

    def jobs(self) -> list[SlurmJob]:
        """Those that wait, run, or ended within MinJobAge."""
        argv, text = ("squeue", "--states=all"), ("scontrol", "-d", "show", "jobs")
        return self._either(argv, read_jobs, text, jobs_of_text)

    def ended(self, seconds: float) -> list[SlurmJob]:
        """Jobs that ended badly within so long, by accounting; none where the site keeps none."""
        window = (f"--starttime=now-{seconds:.0f}seconds", "--endtime=now", f"--state={','.join(_ENDED_BADLY)}")
        form = ("--noheader", "--parsable2", f"--format={','.join(ENDED_FIELDS)}")
        try:
            return _read(ended_of_text, self.ask("sacct", "--allusers", "--allocations", *window, *form))
        except SlurmRefused as error:
            if error.reason is Reason.MALFORMED:
                raise
            return []  # accounting is disabled, or the command is not there

    def node(self, name: str) -> SlurmNode:
        found = _read(nodes_of_text, self.ask("scontrol", "show", "node", name))
        if len(found) != 1:
            raise SlurmRefused(Reason.NOT_FOUND, f"Slurm has no node {name}")
        return found[0]

    def job(self, number: int) -> SlurmJob | None:
        """A job, as long as the controller holds it."""
        try:
            found = _read(jobs_of_text, self.ask("scontrol", "-d", "show", "job", str(number)))
        except SlurmRefused as error:
            if error.reason is Reason.NOT_FOUND:
                return None
            raise
        return next((job for job in found if job.id == number), None)

    def jobs_on(self, node: str) -> list[int]:
        """The jobs that hold a node now, those that are on their way out too."""
        text = self.ask("squeue", "--noheader", "--nodelist", node, "--format", "%A")
        return sorted({int(word) for word in text.split() if word.isdecimal()})

    def steps(self) -> dict[int, int]:
        """How many steps of each job run, without those that Slurm makes itself."""
        text = self.ask("squeue", "--steps", "--noheader", "--format", "%i")
        found: dict[int, int] = {}
        for match in re.finditer(r"(?m)^(\d+)(?:_\d+)?\.(\d+)$", text):
            found[int(match[1])] = found.get(int(match[1]), 0) + 1
        return found

    def release(self) -> tuple[int, int]:
        """(22, 5) of `slurm 22.05.8`; of the commands, which ask a controller of the same release or older."""
        if self._release is None:
            text = self.ask("scontrol", "--version")
            match = re.search(r"(\d+)\.(\d+)", text)
            if match is None:
                raise SlurmRefused(Reason.MALFORMED, f"`scontrol --version` says {text[:80]!r}")
            self._release = int(match[1]), int(match[2])
        return self._release

    def ask(self, *argv: str) -> str:
        """What a command says. Its own messages are in English whatever the site's language."""
        process = self._start(argv, subprocess.DEVNULL, subprocess.PIPE)
        try:
            out, said = process.communicate(timeout=self._timeout_s)
        except subprocess.TimeoutExpired as error:
            raise self._too_late(argv[0]) from error
        finally:
            _end(process)
        return self._answered(argv[0], process.returncode, out, said)

    def write_after(self, look: str, line_of: Callable[[str], str]) -> str:
        """One scontrol that asks `look` and writes the line that `line_of` makes of the answer, between two more
        looks: their answers. What `line_of` raises ends it before the write."""
        with tempfile.TemporaryFile() as errors:
            process = self._start(("scontrol",), subprocess.PIPE, errors)
            deadline_s = time.monotonic() + self._timeout_s
            try:
                out = self._converse(process, look, deadline_s)
                if line := line_of(out.decode(errors="replace")):
                    out = self._converse(process, f"{look}\n{line}\n{look}", deadline_s)
                process.communicate(timeout=max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired as error:
                raise self._too_late("scontrol") from error
            finally:
                _end(process)
            errors.seek(0)
            return self._answered("scontrol", process.returncode, out, errors.read())

    def _converse(self, process: subprocess.Popen[bytes], lines: str, deadline_s: float) -> bytes:
        """What a scontrol that reads lines says to these; less where it ended before."""
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):  # its exit code says why
            process.stdin.write(f"{lines}\n{_ASK_END}\n".encode())
            process.stdin.flush()
        out = b""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while f"\n{_END}0\n".encode() not in out:
                if not selector.select(max(0.0, deadline_s - time.monotonic())):
                    raise subprocess.TimeoutExpired("scontrol", self._timeout_s)
                part = os.read(process.stdout.fileno(), 65536)
                if not part:
                    break
                out += part
        # readline writes the question, too
        return re.split(rb"\n(?:\w+: )?%b\n|\n%b0\n" % (re.escape(_ASK_END.encode()), _END.encode()), out)[0]

    def _start(self, argv: tuple[str, ...], stdin: int, stderr: IO[bytes] | int) -> subprocess.Popen[bytes]:
        folder = self._access.commands
        program = argv[0] if folder is None else str(folder / argv[0])
        try:
            return subprocess.Popen(
                [program, *argv[1:]],
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=self._environment(),
            )
        except (FileNotFoundError, PermissionError) as error:
            where = f"in {folder}" if folder is not None else "on PATH"
            text = f"{argv[0]} is not {where}: install Slurm's commands, or set `slurm.commands`"
            raise SlurmRefused(Reason.NOT_FOUND, text) from error

    def _too_late(self, program: str) -> SlurmSilent:
        text = f"{program}: slurmctld did not answer within {self._timeout_s:g} s: overloaded, or failing over"
        return SlurmSilent(Reason.TIMEOUT, text)

    def _answered(self, program: str, code: int, out: bytes, errors: bytes) -> str:
        # names and reasons are people's: what is not UTF-8 must not hide the rest
        text, said = out.decode(errors="replace"), errors.decode(errors="replace").strip()
        if code < 0:
            why = f"{program} was killed by signal {-code}: whether slurmctld received it is unknown"
            raise SlurmSilent(Reason.INTERNAL, why)
        if code != 0:
            raise self._failure(program, said or text.strip() or f"exit code {code}")
        self._last_said = said
        return text

    def _environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("SQUEUE_", "SINFO_"))}
        conf = {"SLURM_CONF": str(self._access.conf)} if self._access.conf else {}
        return {**kept, **conf, "LC_ALL": "C.UTF-8", "TZ": "UTC", "SLURM_TIME_FORMAT": "%s"}

    def _failure(self, program: str, said: str) -> Exception:
        if _NO_JSON.search(said):
            return NoJson(said.splitlines()[0][:200])
        last = said.splitlines()[-1][:300]
        for pattern, reason, advice in _SILENT:
            if re.search(pattern, said):
                return SlurmSilent(reason, f"{program}: {last}: {advice}")
        if _REFUSED.search(said):
            return SlurmRefused(Reason.UNAUTHORISED, f"{program}: {last}: this account has no right to it")
        if re.search(
            r"(?:Invalid|Unknown|No such|not found|does not exist).{0,40}(?:job|node)|node .* not found", said, re.I
        ):
            return SlurmRefused(Reason.NOT_FOUND, f"{program}: {last}")
        return SlurmRefused(Reason.UNSUPPORTED, f"{program}: {last}")

    def _either(
        self,
        argv: tuple[str, ...],
        read: Callable[[str], list[_T]],
        text_argv: tuple[str, ...],
        read_text: Callable[[str], list[_T]],
    ) -> list[_T]:
        """By JSON; where there is none, by text."""
        if not self.without_json:
            try:
                return _read(read, self.ask(*argv, "--json"))
            except NoJson as error:
                self.without_json = str(error)
            except SlurmFailure as error:
                raise self._failure(argv[0], f"{self._last_said}\n{error}") from error
        return _read(read_text, self.ask(*text_argv))


def _read(read: Callable[[str], list[_T]], text: str) -> list[_T]:
    try:
        return read(text)
    except AnswerError as error:
        raise SlurmRefused(Reason.MALFORMED, f"Slurm's answer cannot be read: {error}") from error


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with suppress(BrokenPipeError):
                stream.close()
