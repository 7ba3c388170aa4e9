"""The kernel log of every node, from the node agents: lines after a cursor, so that nothing is read twice or lost.

`GET URL?after=CURSOR` answers JSON lines `{"cursor": int, "t_s": float, "text": str}`, oldest first. A server whose
newest cursor is below CURSOR began anew (reboot) and answers from its start; that is told as a GAP.

Cursors outlive the daemon in `state_file`. They are written at the next look, when what was read has been taken up:
after a crash a tick's lines may come twice, and none is lost.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

import orjson
from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from nightshift.collectors.frame import Instant, LogRecord, Reason, SourceStatus
from nightshift.collectors.http import (
    CONNECTION,
    Address,
    Connection,
    Fetcher,
    HttpRequest,
    HttpResponse,
    HttpSettings,
    SourceError,
)
from nightshift.collectors.kernel_log.event import KernelEvent
from nightshift.collectors.kernel_log.lines import MAX_TEXT, KernelLogParser, since, single_lines
from nightshift.collectors.shared_settings import stated_once
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.telemetry.pages import source_subject
from nightshift.collectors.tick import Batch

FUTURE_S = 300.0
_State = tuple[int, dict[str, str]]
"""A node's cursor and the UUIDs of its PCI addresses."""
_MOST_AWAY = 10_000


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """Where a node's log is served; `certificate_name` is the name in its certificate, where that is not the
    host."""

    url: str
    node: str
    certificate_name: str | None = None


@dataclass
class _Node:
    url: str
    source: Subject
    node: Subject
    certificate_name: str | None = None
    parser: KernelLogParser = field(init=False)
    cursor: int = -1
    is_first: bool = True

    def __post_init__(self) -> None:
        self.parser = KernelLogParser(self.node)


# Most that is read of one node in one tick: the kernel's own ring is smaller.
MAX_BYTES = 8 * 2**20
# Most lines that are kept of one node in one tick; the others are counted, events are kept all the same.
MAX_LINES = 5_000
# On a node read for the first time, older events are skipped: what they said is over.
SINCE_S = 900.0


