"""NCCL's watchdog is taken at its word: who waited, in what, since when."""

from __future__ import annotations

import pytest

from nightshift.collectors.frame import Instant, LogRecord, SourceStatus
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Fault, LogExhibit, State
from nightshift.detectors.contract.testing import changes
from nightshift.detectors.contract.world import START_S, HealthyFleet
from nightshift.detectors.progress.nccl_watchdog import NcclWatchdog

LINE = (
    "[rank3]:[E1121 04:11:02.123456 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=15, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 "
    "milliseconds before timing out."
)
POD = Subject(SubjectKind.POD, "ml/train-3")


def at(number: int, *lines: str, ok: bool = True) -> Tick:
    at_s = START_S + 5.0 * number
    world = HealthyFleet()
    logs = tuple(LogRecord(Instant(at_s), "log", POD, line, number) for line in lines)
    return Tick(at_s, logs=logs, sources=(SourceStatus(world.source, at_s, ok=ok, covers=(world.node,)),))


def test_the_line_is_a_hang_of_the_rank_that_waited_dated_by_what_it_waited() -> None:
    """One episode, with the quoted line; cleared by the job's next steps."""
    world = HealthyFleet()
    steps = Tick(START_S + 500.0, steps=world.steps(100, START_S + 500.0))
    found = changes(NcclWatchdog(), [at(0, "loss 2.1", LINE), at(1), steps], world.inventory())
    assert [f.state for f in found] == [State.FIRING, State.CLEAR]
    first = found[0]
    assert (first.fault, first.subject.name) == (Fault.HANG, "ml/train#3")
    assert first.since.t_s == START_S - 600.029
    assert (first.facts["collective"], first.facts["sequence"]) == ("ALLREDUCE", 15.0)
    (exhibit,) = first.evidence
    assert isinstance(exhibit, LogExhibit)
    assert exhibit.record.text == LINE


@pytest.mark.parametrize(
    ("line", "severity", "ranks"),
    [
        (
            "[rank5]:[E901] Received a dump signal due to a collective timeout from  rank 34 and we will",
            "critical",
            "34",
        ),
        ("[1,0]<stderr>:Stalled ops:HorovodBroadcast_dense_1_bias_0 [missing ranks: 1, 2]", "warning", "1, 2"),
    ],
)
def test_a_hang_is_also_told_by_another_rank_and_by_horovod(line: str, severity: str, ranks: str) -> None:
    (found,) = changes(NcclWatchdog(), [at(0, line)], HealthyFleet().inventory())
    assert (found.fault, found.severity, found.facts["waited_for"]) == (Fault.HANG, severity, ranks)


def test_lost_sources_are_no_data_and_talk_of_watchdogs_is_no_hang() -> None:
    """Silence of its node's sources does not clear; a line that only mentions the watchdog says nothing."""
    deaf = [at(n, ok=False) for n in range(2, 400)]
    found = changes(NcclWatchdog(), [at(0, LINE), at(1), *deaf], HealthyFleet().inventory())
    assert [f.state for f in found] == [State.FIRING, State.NO_DATA]
    lines = ("Watchdog thread started", "[Rank 0] Watchdog timeout is 600 s", "NCCL INFO Bootstrap")
    assert changes(NcclWatchdog(), [at(0, *lines)], HealthyFleet().inventory()) == []


def test_a_line_of_a_release_that_numbered_no_work_is_a_hang_too() -> None:
    """PyTorch 1.13 to 2.0."""
    world = HealthyFleet()
    (found,) = changes(NcclWatchdog(), [at(0, LINE.replace("SeqNum=15, ", ""))], world.inventory())
    assert (found.fault, found.facts["collective"]) == (Fault.HANG, "ALLREDUCE")
    assert "sequence" not in found.facts
    assert found.summary == "NCCL's watchdog: ALLREDUCE did not end in 600 s"


def test_a_line_that_names_its_process_group_is_a_hang_of_the_ranks_number_in_the_job() -> None:
    """PyTorch 2.4 and later write the group before the rank; a rank of a smaller group has another number there."""
    line = LINE.replace("[Rank 3]", "[PG ID 2 PG GUID 5(tp) Rank 1]")
    (found,) = changes(NcclWatchdog(), [at(0, line)], HealthyFleet().inventory())
    assert (found.subject.name, found.facts["sequence"]) == ("ml/train#3", 15.0)
