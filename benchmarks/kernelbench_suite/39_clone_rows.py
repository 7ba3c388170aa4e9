"""A copy."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.clone()


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(1024, 2048)]


def get_init_inputs() -> list[int]:
    return []
