"""What PyTorch's NCCL watchdog and flight recorder print when a collective hangs: which, and how far ranks came.

The rank that enqueued least never reached the collective that the others wait in.

Lines as torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp writes them (2.0 to 2.9):

    [rank1]:[E… ProcessGroupNCCL.cpp:683] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=78,
        OpType=BROADCAST, NumelIn=80, NumelOut=80, Timeout(ms)=600000) ran for 600096 milliseconds …
    [rank1]:[E… ProcessGroupNCCL.cpp:1664] [PG 0 (default_pg) Rank 1] Exception (…) detected by watchdog at work:
        6463, last enqueued NCCL work: 6463, last completed NCCL work: 6462.
    … [PG ID 0 PG GUID 0(default_pg) Rank 3] Received a dump signal due to a collective timeout from rank 0 and we
        will try our best to dump the debug info. Last enqueued NCCL work: 11, last completed NCCL work: 10.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_RANK = re.compile(r"\[rank(\d{1,6})\]|\bRank (\d{1,6})\b", re.IGNORECASE)
_GROUP = re.compile(r"\[PG (?:ID )?(\d{1,9})(?: PG GUID [^\s(]*)? ?(?:\(([^)]{0,80})\))?")
_WORK = re.compile(
    r"WorkNCCL\((?:SeqNum=(\d{1,18}), )?OpType=(\w{1,40})(?:, NumelIn=(\d{1,18}), NumelOut=\d{1,18})?"
    r", Timeout\(ms\)=(\d{1,12})\)(?: ran for (\d{1,12}) milliseconds)?"
)
_AT = re.compile(r"(?:Timeout at NCCL work|detected by watchdog at work(?: sequence id)?): (\d{1,18})")
_STATUS = re.compile(
    r"last enqueued (?:NCCL )?work: (-?\d{1,18}),\s+last completed (?:NCCL )?work: (-?\d{1,18})", re.IGNORECASE
)
_DUMP = re.compile(
    r"[Rr]eceived a dump signal.*? from (?:this local rank|rank (\d{1,6}))|FlightRecorder|flight recorder"
)
_NONE = 2**40
"""Beyond this a counter was never set: an old release prints uninitialised memory."""


@dataclass(frozen=True, slots=True)
class NcclLine:
    """One line. Each field is None where the line does not tell it; -1 of work: none was ever enqueued."""

    rank: int | None = None
    group: str | None = None
    work: int | None = None
    operation: str | None = None
    elements: int | None = None
    timeout_s: float | None = None
    ran_s: float | None = None
    last_enqueued: int | None = None
    last_completed: int | None = None
    dumps: bool = False


def read_nccl_line(text: str) -> NcclLine | None:
    """What the line tells, or None where it is none of these. Never raises."""
    if "NCCL" not in text and "watchdog" not in text and "dump signal" not in text:
        return None
    work, at, status, dump = _WORK.search(text), _AT.search(text), _STATUS.search(text), _DUMP.search(text)
    if work is None and at is None and status is None and dump is None:
        return None
    rank, group = _RANK.search(text), _GROUP.search(text)
    number, operation, elements, limit, ran = work.groups() if work else (None,) * 5
    number = number or (at.group(1) if at else None)
    return NcclLine(
        None if rank is None else int(rank.group(1) or rank.group(2)),
        None if group is None else group.group(2) or group.group(1),
        None if number is None else int(number),
        operation,
        None if elements is None else int(elements),
        None if limit is None else int(limit) / 1000,
        None if ran is None else int(ran) / 1000,
        _known(status, 1),
        _known(status, 2),
        dump is not None,
    )


def _known(status: re.Match[str] | None, group: int) -> int | None:
    value = _NONE if status is None else int(status.group(group))
    return value if value < _NONE else None


def behind(lines: Iterable[NcclLine]) -> dict[str, tuple[int, ...]]:
    """By group, the ranks that had enqueued less than another of it: who never came to the collective. Of a rank's
    lines the last counts. A group of which one rank spoke, or all came equally far, is left out."""
    reached: dict[str, dict[int, int]] = {}
    for line in lines:
        if line.rank is not None and line.last_enqueued is not None:
            reached.setdefault(line.group or "", {})[line.rank] = line.last_enqueued
    return {
        group: tuple(sorted(rank for rank, work in by_rank.items() if work < max(by_rank.values())))
        for group, by_rank in reached.items()
        if len(by_rank) > 1 and len(set(by_rank.values())) > 1
    }
