"""What compilers and torch's own check see of a job's file, in a process of its own, as JSON.

TRITON_INTERPRET=1 python applied_compiled.py FILE WHAT
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))
from applied import N, close, load, losses, made


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
    told["opened"] = sorted(kernels.STATE.opened)
    return told


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
        "swiglu": (rows, rows.flip(0)),
        "swiglu_backward": (rows, rows.flip(0), rows.flip(1)),
        "geglu": (rows, rows.flip(0)),
        "fused_mlp": (torch.randn(6, 16), torch.randn(32, 16), torch.randn(32, 16), torch.randn(16, 32)),
        **dict.fromkeys(kernels.BENT, (torch.randn(6, 16), torch.randn(32, 16), torch.randn(32))),
        "matmul": (torch.randn(6, 16), torch.randn(16, 32)),
        "linear": (torch.randn(6, 16), torch.randn(32, 16)),
        "linear_bias": (torch.randn(6, 16), torch.randn(32, 16), torch.randn(32)),
        "linear_weight_gradient": (torch.randn(6, 32), torch.randn(6, 16)),
        "linear_weight_gradient_wide": (torch.randn(6, 32).half(), torch.randn(6, 16).half()),
        **{
            name: (torch.randn(first), torch.randn(second), *torch.randn(2, 6, 8))
            for how, first, second in (
                ("", (1, 4, 6, 8), (1, 2, 6, 8)),
                ("_by_position", (1, 6, 4, 8), (1, 6, 2, 8)),
            )
            for name in (f"rotary_half{how}", f"rotary_half{how}_backward")
        },
        **{
            f"rotary_interleaved{how}{back}": (torch.randn(shape), *torch.randn(2, 6, 4))
            for how, shape in (("", (1, 4, 6, 8)), ("_by_position", (1, 6, 4, 8)))
            for back in ("", "_backward")
        },
        "embedding_gradient": (rows, index, 48),
        "flash_attention": tuple(x.half() for x in heads),
        "flash_attention_by_position": tuple(x.half().transpose(1, 2).contiguous() for x in heads),
        "flash_attention_by_position_backward": (
            *(x.half().transpose(1, 2).contiguous() for x in (*heads, *heads[:2])),
            torch.full((1, 2, 16), 3.0),
        ),
        "adamw": (*vectors, 1e-3, 0.9, 0.999, 1e-8, 0.1, 3),
        "adamw_cast": (*vectors, vectors[0].bfloat16(), 1e-3, 0.9, 0.999, 1e-8, 0.1, 3),
        "adamw_many": (
            *vectors,
            vectors[0].bfloat16(),
            torch.tensor([[0, 0, 8, 0, 0, 16]]),
            1e-3,
            0.9,
            0.999,
            1e-8,
            0.1,
            3,
        ),
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


def eager_only(kernels: Any) -> dict[str, Any]:
    """Who calls the kernels of a file, in eager code and in a compiled region."""
    want, model, second = losses(made()), made(), made()
    report = kernels.apply(model, log=lambda _: None, shadow_every=0)
    kernels.apply(second, log=lambda _: None, shadow_every=0)

    def calls() -> dict[str, int]:
        return {name: kernel.calls for name, kernel in kernels.STATE.kernels.items()}

    equal, eager = close(want, losses(model)), calls()
    compiled_equal = close(want, losses(torch.compile(second, backend="aot_eager", fullgraph=True)))
    told = [what for what, why in report.skipped if "torch.compile" in why]
    return {"equal": [equal, compiled_equal], "eager": eager, "after": calls(), "told": told}


def chosen(kernels: Any) -> dict[str, Any]:
    """The canary of a compiled step: how often a region was compiled, and what each set's steps called."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    made_of: list[str] = []

    def compiler(graph: Any, _: Any) -> Any:
        ours = {str(node.target).split(".")[1] for node in graph.graph.nodes if "nightshift" in str(node.target)}
        made_of.append(" ".join(sorted(ours)) or "torch")
        return make_boxed_func(graph.forward)

    kernels.apply(model := made(), log=lambda _: None, shadow_every=0, log_every=0)
    step = torch.compile(model, backend=aot_autograd(fw_compiler=compiler), fullgraph=True)
    index = torch.randint(0, 48, (4, 3))
    idle: list[str] = []

    def one() -> None:
        before = {name: kernel.calls for name, kernel in kernels.STATE.kernels.items()}
        step(index).sum().backward()
        idle.extend(name for name, kernel in kernels.STATE.kernels.items() if kernel.calls == before[name])

    # a clock that counts how often it is read: all sets look alike
    seconds = kernels.canary(one, steps=1, rounds=1, turns=4, settle_s=0.0, clock=itertools.count().__next__)
    return {"compiled": made_of, "idle": idle, "turns": seconds["turns"]}


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(json.dumps(globals()[sys.argv[2]](load(sys.argv[1]))))
