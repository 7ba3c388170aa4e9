# nightshift candidate
# problem: linear_weight_gradient
# language: python
# kind: library
# determinism: bitwise

import torch


def entry(gradient, x):
    return torch.mm(gradient.t(), x)
