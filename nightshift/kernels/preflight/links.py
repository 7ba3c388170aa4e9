"""What joins GPUs: copies between neighbours, and an all-reduce over the gang that will run.

In a gang (RANK, WORLD_SIZE and MASTER_ADDR are set, as torchrun and job operators do) every process takes part with
its own GPU. Else the GPUs of this node are the gang.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

SIZE = 1 << 28
REPEATS = 9
PART_S = 60.0


def links(ids: Sequence[str], device: str = "cuda", size: int = SIZE) -> dict[str, float]:
    """peer_bytes_per_s (the slowest of neighbours) and all_reduce_bytes_per_s; empty with one GPU alone."""
    if "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return _asked([dict(os.environ)], device, size)
    if len(ids) < 2:
        return {}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    base = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": ",".join(ids),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    ranks = [{"RANK": str(n), "LOCAL_RANK": str(n), "WORLD_SIZE": str(len(ids))} for n in range(len(ids))]
    return _asked([base | rank for rank in ranks], device, size)


def _asked(environments: list[dict[str, str]], device: str, size: int) -> dict[str, float]:
    program = f"from nightshift.kernels.preflight.links import rank_program; rank_program({device!r}, {size})"
    command = [sys.executable, "-c", program]
    began = [subprocess.Popen(command, stdout=subprocess.PIPE, env=env, text=True) for env in environments]
    until_s = time.monotonic() + PART_S
    said = []
    try:
        for process in began:
            said.append(process.communicate(timeout=max(0.1, until_s - time.monotonic()))[0])
    finally:
        for process in began:
            process.kill()
    found: dict[str, float] = {}
    for text in said:
        for line in text.splitlines():
            if line.startswith('{"links"'):
                for name, value in json.loads(line)["links"].items():
                    found[name] = min(value, found.get(name, value))
    return found


def rank_program(device: str = "cuda", size: int = SIZE, repeats: int = REPEATS) -> None:
    """One rank: times copies to its neighbour and the all-reduce; prints them as one JSON line."""
    import torch
    import torch.distributed as dist

    on_gpu = device == "cuda"
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank, count = dist.get_rank(), dist.get_world_size()
    data = torch.ones(size // 4, device=device)

    def timed(work: Any) -> float:
        taken = []
        for _ in range(repeats):
            dist.barrier()
            began_s = time.perf_counter()
            work()
            if on_gpu:
                torch.cuda.synchronize()
            taken.append(time.perf_counter() - began_s)
        return sorted(taken)[repeats // 2]

    dist.all_reduce(data)
    reduce_s = timed(lambda: dist.all_reduce(data))
    other = torch.empty_like(data)

    def ring() -> None:
        ops = [dist.P2POp(dist.isend, data, (rank + 1) % count), dist.P2POp(dist.irecv, other, (rank - 1) % count)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()

    ring()
    ring_s = timed(ring)
    found = {"all_reduce_bytes_per_s": 2 * (count - 1) / count * size / reduce_s, "peer_bytes_per_s": size / ring_s}
    print(json.dumps({"links": found}), flush=True)
    dist.destroy_process_group()
