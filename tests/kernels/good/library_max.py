# nightshift candidate
# problem: max
# language: python
# kind: library
# determinism: bitwise

import torch


def entry(x):
    return torch.amax(x, dim=-1)
