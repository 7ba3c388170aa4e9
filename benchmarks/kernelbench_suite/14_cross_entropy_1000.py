"""Cross-entropy of each row over 1000 classes."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x, target, reduction="none")


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(2048, 1000), torch.randint(0, 1000, (2048,))]


def get_init_inputs() -> list[int]:
    return []
