"""The chain over a ledger's lines: which line, and which of its fields, is not as it was written.

Each line is canonical JSON (RFC 8785) and carries three links beside its fields:

    previous   the hash of the line before; the first one's is of the run's question and of older, unchained lines
    digests    8 hexadecimal digits of each field's hash, by the fields' names in order: they only say which changed
    hash       SHA-256 of all the rest of the line, the other two links included

Lines that are cut off at the end are found as well: the last line's number and hash, the *head*, stand in a file of
their own and in the certificate. Order comes from the chain, never from clocks: a clock that was set back is a
note.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nightshift.collectors.seal import SealError, canonical_json, fingerprint, sha256_hex

LINKS = ("digests", "previous", "hash")
_DIGITS = 8


@dataclass(frozen=True)
class LedgerFinding:
    """One place where a ledger is not as it was written. field: "" where it is about the whole line."""

    line: int
    field: str
    what: str

    def __str__(self) -> str:
        return f"line {self.line}, {f'field {self.field}' if self.field else 'whole line'}: {self.what}"


@dataclass(frozen=True)
class LedgerHead:
    """The last line of a ledger at some time."""

    lines: int
    hash: str

    @classmethod
    def of(cls, value: Any) -> LedgerHead:
        """Raises ValueError."""
        if not isinstance(value, Mapping) or type(value.get("lines")) is not int or value["lines"] < 0:
            raise ValueError("names no number of lines")
        return cls(value["lines"], str(value.get("hash")))

    def to_json(self) -> dict[str, Any]:
        return {"lines": self.lines, "hash": self.hash}


@dataclass
class Audit:
    """What a ledger's chain says. notes: what is no fault, and has to be known. unchained: lines before the chain.

    head: the last whole line, and what the next one follows.
    """

    findings: list[LedgerFinding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unchained: int = 0
    head: LedgerHead = LedgerHead(0, "")


def origin(question: Mapping[str, Any], older: bytes) -> str:
    """What the first chained line follows. older: the lines before it, of a version that chained none."""
    return fingerprint({"asked": question, "older": sha256_hex(older)})


def sealed(record: Mapping[str, Any], previous: str) -> dict[str, Any]:
    """A line's fields with its links. Raises SealError that names a field without a canonical form."""
    body = {**record, "digests": _digests(record), "previous": previous}
    return {**body, "hash": fingerprint(body)}


def audit(
    data: bytes, question: Mapping[str, Any], heads: Mapping[str, LedgerHead], names: Collection[str] = ()
) -> Audit:
    """Checks a ledger's bytes. heads: what each place (a file, a certificate) names as its end. names: of all
    fields that a line can have."""
    found = Audit()
    *lines, torn = data.split(b"\n")
    expected: tuple[str, ...] = ()
    offset, before_s = 0, -math.inf
    hashes: list[str] = []
    for number, text in enumerate(lines, 1):
        faults: list[LedgerFinding] = []
        record = _record(text, number, faults)
        # unchained lines are believed at the beginning alone, where an older version wrote; further on, links were
        # removed
        if found.unchained == number - 1 and record is not None and not any(name in record for name in LINKS):
            found.unchained += 1
        else:
            expected = expected or (origin(question, data[:offset]),)
            faults += _faults(record, text, number, expected, names) if record is not None else []
            expected = _next(record)
        before_s = _clock(record, number, before_s, found.notes)
        hashes.append(str((record or {}).get("hash", "")))
        found.findings += faults
        offset += len(text) + 1
    _ends(found, hashes, heads, bool(torn))
    if found.unchained:
        found.notes.insert(
            0, f"{_lines(1, found.unchained)}: unchained, of an older version: an edit cannot be seen"
        )
    last = hashes[-1] if hashes and found.unchained < len(hashes) else origin(question, data[:offset])
    found.head = LedgerHead(len(lines), last)
    return found


def _record(text: bytes, number: int, faults: list[LedgerFinding]) -> dict[str, Any] | None:
    """A line's fields and links; None where it is no line."""
    try:
        record = json.loads(text.decode())
        canonical_json(record)
        if not isinstance(record, dict):
            raise ValueError("no JSON object")
    except SealError as error:
        place, _, what = str(error).removeprefix("$").removeprefix(".").partition(": ")
        faults.append(LedgerFinding(number, place.partition(".")[0].partition("[")[0], f"malformed: {what}"))
    except (ValueError, RecursionError) as error:
        faults.append(LedgerFinding(number, "", f"malformed: {error}"))
    else:
        return record
    return None


def _next(record: Mapping[str, Any] | None) -> tuple[str, ...]:
    """What the next line may follow: this line's hash as it is written, or as it ought to be where that was
    changed. "": anything, behind a line that cannot be read."""
    if record is None:
        return ("",)
    # both, so that one edited line is one finding, and not every line behind it
    return str(record.get("hash")), fingerprint({k: v for k, v in record.items() if k != "hash"})


