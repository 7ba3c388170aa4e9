# nightshift candidate
# problem: rmsnorm
# language: triton
# kind: own_kernel
# determinism: bitwise
"""A kernel for short rows and a tuned one for long; what people keep around a kernel is here as well."""

from __future__ import annotations

import logging
from collections import namedtuple
from dataclasses import dataclass
from enum import IntEnum
from functools import cache

import torch
import triton
import triton.language as tl

logger = logging.getLogger(__name__)

HAS_FP8 = getattr(torch, "float8_e4m3fn", None) is not None


class Path(IntEnum):
    SMALL = 0
    LOOPED = 1


@dataclass(frozen=True)
class Config:
    block: int
    warps: int
    stages: int = 2

    @property
    def options(self) -> dict:
        return {"BLOCK": self.block}


Shape = namedtuple("Shape", ["rows", "columns"])
_CONFIGS = [Config(1024, 4), Config(2048, 8), Config(4096, 8, stages=3)]


def _prune(configs, named_args, **kwargs):
    n = named_args["n"]
    kept = [c for c in configs if c.kwargs["BLOCK"] <= max(1024, 2 * n)]
    return kept or configs[:1]


@triton.jit
def _load_row(ptr, cols, stride, n):
    return tl.load(ptr + cols * stride, mask=cols < n, other=0.0, eviction_policy="evict_first").to(tl.float32)


@triton.autotune(
    configs=[triton.Config(c.options, num_warps=c.warps, num_stages=c.stages) for c in _CONFIGS],
    key=["n"],
    prune_configs_by={"early_config_prune": _prune},
)
@triton.heuristics({"ALIGNED": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def _looped(x, w, y, n, sm, sn, sw, eps, ALIGNED: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(axis=0).to(tl.int64)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in tl.range(0, n, BLOCK):
        v = _load_row(x + row * sm, start + tl.arange(0, BLOCK), sn, n)
        total += v * v
    rstd = 1.0 / tl.sqrt(tl.sum(total, axis=0) / n + eps)
    for start in tl.range(0, n, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        v = _load_row(x + row * sm, cols, sn, n)
        if ALIGNED:
            weight = tl.load(w + cols * sw).to(tl.float32)
            tl.store(y + row * n + cols, v * rstd * weight)
        else:
            weight = tl.load(w + cols * sw, mask=cols < n, other=0.0).to(tl.float32)
            tl.store(y + row * n + cols, v * rstd * weight, mask=cols < n)


@triton.jit
def _single(x, w, y, n, sm, sn, sw, eps, BLOCK: tl.constexpr):
    row = tl.program_id(axis=0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    v = _load_row(x + row * sm, cols, sn, n)
    rstd = tl.rsqrt(tl.sum(v * v, axis=0) / n + eps)
    weight = tl.load(w + cols * sw, mask=cols < n, other=0.0, cache_modifier=".ca").to(tl.float32)
    tl.store(y + row * n + cols, v * rstd * weight, mask=cols < n)


@cache
def _settings(n: int, dtype: torch.dtype):
    block = triton.next_power_of_2(n)
    return block, min(16, max(1, block // 256))


def _path(n: int) -> Path:
    return Path.SMALL if n <= 4096 else Path.LOOPED


def entry(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    shape = Shape(*x.shape)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    if x.shape[-1] > 4096:
        logger.debug("looped path for %s", shape)
        launch = _looped[(shape.rows,)]
        launch(x, weight, out, shape.columns, x.stride(0), x.stride(1), weight.stride(0), eps)
    else:
        block, warps = _settings(shape.columns, x.dtype)
        _single[(shape.rows,)](
            x,
            weight,
            out,
            shape.columns,
            x.stride(0),
            x.stride(1),
            weight.stride(0),
            eps,
            BLOCK=block,
            num_warps=warps,
        )
    return out


if __name__ == "__main__":
    import time

    a = torch.randn(4, 100)
    start = time.time()
    torch.testing.assert_close(entry(a, torch.ones(100), 1e-6), torch.nn.functional.rms_norm(a, (100,)))
    print(time.time() - start)
