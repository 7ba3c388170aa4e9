# nightshift candidate
# problem: rotary_interleaved_by_position_backward
# language: python
# kind: library
# determinism: bitwise

import torch


def entry(gradient, cos, sin):
    even, odd = gradient[..., 0::2], gradient[..., 1::2]
    cos, sin = cos[:, None], sin[:, None]
    return torch.stack((even * cos + odd * sin, odd * cos - even * sin), dim=-1).flatten(-2)
