"""Softmax over the rows of a 2048 by 2048 matrix."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, dim=-1)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(2048, 2048)]


def get_init_inputs() -> list[int]:
    return []
