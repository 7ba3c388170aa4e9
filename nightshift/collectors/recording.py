"""Recordings of ticks: what was seen, kept so that it can be seen again through the same pipeline.

Format, version 1: a gzip file of lines `CRC32 JSON`. The first line is a header; each further line is one tick with
its frames, steps, lines, events, sources and alerts, and the relations that were new. Rows and columns of a
frame are written when they change; NaN is null. gzip proves its sum only at the end of the file, so each line
carries its own. Every incident can so become a fixture of a few kilobytes.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from nightshift.collectors.base import Permanent
from nightshift.collectors.frame import (
    Floats,
    Frame,
    Instant,
    LogRecord,
    Reason,
    SeriesIndex,
    SourceStatus,
    StepSeries,
)
from nightshift.collectors.kernel_log.event import KernelEvent, KernelEventKind
from nightshift.collectors.prometheus.alert import AlertmanagerAlert, AlertmanagerSilence
from nightshift.collectors.subject import Inventory, Membership, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.collectors.training.hang_dumps import PREFIX

FORMAT = "nightshift-recording"
VERSION = 1
MAX_LINE_CHARS = 2**28


class RecordingError(Permanent):
    """The file is no recording, or is damaged; the message names file and line."""


@dataclass(frozen=True, eq=False)
class RecordedTick:
    """One tick as it was recorded: relations and facts that were told since the one before."""

    tick: Tick
    relations: tuple[Membership, ...] = ()
    facts: Mapping[Subject, Mapping[str, str]] | None = None


class RecordingWriter:
    """Writes ticks as they come; `close` ends the file. A cut file is still readable up to its cut."""

    def __init__(self, path: Path, tick_s: float, labels: Mapping[str, str] | None = None) -> None:
        self._stream: TextIO = gzip.open(path, "wt", encoding="utf-8")  # noqa: SIM115  `close` closes it
        self._shapes: dict[str, tuple[SeriesIndex, tuple[str, ...]]] = {}
        self._relations: set[Membership] = set()
        self._facts: dict[str, dict[str, str]] = {}
        self._write({"format": FORMAT, "version": VERSION, "tick_s": tick_s, "labels": dict(labels or {})})

    def add(self, tick: Tick, inventory: Inventory) -> None:
        relations = set(inventory.memberships())
        new = sorted(relations - self._relations, key=lambda m: (m.since_s, str(m.child), str(m.parent)))
        self._relations = relations
        subjects = {m.child for m in relations} | {m.parent for m in relations}
        facts = {str(s): f for s in subjects if (f := inventory.facts(s))}
        changed = {name: f for name, f in facts.items() if self._facts.get(name) != f}
        self._facts = facts
        self._write(
            {
                "at_s": tick.at_s,
                "frames": [self._frame(frame) for frame in tick.frames.values()],
                "steps": [_steps(steps) for steps in tick.steps],
                "logs": [_record(record) for record in tick.logs],
                "events": [_event(event) for event in tick.events],
                "sources": [_status(status) for status in tick.sources],
                **_told(tick),
                "relations": [
                    [str(m.child), str(m.parent), m.since_s, None if np.isinf(m.until_s) else m.until_s]
                    for m in new
                ],
                "facts": changed,
            }
        )

    def close(self) -> None:
        self._stream.close()

    def _frame(self, frame: Frame) -> dict[str, Any]:
        kind = str(frame.kind)
        known = self._shapes.get(kind)
        row: dict[str, Any] = {"kind": kind}
        if known is None or known[0] is not frame.index or known[1] != frame.metrics:
            self._shapes[kind] = (frame.index, frame.metrics)
            row |= {"subjects": [s.name for s in frame.index.subjects], "metrics": list(frame.metrics)}
        return row | {
            "values": _numbers(frame.values),
            "observed_at_s": _numbers(frame.observed_at_s),
            "epoch": frame.epoch.tolist(),
        }

    def _write(self, line: Mapping[str, Any]) -> None:
        text = json.dumps(line, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        self._stream.write(f"{zlib.crc32(text.encode()):08x} {text}\n")


@dataclass(frozen=True)
class Header:
    tick_s: float
    labels: Mapping[str, str]


def read_header(path: Path) -> Header:
    """Raises RecordingError where the file is no recording."""
    for number, line in _lines(path):
        return _header(path, number, line)
    raise RecordingError(f"{path}: empty")


def read(path: Path) -> Iterator[RecordedTick]:
    """The ticks in order, one at a time. Raises RecordingError naming file and line where it is damaged."""
    shapes: dict[str, tuple[SeriesIndex, tuple[str, ...]]] = {}
    is_first = True
    for number, line in _lines(path):
        if is_first:
            _header(path, number, line)
            is_first = False
            continue
        try:
            yield _recorded(line, shapes)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise RecordingError(f"{path}:{number}: no tick of a recording ({error!r})") from error


def _lines(path: Path) -> Iterator[tuple[int, Any]]:
    number = 0
    try:
        with gzip.open(path, "rt", encoding="utf-8") as stream:
            while text := stream.readline(MAX_LINE_CHARS):
                check, _, text = text.rstrip("\n").partition(" ")
                if check != f"{zlib.crc32(text.encode()):08x}":
                    raise ValueError("the line's checksum does not fit")
                number += 1
                yield number, json.loads(text)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise RecordingError(f"{path}:{number + 1}: {error}") from error


def _header(path: Path, number: int, line: Any) -> Header:
    if not isinstance(line, dict) or line.get("format") != FORMAT:
        raise RecordingError(f"{path}:{number}: not a {FORMAT}")
    if line.get("version") != VERSION:
        raise RecordingError(f"{path}:{number}: version {line.get('version')}, this program reads {VERSION}")
    return Header(float(line["tick_s"]), {str(k): str(v) for k, v in line.get("labels", {}).items()})


def _recorded(line: Any, shapes: dict[str, tuple[SeriesIndex, tuple[str, ...]]]) -> RecordedTick:
    at_s = float(line["at_s"])
    frames = {}
    for row in line["frames"]:
        kind = SubjectKind(row["kind"])
        if "subjects" in row:
            subjects = tuple(Subject(kind, name) for name in row["subjects"])
            shapes[kind] = (SeriesIndex(kind, subjects), tuple(row["metrics"]))
        index, metrics = shapes[kind]
        observed = _array(row["observed_at_s"])
        frames[kind] = Frame(
            at_s, index, metrics, _array(row["values"]), observed, np.array(row["epoch"], dtype=np.int64)
        )
    relations = tuple(
        Membership(Subject.parse(child), Subject.parse(parent), since, np.inf if until is None else until)
        for child, parent, since, until in line["relations"]
    )
    tick = Tick(
        at_s,
        frames,
        tuple(_read_steps(row) for row in line["steps"]),
        tuple(_read_record(row) for row in line["logs"]),
        tuple(_read_event(row) for row in line["events"]),
        tuple(_read_status(row, at_s) for row in line["sources"]),
        (),
        tuple(_read_alert(row) for row in line.get("alerts", ())),
        tuple(
            AlertmanagerSilence(**row | {"matchers": tuple(row["matchers"])}) for row in line.get("silences", ())
        ),
        tuple(_read_record(row) for row in line.get("dumps", ())),
    )
    facts = {Subject.parse(name): dict(found) for name, found in line["facts"].items()}
    return RecordedTick(tick, relations, facts)


def _numbers(values: Floats) -> list[Any]:
    return [[None if v != v else v for v in row] for row in values.tolist()]  # noqa: PLR0124  NaN is null


def _array(rows: list[list[float | None]]) -> Floats:
    return np.array([[np.nan if v is None else v for v in row] for row in rows], dtype=np.float64)


def _column(values: Floats) -> list[float | str | None]:
    """A printed infinity is kept as text: it is a diverged loss."""
    return [None if np.isnan(v) else "inf" if np.isinf(v) else float(v) for v in values]


def _steps(steps: StepSeries) -> dict[str, Any]:
    columns = {name: _column(values) for name, values in steps.columns.items()}
    return {
        "subject": str(steps.subject),
        "run": steps.run,
        "step": steps.step.tolist(),
        "t_s": steps.t_s.tolist(),
        "columns": columns,
        "source": steps.source,
    }


def _read_steps(row: Any) -> StepSeries:
    columns = {
        str(name): np.array([np.nan if v is None else float(v) for v in values], dtype=np.float64)
        for name, values in row["columns"].items()
    }
    step, t_s = np.array(row["step"], dtype=np.int64), np.array(row["t_s"], dtype=np.float64)
    if {len(column) for column in columns.values()} - {len(step)} or len(t_s) != len(step):
        raise ValueError("steps of unequal length")
    return StepSeries(Subject.parse(row["subject"]), row["run"], step, t_s, columns, row["source"])


def _record(record: LogRecord) -> dict[str, Any]:
    return {
        "at": asdict(record.at),
        "source": record.source,
        "subject": str(record.subject),
        "text": record.text,
        "offset": record.offset,
    }


def _read_record(row: Any) -> LogRecord:
    return LogRecord(
        Instant(**row["at"]),
        str(row["source"]),
        Subject.parse(row["subject"]),
        str(row["text"]),
        int(row["offset"]),
    )


def _event(event: KernelEvent) -> dict[str, Any]:
    return {
        "kind": str(event.kind),
        "record": _record(event.record),
        "node": str(event.node),
        "code": event.code,
        "gpu": None if event.gpu is None else str(event.gpu),
        "pci_address": event.pci_address,
        "process": event.process,
        "pid": event.pid,
        "attributes": dict(event.attributes),
    }


def _read_event(row: Any) -> KernelEvent:
    return KernelEvent(
        KernelEventKind(row["kind"]),
        _read_record(row["record"]),
        Subject.parse(row["node"]),
        row["code"],
        None if row["gpu"] is None else Subject.parse(row["gpu"]),
        row["pci_address"],
        row["process"],
        row["pid"],
        dict(row["attributes"]),
    )


def _told(tick: Tick) -> dict[str, Any]:
    """Dumps, alerts and silences, where there are any. Lines are on our clock already, so clocks are not kept."""
    rows = {
        # of all lines of jobs' logs, what hanging ranks left; the notable ones are in `logs`
        "dumps": [_record(record) for record in tick.raw if record.text.startswith(PREFIX)],
        "alerts": [
            asdict(alert) | {"subject": None if alert.subject is None else str(alert.subject)}
            for alert in tick.alerts
        ],
        "silences": [asdict(silence) for silence in tick.silences],
    }
    return {name: found for name, found in rows.items() if found}


def _read_alert(row: Any) -> AlertmanagerAlert:
    subject = None if row["subject"] is None else Subject.parse(row["subject"])
    silenced_by, inhibited_by = tuple(row["silenced_by"]), tuple(row["inhibited_by"])
    return AlertmanagerAlert(**row | {"subject": subject, "silenced_by": silenced_by, "inhibited_by": inhibited_by})


def _status(status: SourceStatus) -> dict[str, Any]:
    return {
        "source": status.source.name,
        "ok": status.ok,
        "reason": None if status.reason is None else str(status.reason),
        "detail": status.detail,
        "samples": status.samples,
        "rejected": {str(reason): count for reason, count in status.rejected.items()},
        "covers": [str(subject) for subject in status.covers],
        **({"partly": status.partly} if status.partly else {}),
    }


def _read_status(row: Any, at_s: float) -> SourceStatus:
    return SourceStatus(
        Subject(SubjectKind.SOURCE, row["source"]),
        at_s,
        bool(row["ok"]),
        None if row["reason"] is None else Reason(row["reason"]),
        str(row["detail"]),
        int(row["samples"]),
        {Reason(reason): int(count) for reason, count in row["rejected"].items()},
        0.0,
        tuple(Subject.parse(name) for name in row["covers"]),
        str(row.get("partly", "")),
    )
