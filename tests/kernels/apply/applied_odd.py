"""A job that does what jobs do with models: calls by name, hooks, copies, pickles, transforms, second derivatives.

TRITON_INTERPRET=1 python applied_odd.py FILE WHAT
"""

from __future__ import annotations

import copy
import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).parent))
from applied import load

N, D, WIDE = 64, 16, 32


class Rms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(N) + 0.5)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        wide = hidden_states.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(hidden_states.dtype)


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = (
            nn.Linear(D, WIDE, False),
            nn.Linear(D, WIDE, False),
            nn.Linear(WIDE, D, False),
        )
        self.act, self.drop = nn.SiLU(), nn.Dropout(0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.drop(self.act(self.gate(x)) * self.up(x)))


class Plain(nn.Sequential):
    """A block by inheritance."""


class Net(nn.Module):
    """scripted: a module of TorchScript that is a layer norm too, which cannot be given a forward."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.norm, self.layer, self.scripted = Rms(), nn.LayerNorm(N), torch.jit.script(nn.LayerNorm(N))
        self.block, self.plain = Mlp(), Plain(nn.Linear(D, WIDE), nn.GELU(), nn.Linear(WIDE, D))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.plain(self.block(self.scripted(self.layer(self.norm(hidden_states=x)))[..., :D].contiguous()))


X = torch.randn(6, N, generator=torch.Generator().manual_seed(1))


def quietly(kernels: Any, model: nn.Module, **more: Any) -> Any:
    return kernels.apply(model, log=lambda _: None, **more)


def near(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-3, atol=1e-4)


def asked(kernels: Any) -> dict[str, Any]:
    """apply looks at modules without a trace of it; hooks within a block hear of every call."""
    net = Net()
    heard: list[str] = []
    for name in ("norm", "block", "block.act", "plain.1"):
        net.get_submodule(name).register_forward_hook(lambda *_, name=name: heard.append(name))
    want = net(X)
    heard.clear()
    torch.manual_seed(9)
    before = torch.get_rng_state()
    report = quietly(kernels, net)
    silent = not heard and torch.equal(before, torch.get_rng_state())
    with torch.no_grad():
        out = net(X)
    return {
        "silent": silent,
        "applied": sorted({problem for where, problem, _ in report.applied if where in dict(net.named_modules())}),
        "equal": near(out, want),
        "heard": heard,
    }


def unready(kernels: Any) -> dict[str, Any]:
    """A layer whose sizes are not known yet is passed over, and told; the others are not held up by it."""
    net = nn.Sequential(nn.LazyLinear(N), nn.LayerNorm(N), nn.LazyBatchNorm1d())
    report = quietly(kernels, net)
    out = net(torch.randn(6, 5))
    return {
        "applied": [where for where, problem, _ in report.applied if problem == "layernorm"],
        "skipped": [(what, why[:15]) for what, why in report.skipped if what in "02"],
        "shape": list(out.shape),
    }


def held(kernels: Any) -> dict[str, Any]:
    """A forward that somebody else put there stays, also after unapply; it is told."""
    net = Net()
    seen: list[int] = []
    old = net.norm.forward

    def mine(*given: Any, **named: Any) -> Any:
        seen.append(1)
        return old(*given, **named)

    net.norm.forward = mine  # type: ignore[method-assign]
    report = quietly(kernels, net)
    seen.clear()
    net(X)
    kernels.unapply(net)
    kept = net.norm.__dict__.get("forward") is mine
    return {"skipped": [why for what, why in report.skipped if what == "norm"], "seen": len(seen), "kept": kept}


def carried(kernels: Any) -> dict[str, Any]:
    """Copies are applied as the model is; what was pickled is torch's until it is applied itself."""
    net = Net()
    del net.scripted  # TorchScript cannot be pickled
    net.scripted = nn.LayerNorm(N)  # type: ignore[assignment]
    want = net(X)
    quietly(kernels, net)
    twin = copy.deepcopy(net)
    again = pickle.loads(pickle.dumps(net))
    calls = kernels.STATE.kernels["rmsnorm"].calls
    equal = [near(twin(X), want)]
    between = kernels.STATE.kernels["rmsnorm"].calls
    equal.append(near(again(X), want))
    alone = kernels.STATE.kernels["rmsnorm"].calls
    report = quietly(kernels, again)
    equal.append(near(again(X), want))
    after = kernels.STATE.kernels["rmsnorm"].calls
    return {
        "equal": equal,
        "calls": [between - calls, alone - between, after - alone],
        "applied": len([where for where, _, _ in report.applied if where == "norm"]),
        "restored": [kernels.unapply(model) > 0 for model in (net, twin, again)],
        "left": sum("forward" in m.__dict__ for model in (net, twin, again) for m in model.modules()),
    }


