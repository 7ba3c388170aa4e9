# nightshift candidate
# problem: rmsnorm_backward
# language: python
# kind: library
# determinism: bitwise

import torch
import torch.nn.functional as F


def entry(gradient, x, weight, eps):
    """Through autograd, in float32."""
    with torch.enable_grad():
        wide = x.detach().float().requires_grad_(True)
        scale = weight.detach().float().requires_grad_(True)
        y = F.rms_norm(wide, (x.shape[-1],), scale, eps)
        dx, dw = torch.autograd.grad(y, (wide, scale), gradient.float())
    return dx.to(x.dtype), dw.to(weight.dtype)
