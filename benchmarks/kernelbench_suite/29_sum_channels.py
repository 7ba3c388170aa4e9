"""Sum over the last of four dimensions."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sum(x, dim=3)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(8, 16, 64, 512)]


def get_init_inputs() -> list[int]:
    return []
