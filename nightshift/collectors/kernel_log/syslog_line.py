"""One line of a syslog or dmesg file: when it was written, by which host, and what the kernel said.

Nov 23 10:00:00 n1 kernel: [12345.678901] NVRM: …            rsyslog, journalctl (also with fractions of seconds)
2026-11-23T10:00:00.123456+00:00 n1 kernel: NVRM: …          rsyslog's newer default, journalctl -o short-iso
<4>1 2026-11-23T10:00:00.123456Z n1 kernel - - - NVRM: …     RFC 5424
Mon 2026-11-23 10:00:00 UTC n1 kernel: NVRM: …               journalctl -o short-full
1795255200.123456 n1 kernel: NVRM: …                         journalctl -o short-unix
[12345.678901] NVRM: …      [12345.678901][ T1234] NVRM: …   dmesg, the second with its caller's id
[Mon Nov 23 10:00:00 2026] NVRM: …                           dmesg -T
2026-11-23T10:00:00,123456+00:00 NVRM: …                     dmesg --time-format iso
kern  :warn  : [12345.678901] NVRM: …                        dmesg -x
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_HEAD = re.compile(r"^(?:<\d{1,3}>(?:1 )?)?(?:kern {0,2}:\w+ *: ?)?")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_CLOCK = r"\d\d:\d\d:\d\d"
_CLASSIC = re.compile(rf"([A-Z][a-z]{{2}}) +(\d{{1,2}}) ({_CLOCK})(?:[.,]\d+)?(?= )")
_ISO = re.compile(
    rf"(?:[A-Z][a-z]{{2}} )?(\d{{4}}-\d\d-\d\d)[T ]({_CLOCK})(?:([.,])(\d{{1,9}}))?"
    r"(?: ?(Z|UTC|[+-]\d\d:?\d\d))?(?= )"
)
_UNIX = re.compile(r"(\d{9,10}\.\d+)(?= )")
_CTIME = re.compile(rf"\[\S+ (\S+) +(\d{{1,2}}) ({_CLOCK}) (\d{{4}})\]")
"""dmesg -T writes days and months in the reader's language; a month of another language gives no time."""
_SINCE_BOOT = re.compile(r"\[ *\d+\.\d+\]")
_HOST = re.compile(r" (?:[A-Z]{3,5} )?(\S+) (?:kern\.\w+ )?kernel(?:\[\d+\])?(?:: ?| \S+ \S+ - )")
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
    """What a line of one of the known forms says; None for every other one. Classic syslog has no year: it is the
    newest that is not later than a day from now (Unix s)."""
    if "\x1b" in line:
        line = _ANSI.sub("", line)
    begin = head.end() if (head := _HEAD.match(line)) is not None else 0
    if (match := _SINCE_BOOT.match(line, begin)) is not None:
        return SyslogLine(None, True, "", _inner(line[match.end() :]))
    if (match := _CTIME.match(line, begin)) is not None:
        month, day, clock, year = match.groups()
        return SyslogLine(_at_s(int(year), month, day, clock), False, "", _inner(line[match.end() :]))
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
        return SyslogLine(at_s, zoned, "", None)
    return SyslogLine(at_s, zoned, said.group(1), _inner(line[said.end() :]))


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
        stamp = f"{year}-{_MONTHS.index(month) + 1:02d}-{int(day):02d}T{clock}+00:00"
        return datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return None


def _without_year(month: str, day: str, clock: str, now_s: float) -> float | None:
    year = datetime.fromtimestamp(now_s, UTC).year
    guesses = (_at_s(guess, month, day, clock) for guess in (year + 1, year, year - 1))
    return next((at_s for at_s in guesses if at_s is not None and at_s <= now_s + 86400), None)
