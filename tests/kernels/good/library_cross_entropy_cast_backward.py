# nightshift candidate
# problem: cross_entropy_cast_backward
# language: python
# kind: library
# determinism: bitwise

import torch
import torch.nn.functional as F


def entry(gradient, logits, target):
    """Through autograd, in float32."""
    with torch.enable_grad():
        wide = logits.detach().float().requires_grad_(True)
        loss = F.cross_entropy(wide, target, reduction="none")
        (d,) = torch.autograd.grad(loss, (wide,), gradient.float())
    return d.to(logits.dtype)
