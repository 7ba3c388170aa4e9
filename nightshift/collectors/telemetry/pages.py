"""What the collectors of exposition pages share: fetch all, read each, place the samples, say how each answered.

The placing is worked out once per layout of a page (a `PagePlan`) and again only when its rows change.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar
from urllib.parse import urlsplit

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic.json_schema import SkipJsonSchema

from nightshift.collectors.clocks import ClockOffset, measured
from nightshift.collectors.frame import Floats, Frame, Reason, SourceStatus
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
from nightshift.collectors.shared_settings import stated_once
from nightshift.collectors.subject import MAX_NAME_CHARS, SHOWS_HELD_ONLY, Inventory, Subject, SubjectKind
from nightshift.collectors.telemetry.exposition import Layout, Page, PageParser
from nightshift.collectors.telemetry.gauge_events import ExportedEvents
from nightshift.collectors.telemetry.rows import Cells, Rows
from nightshift.collectors.telemetry.standstill import FROZEN, Standstill
from nightshift.collectors.tick import Batch

ACCEPT = "text/plain;version=0.0.4;q=1,application/openmetrics-text;version=1.0.0;q=0.5"
Relation = tuple[Subject, Subject]
# The kernel works its boot time out of two clocks, so it wanders by a little without a reboot.
BOOT_JITTER_S = 30.0


# Largest page that is read, decompressed; a page of one node takes a small part of it.
MAX_BYTES = 32 * 2**20
# How long a vanished subject keeps its row: an exporter that restarts is back sooner, and a row costs memory.
FORGET_AFTER_S = 3600.0


class PageSettings(BaseModel):
    """Pages to scrape."""

    model_config = ConfigDict(extra="forbid")

    urls: list[Address] = Field(min_length=1, description="Addresses of the pages, one per node")
    nodes: SkipJsonSchema[dict[str, str]] = stated_once("node_names", dict)
    connection: Connection = Field(default_factory=HttpSettings, description=CONNECTION)

    @field_validator("urls")
    @classmethod
    def _are_addresses(cls, urls: list[str]) -> list[str]:
        if len(set(urls)) != len(urls):
            raise ValueError("urls: an address is listed twice")
        return urls


@dataclass(frozen=True, eq=False)
class PagePlan:
    """Where a layout's samples belong and which relations its labels tell."""

    layout: Layout
    cells: Sequence[Cells]
    relations: frozenset[Relation] = frozenset()
    facts: Mapping[Subject, Mapping[str, str]] = field(default_factory=dict)
    nodes: tuple[Subject, ...] = ()
    rejected: Mapping[Reason, int] = field(default_factory=dict)
    clock: tuple[Subject, int | None] | None = None
    """The node whose clock stamped this page, and the sample that tells its time, if one does."""
    boot: tuple[tuple[Subject, ...], int] | None = None
    """Whose counters began at the time that this sample tells."""
    note: str = ""
    """What the page leaves out, in words."""
    errors: Sequence[tuple[int, Subject, str, Mapping[str, str]]] = ()
    """Samples that count errors of a GPU: position, GPU, metric, labels."""
    gpus: tuple[Subject, ...] = ()
    """Every GPU that the page shows."""
    counts: Sequence[tuple[int, str, str]] = ()
    """Samples that count entries of a node's hardware log: position, severity, name."""


@dataclass
class _Source:
    url: str
    subject: Subject
    node: str | None
    parser: PageParser = field(default_factory=PageParser)
    openmetrics: PageParser = field(default_factory=lambda: PageParser(openmetrics=True))
    plan: PagePlan | None = None
    told: Inventory | None = None
    booted_s: float = math.nan


