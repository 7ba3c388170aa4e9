# nightshift candidate
# problem: stencil_3x3
# language: python
# kind: library
# determinism: bitwise

import torch
import torch.nn.functional as F


def entry(x, weight):
    padded = F.pad(x, (1, 1, 1, 1))
    h, w = x.shape[1:]
    terms = [weight[a, b] * padded[:, a : a + h, b : b + w] for a in range(3) for b in range(3)]
    return torch.stack(terms).sum(0)
