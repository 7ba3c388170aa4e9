"""A linear layer with bias and a GELU."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(512, 512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(self.layer(x))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(256, 512)]


def get_init_inputs() -> list[int]:
    return []