class PageCollector(ABC):
    """Scrapes pages; a subclass says what their labels mean."""

    plugin: ClassVar[str]
    blanks = False

    def __init__(
        self, settings: PageSettings, rows: Mapping[SubjectKind, Rows], timer: Callable[[], float] = time.monotonic
    ) -> None:
        self._rows = rows
        self._timer = timer
        self._clocks: list[ClockOffset] = []
        self._events: list[KernelEvent] = []
        self._exported, self._standstill = ExportedEvents(), Standstill()
        self._fetcher = Fetcher(settings.connection, max_bytes=MAX_BYTES, accept=ACCEPT, timer=timer)
        self._sources = [
            _Source(url, source_subject(self.plugin, url), settings.nodes.get(url)) for url in settings.urls
        ]

    @property
    def name(self) -> str:
        return self.plugin

    @abstractmethod
    def plan(self, layout: Layout, page: Page, host: str, node: str | None, place: str) -> PagePlan:
        """Says where the samples of a new layout belong. `node` is the configured name, `host` and `place`
        (`host:port`) are the address's."""

    def collect(self, now_s: float, inventory: Inventory, timeout_s: float) -> Batch:
        answers = self._fetcher.fetch([HttpRequest(source.url) for source in self._sources], timeout_s)
        statuses = [
            self._take(source, answer, now_s, inventory)
            for source, answer in zip(self._sources, answers, strict=True)
        ]
        made = [rows.frame(now_s) for rows in self._rows.values()]
        frames = [frame for frame in made if isinstance(frame, Frame)]
        statuses = self._without_frozen(statuses, frames)
        clocks, self._clocks = self._clocks, []
        events, self._events = self._events, []
        return Batch(
            statuses,
            frames,
            logs=[event.record for event in events],
            events=events,
            clocks=clocks,
        )

    def _without_frozen(self, statuses: list[SourceStatus], frames: Sequence[Frame]) -> list[SourceStatus]:
        """Takes the values of exporters that measure no more out of the frames: they are of no time."""
        gpus = next((frame for frame in frames if frame.kind is SubjectKind.GPU), None)
        if gpus is None:
            return statuses
        groups = {source.subject: source.plan.gpus for source in self._sources if source.plan is not None}
        frozen = self._standstill.frozen_s(gpus, groups)
        for source in frozen:
            gpus.values[[gpus.index.rows[gpu] for gpu in groups[source] if gpu in gpus.index.rows]] = np.nan
        return [
            replace(status, ok=False, reason=Reason.STALE, detail=FROZEN.format(frozen[status.source]))
            if status.ok and status.source in frozen
            else status
            for status in statuses
        ]

    def shaped(self, plan: PagePlan, page: Page, now_s: float) -> tuple[Floats, Floats]:
        """Values and times (Unix s) that the plan's cells stand in; a subclass may join samples here."""
        return page.values, page.times_s

    def logged(self, source: Subject, plan: PagePlan, page: Page, now_s: float) -> list[KernelEvent]:
        """Events that a page counts beside its GPUs' errors."""
        return []

    def close(self) -> None:
        self._fetcher.close()

    def _take(
        self, source: _Source, answer: HttpResponse | SourceError, now_s: float, inventory: Inventory
    ) -> SourceStatus:
        # also for a page that failed: what is unwatched now is what the source covered before
        covers = source.plan.nodes if source.plan is not None else ()
        if not covers and source.node is not None:
            covers = (Subject(SubjectKind.NODE, source.node),)
        if isinstance(answer, SourceError):
            return SourceStatus(source.subject, now_s, False, answer.reason, answer.detail, covers=covers)
        page, cut = _read(source, answer)
        plan = self._plan_for(source, page, now_s, inventory)
        rejected = dict(page.rejected)
        _add(rejected, plan.rejected)
        self._look_at_clocks(source, plan, page, answer)
        counted = [(gpu, name, labels, float(page.values[at])) for at, gpu, name, labels in plan.errors]
        self._events += self._exported.take(counted, inventory, now_s, plan.gpus)
        self._events += self.logged(source.subject, plan, page, now_s)
        values, times_s = self.shaped(plan, page, now_s)
        used = len(plan.counts)
        for where in plan.cells:
            used += len(where.position)
            rows = self._rows[where.kind]
            _add(rejected, rows.put(where, values, times_s, now_s, blanks=self.blanks))
        reason, detail = None, plan.note
        if cut:
            reason, detail = Reason.TRUNCATED, f"the page ends {cut} after {len(answer.body)} bytes"
        elif not used:
            reason, detail = self._why_unused(page, rejected)
        return SourceStatus(
            source.subject,
            now_s,
            reason is None,
            reason,
            detail,
            samples=used,
            rejected=rejected,
            took_s=answer.took_s,
            covers=plan.nodes or covers,
            partly=plan.note,
        )

    def _plan_for(self, source: _Source, page: Page, now_s: float, inventory: Inventory) -> PagePlan:
        """The plan of this page: the last one while its rows are the same, else a new one, whose relations are
        told."""
        before = plan = source.plan
        # the parser returns the same layout while the rows are the same: who sits where is worked out once
        if plan is None or plan.layout is not page.layout:
            address = urlsplit(source.url)
            plan = self.plan(page.layout, page, address.hostname or "", source.node, address.netloc)
        if plan is not before or source.told is not inventory:
            # an inventory that is new here (a restart, a replay) has heard of nothing that the last plan said
            tell(inventory, before if source.told is inventory else None, plan, now_s)
            if before is not None:
                for rows in self._rows.values():
                    rows.renew(_with_other_driver(before, plan))
            source.plan, source.told = plan, inventory
        return plan

    def _why_unused(self, page: Page, rejected: Mapping[Reason, int]) -> tuple[Reason | None, str]:
        """What is wrong with a page of which no sample is used. A page that declares our metrics and has no sample
        of them is well: a node without GPUs."""
        if not any(name in rows.column for name in page.layout.types for rows in self._rows.values()):
            return Reason.NOT_FOUND, f"none of {len(page.values)} samples is one that {self.plugin} knows"
        if not rejected:
            return None, ""
        return Reason.MALFORMED, f"no sample can be used, {sum(rejected.values())} were refused"

    def _look_at_clocks(self, source: _Source, plan: PagePlan, page: Page, answer: HttpResponse) -> None:
        """Measures the node's clock, and notes a reboot."""
        if plan.clock is not None:
            node, at = plan.clock
            told_s = math.nan if at is None else float(page.values[at])
            offset = measured(node.name, answer.sent_s, answer.took_s, told_s, answer.date_s)
            if offset is not None:
                self._clocks.append(offset)
        if plan.boot is not None:
            subjects, at = plan.boot
            booted_s = float(page.values[at])
            if abs(booted_s - source.booted_s) > BOOT_JITTER_S:
                for rows in self._rows.values():
                    rows.renew(subjects)
            # a page without the boot time for once must not make the next one look like a reboot
            source.booted_s = source.booted_s if math.isnan(booted_s) else booted_s


