"""Which rank a job hangs on, and that no dump, however broken or hostile, does more than be refused."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.collectors.training.hang_dumps import (
    FILE_PATTERN,
    CollectiveEntry,
    DumpError,
    ProcessStack,
    RankTrace,
    RasReport,
    as_line,
    from_lines,
    own_frame,
    read_ras,
    read_stack,
    read_trace,
)
from nightshift.detectors.progress.hang_place import HangKind, locate

MISMATCH = """NCCL version 2.30.7 compiled with CUDA 12.8
Communicators... (0.002s)
=============
Group     Comms      Nodes     Ranks     Ranks     Ranks   Status  Errors
    0         1          2         4         8         8  RUNNING  MISMATCH
Warnings
========
#0-0 (78db921d1c117b4a) MISMATCH
  Communicator ranks have different AllReduce operation counts
  7 ranks have launched up to operation 64
  Rank 7 has launched up to operation 60 -- GPU 3 managed by process 1650386 on node node1
"""
OUTLIERS = """Communicators... (0.00s)
#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  26 ranks have launched up to operation 6650
  2 ranks have launched up to operation 6649
  Rank 4 -- GPU 4 managed by process 483076 on node 172.16.64.210
  Rank 5 -- GPU 5 managed by process 483077 on node 172.16.64.210
"""
MISSING = """Communicators... (2.05s)
Errors
======
INCOMPLETE
  Missing communicator data from 1 job process
  Process 3487984 on node 172.16.64.213 managing GPU 5
#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 21
"""
STACK = """Process 4242: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 4242 (idle): "MainThread"
    wait (torch/distributed/distributed_c10d.py:2900)
    train_step (/app/train.py:310)
    main (/app/train.py:20)
Thread 4243 (idle): "pin_memory"
    select (selectors.py:416)
"""

HANDLER = """Thread 0x00007feef77fe6c0 (most recent call first):
  File "/usr/lib/python3.11/selectors.py", line 416 in select

Current thread 0x00007fef1ce58b80 (most recent call first):
  File "/v/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/app/train.py", line 310 in train_step
  File "/app/train.py", line 20 in <module>
"""
"""As `faulthandler` wrote it of a rank that waited in gloo, shortened."""


def dump(rank: int, last: int, pending: int, sizes: int = 8, world: int = 4, **changes: Any) -> bytes:
    """A ring as PyTorch writes it: all-reduces up to `last`, those from `pending` on not completed."""
    entries = [
        {
            "process_group": ("0", "default_pg"), "profiling_name": "nccl:all_reduce", "collective_seq_id": n,
            "p2p_seq_id": 0, "is_p2p": False, "input_sizes": [[sizes if n == last else 8]],
            "output_sizes": [[8]], "input_dtypes": ["Float"], "output_dtypes": ["Float"], "time_created_ns": n,
            "state": "completed" if n < pending else "scheduled", "retired": n < pending,
            "frames": [
                {"name": "all_reduce", "filename": "/v/site-packages/torch/distributed/c.py", "line": 1},
                {"name": "train_step", "filename": "/app/train.py", "line": 300 + n},
            ],
        }
        for n in range(1, last + 1)
    ]  # fmt: skip
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(world)))}}
    status = {"0": {"last_enqueued_collective": last}}
    value = {"version": "2.10", "pg_config": config, "pg_status": status, "entries": entries, **changes}
    return pickle.dumps(value, protocol=2)


def test_the_rank_that_never_called_it_is_named_with_its_last_line() -> None:
    found = locate(read_trace(dump(r, 5 if r == 2 else 6, 6), r) for r in range(4))
    assert found is not None
    assert (found.kind, found.ranks, found.collective, found.number) == (HangKind.NOT_CALLED, (2,), "all_reduce", 6)
    assert (found.line, found.waiting_line) == ("train_step (/app/train.py:305)", "train_step (/app/train.py:306)")
    assert found.words == "rank 2 never called all_reduce number 6 of group 0; 3 ranks wait"


def test_another_size_in_its_place_is_named() -> None:
    found = locate(read_trace(dump(r, 6, 6, sizes=9 if r == 1 else 8), r) for r in range(4))
    assert found is not None
    assert (found.kind, found.ranks) == (HangKind.OTHER_CALL, (1,))


def test_operations_that_are_never_marked_completed_hide_nothing() -> None:
    """Gloo leaves every operation as scheduled; only the one that a rank is missing from holds the others."""
    found = locate(read_trace(dump(r, 5 if r == 3 else 6, 1), r) for r in range(4))
    assert found is not None
    assert (found.kind, found.ranks, found.number) == (HangKind.NOT_CALLED, (3,), 6)


def test_a_rank_without_a_dump_does_not_answer() -> None:
    found = locate(read_trace(dump(r, 6, 6), r) for r in (0, 1, 3))
    assert found is not None
    assert (found.kind, found.ranks) == (HangKind.NO_ANSWER, (2,))


def test_a_job_that_does_not_hang_has_no_place() -> None:
    assert locate(read_trace(dump(r, 6, 7), r) for r in range(4)) is None
    assert locate([]) is None


def test_where_all_ranks_are_in_the_same_collective_nobody_is_named() -> None:
    assert locate(read_trace(dump(r, 6, 6), r) for r in range(4)) is None


def test_a_stall_in_one_group_is_followed_to_its_end() -> None:
    """Ranks 2 and 3 wait for 1 in the world; 1 waits for 0 in a pair; 0 waits for nobody."""

    def entry(group: str, number: int, at: int, state: str = "scheduled") -> CollectiveEntry:
        return CollectiveEntry(group, number, "all_reduce", state, created_ns=at)

    groups = {"0": (0, 1, 2, 3), "pair": (0, 1)}
    done = entry("0", 1, 1, "completed")
    traces = [
        RankTrace(0, (done,), groups),
        RankTrace(1, (done, entry("pair", 1, 2)), groups),
        RankTrace(2, (done, entry("0", 2, 2)), groups),
        RankTrace(3, (done, entry("0", 2, 2)), groups),
    ]
    found = locate(traces)
    assert found is not None
    assert found.ranks == (0,)


def test_stacks_name_the_line_and_alone_the_rank() -> None:
    waits = ("wait (torch/distributed/c.py:1)", "train_step (/app/train.py:310)")
    stacks = [ProcessStack(r, waits) for r in range(7)] + [ProcessStack(7, ("read (/app/data.py:12)",))]
    found = locate([], None, stacks)
    assert found is not None
    assert (found.kind, found.ranks, found.line) == (HangKind.OTHER_STACK, (7,), "read (/app/data.py:12)")
    traced = locate((read_trace(dump(r, 5 if r == 7 else 6, 6, world=8), r) for r in range(8)), None, stacks)
    assert traced is not None
    assert (traced.source, traced.ranks, traced.line) == ("flight recorder", (7,), "read (/app/data.py:12)")


def test_what_faulthandler_wrote_is_the_stack_of_the_main_thread() -> None:
    stack = read_stack(HANDLER.encode(), 3)
    assert (stack.rank, own_frame(stack.frames)) == (3, "train_step (/app/train.py:310)")
    assert len(stack.frames) == 3


@pytest.mark.parametrize(
    ("text", "kind", "ranks"),
    [
        (MISMATCH, HangKind.NOT_CALLED, (7,)),
        (OUTLIERS, HangKind.NOT_CALLED, (4, 5)),
        (MISSING, HangKind.NO_ANSWER, (21,)),
    ],
)
def test_ras_alone(text: str, kind: HangKind, ranks: tuple[int, ...]) -> None:
    found = locate([], read_ras(text.encode()))
    assert found is not None
    assert (found.kind, found.ranks) == (kind, ranks)


def test_ras_in_json() -> None:
    def rank(n: int, count: int) -> dict[str, Any]:
        return {"rank": n, "host": "h", "pid": 1, "collective_counts": {"AllReduce": count, "Broadcast": 2}}

    value = {"communicators": [{"ranks": [rank(0, 9), rank(1, 7)], "missing_ranks": []}]}
    assert read_ras(json.dumps(value).encode()).behind == {1: 7}
    value["communicators"][0]["missing_ranks"] = [{"rank": 2, "host": "h", "pid": 5}]
    assert read_ras(json.dumps(value).encode()).missing == {2}


class Hostile:
    """Unpickled by `pickle.loads`, it runs a program."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.mark}",)


