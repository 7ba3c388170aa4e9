# nightshift candidate
# problem: gelu
# language: python
# kind: library
# determinism: bitwise
# differentiable: yes

import torch.nn.functional as F


def entry(x):
    return F.gelu(x)
