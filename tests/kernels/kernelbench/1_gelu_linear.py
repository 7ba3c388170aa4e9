"""A task in KernelBench's format: a linear layer and a GELU."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features: int, out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(self.linear(x))


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(8, 32)]


def get_init_inputs() -> list[int]:
    return [32, 16]
