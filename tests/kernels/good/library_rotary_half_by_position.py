# nightshift candidate
# problem: rotary_half_by_position
# language: python
# kind: library
# determinism: bitwise
# differentiable: yes

import torch


def turned(x, cos, sin):
    low, high = x.chunk(2, dim=-1)
    return x * cos[:, None] + torch.cat((-high, low), dim=-1) * sin[:, None]


def entry(q, k, cos, sin):
    return turned(q, cos, sin), turned(k, cos, sin)
