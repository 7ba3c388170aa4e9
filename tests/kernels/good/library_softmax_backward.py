# nightshift candidate
# problem: softmax_backward
# language: python
# kind: library
# determinism: bitwise

import torch


def entry(gradient, out):
    return torch.ops.aten._softmax_backward_data(gradient, out, -1, out.dtype)
