# nightshift candidate
# problem: swiglu
# language: python
# kind: library
# determinism: bitwise
# differentiable: yes

import torch.nn.functional as F


def entry(gate, up):
    return F.silu(gate) * up
