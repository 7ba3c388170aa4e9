"""One rank of a job with the canary of its first steps; prints what it saw as JSON.

RANK=0 WORLD_SIZE=2 python first_steps_program.py FOLDER STEPS_OF_RANK_0 STEPS_OF_RANK_1

Where both make as many steps they exchange gradients. On rank 0's clock gelu makes a step slower and the norm
faster; on rank 1's each does the opposite.
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


def main(folder: Path, rank: int, steps: list[int]) -> dict[str, Any]:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    mine = folder / str(rank)
    mine.mkdir()
    kernels = of_a_file(mine, "nightshift_kernels")
    kernels.KERNELS.extend([held("rmsnorm"), held("gelu")])
    clock, told = [0.0], list[str]()
    gains = {"rmsnorm": 0.1, "gelu": -0.05}

    def now() -> float:
        clock[0] += 1.0 - (1, -1)[rank] * sum(gains[name] for name in kernels.STATE.kernels)
        return clock[0]

    kernels.host_clock = now
    model = nn.RMSNorm(N, eps=1e-6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def log(text: str) -> None:
        told.append(text)
        print(text, file=sys.stderr if kernels.STATE.first_steps is None else sys.stdout)

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
    first = kernels.STATE.first_steps
    kernels.STATE.log = print
    return {
        "sets": sets,
        "kept": sorted(kernels.STATE.kernels),
        "running": first.running,
        "told": told,
        "gain": kernels.STATE.gain,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(main(Path(sys.argv[1]), int(os.environ["RANK"]), [int(x) for x in sys.argv[2:4]])), flush=True)
