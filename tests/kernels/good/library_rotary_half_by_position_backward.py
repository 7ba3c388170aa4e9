# nightshift candidate
# problem: rotary_half_by_position_backward
# language: python
# kind: library
# determinism: bitwise

import torch


def returned(gradient, cos, sin):
    low, high = (gradient * sin[:, None]).chunk(2, dim=-1)
    return gradient * cos[:, None] + torch.cat((high, -low), dim=-1)


def entry(q_gradient, k_gradient, cos, sin):
    return returned(q_gradient, cos, sin), returned(k_gradient, cos, sin)
