"""Where a job hangs, on dumps of 8 to 1,024 ranks: `python -m benchmarks.hang_place [--real]`.

Made dumps: a job of tensor-, pipeline- and data-parallel groups runs its operations as NCCL does: each rank
enqueues ahead, and an operation completes once all of its members are in it and everything before it is done. One
rank stops it: it never calls an operation, calls another one or with another size, dies without a dump, or its GPU
does not start a kernel. Each rank's ring is written as PyTorch writes it (pickle, version 2.10) and read again from
bytes. Data of our own making.

`--real`: dumps that torch's own recorder wrote, four processes over gloo on this machine's CPU, one of which stays
away, calls something else, or dies.
"""

from __future__ import annotations

import argparse
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.detect_held_out import commit
from benchmarks.report import write
from nightshift.collectors.training.hang_dumps import read_trace
from nightshift.detectors.progress.hang_place import HangKind, locate

DRAWS = {8: 60, 64: 30, 256: 16, 1024: 6}
KINDS = ("not_called", "other_operation", "other_size", "died", "not_started", "pipeline")
AHEAD, KEPT = 4, 24


@dataclass
class Op:
    """One operation of one rank."""

    key: tuple[Any, ...]
    group: str
    number: int
    name: str
    members: tuple[int, ...]
    line: int
    size: int = 1024
    p2p: tuple[int, int] | None = None
    enqueued: bool = False
    done: bool = False


