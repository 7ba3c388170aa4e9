"""One slow, stuck or broken collector costs its own data and nothing else."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from nightshift.agent.correlation.collection import Collection
from nightshift.collectors.frame import Instant, LogRecord, Reason, SourceStatus
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Batch

NODE = Subject(SubjectKind.NODE, "n1")
SOURCE = Subject(SubjectKind.SOURCE, "scripted here")


@dataclass
class Scripted:
    """Answers with one log line per call; waits for `gate`, and raises `error` while it is set."""

    gate: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None
    calls: int = 0
    closed: bool = False
    name: str = "scripted"

    def collect(self, now_s: float, inventory: Inventory, timeout_s: float) -> Batch:
        self.calls += 1
        call = self.calls
        self.gate.wait(280)
        if self.error is not None:
            raise self.error
        line = LogRecord(Instant(now_s), "scripted", NODE, f"{self.name} {call}", call)
        return Batch([SourceStatus(SOURCE, now_s, ok=True, covers=(NODE,))], logs=[line])

    def close(self) -> None:
        self.closed = True


def lines(batches: list[Batch]) -> list[str]:
    return [record.text for batch in batches for record in batch.logs]


def test_a_stuck_collector_is_reported_and_its_late_answer_is_not_lost() -> None:
    """While one hangs, the other is collected on time; the hung one is asked once and its lines join later."""
    stuck, fine = Scripted(name="stuck"), Scripted(name="fine")
    fine.gate.set()
    stuck.gate.set()
    collection = Collection([stuck, fine], timeout_s=60.0)
    heard = lines(collection.collect(1.0, Inventory()))
    stuck.gate.clear()
    collection._timeout_s = 0.2
    for now_s in (2.0, 3.0):
        batches = collection.collect(now_s, Inventory())
        heard += lines(batches)
        status = next(batch for batch in batches if batch.sources).sources[0]
        assert (status.ok, status.reason, status.source, status.covers) == (False, Reason.TIMEOUT, SOURCE, (NODE,))
    assert stuck.calls == 2, "a busy collector must not be asked again"
    stuck.gate.set()
    collection._timeout_s = 60.0
    while stuck.calls < 3 or fine.calls < 4:
        heard += lines(collection.collect(4.0, Inventory()))
    for worker in (stuck, fine):
        told = [line for line in heard if line.startswith(worker.name)]
        assert told == [f"{worker.name} {call + 1}" for call in range(worker.calls)]
    collection.close()
    assert stuck.closed
    assert fine.closed


def test_a_collector_that_raises_is_a_source_without_data_by_name() -> None:
    """A bug in a collector becomes a status with the error's text; the next answer is used again."""
    broken = Scripted(error=ZeroDivisionError("boom"))
    broken.gate.set()
    collection = Collection([broken], timeout_s=60.0)
    status = collection.collect(1.0, Inventory())[0].sources[0]
    assert status.reason is Reason.INTERNAL
    assert "ZeroDivisionError: boom" in status.detail
    assert status.source.name == "scripted sources[0]"
    broken.error = None
    assert lines(collection.collect(2.0, Inventory())) == ["scripted 2"]
    collection.close()


def test_closing_does_not_wait_for_a_stuck_collector() -> None:
    """A shutdown takes no longer because a collector hangs."""
    stuck = Scripted()
    collection = Collection([stuck], timeout_s=0.05)
    collection.collect(1.0, Inventory())
    collection.close()
    assert not stuck.closed
    stuck.gate.set()
