"""A job with gated feed-forward blocks, in a process of its own with Triton's interpreter.

TRITON_INTERPRET=1 python applied_blocks.py FILE WHAT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))
from applied import load

D, WIDE = 16, 32


class Gated(nn.Module):
    """As users write it; the layers' order and names say nothing."""

    def __init__(self, bias: bool = False, drop: float = 0.0, tanh: bool = False) -> None:
        super().__init__()
        self.w3, self.w2, self.w1 = nn.Linear(D, WIDE, bias), nn.Linear(WIDE, D, bias), nn.Linear(D, WIDE, bias)
        self.drop, self.tanh = nn.Dropout(drop), tanh

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = F.gelu(self.w1(x), approximate="tanh") if self.tanh else F.silu(self.w1(x))
        return self.w2(self.drop(gate * self.w3(x)))


class Job(nn.Module):
    def __init__(self, tanh: bool) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.plain, self.biased, self.random = Gated(tanh=tanh), Gated(True, tanh=tanh), Gated(drop=0.5, tanh=tanh)
        self.other = nn.Sequential(nn.Linear(D, WIDE), nn.GELU(), nn.Dropout(0.5), nn.Linear(WIDE, D))
        self.other.eval()  # in training its dropout is torch's

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.other(x) + self.biased(x + self.plain(x))


def step(model: nn.Module, call: Any, x: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    given = x.clone().requires_grad_(True)
    out = call(given)
    out.square().sum().backward()
    grads = [p.grad for p in (given, *model.parameters())]
    return [out.detach(), *(g.clone() for g in grads if g is not None)]


def alike(mine: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return len(mine) == len(theirs) and all(
        torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(mine, theirs, strict=True)
    )


def blocks(kernels: Any) -> dict[str, Any]:
    problems = {record["problem"] for record in kernels.KERNELS}
    model, x = Job("geglu" in problems), torch.randn(2, 3, D)
    want = step(model, model, x)
    keys = list(model.state_dict())
    report = kernels.apply(model, log=lambda _: None, shadow_every=1)
    eager = step(model, model, x)
    calls = {k.problem: k.calls for k in kernels.STATE.kernels.values()}
    compiled = step(model, torch.compile(model, backend="aot_eager", fullgraph=True), x)
    with torch.no_grad():
        inferred = [model(x)]
    found = {k.problem: (k.calls, k.shadow_mismatches) for k in kernels.STATE.kernels.values()}
    same = list(model.state_dict()) == keys
    model.other.train()
    with torch.no_grad():
        dropped = not torch.equal(model.other(x), model.other(x))
    model.other.eval()
    restored = kernels.unapply(model)
    return {
        "applied": [(where, problem) for where, problem, _ in report.applied],
        "equal": [alike(eager, want), alike(compiled, want), alike(inferred, want[:1])],
        "calls": calls,
        "found": found,
        "keys": same,
        "dropped": dropped,
        "restored": restored,
        "back": alike(step(model, model, x), want) and "forward" not in model.plain.__dict__,
        "fallbacks": kernels.fallbacks(),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(json.dumps(globals()[sys.argv[2]](load(sys.argv[1]))))
