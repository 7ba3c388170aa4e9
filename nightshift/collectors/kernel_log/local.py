"""This machine's kernel log: new lines and the events in them.

It is read from the kernel's buffer (/dev/kmsg), journald, or a syslog file. Each reader brings what is new since
its last call, with the time each line was written, and says when lines were lost. Formats:
Documentation/ABI/testing/dev-kmsg of the Linux kernel; systemd's Journal Export Formats; `read_syslog` for files.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from nightshift.collectors.frame import Instant, LogRecord, Reason, SourceStatus
from nightshift.collectors.http import SourceError
from nightshift.collectors.kernel_log.lines import MAX_TEXT, KernelLogParser, since
from nightshift.collectors.local_time import zone_of
from nightshift.collectors.shared_settings import stated_once
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tail import FileTail
from nightshift.collectors.telemetry.pages import source_subject
from nightshift.collectors.tick import Batch

# At the start, older events are skipped: what they said was acted on, or is over.
SINCE_S = 900.0
# Found by PATH, like every command of the system.
JOURNALCTL = "journalctl"
# Most lines that are kept in one tick; the others are counted, and events among them are kept all the same.
MAX_LINES = 5_000
# Most that is read of a file in one tick: the kernel's own ring is smaller.
MAX_BYTES = 2**23

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_HEAD = re.compile(r"^(?:<\d{1,3}>(?:1 )?)?(?:kern {0,2}:\w+ *: ?)?")
# How `date`, and so dmesg -T, abbreviates each month in glibc's locales of en, de, fr, es, it, pt, nl, pl and ru.
_MONTHS = (
    "jan ene gen sty янв",
    "feb fév fev févr lut фев",
    "mar mär mrt мар",
    "apr avr abr kwi апр",
    "may mai mei maj мая май",
    "jun juin giu cze июн",
    "jul juil lug lip июл",
    "aug août aou ago sie авг",
    "sep sept set wrz сен",
    "oct okt ott out paź окт",
    "nov lis ноя",
    "dec dez déc dic gru дек",
)
_CLOCK = r"\d\d:\d\d:\d\d"
_CLASSIC = re.compile(rf"([A-Z][a-z]{{2}}) +(\d{{1,2}}) ({_CLOCK})(?:[.,]\d+)?(?= )")
_ISO = re.compile(
    rf"(?:[A-Z][a-z]{{2}} )?(\d{{4}}-\d\d-\d\d)[T ]({_CLOCK})(?:([.,])(\d{{1,9}}))?"
    r"(?: ?(Z|UTC|[+-]\d\d:?\d\d))?(?= )"
)
_UNIX = re.compile(r"(\d{9,10}\.\d+)(?= )")
# dmesg -T writes days and months in the reader's language.
_CTIME = re.compile(rf"\[\S+ (\S+) +(\d{{1,2}}) ({_CLOCK}) (\d{{4}})\]")
_SINCE_BOOT = re.compile(r"\[ *\d+\.\d+\]")
_HOST = re.compile(r" (?:[A-Z]{3,5} )?(\S+) (?:kern\.\w+ )?kernel(?:\[\d+\])?(?:: ?| \S+ \S+ - )")
# Of other programs than the kernel, those that run or watch the host's hardware, as the rows of messages call them.
_PROGRAMS = {
    "nv-fabricmanager": "nv-fabricmanager",
    "nvidia-fabricmanager": "nv-fabricmanager",
    "systemd": "systemd",
    "nvidia-imex": "nvidia-imex",
    "nvidia-persistenced": "nvidia-persistenced",
    "mmfs": "mmfs",
    "mdadm": "mdadm",
    "multipathd": "multipathd",
    "smartd": "smartd",
    "mcelog": "mcelog",
    "rasdaemon": "rasdaemon",
    "ipmiseld": "ipmi",
    "ipmievd": "ipmi",
    **{name: name for name in ("kubelet", "containerd", "dockerd", "crio", "slurmd", "slurmctld")},
}
_PROGRAM = re.compile(rf" (?:[A-Z]{{3,5}} )?(\S+) ({'|'.join(_PROGRAMS)})(?:\[\d+\])?(?:: ?| \S+ \S+ - )")
_TALOS_MARK = "Z]: "
_TALOS = re.compile(rf"(?:\S+: )?(\w+): +\w+: \[(\d{{4}}-\d\d-\d\d)T({_CLOCK})\.(\d{{1,9}})Z\]: (.*)")
_INNER = re.compile(r" *(?:\[ *\d+\.\d+\] ?)?(?:\[ *[TC]\d+\] ?)?")


@dataclass(frozen=True, slots=True)
class SyslogLine:
    """at_s: Unix s, None where the line gives no time of day; `zoned`: its zone is known, else UTC was taken;
    host: "" where the line names none; text: None where another program than the kernel wrote it."""

    at_s: float | None
    zoned: bool
    host: str
    text: str | None


def read_syslog(line: str, now_s: float) -> SyslogLine | None:
    """What a line of a syslog or dmesg file says; None where it is of none of these forms:

        Nov 23 10:00:00 n1 kernel: [12345.678901] NVRM: …            rsyslog, journalctl (fractions of seconds too)
        2026-11-23T10:00:00.123456+00:00 n1 kernel: NVRM: …          rsyslog's newer default; -o short-iso
        <4>1 2026-11-23T10:00:00.123456Z n1 kernel - - - NVRM: …     RFC 5424
        Mon 2026-11-23 10:00:00 UTC n1 kernel: NVRM: …               journalctl -o short-full
        1795255200.123456 n1 kernel: NVRM: …                         journalctl -o short-unix
        [12345.678901] NVRM: …      [12345.678901][ T1234] NVRM: …   dmesg, the second with its caller's id
        [Mon Nov 23 10:00:00 2026] NVRM: …                           dmesg -T
        2026-11-23T10:00:00,123456+00:00 NVRM: …                     dmesg --time-format iso
        kern  :warn  : [12345.678901] NVRM: …                        dmesg -x
        10.1.2.3: kern: warning: [2026-11-23T10:00:00.123456789Z]: NVRM: …       talosctl dmesg
        {"__REALTIME_TIMESTAMP": "…", "_TRANSPORT": "kernel", "MESSAGE": "NVRM: …"}   journalctl -o json

    Classic syslog has no year: it is the newest that is not later than a day from now (Unix s).

    >>> line = "Nov 23 10:00:00 n1 kernel: [12345.678901] NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off"
    >>> read_syslog(line, now_s=1795500000.0)
    SyslogLine(at_s=1795428000.0, zoned=False, host='n1', text='NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off')
    >>> read_syslog("Nov 23 10:00:00 n1 sshd[4]: Accepted", now_s=1795500000.0).text is None
    True
    """
    if "\x1b" in line:
        line = _ANSI.sub("", line)
    begin = head.end() if (head := _HEAD.match(line)) is not None else 0
    if (match := _SINCE_BOOT.match(line, begin)) is not None:
        return SyslogLine(None, True, "", _inner(line[match.end() :]))
    if (match := _CTIME.match(line, begin)) is not None:
        month, day, clock, year = match.groups()
        return SyslogLine(_at_s(int(year), month, day, clock), False, "", _inner(line[match.end() :]))
    if line.startswith("{") or _TALOS_MARK in line[:80]:
        return _of_json(line) if line.startswith("{") else _of_talos(line)
    zoned = False
    if (match := _CLASSIC.match(line, begin)) is not None:
        at_s = _without_year(match.group(1), match.group(2), match.group(3), now_s)
    elif (match := _ISO.match(line, begin)) is not None:
        date, clock, mark, fraction, zone = match.groups()
        zoned, at_s = zone is not None, _iso_s(date, clock, fraction, zone)
        if mark == "," and zoned:  # dmesg's own; syslogs write a point
            return SyslogLine(at_s, True, "", _inner(line[match.end() :]))
    elif (match := _UNIX.match(line, begin)) is not None:
        zoned, at_s = True, float(match.group(1))
    else:
        return None
    said = _HOST.match(line, match.end())
    if said is None:
        other = _PROGRAM.match(line, match.end())
        if other is None:
            return SyslogLine(at_s, zoned, "", None)
        return SyslogLine(at_s, zoned, other.group(1), f"{_PROGRAMS[other.group(2)]}: {line[other.end() :]}")
    return SyslogLine(at_s, zoned, said.group(1), _inner(line[said.end() :]))


def _of_talos(line: str) -> SyslogLine | None:
    match = _TALOS.match(line)
    if match is None:
        return None
    facility, date, clock, fraction, text = match.groups()
    # the address before it is the node's, under which nothing else here knows it
    return SyslogLine(_iso_s(date, clock, fraction[:6], "Z"), True, "", text if facility == "kern" else None)


def _of_json(line: str) -> SyslogLine | None:
    try:
        row = json.loads(line)
        micros, message = int(row["__REALTIME_TIMESTAMP"]), row.get("MESSAGE")
        if isinstance(message, list):  # bytes that are no UTF-8, as numbers
            message = bytes(message).decode(errors="replace")
        program, host = str(row.get("SYSLOG_IDENTIFIER")), str(row.get("_HOSTNAME", ""))
        text = None if message is None else str(message)
        if text is not None and "kernel" not in (row.get("_TRANSPORT"), program):
            text = f"{_PROGRAMS[program]}: {text}" if program in _PROGRAMS else None
        return SyslogLine(micros / 1e6, True, host, text)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _inner(text: str) -> str:
    """Without what the kernel itself puts before a line: the time since it booted, and its caller."""
    match = _INNER.match(text)
    return text if match is None else text[match.end() :]


def _iso_s(date: str, clock: str, fraction: str | None, zone: str | None) -> float | None:
    zone = "+00:00" if zone in (None, "Z", "UTC") else zone
    try:
        return datetime.fromisoformat(f"{date}T{clock}{zone}").timestamp() + float(f"0.{fraction or 0}")
    except ValueError:
        return None


def _at_s(year: int, month: str, day: str, clock: str) -> float | None:
    try:
        stamp = f"{year}-{_month(month):02d}-{int(day):02d}T{clock}+00:00"
        return datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return None


def _month(word: str) -> int:
    """The number of a month by its short name in hosts' languages. Raises ValueError where it is none.

    >>> _month("Nov"), _month("déc."), _month("Mär"), _month("окт"), _month("11月")
    (11, 12, 3, 10, 11)
    """
    if word[0].isdecimal():
        return int(word.rstrip("월月."))
    name = word.casefold().rstrip(".")
    for number, names in enumerate(_MONTHS, 1):
        if any(name.startswith(known) for known in names.split()):
            return number
    raise ValueError(f"{word!r} is no month")


def _without_year(month: str, day: str, clock: str, now_s: float) -> float | None:
    year = datetime.fromtimestamp(now_s, UTC).year
    guesses = (_at_s(guess, month, day, clock) for guess in (year + 1, year, year - 1))
    return next((at_s for at_s in guesses if at_s is not None and at_s <= now_s + 86400), None)


KMSG = Path("/dev/kmsg")
_KMSG_BYTES = 8192
_MAX_RECORDS = 100_000
# What a machine calls itself before it knows its name, and in a file that names no host.
_UNNAMED = ("", "localhost")
_MOST_HOSTS = 16
FUTURE_S = 300.0
# Lines that tell a file of another kind from a single odd line.
_ENOUGH = 2


@dataclass
class Lines:
    """What a reader brought. `lost`: why lines are missing before the record of that place in `records`."""

    records: list[LogRecord] = field(default_factory=list)
    lost: list[tuple[int, str]] = field(default_factory=list)
    malformed: int = 0


class LogReader(Protocol):
    def read(self, now_s: float) -> Lines:
        """What is new. Raises SourceError with the reason where nothing can be read."""
        ...

    def close(self) -> None: ...


class KmsgReader:
    """The kernel's own buffer, from its oldest line on. Continuation lines and other facilities are left out."""

    def __init__(self, node: Subject, path: Path = KMSG, uptime_s: Callable[[], float] = time.monotonic) -> None:
        self._node = node
        self._path = path
        self._uptime_s = uptime_s
        self._descriptor: int | None = None

    def read(self, now_s: float) -> Lines:
        if self._descriptor is None:
            try:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as error:
                missing = isinstance(error, FileNotFoundError)
                reason = Reason.NOT_FOUND if missing else Reason.UNAUTHORISED
                raise SourceError(reason, f"{self._path}: {error.strerror}") from error
        started_s = now_s - self._uptime_s()
        lines = Lines()
        while len(lines.records) < _MAX_RECORDS:
            try:
                raw = os.read(self._descriptor, _KMSG_BYTES)
            except OSError as error:
                # the kernel overwrote what was not read yet; the next read goes on with the oldest line there is
                if error.errno == errno.EPIPE:
                    lines.lost.append((len(lines.records), "the kernel's buffer was overrun"))
                    continue
                if error.errno in (errno.EAGAIN, errno.EINTR):
                    break
                raise SourceError(Reason.UNREACHABLE, f"{self._path}: {error.strerror}") from error
            if not raw:
                break
            for record in raw.split(b"\n"):
                self._take(record, started_s, lines)
        return lines

    def _take(self, raw: bytes, started_s: float, lines: Lines) -> None:
        if not raw or raw.startswith(b" "):
            return  # SUBSYSTEM=… of the record before
        head, separator, text = raw.partition(b";")
        try:
            priority, sequence, micros = (int(part) for part in head.split(b",")[:3])
        except ValueError:
            lines.malformed += 1
            return
        if separator and priority >> 3 == 0:
            at = Instant(started_s + micros / 1e6, 0.0, self._node.name)
            lines.records.append(LogRecord(at, str(self._path), self._node, _unescaped(text[:MAX_TEXT]), sequence))

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class JournalReader:
    """journald's kernel messages, by its own command and cursor."""

    def __init__(self, node: Subject, command: str, since_s: float, timeout_s: float = 3.0) -> None:
        self._node = node
        self._command = command
        self._since_s = since_s
        self._timeout_s = timeout_s
        self._cursor: str | None = None
        self._boot: str | None = None

    def read(self, now_s: float) -> Lines:
        arguments = [self._command, "-k", "--boot=all", "-o", "json", "--no-pager", "-n", str(_MAX_RECORDS)]
        since = f"--since=@{now_s - self._since_s:.0f}"  # -k alone means this boot only
        arguments.append(f"--after-cursor={self._cursor}" if self._cursor else since)
        try:
            done = subprocess.run(arguments, capture_output=True, timeout=self._timeout_s, check=False)
        except FileNotFoundError as error:
            raise SourceError(Reason.NOT_FOUND, f"{self._command} is not installed") from error
        except PermissionError as error:
            raise SourceError(Reason.UNAUTHORISED, f"{self._command}: {error.strerror}") from error
        except subprocess.TimeoutExpired as error:
            raise SourceError(Reason.TIMEOUT, f"{self._command} took over {self._timeout_s} s") from error
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip()[:200]
            denied = "ermission" in said or "not seeing messages" in said
            raise SourceError(
                Reason.UNAUTHORISED if denied else Reason.UNREACHABLE, said or f"rc {done.returncode}"
            )
        lines = Lines()
        for raw in done.stdout.split(b"\n"):
            if raw.strip():
                self._take(raw, lines)
        return lines

    def _take(self, raw: bytes, lines: Lines) -> None:
        try:
            row = json.loads(raw)
            micros, message = int(row["__REALTIME_TIMESTAMP"]), row.get("MESSAGE")
            if isinstance(message, list):  # journald writes bytes that are not UTF-8 as numbers
                message = bytes(message).decode(errors="replace")
            if not isinstance(message, str):
                raise TypeError
        except (ValueError, KeyError, TypeError):
            lines.malformed += 1
            return
        boot = str(row.get("_BOOT_ID", ""))
        at = Instant(micros / 1e6, 0.0, self._node.name)
        # a boot that is read from its middle has no first line of its own, by which the parser knows a reboot
        if self._boot not in (None, boot):
            lines.records.append(LogRecord(at, "journald", self._node, "Linux version (new boot id)", micros))
        self._boot, self._cursor = boot, str(row.get("__CURSOR", "")) or self._cursor
        lines.records.append(LogRecord(at, "journald", self._node, message[:MAX_TEXT], micros))

    def close(self) -> None:
        return


