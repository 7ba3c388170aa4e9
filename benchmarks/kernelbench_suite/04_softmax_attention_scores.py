"""Softmax of attention scores with batch and heads."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.softmax(x, dim=3)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(4, 8, 256, 256)]


def get_init_inputs() -> list[int]:
    return []
