"""A residual addition and the norm that follows it; both results are used."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1024))

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = x + residual
        return F.rms_norm(total, (1024,), self.weight, 1e-6), total


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(2048, 1024), torch.randn(2048, 1024)]


def get_init_inputs() -> list[int]:
    return []