class FileReader:
    """A syslog or dmesg file, across rotation. Of a file that gathers several hosts' lines only those under the
    node's own name are read: an error of another machine must not be laid at this one's door."""

    def __init__(self, node: Subject, path: Path, max_bytes: int) -> None:
        self._node = node
        self._path = path
        self._tail = FileTail(path, max_bytes)
        self._is_named = False
        self._others: dict[str, None] = {}
        """Hosts of other names; a file of one alone is this machine's, whatever it calls itself."""
        self._is_known = False
        self._zone_s = 0.0
        """What to add to a time that names no zone (s)."""

    def read(self, now_s: float) -> Lines:
        try:
            read = self._tail.read()
        except OSError as error:
            missing = isinstance(error, FileNotFoundError)
            reason = Reason.NOT_FOUND if missing else Reason.UNAUTHORISED
            raise SourceError(reason, f"{self._path}: {error.strerror}") from error
        lines = Lines()
        if read.skipped_bytes:
            lines.lost.append((0, f"{read.skipped_bytes} bytes were skipped"))
        if read.lost:
            lines.lost.append((0, "the file was replaced, and its last lines are found nowhere"))
        found = [(offset, read_syslog(line.decode(errors="replace"), now_s)) for offset, line in read.lines]
        self._keep_zone([line for _, line in found], read.changed_s, now_s)
        told = [(offset, line) for offset, line in found if line is not None and line.text is not None]
        ours = self._of_this_host(told)
        unknown = sum(
            line is None and bool(raw.strip()) for (_, line), (_, raw) in zip(found, read.lines, strict=True)
        )
        self._is_known |= any(line is not None for _, line in found)
        # one odd line is noise; more and no good one are another kind of file, and silence would look like health
        if unknown >= _ENOUGH and not self._is_known:
            raise SourceError(Reason.MALFORMED, f"no line of {self._path} is of a syslog's or dmesg's known form")
        lines.malformed = len(told) - len(ours) + unknown
        lines.records.extend(self._records(ours, now_s))
        return lines

    def _of_this_host(self, told: Sequence[tuple[int, SyslogLine]]) -> Sequence[tuple[int, SyslogLine]]:
        for _, line in told:
            self._heed(line.host)
        # a file of one other name is this machine's under another name; of several, no guess is safe
        if not self._is_named and len(self._others) > 1:
            several = f"{self._path} has lines of several hosts ({', '.join(list(self._others)[:3])}, …)"
            raise SourceError(Reason.MALFORMED, f"{several}: give this one's name in the log as `node`")
        return [line for line in told if not self._is_named or self._is_ours(line[1].host)]

    def _heed(self, host: str) -> None:
        if not self._is_ours(host):
            if len(self._others) < _MOST_HOSTS:
                self._others[host] = None
        elif host not in _UNNAMED:
            self._is_named = True

    def _is_ours(self, host: str) -> bool:
        return host in _UNNAMED or _is_same_host(host, self._node.name)

    def _keep_zone(self, lines: Sequence[SyslogLine | None], changed_s: float, now_s: float) -> None:
        newest = lines[-1] if lines else None
        if newest is not None and newest.at_s is not None and not newest.zoned:
            zone_s = zone_of(newest.at_s, changed_s, now_s)
            self._zone_s = self._zone_s if zone_s is None else zone_s

    def _records(self, told: Iterable[tuple[int, SyslogLine]], now_s: float) -> Iterable[LogRecord]:
        for offset, line in told:
            at_s = line.at_s if line.at_s is None or line.zoned else line.at_s + self._zone_s
            if at_s is not None and at_s > now_s + FUTURE_S:
                at_s = None  # of a clock that is not this one's
            exact = Instant(now_s if at_s is None else at_s, 0.0 if at_s else 5.0, self._node.name)
            yield LogRecord(exact, str(self._path), self._node, (line.text or "")[:MAX_TEXT], offset)

    def close(self) -> None:
        return


