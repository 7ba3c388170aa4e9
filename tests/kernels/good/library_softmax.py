# nightshift candidate
# problem: softmax
# language: python
# kind: library
# determinism: bitwise
# differentiable: yes

import torch


def entry(x):
    return torch.softmax(x, dim=-1)
