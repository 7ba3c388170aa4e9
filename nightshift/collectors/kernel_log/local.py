"""This machine's kernel log: new lines and the events in them."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nightshift.collectors.frame import Reason, SourceStatus
from nightshift.collectors.http import SourceError
from nightshift.collectors.kernel_log.lines import KernelLogParser
from nightshift.collectors.kernel_log.readers import KMSG, FileReader, JournalReader, KmsgReader, LogReader
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.telemetry.pages import source_subject
from nightshift.collectors.tick import Batch

# At the start, older events are passed over: what they said was acted on, or is over.
SINCE_S = 900.0
# Found by PATH, like every command of the system.
JOURNALCTL = "journalctl"
# Most lines that are kept in one tick; the others are counted, and events among them are kept all the same.
MAX_LINES = 5_000
# Most that is read of a file in one tick: the kernel's own ring is smaller.
MAX_BYTES = 2**23


class LocalKernelLogCollector:
    """New kernel log lines of this machine, and the events among them."""

    plugin: ClassVar[str] = "kernel_log"

    class Settings(BaseModel):
        """This machine's kernel log."""

        model_config = ConfigDict(extra="forbid")

        source: Literal["auto", "kmsg", "journald", "file"] = Field(
            "auto", description="Where it is read; auto: /dev/kmsg where that may be read, else journald"
        )
        path: Path | None = Field(None, description="The file (source: file), or another device than /dev/kmsg")
        node: str = Field(default_factory=socket.gethostname, description="This node's name; none: its host name")

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
        if self._is_first:  # old lines tell the addresses of GPUs, but their events have had their day
            oldest = now_s - SINCE_S
            kept = [record for record in kept if record.at.t_s >= oldest]
            events = [event for event in events if event.record.at.t_s >= oldest]
            self._is_first = False
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
