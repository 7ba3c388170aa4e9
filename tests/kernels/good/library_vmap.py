# nightshift candidate
# problem: softmax
# language: python
# kind: library
# determinism: bitwise

import torch


def entry(x):
    return torch.func.vmap(lambda row: torch.softmax(row, dim=-1))(x)
