"""Rotary embedding of queries and keys, halves paired."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(
        self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return q * cos + _turned(q) * sin, k * cos + _turned(k) * sin


def _turned(x: torch.Tensor) -> torch.Tensor:
    low, high = x.chunk(2, dim=-1)
    return torch.cat((-high, low), dim=-1)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(1, 16, 512, 64), torch.randn(1, 4, 512, 64), torch.rand(512, 64), torch.rand(512, 64)]


def get_init_inputs() -> list[int]:
    return []
