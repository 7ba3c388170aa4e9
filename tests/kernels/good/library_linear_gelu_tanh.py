# nightshift candidate
# problem: linear_gelu_tanh
# language: python
# kind: library
# determinism: bitwise

import torch
import torch.nn.functional as F


def entry(x, weight, bias):
    y = torch.addmm(bias, x, weight.t())
    return F.gelu(y, approximate="tanh")
