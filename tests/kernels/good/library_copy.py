# nightshift candidate
# problem: copy
# language: python
# kind: library
# determinism: bitwise

import torch


def entry(x):
    return x.clone(memory_format=torch.contiguous_format)
