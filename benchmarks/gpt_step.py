"""The GPT-like training step that the kernel loop is measured on, and one contestant of it.

The model is the one of `tests/recordings/h200_train_trace.json.gz`: 92 M parameters, bf16 autocast, batch 16 × 512.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

SIZE = {"v": 8192, "d": 1024, "layers": 6, "heads": 16, "batch": 16, "t": 512}
TINY = {"v": 48, "d": 32, "layers": 1, "heads": 2, "batch": 2, "t": 3}
"""For a CPU, to see that every part works."""
GRAPHS = ("reduce-overhead", "max-autotune")
"""torch.compile's modes that record CUDA graphs."""


class Rms(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(d))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self.w


class Block(nn.Module):
    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.n1, self.n2, self.heads = Rms(d), Rms(d), heads
        self.qkv, self.o = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.u, self.dn = nn.Linear(d, 4 * d, bias=False), nn.Linear(4 * d, d, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, t, d))
        return x + self.dn(F.gelu(self.u(self.n2(x))))


class Lm(nn.Module):
    def __init__(self, v: int, d: int, layers: int, heads: int) -> None:
        super().__init__()
        self.e = nn.Embedding(v, d)
        self.b = nn.ModuleList(Block(d, heads) for _ in range(layers))
        self.n, self.h = Rms(d), nn.Linear(d, v, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        x = self.e(index)
        for block in self.b:
            x = block(x)
        return self.h(self.n(x))


class Job:
    """One contestant: a model, its optimiser and a step.

    mode: torch.compile's, "" for eager. kernels: the job's file, or None; only: those of its kernels that are used;
    launches: the compiler launches them itself.
    """

    def __init__(
        self,
        size: dict[str, int],
        device: str,
        seed: int,
        mode: str,
        kernels: Any = None,
        only: Any = (),
        launches: bool = False,
    ) -> None:
        torch.manual_seed(seed)
        self.size, self.device = size, device
        self.graphs = mode in GRAPHS and device == "cuda"
        self.model = Lm(size["v"], size["d"], size["layers"], size["heads"]).to(device)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=3e-4, betas=(0.9, 0.95), fused=device == "cuda" or None
        )
        self.kernels, self.report, self.launches = kernels, "", launches
        self.state: dict[str, Any] = {}
        if kernels is not None:
            told = kernels.apply(
                self.model,
                shadow_every=0,
                log_every=0,
                only=only,
                compiler_launches=launches,
                weight_copies=True,
            )
            self.report = str(told)
        self.forward: Callable[..., Any] = self._loss
        if mode:
            how = {"mode": mode} if device == "cuda" else {"backend": "aot_eager"}
            self.forward = torch.compile(self._loss, **how)

    def _loss(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(self.device, dtype=torch.bfloat16):
            logits = self.model(x[:, :-1])
            return F.cross_entropy(logits.float().view(-1, self.size["v"]), x[:, 1:].reshape(-1))

    def leave(self) -> None:
        """Torch's own functions are back until `enter`: what this contestant uses is no other's."""
        if self.kernels is not None:
            self.state = dict(self.kernels.STATE.kernels)
            self.kernels.STATE.kernels.clear()
            self.kernels.give_functions_back()

    def enter(self) -> None:
        if self.kernels is not None:
            self.kernels.STATE.kernels.update(self.state)
            self.kernels.STATE.open = self.launches
            self.kernels.open_all()
            self.kernels.swap_functions(self.kernels.Report())
            self.kernels.swap_optimizer(self.kernels.Report())

    def step(self, x: torch.Tensor) -> torch.Tensor:
        if self.graphs:
            torch.compiler.cudagraph_mark_step_begin()
        loss = self.forward(x)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach().clone() if self.graphs else loss.detach()  # the next replay overwrites it


def batches(size: dict[str, int], device: str, count: int) -> list[torch.Tensor]:
    """A permutation to be learned, with 15 % noise, as in the recording."""
    generator = torch.Generator().manual_seed(0)
    v, b, t = size["v"], size["batch"], size["t"]
    permutation = torch.randperm(v, generator=generator)
    made = []
    for _ in range(count):
        x = torch.empty(b, t + 1, dtype=torch.long)
        x[:, 0] = torch.randint(0, v, (b,), generator=generator)
        noise = torch.rand(b, t, generator=generator) < 0.15
        random = torch.randint(0, v, (b, t), generator=generator)
        for j in range(t):
            x[:, j + 1] = torch.where(noise[:, j], random[:, j], permutation[x[:, j]])
        made.append(x.to(device))
    return made


def seconds(job: Job, data: list[torch.Tensor], count: int) -> float:
    """Of one step, by the clock over `count` steps between two synchronisations."""
    if job.device == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    for number in range(count):
        job.step(data[number % len(data)])
    if job.device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - started) / count
