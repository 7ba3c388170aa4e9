# nightshift candidate
# problem: gelu_backward
# language: python
# kind: library
# determinism: bitwise

import torch


def entry(gradient, x):
    return torch.ops.aten.gelu_backward(gradient, x)
