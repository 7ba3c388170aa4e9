"""A job with causal attention, in a process of its own with Triton's interpreter, as JSON.

TRITON_INTERPRET=1 python applied_attention.py FILE WHAT
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).parent))
from applied import load

B, H, S, D = 2, 2, 24, 16
FORWARD, BACKWARD = "flash_attention_by_position", "flash_attention_by_position_backward"


def drawn(lies: str = "packed", s: int = S, h: int = H) -> list[torch.Tensor]:
    """q, k, v of (b, h, s, d), float64, and how they lie."""
    generator = torch.Generator().manual_seed(4)
    if lies == "packed":
        packed = torch.randn(B, s, 3, h, D, generator=generator, dtype=torch.float64)
        return list(packed.permute(2, 0, 3, 1, 4))
    made = [torch.randn(B, s, h, D, generator=generator, dtype=torch.float64).transpose(1, 2) for _ in range(3)]
    return made if lies == "by position" else [x.contiguous() for x in made]


def narrow(given: list[torch.Tensor], kind: torch.dtype = torch.float16) -> list[torch.Tensor]:
    """The same in fewer bits, lying the same."""
    return [x.new_empty_strided(x.shape, x.stride(), dtype=kind).copy_(x) for x in given]


def exact(given: list[torch.Tensor]) -> list[torch.Tensor]:
    """Result and gradients in float64, by the plain formula: of what was given, and of a loss that is no sum."""
    q, k, v = (x.double().requires_grad_(True) for x in given)
    scores = (q @ k.mT * D**-0.5).masked_fill(torch.ones(q.shape[2], k.shape[2]).triu(1).bool(), -torch.inf)
    out = torch.softmax(scores, -1) @ v
    (out * weights(out)).sum().backward()
    return [out.detach(), *(x.grad for x in (q, k, v) if x.grad is not None)]


def weights(out: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.dtype)


def step(given: list[torch.Tensor], call: Callable[..., Any] | None = None, **more: Any) -> list[torch.Tensor]:
    leaves = [x.detach().requires_grad_(True) for x in given]
    out = (call or F.scaled_dot_product_attention)(*leaves, **{"is_causal": True, **more})
    (out * weights(out)).sum().backward()
    return [out.detach(), *(x.grad for x in leaves if x.grad is not None)]


def near(got: list[torch.Tensor], want: list[torch.Tensor], torchs: list[torch.Tensor] | None = None) -> bool:
    """Each no farther from the exact one than three times torch's own, or three units in the last place."""
    if len(got) != len(want):
        return False
    for number, (mine, truth) in enumerate(zip(got, want, strict=True)):
        error, level = (float(x.double().square().mean().sqrt()) for x in (mine.double() - truth, truth))
        allowed = 3.0 * torch.finfo(mine.dtype).eps * level
        if torchs is not None:
            allowed = max(3.0 * float((torchs[number].double() - truth).square().mean().sqrt()), allowed / 3.0)
        if mine.shape != truth.shape or not error <= allowed:
            return False
    return True


def equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def calls(kernels: Any) -> dict[str, int]:
    return {k.problem: k.calls for k in kernels.STATE.kernels.values()}


