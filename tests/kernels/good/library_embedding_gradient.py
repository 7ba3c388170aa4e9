# nightshift candidate
# problem: embedding_gradient
# language: python
# kind: library
# determinism: bitwise

import torch


def entry(gradient, index, rows):
    return torch.ops.aten.embedding_dense_backward(gradient, index, rows, -1, False)
