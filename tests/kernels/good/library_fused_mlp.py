# nightshift candidate
# problem: fused_mlp
# language: python
# kind: library
# determinism: bitwise
# differentiable: yes

import torch.nn.functional as F


def entry(x, gate, up, down):
    return (F.silu(x @ gate.T) * (x @ up.T)) @ down.T
