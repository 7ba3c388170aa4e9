# nightshift candidate
# problem: rmsnorm_residual
# language: python
# kind: library
# determinism: bitwise
# differentiable: yes

import torch.nn.functional as F


def entry(x, residual, weight, eps):
    total = x + residual
    return F.rms_norm(total, (x.shape[-1],), weight, eps), total
