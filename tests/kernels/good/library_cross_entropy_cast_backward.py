# nightshift candidate
# problem: cross_entropy_cast_backward
# language: python
# kind: library
# determinism: bitwise

import torch
import torch.nn.functional as F


def entry(gradient, logits, target):
    """Through autograd; the cast's own gradient rounds once."""
    with torch.enable_grad():
        narrow = logits.detach().requires_grad_(True)
        loss = F.cross_entropy(narrow.float(), target, reduction="none")
        (d,) = torch.autograd.grad(loss, (narrow,), gradient.float())
    return d
