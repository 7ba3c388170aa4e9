"""Lines of PyTorch's NCCL watchdog, as public logs of several releases hold them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.collectors.training.line import NcclLine, behind, read_nccl_line

CAUGHT = (
    "[rank1]:[E810 03:04:11.061727749 ProcessGroupNCCL.cpp:683] [Rank 1] Watchdog caught collective "
    "operation timeout: "
    "WorkNCCL(SeqNum=78, OpType=BROADCAST, NumelIn=80, NumelOut=80, Timeout(ms)=600000) ran for "
    "600096 milliseconds "
    "before timing out."
)
DETECTED = (
    "[rank1]:[E1003 18:37:01.833575187 ProcessGroupNCCL.cpp:1664] [PG 0 (default_pg) Rank 1] "
    "Exception (either an error "
    "or timeout) detected by watchdog at work: 6463, last enqueued NCCL work: 6463, last completed NCCL work: 6462."
)
OLD = (
    "[rank2]:[E ProcessGroupNCCL.cpp:1537] [PG 0 Rank 2] Timeout at NCCL work: 1, last enqueued NCCL work: 1, "
    "last completed NCCL work: 76280750235782912."
)
OF_2_0 = (
    "[Rank 4] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=880, OpType=ALLREDUCE, "
    "TensorShape=[384], Timeout(ms)=1800000) ran for 1800116 milliseconds before timing out."
)
DUMP = (
    "[rank3]:[E804 10:11:12.000000001 ProcessGroupNCCL.cpp:1429] [PG ID 0 PG GUID 0(default_pg) Rank "
    "3] Received a dump "
    "signal due to a collective timeout from rank 0 and we will try our best to dump the debug info. "
    "Last enqueued NCCL "
    "work: 77, last completed NCCL work: 77.This is most likely caused by incorrect usages of collectives"
)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            CAUGHT,
            NcclLine(rank=1, work=78, operation="BROADCAST", elements=80, timeout_s=600.0, ran_s=600.096),
        ),
        (DETECTED, NcclLine(rank=1, group="default_pg", work=6463, last_enqueued=6463, last_completed=6462)),
        (OLD, NcclLine(rank=2, group="0", work=1, last_enqueued=1)),
        (DUMP, NcclLine(rank=3, group="default_pg", last_enqueued=77, last_completed=77, dumps=True)),
        (
            "Watchdog caught collective operation timeout: WorkNCCL(OpType=BROADCAST, Timeout(ms)=150000)",
            NcclLine(operation="BROADCAST", timeout_s=150.0),
        ),
        (
            OF_2_0,
            NcclLine(rank=4, work=880, operation="ALLREDUCE", timeout_s=1800.0, ran_s=1800.116),
        ),
        (
            OF_2_0.partition("TensorShape")[0],
            NcclLine(rank=4, work=880, operation="ALLREDUCE"),
        ),
        ("NCCL INFO Using network IB", None),
        ("step=1 loss=2 rank=3", None),
    ],
)
def test_watchdog_and_flight_recorder_lines_are_read(line: str, told: NcclLine | None) -> None:
    assert read_nccl_line(line) == told


def test_the_rank_that_never_came_is_behind() -> None:
    """Ranks 1 and 2 wait in work 78, rank 3 stopped at 77; another group tells nothing."""
    texts = [DETECTED.replace("6463", "78"), DETECTED.replace("6463", "78").replace("ank1", "ank2"), DUMP, OLD]
    lines = [line for text in texts if (line := read_nccl_line(text)) is not None]
    assert behind(lines) == {"default_pg": (3,)}
    assert behind(lines[:2]) == {}


@given(st.sampled_from([CAUGHT, DETECTED, OLD, DUMP]), st.data())
def test_a_damaged_line_never_raises(line: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(line)))
    read_nccl_line(line[:at] + data.draw(st.text(max_size=20)) + line[at:])
