"""Sum of each row of a 64 by 32768 matrix."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(dim=-1)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(64, 32768)]


def get_init_inputs() -> list[int]:
    return []
