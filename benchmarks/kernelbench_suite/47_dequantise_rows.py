"""Eight-bit codes and a scale for each row."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, code: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return code.to(scale.dtype) * scale[:, None]


def get_inputs() -> list[torch.Tensor]:
    return [torch.randint(-127, 128, (1024, 2048), dtype=torch.int8), torch.rand(1024)]


def get_init_inputs() -> list[int]:
    return []
