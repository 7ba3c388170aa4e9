# nightshift candidate
# problem: matmul
# language: python
# kind: library
# determinism: bitwise
# differentiable: yes

import torch


def entry(a, b):
    return torch.mm(a, b)