def _faults(
    record: Mapping[str, Any], text: bytes, number: int, expected: Sequence[str], names: Collection[str]
) -> list[LedgerFinding]:
    missing = [name for name in LINKS if not isinstance(record.get(name), str)]
    if missing:
        return [LedgerFinding(number, name, "missing: the line is not chained") for name in missing]
    changed = [LedgerFinding(number, name, what) for name, what in _changed(record, expected, names)]
    if not changed and record["previous"] not in expected and "" not in expected:
        what = "does not follow the line before: a line was removed, inserted or moved, or run.json changed"
        changed = [LedgerFinding(number, "previous", what)]
    # the same values in other bytes have the same hash: another program wrote the line
    if not changed and text != canonical_json(record):
        changed = [LedgerFinding(number, _field_at(text, record), "written in another way than ours")]
    return changed


def _changed(record: Mapping[str, Any], expected: Sequence[str], names: Collection[str]) -> list[tuple[str, str]]:
    """The fields whose content is not what the line's hash says, and how."""
    body = {name: value for name, value in record.items() if name != "hash"}
    if fingerprint(body) == record["hash"]:
        return []
    plain = {name: value for name, value in record.items() if name not in LINKS}
    if names and (odd := _added_or_gone(plain, record["digests"], names)):
        return odd
    edited = _edited(plain, record["digests"])
    link = _changed_link(body, record["hash"], expected, _digests(plain), bool(edited))
    return [(name, "changed since it was written") for name in ([link] if link else edited)]


def _added_or_gone(plain: Mapping[str, Any], digests: str, names: Collection[str]) -> list[tuple[str, str]]:
    if odd := [(name, "unknown") for name in plain if name not in names]:
        return odd
    # digests stand by the fields' places: with a field gone, all behind it would seem changed
    gone = [(name, "missing") for name in names if name not in plain]
    return gone if len(_digests(plain)) != len(digests) else []


def _edited(plain: Mapping[str, Any], digests: str) -> list[str]:
    now = _digests(plain)
    cuts = [slice(at, at + _DIGITS) for at in range(0, len(now), _DIGITS)]
    return [name for name, cut in zip(sorted(plain), cuts, strict=True) if now[cut] != digests[cut]]


def _changed_link(body: Mapping[str, Any], sha256: str, expected: Sequence[str], digests: str, edited: bool) -> str:
    """Which of the links was changed: the one with which, as it ought to be, the hash is right; "" where none."""
    if fingerprint({**body, "digests": digests}) == sha256:
        return "digests"
    if edited:
        return ""
    restored = any(fingerprint({**body, "previous": one}) == sha256 for one in expected)
    return "previous" if restored else "hash"


def _field_at(text: bytes, record: Mapping[str, Any]) -> str:
    """The field at the first byte that differs from the canonical form."""
    offset = 1
    for name in sorted(record):
        written = canonical_json({name: record[name]})[1:-1]
        if text[offset : offset + len(written)] != written:
            return name
        offset += len(written) + 1
    return ""


def _clock(record: Mapping[str, Any] | None, number: int, before_s: float, notes: list[str]) -> float:
    at_s = (record or {}).get("at_s")
    if type(at_s) not in (int, float) or not isinstance(at_s, int | float):
        return before_s
    if at_s < before_s:
        notes.append(
            f"line {number}: its time is {before_s - at_s:.0f} s before the line above: a clock was set back"
        )
    return float(at_s)


def _ends(found: Audit, hashes: Sequence[str], heads: Mapping[str, LedgerHead], torn: bool) -> None:
    """Holds the last lines against the heads."""
    count, named = len(hashes), {one.line for one in found.findings}
    for place, head in heads.items():
        if head.lines > count:
            cut = f"{_lines(count + 1, head.lines)} cut off at the end: {place} names {head.lines} lines"
            found.findings.append(LedgerFinding(count + 1, "", cut))
        # a line with a finding of its own is told once
        elif found.unchained < head.lines and hashes[head.lines - 1] != head.hash and head.lines not in named:
            what = f"not the line that {place} names: lines from here on were replaced"
            found.findings.append(LedgerFinding(head.lines, "hash", what))
        elif head.lines and found.unchained >= head.lines:
            what = f"not chained, and {place} names its hash: its links were removed"
            found.findings.append(LedgerFinding(head.lines, "hash", what))
    # one line without a head: the process was killed between the two writes
    if not heads and count - found.unchained > 1:
        found.findings.append(
            LedgerFinding(count, "", "no file names the last line: whether lines are cut off is unknown")
        )
    if torn and not any(head.lines > count for head in heads.values()):
        found.notes.append(f"line {count + 1}: half-written when the process ended; nothing was done upon it")


def _digests(record: Mapping[str, Any]) -> str:
    return "".join(fingerprint(record[name])[:_DIGITS] for name in sorted(record))


def _lines(first: int, last: int) -> str:
    return f"line {first}" if first == last else f"lines {first} to {last}"
