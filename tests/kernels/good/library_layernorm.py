# nightshift candidate
# problem: layernorm
# language: python
# kind: library
# determinism: bitwise
# differentiable: yes

import torch.nn.functional as F


def entry(x, weight, bias, eps):
    return F.layer_norm(x, (x.shape[-1],), weight, bias, eps)
