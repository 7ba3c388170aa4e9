"""One rank of three jobs with the canary of their first steps; prints what it saw of each as JSON.

RANK=0 WORLD_SIZE=2 python first_steps_program.py FOLDER

Where both ranks make as many steps they exchange gradients; else each goes at its own pace. On rank 0's clock gelu
makes a step slower and the norm faster; on rank 1's each does the opposite.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from tests.kernels.apply.torch_kernels import SAME, N, held, of_a_file

STEPS = ((60, 60), (12, 150), (60, 12))
GAINS = {"rmsnorm": 0.1, "gelu": -0.05}


def made(kernels: Any, rank: int, steps: tuple[int, int]) -> dict[str, Any]:
    clock, told = [0.0], list[str]()

    def now() -> float:
        clock[0] += 1.0 - (1, -1)[rank] * sum(GAINS[name] for name in kernels.STATE.kernels)
        return clock[0]

    kernels.host_clock = now
    model = nn.RMSNorm(N, eps=1e-6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    kernels.apply(model, optimizer, log=told.append, shadow_every=0, log_every=0)
    sets = []
    for _ in range(steps[rank]):
        F.gelu(model(SAME)).square().mean().backward()
        if steps[0] == steps[1]:
            assert model.weight.grad is not None
            dist.all_reduce(model.weight.grad)
        sets.append(sorted(kernels.STATE.kernels))
        optimizer.step()
        optimizer.zero_grad()
    seen = {
        "sets": sets,
        "kept": sorted(kernels.STATE.kernels),
        "running": kernels.STATE.first_steps.running,
        "gain": kernels.STATE.gain,
        "told": told,
    }
    if steps is not STEPS[-1]:
        kernels.unapply(model)
    kernels.STATE.log = print
    return seen


def main(folder: Path, rank: int) -> list[dict[str, Any]]:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    (mine := folder / str(rank)).mkdir()
    found = []
    for number, steps in enumerate(STEPS):
        kernels = of_a_file(mine, f"nightshift_kernels_{number}")
        kernels.KERNELS.extend([held("rmsnorm"), held("gelu")])
        found.append(made(kernels, rank, steps))
        dist.barrier()
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(main(Path(sys.argv[1]), int(os.environ["RANK"]))), flush=True)
