# nightshift candidate
# problem: swiglu_backward
# language: python
# kind: library
# determinism: bitwise

import torch
import torch.nn.functional as F


def entry(gradient, gate, up):
    return torch.ops.aten.silu_backward(gradient * up, gate), gradient * F.silu(gate)
