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
    calls = {k.problem: k.calls for k in kernels.STATE.kernels.values()}
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


def shadowed(kernels: Any) -> dict[str, Any]:
    """The file's rmsnorm is wrong: the shadow check finds it, the job goes on with torch's."""
    want = losses(made())
    model = made()
    told: list[str] = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    kernels.apply(model, optimizer, shadow_every=1, log_every=1, log=told.append, canary=False)
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
    before = kernels.STATE.kernels["rmsnorm"].calls
    graphs: list[int] = []

    def keep(graph: Any, _: Any) -> Any:
        graphs.append(sum("nightshift.rmsnorm" in str(n.target) for n in graph.graph.nodes))
        return graph

    compiled_norm = torch.compile(model.first, backend=keep, fullgraph=True)
    rows = torch.randn(12, N)
    compiled_norm(rows)
    certificate = kernels.STATE.kernels["rmsnorm"].certificate
    (folder / "demoted.json").write_text(json.dumps([{"certificate": certificate, "why": "x"}]))
    kernels.step_boundary()
    losses(model, 1)
    compiled_norm(rows)
    after = kernels.STATE.kernels["rmsnorm"].calls
    kernels.unapply(model)
    report = kernels.apply(made(), log=told.append)
    return {"before": before, "after": after, "graphs": graphs, "told": told, "skipped": report.skipped}


def attended(kernels: Any) -> dict[str, Any]:
    """Attention is the kernel's where nothing is differentiated, and torch's in training."""
    q, k, v = (torch.randn(1, 2, 16, 16).half() for _ in range(3))
    want = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    kernels.apply(made(), log=lambda _: None)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    whole = F.scaled_dot_product_attention(q, k, v)
    F.scaled_dot_product_attention(q.requires_grad_(True), k, v, is_causal=True).sum().backward()
    kernel = kernels.STATE.kernels["flash_attention"]
    seen = {"calls": kernel.calls, "fallbacks": kernels.fallbacks(), "gradient": q.grad is not None}
    restored = kernels.unapply(made())
    return {
        **seen,
        "equal": bool(torch.allclose(out, want, atol=3e-3)),
        "restored": restored,
        "whole": whole.shape[1],
    }


class Wide(nn.Module):
    """Parameters of two kinds: one that the optimiser's kernel takes, and one that is too small for it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.large = nn.Parameter(torch.randn(64, 32))
        self.small = nn.Parameter(torch.randn(32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.large * self.small).square().mean()


def trained(steps: int, kernels: Any, **more: Any) -> tuple[list[float], dict[str, Any], Wide]:
    model = Wide()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1.0 / (1 + n))
    if kernels is not None:
        kernels.apply(model, optimizer, log=lambda _: None, canary=False, **more)
    torch.manual_seed(5)
    seen = []
    for number in range(steps):
        loss = model(torch.randn(4, 64))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        seen.append(float(loss.detach()))
        if number == 2:  # what a resumed job does: the step numbers are other tensors then
            optimizer.load_state_dict(optimizer.state_dict())
    return seen, optimizer.state_dict(), model


def stepped(kernels: Any) -> dict[str, Any]:
    """AdamW's large parameters by the kernel: the same course, moments and state_dict as torch's own."""
    kernels.SMALLEST = 64
    want, state, _ = trained(6, None)
    got, mine, model = trained(6, kernels, shadow_every=4)
    kernel = kernels.STATE.kernels["adamw"]
    told = {"calls": kernel.calls, "checks": kernel.shadow_checks, "wrong": kernel.shadow_mismatches}
    pairs = [(state["state"][n][k], mine["state"][n][k]) for n in state["state"] for k in state["state"][n]]
    restored = kernels.unapply(model)
    return {
        **told,
        "losses": bool(torch.allclose(torch.tensor(want), torch.tensor(got), rtol=1e-5)),
        "state": all(torch.allclose(a, b, rtol=1e-4, atol=1e-7) for a, b in pairs),
        "steps": [float(mine["state"][n]["step"]) for n in mine["state"]],
        "groups": mine["param_groups"] == state["param_groups"],
        "restored": restored,
        "back": sys.modules["torch.optim.adam"].adam.__module__ == "torch.optim.adam",
    }


def mistepped(kernels: Any) -> dict[str, Any]:
    """A wrong optimiser kernel is found on a copy, before it touched a parameter, when every step is checked."""
    kernels.SMALLEST = 64
    want, _, _ = trained(4, None)
    got, _, _ = trained(4, kernels, shadow_every=1)
    kernel = kernels.STATE.kernels["adamw"]
    equal = bool(torch.allclose(torch.tensor(want), torch.tensor(got), rtol=1e-6))
    return {"equal": equal, "wrong": kernel.shadow_mismatches, "disabled": kernel.disabled}


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(json.dumps(globals()[sys.argv[2]](load(sys.argv[1]))))
