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
        result = torch.library.opcheck(kernels.operator_of(problem), inputs, raise_exception=False)
        checks.append(set(result.values()) == {"SUCCESS"} or {k: str(v)[:300] for k, v in result.items()})
    return {"equal": close(want, got), "opcheck": checks}


def folded(kernels: Any) -> dict[str, Any]:
    """A compiled step whose 16-bit logits are cast before the loss: the kernels read them without the cast."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import default_partition

    seen: dict[str, Any] = {}

    def part(joint: Any, *rest: Any, **named: Any) -> Any:
        if kernels.STATE.fold is not None:
            kernels.STATE.fold(joint.graph)
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
    calls = {k.problem: k.calls for k in kernels.STATE.kernels.values()}
    kernels.unapply(made())
    return {
        "without": without["kinds"],
        "kinds": seen["kinds"],
        "wide": [without["wide"], seen["wide"]],
        "equal": abs(want[0] - got[0]) < 2e-3 and bool(torch.allclose(want[1], got[1], rtol=2e-2, atol=2e-3)),
        "calls": calls,
        "taken_back": kernels.STATE.fold is None,
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


def set_target() -> None:
    """Lets Triton say what a kernel writes to, on a machine without a GPU."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver

    class Target:
        """Enough of a driver for Triton to say what a kernel writes to."""

        def get_current_target(self) -> Any:
            return GPUTarget("cuda", 90, 32)

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int = 0) -> int:
            return 0

    driver.set_active(Target())


def seen_through(kernels: Any) -> dict[str, Any]:
    """What a compiler gets of the operators that it may see through. Traced only: without a GPU nothing can run."""
    from functorch.compile import aot_function
    from torch._subclasses.fake_tensor import FakeTensorMode

    set_target()
    kernels.ON_CPU = True
    for record in kernels.KERNELS:
        kernel = kernels.Kernel(record, *kernels.load_entry(record))
        kernels.STATE.kernels[kernel.problem] = kernel
        kernels.operator_of(kernel.problem)
    kernels.open_all()
    names = dict(kernels.STATE.opened)

    def step(x: torch.Tensor, w: torch.Tensor) -> tuple[Any, ...]:
        norm = kernels.guarded("rmsnorm", (x, w), (1e-6,))
        norm = F.rms_norm(x, (N,), w, 1e-6) if norm is None else norm
        out = kernels.guarded("gelu", (norm,), ())
        return (F.gelu(norm) if out is None else out,)

    def graphs() -> list[dict[str, int]]:
        found: list[dict[str, int]] = []

        def keep(graph: Any, _: Any) -> Any:
            names = [str(n.target) for n in graph.graph.nodes if n.op == "call_function"]
            launches = [n.kwargs for n in graph.graph.nodes if "triton_kernel_wrapper" in str(n.target)]
            found.append(
                {
                    "launches": len(launches),
                    "written": sorted(
                        name for k in launches for name in k.get("tensors_to_clone", ["everything?"])
                    ),
                    "ours": sum(name.startswith("nightshift") for name in names),
                }
            )
            return graph

        with FakeTensorMode():
            x, w = torch.empty(12, N, requires_grad=True), torch.empty(N, requires_grad=True)
            aot_function(step, keep, keep)(x, w)[0].sum().backward()
        return found

    told = {"closed": graphs()}
    kernels.STATE.open = True
    told["open"] = graphs()
    kernels.STATE.watching = True
    told["watching"] = graphs()
    kernels.STATE.watching = False
    kernels.STATE.kernels["rmsnorm_backward"].disabled = "demoted in the registry"
    told["no gradient"] = graphs()
    for kernel in kernels.STATE.kernels.values():
        kernel.disabled = "demoted in the registry"
    told["disabled"] = graphs()
    norm = kernels.STATE.kernels["rmsnorm"]
    norm.disabled, norm.record["certificate"] = "", "another"
    kernels.open_all()
    told["renamed"] = names["rmsnorm"] != kernels.STATE.opened["rmsnorm"]
    return told


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


def opchecked(kernels: Any) -> dict[str, Any]:
    """torch's own check (schema, fake, autograd, tracing) of every operator, a kernel behind each."""
    rows, logits = torch.randn(6, N), torch.randn(6, 48)
    weight, index = torch.rand(N) + 0.5, torch.randint(0, 48, (6,))
    heads = [torch.randn(1, 2, 16, 16) for _ in range(3)]
    vectors = [torch.randn(40), torch.randn(40), torch.randn(40), torch.rand(40)]
    narrow = logits.bfloat16()
    inputs: dict[str, tuple[Any, ...]] = {
        "rmsnorm": (rows, weight, 1e-6),
        "rmsnorm_backward": (rows, rows.flip(0), weight, 1e-6),
        "rmsnorm_cast_backward": (rows.bfloat16(), rows.flip(0), weight, rows, 1e-6),
        "layernorm": (rows, weight, weight.flip(0), 1e-5),
        "softmax": (rows,),
        "cross_entropy": (logits, index),
        "cross_entropy_backward": (torch.randn(6), logits, index),
        "cross_entropy_cast": (narrow, index),
        "cross_entropy_cast_backward": (torch.randn(6), narrow, index),
        "gelu": (rows,),
        "gelu_backward": (rows, rows.flip(0)),
        "embedding_gradient": (rows, index, 48),
        "flash_attention": tuple(x.half() for x in heads),
        "adamw": (*vectors, 1e-3, 0.9, 0.999, 1e-8, 0.1, 3),
        "adamw_cast": (*vectors, vectors[0].bfloat16(), 1e-3, 0.9, 0.999, 1e-8, 0.1, 3),
    }
    model = made()
    kernels.SMALLEST = 64
    skipped = kernels.apply(
        nn.Sequential(model, nn.Linear(8, 8)), log=lambda _: None, shadow_every=0, weight_copies=True
    ).skipped
    found: dict[str, Any] = {}
    for problem, given in inputs.items():
        differentiable = problem in kernels.GRADIENTS
        drawn = tuple(
            x.clone().requires_grad_(differentiable and x.is_floating_point()) if isinstance(x, torch.Tensor) else x
            for x in given
        )
        told = torch.library.opcheck(kernels.operator_of(problem), drawn, raise_exception=False)
        found[problem] = {k: str(v)[:300] for k, v in told.items() if v != "SUCCESS"}
    fenced = torch.library.opcheck(kernels.fence(), (rows.requires_grad_(True), 0), raise_exception=False)
    fence = {k: str(v)[:300] for k, v in fenced.items() if v != "SUCCESS"}
    marked = torch.library.opcheck(kernels.marked(), (rows.detach(), rows.detach(), weight, 1e-6, False))
    assert set(marked.values()) == {"SUCCESS"}
    calls = {k.problem: k.calls for k in kernels.STATE.kernels.values()}
    return {"found": found, "calls": calls, "fence": fence, "specs": sorted(kernels.SPECS), "skipped": skipped}


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
        kernels.apply(model, optimizer, log=lambda _: None, **more)
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
