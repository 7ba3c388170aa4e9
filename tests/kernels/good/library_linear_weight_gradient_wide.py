# nightshift candidate
# problem: linear_weight_gradient_wide
# language: python
# kind: library
# determinism: bitwise

import torch


def entry(gradient, x):
    if gradient.is_cuda:
        return torch.mm(gradient.t(), x, out_dtype=torch.float32)
    return gradient.t().float() @ x.float()
