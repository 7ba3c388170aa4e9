"""Runs in a process of its own with Triton's interpreter: uses a job's file of kernels, prints what it saw as JSON.

TRITON_INTERPRET=1 python applied.py FILE WHAT
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

N = 64


class Rms(nn.Module):
    """RMSNorm as a user writes it; the class's name says nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(N) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self.scale


class NotRms(Rms):
    """Looks the same and is not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + 1e-3


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(48, N)
        self.first, self.second, self.third = Rms(), nn.LayerNorm(N), NotRms()
        self.linear = nn.Linear(N, 48)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        x = self.table(index)
        x = x + self.first(x)
        return self.linear(self.third(self.second(x)))


def losses(model: nn.Module, steps: int = 3) -> tuple[list[float], dict[str, torch.Tensor]]:
    torch.manual_seed(3)
    index = torch.randint(0, 48, (4, 3))
    target = torch.randint(0, 48, (12,))
    optimizer = torch.optim.SGD(list(model.parameters()), lr=0.1)
    seen = []
    for _ in range(steps):
        loss = F.cross_entropy(model(index).reshape(-1, 48), target)
        optimizer.zero_grad()
        loss.backward()
        seen.append(float(loss.detach()))
        optimizer.step()
    named = {name.removeprefix("_orig_mod."): p for name, p in model.named_parameters()}
    return seen, {name: p.grad.clone() for name, p in named.items() if p.grad is not None}


def load(file: str) -> Any:
    spec = importlib.util.spec_from_file_location("nightshift_kernels", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["nightshift_kernels"] = module
    spec.loader.exec_module(module)
    return module


def made() -> Model:
    torch.manual_seed(1)
    return Model()


def close(a: Any, b: Any) -> bool:
    (la, ga), (lb, gb) = a, b
    return bool(torch.allclose(torch.tensor(la), torch.tensor(lb), rtol=1e-5)) and all(
        torch.allclose(ga[k], gb[k], rtol=1e-4, atol=1e-6) for k in ga
    )


def plain(kernels: Any) -> dict[str, Any]:
    want = losses(made())
    model = made()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    once = kernels.apply(model, log=lambda _: None)
    twice = kernels.apply(model, log=lambda _: None)
    keys_same = list(model.state_dict()) == list(before)
    got = losses(model)
    calls = {k.problem: k.calls for k in kernels._STATE.kernels.values()}
    half = made().half()
    half_report = [name for name, *_ in kernels.apply(half, log=lambda _: None).applied]
    out = half.first(torch.randn(2, 3, N).half())
    strided = model.first(torch.randn(N, 6).t())
    restored = kernels.unapply(model)
    kernels.unapply(half)
    again = losses(made())
    return {
        "applied": once.applied,
        "same_twice": once.applied == twice.applied,
        "skipped": once.skipped,
        "keys_same": keys_same,
        "equal": close(want, got),
        "calls": calls,
        "fallbacks_seen": out.dtype == torch.float16 and tuple(strided.shape) == (6, N),
        "half": half_report,
        "restored": restored,
        "back": close(want, again)
        and "forward" not in model.first.__dict__
        and F.cross_entropy.__module__.startswith("torch"),
    }


def compiled(kernels: Any) -> dict[str, Any]:
    want = losses(made())
    model = made()
    kernels.apply(model, log=lambda _: None)
    got = losses(torch.compile(model, backend="aot_eager", fullgraph=True))
    checks = []
    for problem, inputs in (
        ("rmsnorm", (torch.randn(6, N, requires_grad=True), torch.rand(N, requires_grad=True), 1e-6)),
        ("embedding_gradient", (torch.randn(5, N), torch.randint(0, 48, (5,)), 48)),
        ("rmsnorm_backward", (torch.randn(6, N), torch.randn(6, N), torch.rand(N), 1e-6)),
    ):
        result = torch.library.opcheck(kernels._operator(problem), inputs, raise_exception=False)
        checks.append(set(result.values()) == {"SUCCESS"} or {k: str(v)[:300] for k, v in result.items()})
    return {"equal": close(want, got), "opcheck": checks}


def folded(kernels: Any) -> dict[str, Any]:
    """A compiled step whose 16-bit logits are cast before the loss: the kernels read them without the cast."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import default_partition

    seen: dict[str, Any] = {}

    def part(joint: Any, *rest: Any, **named: Any) -> Any:
        if kernels._STATE.fold is not None:
            kernels._STATE.fold(joint.graph)
            joint.recompile()
        calls = [n for n in joint.graph.nodes if "cross_entropy_cast" in str(n.target)]
        seen["kinds"] = [str(n.args[1 if "backward" in str(n.target) else 0].meta["val"].dtype) for n in calls]
        seen["wide"] = sum(
            n.meta["val"].dtype == torch.float32 and n.meta["val"].dim() == 2 and "cross" not in str(n.target)
            for n in joint.graph.nodes
            if isinstance(n.meta.get("val"), torch.Tensor) and n.op == "call_function"
        )
        return default_partition(joint, *rest, **named)

    def run() -> tuple[float, torch.Tensor]:
        torch._dynamo.reset()
        torch.manual_seed(4)
        table = (0.03 * torch.randn(48, N)).bfloat16().requires_grad_(True)
        x, target = torch.randn(2, 6, N).bfloat16(), torch.randint(0, 48, (12,))

        def step(table: torch.Tensor) -> torch.Tensor:
            logits = F.gelu(x) @ table.t()
            return F.cross_entropy(logits.float().view(-1, 48), target)

        backend = aot_autograd(fw_compiler=lambda g, _: g, bw_compiler=lambda g, _: g, partition_fn=part)
        loss = torch.compile(step, backend=backend, fullgraph=True)(table)
        loss.backward()
        assert table.grad is not None
        return float(loss.detach()), table.grad

    want = run()
    without = dict(seen)
    kernels.apply(made(), log=lambda _: None)
    got = run()
    calls = {k.problem: k.calls for k in kernels._STATE.kernels.values()}
    kernels.unapply(made())
    return {
        "without": without["kinds"],
        "kinds": seen["kinds"],
        "wide": [without["wide"], seen["wide"]],
        "equal": abs(want[0] - got[0]) < 2e-3 and bool(torch.allclose(want[1], got[1], rtol=2e-2, atol=2e-3)),
        "calls": calls,
        "taken_back": kernels._STATE.fold is None,
    }


