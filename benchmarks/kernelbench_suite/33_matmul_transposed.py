"""A product with the second matrix transposed."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b.t()


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(512, 512), torch.randn(768, 512)]


def get_init_inputs() -> list[int]:
    return []
