"""A matrix product."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.matmul(a, b)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(512, 512), torch.randn(512, 512)]


def get_init_inputs() -> list[int]:
    return []