@dataclass
class MadeJob:
    """A program of operations for each rank, run until nothing moves."""

    ranks: int
    rng: np.random.Generator
    programs: list[list[Op]] = field(default_factory=list)
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n = self.ranks
        self.tp = int(self.rng.choice([t for t in (1, 2, 4, 8) if n % t == 0 and t < n]))
        self.pp = int(
            self.rng.choice([p for p in (1, 2, 4) if (n // self.tp) % p == 0 and n // self.tp // p > 1] or [1])
        )
        self.dp = n // self.tp // self.pp
        self.programs = [[] for _ in range(n)]
        self._number: dict[tuple[str, int], int] = defaultdict(int)
        self.groups["0"] = tuple(range(n))
        for step in range(3):
            self._step(step)

    def at(self, p: int, d: int, t: int) -> int:
        return (p * self.dp + d) * self.tp + t

    def _collective(self, group: str, members: tuple[int, ...], name: str, line: int) -> None:
        self.groups[group] = members
        self._number[group, 0] += 1
        number = self._number[group, 0]
        for rank in members:
            self.programs[rank].append(Op((group, number), group, number, name, members, line))

    def _send(self, sender: int, receiver: int, line: int) -> None:
        group = "pipe"
        self.groups[group] = tuple(range(self.ranks))
        key = (group, sender, receiver)
        self._number[group, sender * self.ranks + receiver] += 1
        count = self._number[group, sender * self.ranks + receiver]
        for rank, name in ((sender, f"send {sender}->{receiver}"), (receiver, f"recv {receiver}<-{sender}")):
            op = Op((*key, count), group, count, name, (sender, receiver), line, p2p=(sender, receiver))
            self.programs[rank].append(op)

    def _step(self, step: int) -> None:
        for p in range(self.pp):
            for d in range(self.dp):
                for t in range(self.tp):
                    if p:
                        self._send(self.at(p - 1, d, t), self.at(p, d, t), 210)
                if self.tp > 1:
                    members = tuple(self.at(p, d, t) for t in range(self.tp))
                    for line in (310, 320):
                        self._collective(f"tp{p}_{d}", members, "all_reduce", line)
        for p in range(self.pp):
            for t in range(self.tp):
                members = tuple(self.at(p, d, t) for d in range(self.dp))
                if self.dp > 1:
                    self._collective(f"dp{p}_{t}", members, "_reduce_scatter_base", 410)
                    self._collective(f"dp{p}_{t}", members, "_all_gather_base", 420)
        self._collective("0", self.groups["0"], "all_reduce", 510)

    def run(self, rank: int, stop: int, kind: str) -> None:
        """Enqueues and completes until nothing moves; `rank` is at fault from its operation `stop` on."""
        inside: dict[tuple[Any, ...], set[int]] = defaultdict(set)
        at, first = [0] * self.ranks, [0] * self.ranks
        self.place = [{op.key: n for n, op in enumerate(program)} for program in self.programs]
        moved = True
        while moved:
            moved = False
            for r, program in enumerate(self.programs):
                while at[r] < len(program) and at[r] < first[r] + AHEAD:
                    if r == rank and at[r] >= stop and kind in ("not_called", "died", "pipeline"):
                        break
                    op = program[at[r]]
                    op.enqueued = True
                    if not (r == rank and at[r] == stop):  # another call, or a kernel that never starts: not joined
                        inside[op.key].add(r)
                    at[r], moved = at[r] + 1, True
            for r, program in enumerate(self.programs):
                while first[r] < at[r]:
                    op = program[first[r]]
                    ready = len(inside[op.key]) == len(op.members)
                    if not ready or not all(self._is_next(m, op.key, first) for m in op.members):
                        break
                    op.done, first[r], moved = True, first[r] + 1, True

    def _is_next(self, rank: int, key: tuple[Any, ...], first: list[int]) -> bool:
        """Whether a member is at this operation, or past it."""
        return self.place[rank][key] <= first[rank]

    def dumps(self, rank: int, stop: int, kind: str) -> dict[int, bytes]:
        config = {name: {"desc": name, "name": name, "ranks": str(list(m))} for name, m in self.groups.items()}
        found = {}
        for r, program in enumerate(self.programs):
            if r == rank and kind == "died":
                continue
            entries = []
            status: dict[str, dict[str, int]] = {}
            for n, op in enumerate(op for op in program if op.enqueued):
                odd = r == rank and n == stop
                name, size = op.name, op.size
                if odd and kind == "other_operation":
                    name = "broadcast" if op.p2p is None else name
                if odd and kind == "other_size":
                    size += 128
                started = not (odd and kind == "not_started")
                state = "completed" if op.done else "started" if started else "scheduled"
                entries.append(_entry(n, op, name, size, state))
                if op.p2p is None:
                    status.setdefault(op.group, {})["last_enqueued_collective"] = op.number
            mine = {name: about for name, about in config.items() if r in self.groups[name]}
            value = {"version": "2.10", "pg_config": mine, "pg_status": status, "entries": entries[-KEPT:]}
            found[r] = pickle.dumps(value, protocol=2)
        return found


def _entry(n: int, op: Op, name: str, size: int, state: str) -> dict[str, Any]:
    frames = [
        {"name": "all_reduce", "filename": "/x/site-packages/torch/distributed/distributed_c10d.py", "line": 2900},
        {"name": "train_step", "filename": "/app/train.py", "line": op.line},
    ]
    return {
        "record_id": n, "op_id": n, "process_group": (op.group, op.group), "profiling_name": f"nccl:{name}",
        "collective_seq_id": 0 if op.p2p else op.number, "p2p_seq_id": op.number if op.p2p else 0,
        "is_p2p": op.p2p is not None, "input_sizes": [[size]], "output_sizes": [[size]], "input_dtypes": ["Float"],
        "output_dtypes": ["Float"], "state": state, "retired": state == "completed", "frames": frames,
        "time_created_ns": 1_795_777_000_000_000_000 + n * 1_000_000, "timeout_ms": 600_000,
    }  # fmt: skip


EXPECTED = {
    "not_called": {HangKind.NOT_CALLED},
    "pipeline": {HangKind.NOT_CALLED},
    "other_operation": {HangKind.OTHER_CALL},
    "other_size": {HangKind.OTHER_CALL},
    "died": {HangKind.NO_ANSWER},
    "not_started": {HangKind.NOT_STARTED},
}


def made(ranks: int, kind: str, rng: np.random.Generator) -> dict[str, Any]:
    while True:
        job = MadeJob(ranks, rng)
        rank = int(rng.integers(ranks))
        program = job.programs[rank]
        places = [
            n
            for n in range(len(program) // 3, len(program))
            if (program[n].p2p is not None) == (kind == "pipeline")
            and (kind in ("not_called", "died", "pipeline") or len(program[n].members) > 2)
        ]
        if places:
            break
    stop = int(rng.choice(places))
    job.run(rank, stop, kind)
    dumps = job.dumps(rank, stop, kind)
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    found = locate(read_trace(data, r) for r, data in dumps.items())
    took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    op = program[stop]
    return {
        "right": found is not None and found.ranks == (rank,),
        "kind": found is not None and found.kind in EXPECTED[kind],
        "collective": found is not None and (found.group, found.number) == (op.group, op.number),
        "took_s": took_s,
        "cpu_s": cpu_s,
        "mbytes": sum(map(len, dumps.values())) / 1e6,
    }


# Real dumps -----------------------------------------------------------------------------------------------------

_CHILD = """
import os, sys, time, threading
import torch, torch.distributed as dist
from datetime import timedelta
from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json
rank, world, culprit, kind, folder, form = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:7]
dist.init_process_group("gloo", rank=rank, world_size=world, timeout=timedelta(seconds=60))
pair = dist.new_group([0, 1])
for _ in range(5):
    dist.all_reduce(torch.ones(4))
def last():
    if kind == "subgroup" and rank == culprit:
        return
    if kind == "subgroup" and rank in (0, 1):
        dist.all_reduce(torch.ones(2), group=pair)
    dist.all_reduce(torch.ones(8))
if rank == culprit and kind == "died":
    os._exit(0)
if rank == culprit and kind == "not_called":
    pass
elif rank == culprit and kind == "other_operation":
    threading.Thread(target=lambda: dist.broadcast(torch.ones(8), 0), daemon=True).start()
else:
    threading.Thread(target=last, daemon=True).start()
time.sleep(4)
data = _dump_fr_trace() if form == "pickle" else _dump_fr_trace_json().encode() if isinstance(
    _dump_fr_trace_json(), str) else _dump_fr_trace_json()
open(f"{folder}/{rank}", "wb").write(data)
os._exit(0)
"""


def real(culprit: int, kind: str, form: str, world: int = 4) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
        taken.close()
        environ = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCH_FR_BUFFER_SIZE": "200"}
        script = Path(folder) / "train_script.py"
        script.write_text(_CHILD)
        arguments = [str(world), str(culprit), kind, folder, form]
        children = [
            subprocess.Popen(
                [sys.executable, str(script), str(r), *arguments], env=environ, stderr=subprocess.DEVNULL
            )
            for r in range(world)
        ]
        for child in children:
            child.wait(180)
        traces = [
            read_trace(path.read_bytes(), int(path.name)) for path in Path(folder).iterdir() if path.name.isdigit()
        ]
    found = locate(traces)
    return {
        "kind": kind,
        "form": form,
        "culprit": culprit,
        "dumps": len(traces),
        "right": found is not None and found.ranks == (culprit,),
        "words": "" if found is None else found.words,
        "line": "" if found is None else found.line.rpartition("/")[2],
        "waiting_line": "" if found is None else found.waiting_line.rpartition("/")[2],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--real", action="store_true", help="also dumps of real torch processes over gloo")
    parser.add_argument("--first", type=int, default=5000, help="seed")
    given = parser.parse_args()
    table: dict[str, Any] = {}
    for ranks, count in DRAWS.items():
        for kind in KINDS:
            rng = np.random.default_rng([given.first, ranks, KINDS.index(kind)])
            runs = [made(ranks, kind, rng) for _ in range(max(1, count // 2 if ranks > 100 else count))]
            table[f"{ranks} {kind}"] = {
                "dumps_of": len(runs),
                **{name: float(np.mean([run[name] for run in runs])) for name in ("right", "kind", "collective")},
                "largest_s": max(run["took_s"] for run in runs),
                "largest_cpu_s": max(run["cpu_s"] for run in runs),
                "largest_mbytes": max(run["mbytes"] for run in runs),
            }
            print(ranks, kind, table[f"{ranks} {kind}"], flush=True)
    figures: dict[str, Any] = {
        "commit": commit(),
        "made": table,
        "made_right": sum(t["right"] * t["dumps_of"] for t in table.values())
        / sum(t["dumps_of"] for t in table.values()),
        "largest_s": max(t["largest_s"] for t in table.values()),
    }
    if given.real:
        cases = [(3, "not_called", "pickle"), (1, "other_operation", "pickle"), (2, "died", "pickle"),
                 (0, "not_called", "json"), (1, "subgroup", "pickle")]  # fmt: skip
        figures["real_gloo"] = [real(*case) for case in cases]
        figures["real_right"] = float(np.mean([case["right"] for case in figures["real_gloo"]]))
    write("hang_place", figures)


if __name__ == "__main__":
    main()