def shadowed(kernels: Any) -> dict[str, Any]:
    """The file's rmsnorm is wrong: the shadow check finds it, the job goes on with torch's."""
    want = losses(made())
    model = made()
    told: list[str] = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    kernels.apply(model, optimizer, shadow_every=1, log_every=1, log=told.append)
    got = losses(model)
    optimizer.step()
    folder = Path(os.environ["NIGHTSHIFT_KERNEL_REGISTRY"])
    notes = [json.loads(p.read_text()) for p in (folder / "mismatches").glob("*.json")]
    return {"equal": close(want, got), "told": told, "notes": notes, "line": kernels.log_line()}


def demoted(kernels: Any) -> dict[str, Any]:
    """A demotion while the job runs reaches it at the next step boundary; one before the start, at the start."""
    folder = Path(os.environ["NIGHTSHIFT_KERNEL_REGISTRY"])
    model = made()
    told: list[str] = []
    kernels.apply(model, shadow_every=0, log_every=1, log=told.append)
    losses(model, 1)
    before = kernels._STATE.kernels["rmsnorm"].calls
    certificate = kernels._STATE.kernels["rmsnorm"].certificate
    (folder / "demoted.json").write_text(json.dumps([{"certificate": certificate, "why": "x"}]))
    kernels.step_boundary()
    losses(model, 1)
    after = kernels._STATE.kernels["rmsnorm"].calls
    kernels.unapply(model)
    report = kernels.apply(made(), log=told.append)
    return {"before": before, "after": after, "told": told, "skipped": report.skipped}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(globals()[sys.argv[2]](load(sys.argv[1]))))
