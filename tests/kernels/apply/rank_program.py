"""One rank of a job that uses certified kernels; prints what it saw as JSON. Its other rank is another process.

TRITON_INTERPRET=1 RANK=0 WORLD_SIZE=2 python rank_program.py FOLDER

FOLDER holds same.py and other.py (the job's file, and one with another certificate), `registry` and `seen` (what
rank 1 takes for the registry once). Rank 1's data has a value on which the kernel of same.py is wrong.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

WAIT_S = 120.0
"""Far more than the other side needs."""


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def await_file(path: Path) -> None:
    until_s = time.monotonic() + WAIT_S
    while not path.exists():
        if time.monotonic() > until_s:
            raise TimeoutError(str(path))
        time.sleep(0.02)


def main(folder: Path, rank: int) -> dict[str, Any]:
    same, other = load(folder / "same.py"), load(folder / "other.py")
    told: list[str] = []

    def skipped(kernels: Any) -> list[str]:
        model = Norm()
        report = kernels.apply(model, log=told.append, functions=False)
        kernels.unapply(model)
        return [why for _, why in report.skipped]

    seen: dict[str, Any] = {"too early": skipped(same)}
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    seen["other file"] = skipped(same if rank == 0 else other)
    mine = os.environ["NIGHTSHIFT_KERNEL_REGISTRY"]
    os.environ["NIGHTSHIFT_KERNEL_REGISTRY"] = mine if rank == 0 else str(folder / "seen")
    seen["demoted on one"] = skipped(same)
    os.environ["NIGHTSHIFT_KERNEL_REGISTRY"] = mine
    seen["alike"] = skipped(same)

    model = Norm()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    same.apply(model, optimizer, log=told.append, functions=False, shadow_every=1, log_every=1, canary=False)
    kernel = same.STATE.kernels["rmsnorm"]
    calls, agree = [], []
    for step in range(4):
        if step == 2:  # the registry is read between these steps
            dist.barrier()
            (folder / f"ran.{rank}").touch()
            await_file(folder / "go")
        x = torch.randn(4, 64, generator=torch.Generator().manual_seed(10 * step + rank))
        if step == 1 and rank == 1:
            x[0, 0] = 1000.0
        model(x).square().sum().backward()
        assert model.scale.grad is not None
        dist.all_reduce(model.scale.grad)
        optimizer.step()
        optimizer.zero_grad()
        both = [torch.zeros(64) for _ in range(2)]
        dist.all_gather(both, model.scale.detach())
        agree.append(bool(torch.equal(both[0], both[1])))
        calls.append(kernel.calls)
    dist.destroy_process_group()
    return {**seen, "calls": calls, "agree": agree, "told": told, "disabled": kernel.disabled}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(main(Path(sys.argv[1]), int(os.environ["RANK"]))))
