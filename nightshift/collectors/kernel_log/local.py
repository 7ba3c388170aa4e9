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
        since_s: float = Field(900.0, ge=0, description="At the start, events older than this are not told (s)")
        journalctl: str = Field("journalctl", description="journald's command")
        max_lines: int = Field(5_000, ge=10, description="Most lines that are kept in one tick")
        max_bytes: int = Field(2**23, ge=2**12, description="Most that is read of a file in one tick (bytes)")

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
        kept, events = self._parser.sift(records, self._settings.max_lines)
        if self._is_first:  # old lines tell the addresses of GPUs, but their events have had their day
            oldest = now_s - self._settings.since_s
            kept = [record for record in kept if record.at.t_s >= oldest]
            events = [event for event in events if event.record.at.t_s >= oldest]
            self._is_first = False
        elif records:
            gaps = [self._parser.gap(records[min(n, len(records) - 1)], why) for n, why in lines.lost]
            events = [*gaps, *events]
        if len(kept) < len(records) and len(records) > self._settings.max_lines:
            rejected[Reason.TOO_LARGE] = len(records) - len(kept)
        return Batch([self._status(now_s, started, len(records), rejected, None)], logs=kept, events=events)

    def close(self) -> None:
        self._reader.close()

    def _choose(self) -> LogReader:
        settings = self._settings
        if settings.source == "file" and settings.path is not None:
            return FileReader(self._node, settings.path, settings.max_bytes)
        falls_back = settings.source == "auto" and not _readable(settings.path or KMSG)
        if settings.source == "journald" or (falls_back and shutil.which(settings.journalctl)):
            return JournalReader(self._node, settings.journalctl, settings.since_s)
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
