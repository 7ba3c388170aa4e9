"""Sum of each row of a 1024 by 4096 matrix."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(dim=-1)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(1024, 4096)]


def get_init_inputs() -> list[int]:
    return []