class NodeLogCollector:
    """New kernel log lines of all nodes, and the events among them."""

    plugin: ClassVar[str] = "node_log"

    class Settings(BaseModel):
        """Reads the kernel log that `nightshift node` serves."""

        model_config = ConfigDict(extra="forbid")

        urls: list[Address] = Field(min_length=1, description="Addresses of the nodes' `/kernel-log`")
        nodes: SkipJsonSchema[dict[str, str]] = stated_once("node_names", dict)
        state_file: SkipJsonSchema[Path | None] = Field(
            None, exclude=True, description="Keeps the cursors over restarts; set from `state_dir`"
        )
        connection: Connection = Field(default_factory=HttpSettings, description=CONNECTION)

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_lines, self._since_s = MAX_LINES, SINCE_S
        self._state_file = settings.state_file
        self._kept, self._unkept = "", ""
        self._away: dict[str, _State] = {}
        """By source, what is known of nodes that are not read now: an agent that is replaced comes back."""
        self._load()
        self._fetcher = Fetcher(settings.connection, max_bytes=MAX_BYTES, timer=clock)
        self._nodes = [
            self._resumed(
                _Node(
                    url,
                    source_subject(self.plugin, url),
                    Subject(SubjectKind.NODE, settings.nodes.get(url) or urlsplit(url).hostname or url),
                )
            )
            for url in settings.urls
        ]

    @property
    def name(self) -> str:
        return self.plugin

    def retarget(self, addresses: Iterable[NodeAddress]) -> None:
        """Reads these nodes from now on. One that is known goes on from its cursor, wherever it is served now."""
        known = {node.node.name: node for node in self._nodes}
        self._nodes = []
        for address in addresses:
            node = known.pop(address.node, None) or self._resumed(
                _Node(
                    address.url,
                    source_subject(self.plugin, address.node),
                    Subject(SubjectKind.NODE, address.node),
                )
            )
            node.url, node.certificate_name = address.url, address.certificate_name
            self._nodes.append(node)
        self._away |= {node.source.name: _state(node) for node in known.values() if not node.is_first}
        while len(self._away) > _MOST_AWAY:
            del self._away[next(iter(self._away))]

    def collect(self, now_s: float, inventory: Inventory, timeout_s: float) -> Batch:
        self._keep()
        requests = [
            HttpRequest(
                n.url + ("&" if "?" in n.url else "?") + f"after={n.cursor}", certificate_name=n.certificate_name
            )
            for n in self._nodes
        ]
        answers = self._fetcher.fetch(requests, timeout_s)
        statuses, logs, events = [], [], []
        for node, answer in zip(self._nodes, answers, strict=True):
            if isinstance(answer, SourceError):
                statuses.append(
                    SourceStatus(node.source, now_s, False, answer.reason, answer.detail, covers=(node.node,))
                )
                continue
            status, lines, found = self._take(node, answer, now_s)
            statuses.append(status)
            logs += lines
            events += found
        return Batch(statuses, logs=logs, events=events)

    def close(self) -> None:
        self._keep()
        self._fetcher.close()

    def _load(self) -> None:
        """Reads the kept cursors. A file that is damaged is as none: each node is read from its start."""
        if self._state_file is None:
            return
        try:
            kept = orjson.loads(self._state_file.read_bytes())
            self._away = {
                str(source): (int(state["cursor"]), {str(k): str(v) for k, v in state["uuid_of"].items()})
                for source, state in kept.items()
            }
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            self._unkept = f"{self._state_file} cannot be used: {error}"

    def _resumed(self, node: _Node) -> _Node:
        """The node, from where it was read last."""
        if (state := self._away.pop(node.source.name, None)) is not None:
            node.cursor, node.parser.uuid_of = state
            node.is_first = node.cursor < 0
        return node

    def _keep(self) -> None:
        """Writes the cursors of what was read up to the last look, all or nothing."""
        if self._state_file is None:
            return
        states = self._away | {node.source.name: _state(node) for node in self._nodes}
        told = {source: {"cursor": cursor, "uuid_of": uuid_of} for source, (cursor, uuid_of) in states.items()}
        text = orjson.dumps(told).decode()
        if text == self._kept:
            return
        part = self._state_file.with_suffix(".part")
        try:
            part.write_text(text)
            part.replace(self._state_file)
            self._kept, self._unkept = text, ""
        except OSError as error:
            self._unkept = f"cursors cannot be kept in {self._state_file}: {error.strerror}"

    def _take(
        self, node: _Node, answer: HttpResponse, now_s: float
    ) -> tuple[SourceStatus, list[LogRecord], list[KernelEvent]]:
        rejected: dict[Reason, int] = {}
        lines = answer.body.split(b"\n")
        whole = not lines.pop()
        found = [_record(line, node, now_s, rejected) for line in lines if line.strip()]
        records = [record for record in found if record is not None]
        began_anew = [r for r, cursor in _with_previous(records, node.cursor) if r.offset <= cursor]
        single = single_lines(records)
        kept, events = node.parser.sift(single, self._max_lines)
        refused = len(single) - len(kept)
        if node.is_first and records:
            node.is_first = False
            kept, events = since(now_s - self._since_s, kept, events)
        events = [*(node.parser.gap(record, "the log restarted") for record in began_anew), *events]
        if records:
            node.cursor = records[-1].offset
        if refused:
            rejected[Reason.TOO_LARGE] = refused
        reason, detail = (
            (None, self._unkept[:300]) if whole else (Reason.TRUNCATED, "the answer ends inside a line")
        )
        if found and not records:
            reason, detail = Reason.MALFORMED, f"none of {len(found)} lines is one that `nightshift node` serves"
        status = SourceStatus(
            node.source,
            now_s,
            reason is None,
            reason,
            detail,
            samples=len(records),
            rejected=rejected,
            took_s=answer.took_s,
            covers=(node.node,),
        )
        return status, kept, events


def _state(node: _Node) -> _State:
    return node.cursor, dict(list(node.parser.uuid_of.items())[:64])


def _record(line: bytes, node: _Node, now_s: float, rejected: dict[Reason, int]) -> LogRecord | None:
    """One served line, or None where it is refused (counted). A time that cannot be is replaced by now."""
    try:
        row = orjson.loads(line)
        cursor, t_s, text = row["cursor"], row["t_s"], row["text"]
        if type(cursor) is not int or not isinstance(t_s, int | float) or not isinstance(text, str):
            raise TypeError
    except (orjson.JSONDecodeError, KeyError, TypeError):
        rejected[Reason.MALFORMED] = rejected.get(Reason.MALFORMED, 0) + 1
        return None
    at = Instant(float(t_s), 0.0, node.node.name)
    if not math.isfinite(t_s) or t_s > now_s + FUTURE_S or t_s < 0:
        rejected[Reason.CLOCK] = rejected.get(Reason.CLOCK, 0) + 1
        at = Instant(now_s, FUTURE_S, node.node.name)
    return LogRecord(at, node.source.name, node.node, text[:MAX_TEXT], cursor)


def _with_previous(records: Sequence[LogRecord], cursor: int) -> Iterable[tuple[LogRecord, int]]:
    """Each record with the cursor before it."""
    return zip(records, [cursor, *(record.offset for record in records)], strict=False)
