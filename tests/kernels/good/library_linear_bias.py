# nightshift candidate
# problem: linear_bias
# language: python
# kind: library
# determinism: bitwise
# differentiable: yes

import torch


def entry(x, weight, bias):
    return torch.addmm(bias, x, weight.t())
