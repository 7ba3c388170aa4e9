"""GEGLU with the tanh form of GELU."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def forward(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return F.gelu(gate, approximate="tanh") * up


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(2048, 2048), torch.randn(2048, 2048)]


def get_init_inputs() -> list[int]:
    return []
