"""Rotary embedding, neighbours paired."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(2, 16, 512, 64), torch.rand(512, 32), torch.rand(512, 32)]


def get_init_inputs() -> list[int]:
    return []
