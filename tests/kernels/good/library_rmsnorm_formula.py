# nightshift candidate
# problem: rmsnorm
# language: python
# kind: library
# determinism: bitwise
# differentiable: yes

import torch


def entry(x, weight, eps):
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)