def _read(source: _Source, answer: HttpResponse) -> tuple[Page, str]:
    """The page, and where it is cut ("" where it is whole)."""
    body, whole = answer.body, not answer.body or answer.body.endswith(b"\n")
    openmetrics = answer.content_type.startswith("application/openmetrics-text")
    if openmetrics:  # it has to say where it ends, and Prometheus refuses it otherwise
        whole = body.rstrip().endswith(b"# EOF")
    if not body.endswith(b"\n"):
        body = body[: body.rfind(b"\n") + 1]  # the last value may be cut: 12345 reads as 123
    cut = "inside a line" if len(body) < len(answer.body) else "without # EOF"
    return (source.openmetrics if openmetrics else source.parser).parse(body), "" if whole else cut


def source_subject(plugin: str, place: str) -> Subject:
    return Subject(SubjectKind.SOURCE, f"{plugin} {place}"[:MAX_NAME_CHARS])


def _with_other_driver(before: PagePlan, now: PagePlan) -> list[Subject]:
    """The GPUs whose driver was replaced: it counts anew."""
    drivers = {gpu: facts["driver"] for gpu, facts in before.facts.items() if "driver" in facts}
    return [gpu for gpu, facts in now.facts.items() if facts.get("driver", "") not in (drivers.get(gpu), "")]


def _add(total: dict[Reason, int], more: Mapping[Reason, int]) -> None:
    for reason, count in more.items():
        total[reason] = total.get(reason, 0) + count


def tell(inventory: Inventory, before: PagePlan | None, now: PagePlan, at_s: float) -> None:
    """Observes what the labels say and ends what they no longer say.

    A GPU that merely vanished from its page stays on its node, where its fault will be looked for; it leaves when
    its slot (node and PCI address, or index) is taken by a board that is new there. The boards that were there
    before may have been numbered anew.
    """
    for subject, facts in now.facts.items():
        if before is None or before.facts.get(subject) != facts:
            inventory.describe(subject, **facts)
    for subject in set(before.facts if before is not None else ()) - set(now.facts):
        if subject.kind is SubjectKind.NODE:
            inventory.describe(subject, **{SHOWS_HELD_ONLY: "no"})
    known = before.relations if before is not None else frozenset()
    for child, parent in known - now.relations:
        # a pod that left its GPU is gone; a GPU that left its page may be lost, and must be found on its node
        if parent.kind is not SubjectKind.NODE:
            inventory.end(child, parent, at_s)
    _leave_slots(inventory, now, now.relations - known, at_s)
    for child, parent in now.relations - known:
        inventory.observe(child, parent, at_s)


def _leave_slots(inventory: Inventory, now: PagePlan, new: frozenset[Relation], at_s: float) -> None:
    """Boards that are not on the page any more leave the slots that new boards sit in."""
    taken: dict[Subject, set[str]] = defaultdict(set)
    for child, parent in new:
        if parent.kind is SubjectKind.NODE and (slot := now.facts.get(child, {}).get("slot")):
            taken[parent].add(slot)
    here = {child for child, _ in now.relations}
    for node, slots in taken.items():
        for gpu in inventory.children(node, at_s, SubjectKind.GPU):
            if gpu not in here and inventory.fact(gpu, "slot") in slots:
                inventory.end(gpu, node, at_s)
