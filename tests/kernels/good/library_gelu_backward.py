# nightshift candidate
# problem: gelu_backward
# language: python
# kind: library
# determinism: bitwise

import torch
import torch.nn.functional as F


def entry(gradient, x):
    """Through autograd."""
    with torch.enable_grad():
        leaf = x.detach().requires_grad_(True)
        (dx,) = torch.autograd.grad(F.gelu(leaf), (leaf,), gradient)
    return dx