def trained(kernels: Any) -> dict[str, Any]:
    """A training step of tensors that lie as projections leave them; what lies otherwise is torch's, bit by bit."""
    seen: dict[str, Any] = {}
    ways = {lies: narrow(drawn(lies)) for lies in ("packed", "by position", "heads first")}
    before = {lies: step(given) for lies, given in ways.items()}
    report = kernels.apply(nn.Linear(2, 2), log=lambda _: None, shadow_every=2, log_every=0)
    seen["applied"] = [(where, problem) for where, problem, _ in report.applied]
    for lies, given in ways.items():
        start, got = calls(kernels), step(given)
        seen[lies] = {
            "near": near(got, exact(given), before[lies]),
            "torch's": equal(got, before[lies]),
            "calls": [calls(kernels)[name] - start[name] for name in (FORWARD, BACKWARD)],
            "shape": list(got[0].shape),
        }
    packed = ways["packed"]
    scaled = near(step(packed, scale=D**-0.5), exact(packed), before["packed"])
    one = [packed[0]] * 3
    leaf = packed[0].detach().requires_grad_(True)
    F.scaled_dot_product_attention(leaf, leaf, leaf, is_causal=True).float().square().sum().backward()
    wide = packed[0].double().requires_grad_(True)
    scores = (wide @ wide.mT * D**-0.5).masked_fill(torch.ones(S, S).triu(1).bool(), -torch.inf)
    (torch.softmax(scores, -1) @ wide).square().sum().backward()
    assert leaf.grad is not None
    assert wide.grad is not None
    frozen = packed[0].detach().requires_grad_(True)
    F.scaled_dot_product_attention(frozen, *packed[1:], is_causal=True).sum().backward()
    seen["alike"] = {
        "scale": scaled,
        "one tensor": near([leaf.grad], [wide.grad]) and len(one) == 3,
        "frozen": frozen.grad is not None and packed[1].grad is None,
    }
    with torch.no_grad():
        inferred = [F.scaled_dot_product_attention(*given, is_causal=True) for given in ways.values()]
    seen["inferred"] = [near([x], exact(given)[:1]) for x, given in zip(inferred, ways.values(), strict=True)]
    with torch.inference_mode():
        last = F.scaled_dot_product_attention(*packed, is_causal=True)
    seen["inferred"].append(near([last], exact(packed)[:1]))
    seen["calls"], seen["fallbacks"] = calls(kernels), kernels.fallbacks()
    held = kernels.STATE.kernels.values()
    seen["checks"], seen["wrong"] = sum(k.shadow_checks for k in held), sum(k.shadow_mismatches for k in held)
    return seen


def refused(kernels: Any) -> dict[str, Any]:
    """What is no plain causal attention of the certified sizes, is torch's own, bit by bit, with a reason."""
    q, k, v = narrow(drawn("by position"))
    few = narrow(drawn("by position", h=1))[1:]
    mask = torch.ones(S, S, dtype=torch.bool).tril()
    short = narrow(drawn("by position", s=8))
    ways: dict[str, tuple[list[torch.Tensor], dict[str, Any]]] = {
        "mask": ([q, k, v], {"attn_mask": mask, "is_causal": False}),
        "not causal": ([q, k, v], {"is_causal": False}),
        "scale": ([q, k, v], {"scale": 0.5}),
        "heads": ([q, *few], {"enable_gqa": True}),
        "length": ([q[:, :, :8], k, v], {}),
        "dtype": ([q.float(), k.float(), v.float()], {}),
        "shape": (short, {}),
        "stride": ([x.mT.contiguous().mT for x in (q, k, v)], {}),
        "mixed": ([q, k.contiguous(), v], {}),
    }
    before = {name: step(given, **more) for name, (given, more) in ways.items()}
    torch.manual_seed(1)
    dropped = step([q, k, v], dropout_p=0.5)
    kernels.apply(nn.Linear(2, 2), log=lambda _: None, shadow_every=1, log_every=0)
    told: dict[str, Any] = {}
    for name, (given, more) in ways.items():
        counted = dict(kernels.fallbacks())
        same = equal(step(given, **more), before[name])
        new = {key: n - counted.get(key, 0) for key, n in kernels.fallbacks().items() if n != counted.get(key, 0)}
        told[name] = [same, new]
    torch.manual_seed(1)
    told["dropout"] = [equal(step([q, k, v], dropout_p=0.5), dropped), {}]
    with sdpa_kernel(SDPBackend.MATH):
        plain = step([q, k, v])
    seen = {"calls": calls(kernels), "fallbacks": kernels.fallbacks()}
    kernels.unapply(nn.Linear(2, 2))
    with sdpa_kernel(SDPBackend.MATH):
        told["math"] = [equal(plain, step([q, k, v])), {}]
    return {"told": told, **seen}


def mistaken(kernels: Any) -> dict[str, Any]:
    """Two steps, every call held against torch's."""
    given = narrow(drawn())
    kernels.apply(nn.Linear(2, 2), log=lambda _: None, shadow_every=1, log_every=0)
    right = [near(step(given), exact(given)) for _ in range(2)]
    held = [kernels.STATE.kernels[name] for name in (FORWARD, BACKWARD)]
    return {
        "right": right,
        "disabled": ["shadow check" in k.disabled for k in held],
        "calls": [k.calls for k in held],
    }