class Functions(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.softmax(F.gelu(x), dim=-1)
        q = x.view(1, 2, 3, N)
        return F.cross_entropy(x, x) + F.scaled_dot_product_attention(q, q, q, is_causal=True).sum()


def transformed(kernels: Any) -> dict[str, Any]:
    """torch.func and forward-mode differentiation get torch's own, and it is counted."""
    net = Net()
    f = net.layer
    names = dict(f.named_parameters())
    grad = torch.func.grad(lambda p: torch.func.functional_call(f, p, (X,)).square().sum())
    want, mapped = grad(names), torch.func.vmap(net.norm)(X[None].repeat(2, 1, 1))
    quietly(kernels, net)
    got, again = grad(names), torch.func.vmap(net.norm)(X[None].repeat(2, 1, 1))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(X, torch.ones_like(X))
        tangents = [forward_ad.unpack_dual(each(dual)).tangent is not None for each in (F.gelu, net.norm)]
    scripted = torch.jit.trace(net.norm, (X,))
    written = torch.fx.symbolic_trace(Functions())
    other = X.flip(0)
    alike = [near(scripted(other), net.norm(other)), near(written(other), Functions()(other))]
    refused = sorted(key for key in kernels.fallbacks() if key.endswith("transform"))
    return {
        "equal": all(near(got[k], want[k]) for k in want) and near(again, mapped),
        "tangents": tangents,
        "alike": alike,
        "refused": refused,
    }


PLACES: dict[str, tuple[Callable[[Net, torch.Tensor], torch.Tensor], tuple[int, int]]] = {
    "rmsnorm": (lambda net, x: net.norm(x), (6, N)),
    "layernorm": (lambda net, x: net.layer(x), (6, N)),
    "gelu": (lambda net, x: F.gelu(x), (6, N)),
    "softmax": (lambda net, x: F.softmax(x, -1), (6, N)),
    "swiglu": (lambda net, x: net.block(x), (6, D)),
    "cross_entropy": (lambda net, x: F.cross_entropy(x, torch.arange(6)), (6, 48)),
}


def twice(kernels: Any) -> dict[str, Any]:
    """Second derivatives (a gradient penalty) with every gradient's kernel in use."""
    net = Net()

    def second() -> dict[str, torch.Tensor]:
        found = {}
        for name, (call, shape) in PLACES.items():
            x = torch.randn(*shape, generator=torch.Generator().manual_seed(4)).requires_grad_(True)
            (g,) = torch.autograd.grad(call(net, x).square().sum(), x, create_graph=True)
            found[name] = torch.autograd.grad(g.square().sum(), x)[0]
        return found

    want = second()
    quietly(kernels, net)
    got = second()
    return {name: near(got[name], want[name]) for name in PLACES}


def beyond(kernels: Any) -> dict[str, Any]:
    """Targets that are no class, beside one that is left out."""
    target = torch.tensor([3, 48, -1, -100, 2**40, 47])
    known = torch.tensor([3, -100, -100, -100, -100, 47])
    x = torch.randn(6, 48, generator=torch.Generator().manual_seed(4))
    want = F.cross_entropy(x, known, reduction="none")
    quietly(kernels, Net())
    before = kernels.STATE.kernels["cross_entropy"].calls
    got = F.cross_entropy(x, target, reduction="none")
    each = [F.cross_entropy(x, target, reduction=how).isnan().item() for how in ("mean", "sum")]
    return {
        "calls": kernels.STATE.kernels["cross_entropy"].calls - before,
        "nan": got.isnan().tolist(),
        "others": near(torch.nan_to_num(got), want),
        "whole": each,
        "known": near(F.cross_entropy(x, known), want.sum() / 2),
    }


def recomputed(kernels: Any) -> dict[str, Any]:
    """Checkpointing, inference, other dtypes, sizes that change in a compiled region."""
    net = Net()

    def gradient(call: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        x = X.clone().requires_grad_(True)
        call(x).square().sum().backward()
        assert x.grad is not None
        return x.grad

    want, out = gradient(net), net(X).detach()
    quietly(kernels, net, shadow_every=2)
    gradients = [gradient(lambda x, how=how: checkpoint(net, x, use_reentrant=how)) for how in (True, False)]
    with torch.inference_mode():
        inferred = net(X)
    free = torch.compile(nn.Sequential(net.norm, net.layer), backend="aot_eager", dynamic=True, fullgraph=True)
    rows = [torch.randn(m, N) for m in (6, 7, 8, 1, 100)]
    sizes = [near(free(x), F.layer_norm(net.norm(x), (N,))) for x in rows]
    half = copy.deepcopy(net.norm).half()(X.half())
    return {
        "gradients": [near(g, want) for g in gradients],
        "inferred": near(inferred, out),
        "sizes": sizes,
        "half": str(half.dtype),
    }


def written(kernels: Any) -> dict[str, Any]:
    """What a kernel gives is written to in place, in two and in three dimensions, as torch lets a job do."""
    net = Net()
    calls: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "rmsnorm": net.norm,
        "layernorm": net.layer,
        "gelu": lambda x: F.gelu(x),  # noqa: PLW0108  it is another function later
    }

    def gradients(call: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
        found = []
        for given in (X, X[None], X.reshape(2, 3, N)):
            x = given.clone().requires_grad_(True)
            out = call(x)
            found.append(torch.tensor(float(out._is_view())))
            out.mul_(2.0).add_(x).square().sum().backward()
            assert x.grad is not None
            found.append(x.grad)
        return found

    want = {name: gradients(call) for name, call in calls.items()}
    quietly(kernels, net)
    got = {name: gradients(call) for name, call in calls.items()}
    used = {name: kernels.STATE.kernels[name].calls for name in calls}
    equal = {name: all(near(a, b) for a, b in zip(got[name], want[name], strict=True)) for name in calls}
    return {"equal": equal, "used": used}


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(json.dumps(globals()[sys.argv[2]](load(sys.argv[1]))))