def _is_same_host(one: str, other: str) -> bool:
    """Whether two names are one host's, the one short and the other with its domain perhaps."""
    one, other = one.casefold(), other.casefold()
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")


def _unescaped(raw: bytes) -> str:
    """The kernel writes unprintable bytes as \\xNN."""
    if b"\\x" not in raw:
        return raw.decode(errors="replace")
    return re.sub(rb"\\x([0-9a-f]{2})", lambda m: bytes([int(m.group(1), 16)]), raw).decode(errors="replace")


class LocalKernelLogCollector:
    r"""New kernel log lines of this machine, and the events among them.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".log") as log:
    ...     _ = log.write("[12345.678901] NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.\n")
    ...     log.flush()
    ...     settings = LocalKernelLogCollector.Settings(source="file", path=log.name, node="n1")
    ...     batch = LocalKernelLogCollector(settings).collect(1795500000.0, Inventory(), timeout_s=60.0)
    >>> [(event.kind.value, event.code, str(event.node)) for event in batch.events]
    [('xid', 79, 'node:n1')]
    """

    plugin: ClassVar[str] = "kernel_log"

    class Settings(BaseModel):
        """This machine's kernel log."""

        model_config = ConfigDict(extra="forbid")

        source: Literal["auto", "kmsg", "journald", "file"] = Field(
            "auto", description="Where it is read; auto: /dev/kmsg where that may be read, else journald"
        )
        path: Path | None = Field(None, description="The file (source: file), or another device than /dev/kmsg")
        node: SkipJsonSchema[str] = stated_once("node_name", socket.gethostname)

        @model_validator(mode="after")
        def _file_has_a_path(self) -> LocalKernelLogCollector.Settings:
            if self.source == "file" and self.path is None:
                raise ValueError("source: file needs a path")
            return self

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._timer = clock
        self._node = Subject(SubjectKind.NODE, settings.node)
        self._source = source_subject(self.plugin, settings.node)
        self._parser = KernelLogParser(self._node)
        self._reader: LogReader = self._choose()
        self._is_first = True

    @property
    def name(self) -> str:
        return self.plugin

    def collect(self, now_s: float, inventory: Inventory, timeout_s: float) -> Batch:
        started = self._timer()
        try:
            lines = self._reader.read(now_s)
        except SourceError as error:
            return Batch([self._status(now_s, started, 0, {}, error)])
        rejected = {Reason.MALFORMED: lines.malformed} if lines.malformed else {}
        records = lines.records
        kept, events = self._parser.sift(records, MAX_LINES)
        if self._is_first:
            self._is_first = False
            kept, events = since(now_s - SINCE_S, kept, events)
        elif records:
            gaps = [self._parser.gap(records[min(n, len(records) - 1)], why) for n, why in lines.lost]
            events = [*gaps, *events]
        if len(kept) < len(records) and len(records) > MAX_LINES:
            rejected[Reason.TOO_LARGE] = len(records) - len(kept)
        return Batch([self._status(now_s, started, len(records), rejected, None)], logs=kept, events=events)

    def close(self) -> None:
        self._reader.close()

    def _choose(self) -> LogReader:
        settings = self._settings
        if settings.source == "file" and settings.path is not None:
            return FileReader(self._node, settings.path, MAX_BYTES)
        falls_back = settings.source == "auto" and not _readable(settings.path or KMSG)
        if settings.source == "journald" or (falls_back and shutil.which(JOURNALCTL)):
            return JournalReader(self._node, JOURNALCTL, SINCE_S)
        return KmsgReader(self._node, settings.path or KMSG)

    def _status(
        self,
        now_s: float,
        started: float,
        n_lines: int,
        rejected: dict[Reason, int],
        error: SourceError | None,
    ) -> SourceStatus:
        return SourceStatus(
            self._source,
            now_s,
            error is None,
            error.reason if error else None,
            error.detail if error else "",
            n_lines,
            rejected,
            self._timer() - started,
            (self._node,),
        )


def _readable(path: Path) -> bool:
    try:
        with path.open("rb", buffering=0):
            return True
    except OSError:
        return False
