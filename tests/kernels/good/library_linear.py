# nightshift candidate
# problem: linear
# language: python
# kind: library
# determinism: bitwise
# differentiable: yes

import torch


def entry(x, weight):
    return torch.mm(x, weight.t())