def test_a_pickle_that_names_code_is_refused_and_nothing_runs(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    with pytest.raises(DumpError, match="refused"):
        read_trace(pickle.dumps({"version": "2.10", "entries": [Hostile(mark)]}), 0)
    assert not mark.exists()


@given(st.binary(max_size=200), st.integers(0, 2000), st.integers(0, 2000))
def test_broken_dumps_are_refused_with_a_reason(noise: bytes, start: int, cut: int) -> None:
    whole = dump(0, 6, 6)
    for data in (noise, whole[:cut], whole[:start] + noise + whole[start + len(noise) :]):
        for read in (partial(read_trace, rank=0), read_ras, partial(read_stack, rank=0)):
            with contextlib.suppress(DumpError):
                read(data)


@pytest.mark.parametrize("changes", [{"version": "1.0"}, {"entries": None}])
def test_another_version_and_another_file_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(DumpError, match="flight recorder"):
        read_trace(dump(0, 6, 6, **changes), 0)


def test_odd_entries_are_passed_over() -> None:
    assert read_trace(dump(0, 6, 6, entries=[1, {}, {"process_group": 3}]), 0).entries == ()


def test_a_dump_travels_as_a_line_and_says_the_same() -> None:
    lines = ["step: 1 loss 2.0", "nightshift dump broken"]
    for r in range(4):
        match = FILE_PATTERN.fullmatch(f"ml_llm-{r}_nccl_trace_rank_{r}")
        assert match is not None
        lines.append(as_line(match, dump(r, 200 if r != 2 else 199, 200)))
    whole = locate(read_trace(dump(r, 200 if r != 2 else 199, 200), r) for r in range(4))
    dumps = from_lines(lines)
    assert locate(dumps.traces) == whole
    assert max(map(len, lines)) < 4096


def test_ras_and_stacks_travel_as_lines() -> None:
    ras = FILE_PATTERN.fullmatch("a/ml_llm-0_nccl_ras.txt")
    stack = FILE_PATTERN.fullmatch("ml_llm-0_pyspy_rank_3.txt")
    assert ras is not None
    assert stack is not None
    dumps = from_lines([as_line(ras, MISMATCH.encode()), as_line(stack, STACK.encode())])
    assert dumps.ras == read_ras(MISMATCH.encode())
    assert dumps.stacks == (replace(read_stack(STACK.encode(), 3)),)
    assert dumps.stacks[0].frames[1] == "train_step (/app/train.py:310)"
    assert isinstance(dumps.ras, RasReport)
