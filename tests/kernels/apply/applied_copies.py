"""A job that reads the optimiser's copies of its weights, in a process of its own."""

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


class Narrow(nn.Module):
    """Linear layers under autocast: two that have copies (one biased), and one that is too small for it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.up, self.down, self.head = nn.Linear(16, 64), nn.Linear(64, 16, bias=False), nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.float16):  # the interpreter does not round to bfloat16, it cuts
            return self.head(x + self.down(F.gelu(self.up(x))))


def course(kernels: Any, forward: Any = None, disturb: Any = None, **more: Any) -> tuple[list[float], Any]:
    """The losses of ten steps, and the model. `forward`: how it is compiled; disturb: done after each step."""
    model = Narrow()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if kernels is not None:
        kernels.apply(model, optimizer, log=lambda _: None, log_every=0, canary=False, weight_copies=True, **more)
    call, found = (forward or (lambda m: m))(model), []
    torch.manual_seed(6)
    for number in range(10):
        loss = call(torch.randn(8, 16)).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
        if disturb is not None:
            disturb(model, number)
    return found, model


def copied(kernels: Any) -> dict[str, Any]:
    """Layers that read the optimiser's copies train as torch does, also compiled, and also where weights change."""
    kernels.SMALLEST = 64
    reads: list[int] = []
    kernels.Copied.forward = staticmethod(_counted(kernels.Copied.forward, reads))
    want, _ = course(None)
    seen: dict[str, Any] = {}

    def scaled(model: Any, number: int) -> None:
        if number == 4:
            with torch.no_grad():
                model.up.weight.mul_(0.5)

    def hidden(model: Any, number: int) -> None:
        if number == 4:
            model.up.weight.data.mul_(0.5)

    def keep(graph: Any, inputs: Any) -> Any:
        reads.extend(1 for node in graph.graph.nodes if "nightshift.fresh_copies" in str(node.target))
        return torch._dynamo.backends.registry.lookup_backend("aot_eager")(graph, inputs)

    def compiled(model: Any) -> Any:
        return torch.compile(model, backend=keep, fullgraph=True)

    for name, forward, disturb in (
        ("plain", None, None), ("compiled", compiled, None), ("scaled", None, scaled), ("scaled compiled", compiled,
        scaled), ("hidden", None, hidden),
    ):  # fmt: skip
        torch._dynamo.reset()
        expected = want if disturb is None else course(None, disturb=disturb)[0]
        reads.clear()
        got, model = course(kernels, forward, disturb, shadow_every=0)
        (kernel,) = kernels.STATE.kernels.values()
        seen[name] = {
            "reads": len(reads), "calls": kernel.calls, "disabled": kernel.disabled,
            "fallbacks": kernels.fallbacks(),
            "gap": max(abs(a - b) for a, b in zip(got, expected, strict=True)),
            "keys": sorted(model.state_dict()) == sorted(Narrow().state_dict()),
        }  # fmt: skip
        if name == "plain":
            reads.clear()
            replaced = {k: torch.zeros_like(v) for k, v in model.named_parameters()}
            out = torch.func.functional_call(model, replaced, (torch.randn(2, 16),))
            model.up(torch.randn(2, 16))  # no autocast
            again = kernels.apply(model, weight_copies=True).applied
            seen["graphs"] = {
                "static": [torch._dynamo.utils.get_static_address_type(c.narrow) for c in kernels.MODELS[0]],
                "fence": [str(tag) for tag in kernels.fence()._opoverload.tags if "cudagraph" in str(tag)],
            }
            seen["else"] = {"zero": float(out.abs().max().detach()), "reads": len(reads), "again": len(again)}
        kernels.unapply(model)
        seen[name]["back"] = not any("forward" in m.__dict__ for m in model.modules())
    seen["twice"] = twice(kernels, reads)
    course(kernels, shadow_every=4)
    (kernel,) = kernels.STATE.kernels.values()
    return {**seen, "checks": kernel.shadow_checks, "wrong": kernel.shadow_mismatches}


def twice(kernels: Any, reads: list[int]) -> dict[str, Any]:
    """A penalty on gradients, in a step whose layers read copies: its gradients, beside torch's."""
    x, found = torch.randn(8, 16), []
    for ours in (False, True):
        model = Narrow()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        if ours:
            kernels.apply(model, optimizer, log=lambda _: None, log_every=0, canary=False, weight_copies=True)
        for _ in range(3):
            optimizer.zero_grad()
            given = x.clone().requires_grad_(True)
            reads.clear()
            loss = model(given).float().square().mean()
            (slope,) = torch.autograd.grad(loss, given, create_graph=True)
            (loss + slope.float().square().sum()).backward()
            optimizer.step()
        found.append([given.grad, *(p.grad for p in model.parameters())])
    kernels.unapply(model)
    gaps = [float((a - b).abs().max() / b.abs().max()) for a, b in zip(*found, strict=True) if b is not None]
    return {"reads": len(reads), "gap": max(gaps), "gradients": len(gaps)}


def _counted(function: Any, reads: list[int]) -> Any:
    def counted(*given: Any) -> Any:
        if not torch.compiler.is_compiling():
            reads.append(1)
        return function(*given)

    return counted


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(json.dumps(globals()[sys.argv[2]](load(sys.argv[1]))))
