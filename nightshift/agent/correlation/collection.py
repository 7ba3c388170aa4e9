"""Asks every collector at once and waits for none of them longer than was agreed.

A collector keeps its own timeout. One that breaks that promise must not stop the fleet's tick: its sources are
reported as timed out, it is not asked again while it is still busy, and what it brings late joins the next tick, so
that no line or step is lost. Threads are daemons, so that a stuck collector cannot hold up a shutdown either.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue

from nightshift import spans
from nightshift.collectors.base import Collector
from nightshift.collectors.frame import Reason, SourceStatus
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Batch

# Beyond the timeout that a collector was given, so that it can say itself which of its sources was late: this
# module only knows all of them.
_GRACE_S = 0.25
LEAST_PATIENCE_S = 4.0
"""A page of a busy exporter takes seconds however often it is read."""


@dataclass(frozen=True, slots=True)
class _Question:
    now_s: float
    inventory: Inventory
    timeout_s: float
    context: Context = field(default_factory=copy_context)
    """The look's: a span of a collector belongs to the look that asked, whichever thread answers."""


class _Worker:
    """One collector and the daemon thread that asks it."""

    def __init__(self, collector: Collector, place: str) -> None:
        self.collector = collector
        self.busy = False
        self._place = Subject(SubjectKind.SOURCE, f"{collector.name} {place}")
        self._known: tuple[SourceStatus, ...] = ()
        self._questions: SimpleQueue[_Question | None] = SimpleQueue()
        self._answers: SimpleQueue[Batch] = SimpleQueue()
        # a collector stuck in a system call cannot be stopped; a daemon thread does not hold up the exit either
        self._thread = threading.Thread(target=self._run, name=f"collect-{place}", daemon=True)
        self._thread.start()

    def ask(self, question: _Question) -> None:
        self.busy = True
        self._questions.put(question)

    def answer(self, wait_s: float) -> Batch | None:
        """What it brought, or None where it is still busy."""
        try:
            batch = self._answers.get(timeout=wait_s) if wait_s > 0 else self._answers.get_nowait()
        except Empty:
            return None
        self.busy = False
        # a collector that fails whole names no sources: those it last read are the ones without data
        self._known = tuple(batch.sources) or self._known
        return batch

    def overdue(self, now_s: float, waited_s: float) -> Batch:
        """Every source it is known to read, as timed out."""
        detail = f"{self.collector.name} has not answered for {waited_s:.1f} s; it is not asked again until it does"
        known = self._known or (SourceStatus(self._place, now_s, ok=False),)
        return Batch(
            [
                replace(s, at_s=now_s, ok=False, reason=Reason.TIMEOUT, detail=detail, samples=0, took_s=waited_s)
                for s in known
            ]
        )

    def stop(self, wait_s: float) -> None:
        """Ends the thread if it is idle and closes the collector; a busy one closes when it comes back."""
        self._questions.put(None)
        self._thread.join(wait_s)

    def _run(self) -> None:
        while (question := self._questions.get()) is not None:
            self._answers.put(question.context.run(self._collect, question))
        self.collector.close()

    def _collect(self, question: _Question) -> Batch:
        began_s = time.monotonic()
        try:
            with spans.span(f"collect {self.collector.name}", {"nightshift.source": self._place.name}):
                return self.collector.collect(question.now_s, question.inventory, question.timeout_s)
        except Exception as error:  # noqa: BLE001  a broken collector is a source without data, by name
            detail = f"{type(error).__name__}: {error}"
            took_s = time.monotonic() - began_s
            known = self._known or (SourceStatus(self._place, question.now_s, ok=False),)
            return Batch(
                [
                    replace(s, at_s=question.now_s, ok=False, reason=Reason.INTERNAL, detail=detail, took_s=took_s)
                    for s in known
                ]
            )


def patience_s(tick_s: float) -> float:
    """A source that takes longer than this has no data (s): most of the time until the next look."""
    return max(LEAST_PATIENCE_S, 0.8 * tick_s)


class Collection:
    """All configured collectors. `collect` is called from one thread."""

    def __init__(self, collectors: Sequence[Collector], timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._workers = [_Worker(collector, f"sources[{i}]") for i, collector in enumerate(collectors)]
        self._asked_s: dict[_Worker, float] = {}

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def collectors(self) -> list[Collector]:
        return [worker.collector for worker in self._workers]

    def swap(self, collectors: Sequence[Collector]) -> None:
        """Goes on with these; those that were there already keep their threads and state, the others are closed."""
        running = {id(worker.collector): worker for worker in self._workers}
        self._workers = [
            running[id(collector)] if id(collector) in running else _Worker(collector, f"sources[{i}]")
            for i, collector in enumerate(collectors)
        ]
        for gone in [worker for worker in running.values() if worker not in self._workers]:
            self._asked_s.pop(gone, None)
            # one that is busy is left alone: waiting for it would hold up the reload that takes it away
            gone.stop(1.0 if not gone.busy else 0.0)

    def collect(self, now_s: float, inventory: Inventory) -> list[Batch]:
        """One batch per collector, in the order of the settings, plus what late ones bring; within the timeout."""
        batches = []
        began_s = time.monotonic()
        for worker in self._workers:
            if worker.busy and (late := worker.answer(0)) is not None:
                # without its sources' states: they are of the look that timed out, and this look asks them again
                batches.append(Batch((), late.frames, late.steps, late.logs, late.events, raw=late.raw))
            if not worker.busy:
                worker.ask(_Question(now_s, inventory, self._timeout_s))
                self._asked_s[worker] = began_s
        for worker in self._workers:
            left_s = self._asked_s[worker] + self._timeout_s + _GRACE_S - time.monotonic()
            answer = worker.answer(left_s)
            batches.append(answer or worker.overdue(now_s, time.monotonic() - self._asked_s[worker]))
        return batches

    def close(self) -> None:
        """Closes every collector; those that are stuck are left to their daemon threads."""
        for worker in self._workers:
            worker.stop(1.0 if not worker.busy else 0.0)
