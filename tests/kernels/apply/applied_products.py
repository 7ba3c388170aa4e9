"""A job's products of matrices, in a process of its own with Triton's interpreter, as JSON.

TRITON_INTERPRET=1 python applied_products.py FILE WHAT
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))
from applied import load

M, N, K = 12, 32, 16


class Job(nn.Module):
    """A layer of the certified sizes, one with a bias, one of other sizes, and a product of activations."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer, self.biased = nn.Linear(K, N, bias=False), nn.Linear(N, K)
        self.other, self.table = nn.Linear(K, 24, bias=False), nn.Parameter(torch.randn(N, K))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = torch.tanh(self.layer(x))
        second = torch.relu(self.biased(first)) + torch.sigmoid(first.reshape(-1, N) @ self.table).reshape(x.shape)
        out: torch.Tensor = self.other(torch.tanh(second))
        return out


def step(model: nn.Module, call: Any, x: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    given = x.clone().requires_grad_(True)
    out = call(given)
    out.float().square().sum().backward()
    grads = [p.grad for p in (given, *model.parameters())]
    return [out.detach(), *(g.clone() for g in grads if g is not None)]


def alike(mine: list[torch.Tensor], theirs: list[torch.Tensor], rough: float = 1.0) -> bool:
    return len(mine) == len(theirs) and all(
        a.dtype == b.dtype
        and a.stride() == b.stride()
        and torch.allclose(a, b, rtol=1e-4 * rough, atol=1e-5 * rough)
        for a, b in zip(mine, theirs, strict=True)
    )


def second_derivative(layer: nn.Linear, x: torch.Tensor) -> list[torch.Tensor]:
    (once,) = torch.autograd.grad(layer(x).pow(3).sum(), layer.weight, create_graph=True)
    return list(torch.autograd.grad(once.square().sum(), layer.weight))


@torch.no_grad()
def odd(layer: nn.Linear, x: torch.Tensor) -> list[torch.Tensor]:
    """Calls that are not the kernel's: columns instead of rows, no matrix, too many rows, none, and others."""
    return [
        layer(x.reshape(M, K).t().contiguous().t()),
        layer(x[0, 0]),
        layer(torch.ones(49, K)),
        layer(torch.ones(0, K)),
        torch.vmap(layer)(x.reshape(M, 1, K)),
        nn.functional.linear(x.double(), layer.weight.double()),
    ]


def calls(kernels: Any) -> dict[str, int]:
    return {k.problem: k.calls for k in kernels.STATE.kernels.values()}


def eager(kernels: Any) -> dict[str, Any]:
    """A step, inference, other dtypes and strides, transforms, second derivatives, autocast."""
    x = torch.randn(3, 4, K)
    model = Job()
    want, keys = step(model, model, x), list(model.state_dict())
    second, left = second_derivative(model.layer, x), odd(model.layer, x)
    report = kernels.apply(model, log=lambda _: None, shadow_every=1)
    again = kernels.apply(model, log=lambda _: None, shadow_every=1)
    seen: dict[str, Any] = {"applied": report.applied, "again": again.applied == report.applied}
    seen["equal"] = [alike(step(model, model, x), want)]
    seen["calls"] = [calls(kernels)]
    with torch.no_grad():
        seen["equal"].append(alike([model(x)], want[:1]))
    seen["calls"].append(calls(kernels))
    layer = model.layer
    refused = odd(layer, x)
    seen["refused"] = alike(refused, left)
    seen["shapes"] = [list(out.shape) for out in refused]
    columns = torch.randn(K, M).t()
    same = torch.ops.nightshift.linear(columns, layer.weight.detach())  # a compiler that lays out otherwise
    seen["laid"] = alike([same], [columns @ layer.weight.detach().t()])
    seen["twice"] = alike(second_derivative(layer, x), second)
    seen["calls"].append(calls(kernels))
    seen["fallbacks"] = dict(kernels.fallbacks())
    seen["checks"] = sorted((k.shadow_checks, k.shadow_mismatches) for k in kernels.STATE.kernels.values())
    seen["keys"] = list(model.state_dict()) == keys
    written = step(layer, lambda given: layer(given).mul_(2.0).relu_(), x)
    seen["restored"] = kernels.unapply(model)
    seen["written"] = alike(written, step(layer, lambda given: layer(given).mul_(2.0).relu_(), x))
    seen["back"] = alike(step(model, model, x), want) and nn.functional.linear.__module__ != "nightshift_kernels"
    return seen


def cast(kernels: Any) -> dict[str, Any]:
    """Under autocast the operands are cast as autocast does, and gradients come back in the weights' dtype."""
    x, model = torch.randn(3, 4, K), Job()

    def call(given: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.float16):
            return model(given)

    want = step(model, call, x)
    kernels.apply(model, log=lambda _: None, shadow_every=1)
    got = step(model, call, x)
    counted = calls(kernels)
    plain = step(model, model, x)  # float32 products are not this kernel's
    return {"equal": alike(got, want, 100.0), "calls": counted, "plain": calls(kernels) == counted, "n": len(plain)}


def copied(kernels: Any) -> dict[str, Any]:
    """Layers that read the optimiser's 16-bit copies multiply by the same kernels."""
    kernels.SMALLEST = 64
    x, runs = torch.randn(3, 4, K), []
    for ours in (False, True):
        model = Job()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        if ours:
            # no checks: a step that is checked is torch's, and leaves no copies
            report = kernels.apply(
                model, optimizer, log=lambda _: None, shadow_every=0, canary=False, weight_copies=True
            )

        def call(given: torch.Tensor, model: nn.Module = model) -> Any:
            with torch.autocast("cpu", dtype=torch.float16):
                return model(given)

        for _ in range(3):
            made = step(model, call, x)
            optimizer.step()
        runs.append(made)
    return {
        "fresh": sum(copy.holds(copy.weight()) for copy in kernels.MODELS[0]),
        "equal": alike(*runs, 100.0),
        "calls": calls(kernels),
        "places": sum(problem == "adamw_many" for _, problem, _ in report.applied),
        "wrong": sum(k.shadow_mismatches for k in kernels.STATE.kernels.values()),
    }


def compiled(kernels: Any) -> dict[str, Any]:
    """Inductor's own graphs: what is swapped, a demotion at a step boundary, and what is taken back."""
    from torch._inductor import config

    config.force_disable_caches = True  # what a cache has no pass looks at
    x, model = torch.randn(3, 4, K), Job()
    want = step(model, model, x)
    told: list[str] = []
    kernels.apply(model, log=told.append, shadow_every=1, log_every=0)
    ours = config.post_grad_custom_post_pass
    graphs: list[list[str]] = []

    class Look(kernels.MultiplyByKernels):  # type: ignore[misc, name-defined]
        def __call__(self, graph: Any) -> None:
            super().__call__(graph)
            graphs.append(
                sorted(str(n.target) for n in graph.nodes if "mm" in str(n.target) or "night" in str(n.target))
            )

    config.post_grad_custom_post_pass = Look()
    run = torch.compile(model, fullgraph=True)
    seen: dict[str, Any] = {"equal": [alike(step(model, run, x), want)], "calls": [calls(kernels)]}
    with torch.no_grad():
        seen["equal"].append(alike([run(x)], want[:1]))
    seen["calls"].append(calls(kernels))
    seen["fixed"] = len(graphs)
    dynamic = torch.compile(model.layer, dynamic=True)
    seen["equal"].append(alike([dynamic(x).detach()], [model.layer(x).detach()]))
    seen["dynamic"] = [name for graph in graphs[seen["fixed"] :] for name in graph]
    del graphs[seen["fixed"] :]
    seen["calls"].append(calls(kernels))
    names = [ours.uuid()]
    folder = Path(os.environ["NIGHTSHIFT_KERNEL_REGISTRY"])
    gone = next(k.certificate for k in kernels.STATE.kernels.values() if k.problem == "matmul")
    (folder / "demoted.json").write_text(json.dumps([{"certificate": gone, "why": "x"}]))
    seen["outdated"] = len(graphs)
    kernels.step_boundary()
    seen["equal"].append(alike(step(model, run, x), want))
    seen["calls"].append(calls(kernels))
    names.append(ours.uuid())
    seen["names"] = len({str(name) for name in names})
    seen["wrong"] = sum(k.shadow_mismatches for k in kernels.STATE.kernels.values())
    config.post_grad_custom_post_pass = ours
    kernels.unapply(model)
    seen["equal"].append(alike(step(model, run, x), want))
    seen["back"] = config.post_grad_custom_post_pass is None and kernels.STATE.multiply is None
    return {**seen, "graphs": graphs}


def wide(kernels: Any) -> dict[str, Any]:
    """Layers that read copies, where products give float32: eager, and in a graph that a compiler is left with."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    kernels.SMALLEST = 64
    x, model = torch.randn(3, 4, K), Job()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    kernels.apply(model, optimizer, log=lambda _: None, shadow_every=0, canary=False, weight_copies=True)
    kernels.STATE.wide_products = True  # as on a GPU

    def call(given: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.float16):
            return model(given)

    for _ in range(2):
        step(model, call, x)
        optimizer.step()
    kernels.STATE.kernels["linear_weight_gradient_wide n=32 k=16 float16"].calls = 0
    kernels.STATE.shadow_every = 1
    step(model, call, x)
    with torch.autocast("cpu", dtype=torch.float16):
        given = x.half().reshape(-1, K)
        out = model.layer(given)
    g = torch.randn(M, N, dtype=torch.float16)
    (dw,) = torch.autograd.grad(out, model.layer.weight, g)
    exact = g.double().t() @ given.double()
    seen: dict[str, Any] = {
        "calls": slots(kernels),
        "wrong": sum(k.shadow_mismatches for k in kernels.STATE.kernels.values()),
    }
    seen["gap"] = float((dw.double() - exact).abs().max() / exact.abs().max())
    seen["graphs"] = []
    aten = torch.ops.aten
    for kind, rows, turned in ((torch.float32, M, True), (torch.float16, M, True), (torch.float32, 99, True),
                               (torch.float32, M, False)):  # fmt: skip
        graph = torch.fx.Graph()
        with FakeTensorMode():
            values = [torch.empty(rows, N, dtype=torch.float16), torch.empty(rows, K, dtype=torch.float16)]
            values[0] = values[0] if turned else torch.empty(N, rows, dtype=torch.float16)
            left, right = graph.placeholder("left"), graph.placeholder("right")
            left.meta["val"], right.meta["val"] = values
            if turned:
                left = graph.call_function(aten.permute.default, (left, [1, 0]))
                left.meta["val"] = values[0].t()
            made = graph.call_function(aten.mm.dtype, (left, right, kind))
            made.meta["val"] = torch.empty(N, K, dtype=kind)
            graph.output(made)
            kernels.MultiplyByKernels()(graph)
        graph.lint()
        seen["graphs"].append([str(n.target) for n in graph.nodes if n.op == "call_function"])
    kernels.unapply(model)
    return seen


class Biased(nn.Module):
    """Two layers of one pair of widths with a bias, and one without."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.first, self.second = nn.Linear(K, N), nn.Linear(K, N)
        self.plain = nn.Linear(N, K, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.second(self.plain(torch.tanh(self.first(x))))
        return out


def slots(kernels: Any) -> dict[str, int]:
    return {name.split()[0]: k.calls for name, k in kernels.STATE.kernels.items()}


@torch.no_grad()
def odd_biases(layer: nn.Linear, x: torch.Tensor) -> list[torch.Tensor]:
    """One number for all columns, every second of a longer row, float64, and one row for each row."""
    long, weight, call = torch.linspace(-1.0, 1.0, 2 * N), layer.weight, nn.functional.linear
    return [
        call(x, weight, long[:1]),
        call(x, weight, long[::2]),
        call(x.double(), weight.double(), long[:N].double()),
        torch.addmm(torch.ones(M, N), x.reshape(M, K), weight.t()),
    ]


def rounded_once(dtype: torch.dtype) -> float:
    """2049 + 1 through a layer: rounded to 11 bits before the bias is added it would be 2048."""
    x, weight = torch.zeros(M, K, dtype=dtype), torch.zeros(N, K, dtype=dtype)
    x[:, 0], x[:, 1], weight[:, 0], weight[:, 1] = 2048, 1, 1, 1
    with torch.no_grad():
        out = nn.functional.linear(x, weight, torch.ones(N, dtype=dtype))
    return float(out.min()) if bool((out == out[0, 0]).all()) else -1.0


def biased(kernels: Any) -> dict[str, Any]:
    """A step, inference, what is refused, second derivatives, and the gradients' kernels alone."""
    x, model = torch.randn(3, 4, K), Biased()
    want, second, left = step(model, model, x), second_derivative(model.first, x), odd_biases(model.first, x)
    report = kernels.apply(model, log=lambda _: None, shadow_every=1)
    seen: dict[str, Any] = {"applied": [name for _, name, _ in report.applied]}
    seen["equal"], seen["calls"] = [alike(step(model, model, x), want)], [slots(kernels)]
    with torch.no_grad():
        seen["equal"].append(alike([model(x)], want[:1]))
    seen["calls"].append(slots(kernels))
    seen["refused"] = alike(odd_biases(model.first, x), left)
    seen["calls"].append(slots(kernels))
    seen["twice"] = alike(second_derivative(model.first, x), second)
    model.first.bias.requires_grad_(False)
    frozen = step(model, model, x)
    seen["frozen"] = alike([*frozen[:3], *frozen[3:]], [*want[:3], *want[4:]])  # no gradient for it alone
    model.first.bias.requires_grad_(True)
    seen["fallbacks"] = dict(kernels.fallbacks())
    seen["wrong"] = sum(k.shadow_mismatches for k in kernels.STATE.kernels.values())
    kernels.unapply(model)
    seen["back"] = alike(step(model, model, x), want)
    kernels.apply(model, log=lambda _: None, shadow_every=1, only=("matmul", "linear_weight_gradient"))
    seen["equal"].append(alike(step(model, model, x), want))
    seen["alone"] = slots(kernels)
    kernels.unapply(model)
    return seen


def biased_cast(kernels: Any) -> dict[str, Any]:
    """In 16 bits: cast by autocast, read from copies, rounded once."""
    x, model = torch.randn(3, 4, K), Biased()

    def call(given: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.float16):
            return model(given)

    want = step(model, call, x)
    kernels.apply(model, log=lambda _: None, shadow_every=1)
    equal, counted = alike(step(model, call, x), want, 100.0), slots(kernels)
    once = rounded_once(torch.float16)
    kernels.unapply(model)
    return {"equal": equal, "calls": counted, "once": once}


def biased_compiled(kernels: Any) -> dict[str, Any]:
    """In a compiled region the product with its bias is one node; after a demotion it is the compiler's again."""
    from torch._inductor import config

    config.force_disable_caches = True
    x, model = torch.randn(3, 4, K), Biased()
    want = step(model, model, x)
    kernels.apply(model, log=lambda _: None, shadow_every=1, log_every=0)
    ours, graphs = config.post_grad_custom_post_pass, []

    class Look(kernels.MultiplyByKernels):  # type: ignore[misc, name-defined]
        def __call__(self, graph: Any) -> None:
            super().__call__(graph)
            names = (str(node.target) for node in graph.nodes if node.op == "call_function")
            graphs.append(sorted(n.split(".")[1] for n in names if "mm" in n or "nightshift" in n))

    config.post_grad_custom_post_pass = Look()
    run = torch.compile(model, fullgraph=True)
    seen: dict[str, Any] = {"equal": [alike(step(model, run, x), want)], "calls": [slots(kernels)]}
    folder = Path(os.environ["NIGHTSHIFT_KERNEL_REGISTRY"])
    gone = next(k.certificate for k in kernels.STATE.kernels.values() if k.problem == "linear_bias")
    (folder / "demoted.json").write_text(json.dumps([{"certificate": gone, "why": "x"}]))
    kernels.step_boundary()
    seen["equal"].append(alike(step(model, run, x), want))
    seen["calls"].append(slots(kernels))
    seen["wrong"] = sum(k.shadow_mismatches for k in kernels.STATE.kernels.values())
    config.post_grad_custom_post_pass = ours
    kernels.unapply(model)
    seen["equal"].append(alike(step(model, run, x), want))
    return {**seen, "graphs": graphs}


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(json.dumps(globals()[sys.argv[2]](load(sys.argv[1]))))
