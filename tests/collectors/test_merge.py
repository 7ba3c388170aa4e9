"""Joining of collectors' answers: nothing is lost, nothing old wins, rows stay in place."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nightshift.collectors.clocks import ClockOffset
from nightshift.collectors.frame import Frame, Instant, LogRecord, Order, Reason, SeriesIndex, SourceStatus
from nightshift.collectors.kernel_log.event import KernelEvent, KernelEventKind
from nightshift.collectors.kernel_log.pci import PCI_FACT, canonical_pci
from nightshift.collectors.merge import Merger, merge
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Batch

GPUS = tuple(Subject(SubjectKind.GPU, f"GPU-{n}") for n in range(4))
NODE = Subject(SubjectKind.NODE, "n1")


def frame(
    rows: tuple[Subject, ...], metrics: tuple[str, ...], values: list[list[float]], at: float = 100.0
) -> Frame:
    return Frame(
        at,
        SeriesIndex(SubjectKind.GPU, rows),
        metrics,
        np.array(values),
        np.full((1, len(metrics)), at),
        np.zeros(len(rows), dtype=np.int64),
    )


def test_a_single_frame_passes_through_unchanged() -> None:
    only = frame(GPUS[:2], ("gpu_power_w",), [[1.0], [2.0]])
    assert merge([Batch((), (only,))], 100.0).frames[SubjectKind.GPU] is only


def test_cells_of_two_sources_join_and_the_newer_observation_wins() -> None:
    old = frame(GPUS[:2], ("gpu_power_w", "gpu_temperature_c"), [[100.0, 30.0], [200.0, 40.0]], at=90.0)
    new = frame(GPUS[1:3], ("gpu_power_w",), [[250.0], [300.0]], at=95.0)
    for parts in ([old, new], [new, old]):
        joined = merge([Batch((), (part,)) for part in parts], 100.0).frames[SubjectKind.GPU]
        assert joined.value(GPUS[0], "gpu_power_w") == 100.0
        assert joined.value(GPUS[1], "gpu_power_w") == 250.0
        assert joined.times_s("gpu_power_w")[joined.index.rows[GPUS[1]]] == 95.0
        assert joined.value(GPUS[2], "gpu_power_w") == 300.0
        assert math.isnan(joined.value(GPUS[2], "gpu_temperature_c"))


def test_lines_of_nodes_whose_clocks_disagree_are_put_on_ours_before_they_are_compared() -> None:
    """n1 is 30 s ahead and n2 right: n1's line is the earlier one, whatever its stamp says. One whose clock was
    measured by a Date alone keeps its stamp."""

    def line(node: str, t_s: float) -> LogRecord:
        return LogRecord(Instant(t_s, 0.0, node), "kmsg", Subject(SubjectKind.NODE, node), "x", 1)

    offsets = (
        ClockOffset("n1", 30.0, 0.01, 100.0),
        ClockOffset("n2", 0.001, 0.01, 100.0),
        ClockOffset("n3", 9.0, 0.6, 100.0),
    )
    records = [line("n1", 130.0), line("n2", 104.0), line("n3", 109.0)]
    events = [KernelEvent(KernelEventKind.XID, r, r.subject, 79) for r in records]
    tick = merge([Batch((), clocks=offsets), Batch((), logs=records, events=events)], 110.0)
    ahead, right, coarse = tick.logs
    assert records[0].at.order(records[1].at) is Order.AFTER
    assert ahead.at.order(right.at) is Order.BEFORE
    assert ahead.at.t_s == pytest.approx(100.0)
    assert right.at.t_s == 104.0
    assert right.at.uncertainty_s > 0.01
    assert coarse.at == records[2].at
    assert [event.node.name for event in tick.events] == ["n1", "n2", "n3"]
    assert tick.events[0].record == ahead


def test_a_missing_value_never_hides_a_known_one() -> None:
    old = frame(GPUS[:1], ("gpu_power_w",), [[100.0]], at=90.0)
    new = frame(GPUS[:1], ("gpu_power_w",), [[math.nan]], at=95.0)
    assert merge([Batch((), (old,)), Batch((), (new,))], 100.0).frames[SubjectKind.GPU].values[0, 0] == 100.0


def test_joined_rows_keep_their_index_while_membership_is_unchanged() -> None:
    merger = Merger()
    first, second = (frame(GPUS[:2], ("a",), [[1.0], [1.0]]), frame(GPUS[2:], ("a",), [[2.0], [2.0]]))
    before = merger.merge([Batch((), (first,)), Batch((), (second,))], 1.0).frames[SubjectKind.GPU]
    again = merger.merge([Batch((), (first,)), Batch((), (second,))], 2.0).frames[SubjectKind.GPU]
    assert again.index is before.index
    moved = merger.merge([Batch((), (first,)), Batch((), (frame(GPUS[3:], ("a",), [[3.0]]),))], 3.0)
    assert moved.frames[SubjectKind.GPU].index is not before.index
    assert len(moved.frames[SubjectKind.GPU].index) == 3


def test_an_event_gets_the_gpu_that_sat_at_its_address_at_that_time() -> None:
    inventory = Inventory()
    inventory.observe(GPUS[0], NODE, 0.0)
    inventory.describe(GPUS[0], **{PCI_FACT: "0000:9b:00"})
    inventory.end(GPUS[0], NODE, 50.0)
    inventory.observe(GPUS[1], NODE, 50.0)
    inventory.describe(GPUS[1], **{PCI_FACT: "0000:9b:00"})

    def event(at_s: float) -> KernelEvent:
        record = LogRecord(Instant(at_s), "kmsg", NODE, "NVRM: Xid", 0)
        return KernelEvent(KernelEventKind.XID, record, NODE, 79, pci_address="0000:9b:00")

    batch = Batch((), events=(event(60.0), event(40.0)))
    assert [e.gpu for e in merge([batch], 100.0, inventory).events] == [GPUS[0], GPUS[1]]
    assert [e.gpu for e in merge([batch], 100.0).events] == [None, None]


def test_of_two_answers_about_one_source_the_failure_is_kept() -> None:
    source = Subject(SubjectKind.SOURCE, "x")
    good, bad = SourceStatus(source, 1.0, True), SourceStatus(source, 1.0, False, Reason.TIMEOUT)
    assert merge([Batch((good,)), Batch((bad,))], 1.0).sources == (bad,)
    assert merge([Batch((bad,)), Batch((good,))], 1.0).sources == (bad,)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0000:9b:00", "0000:9b:00"),
        ("00000000:9B:00.0", "0000:9b:00"),
        ("9b:00.0", "0000:9b:00"),
        ("0018:01:00", "0018:01:00"),
        ("<unknown>", None),
        ("", None),
    ],
)
def test_one_spelling_of_every_pci_address(text: str, expected: str | None) -> None:
    assert canonical_pci(text) == expected
