"""Runs in a process of its own with Triton's interpreter: RMSNorm by torch with a certified gradient, as JSON.

TRITON_INTERPRET=1 python applied_norms.py FILE WHAT
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
from applied import N, Rms, load
from applied_compiled import set_target

V = 48
INDEX = torch.arange(12).reshape(2, 6) * 5 % V
HALF = torch.float16  # the interpreter does not round to bfloat16, it cuts


class Net(nn.Module):
    """Two blocks on a residual stream of float32, and a norm behind which nothing is added."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.table, self.last, self.head = nn.Embedding(V, N), Rms(), nn.Linear(N, V)
        self.norms = nn.ModuleList(Rms() for _ in range(2))
        self.layers = nn.ModuleList(nn.Linear(N, N) for _ in range(2))

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=HALF):
            x = self.table(index)
            for norm, layer in zip(self.norms, self.layers, strict=True):
                x = x + layer(norm(x))
            return F.cross_entropy(self.head(self.last(x)).float().reshape(-1, V), (index.reshape(-1) + 1) % V)


def step(model: nn.Module, how: Any = None) -> tuple[float, dict[str, torch.Tensor]]:
    torch._dynamo.reset()
    run = torch.compile(model, backend=how, fullgraph=True) if how is not None else model
    loss = run(INDEX)
    loss.backward()
    return float(loss.detach()), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def alike(one: Any, other: Any) -> bool:
    """To what 16-bit products leave of it: a last bit of the forward pass may round otherwise."""
    (a, mine), (b, theirs) = one, other
    return abs(a - b) < 1e-3 and all(torch.allclose(mine[k], theirs[k], rtol=1e-2, atol=1e-4) for k in theirs)


def backend(kernels: Any, seen: list[dict[str, int]], passing: bool = True) -> Any:
    """torch's own tracing with our pass over the joint graph, and no compiler behind it."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import default_partition

    def part(joint: Any, *rest: Any, **named: Any) -> Any:
        if passing and kernels.STATE.fold is not None:
            kernels.STATE.fold(joint.graph)
            joint.graph.lint()
            joint.recompile()
        names = [str(node.target) for node in joint.graph.nodes]
        wide = [
            n for n in joint.graph.nodes if "convert_element_type" in str(n.target) or "_to_copy" in str(n.target)
        ]
        ours = {key: sum(f"nightshift.{key}." in name for name in names) for key in (kernels.NORM, kernels.MARK)}
        seen.append({**ours, "casts": len(wide)})
        return default_partition(joint, *rest, **named)

    def plain(graph: Any, _: Any) -> Any:
        return make_boxed_func(graph)

    return aot_autograd(fw_compiler=plain, bw_compiler=plain, partition_fn=part)


def folded(kernels: Any) -> dict[str, Any]:
    seen: list[dict[str, int]] = []
    want = step(Net(), backend(kernels, seen))
    model = Net()
    report = kernels.apply(model, log=lambda _: None, shadow_every=1)
    kernel = kernels.STATE.kernels[kernels.NORM]
    got = step(model, backend(kernels, seen))
    told = {"calls": kernel.calls, "checks": kernel.shadow_checks, "wrong": kernel.shadow_mismatches}
    model.zero_grad()
    without_pass = step(model, backend(kernels, seen, passing=False))
    model.zero_grad()
    eager, calls = step(model), kernel.calls
    kernel.disabled = "demoted in the registry"
    model.zero_grad()
    demoted = step(model, backend(kernels, seen))
    restored = kernels.unapply(model)
    from torch._inductor import config

    return {
        **told,
        "applied": [(where, problem) for where, problem, _ in report.applied],
        "graphs": seen,
        "equal": [alike(x, want) for x in (got, without_pass, eager, demoted)],
        "eager_calls": calls - told["calls"],
        "restored": restored,
        "taken_back": kernels.STATE.fold is None and config.joint_custom_pre_pass is None,
    }


def opened(kernels: Any) -> dict[str, Any]:
    """What a compiler gets where it may launch the kernel itself. Traced only: without a GPU nothing can run."""
    from functorch.compile import aot_function
    from torch._functorch.partitioners import default_partition
    from torch._subclasses.fake_tensor import FakeTensorMode

    set_target()
    kernels.ON_CPU = True
    (record,) = kernels.KERNELS
    kernel = kernels.STATE.kernels[kernels.NORM] = kernels.Kernel(record, *kernels.load_entry(record))
    kernels.open_all()
    kernels.marked()
    fold = kernels.FoldNorms(HALF)
    seen: dict[str, Any] = {}

    def traced(name: str, launches: bool) -> None:
        def step(x: torch.Tensor, w: torch.Tensor, product: torch.Tensor) -> torch.Tensor:
            narrow = kernels.Normed.apply(x, w, 1e-6, True, launches, None).to(HALF)
            return x + narrow @ product

        def part(joint: Any, *rest: Any, **named: Any) -> Any:
            fold(joint.graph)
            joint.graph.lint()
            joint.recompile()
            return default_partition(joint, *rest, **named)

        def keep(graph: Any, _: Any) -> Any:
            nodes = [n for n in graph.graph.nodes if n.op == "call_function"]
            written = [n.kwargs.get("tensors_to_clone", []) for n in nodes if "triton_kernel" in str(n.target)]
            ours = sorted(str(n.target) for n in nodes if str(n.target).startswith("nightshift"))
            seen.setdefault(name, []).append({"launches": written, "ours": ours})
            return graph

        with FakeTensorMode():
            given = [torch.empty(shape, requires_grad=True) for shape in ((12, N), (N,))]
            product = torch.empty(N, N, dtype=HALF)
            aot_function(step, keep, keep, partition_fn=part)(*given, product).sum().backward()

    traced("closed", False)
    traced("open", True)
    names = [fold.uuid()]
    kernel.disabled = "demoted in the registry"
    traced("demoted", True)
    return {**seen, "renamed": fold.uuid() not in names}


def gradients(kernels: Any) -> dict[str, Any]:
    """A gradient alone, `rmsnorm_backward`: the forward passes are torch's, eager and compiled."""
    want = step(Net())
    model = Net()
    report = kernels.apply(model, log=lambda _: None, shadow_every=1)
    kernel = kernels.STATE.kernels["rmsnorm_backward"]
    eager, calls = step(model), [kernel.calls]
    model.zero_grad()
    compiled = step(model, "aot_eager")
    calls.append(kernel.calls)
    with torch.no_grad():
        same = torch.equal(model(INDEX), Net()(INDEX))
    model.last(torch.ones(12, N, dtype=HALF, requires_grad=True))  # refused, and counted
    return {
        "applied": [problem for _, problem, _ in report.applied],
        "equal": [alike(eager, want), alike(compiled, want)],
        "forward_bits": eager[0] == want[0] and same,
        "calls": calls,
        "wrong": kernel.shadow_mismatches,
        "fallbacks": kernels.fallbacks(),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(json.dumps(globals()[sys.argv[2]](load(sys.argv[1]))))
