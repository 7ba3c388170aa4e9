"""A job's file in this process, of kernels that are torch's own formulas: what is asked is where they are used."""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nightshift.kernels.apply.bundle import bundle
from tests.kernels.apply.applied_records import record

N, D, WIDE = 64, 16, 32
SAME = torch.randn(6, N, generator=torch.Generator().manual_seed(1))
X = SAME[:, :D].contiguous()
BODIES = {
    "rmsnorm": "x, w, eps: F.rms_norm(x, w.shape, w, eps)",
    "layernorm": "x, w, b, eps: F.layer_norm(x, w.shape, w, b, eps)",
    "softmax": "x: torch.softmax(x, -1)",
    "gelu": "x: torch.ops.aten.gelu(x)",
    "cross_entropy": "x, y: torch.logsumexp(x, -1) - x.gather(1, y[:, None])[:, 0]",
    "swiglu": "a, b: F.silu(a) * b",
    "fused_mlp": "x, g, u, d: (F.silu(x @ g.t()) * (x @ u.t())) @ d.t()",
    "linear": "x, w: x @ w.t()",
    "linear_bias": "x, w, b: torch.addmm(b, x, w.t())",
    "adamw": "p, g, first, second, rate, *rest: (p.sub_(rate * g.sign()), SEEN.append(p.numel()))",
    "adamw_many": "p, g, first, second, narrow, table, rate, *rest: (SEEN.append(int(table[:, 5].sum())), "
    "[p.view(-1)[a : a + n].sub_(rate * g.view(-1)[b : b + n].sign()) for a, b, _, _, _, n in table.tolist()])",
    "rmsnorm_backward": "g, x, w, eps: (g, g.sum(0))",
    "flash_attention": "q, k, v: torch._C._nn.scaled_dot_product_attention(q, k, v, is_causal=True)",
    "embedding_gradient": "g, i, rows: torch.zeros(rows, g.shape[1]).index_add_(0, i, g)",
}
SIZES = {
    "cross_entropy": {"m": 6, "v": 48},
    "fused_mlp": {"m": 6, "d": D, "f": WIDE},
    "adamw": {"n": 40},
    "adamw_many": {"n": 40},
    "flash_attention": {"b": 2, "h": 4, "s": 16, "d": 8},
    "linear": {"m": 6, "n": WIDE, "k": D},
    "swiglu": {"m": 6, "n": WIDE},
    "embedding_gradient": {"t": 6, "d": N, "v": 48},
}


def held(problem: str, **changed: Any) -> dict[str, Any]:
    """A record whose kernel is torch's own formula: what is asked here is where it is used."""
    source = f"import torch\nimport torch.nn.functional as F\nSEEN = []\nentry = lambda {BODIES[problem]}\n"
    return {**record(problem, source, **SIZES.get(problem, {"m": 6, "n": N})), **changed}


@functools.cache
def text() -> str:
    return bundle([])


def of_a_file(folder: Path, name: str) -> Any:
    (folder / f"{name}.py").write_text(text())
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


Job = Callable[..., Any]


def quietly(kernels: Any, model: nn.Module, **more: Any) -> Any:
    return kernels.apply(model, log=lambda _: None, **{"shadow_every": 0, "canary": False, **more})


def calls(kernels: Any) -> dict[str, int]:
    return {kernel.problem: kernel.calls for kernel in kernels.STATE.kernels.values() if kernel.calls}


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = (
            nn.Linear(D, WIDE, False),
            nn.Linear(D, WIDE, False),
            nn.Linear(WIDE, D, False),
        )
        self.act: nn.Module = nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.act(self.gate(x)) * self.up(x))
