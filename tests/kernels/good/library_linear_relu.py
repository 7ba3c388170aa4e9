# nightshift candidate
# problem: linear_relu
# language: python
# kind: library
# determinism: bitwise

import torch


def entry(x, weight, bias):
    y = torch.addmm(bias, x, weight.t())
    return torch.clamp(y, min=0)
