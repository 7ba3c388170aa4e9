"""SwiGLU with the sigmoid written out, up first."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, up: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return up * (gate * torch.sigmoid(gate))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(2048, 1024), torch.randn(2048, 1024)]


def get_init_inputs() -> list[int]:
    return []
