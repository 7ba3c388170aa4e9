"""What was recorded comes back as it was; a damaged recording is named, never half believed."""

from __future__ import annotations

import gzip
import math
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.collectors.check import check_collect
from nightshift.collectors.frame import Frame, Instant, LogRecord, Reason, SeriesIndex, SourceStatus, StepSeries
from nightshift.collectors.kernel_log.event import KernelEvent, KernelEventKind
from nightshift.collectors.prometheus.alert import AlertmanagerAlert, AlertmanagerSilence
from nightshift.collectors.recording import RecordingError, RecordingWriter, read, read_header
from nightshift.collectors.replay import ReplayCollector, span
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.collectors.training.hang_dumps import PREFIX

GPUS = tuple(Subject(SubjectKind.GPU, f"GPU-{n}") for n in range(3))
NODE, POD = Subject(SubjectKind.NODE, "n1"), Subject(SubjectKind.POD, "ml/job-0")
RANK = Subject(SubjectKind.RANK, "ml/job#0")
SOURCE = Subject(SubjectKind.SOURCE, "dcgm_exporter http://n1")


def tick(at_s: float, index: SeriesIndex, power: float) -> Tick:
    values = np.array([[power, math.nan]] * len(index))
    epoch = np.arange(len(index))
    record = LogRecord(Instant(at_s - 1, 0.5, "n1"), "kmsg", NODE, "NVRM: Xid …79", int(at_s))
    loss = np.array([2.5, math.inf, math.nan])
    steps = StepSeries(RANK, "r1", np.array([1, 2, 3]), np.full(3, at_s), {"loss": loss}, "log")
    status = SourceStatus(SOURCE, at_s, False, Reason.TIMEOUT, "slow", 3, {Reason.CLOCK: 2}, covers=(NODE,))
    return Tick(
        at_s,
        {
            SubjectKind.GPU: Frame(
                at_s, index, ("gpu_power_w", "gpu_xid_last"), values, np.full((1, 2), at_s), epoch
            )
        },
        (steps,),
        (record,),
        (KernelEvent(KernelEventKind.XID, record, NODE, 79, GPUS[0], "0000:9b:00", "python", 7, {"a": "b"}),),
        (status,),
        (),
        (
            AlertmanagerAlert(
                "GpuHot", "f1", GPUS[0], at_s - 60, at_s + 60, "critical", "83 °C", {"a": "b"}, ("s1",)
            ),
        ),
        (AlertmanagerSilence("s1", ('alertname="GpuHot"',), at_s - 9, at_s + 9, "ann", "swap"),),
        (
            replace(record, subject=RANK, text=PREFIX + "0 {}"),
            replace(record, subject=RANK, text="step 1 loss 2.5"),
        ),
    )


def write(path: Path) -> list[Tick]:
    inventory = Inventory()
    both, three = SeriesIndex(SubjectKind.GPU, GPUS[:2]), SeriesIndex(SubjectKind.GPU, GPUS)
    ticks = [tick(100.0, both, 1.0), tick(105.0, both, 2.0), tick(110.0, three, 3.0)]
    writer = RecordingWriter(path, 5.0, {"fault": "gpu_leak"})
    inventory.observe(GPUS[0], NODE, 90.0)
    inventory.observe(GPUS[0], POD, 90.0)
    inventory.describe(GPUS[0], index="0")
    writer.add(ticks[0], inventory)
    inventory.end(GPUS[0], POD, 104.0)
    writer.add(ticks[1], inventory)
    writer.add(ticks[2], inventory)
    writer.close()
    return ticks


def same(a: Tick, b: Tick) -> None:
    assert a.at_s == b.at_s
    assert a.logs == b.logs
    assert a.events == b.events
    assert a.sources == b.sources
    assert (a.alerts, a.silences) == (b.alerts, b.silences)
    assert [record for record in a.raw if record.text.startswith(PREFIX)] == list(b.raw)
    for kind, frame in a.frames.items():
        other = b.frames[kind]
        assert frame.index.subjects == other.index.subjects
        np.testing.assert_array_equal(frame.values, other.values)
        np.testing.assert_array_equal(frame.observed_at_s, other.observed_at_s)
        np.testing.assert_array_equal(frame.epoch, other.epoch)
    for mine, theirs in zip(a.steps, b.steps, strict=True):
        assert (mine.subject, mine.run, mine.source) == (theirs.subject, theirs.run, theirs.source)
        np.testing.assert_array_equal(mine.column("loss"), theirs.column("loss"))


def test_a_recording_reads_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl.gz"
    ticks = write(path)
    back = [recorded.tick for recorded in read(path)]
    for before, after in zip(ticks, back, strict=True):
        same(before, after)
    assert back[1].frames[SubjectKind.GPU].index is back[0].frames[SubjectKind.GPU].index
    assert read_header(path).labels == {"fault": "gpu_leak"}
    assert span(path) == (100.0, 110.0, 5.0)


def test_it_comes_when_the_clock_says_so_with_the_relations_of_that_time(tmp_path: Path, opened: Any) -> None:
    path = tmp_path / "r.jsonl.gz"
    ticks = write(path)
    of, inventory = opened(ReplayCollector(ReplayCollector.Settings(path=path))), Inventory()
    assert check_collect(of, 99.0, inventory, 30.0).frames == ()
    first = check_collect(of, 100.0, inventory, 30.0)
    assert first.frames[0].value(GPUS[0], "gpu_power_w") == 1.0
    assert inventory.parents(GPUS[0], 100.0) == [NODE, POD]
    late = check_collect(of, 111.0, inventory, 30.0)
    assert late.frames[0].value(GPUS[0], "gpu_power_w") == 3.0
    assert [r.offset for r in late.logs] == [105, 110]
    assert inventory.parents(GPUS[0], 111.0) == [NODE]
    assert inventory.fact(GPUS[0], "index") == "0"
    assert late.sources[1].reason is ticks[2].sources[0].reason
    assert check_collect(of, 120.0, inventory, 30.0).sources[0].reason is Reason.STALE


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.integers(0, 255), st.booleans())
def test_a_damaged_recording_is_named_and_what_was_read_before_was_right(
    tmp_path_factory: pytest.TempPathFactory, place: int, byte: int, cut: bool
) -> None:
    folder = tmp_path_factory.getbasetemp() / "damaged"
    folder.mkdir(exist_ok=True)
    path = folder / "r.jsonl.gz"
    ticks = write(path)
    data = bytearray(path.read_bytes())
    place %= len(data)
    if cut:
        data = data[:place]
    else:
        data[place] = byte
    path.write_bytes(bytes(data))
    try:
        for before, recorded in zip(ticks, read(path), strict=False):
            same(before, recorded.tick)
    except RecordingError as error:
        assert str(path) in str(error)  # noqa: PT017  any prefix may be read before the error


@pytest.mark.parametrize("text", ["", "{}\n", '{"format":"nightshift-recording","version":99}\n', "[1]\n", "\n"])
def test_what_is_no_recording_is_refused(tmp_path: Path, opened: Any, text: str) -> None:
    path = tmp_path / "r.jsonl.gz"
    lines = [f"{zlib.crc32(line.encode()):08x} {line}\n" for line in text.splitlines()]
    path.write_bytes(gzip.compress("".join(lines).encode()))
    with pytest.raises(RecordingError, match=r"r\.jsonl\.gz"):
        span(path)
    of = opened(ReplayCollector(ReplayCollector.Settings(path=path)))
    check_collect(of, 100.0, Inventory(), 30.0, expect_ok=False)
