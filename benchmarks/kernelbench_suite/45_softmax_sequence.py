"""Softmax over the features of a batch of sequences."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.softmax(-1)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(8, 128, 2048)]


def get_init_inputs() -> list[int]:
    return []