def whole(kernels: Any) -> dict[str, Any]:
    """Steps of slices and of whole tensors, and inference: [right, forward calls, gradient's calls]."""
    kernels.apply(nn.Linear(2, 2), log=lambda _: None, shadow_every=0, log_every=0)
    seen: dict[str, Any] = {}

    def counted(name: str, run: Callable[[], list[torch.Tensor]], truth: list[torch.Tensor]) -> None:
        start = calls(kernels)
        right = near(run(), truth)
        seen[name] = [right, *(calls(kernels).get(p, 0) - start.get(p, 0) for p in (FORWARD, BACKWARD))]

    for lies in ("packed", "by position"):
        given = narrow(drawn(lies))
        truth = exact(given)
        counted(lies, lambda given=given: step(given), truth)
    with torch.no_grad():
        counted("inferred", lambda: [causal(*given)], truth[:1])
    return {**seen, "fallbacks": kernels.fallbacks()}


def odd(kernels: Any) -> dict[str, Any]:
    """What jobs do with it: autocast, checkpoints, hooks, tensors kept elsewhere, second derivatives, others."""
    given = narrow(drawn())
    truth = exact(given)
    wide = [x.float() for x in given]
    original = F.scaled_dot_product_attention
    model = nn.Linear(2, 2)
    keys = list(model.state_dict())
    kernels.apply(model, log=lambda _: None, shadow_every=0, log_every=0)
    kernels.apply(model, log=lambda _: None, shadow_every=0, log_every=0)
    seen: dict[str, Any] = {}

    def counted(name: str, run: Callable[[], Any], right: Callable[[Any], bool]) -> None:
        start = calls(kernels)
        seen[name] = [right(run()), *(calls(kernels)[p] - start[p] for p in (FORWARD, BACKWARD))]

    with torch.autocast("cpu", torch.float16):
        counted(
            "autocast",
            lambda: step(wide),
            lambda got: (
                got[0].dtype == torch.float16
                and near([x.half() for x in got], truth)
                and got[1].dtype == torch.float32
            ),
        )
    for how in (True, False):
        counted(
            f"checkpoint {how}",
            lambda how=how: step(given, lambda *a, **m: checkpoint(causal, *a, use_reentrant=how)),
            lambda got: near(got, truth),
        )
    heard: list[int] = []

    def hooked(*a: torch.Tensor, **m: Any) -> torch.Tensor:
        a[0].register_hook(lambda g: heard.append(g.dim()))
        out = F.scaled_dot_product_attention(*a, **m)
        out.register_hook(lambda g: heard.append(g.dim()))
        return out

    counted("hooks", lambda: step(given, hooked), lambda got: near(got, truth) and heard == [4, 4])

    def kept(*a: torch.Tensor, **m: Any) -> torch.Tensor:
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x.mT.contiguous(), lambda x: x.mT):
            return F.scaled_dot_product_attention(*a, **m)

    counted("kept elsewhere", lambda: step(given, kept), lambda got: near(got, truth))

    leaves = [x.detach().requires_grad_(True) for x in given]
    counted(
        "sum",
        lambda: torch.autograd.grad(causal(*leaves).sum(), leaves),
        lambda got: all(x.stride(-1) == 1 and bool(x.isfinite().all()) for x in got),
    )

    def twice(kind: torch.dtype, call: Callable[..., Any]) -> list[torch.Tensor]:
        q, k, v = (x.detach().to(kind).requires_grad_(True) for x in given)
        out = call(q, k, v)
        first = torch.autograd.grad((out * weights(out)).sum(), (q, k, v), create_graph=True)
        return [g.detach() for g in first] + list(
            torch.autograd.grad(sum(g.double().square().sum() for g in first), (q, k, v))
        )

    def formula(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = (q @ k.mT * D**-0.5).masked_fill(torch.ones(S, S).triu(1).bool(), -torch.inf)
        return torch.softmax(scores, -1) @ v

    counted(
        "second derivatives",
        lambda: twice(torch.float16, causal),
        lambda got: near(got, twice(torch.float64, formula)),
    )
    grad = torch.func.grad(lambda q: F.scaled_dot_product_attention(q, *given[1:], is_causal=True).float().sum())
    counted("transform", lambda: grad(given[0]), lambda got: bool(got.isfinite().all()))
    nested = torch.nested.nested_tensor([torch.randn(H, 5, D), torch.randn(H, 5, D)])
    counted("nested", lambda: F.scaled_dot_product_attention(nested, nested, nested), lambda got: got.is_nested)
    seen["keys"] = list(model.state_dict()) == keys
    seen["restored"] = kernels.unapply(model)
    seen["back"] = F.scaled_dot_product_attention is original
    return seen


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Job(nn.Module):
    """A block as GPTs have it: one projection of all three."""

    def __init__(self, packed: bool = True) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.packed, self.given, self.last = packed, nn.Linear(H * D, 3 * H * D), nn.Linear(H * D, H * D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.given(x)
        if self.packed:
            q, k, v = made.view(B, S, 3, H, D).permute(2, 0, 3, 1, 4)
        else:
            q, k, v = (part.contiguous().view(B, S, H, D).transpose(1, 2) for part in made.chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.last(a.transpose(1, 2).reshape(B, S, H * D))


def job_step(model: nn.Module, call: Any, kind: torch.dtype = torch.float16) -> list[torch.Tensor]:
    model.zero_grad()
    x = torch.randn(B, S, H * D, generator=torch.Generator().manual_seed(8)).to(kind).requires_grad_(True)
    out = call(x)
    (out * weights(out)).sum().backward()
    assert x.grad is not None
    return [out.detach(), x.grad, *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def compiled(kernels: Any) -> dict[str, Any]:
    """Compiled regions, by AOT autograd alone and by Inductor: both operators stand in the graphs, also after a
    demotion of either, and nothing is left after unapply."""
    from torch._inductor import config

    config.force_disable_caches = True
    graphs: list[dict[str, int]] = []

    def looked(graph: Any) -> None:
        names = [str(n.target).split(".")[1] for n in graph.nodes if "nightshift." in str(n.target)]
        graphs.append({name: names.count(name) for name in sorted(set(names))})

    found: dict[str, Any] = {}
    model, other = Job().half(), Job(packed=False).half()
    exactly = {m: job_step(m.double(), m, torch.float64) for m in (model, other)}
    for m in (model, other):
        m.half()
    kernels.apply(model, log=lambda _: None, shadow_every=1, log_every=0)
    asked = sys.argv[3:] or ["aot_eager", "inductor"]
    config.joint_custom_pre_pass = looked
    for backend in asked:
        for name, m in (("packed", model), ("apart", other)):
            torch._dynamo.reset()
            start = calls(kernels)
            run = torch.compile(m, backend=backend, fullgraph=True)
            right = [near(job_step(m, run), exactly[m]) for _ in range(2)]
            found[f"{backend} {name}"] = [*right, *(calls(kernels)[p] - start[p] for p in (FORWARD, BACKWARD))]
    found["graphs"], found["fallbacks"] = graphs[:], kernels.fallbacks()
    torch._dynamo.reset()
    free = torch.compile(model, backend="aot_eager", dynamic=True)
    found["dynamic"] = near(job_step(model, free), exactly[model])
    with sdpa_kernel(SDPBackend.MATH):
        torch._dynamo.reset()
        start, plain = calls(kernels), torch.compile(model, backend="aot_eager", fullgraph=True)
        found["math"] = [near(job_step(model, plain), exactly[model]), calls(kernels) == start]
    torch._dynamo.reset()
    run = torch.compile(model, backend=asked[0], fullgraph=True)
    with torch.no_grad():
        start = calls(kernels)
        out = run(torch.randn(B, S, H * D).half())
        found["inferred"] = [list(out.shape), *(calls(kernels)[p] - start[p] for p in (FORWARD, BACKWARD))]
    job_step(model, run)
    folder = Path(os.environ["NIGHTSHIFT_KERNEL_REGISTRY"])
    gone: list[dict[str, str]] = []
    for name in (BACKWARD, FORWARD):
        gone.append({"certificate": kernels.STATE.kernels[name].certificate, "why": "x"})
        (folder / "demoted.json").write_text(json.dumps(gone))
        kernels.step_boundary()
        start = calls(kernels)
        right = near(job_step(model, run), exactly[model])
        found[f"without {name}"] = [right, *(calls(kernels)[p] - start[p] for p in (FORWARD, BACKWARD))]
    found["wrong"] = sum(k.shadow_mismatches for k in kernels.STATE.kernels.values())
    kernels.unapply(model)
    found["after"] = near(job_step(model, run), exactly[model])
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(json.dumps(globals()[sys.argv[2]](load(sys.argv[1]))))
