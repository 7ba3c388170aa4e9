"""The tiny GPT and the Markov source that `benchmarks.loss_runs` trains: real gradients on one CPU core."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model and of its data; `length` in tokens."""

    width: int = 48
    layers: int = 2
    vocabulary: int = 128
    length: int = 32


class Block(nn.Module):
    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.out(attended)
        result: torch.Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return result


class TinyGpt(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.token = nn.Embedding(shape.vocabulary, shape.width)
        self.place = nn.Embedding(shape.length, shape.width)
        self.blocks = nn.Sequential(*(Block(shape.width) for _ in range(shape.layers)))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.token(x) + self.place(torch.arange(x.shape[1]))
        result: torch.Tensor = self.head(self.norm(self.blocks(h)))
        return result


class Source:
    """A Markov chain over the vocabulary; each state has a few likely successors."""

    def __init__(self, rng: np.random.Generator, sharpness: float, shape: Shape) -> None:
        weights = rng.dirichlet(np.full(shape.vocabulary, sharpness), size=shape.vocabulary)
        self.cumulative, self.shape = weights.cumsum(axis=1), shape

    def batch(self, rng: np.random.Generator, size: int) -> torch.Tensor:
        """[size, length + 1] tokens."""
        last = self.shape.vocabulary - 1
        x = np.empty((size, self.shape.length + 1), dtype=np.int64)
        x[:, 0] = rng.integers(0, last + 1, size)
        for t in range(self.shape.length):
            draws = rng.random(size)
            x[:, t + 1] = (self.cumulative[x[:, t]] < draws[:, None]).sum(axis=1).clip(0, last)
        return torch.from_numpy(x)

    def mixed(self, other: Source, kept: np.ndarray) -> Source:
        """`other` where not `kept`, this one where kept: a domain that shifts in part."""
        other.cumulative[kept] = self.cumulative[kept]
        return other
