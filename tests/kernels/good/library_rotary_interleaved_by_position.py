# nightshift candidate
# problem: rotary_interleaved_by_position
# language: python
# kind: library
# determinism: bitwise
# differentiable: yes

import torch


def entry(x, cos, sin):
    even, odd = x[..., 0::2], x[..., 1::2]
    cos, sin = cos[:, None], sin[:, None]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)
