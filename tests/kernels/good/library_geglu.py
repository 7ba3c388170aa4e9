# nightshift candidate
# problem: geglu
# language: python
# kind: library
# determinism: bitwise
# differentiable: yes

import torch.nn.functional as F


def entry(gate, up):
    return F.gelu(gate, approximate="tanh") * up
