"""A job with rotary embeddings, in a process of its own with Triton's interpreter, as JSON.

TRITON_INTERPRET=1 python applied_rotary.py FILE WHAT
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))
from applied import load
from applied_products import alike
from pair_spellings import every_two, of_complex, sliced, unflattened

B, S, H, G, D = 2, 6, 4, 2, 8


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    """As Llama spells it."""
    return torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), dim=-1)


def chunked(x: torch.Tensor) -> torch.Tensor:
    low, high = x.chunk(2, -1)
    return torch.cat((high.neg(), low), -1)


def unlike(x: torch.Tensor) -> torch.Tensor:
    """One sign off."""
    low, high = x.chunk(2, -1)
    return torch.cat((high, low), -1)


class Job(nn.Module):
    """Two layers with the same tables. lies: how q and k come to the rotation."""

    def __init__(self, half: Callable[[torch.Tensor], torch.Tensor] = rotate_half, lies: str = "turned") -> None:
        super().__init__()
        torch.manual_seed(1)
        self.half, self.lies = half, lies
        self.layers = nn.ModuleList(nn.ModuleList(nn.Linear(H * D, n * D) for n in (H, G)) for _ in range(2))
        angle = torch.rand(S, D // 2) * 3
        self.register_buffer("angle", torch.cat((angle, angle), -1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cos, sin = self.angle.cos(), self.angle.sin()
        if self.lies == "batches":
            cos, sin = (t.expand(B, 1, S, D).clone() for t in (cos, sin))
        by_position = self.lies == "by position"
        tables = (cos[:, None], sin[:, None]) if by_position else (cos, sin)
        for layer in self.layers:
            q, k = (part(x).view(B, S, -1, D) for part in layer)
            if not by_position:
                q, k = q.transpose(1, 2), k.transpose(1, 2)
            if self.lies == "contiguous":
                q, k = q.contiguous(), k.contiguous()
            q, k = (v * tables[0] + self.half(v) * tables[1] for v in (q, k))
            if not by_position:
                q, k = q.transpose(1, 2), k.transpose(1, 2)
            x = x + torch.tanh(q.reshape(B, S, H * D)) * k.reshape(B, S, G * D).repeat(1, 1, H // G)
        return x


def step(model: nn.Module, call: Any) -> list[torch.Tensor]:
    torch.manual_seed(2)
    model.zero_grad()
    given = torch.randn(B, S, H * D).requires_grad_(True)
    out = call(given)
    out.square().sum().backward()
    assert given.grad is not None
    return [out.detach(), given.grad, *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def compiled(kernels: Any) -> dict[str, Any]:
    """Each way to write it, in Inductor's graphs: how many of the kernels' operators the pass put there."""
    from torch._inductor import config

    config.force_disable_caches = True
    graphs: list[dict[str, int]] = []

    def looked(graph: Any) -> None:
        kernels.STATE.fold(graph)
        graph.lint()
        names = [str(n.target).split(".")[1] for n in graph.nodes if "nightshift." in str(n.target)]
        graphs.append({name: names.count(name) for name in sorted(set(names))})

    found: dict[str, Any] = {}
    ways: dict[str, Job] = {
        "turned": Job(),
        "by position": Job(chunked, "by position"),
        "contiguous": Job(lies="contiguous"),
        "one sign off": Job(unlike),
        "by batch": Job(lies="batches"),
    }
    report = kernels.apply(ways["turned"], log=lambda _: None, shadow_every=1, log_every=0)
    found["applied"] = [(where, problem) for where, problem, _ in report.applied]
    config.joint_custom_pre_pass = looked
    asked = sys.argv[3:] or list(ways)
    for name in asked:
        torch._dynamo.reset()
        model = ways[name]
        want = step(model, model)
        got = step(model, torch.compile(model, fullgraph=True))
        found[name] = {"equal": alike(got, want, 10.0), "graph": graphs.pop()}
    found["calls"] = {k.problem: k.calls for k in kernels.STATE.kernels.values()}
    found["wrong"] = sum(k.shadow_mismatches for k in kernels.STATE.kernels.values())
    model = ways["turned"]
    run = torch.compile(model, fullgraph=True)
    with torch.no_grad():
        found["inferred"] = alike([run(torch.ones(B, S, H * D))], [model(torch.ones(B, S, H * D))])
    found["inference"] = graphs.pop()
    folder = Path(os.environ["NIGHTSHIFT_KERNEL_REGISTRY"])
    gone = kernels.STATE.kernels["rotary_half_by_position"].certificate
    (folder / "demoted.json").write_text(json.dumps([{"certificate": gone, "why": "x"}]))
    kernels.step_boundary()
    found["demoted"] = {"equal": alike(step(model, run), step(model, model)), "graph": graphs.pop()}
    config.joint_custom_pre_pass = kernels.STATE.fold
    kernels.unapply(model)
    found["back"] = config.joint_custom_pre_pass is None and alike(step(model, run), step(model, model))
    return found


class Paired(nn.Module):
    """One layer, its pairs side by side; keys have fewer heads. how: as models write it; lies: how q and k come."""

    def __init__(self, how: Any, lies: str = "turned", other: bool = False) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.how, self.lies, self.other = how, lies, other
        self.q, self.k = (nn.Linear(H * D, n * D) for n in (H, G))
        self.register_buffer("angle", torch.rand(S, D // 2) * 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cos, sin = self.angle.cos(), self.angle.sin()
        if self.lies == "by position":
            cos, sin = cos[:, None], sin[:, None]
        found = []
        for part in (self.q, self.k):
            v = part(x).view(B, S, -1, D)
            v = v if self.lies == "by position" else v.transpose(1, 2)
            v = v.contiguous() if self.lies == "contiguous" else v
            v = (unlike_pairs if self.other else self.how)(v, cos, sin)
            found.append((v if self.lies == "by position" else v.transpose(1, 2)).reshape(B, S, -1))
        return torch.tanh(found[0]) * found[1].repeat(1, 1, H // G)


def unlike_pairs(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """One sign off."""
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack((even * cos + odd * sin, even * sin + odd * cos), -1).flatten(-2)


def paired(kernels: Any) -> dict[str, Any]:
    """Pairs as models write them, in Inductor's graphs: how many of the kernels' operators the pass put there."""
    from torch._inductor import config

    config.force_disable_caches = True
    graphs: list[dict[str, int]] = []

    def looked(graph: Any) -> None:
        kernels.STATE.fold(graph)
        graph.lint()
        names = [str(n.target).split(".")[1] for n in graph.nodes if "nightshift." in str(n.target)]
        graphs.append({name: names.count(name) for name in sorted(set(names))})

    found: dict[str, Any] = {}
    ways = {
        "sliced": Paired(sliced),
        "complex by position": Paired(of_complex, "by position"),
        "every two, contiguous": Paired(every_two, "contiguous"),
        "unflattened": Paired(unflattened, "contiguous"),
        "one sign off": Paired(sliced, other=True),
    }
    report = kernels.apply(ways["sliced"], log=lambda _: None, shadow_every=1, log_every=0)
    found["applied"] = [problem for where, problem, _ in report.applied if where == "rotary embeddings"]
    config.joint_custom_pre_pass = looked
    for name, model in ways.items():
        torch._dynamo.reset()
        want = step(model, model)
        found[name] = {"equal": alike(step(model, torch.compile(model, fullgraph=True)), want, 10.0)}
        found[name]["graph"] = graphs.pop()
    found["calls"] = {name: k.calls for name, k in kernels.STATE.kernels.items()}
    found["wrong"] = sum(k.shadow_mismatches for k in kernels.STATE.kernels.values())
    model = ways["complex by position"]
    run = torch.compile(model, fullgraph=True)
    folder = Path(os.environ["NIGHTSHIFT_KERNEL_REGISTRY"])
    gone = kernels.STATE.kernels[f"rotary_interleaved_by_position h={H} float32"].certificate
    (folder / "demoted.json").write_text(json.dumps([{"certificate": gone, "why": "x"}]))
    kernels.step_boundary()
    found["demoted"] = {"equal": alike(step(model, run), step(model, model), 10.0), "graph": graphs.pop()}
    config.joint_custom_pre_pass = kernels.STATE.fold
    kernels.unapply(model)
    found["back"] = config.joint_custom_pre_pass is None and alike(step(model, run), step(model, model), 10.0)
    return found


def called(kernels: Any) -> dict[str, Any]:
    """The functions that a model may call: eager, compiled, differentiated, refused and before `apply`."""
    angle = torch.rand(S, D // 2) * 3
    pair = (angle.cos(), angle.sin())
    cos, sin = (torch.cat((t, t), -1) for t in pair)
    heads = [torch.randn(B, n, S, D) for n in (H, G)]
    turned = [torch.randn(B, S, n, D).transpose(1, 2) for n in (H, G)]

    def halves(given: list[torch.Tensor], call: Any) -> list[torch.Tensor]:
        q, k = (x.clone(memory_format=torch.preserve_format).requires_grad_(True) for x in given)
        out = call(q, k, cos[None, None], sin)
        made = torch.autograd.grad([x.pow(3).sum() for x in out], [q, k])
        return [*(x.detach() for x in out), *(x.contiguous() for x in made)]

    def pairs(x: torch.Tensor, call: Any) -> list[torch.Tensor]:
        x = x.clone().requires_grad_(True)
        out = call(x, *pair)
        (once,) = torch.autograd.grad(out.pow(3).sum(), x, create_graph=True)
        made = [out.detach(), once.detach(), *torch.autograd.grad(once.square().sum(), x)]
        return [value.contiguous() for value in made]

    def torchs(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
        return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin

    def interleaved(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        turn = torch.complex(cos, sin)
        return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turn).flatten(-2)

    def every() -> list[bool]:
        torch._dynamo.reset()
        whole = torch.compile(kernels.rotary, backend="aot_eager", fullgraph=True)
        return [
            alike(halves(heads, kernels.rotary), halves(heads, torchs)),
            alike(halves(turned, kernels.rotary), halves(turned, torchs)),
            alike(halves(heads, whole), halves(heads, torchs)),
            alike(pairs(heads[0], kernels.rotary_interleaved), pairs(heads[0], interleaved), 10.0),
            alike(pairs(turned[0], kernels.rotary_interleaved), pairs(turned[0], interleaved), 10.0),
        ]

    before = every()
    kernels.apply(nn.Linear(2, 2), log=lambda _: None, shadow_every=1, log_every=0)
    during, calls = every(), {k.problem: k.calls for k in kernels.STATE.kernels.values()}
    wide = kernels.rotary(*(x.double() for x in heads), cos.double(), sin.double())[0].dtype == torch.float64
    with torch.no_grad():
        kernels.rotary(*heads, cos, sin)
    after = {k.problem: k.calls - calls[k.problem] for k in kernels.STATE.kernels.values()}
    fallbacks, wrong = kernels.fallbacks(), sum(k.shadow_mismatches for k in kernels.STATE.kernels.values())
    kernels.unapply(nn.Linear(2, 2))
    return {
        "before": before, "during": during, "calls": calls, "wide": wide, "inferred": after,
        "fallbacks": fallbacks, "wrong": wrong, "after": every(),
    }  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(json.dumps(globals()[sys.argv[2]](load(sys.argv[1]))))
